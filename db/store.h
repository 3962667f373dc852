/*
 * The store: what memferry remembers between runs, in one SQLite file.
 *
 * What: hardware seen, measured kernels by hardware, plans (and proofs that nothing fits) by cache
 *   key, models, sessions. Who calls it: server. Owner: open gives a store that close frees;
 *   strings of a record that is put are borrowed for the call, those of a record that is got lie in
 *   the caller's arena. Thread: any; one connection behind one mutex, which is never held while
 *   foreign code runs. Several processes may use one file at once.
 * Fails: MF_STATUS_NOT_FOUND for what is not there; MF_STATUS_IO with the reason when the disk is
 *   full or not writable, _BUSY when another process holds the file for ten seconds, _CORRUPT when
 *   damage shows after opening (the next open repairs it), _INVALID for text over
 *   MF_STORE_BLOB_MAX. A store that fails is never a reason to stop serving: treat it as a miss.
 */
#ifndef MF_DB_STORE_H
#define MF_DB_STORE_H

#include <stdbool.h>
#include <stdint.h>

#include "core/arena.h"
#include "core/hardware.h"
#include "core/model.h"
#include "core/plan.h"
#include "core/profile.h"
#include "core/status.h"

struct mf_store;

/*
 * Opens or makes the file. One that is damaged, or is no memferry store, is set aside as
 * <path>.corrupt-<UTC time> with its -wal and -shm (never deleted), said once in the log, and made
 * anew. MF_STATUS_UNSUPPORTED, and the file stays as it is, when a newer memferry wrote it;
 * MF_STATUS_DENIED or _IO when the folder cannot be written.
 */
enum mf_status mf_store_open(const char *path, struct mf_store **out) MF_MUST_USE;
void mf_store_close(struct mf_store *store); /* NULL is fine */
/* Where a damaged file went at open; "" when nothing was set aside. Lives as long as the store. */
const char *mf_store_set_aside(const struct mf_store *store);

/* Hardware, by fingerprint. Putting it again renews last_seen. */
struct mf_store_hardware_record {
    const char *fingerprint;
    const char *json; /* mf_hardware_encode() */
    int64_t first_seen_unix_s;
    int64_t last_seen_unix_s;
};
enum mf_status mf_store_hardware_put(struct mf_store *store,
                                     const struct mf_hardware *hardware) MF_MUST_USE;
enum mf_status mf_store_hardware_get(struct mf_store *store, const char *fingerprint,
                                     struct mf_arena *arena,
                                     struct mf_store_hardware_record *out) MF_MUST_USE;
enum mf_status mf_store_hardware_list(struct mf_store *store, struct mf_arena *arena,
                                      struct mf_store_hardware_record **out,
                                      int32_t *count) MF_MUST_USE;

/* Measurements, by hardware and signature: equal work is kept once, whatever model asked for it. */
struct mf_store_profile_record {
    int64_t id;
    const char *hardware_fingerprint;
    const char *method;
    bool complete;
    int32_t entries; /* measurements that came with it */
    int64_t measured_unix_s;
};
/* All measurements of that hardware, into a profile this call inits; count 0 when there are none.
 * Reset it with mf_profile_reset(), also after a failure. Rows with a kernel that this version does
 * not know are left out. */
enum mf_status mf_store_profile_load(struct mf_store *store, const char *hardware_fingerprint,
                                     struct mf_profile *out) MF_MUST_USE;
/* Puts the hardware too. An entry replaces the stored one of its signature. All or nothing. */
enum mf_status mf_store_profile_merge(struct mf_store *store, const struct mf_hardware *hardware,
                                      const struct mf_profile *profile) MF_MUST_USE;
/* Newest first. */
enum mf_status mf_store_profile_list(struct mf_store *store, struct mf_arena *arena,
                                     struct mf_store_profile_record **out,
                                     int32_t *count) MF_MUST_USE;
/* Forgets every measurement of the hardware. MF_STATUS_NOT_FOUND when there was none. */
enum mf_status mf_store_profile_delete(struct mf_store *store,
                                       const char *hardware_fingerprint) MF_MUST_USE;

