/* libmemferry: whole jobs. See memferry.h. */
#include <string.h>

#include "client/library.h"
#include "proto/wire.h"

#define TRAINING (&memferry__v1__training_service__descriptor)

struct listener {
    memferry_event_callback *callback;
    void *context;
    bool stopped; /* the callback has had enough */
};

static void read_step(const Memferry__V1__StepReport *from, struct memferry_step_report *out)
{
    *out = (struct memferry_step_report){.step = from->step,
                                         .steps_total = from->steps_total,
                                         .epoch = from->epoch,
                                         .loss = from->loss,
                                         .grad_norm = from->grad_norm,
                                         .learning_rate = from->learning_rate,
                                         .step_ms = from->step_ms,
                                         .predicted_step_ms = from->predicted_step_ms,
                                         .tokens_per_second = from->tokens_per_second,
                                         .stall = from->stall,
                                         .skipped = from->skipped,
                                         .validation_loss = from->validation_loss};
}

/* False for an event of a newer daemon. */
static bool read_event(const Memferry__V1__RunResponse *from, struct memferry_event *out,
                       struct memferry_session_info *session, struct memferry_step_report *step)
{
    *out = (struct memferry_event){.kind = (enum memferry_event_kind)from->event_case, .text = ""};
    switch (from->event_case) {
    case MEMFERRY__V1__RUN_RESPONSE__EVENT_PROGRESS:
        out->text = from->progress->what;
        out->done = from->progress->done;
        return true;
    case MEMFERRY__V1__RUN_RESPONSE__EVENT_SESSION:
    case MEMFERRY__V1__RUN_RESPONSE__EVENT_FINISHED:
        mf_library_session_info(from->event_case == MEMFERRY__V1__RUN_RESPONSE__EVENT_SESSION
                                    ? from->session
                                    : from->finished,
                                session);
        out->session = session;
        return true;
    case MEMFERRY__V1__RUN_RESPONSE__EVENT_PLAN:
        out->text = from->plan->id;
        return true;
    case MEMFERRY__V1__RUN_RESPONSE__EVENT_STEP:
        read_step(from->step, step);
        out->step = step;
        return true;
    case MEMFERRY__V1__RUN_RESPONSE__EVENT_CHECKPOINT:
        out->text = from->checkpoint;
        return true;
    case MEMFERRY__V1__RUN_RESPONSE__EVENT_SAMPLE:
        out->text = from->sample;
        return true;
    case MEMFERRY__V1__RUN_RESPONSE__EVENT_WARNING:
        out->text = from->warning;
        return true;
    default:
        return false;
    }
}

_Static_assert((int)MEMFERRY_EVENT_PROGRESS == MEMFERRY__V1__RUN_RESPONSE__EVENT_PROGRESS,
               "events are out of step");
_Static_assert((int)MEMFERRY_EVENT_WARNING == MEMFERRY__V1__RUN_RESPONSE__EVENT_WARNING,
               "events are out of step");
_Static_assert((int)MEMFERRY_EVENT_FINISHED == MEMFERRY__V1__RUN_RESPONSE__EVENT_FINISHED,
               "events are out of step");

/* How a job ended, as the status of the call. */
static enum mf_status outcome(const Memferry__V1__Session *session)
{
    if (strcmp(session->state, "finished") == 0) {
        return MF_STATUS_OK;
    }
    if (session->error[0] != '\0') {
        return mf_status_set(MF_STATUS_INTERNAL, "the job %s: %s", session->state, session->error);
    }
    return mf_status_set(MF_STATUS_CANCELLED, "the job %s before its last step", session->state);
}

/* One event; *ended when it was the last. */
static enum mf_status next(struct mf_library_call_stream *stream, struct listener *listener,
                           bool *ended)
{
    Memferry__V1__RunResponse *message = NULL;
    struct memferry_session_info session;
    struct memferry_step_report step;
    struct memferry_event event;
    enum mf_status status = MF_STATUS_OK;
    MF_TRY(mf_library_call_next(stream, (ProtobufCMessage **)&message));
    if (message == NULL) {
        *ended = true;
        return mf_status_set(MF_STATUS_CORRUPT, "the daemon ended the report without an outcome");
    }
    if (read_event(message, &event, &session, &step) && listener->callback != NULL) {
        listener->stopped = !listener->callback(listener->context, &event);
    }
    if (message->event_case == MEMFERRY__V1__RUN_RESPONSE__EVENT_FINISHED) {
        *ended = true;
        status = outcome(message->finished);
    }
    *ended |= listener->stopped;
    mf_wire_free(message);
    return status;
}

static enum mf_status listen_to(struct memferry_connection *connection, const char *method,
                                const ProtobufCMessage *request, struct listener *listener)
{
    struct mf_library_call_stream stream = {0};
    bool ended = false;
    enum mf_status status =
        mf_library_call_open(connection->channel, TRAINING, method, request, &stream);
    while (status == MF_STATUS_OK && !ended) {
        status = next(&stream, listener, &ended);
    }
    mf_library_call_close(&stream);
    return status;
}

enum memferry_status memferry_run(struct memferry_connection *connection, const char *config_json,
                                  const char *base_folder, const char *resume,
                                  memferry_event_callback *callback, void *context,
                                  struct memferry_error *error)
{
    struct listener listener = {.callback = callback, .context = context};
    Memferry__V1__RunRequest request = MEMFERRY__V1__RUN_REQUEST__INIT;
    request.config_json = (char *)config_json;
    request.base_folder = (char *)base_folder;
    request.resume = (char *)(resume != NULL ? resume : "");
    return mf_library_end(listen_to(connection, "Run", &request.base, &listener), error);
}

enum memferry_status memferry_watch(struct memferry_connection *connection, const char *session_id,
                                    memferry_event_callback *callback, void *context,
                                    struct memferry_error *error)
{
    struct listener listener = {.callback = callback, .context = context};
    Memferry__V1__WatchRequest request = MEMFERRY__V1__WATCH_REQUEST__INIT;
    request.session_id = (char *)session_id;
    return mf_library_end(listen_to(connection, "Watch", &request.base, &listener), error);
}

enum memferry_status memferry_run_stop(struct memferry_connection *connection,
                                       const char *session_id, bool discard,
                                       struct memferry_error *error)
{
    Memferry__V1__StopRunRequest request = MEMFERRY__V1__STOP_RUN_REQUEST__INIT;
    ProtobufCMessage *answer = NULL;
    request.session_id = (char *)session_id;
    request.discard = discard;
    enum mf_status status = mf_library_call_unary(connection->channel, TRAINING, "StopRun",
                                                  &request.base, MF_LIBRARY_CALL_SHORT_MS, &answer);
    mf_wire_free(answer);
    return mf_library_end(status, error);
}
