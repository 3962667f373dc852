/* A plan for people: what it is for, what it promises, every unit, memory. See render.h. */
#include <math.h>
#include <string.h>

#include "client/render.h"

static int64_t params_of(const Memferry__V1__Plan *plan)
{
    int64_t params = 0;
    for (size_t i = 0; i < plan->n_units; i++) {
        params += plan->units[i]->params;
    }
    return params;
}

static void workload_fact(const struct mf_render *render, const Memferry__V1__Plan *plan)
{
    const Memferry__V1__Workload *work = plan->workload;
    if (work == NULL) {
        return;
    }
    int64_t tokens = (int64_t)work->micro_batch * work->seq_len * work->accumulation;
    mf_render_fact(render, "workload",
                   "%d x %d tokens a micro-batch, %d micro-batch%s = %lld "
                   "tokens a step, %s, %s, %s",
                   work->micro_batch, work->seq_len, work->accumulation,
                   work->accumulation == 1 ? "" : "es", (long long)tokens,
                   work->dtype[0] != '\0' ? work->dtype : "bf16",
                   work->optimizer[0] != '\0' ? work->optimizer : "adamw",
                   work->no_clip ? "no clipping" : "clipping by norm");
}

static const char *budget(int64_t bytes, char out[static MF_FORMAT_MAX])
{
    if (bytes > 0) {
        return mf_format_bytes(bytes, out);
    }
    return "all there is";
}

static void budget_fact(const struct mf_render *render, const Memferry__V1__Plan *plan)
{
    const Memferry__V1__Constraints *limits = plan->constraints;
    if (limits == NULL) {
        return;
    }
    char device[MF_FORMAT_MAX];
    char host[MF_FORMAT_MAX];
    char strategy[MF_LIBRARY_JSON_ENUM_MAX];
    mf_render_fact(render, "budget", "device memory %s, host memory %s; strategy %s%s",
                   budget(limits->device_memory_bytes, device),
                   budget(limits->host_memory_bytes, host),
                   limits->strategy == MEMFERRY__V1__STRATEGY__STRATEGY_UNSPECIFIED
                       ? "auto"
                       : MF_RENDER_ENUM(strategy, limits->strategy, strategy),
                   limits->n_pins > 0 ? ", units pinned by you" : "");
}

/* Of a plan that cannot run here, where it could. */
static void hardware_fact(const struct mf_render *render, const Memferry__V1__Plan *plan)
{
    char id[MF_FORMAT_MAX];
    if (!plan->here && plan->hardware_name[0] != '\0') {
        mf_render_fact(render, "hardware",
                       "%s (%s), which is not this machine: a plan to look at, none to run",
                       plan->hardware_name, mf_render_short(plan->hardware_fingerprint, id));
    }
}

static void got_fact(const struct mf_render *render, const Memferry__V1__Plan *plan,
                     const Memferry__V1__GetPlanResponse *got)
{
    char age[MF_FORMAT_MAX];
    const Memferry__V1__Prediction *predicted = plan->prediction;
    const char *costs = plan->measured ? "measured costs" : "estimated costs: nothing was measured";
    char share[64] = "";
    if (plan->measured && predicted != NULL && predicted->estimated_tasks > 0) {
        snprintf(share, sizeof(share), " (%d of %d tasks estimated)", predicted->estimated_tasks,
                 predicted->task_count);
    }
    if (got == NULL) {
        double seconds = (double)(render->now_unix_s - plan->created_unix_seconds);
        mf_render_fact(render, "made", "%s ago, %s%s", mf_render_age(seconds, age), costs, share);
    } else if (strcmp(got->how, "cached") == 0) {
        mf_render_fact(render, "got", "from the store, %s old, %s%s",
                       mf_render_age(got->age_seconds, age), costs, share);
    } else {
        char measured[MF_FORMAT_MAX + 16] = "";
        if (got->measure_seconds > 0) {
            snprintf(measured, sizeof(measured), "measured in %.1f s, ", got->measure_seconds);
        }
        mf_render_fact(render, "got", "%ssolved in %.2f s, %s%s%s%s", measured, got->solve_seconds,
                       costs, share, got->miss[0] != '\0' ? "; not in the store: " : "", got->miss);
    }
}

