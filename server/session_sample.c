/* Sampling in a session: forward passes over the last seq_len tokens, one token at a time. */
#include <stdlib.h>
#include <string.h>

#include "core/limits.h"
#include "runtime/sample.h"
#include "server/session_internal.h"

#define SAMPLE_TOKENS_MAX 4096

struct sample_work {
    const int32_t *tokens; /* int32[rows] */
    int32_t position;
    float *logits; /* of the first sequence */
};

static enum mf_status job_logits(struct mf_session_job *job)
{
    struct sample_work *work = job->context;
    const float *logits = NULL;
    MF_TRY(mf_executor_logits(job->session->executor, work->tokens, work->position, &logits));
    memcpy(work->logits, logits, (size_t)job->session->spec.model.vocab * sizeof(float));
    return MF_STATUS_OK;
}

static enum mf_status check(const struct mf_session *session,
                            const struct mf_session_sample *sample)
{
    if (sample->prompt_count < 1 || sample->max_tokens < 1 ||
        sample->max_tokens > SAMPLE_TOKENS_MAX || !(sample->temperature >= 0) ||
        sample->top_k < 0) {
        return mf_status_set(MF_STATUS_INVALID,
                             "sampling needs at least one prompt token, 1..%d max_tokens, a "
                             "temperature of at least 0 and top_k of at least 0",
                             SAMPLE_TOKENS_MAX);
    }
    for (int32_t i = 0; i < sample->prompt_count; i++) {
        if (sample->prompt[i] < 0 || sample->prompt[i] >= session->spec.model.vocab) {
            (void)mf_status_set_reason(
                MF_STATUS_INVALID, "TOKEN_OUT_OF_RANGE",
                "prompt token %d at position %d is not in the vocabulary 0..%lld",
                sample->prompt[i], i, (long long)session->spec.model.vocab - 1);
            mf_status_number("token", sample->prompt[i]);
            mf_status_number("position", i);
            mf_status_number("vocab", session->spec.model.vocab);
            return MF_STATUS_INVALID;
        }
    }
    return MF_STATUS_OK;
}

/* `text` holds prompt and continuation, `count` tokens so far. */
static enum mf_status next_token(struct mf_session *session, const struct mf_session_sample *sample,
                                 struct sample_work *work, int32_t *window, int32_t *text,
                                 int32_t count)
{
    int32_t seq_len = session->plan.workload.seq_len;
    int32_t used = count < seq_len ? count : seq_len;
    memcpy(window, text + count - used, (size_t)used * sizeof(int32_t));
    work->position = used - 1;
    MF_TRY(mf_session_work_device(session, "sample", job_logits, work));
    return mf_sample(work->logits, session->spec.model.vocab, sample->temperature, sample->top_k,
                     sample->seed, (uint64_t)count, &text[count]);
}

enum mf_status mf_session_sample(struct mf_session *session, const struct mf_session_sample *sample,
                                 int32_t **out)
{
    enum mf_status status = check(session, sample);
    if (status != MF_STATUS_OK) {
        return status;
    }
    size_t rows = (size_t)mf_workload_rows(&session->plan.workload);
    int32_t total = sample->prompt_count + sample->max_tokens;
    int32_t *window = calloc(rows, sizeof(*window));
    int32_t *text = calloc((size_t)total, sizeof(*text));
    struct sample_work work = {.tokens = window};
    work.logits = malloc((size_t)session->spec.model.vocab * sizeof(float));
    MF_ASSERT(window != NULL && text != NULL && work.logits != NULL);
    memcpy(text, sample->prompt, (size_t)sample->prompt_count * sizeof(*text));
    for (int32_t i = sample->prompt_count; i < total && status == MF_STATUS_OK; i++) {
        status = next_token(session, sample, &work, window, text, i);
    }
    if (status == MF_STATUS_OK) {
        memmove(text, text + sample->prompt_count, (size_t)sample->max_tokens * sizeof(*text));
        *out = text;
        text = NULL;
    }
    free(window);
    free(text);
    free(work.logits);
    return status;
}
