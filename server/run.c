/*
 * A whole job: data in, steps on the device, reports and checkpoints out.
 *
 * Runs on the session's thread; each step is one job of the device worker, so that other sessions
 * get their turns between steps. A failed save in mid-run is a warning; at the end it is an error.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/log.h"
#include "runtime/schedule.h"
#include "server/run_internal.h"

struct step_work {
    struct mf_run *run;
    struct mf_adam adam;
    struct mf_update_result update;
    struct mf_executor_timing timing;
    struct mf_micro_result evaluated;
};

static enum mf_status job_step(struct mf_session_job *job)
{
    struct step_work *work = job->context;
    mf_session_work_trace(job);
    MF_TRY(mf_executor_run(job->session->executor, work->run->tokens, work->run->labels,
                           &work->adam, &work->update));
    work->timing = *mf_executor_timing(job->session->executor);
    return MF_STATUS_OK;
}

static enum mf_status job_evaluate(struct mf_session_job *job)
{
    struct step_work *work = job->context;
    mf_session_work_trace(job);
    return mf_executor_evaluate(job->session->executor, work->run->tokens, work->run->labels,
                                &work->evaluated, NULL);
}

/* ---- opening ---- */

static enum mf_status open_tokens(const struct mf_run *run, const char *const *paths, int32_t count,
                                  double held_out, bool take_held_out, struct mf_tokens **out)
{
    struct mf_tokens_spec spec = {
        .paths = paths,
        .path_count = count,
        .format = run->config->data_format,
        .seq_len = run->session->plan.workload.seq_len,
        .shuffle = run->config->shuffle,
        .seed = run->config->data_seed,
        .held_out = held_out,
        .take_held_out = take_held_out,
    };
    return mf_tokens_open(&spec, run->session->spec.model.vocab, out);
}

static enum mf_status open_run(struct mf_run *run)
{
    const struct mf_workload *workload = &run->session->plan.workload;
    const struct mf_run_config *config = run->config;
    run->sequences_per_step = (int64_t)workload->micro_batch * workload->accumulation;
    run->saved_step = -1;
    size_t ids = (size_t)(mf_workload_rows(workload) * workload->accumulation);
    run->tokens = malloc(ids * sizeof(int32_t));
    run->labels = malloc(ids * sizeof(int32_t));
    MF_ASSERT(run->tokens != NULL && run->labels != NULL);
    mf_session_event_progress(run->session, "reading data", 0);
    double held_out = config->validation_fraction;
    MF_TRY(open_tokens(run, config->data_paths, config->data_path_count, held_out, false,
                       &run->train));
    if (config->validation_path_count > 0) {
        MF_TRY(open_tokens(run, config->validation_paths, config->validation_path_count, 0, false,
                           &run->validation));
    } else if (held_out > 0) {
        MF_TRY(open_tokens(run, config->data_paths, config->data_path_count, held_out, true,
                           &run->validation));
    }
    double per_epoch =
        (double)mf_tokens_describe(run->train)->sequence_count / (double)run->sequences_per_step;
    run->steps_total =
        config->steps > 0 ? config->steps : (int64_t)ceil(config->epochs * per_epoch);
    run->schedule = config->schedule;
    if (run->schedule.total_steps == 0) {
        run->schedule.total_steps = run->steps_total;
    }
    MF_TRY(mf_run_files_prepare(run));
    MF_TRY(mf_run_files_resume(run));
    if (run->step >= run->steps_total) {
        return mf_status_set(MF_STATUS_INVALID,
                             "the checkpoint is at step %lld and the job has %lld: raise steps",
                             (long long)run->step, (long long)run->steps_total);
    }
    pthread_mutex_lock(&run->session->lock);
    run->session->step = run->step;
    run->session->steps_total = run->steps_total;
    pthread_mutex_unlock(&run->session->lock);
    return mf_metrics_open(config->output, run->step, &run->metrics);
}

static void close_run(struct mf_run *run)
{
    mf_metrics_close(run->metrics);
    mf_tokens_close(run->train);
    mf_tokens_close(run->validation);
    free(run->tokens);
    free(run->labels);
}

/* ---- one step ---- */

static bool due(int64_t step, int64_t every)
{
    return every > 0 && step % every == 0;
}

static enum mf_status validate(struct mf_run *run, double *loss)
{
    const struct mf_workload *workload = &run->session->plan.workload;
    struct step_work work = {.run = run};
    double sum = 0;
    int64_t count = 0;
    int64_t batches = mf_tokens_describe(run->validation)->sequence_count / workload->micro_batch;
    if (run->config->eval_batches > 0 && run->config->eval_batches < batches) {
        batches = run->config->eval_batches;
    }
    for (int64_t i = 0; i < (batches > 0 ? batches : 1); i++) {
        MF_TRY(mf_tokens_batch(run->validation, i * workload->micro_batch, workload->micro_batch,
                               run->tokens, run->labels));
        MF_TRY(mf_session_work_device(run->session, "evaluate", job_evaluate, &work));
        sum += work.evaluated.loss_sum;
        count += work.evaluated.token_count;
    }
    *loss = count > 0 ? sum / (double)count : 0;
    return MF_STATUS_OK;
}