static void prediction_facts(const struct mf_render *render, const Memferry__V1__Plan *plan)
{
    const Memferry__V1__Prediction *p = plan->prediction;
    const Memferry__V1__Workload *work = plan->workload;
    char a[MF_FORMAT_MAX], b[MF_FORMAT_MAX], c[MF_FORMAT_MAX], d[MF_FORMAT_MAX];
    if (p == NULL) {
        return;
    }
    char pace[MF_FORMAT_MAX];
    mf_render_fact(render, "step",
                   "%s predicted, %s tokens/s; no plan under this budget can "
                   "beat %s (%s): gap %.1f%%",
                   mf_format_ns(p->step_ns, a), mf_render_pace(work, p->step_ns, pace),
                   mf_format_ns(p->bound_ns, b), p->bound_lane, 100 * p->gap);
    mf_render_fact(render, "busy", "compute %s, h2d %s, d2h %s, cpu %s",
                   mf_format_ns(p->compute_busy_ns, a), mf_format_ns(p->h2d_busy_ns, b),
                   mf_format_ns(p->d2h_busy_ns, c), mf_format_ns(p->cpu_busy_ns, d));
    mf_render_fact(render, "stall", "compute waits %s (%.1f%% of the step)",
                   mf_format_ns(p->stall_ns, a),
                   p->step_ns > 0 ? 100 * p->stall_ns / p->step_ns : 0.0);
    mf_render_fact(render, "link",
                   "%s to the device, %s back, %s read or written in place, a "
                   "step%s",
                   mf_format_bytes(p->h2d_bytes, a), mf_format_bytes(p->d2h_bytes, b),
                   mf_format_bytes(p->direct_bytes, c),
                   plan->link_emulated ? "; the link's rate is emulated" : "");
}

static void memory_facts(const struct mf_render *render, const Memferry__V1__Prediction *predicted)
{
    char device[MF_FORMAT_MAX];
    char host[MF_FORMAT_MAX];
    mf_render_fact(render, "memory",
                   "device %s, host %s pinned; exact, reserved before the first "
                   "step",
                   mf_format_bytes(predicted->device_peak_bytes, device),
                   mf_format_bytes(predicted->host_peak_bytes, host));
}

/* When updates run. */
static void updates_fact(const struct mf_render *render, const Memferry__V1__Plan *plan)
{
    int32_t blocks = (int32_t)plan->n_activations;
    bool clips = plan->workload != NULL && !plan->workload->no_clip;
    if (plan->deferred_blocks > 0 && plan->deferred_blocks < blocks) {
        mf_render_fact(render, "updates",
                       "%d of %d blocks in the next step's forward, the others %s",
                       plan->deferred_blocks, blocks,
                       plan->speculate ? "before the norm is known, undone when it is clipped"
                       : clips         ? "when the norm is known"
                                       : "as their gradients arrive");
    } else if (plan->deferred_blocks > 0) {
        mf_render_fact(render, "updates", "in the next step's forward");
    } else {
        mf_render_fact(render, "updates", "%s",
                       plan->speculate ? "before the norm is known, undone when it is clipped"
                       : clips         ? "when the norm is known, at the end of the step"
                                       : "as their gradients arrive");
    }
}

void mf_render_plan_summary(const struct mf_render *render, const Memferry__V1__Plan *plan,
                            const Memferry__V1__GetPlanResponse *got)
{
    char id[MF_FORMAT_MAX];
    char count[MF_FORMAT_MAX];
    mf_render_heading(render, "plan %s: %s, %s parameters", mf_render_short(plan->id, id),
                      plan->model_name, mf_format_count((double)params_of(plan), count));
    workload_fact(render, plan);
    hardware_fact(render, plan);
    budget_fact(render, plan);
    got_fact(render, plan, got);
    prediction_facts(render, plan);
    if (plan->prediction != NULL) {
        memory_facts(render, plan->prediction);
    }
    mf_render_units_activations(render, plan);
    updates_fact(render, plan);
}

