/* See command_job.h.
 *
 * Signals are taken by a thread of their own with sigwait(), so that asking the daemon to stop is
 * an ordinary call and nothing runs in a signal handler. The first Ctrl-C asks the job to stop
 * after its step, the second only ends this program: the job goes on in the daemon. */
#include "client/command_job.h"

#include <limits.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <string.h>

#include "core/limits.h"
#include "proto/wire.h"

#define TRAINING (&memferry__v1__training_service__descriptor)
#define STOP_MS 5000
#define WAKE_SIGNAL SIGUSR1 /* ends the thread that waits for signals */

struct job {
    struct mf_command_job wanted;
    struct mf_command_context *context;
    struct mf_channel *channel;
    struct mf_library_call_stream stream;
    struct mf_render_progress progress;
    pthread_mutex_t lock; /* guards session_id */
    char session_id[MF_NAME_MAX];
    atomic_bool detached;
    atomic_bool stopping;
    int64_t steps; /* reported here; the times leave out the first, which is slower */
    double steps_ms;
    double predicted_ms;
    bool finished;
    char checkpoint[PATH_MAX];
};

static bool job_id(struct job *job, char out[static MF_NAME_MAX])
{
    pthread_mutex_lock(&job->lock);
    memcpy(out, job->session_id, MF_NAME_MAX);
    pthread_mutex_unlock(&job->lock);
    return out[0] != '\0';
}

static void ask_stop(struct job *job, const char *id)
{
    Memferry__V1__StopRunRequest request = MEMFERRY__V1__STOP_RUN_REQUEST__INIT;
    ProtobufCMessage *answer = NULL;
    request.session_id = (char *)id;
    fputs("\nmemferry: the job stops after its present step and saves a checkpoint; Ctrl-C again "
          "leaves it to the daemon\n",
          stderr);
    enum mf_status status =
        mf_library_call_unary(job->channel, TRAINING, "StopRun", &request.base, STOP_MS, &answer);
    if (status != MF_STATUS_OK && status != MF_STATUS_DEADLINE) {
        fprintf(stderr, "memferry: the job could not be stopped: %s\n", mf_status_text());
    }
    mf_wire_free(answer);
}

static void *wait_for_signals(void *argument)
{
    struct job *job = argument;
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGINT);
    sigaddset(&set, SIGTERM);
    sigaddset(&set, WAKE_SIGNAL);
    for (;;) {
        int number = 0;
        char id[MF_NAME_MAX];
        if (sigwait(&set, &number) != 0 || number == WAKE_SIGNAL) {
            return NULL;
        }
        bool can_stop = number == SIGINT && job->wanted.stoppable && !atomic_load(&job->stopping);
        if (can_stop && job_id(job, id)) {
            atomic_store(&job->stopping, true);
            ask_stop(job, id);
        } else {
            atomic_store(&job->detached, true);
            mf_channel_stream_cancel(job->stream.stream);
        }
    }
}

static enum mf_status start_thread(struct job *job, pthread_t *thread)
{
    int code = pthread_create(thread, NULL, wait_for_signals, job);
    if (code != 0) {
        return mf_status_set(MF_STATUS_INTERNAL, "no thread can be started: %s", strerror(code));
    }
    return MF_STATUS_OK;
}

/* Threads inherit the mask: called before the channel starts any. */
static void block_signals(void)
{
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGINT);
    sigaddset(&set, SIGTERM);
    sigaddset(&set, WAKE_SIGNAL);
    pthread_sigmask(SIG_BLOCK, &set, NULL);
}

static void print_line(struct job *job, const char *name, const char *text)
{
    FILE *out = job->context->render.out;
    mf_render_progress_clear(&job->progress);
    fprintf(out, "%s", name);
    mf_table_print_text(text, out);
    fputc('\n', out);
    fflush(out);
}