static void fill_report(const struct mf_run *run, const struct step_work *work,
                        double validation_loss, Memferry__V1__StepReport *out)
{
    const struct mf_session *session = run->session;
    const struct mf_update_result *update = &work->update;
    double seconds = (double)work->timing.wall_ns * 1e-9;
    int64_t rows = mf_workload_rows(&session->plan.workload) * session->plan.workload.accumulation;
    double sequences = (double)mf_tokens_describe(run->train)->sequence_count;
    out->step = run->step;
    out->steps_total = run->steps_total;
    out->epoch = (double)(run->step * run->sequences_per_step) / sequences;
    out->loss = update->token_count > 0 ? update->loss_sum / (double)update->token_count : 0;
    out->grad_norm = update->norm;
    out->learning_rate = work->adam.learning_rate;
    out->step_ms = seconds * 1e3;
    out->predicted_step_ms = session->plan.prediction.step_ns * 1e-6;
    out->tokens_per_second = seconds > 0 ? (double)rows / seconds : 0;
    out->stall = work->timing.stall;
    out->skipped = update->skipped;
    out->validation_loss = validation_loss;
    out->h2d_bytes = work->timing.h2d_bytes;
    out->d2h_bytes = work->timing.d2h_bytes;
    out->device_peak_bytes = session->device_bytes;
    out->flops_per_second = seconds > 0 ? mf_model_step_flops(&session->spec.model, rows,
                                                              session->plan.workload.seq_len) /
                                              seconds
                                        : 0;
}

static enum mf_status report(struct mf_run *run, const struct step_work *work,
                             double validation_loss)
{
    struct mf_session *session = run->session;
    Memferry__V1__StepReport step = MEMFERRY__V1__STEP_REPORT__INIT;
    fill_report(run, work, validation_loss, &step);
    pthread_mutex_lock(&session->lock);
    session->step = run->step;
    session->loss = step.loss;
    session->step_ms = step.step_ms;
    session->tokens_per_second = step.tokens_per_second;
    pthread_mutex_unlock(&session->lock);
    if (due(run->step, run->config->logging_steps) || run->step == run->steps_total ||
        validation_loss > 0) {
        Memferry__V1__RunResponse event = MEMFERRY__V1__RUN_RESPONSE__INIT;
        event.event_case = MEMFERRY__V1__RUN_RESPONSE__EVENT_STEP;
        event.step = &step;
        mf_session_event_run(session, &event);
    }
    struct mf_metrics_step line = {
        .step = step.step,
        .epoch = step.epoch,
        .loss = step.loss,
        .grad_norm = step.grad_norm,
        .learning_rate = step.learning_rate,
        .step_time_ms = step.step_ms,
        .tokens_per_second = step.tokens_per_second,
        .h2d_bytes = step.h2d_bytes,
        .d2h_bytes = step.d2h_bytes,
        .dha_bytes = work->timing.direct_bytes,
        .stall_ms = step.stall * step.step_ms,
        .hbm_peak_bytes = session->device_bytes,
        .pinned_bytes = session->host_bytes,
        .predicted_step_ms = step.predicted_step_ms,
        .skipped = step.skipped,
        .redone = work->update.redone,
        .eval_loss = validation_loss > 0 ? validation_loss : NAN,
    };
    return mf_metrics_append(run->metrics, &line);
}

static enum mf_status check_health(struct mf_run *run, const struct step_work *work)
{
    run->skipped_in_a_row = work->update.skipped ? run->skipped_in_a_row + 1 : 0;
    if (run->config->skipped_max > 0 && run->skipped_in_a_row >= run->config->skipped_max) {
        return mf_status_set_reason(
            MF_STATUS_INVALID, "LOSS_NOT_FINITE",
            "%d steps in a row were skipped because the gradient norm is not finite (step %lld, "
            "loss %g): lower the learning rate; the last checkpoint is %s",
            run->skipped_in_a_row, (long long)run->step,
            work->update.loss_sum /
                (double)(work->update.token_count > 0 ? work->update.token_count : 1),
            run->saved_step >= 0 ? "complete" : "none");
    }
    return MF_STATUS_OK;
}

static void tell_warning(struct mf_session *session, const char *text)
{
    Memferry__V1__RunResponse event = MEMFERRY__V1__RUN_RESPONSE__INIT;
    event.event_case = MEMFERRY__V1__RUN_RESPONSE__EVENT_WARNING;
    event.warning = (char *)text;
    mf_session_event_run(session, &event);
}

