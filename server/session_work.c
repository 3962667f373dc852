/* The work of a session's thread once it is open: carrying out calls, closing. */
#include <stdlib.h>
#include <string.h>

#include "core/clock.h"
#include "core/log.h"
#include "runtime/sample.h"
#include "server/convert.h"
#include "server/session_internal.h"

/* ---- the device worker ---- */

static void run_job(const struct mf_device_interface *interface, struct mf_device *device,
                    void *context)
{
    struct mf_session_job *job = context;
    job->interface = interface;
    job->device = device;
    job->status = job->run(job);
    if (job->status != MF_STATUS_OK) {
        job->error = *mf_status_error();
    }
}

enum mf_status mf_session_work_device(struct mf_session *session, const char *what,
                                      enum mf_status (*run)(struct mf_session_job *job),
                                      void *context)
{
    struct mf_session_job job = {.session = session, .run = run, .context = context};
    char text[96];
    snprintf(text, sizeof(text), "session %.8s: %s", session->id, what);
    MF_TRY(mf_device_worker_call(session->table->service->worker, text, run_job, &job));
    return job.status == MF_STATUS_OK ? MF_STATUS_OK : mf_status_restore(&job.error);
}

void mf_session_work_trace(struct mf_session_job *job)
{
    struct mf_session *session = job->session;
    bool cheap = strcmp(job->interface->name, "host") == 0; /* two looks at a clock a task */
    pthread_mutex_lock(&session->lock);
    bool wanted = mf_clock_ns() < session->trace_end_ns;
    pthread_mutex_unlock(&session->lock);
    mf_executor_set_trace(session->executor, cheap || wanted);
}

/* ---- closing ---- */

static enum mf_status close_executor(struct mf_session_job *job)
{
    mf_executor_close(job->session->executor);
    job->session->executor = NULL;
    return MF_STATUS_OK;
}

void mf_session_work_close(struct mf_session *session)
{
    pthread_mutex_lock(&session->lock);
    while (session->readers > 0) {
        pthread_cond_wait(&session->wake, &session->lock);
    }
    pthread_mutex_unlock(&session->lock);
    if (session->executor != NULL &&
        mf_session_work_device(session, "closing", close_executor, NULL) != MF_STATUS_OK) {
        mf_log_error("session %.8s: memory could not be freed: %s", session->id, mf_status_text());
    }
}

/* ---- calls ---- */

struct step_work {
    const Memferry__V1__Batch *batch;
    struct mf_adam adam;
    bool update;
    struct mf_micro_result micro;
    struct mf_update_result updated;
    float *logprobs;
    int64_t elapsed_ns;
};

static enum mf_status check_batch(const struct mf_session *session,
                                  const Memferry__V1__Batch *batch)
{
    size_t rows = (size_t)mf_workload_rows(&session->plan.workload);
    if (batch == NULL || batch->n_tokens != rows || batch->n_labels != rows) {
        return mf_status_set_reason(
            MF_STATUS_INVALID, "BATCH_SIZE",
            "a batch is %d sequences of %d tokens = %zu tokens and as many labels, found %zu and "
            "%zu (pad with label -100)",
            session->plan.workload.micro_batch, session->plan.workload.seq_len, rows,
            batch == NULL ? 0 : batch->n_tokens, batch == NULL ? 0 : batch->n_labels);
    }
    return mf_executor_check_tokens(&session->spec.model, &session->plan.workload, batch->tokens,
                                    batch->labels);
}

static enum mf_status read_adam(const struct mf_session *session,
                                const Memferry__V1__AdamParams *params, struct mf_adam *out)
{
    if (params == NULL) {
        return mf_status_set(MF_STATUS_INVALID, "adam is missing: give at least learning_rate");
    }
    bool default_betas = params->beta1 == 0 && params->beta2 == 0;
    *out = (struct mf_adam){
        .learning_rate = params->learning_rate,
        .beta1 = default_betas ? 0.9 : params->beta1,
        .beta2 = default_betas ? 0.999 : params->beta2,
        .eps = params->eps == 0 ? 1e-8 : params->eps,
        .weight_decay = params->weight_decay,
        .clip_norm = params->clip_norm,
        .skip_nonfinite = !params->update_nonfinite && session->plan.workload.clip,
    };
    return mf_executor_check_adam(&session->plan.workload, out);
}