static void memory_table(const struct mf_render *render, const Memferry__V1__Prediction *predicted)
{
    static const struct mf_table_column columns[] = {
        {"memory", MF_TABLE_LEFT}, {"device", MF_TABLE_RIGHT}, {"host", MF_TABLE_RIGHT}};
    struct mf_table table;
    char text[MF_FORMAT_MAX];
    mf_table_init(&table, columns, 3);
    for (size_t i = 0; i < predicted->n_memory; i++) {
        const Memferry__V1__MemoryByPurpose *row = predicted->memory[i];
        if (row->device_bytes == 0 && row->host_bytes == 0) {
            continue;
        }
        mf_table_cell(&table, "%s", row->purpose);
        mf_table_cell(&table, "%s",
                      row->device_bytes > 0 ? mf_format_bytes(row->device_bytes, text) : "");
        mf_table_cell(&table, "%s",
                      row->host_bytes > 0 ? mf_format_bytes(row->host_bytes, text) : "");
    }
    mf_table_cell(&table, "peak");
    mf_table_cell(&table, "%s", mf_format_bytes(predicted->device_peak_bytes, text));
    mf_table_cell(&table, "%s", mf_format_bytes(predicted->host_peak_bytes, text));
    mf_render_table(render, &table, "");
    mf_table_reset(&table);
}

void mf_render_plan(const struct mf_render *render, const Memferry__V1__Plan *plan,
                    const Memferry__V1__GetPlanResponse *got, bool all)
{
    mf_render_plan_summary(render, plan, got);
    fputc('\n', render->out);
    mf_render_units(render, plan, all);
    if (!all && render->header) {
        fputs("(weights and times of a row are the sums of its n layers, in one optimizer step; "
              "--all shows every unit)\n",
              render->out);
    }
    if (plan->prediction != NULL) {
        fputc('\n', render->out);
        memory_table(render, plan->prediction);
    }
}

void mf_render_plan_trials(const struct mf_render *render, const Memferry__V1__GetPlanResponse *got)
{
    static const struct mf_table_column columns[] = {
        {"micro-batch", MF_TABLE_RIGHT}, {"accumulation", MF_TABLE_RIGHT}, {"step", MF_TABLE_RIGHT},
        {"tokens/s", MF_TABLE_RIGHT},    {"device", MF_TABLE_RIGHT},       {"host", MF_TABLE_RIGHT},
        {"costs", MF_TABLE_LEFT},        {"plan", MF_TABLE_LEFT}};
    struct mf_table table;
    char text[MF_FORMAT_MAX];
    mf_table_init(&table, columns, sizeof(columns) / sizeof(columns[0]));
    for (size_t i = 0; i < got->n_trials; i++) {
        const Memferry__V1__Trial *row = got->trials[i];
        mf_table_cell(&table, "%d", row->micro_batch);
        mf_table_cell(&table, "%d", row->accumulation);
        if (row->step_ns <= 0) {
            for (int k = 0; k < 4; k++) {
                mf_table_cell(&table, "%s", k == 0 ? "-" : "");
            }
            mf_table_cell(&table, "%s", "");
            mf_table_cell(&table, "%s", row->why);
            continue;
        }
        mf_table_cell(&table, "%s", mf_format_ns(row->step_ns, text));
        mf_table_cell(&table, "%.*f", row->tokens_per_second < 100 ? 2 : 0, row->tokens_per_second);
        mf_table_cell(&table, "%s", mf_format_bytes(row->device_peak_bytes, text));
        mf_table_cell(&table, "%s", mf_format_bytes(row->host_peak_bytes, text));
        mf_table_cell(&table, "%s", row->measured ? "measured" : "estimated");
        mf_table_cell(&table, "%.12s%s", row->plan_id, row->chosen ? " (chosen)" : "");
    }
    mf_render_table(render, &table, "");
    mf_table_reset(&table);
}
