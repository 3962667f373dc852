/* libmemferry: connection, errors, queries, and public structs as messages. See memferry.h. */
#include "client/library.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "client/library_json.h"
#include "core/json.h"
#include "core/limits.h"
#include "memferry/v1/hardware.pb-c.h"
#include "memferry/v1/profile.pb-c.h"
#include "proto/wire.h"

/* The public statuses are those of core/status.h under other names. */
_Static_assert((int)MEMFERRY_OK == MF_STATUS_OK, "statuses are out of step");
_Static_assert((int)MEMFERRY_NO_DEVICE_MEMORY == MF_STATUS_NO_DEVICE_MEMORY,
               "statuses are out of step");
_Static_assert((int)MEMFERRY_CANCELLED == MF_STATUS_CANCELLED, "statuses are out of step");
_Static_assert((int)MEMFERRY_INTERNAL == MF_STATUS_INTERNAL, "statuses are out of step");
_Static_assert(MEMFERRY_INTERNAL + 1 == MF_STATUS_COUNT, "statuses are out of step");
_Static_assert(sizeof(((struct memferry_error *)0)->text) == MF_ERROR_TEXT_MAX,
               "the text has another size");
_Static_assert(sizeof(((struct memferry_error *)0)->numbers) / sizeof(struct memferry_number) ==
                   MF_ERROR_NUMBERS_MAX,
               "the numbers are others");
_Static_assert((int)MEMFERRY_STRATEGY_MEMFERRY == MEMFERRY__V1__STRATEGY__STRATEGY_MEMFERRY,
               "strategies are out of step");
_Static_assert((int)MEMFERRY_BACKWARD_LATE == MEMFERRY__V1__WEIGHT_BACKWARD__WEIGHT_BACKWARD_LATE,
               "choices are out of step");

const char *memferry_version(void)
{
    return MF_VERSION;
}

const char *memferry_status_name(enum memferry_status status)
{
    if ((int)status < 0 || (int)status >= MF_STATUS_COUNT) {
        return "UNKNOWN";
    }
    return mf_status_name((enum mf_status)status);
}

enum memferry_status mf_library_end(enum mf_status status, struct memferry_error *error)
{
    if (error == NULL) {
        return (enum memferry_status)status;
    }
    memset(error, 0, sizeof(*error));
    if (status == MF_STATUS_OK) {
        return MEMFERRY_OK;
    }
    const struct mf_error *from = mf_status_error();
    error->status = (enum memferry_status)status;
    snprintf(error->reason, sizeof(error->reason), "%s", from->reason);
    snprintf(error->text, sizeof(error->text), "%s", from->text);
    error->number_count = from->number_count;
    for (size_t i = 0; i < from->number_count; i++) {
        snprintf(error->numbers[i].name, sizeof(error->numbers[i].name), "%s",
                 from->numbers[i].name);
        error->numbers[i].value = from->numbers[i].value;
    }
    return error->status;
}

static enum mf_status open_connection(const char *address, struct memferry_connection **out)
{
    struct memferry_connection *connection = calloc(1, sizeof(*connection));
    Memferry__V1__GetStatusRequest request = MEMFERRY__V1__GET_STATUS_REQUEST__INIT;
    ProtobufCMessage *answer = NULL;
    enum mf_status status = MF_STATUS_OK;
    MF_ASSERT(connection != NULL);
    MF_TRY_GOTO(mf_channel_open(address, &connection->channel), failed);
    MF_TRY_GOTO(mf_library_call_unary(connection->channel,
                                      &memferry__v1__hardware_service__descriptor, "GetStatus",
                                      &request.base, MF_LIBRARY_CALL_SHORT_MS, &answer),
                failed);
    mf_wire_free(answer);
    *out = connection;
    return MF_STATUS_OK;
failed:
    memferry_close(connection);
    return status;
}

enum memferry_status memferry_open(const char *address, struct memferry_connection **out,
                                   struct memferry_error *error)
{
    *out = NULL;
    return mf_library_end(open_connection(address, out), error);
}

void memferry_close(struct memferry_connection *connection)
{
    if (connection != NULL) {
        mf_channel_close(connection->channel);
        free(connection);
    }
}

/* "HardwareService/GetStatus", with or without "memferry.v1." before it. */
static enum mf_status find_method(const char *text, const ProtobufCServiceDescriptor **service,
                                  const ProtobufCMethodDescriptor **method)
{
    static const ProtobufCServiceDescriptor *const services[] = {
        &memferry__v1__hardware_service__descriptor, &memferry__v1__profile_service__descriptor,
        &memferry__v1__plan_service__descriptor, &memferry__v1__training_service__descriptor};
    static const char *const streams[] = {"Measure", "CreateSession", "Run", "Watch"};
    static const char package[] = "memferry.v1.";
    text += strncmp(text, package, strlen(package)) == 0 ? strlen(package) : 0;
    const char *slash = strchr(text, '/');
    for (size_t i = 0; slash != NULL && i < sizeof(services) / sizeof(services[0]); i++) {
        size_t length = strlen(services[i]->short_name);
        if ((size_t)(slash - text) == length &&
            strncmp(text, services[i]->short_name, length) == 0) {
            *service = services[i];
            *method = protobuf_c_service_descriptor_get_method_by_name(services[i], slash + 1);
        }
    }
    if (slash == NULL || *service == NULL || *method == NULL) {
        return mf_status_set(MF_STATUS_NOT_FOUND, "the contract has no method \"%s\"", text);
    }
    for (size_t i = 0; i < sizeof(streams) / sizeof(streams[0]); i++) {
        if (strcmp((*method)->name, streams[i]) == 0) {
            return mf_status_set(MF_STATUS_UNSUPPORTED, "%s answers with a stream", text);
        }
    }
    return MF_STATUS_OK;
}