static enum mf_status job_forward_backward(struct mf_session_job *job)
{
    struct step_work *work = job->context;
    mf_session_work_trace(job);
    int64_t start = mf_clock_ns();
    MF_TRY(mf_executor_forward_backward(job->session->executor, work->batch->tokens,
                                        work->batch->labels, work->update ? &work->adam : NULL,
                                        &work->micro, &work->updated));
    work->elapsed_ns = mf_clock_ns() - start;
    return MF_STATUS_OK;
}

static enum mf_status job_update(struct mf_session_job *job)
{
    struct step_work *work = job->context;
    mf_session_work_trace(job);
    int64_t start = mf_clock_ns();
    MF_TRY(mf_executor_update(job->session->executor, &work->adam, &work->updated));
    work->elapsed_ns = mf_clock_ns() - start;
    return MF_STATUS_OK;
}

static enum mf_status job_evaluate(struct mf_session_job *job)
{
    struct step_work *work = job->context;
    mf_session_work_trace(job);
    return mf_executor_evaluate(job->session->executor, work->batch->tokens, work->batch->labels,
                                &work->micro, work->logprobs);
}

/* The step's time is that of all its calls, however they came. */
static void note_update(struct mf_session *session, const struct step_work *work)
{
    const struct mf_update_result *updated = &work->updated;
    int64_t step_ns = session->step_ns;
    session->step_ns = 0;
    pthread_mutex_lock(&session->lock);
    session->step = updated->step;
    session->loss = updated->token_count > 0 ? updated->loss_sum / (double)updated->token_count : 0;
    session->step_ms = (double)step_ns * 1e-6;
    session->tokens_per_second =
        step_ns > 0 ? (double)updated->token_count * 1e9 / (double)step_ns : 0;
    pthread_mutex_unlock(&session->lock);
}

static void answer_update(struct mf_session *session, const struct mf_session_call *call,
                          const struct step_work *work)
{
    Memferry__V1__OptimStepResponse reply = MEMFERRY__V1__OPTIM_STEP_RESPONSE__INIT;
    note_update(session, work);
    reply.step = work->updated.step;
    reply.grad_norm = work->updated.norm;
    reply.skipped = work->updated.skipped;
    reply.token_count = work->updated.token_count;
    reply.loss = session->loss;
    reply.elapsed_ms = (double)work->elapsed_ns * 1e-6;
    mf_session_call_answer(session, call, &reply.base);
}

static enum mf_status do_forward_backward(struct mf_session *session,
                                          const struct mf_session_call *call,
                                          const struct mf_session_call *optim)
{
    const Memferry__V1__ForwardBackwardRequest *request = call->message;
    struct step_work work = {.batch = request->batch};
    MF_TRY(check_batch(session, request->batch));
    if (optim->seq_id != 0) { /* a bad OptimStep is answered when its turn comes, alone */
        const Memferry__V1__OptimStepRequest *update = optim->message;
        work.update = read_adam(session, update->adam, &work.adam) == MF_STATUS_OK;
    }
    MF_TRY(mf_session_work_device(session, "forward_backward", job_forward_backward, &work));
    session->step_ns += work.elapsed_ns;
    Memferry__V1__ForwardBackwardResponse reply = MEMFERRY__V1__FORWARD_BACKWARD_RESPONSE__INIT;
    reply.loss_sum = work.micro.loss_sum;
    reply.token_count = work.micro.token_count;
    reply.loss = work.micro.token_count > 0 ? reply.loss_sum / (double)reply.token_count : 0;
    reply.elapsed_ms = (double)work.elapsed_ns * 1e-6;
    mf_session_call_answer(session, call, &reply.base);
    if (work.update) {
        answer_update(session, optim, &work);
    }
    return MF_STATUS_OK;
}

static enum mf_status do_optim_step(struct mf_session *session, const struct mf_session_call *call,
                                    const struct mf_session_call *optim)
{
    const Memferry__V1__OptimStepRequest *request = call->message;
    struct step_work work = {0};
    (void)optim;
    MF_TRY(read_adam(session, request->adam, &work.adam));
    MF_TRY(mf_session_work_device(session, "optim_step", job_update, &work));
    session->step_ns += work.elapsed_ns;
    answer_update(session, call, &work);
    return MF_STATUS_OK;
}

