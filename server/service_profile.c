/* ProfileService: measuring on request, and what is measured. */
#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/json.h"
#include "core/log.h"
#include "memferry/v1/profile.pb-c.h"
#include "planner/step.h"
#include "profiler/measure.h"
#include "proto/wire.h"
#include "server/convert.h"
#include "server/profile_counts.h"
#include "server/service_machine.h"
#include "server/service_table.h"
#include "server/tune.h"
#include "server/tune_internal.h"

#define PATTERNS_MAX 4 /* units named for one kernel */

/* ---- which units a kernel stands for ---- */

/* "model.layers.17.mlp.up_proj" as "model.layers.*.mlp.up_proj". */
static void shorten(const char *name, char out[static MF_NAME_MAX])
{
    size_t length = 0;
    for (const char *c = name; *c != 0 && length + 1 < MF_NAME_MAX; c++) {
        bool digit = isdigit((unsigned char)*c) != 0;
        if (digit && length > 0 && out[length - 1] == '*') {
            continue;
        }
        bool number = digit && (c == name || c[-1] == '.');
        out[length++] = number ? '*' : *c;
    }
    out[length] = 0;
}

/* Placement, lane and how a gradient is summed do not change whose kernel it is. */
static struct mf_signature plain(enum mf_kernel kernel, const struct mf_shape *shape)
{
    struct mf_shape bare = *shape;
    bare.flags &= MF_SHAPE_BIAS;
    return mf_profile_signature(MF_LANE_COMPUTE, kernel, &bare);
}

struct names {
    struct mf_profile index; /* plain signature -> samples = row */
    int32_t count, capacity;
    struct row {
        int32_t patterns;
        bool more;
        char text[PATTERNS_MAX][MF_NAME_MAX];
    } * rows;
};

static struct row *find_row(struct names *names, const struct mf_signature *signature, bool add)
{
    const struct mf_measurement *entry = mf_profile_find(&names->index, signature);
    if (entry != NULL) {
        return &names->rows[entry->samples];
    }
    if (!add) {
        return NULL;
    }
    if (names->count == names->capacity) {
        names->capacity = names->capacity > 0 ? names->capacity * 2 : 64;
        names->rows = realloc(names->rows, (size_t)names->capacity * sizeof(*names->rows));
        MF_ASSERT(names->rows != NULL);
    }
    struct mf_measurement fresh = {.signature = *signature, .samples = names->count};
    mf_profile_put(&names->index, &fresh);
    names->rows[names->count] = (struct row){0};
    return &names->rows[names->count++];
}

static void add_name(struct names *names, const struct mf_task *task, const char *unit)
{
    char pattern[MF_NAME_MAX];
    struct mf_signature signature = plain(task->kernel, &task->shape);
    struct row *row = find_row(names, &signature, true);
    shorten(unit, pattern);
    for (int32_t i = 0; i < row->patterns; i++) {
        if (strcmp(row->text[i], pattern) == 0) {
            return;
        }
    }
    if (row->patterns == PATTERNS_MAX) {
        row->more = true;
        return;
    }
    memcpy(row->text[row->patterns++], pattern, sizeof(pattern));
}

/* A plan that keeps all on the device, and one that moves all. */
static enum mf_status collect(const struct mf_model *model, const struct mf_workload *workload,
                              bool moves, struct names *names)
{
    struct mf_plan plan;
    struct mf_step step;
    mf_plan_init(model, workload, &plan);
    for (int32_t i = 0; moves && i < plan.unit_count; i++) {
        plan.units[i].forward = MF_WEIGHT_FORWARD_STREAM;
        plan.units[i].backward = MF_WEIGHT_BACKWARD_STREAM;
        plan.units[i].gradient = MF_GRADIENT_COPY;
        plan.units[i].optimizer = MF_OPTIMIZER_CPU;
    }
    plan.ring_slots = moves ? 2 : 0;
    struct mf_step_request request = mf_step_variant_request(&plan, MF_STEP_FIRST_UPDATE);
    enum mf_status status = mf_step_build(model, &plan, &request, &step);
    if (status == MF_STATUS_OK) {
        for (int32_t i = 0; i < step.task_count; i++) {
            if (step.tasks[i].unit >= 0) {
                add_name(names, &step.tasks[i], model->units[step.tasks[i].unit].name);
            }
        }
        mf_step_reset(&step);
    }
    mf_plan_reset(&plan);
    return status;
}