static enum mf_status query(struct memferry_connection *connection, const char *name,
                            const char *text, char **out)
{
    const ProtobufCServiceDescriptor *service = NULL;
    const ProtobufCMethodDescriptor *method = NULL;
    ProtobufCMessage *request = NULL;
    ProtobufCMessage *answer = NULL;
    json_t *json = NULL;
    struct mf_arena arena;
    enum mf_status status = MF_STATUS_OK;
    text = text != NULL ? text : "{}";
    mf_arena_init(&arena);
    MF_TRY_GOTO(find_method(name, &service, &method), out);
    MF_TRY_GOTO(mf_json_parse(text, strlen(text), "request", &json), out);
    MF_TRY_GOTO(mf_library_json_decode(method->input, json, &arena, &request), out);
    MF_TRY_GOTO(mf_library_call_unary(connection->channel, service, method->name, request,
                                      MF_LIBRARY_CALL_NO_LIMIT_MS, &answer),
                out);
    json_t *document = mf_library_json_encode(answer);
    *out = json_dumps(document, JSON_COMPACT | JSON_PRESERVE_ORDER);
    json_decref(document);
    MF_ASSERT(*out != NULL);
out:
    mf_wire_free(answer);
    json_decref(json);
    mf_arena_reset(&arena);
    return status;
}

enum memferry_status memferry_query(struct memferry_connection *connection, const char *method,
                                    const char *request, char **out, struct memferry_error *error)
{
    *out = NULL;
    return mf_library_end(query(connection, method, request, out), error);
}

void memferry_text_free(char *text)
{
    free(text);
}

static void unit_shapes(struct mf_arena *arena, const struct memferry_model *model,
                        Memferry__V1__UnitList *list)
{
    list->n_units = model->unit_count;
    list->units = mf_arena_alloc(arena, model->unit_count + 1, sizeof(*list->units));
    for (size_t i = 0; i < model->unit_count; i++) {
        const struct memferry_unit_shape *from = &model->units[i];
        Memferry__V1__UnitShape *unit = mf_arena_alloc(arena, 1, sizeof(*unit));
        memferry__v1__unit_shape__init(unit);
        unit->name = (char *)from->name;
        unit->block = from->block;
        unit->rows = from->rows;
        unit->columns = from->columns;
        unit->bias = from->bias;
        list->units[i] = unit;
    }
}

Memferry__V1__Model *mf_library_model(struct mf_arena *arena, const struct memferry_model *model)
{
    Memferry__V1__Model *message = mf_arena_alloc(arena, 1, sizeof(*message));
    memferry__v1__model__init(message);
    if (model == NULL) {
        return message;
    }
    if (model->folder != NULL) {
        message->source_case = MEMFERRY__V1__MODEL__SOURCE_FOLDER;
        message->folder = (char *)model->folder;
    } else if (model->preset != NULL) {
        message->source_case = MEMFERRY__V1__MODEL__SOURCE_PRESET;
        message->preset = (char *)model->preset;
    } else if (model->config_json != NULL) {
        message->source_case = MEMFERRY__V1__MODEL__SOURCE_CONFIG_JSON;
        message->config_json = (char *)model->config_json;
    } else if (model->units != NULL) {
        message->source_case = MEMFERRY__V1__MODEL__SOURCE_UNITS;
        message->units = mf_arena_alloc(arena, 1, sizeof(*message->units));
        memferry__v1__unit_list__init(message->units);
        unit_shapes(arena, model, message->units);
    }
    return message;
}

Memferry__V1__Workload *mf_library_workload(struct mf_arena *arena,
                                            const struct memferry_workload *workload)
{
    Memferry__V1__Workload *message = mf_arena_alloc(arena, 1, sizeof(*message));
    memferry__v1__workload__init(message);
    if (workload != NULL) {
        message->micro_batch = workload->micro_batch;
        message->seq_len = workload->seq_len;
        message->accumulation = workload->accumulation;
        message->no_clip = workload->no_clip;
    }
    return message;
}

Memferry__V1__Constraints *mf_library_constraints(struct mf_arena *arena,
                                                  const struct memferry_constraints *constraints)
{
    Memferry__V1__Constraints *message = mf_arena_alloc(arena, 1, sizeof(*message));
    memferry__v1__constraints__init(message);
    if (constraints == NULL) {
        return message;
    }
    message->device_memory_bytes = constraints->device_memory_bytes;
    message->host_memory_bytes = constraints->host_memory_bytes;
    message->strategy = (Memferry__V1__Strategy)constraints->strategy;
    message->n_pins = constraints->pin_count;
    message->pins = mf_arena_alloc(arena, constraints->pin_count + 1, sizeof(*message->pins));
    for (size_t i = 0; i < constraints->pin_count; i++) {
        const struct memferry_pin *from = &constraints->pins[i];
        Memferry__V1__Pin *pin = mf_arena_alloc(arena, 1, sizeof(*pin));
        memferry__v1__pin__init(pin);
        pin->pattern = (char *)from->pattern;
        pin->forward = (Memferry__V1__WeightForward)from->forward;
        pin->backward = (Memferry__V1__WeightBackward)from->backward;
        pin->gradient = (Memferry__V1__Gradient)from->gradient;
        pin->optimizer = (Memferry__V1__Optimizer)from->optimizer;
        message->pins[i] = pin;
    }
    return message;
}

void mf_library_read_workload(const Memferry__V1__Workload *from, struct memferry_workload *out)
{
    memset(out, 0, sizeof(*out));
    if (from != NULL) {
        out->micro_batch = from->micro_batch;
        out->seq_len = from->seq_len;
        out->accumulation = from->accumulation;
        out->no_clip = from->no_clip;
    }
}