static void warn(struct mf_run *run, const char *what)
{
    char text[MF_ERROR_TEXT_MAX + 64];
    snprintf(text, sizeof(text), "%s: %s", what, mf_status_text());
    mf_log_warn("session %.8s: %s", run->session->id, text);
    tell_warning(run->session, text);
}

/* Text of a byte-level model as it is; what is not UTF-8 becomes '?'. */
static enum mf_status sample(struct mf_run *run)
{
    const struct mf_run_config *config = run->config;
    int32_t count = (int32_t)strlen(config->sample_prompt);
    int32_t *prompt = malloc((size_t)count * sizeof(*prompt));
    int32_t *tokens = NULL;
    MF_ASSERT(prompt != NULL);
    for (int32_t i = 0; i < count; i++) {
        prompt[i] = (unsigned char)config->sample_prompt[i];
    }
    struct mf_session_sample request = {
        .prompt = prompt,
        .prompt_count = count,
        .max_tokens = config->sample_tokens,
        .temperature = config->sample_temperature,
        .top_k = config->sample_top_k,
        .seed = config->seed + (uint64_t)run->step,
    };
    enum mf_status status = mf_session_sample(run->session, &request, &tokens);
    if (status == MF_STATUS_OK) {
        char *text = calloc((size_t)(count + config->sample_tokens) + 1, 1);
        MF_ASSERT(text != NULL);
        memcpy(text, config->sample_prompt, (size_t)count);
        for (int32_t i = 0; i < config->sample_tokens; i++) {
            bool plain = tokens[i] == '\n' || (tokens[i] >= 32 && tokens[i] < 127);
            text[count + i] = plain ? (char)tokens[i] : '?';
        }
        Memferry__V1__RunResponse event = MEMFERRY__V1__RUN_RESPONSE__INIT;
        event.event_case = MEMFERRY__V1__RUN_RESPONSE__EVENT_SAMPLE;
        event.sample = text;
        mf_session_event_run(run->session, &event);
        free(text);
    }
    free(tokens);
    free(prompt);
    return status;
}

static enum mf_status one_step(struct mf_run *run)
{
    const struct mf_run_config *config = run->config;
    struct step_work work = {.run = run, .adam = config->adam};
    double validation_loss = 0;
    int64_t applied = mf_executor_step(run->session->executor);
    work.adam.learning_rate = mf_schedule_lr(&run->schedule, applied);
    MF_TRY(mf_tokens_batch(run->train, run->step * run->sequences_per_step,
                           (int32_t)run->sequences_per_step, run->tokens, run->labels));
    MF_TRY(mf_session_work_device(run->session, "step", job_step, &work));
    run->step++;
    MF_TRY(check_health(run, &work));
    if (run->validation != NULL &&
        (due(run->step, config->eval_steps) || run->step == run->steps_total)) {
        MF_TRY(validate(run, &validation_loss));
    }
    if (report(run, &work, validation_loss) != MF_STATUS_OK) {
        warn(run, "metrics.jsonl was not written");
    }
    if (due(run->step, config->save_steps) && run->step < run->steps_total &&
        mf_run_files_save(run) != MF_STATUS_OK) {
        warn(run, "the checkpoint was not saved, training goes on");
    }
    bool last = run->step == run->steps_total;
    if (config->sample_tokens > 0 && (due(run->step, config->sample_every) || last)) {
        MF_TRY(sample(run));
    }
    return MF_STATUS_OK;
}

static bool stop_asked(struct mf_session *session, bool *save)
{
    pthread_mutex_lock(&session->lock);
    bool stop = session->stop;
    *save = session->save_on_stop;
    pthread_mutex_unlock(&session->lock);
    return stop;
}

static enum mf_status steps(struct mf_run *run)
{
    while (run->step < run->steps_total) {
        bool save = false;
        if (stop_asked(run->session, &save)) {
            if (save && run->step > 0) {
                MF_TRY(mf_run_files_save(run));
            }
            return mf_status_set(MF_STATUS_CANCELLED, "stopped at step %lld of %lld",
                                 (long long)run->step, (long long)run->steps_total);
        }
        MF_TRY(one_step(run));
    }
    MF_TRY(mf_run_files_save(run));
    return mf_run_files_export(run);
}

enum mf_status mf_run_main(struct mf_session *session)
{
    struct mf_run run = {.session = session, .config = session->spec.run};
    enum mf_status status = open_run(&run);
    if (status == MF_STATUS_OK) {
        mf_session_event_session(session, false);
        mf_session_event_plan(session);
        if (session->note[0] != '\0') {
            tell_warning(session, session->note);
        }
        for (int32_t i = 0; i < run.config->warning_count; i++) {
            tell_warning(session, run.config->warnings[i]);
        }
        status = steps(&run);
    }
    close_run(&run);
    return status;
}
