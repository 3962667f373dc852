/* Requests to our structs: see convert.h. */
#include "server/convert.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "core/json.h"
#include "server/config.h"

#define SEQ_LEN_DEFAULT 1024
#define PATTERN_MAX 256

/* The contract's enums are ours, moved up by one for UNSPECIFIED. */
#define SAME(prefix, name, ours)                                                                   \
    _Static_assert(MEMFERRY__V1__##prefix##name == (int)(ours) + 1, "the contract's order is "     \
                                                                    "ours")
SAME(WEIGHT_FORWARD__WEIGHT_FORWARD_, RESIDENT, MF_WEIGHT_FORWARD_RESIDENT);
SAME(WEIGHT_FORWARD__WEIGHT_FORWARD_, STREAM, MF_WEIGHT_FORWARD_STREAM);
SAME(WEIGHT_FORWARD__WEIGHT_FORWARD_, DIRECT, MF_WEIGHT_FORWARD_DIRECT);
SAME(WEIGHT_BACKWARD__WEIGHT_BACKWARD_, KEEP, MF_WEIGHT_BACKWARD_KEEP);
SAME(WEIGHT_BACKWARD__WEIGHT_BACKWARD_, STREAM, MF_WEIGHT_BACKWARD_STREAM);
SAME(WEIGHT_BACKWARD__WEIGHT_BACKWARD_, DIRECT, MF_WEIGHT_BACKWARD_DIRECT);
SAME(WEIGHT_BACKWARD__WEIGHT_BACKWARD_, LATE, MF_WEIGHT_BACKWARD_LATE);
SAME(GRADIENT__GRADIENT_, DEVICE, MF_GRADIENT_DEVICE);
SAME(GRADIENT__GRADIENT_, COPY, MF_GRADIENT_COPY);
SAME(GRADIENT__GRADIENT_, DIRECT, MF_GRADIENT_DIRECT);
SAME(OPTIMIZER__OPTIMIZER_, CPU, MF_OPTIMIZER_CPU);
SAME(OPTIMIZER__OPTIMIZER_, GPU, MF_OPTIMIZER_GPU);
SAME(OPTIMIZER__OPTIMIZER_, GPU_STREAM, MF_OPTIMIZER_GPU_STREAM);
SAME(STRATEGY__STRATEGY_, AUTO, MF_STRATEGY_AUTO);
SAME(STRATEGY__STRATEGY_, RESIDENT, MF_STRATEGY_RESIDENT);
SAME(STRATEGY__STRATEGY_, STREAM, MF_STRATEGY_STREAM);
SAME(STRATEGY__STRATEGY_, ZERO_OFFLOAD, MF_STRATEGY_ZERO_OFFLOAD);
SAME(STRATEGY__STRATEGY_, MEMFERRY, MF_STRATEGY_MEMFERRY);

enum mf_status mf_convert_path(struct mf_service *service, const char *path, struct mf_arena *arena,
                               const char **out)
{
    char resolved[MF_CONFIG_PATH_MAX];
    MF_TRY(mf_config_allow(&service->config, path, resolved));
    *out = mf_arena_string(arena, resolved);
    return MF_STATUS_OK;
}

/* ---- models ---- */

static const char *last_part(const char *path)
{
    const char *slash = strrchr(path, '/');
    return slash != NULL && slash[1] != 0 ? slash + 1 : path;
}

static const char *short_name(const char *name, struct mf_arena *arena)
{
    return mf_arena_format(arena, "%.*s", MF_NAME_MAX - 1, name);
}

static enum mf_status from_folder(struct mf_service *service, const char *path,
                                  struct mf_arena *arena, struct mf_model *out, const char **folder)
{
    json_t *config = NULL;
    const char *resolved = NULL;
    MF_TRY(mf_convert_path(service, path, arena, &resolved));
    MF_TRY(mf_json_load(mf_arena_format(arena, "%s/config.json", resolved), MF_CONFIG_FILE_MAX,
                        &config));
    enum mf_status status =
        mf_model_from_config(config, short_name(last_part(resolved), arena), 0, out);
    json_decref(config);
    *folder = resolved;
    return status;
}

static enum mf_status from_text(const char *text, struct mf_arena *arena, struct mf_model *out)
{
    json_t *config = NULL;
    const char *name = "";
    size_t length = strlen(text);
    if (length > MF_CONFIG_FILE_MAX) {
        return mf_status_set(MF_STATUS_INVALID, "config_json: %zu bytes, at most %lld", length,
                             MF_CONFIG_FILE_MAX);
    }
    MF_TRY(mf_json_parse(text, length, "config_json", &config));
    enum mf_status status = mf_json_string(config, "config_json", "_name_or_path", &name);
    if (status == MF_STATUS_OK && name[0] == 0) {
        status = mf_json_string(config, "config_json", "model_type", &name);
    }
    if (status == MF_STATUS_OK) {
        name = name[0] != 0 ? last_part(name) : "config.json";
        status = mf_model_from_config(config, short_name(name, arena), 0, out);
    }
    json_decref(config);
    return status;
}

