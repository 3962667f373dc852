/* Stored plans and their models: see tune.h. */
#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#include "core/json.h"
#include "server/tune_internal.h"

static enum mf_status model_from_list(const json_t *config, struct mf_model *out)
{
    const json_t *list = json_object_get(config, "units");
    size_t count = json_array_size(list);
    struct mf_unit_shape *shapes = calloc(count + 1, sizeof(*shapes));
    MF_ASSERT(shapes != NULL);
    bool good = count > 0 && count <= MF_UNITS_MAX;
    for (size_t i = 0; i < count && good; i++) {
        const char *name = NULL;
        json_int_t rows = 0;
        json_int_t columns = 0;
        int bias = 0;
        good = json_unpack(json_array_get(list, i), "[s, i, I, I, b]", &name, &shapes[i].block,
                           &rows, &columns, &bias) == 0;
        good = good && strlen(name) > 0 && strlen(name) < MF_NAME_MAX && rows >= 1 &&
               rows <= MF_DIMENSION_MAX && columns >= 1 && columns <= MF_DIMENSION_MAX &&
               shapes[i].block >= 0 && shapes[i].block < MF_BLOCKS_MAX;
        shapes[i].name = name;
        shapes[i].rows = rows;
        shapes[i].columns = columns;
        shapes[i].bias = bias != 0;
    }
    enum mf_status status =
        good ? mf_model_from_units(shapes, (int32_t)count, 0, out)
             : mf_status_set(MF_STATUS_CORRUPT, "the stored list of units is damaged");
    free(shapes);
    return status;
}

enum mf_status mf_tune_find_build(const char *family, const char *name, json_t *config,
                                  struct mf_model *out)
{
    *out = (struct mf_model){0};
    if (strcmp(family, "units") != 0) {
        return mf_model_from_config(config, name, 0, out);
    }
    MF_TRY(model_from_list(config, out));
    if (out->config == NULL) {
        out->config = json_incref(config);
    }
    return MF_STATUS_OK;
}

enum mf_status mf_tune_find_model(struct mf_service *service, const struct mf_plan *plan,
                                  struct mf_model *out)
{
    struct mf_store_model_record record;
    struct mf_arena arena;
    json_t *config = NULL;
    enum mf_status status = MF_STATUS_OK;
    *out = (struct mf_model){0};
    mf_arena_init(&arena);
    MF_TRY_GOTO(mf_store_model_get(service->store, plan->model_fingerprint, &arena, &record), end);
    if (record.config == NULL) {
        status = mf_status_set(MF_STATUS_NOT_FOUND, "the shapes of model %s are not in the store",
                               record.name);
        goto end;
    }
    MF_TRY_GOTO(mf_json_parse(record.config, strlen(record.config), "stored model", &config), end);
    status = mf_tune_find_build(record.family, record.name, config, out);
    json_decref(config);
    if (status == MF_STATUS_OK && strcmp(out->fingerprint, plan->model_fingerprint) != 0) {
        mf_model_reset(out);
        status =
            mf_status_set(MF_STATUS_CORRUPT,
                          "the stored model %s is not the one of its fingerprint", record.name);
    }
end:
    mf_arena_reset(&arena);
    return status;
}

enum mf_status mf_tune_find(struct mf_service *service, const char *id, struct mf_plan *out)
{
    struct mf_store_plan_record record;
    struct mf_arena arena;
    json_t *json = NULL;
    if (strlen(id) < 6 || strlen(id) >= MF_HASH_TEXT_MAX) {
        return mf_status_set(MF_STATUS_INVALID,
                             "a plan is named by 6 to 64 digits of its id, found \"%.80s\"", id);
    }
    mf_arena_init(&arena);
    enum mf_status status = mf_store_plan_find(service->store, id, &arena, &record);
    if (status == MF_STATUS_OK && record.json == NULL) {
        status = mf_status_set(MF_STATUS_NOT_FOUND,
                               "%s is a request that does not fit: it has no "
                               "plan",
                               id);
    }
    if (status == MF_STATUS_OK) {
        status = mf_json_parse(record.json, strlen(record.json), "stored plan", &json);
    }
    if (status == MF_STATUS_OK) {
        status = mf_plan_decode(json, out);
        json_decref(json);
    }
    mf_arena_reset(&arena);
    return status;
}

enum mf_status mf_tune_find_whole(struct mf_service *service, const char *id, struct mf_plan *plan,
                                  struct mf_model *model)
{
    MF_TRY(mf_tune_find(service, id, plan));
    enum mf_status status = mf_tune_find_model(service, plan, model);
    if (status == MF_STATUS_OK) {
        status = mf_plan_validate(plan, model);
        if (status != MF_STATUS_OK) {
            mf_model_reset(model);
        }
    }
    if (status != MF_STATUS_OK) {
        mf_plan_reset(plan);
    }
    return status;
}
