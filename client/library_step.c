/* libmemferry: the verbs of a session. See memferry.h. */
#include <string.h>

#include "client/library.h"
#include "proto/wire.h"

/* The message borrows the arrays, which protobuf-c does not change when it packs. */
static void batch_message(const struct memferry_batch *batch, Memferry__V1__Batch *out)
{
    memferry__v1__batch__init(out);
    out->tokens = (int32_t *)batch->tokens;
    out->n_tokens = batch->count;
    out->labels = (int32_t *)batch->labels;
    out->n_labels = batch->count;
}

enum memferry_status memferry_forward_backward(struct memferry_session *session, int64_t seq_id,
                                               const struct memferry_batch *batch,
                                               struct memferry_loss *out,
                                               struct memferry_error *error)
{
    Memferry__V1__ForwardBackwardRequest request = MEMFERRY__V1__FORWARD_BACKWARD_REQUEST__INIT;
    Memferry__V1__ForwardBackwardResponse *answer = NULL;
    Memferry__V1__Batch message;
    batch_message(batch, &message);
    request.session_id = (char *)memferry_session_id(session);
    request.batch = &message;
    enum mf_status status =
        mf_library_session_call(session, "ForwardBackward", seq_id, &request.base, &request.seq_id,
                                (ProtobufCMessage **)&answer);
    if (status == MF_STATUS_OK) {
        *out = (struct memferry_loss){answer->loss_sum, answer->token_count, answer->loss};
    }
    mf_wire_free(answer);
    return mf_library_end(status, error);
}

enum memferry_status memferry_optim_step(struct memferry_session *session, int64_t seq_id,
                                         const struct memferry_adam *adam,
                                         struct memferry_step *out, struct memferry_error *error)
{
    Memferry__V1__OptimStepRequest request = MEMFERRY__V1__OPTIM_STEP_REQUEST__INIT;
    Memferry__V1__OptimStepResponse *answer = NULL;
    Memferry__V1__AdamParams message = MEMFERRY__V1__ADAM_PARAMS__INIT;
    message.learning_rate = adam->learning_rate;
    message.beta1 = adam->beta1;
    message.beta2 = adam->beta2;
    message.eps = adam->eps;
    message.weight_decay = adam->weight_decay;
    message.clip_norm = adam->clip_norm;
    message.update_nonfinite = adam->update_nonfinite;
    request.session_id = (char *)memferry_session_id(session);
    request.adam = &message;
    enum mf_status status = mf_library_session_call(session, "OptimStep", seq_id, &request.base,
                                                    &request.seq_id, (ProtobufCMessage **)&answer);
    if (status == MF_STATUS_OK) {
        *out = (struct memferry_step){.step = answer->step,
                                      .grad_norm = answer->grad_norm,
                                      .skipped = answer->skipped,
                                      .token_count = answer->token_count,
                                      .loss = answer->loss,
                                      .elapsed_ms = answer->elapsed_ms};
    }
    mf_wire_free(answer);
    return mf_library_end(status, error);
}

enum memferry_status memferry_forward(struct memferry_session *session, int64_t seq_id,
                                      const struct memferry_batch *batch, struct memferry_loss *out,
                                      float *logprobs, struct memferry_error *error)
{
    Memferry__V1__ForwardRequest request = MEMFERRY__V1__FORWARD_REQUEST__INIT;
    Memferry__V1__ForwardResponse *answer = NULL;
    Memferry__V1__Batch message;
    batch_message(batch, &message);
    request.session_id = (char *)memferry_session_id(session);
    request.batch = &message;
    enum mf_status status = mf_library_session_call(session, "Forward", seq_id, &request.base,
                                                    &request.seq_id, (ProtobufCMessage **)&answer);
    if (status == MF_STATUS_OK) {
        *out = (struct memferry_loss){answer->loss_sum, answer->token_count, answer->loss};
        if (logprobs != NULL && answer->n_logprobs != batch->count) {
            status = mf_status_set(MF_STATUS_CORRUPT, "%zu log-probabilities for %zu labels",
                                   answer->n_logprobs, batch->count);
        } else if (logprobs != NULL && batch->count > 0) {
            memcpy(logprobs, answer->logprobs, batch->count * sizeof(*logprobs));
        }
    }
    mf_wire_free(answer);
    return mf_library_end(status, error);
}

enum memferry_status memferry_sample(struct memferry_session *session, int64_t seq_id,
                                     const int32_t *prompt, size_t prompt_count,
                                     const struct memferry_sample_options *options, int32_t *tokens,
                                     size_t *count, struct memferry_error *error)
{
    Memferry__V1__SampleRequest request = MEMFERRY__V1__SAMPLE_REQUEST__INIT;
    Memferry__V1__SampleResponse *answer = NULL;
    *count = 0;
    request.session_id = (char *)memferry_session_id(session);
    request.prompt = (int32_t *)prompt;
    request.n_prompt = prompt_count;
    request.max_tokens = options->max_tokens;
    request.temperature = options->temperature;
    request.top_k = options->top_k;
    request.seed = options->seed;
    enum mf_status status = mf_library_session_call(session, "Sample", seq_id, &request.base,
                                                    &request.seq_id, (ProtobufCMessage **)&answer);
    if (status == MF_STATUS_OK) {
        size_t room = options->max_tokens > 0 ? (size_t)options->max_tokens : 0;
        *count = answer->n_tokens < room ? answer->n_tokens : room;
        if (*count > 0) {
            memcpy(tokens, answer->tokens, *count * sizeof(*tokens));
        }
    }
    mf_wire_free(answer);
    return mf_library_end(status, error);
}

enum memferry_status memferry_save(struct memferry_session *session, int64_t seq_id,
                                   const char *path, bool weights_only,
                                   struct memferry_error *error)
{
    Memferry__V1__SaveStateRequest request = MEMFERRY__V1__SAVE_STATE_REQUEST__INIT;
    ProtobufCMessage *answer = NULL;
    request.session_id = (char *)memferry_session_id(session);
    request.path = (char *)path;
    request.weights_only = weights_only;
    enum mf_status status = mf_library_session_call(session, "SaveState", seq_id, &request.base,
                                                    &request.seq_id, &answer);
    mf_wire_free(answer);
    return mf_library_end(status, error);
}

enum memferry_status memferry_load(struct memferry_session *session, int64_t seq_id,
                                   const char *path, int64_t *step, struct memferry_error *error)
{
    Memferry__V1__LoadStateRequest request = MEMFERRY__V1__LOAD_STATE_REQUEST__INIT;
    Memferry__V1__LoadStateResponse *answer = NULL;
    request.session_id = (char *)memferry_session_id(session);
    request.path = (char *)path;
    enum mf_status status = mf_library_session_call(session, "LoadState", seq_id, &request.base,
                                                    &request.seq_id, (ProtobufCMessage **)&answer);
    if (status == MF_STATUS_OK && step != NULL) {
        *step = answer->step;
    }
    mf_wire_free(answer);
    return mf_library_end(status, error);
}