static const char *name_units(struct names *names, const struct mf_signature *signature,
                              struct mf_arena *arena)
{
    struct mf_signature key = plain(signature->kernel, &signature->shape);
    const struct row *row = find_row(names, &key, false);
    const char *text = "";
    for (int32_t i = 0; row != NULL && i < row->patterns; i++) {
        text = mf_arena_format(arena, "%s%s%s", text, i > 0 ? ", " : "", row->text[i]);
    }
    return row != NULL && row->more ? mf_arena_format(arena, "%s, ...", text) : text;
}

/* ---- a profile as a message ---- */

static Memferry__V1__Measurement *convert_measurement(const struct mf_measurement *from,
                                                      const char *units, struct mf_arena *arena)
{
    uint32_t flags = from->signature.shape.flags;
    Memferry__V1__Measurement *out =
        MF_SERVICE_TABLE_NEW(arena, Memferry__V1__Measurement, MEMFERRY__V1__MEASUREMENT__INIT);
    out->kernel = mf_arena_string(arena, mf_kernel_name(from->signature.kernel));
    out->lane = mf_arena_string(arena, mf_kernel_lane_name(from->signature.lane));
    out->placement =
        mf_arena_string(arena, (flags & MF_SHAPE_WEIGHT_HOST) != 0   ? "weight in host memory"
                               : (flags & MF_SHAPE_OUTPUT_HOST) != 0 ? "output in host memory"
                                                                     : "");
    out->rows = from->signature.shape.rows;
    out->n = from->signature.shape.n;
    out->k = from->signature.shape.k;
    out->median_ns = from->median_ns;
    out->spread_ns = from->spread_ns;
    out->samples = from->samples;
    out->units = (char *)units;
    return out;
}

struct subject {
    struct mf_model model;
    struct mf_workload workload;
    struct mf_profile_counts *counts; /* NULL = not asked for */
};

static enum mf_status fill(struct mf_service *service, const struct subject *subject,
                           struct names *names, struct mf_arena *arena, Memferry__V1__Profile *out)
{
    struct mf_signature *needs = NULL;
    struct mf_profile profile;
    struct mf_hardware hardware;
    int32_t count = 0;
    MF_TRY(collect(&subject->model, &subject->workload, false, names));
    MF_TRY(collect(&subject->model, &subject->workload, true, names));
    MF_TRY(mf_measure_needs(&subject->model, &subject->workload, &needs, &count));
    mf_tune_profile(service, &profile);
    mf_tune_hardware(service, &hardware);
    out->hardware_fingerprint = mf_arena_string(arena, profile.hardware_fingerprint);
    out->model_name = mf_arena_string(arena, subject->model.name);
    out->method = mf_arena_string(arena, profile.method);
    out->measured_at_unix_seconds = profile.measured_at_unix_s;
    out->link_emulated = hardware.devices[0].link_emulated;
    out->contention = mf_convert_contention(&hardware.contention, arena);
    out->unit_count = subject->model.unit_count;
    out->needed_count = count;
    out->measurements = mf_arena_alloc(arena, (size_t)count + 1, sizeof(*out->measurements));
    for (int32_t i = 0; i < count; i++) {
        const struct mf_measurement *entry = mf_profile_find(&profile, &needs[i]);
        if (entry != NULL) {
            Memferry__V1__Measurement *row =
                convert_measurement(entry, name_units(names, &needs[i], arena), arena);
            out->measurements[out->n_measurements++] = row;
            if (subject->counts != NULL) {
                mf_profile_counts_add(subject->counts, &needs[i], row);
            }
        }
    }
    out->measured_count = (int32_t)out->n_measurements;
    out->complete = out->measured_count == count;
    mf_profile_reset(&profile);
    free(needs);
    return MF_STATUS_OK;
}