static enum mf_status check_shape(const Memferry__V1__UnitShape *unit, size_t index)
{
    size_t length = strlen(unit->name);
    if (length == 0 || length >= MF_NAME_MAX) {
        return mf_status_set(MF_STATUS_INVALID, "units[%zu].name: 1 to %d bytes, found %zu", index,
                             MF_NAME_MAX - 1, length);
    }
    if (unit->rows < 1 || unit->rows > MF_DIMENSION_MAX || unit->columns < 1 ||
        unit->columns > MF_DIMENSION_MAX) {
        return mf_status_set(
            MF_STATUS_INVALID, "unit %s: rows and columns are 1 to %lld, found %lld and %lld",
            unit->name, MF_DIMENSION_MAX, (long long)unit->rows, (long long)unit->columns);
    }
    if (unit->block < 0 || unit->block >= MF_BLOCKS_MAX) {
        return mf_status_set(MF_STATUS_INVALID, "unit %s: block is 0 to %d, found %d", unit->name,
                             MF_BLOCKS_MAX - 1, unit->block);
    }
    return MF_STATUS_OK;
}

/* The list as the model's config, so that the store can give the model back. */
static json_t *encode_units(const Memferry__V1__UnitList *list)
{
    json_t *units = json_array();
    for (size_t i = 0; i < list->n_units; i++) {
        const Memferry__V1__UnitShape *unit = list->units[i];
        json_t *row = json_pack("[s, i, I, I, b]", unit->name, unit->block, (json_int_t)unit->rows,
                                (json_int_t)unit->columns, unit->bias);
        MF_ASSERT(row != NULL && json_array_append_new(units, row) == 0);
    }
    json_t *json = json_pack("{s: o}", "units", units);
    MF_ASSERT(json != NULL);
    return json;
}

static enum mf_status from_list(const Memferry__V1__UnitList *list, struct mf_arena *arena,
                                struct mf_model *out)
{
    if (list->n_units < 1 || list->n_units > MF_UNITS_MAX) {
        return mf_status_set(MF_STATUS_INVALID, "units: 1 to %d of them, found %zu", MF_UNITS_MAX,
                             list->n_units);
    }
    struct mf_unit_shape *shapes = mf_arena_alloc(arena, list->n_units, sizeof(*shapes));
    for (size_t i = 0; i < list->n_units; i++) {
        const Memferry__V1__UnitShape *unit = list->units[i];
        MF_TRY(check_shape(unit, i));
        shapes[i] = (struct mf_unit_shape){.name = mf_arena_string(arena, unit->name),
                                           .block = unit->block,
                                           .rows = unit->rows,
                                           .columns = unit->columns,
                                           .bias = unit->bias};
    }
    MF_TRY(mf_model_from_units(shapes, (int32_t)list->n_units, 0, out));
    if (out->config == NULL) {
        out->config = encode_units(list);
    }
    return MF_STATUS_OK;
}

enum mf_status mf_convert_model(struct mf_service *service, const Memferry__V1__Model *message,
                                struct mf_arena *arena, struct mf_model *out, const char **folder)
{
    const char *resolved = NULL;
    enum mf_status status = MF_STATUS_OK;
    *out = (struct mf_model){0};
    switch (message == NULL ? MEMFERRY__V1__MODEL__SOURCE__NOT_SET : message->source_case) {
    case MEMFERRY__V1__MODEL__SOURCE_FOLDER:
        status = from_folder(service, message->folder, arena, out, &resolved);
        break;
    case MEMFERRY__V1__MODEL__SOURCE_PRESET:
        status = mf_model_from_preset(message->preset, 0, out);
        break;
    case MEMFERRY__V1__MODEL__SOURCE_CONFIG_JSON:
        status = from_text(message->config_json, arena, out);
        break;
    case MEMFERRY__V1__MODEL__SOURCE_UNITS:
        status = from_list(message->units, arena, out);
        break;
    default:
        status = mf_status_set(MF_STATUS_INVALID,
                               "model: give one of folder, preset, config_json or units");
        break;
    }
    if (folder != NULL) {
        *folder = resolved;
    }
    return status;
}

/* ---- workload and constraints ---- */

static enum mf_status check_word(const char *field, const char *value, const char *only)
{
    return value == NULL || value[0] == 0 || strcmp(value, only) == 0
               ? MF_STATUS_OK
               : mf_status_set(MF_STATUS_UNSUPPORTED,
                               "%s: only \"%s\" is supported, found \"%.40s\"", field, only, value);
}

