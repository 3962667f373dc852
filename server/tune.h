/*
 * From a model and its constraints to a plan: store, else measure, solve and store.
 *
 * Who calls it: PlanService.GetPlan, sessions, runs. Thread: RPC workers (never the device
 * worker's thread: measuring posts jobs there and waits). Identical requests at the same time are
 * solved once. Owner: the caller owns out->plan. Fails: as mf_solve; MF_STATUS_NOT_FOUND for effort
 * CACHED on a miss; MF_STATUS_CANCELLED when `cancelled` says so.
 */
#ifndef MF_SERVER_TUNE_H
#define MF_SERVER_TUNE_H

#include <stdbool.h>
#include <stdint.h>

#include "core/model.h"
#include "core/plan.h"
#include "core/profile.h"
#include "server/service.h"

/* Opened after store, worker and hardware; loads what was measured on this hardware. */
struct mf_tune *mf_tune_open(struct mf_service *service);
void mf_tune_close(struct mf_tune *tune);

enum mf_effort { MF_EFFORT_CACHED, MF_EFFORT_ESTIMATE, MF_EFFORT_MEASURE };

struct mf_tune_request {
    const struct mf_model *model;
    struct mf_workload workload;
    struct mf_constraints constraints;
    enum mf_strategy strategy;
    const struct mf_pin *pins;
    int32_t pin_count;
    enum mf_effort effort;
    const struct mf_hardware *hardware; /* NULL = this machine; another one is not measured */
    double measure_seconds_max;         /* 0 = 60 */
    bool measure_again;
    /* Progress text and share done; may be NULL. */
    void (*progress)(void *context, const char *what, double done);
    bool (*cancelled)(void *context); /* may be NULL */
    void *context;
};

struct mf_tune_result {
    struct mf_plan plan;
    const char *how; /* "cached", "estimated", "measured"; static */
    char miss[160];  /* MF_TUNE_MISS_MAX: why it was not in the store, "" for a hit */
    double age_s;
    int64_t use_count;
    double measure_s;
    double solve_s;
};

enum mf_status mf_tune_plan(struct mf_service *service, const struct mf_tune_request *request,
                            struct mf_tune_result *out) MF_MUST_USE;
/* Measures what this model needs; counts and progress as above. */
enum mf_status mf_tune_measure(struct mf_service *service, const struct mf_tune_request *request,
                               int32_t *needed, int32_t *measured) MF_MUST_USE;
/* The same; while another caller measures for this model and workload it waits, and then measures
 * what is left. */
enum mf_status mf_tune_once_measure(struct mf_service *service,
                                    const struct mf_tune_request *request, int32_t *needed,
                                    int32_t *measured) MF_MUST_USE;
/* A stored plan by id or unique prefix; caller owns it. */
enum mf_status mf_tune_find(struct mf_service *service, const char *id,
                            struct mf_plan *out) MF_MUST_USE;

/* The model that a stored plan is for; caller owns it. MF_STATUS_NOT_FOUND when it was removed. */
enum mf_status mf_tune_find_model(struct mf_service *service, const struct mf_plan *plan,
                                  struct mf_model *out) MF_MUST_USE;
/* Both, checked against each other; the caller resets both. */
enum mf_status mf_tune_find_whole(struct mf_service *service, const char *id, struct mf_plan *plan,
                                  struct mf_model *model) MF_MUST_USE;
/* A copy of the hardware as known now. */
void mf_tune_hardware(struct mf_service *service, struct mf_hardware *out);
/* Rises whenever a plan or a measurement changes. */
uint64_t mf_tune_generation(struct mf_service *service);
/* Says that a stored plan was removed. */
void mf_tune_changed(struct mf_service *service);

/* A copy of what is measured; mf_profile_reset() it. */
void mf_tune_profile(struct mf_service *service, struct mf_profile *out);
/* Rises whenever what is measured changes. */
uint64_t mf_tune_profile_generation(struct mf_service *service);
/* Adds measurements, to the store too (where a failure is only logged). */
void mf_tune_profile_learn(struct mf_service *service, const struct mf_profile *measured);
/* Forgets what was measured on the hardware of that fingerprint or unique prefix. */
enum mf_status mf_tune_profile_forget(struct mf_service *service,
                                      const char *fingerprint) MF_MUST_USE;
/* The rates of the machine, into service->hardware and the store. */
enum mf_status mf_tune_measure_rates(struct mf_service *service, double seconds_max) MF_MUST_USE;
/* What lanes cost each other, likewise. MF_STATUS_DEADLINE: the machine was too busy; what is known
 * stays. Holds the device for a second or two. */
enum mf_status mf_tune_measure_contention(struct mf_service *service) MF_MUST_USE;

#endif