static void on_session(struct job *job, const Memferry__V1__Session *session)
{
    char known[MF_NAME_MAX];
    bool again = job_id(job, known) && strcmp(known, session->id) == 0;
    pthread_mutex_lock(&job->lock);
    snprintf(job->session_id, sizeof(job->session_id), "%s", session->id);
    pthread_mutex_unlock(&job->lock);
    job->predicted_ms = session->predicted_step_ms;
    if (job->wanted.detach && !again) {
        print_line(job, "", session->id);
        if (!job->context->quiet) {
            fprintf(stderr, "the job runs in the daemon; memferry watch %s follows it\n",
                    session->id);
        }
        atomic_store(&job->detached, true);
        mf_channel_stream_cancel(job->stream.stream);
        return;
    }
    if (job->context->json || again) {
        return;
    }
    print_line(job, "session ", session->id);
    if (session->run_folder[0] != '\0') {
        print_line(job, "folder  ", session->run_folder);
    }
    if (strcmp(session->plan_how, "cached") == 0) {
        print_line(job, "plan    ", "from the store: nothing was measured or solved");
    }
}

static void on_step(struct job *job, const Memferry__V1__StepReport *step)
{
    FILE *out = job->context->render.out;
    if (job->steps++ > 0) {
        job->steps_ms += step->step_ms;
    }
    job->predicted_ms = step->predicted_step_ms > 0 ? step->predicted_step_ms : job->predicted_ms;
    if (job->wanted.print_every > 1 && step->step % job->wanted.print_every != 0 &&
        step->step != 1 && step->step != step->steps_total && step->validation_loss <= 0 &&
        !step->skipped) {
        mf_render_progress_update(&job->progress, "step %lld/%lld, loss %.4f",
                                  (long long)step->step, (long long)step->steps_total, step->loss);
        return;
    }
    mf_render_progress_clear(&job->progress);
    mf_render_step(step, out);
    fputc('\n', out);
    fflush(out);
}

static void on_finished(struct job *job, const Memferry__V1__Session *session)
{
    FILE *out = job->context->render.out;
    mf_render_progress_clear(&job->progress);
    job->finished = true;
    fprintf(out, "%s at step %lld", session->state, (long long)session->step);
    if (session->steps_total > 0) {
        fprintf(out, " of %lld", (long long)session->steps_total);
    }
    if (session->step > 0) {
        fprintf(out, ", loss %.4f", session->loss);
    }
    if (job->steps > 1) {
        double mean = job->steps_ms / (double)(job->steps - 1);
        fprintf(out, "; %.1f ms a step", mean);
        if (job->predicted_ms > 0) {
            fprintf(out, ", predicted %.1f ms (%+.1f%%)", job->predicted_ms,
                    100 * (mean / job->predicted_ms - 1));
        }
    }
    fputc('\n', out);
    if (session->run_folder[0] != '\0') {
        print_line(job, "folder  ", session->run_folder);
    }
    if (job->checkpoint[0] != '\0') {
        print_line(job, "last checkpoint  ", job->checkpoint);
    }
}

/* How the job ended, as this program's end. */
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

static void print_event_json(struct job *job, const Memferry__V1__RunResponse *event)
{
    json_t *object = mf_library_json_encode(&event->base);
    json_dumpf(object, job->context->render.out, JSON_COMPACT | JSON_PRESERVE_ORDER);
    fputc('\n', job->context->render.out);
    fflush(job->context->render.out);
    json_decref(object);
}

static void on_progress(struct job *job, const Memferry__V1__SessionProgress *progress)
{
    if (progress->done > 0) {
        mf_render_progress_update(&job->progress, "%s, %.0f%%", progress->what,
                                  100 * progress->done);
    } else {
        mf_render_progress_update(&job->progress, "%s", progress->what);
    }
}

