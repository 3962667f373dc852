/*
 * Opening a session: a plan, its memory, its weights.
 *
 * Planning happens on the session's thread, admission and reserving on the device worker. Memory
 * that cannot be pinned is met here: the session is planned again for what could be.
 */
#include <stdio.h>
#include <string.h>

#include "core/format.h"
#include "core/log.h"
#include "server/session_internal.h"
#include "server/tune_machine.h"

static void tell_progress(void *context, const char *what, double done)
{
    mf_session_event_progress(context, what, done);
}

static bool stopping(void *context)
{
    struct mf_session *session = context;
    pthread_mutex_lock(&session->lock);
    bool stop = session->stop;
    pthread_mutex_unlock(&session->lock);
    return stop;
}

static bool pin_progress(void *context, int64_t done, int64_t total)
{
    mf_session_event_progress(context, "pinning host memory",
                              total > 0 ? (double)done / (double)total : 1);
    return !stopping(context);
}

static enum mf_status take_given_plan(struct mf_session *session, struct mf_plan *out)
{
    const struct mf_model *model = &session->spec.model;
    MF_TRY(mf_tune_find(session->table->service, session->spec.plan_id, out));
    if (strcmp(out->model_fingerprint, model->fingerprint) != 0) {
        return mf_status_set(MF_STATUS_INVALID, "plan %.12s is for another model (%s)", out->id,
                             out->model_name);
    }
    MF_TRY(mf_tune_machine_check(session->table->service, out));
    return mf_plan_validate(out, model);
}

/* What the session is from now on, as others see it. */
static void keep_plan(struct mf_session *session, const struct mf_plan *plan, const char *how)
{
    pthread_mutex_lock(&session->lock);
    session->plan = *plan;
    session->plan_how = how;
    session->spec.workload = plan->workload;
    memcpy(session->plan_id, plan->id, sizeof(session->plan_id));
    pthread_mutex_unlock(&session->lock);
}

/* `host_bytes`: the constraint on host memory. */
static enum mf_status find_plan(struct mf_session *session, int64_t host_bytes)
{
    const struct mf_session_spec *spec = &session->spec;
    struct mf_tune_result result = {0};
    if (spec->plan_id != NULL && spec->plan_id[0] != '\0') {
        enum mf_status status = take_given_plan(session, &result.plan);
        if (status != MF_STATUS_OK) {
            mf_plan_reset(&result.plan);
            return status;
        }
        keep_plan(session, &result.plan, "given");
        return MF_STATUS_OK;
    }
    struct mf_tune_request request = {
        .model = &spec->model,
        .workload = spec->workload,
        .constraints = {.device_bytes = spec->constraints.device_bytes, .host_bytes = host_bytes},
        .strategy = spec->strategy,
        .pins = spec->pins,
        .pin_count = spec->pin_count,
        .effort = spec->effort,
        .progress = tell_progress,
        .cancelled = stopping,
        .context = session,
    };
    MF_TRY(mf_tune_plan(session->table->service, &request, &result));
    keep_plan(session, &result.plan, result.how);
    return MF_STATUS_OK;
}

/* Admission: two comparisons, made on the device worker so that two sessions cannot both pass. */
static enum mf_status admit_and_open(struct mf_session_job *job)
{
    struct mf_session *session = job->session;
    struct mf_service *service = session->table->service;
    const struct mf_plan_prediction *prediction = &session->plan.prediction;
    int64_t device_used = 0;
    int64_t host_used = 0;
    struct mf_hardware hardware;
    mf_tune_hardware(service, &hardware);
    mf_session_table_reserved(session->table, &device_used, &host_used);
    const struct {
        const char *what, *reason, *flag;
        enum mf_status status;
        int64_t needed, available;
    } checks[] = {
        {"device memory", "DEVICE_MEMORY_TOO_SMALL", "--device-memory", MF_STATUS_NO_DEVICE_MEMORY,
         prediction->device_peak_bytes,
         mf_device_worker_described(service->worker)->memory_bytes - device_used},
        {"host memory", "HOST_MEMORY_TOO_SMALL", "--host-memory", MF_STATUS_NO_MEMORY,
         prediction->host_peak_bytes, hardware.host_bytes - host_used},
    };
    for (size_t i = 0; i < sizeof(checks) / sizeof(checks[0]); i++) {
        if (checks[i].needed > checks[i].available) {
            (void)mf_status_set_reason(
                checks[i].status, checks[i].reason,
                "the plan needs %.1f MiB of %s but %.1f MiB are free (other sessions hold the "
                "rest: memferry ps); wait, or plan with %s",
                (double)checks[i].needed / 0x1p20, checks[i].what,
                (double)checks[i].available / 0x1p20, checks[i].flag);
            mf_status_number("needed_bytes", checks[i].needed);
            mf_status_number("available_bytes", checks[i].available);
            return checks[i].status;
        }
    }
    MF_TRY(mf_executor_open(job->interface, job->device, &session->spec.model, &session->plan,
                            pin_progress, session, &session->executor));
    mf_device_worker_note_memory(service->worker);
    pthread_mutex_lock(&session->lock);
    session->device_bytes = mf_executor_bytes(session->executor, MF_SPACE_DEVICE);
    session->host_bytes = mf_executor_bytes(session->executor, MF_SPACE_HOST);
    pthread_mutex_unlock(&session->lock);
    return MF_STATUS_OK;
}