static enum mf_status convert_profile(struct mf_service *service, const struct subject *subject,
                                      struct mf_arena *arena, Memferry__V1__Profile **out)
{
    struct names names = {0};
    mf_profile_init(&names.index);
    *out = MF_SERVICE_TABLE_NEW(arena, Memferry__V1__Profile, MEMFERRY__V1__PROFILE__INIT);
    enum mf_status status = fill(service, subject, &names, arena, *out);
    mf_profile_reset(&names.index);
    free(names.rows);
    return status;
}

static enum mf_status read_subject(struct mf_service *service, const Memferry__V1__Model *model,
                                   const Memferry__V1__Workload *workload, struct mf_arena *arena,
                                   struct subject *out)
{
    MF_TRY(mf_convert_model(service, model, arena, &out->model, NULL));
    enum mf_status status = mf_convert_workload(workload, &out->model, &out->workload);
    if (status != MF_STATUS_OK) {
        mf_model_reset(&out->model);
    }
    return status;
}

/* ---- Measure ---- */

struct measuring {
    struct mf_rpc_call *call;
    double started;
};

static bool call_cancelled(void *context)
{
    const struct measuring *measuring = context;
    return mf_rpc_call_cancelled(measuring->call);
}

/* `what` is "measuring 12/80: linear_forward ...". A slow reader misses some. */
static void on_progress(void *context, const char *what, double done)
{
    const struct measuring *measuring = context;
    Memferry__V1__MeasureResponse response = MEMFERRY__V1__MEASURE_RESPONSE__INIT;
    Memferry__V1__MeasureProgress progress = MEMFERRY__V1__MEASURE_PROGRESS__INIT;
    const char *text = strstr(what, ": ");
    int number = 0;
    int total = 0;
    (void)done;
    if (sscanf(what, "measuring %d/%d", &number, &total) != 2) {
        return;
    }
    progress.done = number - 1;
    progress.total = total;
    progress.what = (char *)(text != NULL ? text + 2 : what);
    progress.elapsed_seconds = mf_tune_measure_clock() - measuring->started;
    response.event_case = MEMFERRY__V1__MEASURE_RESPONSE__EVENT_PROGRESS;
    response.progress = &progress;
    (void)!mf_service_table_send(measuring->call, &response.base, false);
}

static enum mf_status convert_counted(struct mf_service *service, struct mf_rpc_call *call,
                                      const struct subject *subject, struct mf_arena *arena,
                                      Memferry__V1__Profile **out)
{
    struct mf_profile_counts counts = {.service = service, .call = call};
    struct subject counted = *subject;
    counted.counts = &counts;
    enum mf_status status = convert_profile(service, &counted, arena, out);
    (*out)->counters_note = mf_arena_string(arena, counts.note);
    mf_profile_counts_close(&counts);
    return status;
}