/* Shows one event; the status says whether the job failed. */
static enum mf_status on_event(struct job *job, const Memferry__V1__RunResponse *event)
{
    bool json = job->context->json;
    if (json && event->event_case != MEMFERRY__V1__RUN_RESPONSE__EVENT_SESSION) {
        print_event_json(job, event);
        if (event->event_case == MEMFERRY__V1__RUN_RESPONSE__EVENT_FINISHED) {
            job->finished = true;
            return outcome(event->finished);
        }
        return MF_STATUS_OK;
    }
    switch (event->event_case) {
    case MEMFERRY__V1__RUN_RESPONSE__EVENT_PROGRESS:
        on_progress(job, event->progress);
        break;
    case MEMFERRY__V1__RUN_RESPONSE__EVENT_SESSION:
        if (json && !job->wanted.detach) {
            print_event_json(job, event);
        }
        on_session(job, event->session);
        break;
    case MEMFERRY__V1__RUN_RESPONSE__EVENT_PLAN:
        mf_render_progress_clear(&job->progress);
        mf_render_plan_summary(&job->context->render, event->plan, NULL);
        fflush(job->context->render.out);
        break;
    case MEMFERRY__V1__RUN_RESPONSE__EVENT_STEP:
        on_step(job, event->step);
        break;
    case MEMFERRY__V1__RUN_RESPONSE__EVENT_CHECKPOINT:
        snprintf(job->checkpoint, sizeof(job->checkpoint), "%s", event->checkpoint);
        print_line(job, "checkpoint ", event->checkpoint);
        break;
    case MEMFERRY__V1__RUN_RESPONSE__EVENT_SAMPLE:
        mf_render_progress_clear(&job->progress);
        mf_render_step_sample(event->sample, job->context->render.out);
        fflush(job->context->render.out);
        break;
    case MEMFERRY__V1__RUN_RESPONSE__EVENT_WARNING:
        mf_render_progress_clear(&job->progress);
        fprintf(stderr, "warning: %s\n", event->warning);
        break;
    case MEMFERRY__V1__RUN_RESPONSE__EVENT_FINISHED:
        on_finished(job, event->finished);
        return outcome(event->finished);
    default:
        break; /* An event of a newer daemon. */
    }
    return MF_STATUS_OK;
}

/* Until the job has ended or the stream has. */
static enum mf_status follow(struct job *job)
{
    for (;;) {
        Memferry__V1__RunResponse *event = NULL;
        MF_TRY(mf_library_call_next(&job->stream, (ProtobufCMessage **)&event));
        if (event == NULL) {
            return MF_STATUS_OK;
        }
        enum mf_status status = on_event(job, event);
        mf_wire_free(event);
        if (status != MF_STATUS_OK || job->finished) {
            return status;
        }
    }
}

static void print_goodbye(const char *id, bool stopping)
{
    if (stopping) {
        fprintf(stderr, "\nmemferry: the daemon stops the job; memferry watch %s sees it end\n",
                id);
        return;
    }
    fprintf(stderr,
            "\nmemferry: the job goes on in the daemon\n"
            "  memferry watch %s        follows it\n"
            "  memferry rm session %s   stops it after its step, with a checkpoint\n",
            id, id);
}

static enum mf_status explain_end(struct job *job, enum mf_status status)
{
    char id[MF_NAME_MAX];
    bool known = job_id(job, id);
    if (atomic_load(&job->detached)) {
        if (known && !job->wanted.detach) {
            print_goodbye(id, atomic_load(&job->stopping));
        }
        return known ? MF_STATUS_OK
                     : mf_status_set(MF_STATUS_CANCELLED, "cancelled before the job began");
    }
    if (status == MF_STATUS_OK && !job->finished) {
        return mf_status_set(MF_STATUS_CORRUPT, "the daemon ended the report without an outcome");
    }
    if (known && !job->finished) {
        bool cut_off = status == MF_STATUS_UNAVAILABLE || status == MF_STATUS_DEADLINE;
        return mf_status_context(
            status, cut_off ? "job %s (memferry watch may attach to it again)" : "job %s failed",
            id);
    }
    return status;
}

static enum mf_status run(struct job *job)
{
    pthread_t thread;
    block_signals();
    pthread_mutex_init(&job->lock, NULL);
    mf_render_progress_init(&job->progress, job->context->quiet);
    MF_TRY(mf_command_channel(job->context, &job->channel));
    MF_TRY(mf_library_call_open(job->channel, TRAINING, job->wanted.method, job->wanted.request,
                                &job->stream));
    enum mf_status status = start_thread(job, &thread);
    if (status == MF_STATUS_OK) {
        status = follow(job);
        struct mf_error error = *mf_status_error();
        pthread_kill(thread, WAKE_SIGNAL);
        pthread_join(thread, NULL);
        if (status != MF_STATUS_OK) {
            status = mf_status_restore(&error);
        }
    }
    mf_render_progress_clear(&job->progress);
    mf_library_call_close(&job->stream);
    status = explain_end(job, status);
    pthread_mutex_destroy(&job->lock);
    return status;
}

enum mf_status mf_command_job_follow(const struct mf_command_job *wanted)
{
    struct job job = {.wanted = *wanted, .context = wanted->context};
    return run(&job);
}
