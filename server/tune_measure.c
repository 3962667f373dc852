/* Measuring what a model needs, one job of the device worker after another: see tune.h. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "core/log.h"
#include "profiler/measure.h"
#include "server/tune_internal.h"

#define SECONDS_DEFAULT 60
#define SIGNATURE_SECONDS_MIN 0.002
#define SIGNATURE_SECONDS_MAX 0.05
#define LEARN_EVERY_S 1.0
/* A second look: at what varies by more than this share, and takes long enough to matter. */
#define UNSURE_SPREAD 0.05
#define UNSURE_NS 20000.0
/* Operands in host memory make no kernel faster: the plain one was disturbed. */
#define UNSURE_TWIN 0.97
/* Lanes side by side, with the filling of some hundred MB of operands. */
#define CONTENTION_SECONDS_GPU 2.0
#define CONTENTION_SECONDS_HOST 1.0
#define BUSY_NS 20000000 /* between two tries to post to a full queue */

double mf_tune_measure_clock(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

struct job {
    const struct mf_signature *signature;
    double seconds_max;
    struct mf_measure_scratch *scratch;
    struct mf_measurement measured;
    char method[sizeof(((struct mf_profile *)NULL)->method)];
    enum mf_status status;
    struct mf_error error; /* carried across threads */
};

static void run_job(const struct mf_device_interface *interface, struct mf_device *device,
                    void *context)
{
    struct job *job = context;
    job->status = mf_measure_one(interface, device, job->scratch, job->signature, job->seconds_max,
                                 &job->measured);
    job->error = *mf_status_error();
    mf_measure_method(interface, device, job->method, sizeof(job->method));
}

static void run_release(const struct mf_device_interface *interface, struct mf_device *device,
                        void *context)
{
    mf_measure_release(interface, device, context);
}

/* Posts and waits; a full queue is waited out, as long as nobody cancels. */
static enum mf_status call(struct mf_service *service, const struct mf_tune_request *request,
                           const char *what, mf_device_job run, void *context)
{
    for (;;) {
        enum mf_status status = mf_device_worker_call(service->worker, what, run, context);
        if (status != MF_STATUS_BUSY) {
            return status;
        }
        if (request != NULL && request->cancelled != NULL && request->cancelled(request->context)) {
            return mf_status_set(MF_STATUS_CANCELLED, "measuring was cancelled");
        }
        (void)nanosleep(&(struct timespec){.tv_nsec = BUSY_NS}, NULL);
    }
}

struct session {
    struct mf_service *service;
    const struct mf_tune_request *request;
    double started, cap; /* seconds */
    struct mf_measure_scratch scratch;
    struct mf_profile fresh; /* not yet handed to mf_tune_profile_learn */
    double learnt;
    int32_t done, total, skipped;
};

static void learn(struct session *session, bool complete)
{
    if (session->fresh.count == 0) {
        return;
    }
    session->fresh.complete = complete;
    session->fresh.measured_at_unix_s = (int64_t)time(NULL);
    mf_tune_profile_learn(session->service, &session->fresh);
    mf_profile_reset(&session->fresh);
    mf_profile_init(&session->fresh);
    session->learnt = mf_tune_measure_clock();
}

/* `before` is what was measured of it a moment ago, NULL = nothing; the faster one is kept, as
 * other programs only ever slow a kernel down. */
static enum mf_status measure(struct session *session, const struct mf_signature *signature,
                              const struct mf_measurement *before)
{
    const struct mf_tune_request *request = session->request;
    char text[120];
    char what[MF_DEVICE_WHAT_MAX];
    double share = session->cap / (2.0 * session->total);
    struct job job = {.signature = signature, .scratch = &session->scratch};
    share = share < SIGNATURE_SECONDS_MAX ? share : SIGNATURE_SECONDS_MAX;
    job.seconds_max = share > SIGNATURE_SECONDS_MIN ? share : SIGNATURE_SECONDS_MIN;
    mf_measure_describe(signature, text, sizeof(text));
    int32_t number = before == NULL ? session->done + 1 : session->done;
    (void)snprintf(what, sizeof(what), "measuring %d/%d: %s", number, session->total, text);
    if (request->progress != NULL) {
        request->progress(request->context, what, (double)session->done / session->total);
    }
    MF_TRY(call(session->service, request, what, run_job, &job));
    session->done = number;
    if (job.status == MF_STATUS_NO_DEVICE_MEMORY || job.status == MF_STATUS_NO_MEMORY) {
        mf_log_debug("not measured, it stays an estimate: %s: %s", text, job.error.text);
        session->skipped++;
        return MF_STATUS_OK;
    }
    if (job.status != MF_STATUS_OK) {
        (void)mf_status_restore(&job.error);
        return mf_status_context(job.status, "measuring %s", text);
    }
    if (before != NULL) {
        mf_log_debug("measured again: %s: %.0f, then %.0f us", text, before->median_ns / 1e3,
                     job.measured.median_ns / 1e3);
    }
    if (before == NULL || job.measured.median_ns < before->median_ns) {
        mf_profile_put(&session->fresh, &job.measured);
        memcpy(session->fresh.method, job.method, sizeof(job.method));
    }
    if (mf_tune_measure_clock() - session->learnt > LEARN_EVERY_S) {
        learn(session, false);
    }
    return MF_STATUS_OK;
}

/* MF_STATUS_DEADLINE when the time cap is reached, which is no failure of the caller's. */
static enum mf_status check(const struct session *session)
{
    const struct mf_tune_request *request = session->request;
    if (request->cancelled != NULL && request->cancelled(request->context)) {
        return mf_status_set(MF_STATUS_CANCELLED,
                             "measuring was cancelled after %d of %d; what was measured is kept",
                             session->done, session->total);
    }
    return mf_tune_measure_clock() - session->started > session->cap
               ? mf_status_set(MF_STATUS_DEADLINE, "the time to measure was up after %d of %d",
                               session->done, session->total)
               : MF_STATUS_OK;
}

/* Part of no profile, but of what a profile is for. A failure costs precision only. */
static void measure_machine(const struct session *session)
{
    const struct mf_tune_request *request = session->request;
    struct mf_hardware hardware;
    mf_tune_hardware(session->service, &hardware);
    if (session->total == 0 || (hardware.contention.measured && !request->measure_again)) {
        return;
    }
    if (request->progress != NULL) {
        char what[MF_DEVICE_WHAT_MAX];
        (void)snprintf(what, sizeof(what), "measuring 1/%d: lanes side by side", session->total);
        request->progress(request->context, what, 0);
    }
    if (mf_tune_measure_contention(session->service) != MF_STATUS_OK) {
        mf_log_warn("what lanes cost each other is assumed: %s", mf_status_text());
    }
}

static enum mf_status measure_all(struct session *session, const struct mf_signature *signatures)
{
    for (int32_t i = 0; i < session->total; i++) {
        MF_TRY(check(session));
        MF_TRY(measure(session, &signatures[i], NULL));
    }
    return MF_STATUS_OK;
}

static bool unsure(const struct mf_profile *known, const struct mf_measurement *entry)
{
    static const uint32_t placements[] = {MF_SHAPE_WEIGHT_HOST, MF_SHAPE_OUTPUT_HOST};
    if (entry->median_ns < UNSURE_NS) {
        return false;
    }
    bool doubt = entry->spread_ns > UNSURE_SPREAD * entry->median_ns;
    for (size_t i = 0; i < sizeof(placements) / sizeof(placements[0]) && !doubt; i++) {
        struct mf_signature twin = entry->signature;
        twin.shape.flags |= placements[i];
        const struct mf_measurement *other = mf_profile_find(known, &twin);
        doubt = other != NULL && other->median_ns < UNSURE_TWIN * entry->median_ns;
    }
    return doubt;
}

/* Once more what a burst of other work may have disturbed: the search would build on it. */
static enum mf_status look_again(struct session *session, const struct mf_signature *signatures)
{
    struct mf_profile known;
    enum mf_status status = MF_STATUS_OK;
    learn(session, false);
    mf_tune_profile(session->service, &known);
    for (int32_t i = 0; i < session->total && status == MF_STATUS_OK; i++) {
        const struct mf_measurement *entry = mf_profile_find(&known, &signatures[i]);
        if (entry != NULL && unsure(&known, entry)) {
            status = check(session);
            if (status == MF_STATUS_OK) {
                status = measure(session, &signatures[i], entry);
            }
        }
    }
    mf_profile_reset(&known);
    return status;
}

/* Moves what the profile has not to the front; returns how many. */
static int32_t keep_missing(struct mf_service *service, struct mf_signature *signatures,
                            int32_t count)
{
    struct mf_profile known;
    int32_t missing = 0;
    mf_tune_profile(service, &known);
    for (int32_t i = 0; i < count; i++) {
        if (mf_profile_find(&known, &signatures[i]) == NULL) {
            signatures[missing++] = signatures[i];
        }
    }
    mf_profile_reset(&known);
    return missing;
}

enum mf_status mf_tune_measure(struct mf_service *service, const struct mf_tune_request *request,
                               int32_t *needed, int32_t *measured)
{
    double cap = request->measure_seconds_max > 0 ? request->measure_seconds_max : SECONDS_DEFAULT;
    struct mf_signature *signatures = NULL;
    struct session session = {.service = service,
                              .request = request,
                              .started = mf_tune_measure_clock(),
                              .cap = cap < MF_TUNE_SECONDS_MAX ? cap : MF_TUNE_SECONDS_MAX};
    *measured = 0;
    MF_TRY(mf_measure_needs(request->model, &request->workload, &signatures, needed));
    session.total = request->measure_again ? *needed : keep_missing(service, signatures, *needed);
    session.learnt = session.started;
    mf_profile_init(&session.fresh);
    measure_machine(&session);
    enum mf_status status = measure_all(&session, signatures);
    if (status == MF_STATUS_OK) {
        status = look_again(&session, signatures);
    }
    struct mf_error error = *mf_status_error();
    bool complete = status == MF_STATUS_OK && session.skipped == 0;
    learn(&session, complete);
    mf_profile_reset(&session.fresh);
    if (session.scratch.device != NULL || session.scratch.host != NULL) {
        if (call(service, NULL, "freeing scratch", run_release, &session.scratch) !=
            MF_STATUS_OK) { /* the worker is closing, and the device with it */
            mf_log_warn("scratch memory was not freed: %s", mf_status_text());
        }
    }
    *measured = *needed - keep_missing(service, signatures, *needed);
    free(signatures);
    if (session.skipped > 0) {
        mf_log_warn("%s: %d of %d kernels were not measured for want of memory and stay estimates",
                    request->model->name, session.skipped, session.total);
    }
    if (status == MF_STATUS_DEADLINE) {
        mf_log_info("%s: %s; the rest is estimated", request->model->name, error.text);
        return MF_STATUS_OK;
    }
    return status == MF_STATUS_OK ? status : mf_status_restore(&error);
}

/* ---- the machine ---- */

struct machine_job {
    struct mf_hardware hardware;
    struct mf_profile profile;
    double seconds_max;
    enum mf_status status;
    struct mf_error error;
};

static void run_rates(const struct mf_device_interface *interface, struct mf_device *device,
                      void *context)
{
    struct machine_job *job = context;
    job->status =
        mf_measure_hardware(interface, device, job->seconds_max, &job->hardware, &job->profile);
    job->error = *mf_status_error();
}

static void run_contention(const struct mf_device_interface *interface, struct mf_device *device,
                           void *context)
{
    struct machine_job *job = context;
    job->status =
        mf_measure_contention(interface, device, job->seconds_max, &job->hardware.contention);
    job->error = *mf_status_error();
}

static enum mf_status call_machine(struct mf_service *service, const char *what, mf_device_job run,
                                   struct machine_job *job)
{
    mf_tune_hardware(service, &job->hardware);
    MF_TRY(call(service, NULL, what, run, job));
    return job->status == MF_STATUS_OK ? MF_STATUS_OK : mf_status_restore(&job->error);
}

static void keep_hardware(struct mf_service *service, const struct mf_hardware *hardware)
{
    pthread_mutex_lock(&service->hardware_lock);
    service->hardware = *hardware;
    pthread_mutex_unlock(&service->hardware_lock);
    if (mf_store_hardware_put(service->store, hardware) != MF_STATUS_OK) {
        mf_log_warn("what was measured of the machine is not kept: %s", mf_status_text());
    }
}

enum mf_status mf_tune_measure_rates(struct mf_service *service, double seconds_max)
{
    struct machine_job job = {.seconds_max = seconds_max};
    mf_profile_init(&job.profile);
    enum mf_status status = call_machine(service, "measuring the machine", run_rates, &job);
    if (status == MF_STATUS_OK) {
        keep_hardware(service, &job.hardware);
        mf_tune_profile_learn(service, &job.profile);
    }
    mf_profile_reset(&job.profile);
    return status;
}

enum mf_status mf_tune_measure_contention(struct mf_service *service)
{
    struct machine_job job = {0};
    mf_tune_hardware(service, &job.hardware);
    bool cuda = strcmp(job.hardware.devices[0].kind, "cuda") == 0;
    job.seconds_max = cuda ? CONTENTION_SECONDS_GPU : CONTENTION_SECONDS_HOST;
    MF_TRY(call_machine(service, "measuring lanes side by side", run_contention, &job));
    if (!job.hardware.contention.measured) {
        return mf_status_set(MF_STATUS_DEADLINE, "%.0f s were not enough on a machine this busy",
                             job.seconds_max);
    }
    keep_hardware(service, &job.hardware);
    return MF_STATUS_OK;
}