static enum mf_status measure_subject(struct mf_service *service, struct mf_rpc_call *call,
                                      const Memferry__V1__MeasureRequest *message,
                                      const struct subject *subject, struct mf_arena *arena)
{
    struct measuring measuring = {.call = call, .started = mf_tune_measure_clock()};
    const struct mf_tune_request request = {
        .model = &subject->model,
        .workload = subject->workload,
        .measure_seconds_max = message->seconds_max,
        .measure_again = message->again,
        .progress = on_progress,
        .cancelled = call_cancelled,
        .context = &measuring,
    };
    int32_t needed = 0;
    int32_t measured = 0;
    if (!(message->seconds_max >= 0 && message->seconds_max <= MF_TUNE_SECONDS_MAX)) {
        return mf_status_set(MF_STATUS_INVALID, "seconds_max: 0 (60) to %d, found %g",
                             MF_TUNE_SECONDS_MAX, message->seconds_max);
    }
    MF_TRY(mf_tune_once_measure(service, &request, &needed, &measured));
    if (mf_store_model_put(service->store, &subject->model) != MF_STATUS_OK) {
        mf_log_warn("the model is not kept: %s", mf_status_text());
    }
    Memferry__V1__MeasureResponse response = MEMFERRY__V1__MEASURE_RESPONSE__INIT;
    response.event_case = MEMFERRY__V1__MEASURE_RESPONSE__EVENT_PROFILE;
    MF_TRY(message->counters ? convert_counted(service, call, subject, arena, &response.profile)
                             : convert_profile(service, subject, arena, &response.profile));
    response.profile->seconds = mf_tune_measure_clock() - measuring.started;
    return mf_service_table_send(call, &response.base, true);
}

static void measure(struct mf_rpc_call *call, const uint8_t *bytes, size_t count, void *context)
{
    struct mf_service *service = context;
    Memferry__V1__MeasureRequest *request = NULL;
    struct subject subject = {0};
    struct mf_arena arena;
    mf_arena_init(&arena);
    enum mf_status status = mf_wire_unpack(&memferry__v1__measure_request__descriptor, bytes, count,
                                           0, (ProtobufCMessage **)&request);
    if (status == MF_STATUS_OK) {
        status = read_subject(service, request->model, request->workload, &arena, &subject);
    }
    if (status == MF_STATUS_OK) {
        status = measure_subject(service, call, request, &subject, &arena);
        mf_model_reset(&subject.model);
    }
    if (status == MF_STATUS_OK) {
        mf_rpc_call_finish(call);
    } else {
        mf_rpc_call_fail(call, mf_status_error());
    }
    mf_wire_free(request);
    mf_arena_reset(&arena);
}

/* ---- the unary ones ---- */

static enum mf_status get_profile(struct mf_service *service, struct mf_rpc_call *call,
                                  const void *request, struct mf_arena *arena,
                                  ProtobufCMessage **reply)
{
    const Memferry__V1__GetProfileRequest *message = request;
    struct subject subject = {0};
    (void)call;
    MF_TRY(read_subject(service, message->model, message->workload, arena, &subject));
    Memferry__V1__GetProfileResponse *out = MF_SERVICE_TABLE_NEW(
        arena, Memferry__V1__GetProfileResponse, MEMFERRY__V1__GET_PROFILE_RESPONSE__INIT);
    enum mf_status status = convert_profile(service, &subject, arena, &out->profile);
    mf_model_reset(&subject.model);
    *reply = &out->base;
    return status;
}

static const char *hardware_name(struct mf_service *service, const char *fingerprint,
                                 struct mf_arena *arena)
{
    struct mf_store_hardware_record record;
    struct mf_hardware hardware;
    json_t *json = NULL;
    const char *name = "";
    if (mf_store_hardware_get(service->store, fingerprint, arena, &record) == MF_STATUS_OK &&
        mf_json_parse(record.json, strlen(record.json), "stored hardware", &json) == MF_STATUS_OK &&
        mf_hardware_decode(json, &hardware) == MF_STATUS_OK && hardware.device_count > 0) {
        name = mf_arena_string(arena, hardware.devices[0].name);
    }
    json_decref(json);
    return name;
}

static int64_t count_measurements(struct mf_service *service, const char *fingerprint)
{
    struct mf_profile profile;
    int64_t count = mf_store_profile_load(service->store, fingerprint, &profile) == MF_STATUS_OK
                        ? profile.count
                        : 0;
    mf_profile_reset(&profile);
    return count;
}