static enum mf_status do_forward(struct mf_session *session, const struct mf_session_call *call,
                                 const struct mf_session_call *optim)
{
    const Memferry__V1__ForwardRequest *request = call->message;
    struct step_work work = {.batch = request->batch};
    (void)optim;
    MF_TRY(check_batch(session, request->batch));
    work.logprobs = calloc(request->batch->n_tokens, sizeof(float));
    MF_ASSERT(work.logprobs != NULL);
    enum mf_status status = mf_session_work_device(session, "forward", job_evaluate, &work);
    if (status == MF_STATUS_OK) {
        Memferry__V1__ForwardResponse reply = MEMFERRY__V1__FORWARD_RESPONSE__INIT;
        reply.loss_sum = work.micro.loss_sum;
        reply.token_count = work.micro.token_count;
        reply.loss = reply.token_count > 0 ? reply.loss_sum / (double)reply.token_count : 0;
        reply.n_logprobs = request->batch->n_tokens;
        reply.logprobs = work.logprobs;
        mf_session_call_answer(session, call, &reply.base);
    }
    free(work.logprobs);
    return status;
}

static enum mf_status do_sample(struct mf_session *session, const struct mf_session_call *call,
                                const struct mf_session_call *optim)
{
    const Memferry__V1__SampleRequest *request = call->message;
    struct mf_session_sample sample = {
        .prompt = request->prompt,
        .prompt_count = (int32_t)request->n_prompt,
        .max_tokens = request->max_tokens,
        .temperature = request->temperature,
        .top_k = request->top_k,
        .seed = request->seed,
    };
    (void)optim;
    int32_t *tokens = NULL;
    MF_TRY(mf_session_sample(session, &sample, &tokens));
    Memferry__V1__SampleResponse reply = MEMFERRY__V1__SAMPLE_RESPONSE__INIT;
    reply.n_tokens = (size_t)request->max_tokens;
    reply.tokens = tokens;
    mf_session_call_answer(session, call, &reply.base);
    free(tokens);
    return MF_STATUS_OK;
}

static enum mf_status do_save(struct mf_session *session, const struct mf_session_call *call,
                              const struct mf_session_call *optim)
{
    const Memferry__V1__SaveStateRequest *request = call->message;
    struct mf_arena arena;
    const char *folder = NULL;
    (void)optim;
    mf_arena_init(&arena);
    enum mf_status status =
        mf_convert_path(session->table->service, request->path, &arena, &folder);
    if (status == MF_STATUS_OK) {
        status = mf_session_state_save(session, folder, request->weights_only, NULL);
    }
    if (status == MF_STATUS_OK) {
        Memferry__V1__SaveStateResponse reply = MEMFERRY__V1__SAVE_STATE_RESPONSE__INIT;
        reply.path = (char *)folder;
        reply.bytes = session->spec.model.params * (request->weights_only ? 2 : 14);
        mf_session_call_answer(session, call, &reply.base);
    }
    mf_arena_reset(&arena);
    return status;
}

static enum mf_status do_load(struct mf_session *session, const struct mf_session_call *call,
                              const struct mf_session_call *optim)
{
    const Memferry__V1__LoadStateRequest *request = call->message;
    Memferry__V1__LoadStateResponse reply = MEMFERRY__V1__LOAD_STATE_RESPONSE__INIT;
    struct mf_arena arena;
    const char *folder = NULL;
    bool optimizer = false;
    (void)optim;
    mf_arena_init(&arena);
    enum mf_status status =
        mf_convert_path(session->table->service, request->path, &arena, &folder);
    if (status == MF_STATUS_OK) {
        status = mf_session_state_load(session, folder, &optimizer, NULL);
    }
    mf_arena_reset(&arena);
    if (status == MF_STATUS_OK) {
        session->step_ns = 0; /* gradients since the last update are gone */
        reply.step = mf_executor_step(session->executor);
        reply.optimizer_loaded = optimizer;
        mf_session_call_answer(session, call, &reply.base);
    }
    return status;
}

static enum mf_status (*const verbs[MF_SESSION_VERB_COUNT])(struct mf_session *,
                                                            const struct mf_session_call *,
                                                            const struct mf_session_call *) = {
    [MF_SESSION_FORWARD_BACKWARD] = do_forward_backward,
    [MF_SESSION_OPTIM_STEP] = do_optim_step,
    [MF_SESSION_FORWARD] = do_forward,
    [MF_SESSION_SAMPLE] = do_sample,
    [MF_SESSION_SAVE] = do_save,
    [MF_SESSION_LOAD] = do_load,
};

void mf_session_work_calls(struct mf_session *session)
{
    struct mf_session_call call;
    struct mf_session_call optim;
    while (mf_session_call_next(session, &call, &optim)) {
        if (verbs[call.verb](session, &call, &optim) != MF_STATUS_OK) {
            mf_session_call_fail(session, &call);
        }
    }
}
