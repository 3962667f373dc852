/* A session's parameters between its executor and folders: unit by unit through the device worker,
 * so that other sessions get their turns while a large model is saved. */
#include <stdlib.h>

#include "runtime/checkpoint.h"
#include "runtime/host/pool.h"
#include "runtime/weights.h"
#include "server/machine.h"
#include "server/session_internal.h"

struct exchange {
    struct mf_session *session;
    const char *what; /* "saving", "loading weights" */
    int32_t unit;
    const struct mf_checkpoint_unit *arrays;
};

static enum mf_status job_get(struct mf_session_job *job)
{
    const struct exchange *exchange = job->context;
    return mf_executor_get_unit(job->session->executor, exchange->unit, exchange->arrays->master,
                                exchange->arrays->first, exchange->arrays->second);
}

static enum mf_status job_put(struct mf_session_job *job)
{
    const struct exchange *exchange = job->context;
    return mf_executor_put_unit(job->session->executor, exchange->unit, exchange->arrays->master,
                                exchange->arrays->first, exchange->arrays->second);
}

static enum mf_status pass(struct exchange *exchange, int32_t unit,
                           const struct mf_checkpoint_unit *arrays,
                           enum mf_status (*job)(struct mf_session_job *))
{
    exchange->unit = unit;
    exchange->arrays = arrays;
    MF_TRY(mf_session_work_device(exchange->session, exchange->what, job, exchange));
    if (exchange->session->state == MF_SESSION_OPENING) {
        mf_session_event_progress(exchange->session, exchange->what,
                                  (double)(unit + 1) /
                                      (double)exchange->session->spec.model.unit_count);
    }
    return MF_STATUS_OK;
}

static enum mf_status read_unit(void *context, int32_t unit,
                                const struct mf_checkpoint_unit *arrays)
{
    return pass(context, unit, arrays, job_get);
}

static enum mf_status write_unit(void *context, int32_t unit,
                                 const struct mf_checkpoint_unit *arrays)
{
    return pass(context, unit, arrays, job_put);
}

enum mf_status mf_session_state_save(struct mf_session *session, const char *folder,
                                     bool weights_only, const json_t *extra)
{
    struct exchange exchange = {.session = session, .what = "saving"};
    json_t *state = extra != NULL ? json_deep_copy(extra) : json_object();
    MF_ASSERT(state != NULL);
    MF_ASSERT(
        json_object_set_new(state, "step", json_integer(mf_executor_step(session->executor))) == 0);
    struct mf_checkpoint_options options = {
        .weights_only = weights_only,
        .companions = session->spec.folder,
        .state = state,
    };
    enum mf_status status =
        mf_checkpoint_save(&session->spec.model, folder, &options, read_unit, &exchange);
    json_decref(state);
    return status;
}

enum mf_status mf_session_state_load(struct mf_session *session, const char *folder,
                                     bool *optimizer, json_t **extra)
{
    struct exchange exchange = {.session = session, .what = "loading weights"};
    json_t *state = NULL;
    MF_TRY(
        mf_checkpoint_load(&session->spec.model, folder, write_unit, &exchange, optimizer, &state));
    mf_executor_discard(session->executor);
    int64_t step = *optimizer ? json_integer_value(json_object_get(state, "step")) : 0;
    if (step < 0) {
        json_decref(state);
        return mf_status_set(MF_STATUS_CORRUPT, "%s/state.json: \"step\" is below 0", folder);
    }
    mf_executor_set_step(session->executor, step);
    pthread_mutex_lock(&session->lock);
    session->step = step;
    pthread_mutex_unlock(&session->lock);
    if (extra != NULL) {
        *extra = state;
    } else {
        json_decref(state);
    }
    return MF_STATUS_OK;
}

/* ---- random weights ---- */

#define INIT_ELEMENTS (1ll << 20) /* of one item of the pool: about 15 ms */

struct init {
    const struct mf_model *model;
    int32_t unit;
    uint64_t seed;
    int64_t rows; /* of an item */
    float *master;
};

static void init_item(const void *argument, int64_t item, int32_t worker)
{
    const struct init *init = argument;
    int64_t rows = init->model->units[init->unit].rows;
    int64_t first = item * init->rows;
    int64_t end = first + init->rows < rows ? first + init->rows : rows;
    (void)worker;
    mf_weights_init_rows(init->model, init->unit, init->seed, first, end, init->master);
}

static enum mf_status init_units(struct exchange *exchange, struct mf_host_pool *pool)
{
    const struct mf_model *model = &exchange->session->spec.model;
    enum mf_status status = MF_STATUS_OK;
    for (int32_t i = 0; i < model->unit_count && status == MF_STATUS_OK; i++) {
        const struct mf_unit *unit = &model->units[i];
        if (unit->owner != i) {
            continue;
        }
        int64_t rows = INIT_ELEMENTS / unit->columns + 1;
        struct mf_checkpoint_unit arrays = {.master =
                                                calloc((size_t)unit->elements, sizeof(float))};
        MF_ASSERT(arrays.master != NULL);
        const struct init init = {model, i, exchange->session->spec.seed, rows, arrays.master};
        mf_host_pool_run(pool, (unit->rows + rows - 1) / rows, init_item, &init);
        status = write_unit(exchange, i, &arrays);
        free(arrays.master);
    }
    return status;
}

enum mf_status mf_session_state_init(struct mf_session *session)
{
    const struct mf_model *model = &session->spec.model;
    if (session->spec.folder != NULL) {
        struct exchange exchange = {.session = session, .what = "loading weights"};
        return mf_checkpoint_load_weights(model, session->spec.folder, write_unit, &exchange);
    }
    struct exchange exchange = {.session = session, .what = "initialising weights"};
    struct mf_host_pool *pool = NULL;
    MF_TRY(mf_host_pool_open("init", mf_machine_cores(), NULL, &pool));
    enum mf_status status = init_units(&exchange, pool);
    struct mf_error error = *mf_status_error();
    mf_host_pool_close(pool);
    return status == MF_STATUS_OK ? status : mf_status_restore(&error);
}
