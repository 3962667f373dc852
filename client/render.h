/*
 * What the daemon answers, as text for people.
 *
 * Who calls it: the CLI's verbs. Owner: nothing is kept. Thread: one. Fails: no.
 */
#ifndef MF_CLIENT_RENDER_H
#define MF_CLIENT_RENDER_H

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#include "client/library_json.h"
#include "client/table.h"
#include "core/format.h"
#include "core/status.h"
#include "memferry/v1/hardware.pb-c.h"
#include "memferry/v1/plan.pb-c.h"
#include "memferry/v1/profile.pb-c.h"
#include "memferry/v1/training.pb-c.h"

struct mf_render {
    FILE *out;
    bool header; /* titles above tables */
    bool colour;
    int width;          /* of the terminal; 0 = none, nothing is cut */
    int64_t now_unix_s; /* for ages */
};

/* The short form of a choice: "stream". */
#define MF_RENDER_ENUM(type, value, out)                                                           \
    mf_library_json_enum(&memferry__v1__##type##__descriptor, (int)(value), out)

/* Shared forms. Each returns `out`. */
const char *mf_render_ms(double ns, char out[static MF_FORMAT_MAX]);       /* "12.30", "" for 0 */
const char *mf_render_time(double ns, char out[static MF_FORMAT_MAX]);     /* "12.30 ms", "0" */
const char *mf_render_age(double seconds, char out[static MF_FORMAT_MAX]); /* "3 min" */
const char *mf_render_rate(double bytes_per_s, char out[static MF_FORMAT_MAX]);
/* Tokens a second of such steps: "5475", "1.40". */
const char *mf_render_pace(const Memferry__V1__Workload *workload, double step_ns,
                           char out[static MF_FORMAT_MAX]);
/* The first 12 digits of a hash. */
const char *mf_render_short(const char *id, char out[static MF_FORMAT_MAX]);
void mf_render_table(const struct mf_render *render, struct mf_table *table, const char *indent);
/* "  device     24.0 GiB": a fact below a heading. */
void mf_render_fact(const struct mf_render *render, const char *name, const char *format, ...)
    MF_PRINTF(3, 4);
/* `text` over several lines, each after `indent` blanks, broken between words. */
void mf_render_wrapped(const struct mf_render *render, int indent, const char *text);
void mf_render_heading(const struct mf_render *render, const char *format, ...) MF_PRINTF(2, 3);
/* Escape sequences, "" without colour: of a doctor's verdict and so on. */
enum mf_render_tone {
    MF_RENDER_PLAIN,
    MF_RENDER_BOLD,
    MF_RENDER_GOOD,
    MF_RENDER_NOTE,
    MF_RENDER_BAD
};
const char *mf_render_tone_begin(const struct mf_render *render, enum mf_render_tone tone);
const char *mf_render_tone_end(const struct mf_render *render);

/* Names of units that differ only in their layer, folded into one: "layers 0-5,8: mlp.up_proj". */
#define MF_RENDER_LAYERS_RANGES_MAX 4
struct mf_render_layers {
    const char *name;   /* of the first; borrowed */
    size_t prefix;      /* bytes of it before the layer's number */
    int layer;          /* -1: the name has none, it stands alone */
    const char *suffix; /* behind the number */
    int count;
    int range_count; /* of all; those beyond the array are not written down */
    int first[MF_RENDER_LAYERS_RANGES_MAX];
    int last[MF_RENDER_LAYERS_RANGES_MAX];
};
void mf_render_layers_begin(struct mf_render_layers *layers, const char *name);
/* The same unit, of another layer. */
bool mf_render_layers_same(const struct mf_render_layers *layers, const char *name);
void mf_render_layers_add(struct mf_render_layers *layers, const char *name);
void mf_render_layers_cell(struct mf_table *table, const struct mf_render_layers *layers);
/* The number of the layer in a unit's name, -1 when it has none. */
int mf_render_layers_number(const char *name);

/* Plans. `got` is NULL for a plan that was only shown. Rows of equal layers are folded into one
 * unless `all`. */
void mf_render_plan(const struct mf_render *render, const Memferry__V1__Plan *plan,
                    const Memferry__V1__GetPlanResponse *got, bool all);
/* What `--micro-batch auto` tried. */
void mf_render_plan_trials(const struct mf_render *render,
                           const Memferry__V1__GetPlanResponse *got);
void mf_render_plan_summary(const struct mf_render *render, const Memferry__V1__Plan *plan,
                            const Memferry__V1__GetPlanResponse *got);
/* The unit table, render_units.c. */
void mf_render_units(const struct mf_render *render, const Memferry__V1__Plan *plan, bool all);
void mf_render_units_activations(const struct mf_render *render, const Memferry__V1__Plan *plan);
void mf_render_explain(const struct mf_render *render,
                       const Memferry__V1__ExplainPlanResponse *answer);

/* One strategy of a comparison: a plan or the reason why there is none. */
struct mf_render_compare_row {
    Memferry__V1__Strategy strategy;
    const Memferry__V1__GetPlanResponse *got; /* NULL = failed */
    struct mf_error error;
};
void mf_render_compare(const struct mf_render *render, const struct mf_render_compare_row *rows,
                       size_t count);
void mf_render_compare_diff(const struct mf_render *render, const Memferry__V1__Plan *a,
                            const Memferry__V1__Plan *b);
/* The same as JSON; caller owns. */
json_t *mf_render_compare_diff_json(const Memferry__V1__Plan *a, const Memferry__V1__Plan *b);

void mf_render_profile(const struct mf_render *render, const Memferry__V1__Profile *profile);
void mf_render_contention(const struct mf_render *render,
                          const Memferry__V1__Contention *contention);

void mf_render_session(const struct mf_render *render, const Memferry__V1__Session *session);
void mf_render_session_list(const struct mf_render *render, Memferry__V1__Session *const *sessions,
                            size_t count);

/* "step 12/1000 | loss 3.1415 | norm 0.98 | ...", no line end. */
void mf_render_step(const Memferry__V1__StepReport *step, FILE *out);
/* Generated text, set apart. */
void mf_render_step_sample(const char *text, FILE *out);

void mf_render_daemon_status(const struct mf_render *render,
                             const Memferry__V1__GetStatusResponse *status,
                             const Memferry__V1__Hardware *hardware);
void mf_render_daemon_hardware(const struct mf_render *render,
                               const Memferry__V1__Hardware *hardware);
void mf_render_daemon_doctor(const struct mf_render *render,
                             const Memferry__V1__DoctorResponse *answer);

void mf_render_list_models(const struct mf_render *render,
                           const Memferry__V1__ListModelsResponse *list);
void mf_render_list_plans(const struct mf_render *render,
                          const Memferry__V1__ListPlansResponse *list);
void mf_render_list_profiles(const struct mf_render *render,
                             const Memferry__V1__ListProfilesResponse *list);
void mf_render_list_hardware(const struct mf_render *render,
                             const Memferry__V1__ListHardwareResponse *list);

/* Progress on stderr: one line rewritten on a terminal, else a line a second at most. */
struct mf_render_progress {
    FILE *out;
    bool terminal;
    bool quiet;
    double last_s;
    bool open; /* an unfinished line is on the terminal */
    int width;
};
void mf_render_progress_init(struct mf_render_progress *progress, bool quiet);
void mf_render_progress_update(struct mf_render_progress *progress, const char *format, ...)
    MF_PRINTF(2, 3);
/* Removes the line, so that something else can be printed. */
void mf_render_progress_clear(struct mf_render_progress *progress);

#endif