/* Plans, by cache key; an infeasible request is remembered too. */
struct mf_store_plan_record {
    const char *id; /* the plan's; the key's for an infeasible request */
    const char *key;
    const char *model_fingerprint;
    const char *model_name;
    const char *hardware_fingerprint;
    const char *strategy;
    const char *source; /* "estimate" or "measured"; "" for an infeasible request */
    int32_t planner_version;
    double step_ns;
    double bound_ns;
    int64_t device_peak_bytes;
    int64_t host_peak_bytes;
    const char *json;  /* mf_plan_encode(); NULL in lists and for an infeasible request */
    const char *error; /* why nothing fits; NULL for a plan */
    int64_t created_unix_s;
    int64_t used_unix_s;
    int64_t use_count;
};

struct mf_store_plan_answer {
    bool feasible;
    struct mf_plan plan;   /* when feasible; the caller resets it */
    struct mf_error error; /* when not: what the planner said */
    int64_t created_unix_s;
    int64_t use_count; /* with this use */
};

/* What an infeasible request was for; shown by lists. */
struct mf_store_plan_request {
    const char *model_fingerprint;
    const char *model_name;
    const char *hardware_fingerprint;
    enum mf_strategy strategy;
};

/* A sealed plan; replaces what the key had. */
enum mf_status mf_store_plan_put(struct mf_store *store, const char *key,
                                 const struct mf_plan *plan) MF_MUST_USE;
enum mf_status mf_store_plan_put_error(struct mf_store *store, const char *key,
                                       const struct mf_store_plan_request *request,
                                       const struct mf_error *error) MF_MUST_USE;
/* Counts the use. MF_STATUS_NOT_FOUND is a miss: also, with a log line, for a stored plan that no
 * longer decodes or does not validate against `model`. */
enum mf_status mf_store_plan_get(struct mf_store *store, const char *key,
                                 const struct mf_model *model,
                                 struct mf_store_plan_answer *out) MF_MUST_USE;
/* By id, or by the beginning of one (MF_STATUS_INVALID when two begin so). */
enum mf_status mf_store_plan_find(struct mf_store *store, const char *id, struct mf_arena *arena,
                                  struct mf_store_plan_record *out) MF_MUST_USE;
/* Newest first. */
enum mf_status mf_store_plan_list(struct mf_store *store, struct mf_arena *arena,
                                  struct mf_store_plan_record **out, int32_t *count) MF_MUST_USE;
enum mf_status mf_store_plan_delete(struct mf_store *store, const char *id) MF_MUST_USE;

/* Models, by fingerprint. */
struct mf_store_model_record {
    const char *fingerprint;
    const char *name;
    const char *family;
    int64_t params;
    const char *config; /* JSON; NULL for a bare list of units */
    int64_t first_seen_unix_s;
};
enum mf_status mf_store_model_put(struct mf_store *store, const struct mf_model *model) MF_MUST_USE;
enum mf_status mf_store_model_get(struct mf_store *store, const char *fingerprint,
                                  struct mf_arena *arena,
                                  struct mf_store_model_record *out) MF_MUST_USE;
enum mf_status mf_store_model_list(struct mf_store *store, struct mf_arena *arena,
                                   struct mf_store_model_record **out, int32_t *count) MF_MUST_USE;
enum mf_status mf_store_model_delete(struct mf_store *store, const char *fingerprint) MF_MUST_USE;

/* Sessions and runs, so that a list shows the past and a restarted daemon knows what was running.
 */
struct mf_store_session_record {
    const char *id;
    const char *state; /* the session's own word: "running", "closed", "failed" ... */
    const char *model_name;
    const char *plan_id;
    const char *run_dir; /* "" = none */
    int64_t started_unix_s;
    int64_t ended_unix_s; /* 0 = not ended */
    int64_t last_step;
    double last_loss;  /* not a number is kept as "none" and comes back so */
    const char *error; /* for a person; "" = none */
};
/* Replaces the session of that id; NULL strings are stored as "". */
enum mf_status mf_store_session_put(struct mf_store *store,
                                    const struct mf_store_session_record *record) MF_MUST_USE;
enum mf_status mf_store_session_get(struct mf_store *store, const char *id, struct mf_arena *arena,
                                    struct mf_store_session_record *out) MF_MUST_USE;
/* Newest first; only those without an end when `open_only`. */
enum mf_status mf_store_session_list(struct mf_store *store, bool open_only, struct mf_arena *arena,
                                     struct mf_store_session_record **out,
                                     int32_t *count) MF_MUST_USE;
enum mf_status mf_store_session_delete(struct mf_store *store, const char *id) MF_MUST_USE;

#endif