enum mf_status mf_convert_workload(const Memferry__V1__Workload *message,
                                   const struct mf_model *model, struct mf_workload *out)
{
    static const Memferry__V1__Workload none = MEMFERRY__V1__WORKLOAD__INIT;
    const Memferry__V1__Workload *from = message != NULL ? message : &none;
    int64_t usual = model->positions_max < SEQ_LEN_DEFAULT ? model->positions_max : SEQ_LEN_DEFAULT;
    *out = (struct mf_workload){
        .micro_batch = from->micro_batch != 0 ? from->micro_batch : 1,
        .seq_len = from->seq_len != 0 ? from->seq_len : (int32_t)usual,
        .accumulation = from->accumulation != 0 ? from->accumulation : 1,
        .clip = !from->no_clip,
    };
    MF_TRY(check_word("workload.dtype", from->dtype, "bf16"));
    MF_TRY(check_word("workload.optimizer", from->optimizer, "adamw"));
    MF_TRY(mf_workload_validate(out));
    if (out->seq_len > model->positions_max) {
        return mf_status_set(MF_STATUS_INVALID,
                             "workload.seq_len: %s takes at most %lld tokens in a sequence, found "
                             "%d",
                             model->name, (long long)model->positions_max, out->seq_len);
    }
    return MF_STATUS_OK;
}

/* `value` is an enum of the contract with `count` choices of ours; 0 (UNSPECIFIED) gives -1. */
static enum mf_status choice(const char *field, int value, int count, int *out)
{
    if (value < 0 || value > count) {
        return mf_status_set(MF_STATUS_INVALID, "%s: %d is no known choice (0 to %d)", field, value,
                             count);
    }
    *out = value - 1;
    return MF_STATUS_OK;
}

static enum mf_status pin(const Memferry__V1__Pin *message, struct mf_arena *arena,
                          struct mf_pin *out)
{
    size_t length = strlen(message->pattern);
    if (length == 0 || length > PATTERN_MAX) {
        return mf_status_set(MF_STATUS_INVALID, "pin.pattern: 1 to %d bytes, found %zu",
                             PATTERN_MAX, length);
    }
    out->pattern = mf_arena_string(arena, message->pattern);
    MF_TRY(choice("pin.forward", (int)message->forward, MF_WEIGHT_FORWARD_COUNT, &out->forward));
    MF_TRY(
        choice("pin.backward", (int)message->backward, MF_WEIGHT_BACKWARD_COUNT, &out->backward));
    MF_TRY(choice("pin.gradient", (int)message->gradient, MF_GRADIENT_COUNT, &out->gradient));
    return choice("pin.optimizer", (int)message->optimizer, MF_OPTIMIZER_COUNT, &out->optimizer);
}

static enum mf_status budget(const char *field, int64_t value, int64_t *out)
{
    *out = value;
    return value >= 0 ? MF_STATUS_OK
                      : mf_status_set(MF_STATUS_INVALID, "%s: 0 (all there is) or more, found %lld",
                                      field, (long long)value);
}

enum mf_status mf_convert_constraints(const Memferry__V1__Constraints *message,
                                      struct mf_arena *arena, struct mf_constraints *out,
                                      enum mf_strategy *strategy, struct mf_pin **pins,
                                      int32_t *pin_count)
{
    static const Memferry__V1__Constraints none = MEMFERRY__V1__CONSTRAINTS__INIT;
    const Memferry__V1__Constraints *from = message != NULL ? message : &none;
    int chosen = -1;
    *pins = NULL;
    *pin_count = 0;
    MF_TRY(
        budget("constraints.device_memory_bytes", from->device_memory_bytes, &out->device_bytes));
    MF_TRY(budget("constraints.host_memory_bytes", from->host_memory_bytes, &out->host_bytes));
    MF_TRY(choice("constraints.strategy", (int)from->strategy, MF_STRATEGY_COUNT, &chosen));
    *strategy = chosen < 0 ? MF_STRATEGY_AUTO : (enum mf_strategy)chosen;
    if (from->n_pins > MF_PINS_MAX) {
        return mf_status_set(MF_STATUS_INVALID, "constraints.pins: at most %d, found %zu",
                             MF_PINS_MAX, from->n_pins);
    }
    *pins = mf_arena_alloc(arena, from->n_pins + 1, sizeof(**pins));
    for (size_t i = 0; i < from->n_pins; i++) {
        MF_TRY(pin(from->pins[i], arena, &(*pins)[i]));
    }
    *pin_count = (int32_t)from->n_pins;
    return MF_STATUS_OK;
}

enum mf_status mf_convert_effort(Memferry__V1__Effort value, enum mf_effort *out)
{
    int chosen = -1;
    MF_TRY(choice("effort", (int)value, MF_EFFORT_MEASURE + 1, &chosen));
    *out = chosen < 0 ? MF_EFFORT_MEASURE : (enum mf_effort)chosen;
    return MF_STATUS_OK;
}