/* One summary for each hardware; the store lists newest first. */
static enum mf_status list_profiles(struct mf_service *service, struct mf_rpc_call *call,
                                    const void *request, struct mf_arena *arena,
                                    ProtobufCMessage **reply)
{
    struct mf_store_profile_record *records = NULL;
    int32_t count = 0;
    (void)call;
    (void)request;
    MF_TRY(mf_store_profile_list(service->store, arena, &records, &count));
    Memferry__V1__ListProfilesResponse *out = MF_SERVICE_TABLE_NEW(
        arena, Memferry__V1__ListProfilesResponse, MEMFERRY__V1__LIST_PROFILES_RESPONSE__INIT);
    out->profiles = mf_arena_alloc(arena, (size_t)count + 1, sizeof(*out->profiles));
    for (int32_t i = 0; i < count; i++) {
        const char *fingerprint = records[i].hardware_fingerprint;
        bool seen = false;
        for (size_t j = 0; j < out->n_profiles && !seen; j++) {
            seen = strcmp(out->profiles[j]->hardware_fingerprint, fingerprint) == 0;
        }
        if (seen) {
            continue;
        }
        Memferry__V1__ProfileSummary *summary = MF_SERVICE_TABLE_NEW(
            arena, Memferry__V1__ProfileSummary, MEMFERRY__V1__PROFILE_SUMMARY__INIT);
        summary->hardware_fingerprint = (char *)fingerprint;
        summary->hardware_name = (char *)hardware_name(service, fingerprint, arena);
        summary->measurement_count = count_measurements(service, fingerprint);
        summary->measured_at_unix_seconds = records[i].measured_unix_s;
        summary->method = (char *)records[i].method;
        summary->current = strcmp(fingerprint, service->tune->identity_fingerprint) == 0;
        out->profiles[out->n_profiles++] = summary;
    }
    *reply = &out->base;
    return MF_STATUS_OK;
}

static enum mf_status delete_profile(struct mf_service *service, struct mf_rpc_call *call,
                                     const void *request, struct mf_arena *arena,
                                     ProtobufCMessage **reply)
{
    const Memferry__V1__DeleteProfileRequest *message = request;
    (void)call;
    MF_TRY(mf_tune_profile_forget(service, message->hardware_fingerprint));
    Memferry__V1__DeleteProfileResponse *out = MF_SERVICE_TABLE_NEW(
        arena, Memferry__V1__DeleteProfileResponse, MEMFERRY__V1__DELETE_PROFILE_RESPONSE__INIT);
    *reply = &out->base;
    return MF_STATUS_OK;
}

void mf_service_profile_add(struct mf_service *service, struct mf_rpc_server *server)
{
    static struct mf_service_table_unary rows[] = {
        {.path = "/memferry.v1.ProfileService/GetProfile",
         .request = &memferry__v1__get_profile_request__descriptor,
         .answer = get_profile},
        {.path = "/memferry.v1.ProfileService/ListProfiles",
         .request = &memferry__v1__list_profiles_request__descriptor,
         .answer = list_profiles},
        {.path = "/memferry.v1.ProfileService/DeleteProfile",
         .request = &memferry__v1__delete_profile_request__descriptor,
         .answer = delete_profile},
        {.path = "/memferry.v1.ProfileService/ExportProfile",
         .request = &memferry__v1__export_profile_request__descriptor,
         .answer = mf_service_machine_export},
        {.path = "/memferry.v1.ProfileService/ImportProfile",
         .request = &memferry__v1__import_profile_request__descriptor,
         .answer = mf_service_machine_import},
    };
    static struct mf_rpc_method methods[sizeof(rows) / sizeof(rows[0])];
    static struct mf_rpc_method stream = {.path = "/memferry.v1.ProfileService/Measure",
                                          .kind = MF_RPC_SERVER_STREAM,
                                          .handler = measure};
    stream.context = service;
    mf_service_table_unary(service, server, rows, methods, sizeof(rows) / sizeof(rows[0]));
    mf_rpc_server_add(server, &stream, 1);
}