/* ---- pinned memory that cannot be had ---- */

static int64_t read_number(const struct mf_error *error, const char *name)
{
    for (size_t i = 0; i < error->number_count; i++) {
        if (strcmp(error->numbers[i].name, name) == 0) {
            return error->numbers[i].value;
        }
    }
    return 0;
}

/* Neither the plan nor a smaller one can have its memory; `pinned` is why, the present error what
 * the solver says. */
static enum mf_status refuse(const struct mf_error *pinned)
{
    struct mf_error solver = *mf_status_error();
    (void)mf_status_set_reason(
        MF_STATUS_NO_MEMORY, pinned->reason,
        "%.300s, and no plan fits into that: %.350s. Raise the limit (ulimit -l, the container's "
        "memory) or free host memory, take a smaller micro-batch, or allow more device memory",
        pinned->text, solver.text);
    mf_status_number("needed_bytes", read_number(pinned, "needed_bytes"));
    mf_status_number("available_bytes", read_number(pinned, "available_bytes"));
    if (read_number(&solver, "smallest_bytes") > 0) {
        mf_status_number("smallest_bytes", read_number(&solver, "smallest_bytes"));
    }
    return MF_STATUS_NO_MEMORY;
}

/* After memory could not be pinned: once more, with a plan for what could be. What a client gave as
 * a plan stays what it gave. */
static enum mf_status open_smaller(struct mf_session *session)
{
    const struct mf_error pinned = *mf_status_error();
    char first_text[MF_FORMAT_MAX];
    char second_text[MF_FORMAT_MAX];
    double first_ns = session->plan.prediction.step_ns;
    if (session->spec.plan_id != NULL && session->spec.plan_id[0] != '\0') {
        return mf_status_context(MF_STATUS_NO_MEMORY,
                                 "plan %.12s was given, and no other was tried (plan again with "
                                 "--host-memory)",
                                 session->plan_id);
    }
    mf_log_warn("session %.8s: %s; planning again", session->id, pinned.text);
    mf_session_event_progress(session, "planning again: memory could not be pinned", 0);
    pthread_mutex_lock(&session->lock);
    mf_plan_reset(&session->plan);
    pthread_mutex_unlock(&session->lock);
    enum mf_status status = find_plan(session, read_number(&pinned, "available_bytes"));
    if (status != MF_STATUS_OK) {
        return status == MF_STATUS_NO_MEMORY || status == MF_STATUS_NO_DEVICE_MEMORY
                   ? refuse(&pinned)
                   : status;
    }
    MF_TRY(mf_session_work_device(session, "reserving memory", admit_and_open, NULL));
    pthread_mutex_lock(&session->lock);
    snprintf(session->note, sizeof(session->note),
             "%.300s; planned again for that: %s a step instead of %s", pinned.text,
             mf_format_ns(session->plan.prediction.step_ns, second_text),
             mf_format_ns(first_ns, first_text));
    pthread_mutex_unlock(&session->lock);
    mf_log_warn("session %.8s: %s", session->id, session->note);
    return MF_STATUS_OK;
}

static bool not_pinned(enum mf_status status)
{
    const struct mf_error *error = mf_status_error();
    return status == MF_STATUS_NO_MEMORY && strcmp(error->reason, "PINNED_MEMORY_LIMIT") == 0 &&
           read_number(error, "available_bytes") > 0;
}

enum mf_status mf_session_open(struct mf_session *session)
{
    mf_session_event_progress(session, "planning", 0);
    MF_TRY(find_plan(session, session->spec.constraints.host_bytes));
    enum mf_status status =
        mf_session_work_device(session, "reserving memory", admit_and_open, NULL);
    MF_TRY(not_pinned(status) ? open_smaller(session) : status);
    if (stopping(session)) {
        return mf_status_set(MF_STATUS_CANCELLED, "the session was closed while it was opened");
    }
    return mf_session_state_init(session);
}
