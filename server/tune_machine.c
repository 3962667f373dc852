/* The machines that plans are for: see tune_machine.h. */
#include "server/tune_machine.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "core/format.h"
#include "core/json.h"
#include "core/log.h"
#include "server/catalog.h"
#include "server/machine.h"
#include "server/service_table.h"
#include "server/tune_internal.h"

#define FORMAT "memferry machine 1"
#define PREFIX_MIN 6 /* digits of a fingerprint */
#define SHOWN 12

/* ---- finding ---- */

static enum mf_status decode(const char *text, const char *name, struct mf_hardware *out)
{
    json_t *json = NULL;
    MF_TRY(mf_json_parse(text, strlen(text), name, &json));
    enum mf_status status =
        json_object_get(json, "hardware") != NULL
            ? mf_status_set(MF_STATUS_INVALID,
                            "%s is a machine with its profile: import it first (memferry profile "
                            "--import FILE), then name it",
                            name)
            : mf_hardware_decode(json, out);
    json_decref(json);
    return status;
}

/* What a plan cannot do without, and what would be taken for "all there is". Rates may be left
 * away: then they are those that planner/cost.c assumes. */
static enum mf_status check_described(const struct mf_hardware *hardware)
{
    const struct mf_hardware_device *device = &hardware->devices[0];
    if (strcmp(device->kind, "cuda") != 0 && strcmp(device->kind, "host") != 0) {
        return mf_status_set(MF_STATUS_INVALID,
                             "hardware: devices[0].kind is \"cuda\" or \"host\", found \"%s\"",
                             device->kind);
    }
    if (device->name[0] == 0 || device->memory_bytes < 1 || hardware->host_bytes < 1) {
        return mf_status_set(MF_STATUS_INVALID,
                             "hardware: devices[0].name, devices[0].memory_bytes and host_bytes "
                             "must be given, and be more than nothing");
    }
    return MF_STATUS_OK;
}

static bool same(const struct mf_hardware *a, const struct mf_hardware *b)
{
    char left[MF_HASH_TEXT_MAX];
    char right[MF_HASH_TEXT_MAX];
    mf_hardware_fingerprint(a, left);
    mf_hardware_fingerprint(b, right);
    return strcmp(left, right) == 0;
}

bool mf_tune_machine_here(struct mf_service *service, const struct mf_hardware *hardware)
{
    struct mf_hardware here;
    mf_tune_hardware(service, &here);
    return same(&here, hardware);
}

/* A machine of the store as it is kept there for plans; what profiles are kept by has no memory. */
static bool read_record(const struct mf_store_hardware_record *record, struct mf_hardware *out)
{
    return decode(record->json, "stored hardware", out) == MF_STATUS_OK &&
           out->devices[0].memory_bytes > 0;
}

static enum mf_status find_in_store(struct mf_service *service, const char *name,
                                    struct mf_hardware *out)
{
    struct mf_store_hardware_record *records = NULL;
    struct mf_hardware hardware;
    struct mf_arena arena;
    int32_t count = 0;
    int32_t found = 0;
    size_t length = strlen(name);
    mf_arena_init(&arena);
    enum mf_status status = mf_store_hardware_list(service->store, &arena, &records, &count);
    for (int32_t i = 0; status == MF_STATUS_OK && i < count; i++) {
        if (!read_record(&records[i], &hardware)) {
            continue;
        }
        if (length >= PREFIX_MIN && strncmp(records[i].fingerprint, name, length) == 0) {
            *out = hardware;
            found++;
        } else if (found == 0 && strcasecmp(hardware.devices[0].name, name) == 0) {
            *out = hardware; /* the one seen last: they come in that order */
            found = 1;
        }
    }
    mf_arena_reset(&arena);
    MF_TRY(status);
    if (found > 1) {
        return mf_status_set(MF_STATUS_INVALID, "more than one machine begins with %.64s", name);
    }
    return found == 1 ? MF_STATUS_OK : MF_STATUS_NOT_FOUND;
}

static enum mf_status no_such_machine(const char *name)
{
    const char **names = calloc(mf_catalog_count + 1, sizeof(*names));
    MF_ASSERT(names != NULL);
    for (size_t i = 0; i < mf_catalog_count; i++) {
        names[i] = mf_catalog_entries[i].name;
    }
    const char *nearest = mf_format_nearest(name, names, mf_catalog_count);
    enum mf_status status = mf_status_set_reason(
        MF_STATUS_NOT_FOUND, "HARDWARE_NOT_FOUND",
        "no machine \"%.80s\" is known%s%s%s; memferry ls hardware lists them, or give a "
        "description",
        name, nearest != NULL ? "; the nearest is \"" : "", nearest != NULL ? nearest : "",
        nearest != NULL ? "\"" : "");
    free(names);
    return status;
}

enum mf_status mf_tune_machine_find(struct mf_service *service, const char *name,
                                    struct mf_hardware *out)
{
    struct mf_hardware here;
    mf_tune_hardware(service, &here);
    if (name == NULL || name[0] == 0) {
        *out = here;
        return MF_STATUS_OK;
    }
    if (name[0] == '{') {
        MF_TRY(decode(name, "hardware", out));
        return check_described(out);
    }
    for (size_t i = 0; i < mf_catalog_count; i++) {
        if (strcmp(name, mf_catalog_entries[i].name) == 0) {
            return decode(mf_catalog_entries[i].text, name, out);
        }
    }
    char fingerprint[MF_HASH_TEXT_MAX];
    size_t length = strlen(name);
    mf_hardware_fingerprint(&here, fingerprint);
    if (strcasecmp(name, here.devices[0].name) == 0 ||
        (length >= PREFIX_MIN && strncmp(fingerprint, name, length) == 0)) {
        *out = here;
        return MF_STATUS_OK;
    }
    enum mf_status status = find_in_store(service, name, out);
    return status == MF_STATUS_NOT_FOUND ? no_such_machine(name) : status;
}

/* ---- a machine's profile, a plan's machine ---- */

/* What profiles of the machine are kept by. */
static void identify(const struct mf_hardware *hardware, struct mf_hardware *identity,
                     char out[static MF_HASH_TEXT_MAX])
{
    mf_machine_identity(hardware, identity);
    mf_hardware_fingerprint(identity, out);
}

void mf_tune_machine_profile(struct mf_service *service, const struct mf_hardware *hardware,
                             struct mf_profile *out)
{
    struct mf_hardware identity;
    char fingerprint[MF_HASH_TEXT_MAX];
    identify(hardware, &identity, fingerprint);
    if (strcmp(fingerprint, service->tune->identity_fingerprint) == 0) {
        mf_tune_profile(service, out);
        return;
    }
    if (mf_store_profile_load(service->store, fingerprint, out) != MF_STATUS_OK) {
        mf_log_warn("nothing measured on %s is used: %s", hardware->devices[0].name,
                    mf_status_text());
        mf_profile_reset(out);
        mf_profile_init(out);
    }
}

static bool same_kind(const struct mf_hardware *a, const struct mf_hardware *b)
{
    return strcmp(a->devices[0].kind, b->devices[0].kind) == 0 &&
           strcmp(a->devices[0].name, b->devices[0].name) == 0 &&
           strcmp(a->cpu_name, b->cpu_name) == 0;
}

bool mf_tune_machine_of(struct mf_service *service, const char *fingerprint,
                        struct mf_hardware *hardware, struct mf_profile *profile)
{
    struct mf_store_hardware_record record;
    struct mf_hardware here;
    struct mf_hardware stored;
    struct mf_arena arena;
    mf_arena_init(&arena);
    mf_tune_hardware(service, &here);
    bool known =
        mf_store_hardware_get(service->store, fingerprint, &arena, &record) == MF_STATUS_OK &&
        read_record(&record, &stored);
    bool runs = !known || same_kind(&here, &stored);
    *hardware = runs ? here : stored;
    if (profile != NULL) {
        mf_tune_machine_profile(service, hardware, profile);
    }
    mf_arena_reset(&arena);
    return runs;
}

static void describe(const struct mf_hardware *hardware, char *out, size_t size)
{
    (void)snprintf(out, size, "%s (%s)", hardware->devices[0].name, hardware->cpu_name);
}

enum mf_status mf_tune_machine_check(struct mf_service *service, const struct mf_plan *plan)
{
    struct mf_hardware other;
    struct mf_hardware here;
    char there[2 * MF_NAME_MAX + 8];
    char now[2 * MF_NAME_MAX + 8];
    if (mf_tune_machine_of(service, plan->hardware_fingerprint, &other, NULL)) {
        return MF_STATUS_OK;
    }
    mf_tune_hardware(service, &here);
    describe(&other, there, sizeof(there));
    describe(&here, now, sizeof(now));
    return mf_status_set_reason(MF_STATUS_UNSUPPORTED, "PLAN_FOR_OTHER_HARDWARE",
                                "plan %.12s is for %s; this machine is %s: ask for a plan for "
                                "this machine",
                                plan->id, there, now);
}

/* ---- lists ---- */

Memferry__V1__HardwareSummary *mf_tune_machine_summary(struct mf_service *service,
                                                       const struct mf_hardware *hardware,
                                                       struct mf_arena *arena)
{
    struct mf_profile profile;
    char fingerprint[MF_HASH_TEXT_MAX];
    Memferry__V1__HardwareSummary *out = MF_SERVICE_TABLE_NEW(arena, Memferry__V1__HardwareSummary,
                                                              MEMFERRY__V1__HARDWARE_SUMMARY__INIT);
    mf_hardware_fingerprint(hardware, fingerprint);
    mf_tune_machine_profile(service, hardware, &profile);
    out->measurement_count = profile.count;
    mf_profile_reset(&profile);
    out->source = mf_tune_machine_here(service, hardware)
                      ? MEMFERRY__V1__HARDWARE_SUMMARY__SOURCE__SOURCE_HERE
                      : MEMFERRY__V1__HARDWARE_SUMMARY__SOURCE__SOURCE_STORE;
    out->name = mf_arena_format(arena, "%.*s", SHOWN, fingerprint);
    out->device_name = mf_arena_string(arena, hardware->devices[0].name);
    out->device_memory_bytes = hardware->devices[0].memory_bytes;
    out->host_memory_bytes = hardware->host_bytes;
    out->measured = hardware->measured;
    out->fingerprint = mf_arena_string(arena, fingerprint);
    return out;
}

static void list_store(struct mf_service *service, const struct mf_store_hardware_record *records,
                       int32_t count, struct mf_arena *arena, Memferry__V1__HardwareSummary **list,
                       size_t *size)
{
    struct mf_hardware hardware;
    for (int32_t i = 0; i < count; i++) {
        if (!read_record(&records[i], &hardware)) {
            continue;
        }
        if (mf_tune_machine_here(service, &hardware)) {
            list[0]->last_seen_unix_seconds = records[i].last_seen_unix_s;
            continue;
        }
        list[*size] = mf_tune_machine_summary(service, &hardware, arena);
        list[(*size)++]->last_seen_unix_seconds = records[i].last_seen_unix_s;
    }
}

enum mf_status mf_tune_machine_list(struct mf_service *service, struct mf_arena *arena,
                                    Memferry__V1__HardwareSummary ***out, size_t *count)
{
    struct mf_store_hardware_record *records = NULL;
    struct mf_hardware hardware;
    int32_t stored = 0;
    MF_TRY(mf_store_hardware_list(service->store, arena, &records, &stored));
    Memferry__V1__HardwareSummary **list =
        mf_arena_alloc(arena, (size_t)stored + mf_catalog_count + 1, sizeof(*list));
    mf_tune_hardware(service, &hardware);
    *count = 0;
    list[(*count)++] = mf_tune_machine_summary(service, &hardware, arena);
    list_store(service, records, stored, arena, list, count);
    for (size_t i = 0; i < mf_catalog_count; i++) {
        MF_TRY(decode(mf_catalog_entries[i].text, mf_catalog_entries[i].name, &hardware));
        list[*count] = mf_tune_machine_summary(service, &hardware, arena);
        list[*count]->source = MEMFERRY__V1__HARDWARE_SUMMARY__SOURCE__SOURCE_SHIPPED;
        list[(*count)++]->name = (char *)mf_catalog_entries[i].name;
    }
    *out = list;
    return MF_STATUS_OK;
}

/* ---- as one text ---- */

enum mf_status mf_tune_machine_export(struct mf_service *service, const char *name,
                                      struct mf_arena *arena, const char **text, int32_t *count)
{
    struct mf_hardware hardware;
    struct mf_profile profile;
    MF_TRY(mf_tune_machine_find(service, name, &hardware));
    mf_tune_machine_profile(service, &hardware, &profile);
    json_t *json = json_pack("{s:s, s:o, s:o}", "format", FORMAT, "hardware",
                             mf_hardware_encode(&hardware), "profile", mf_profile_encode(&profile));
    *count = profile.count;
    mf_profile_reset(&profile);
    MF_ASSERT(json != NULL);
    char *dump = json_dumps(json, JSON_INDENT(1) | JSON_REAL_PRECISION(17));
    json_decref(json);
    MF_ASSERT(dump != NULL);
    size_t bytes = strlen(dump);
    *text = bytes < MF_MESSAGE_BYTES_MAX - 1024 ? mf_arena_string(arena, dump) : NULL;
    free(dump);
    return *text != NULL
               ? MF_STATUS_OK
               : mf_status_set(MF_STATUS_UNSUPPORTED,
                               "the profile has %d measurements, %zu bytes as text; a message "
                               "takes %lld",
                               *count, bytes, MF_MESSAGE_BYTES_MAX - 1024);
}

static enum mf_status read_machine(const char *text, struct mf_hardware *hardware,
                                   struct mf_profile *profile)
{
    static const char *const known[] = {"format", "hardware", "profile"};
    const char *format = "";
    json_t *json = NULL;
    enum mf_status status = MF_STATUS_OK;
    MF_TRY(mf_json_parse(text, strlen(text), "machine", &json));
    MF_TRY_GOTO(mf_json_string(json, "machine", "format", &format), end);
    if (strcmp(format, FORMAT) != 0) {
        status = mf_status_set(MF_STATUS_INVALID,
                               "this is no machine that memferry profile --export wrote: its "
                               "\"format\" is \"%.40s\", not \"" FORMAT "\"",
                               format);
        goto end;
    }
    MF_TRY_GOTO(mf_json_only(json, "machine", known, 3), end);
    MF_TRY_GOTO(mf_json_require(json, "machine", "hardware"), end);
    MF_TRY_GOTO(mf_json_require(json, "machine", "profile"), end);
    MF_TRY_GOTO(mf_hardware_decode(json_object_get(json, "hardware"), hardware), end);
    MF_TRY_GOTO(check_described(hardware), end);
    MF_TRY_GOTO(mf_profile_decode(json_object_get(json, "profile"), profile), end);
end:
    json_decref(json);
    return status;
}

enum mf_status mf_tune_machine_import(struct mf_service *service, const char *text,
                                      struct mf_hardware *out, int32_t *count)
{
    struct mf_profile profile;
    struct mf_hardware identity;
    enum mf_status status = MF_STATUS_OK;
    MF_TRY(read_machine(text, out, &profile));
    identify(out, &identity, profile.hardware_fingerprint);
    *count = profile.count;
    if (strcmp(profile.hardware_fingerprint, service->tune->identity_fingerprint) == 0) {
        mf_tune_profile_learn(service, &profile);
    } else {
        MF_TRY_GOTO(mf_store_hardware_put(service->store, out), end);
        MF_TRY_GOTO(mf_store_profile_merge(service->store, &identity, &profile), end);
        pthread_mutex_lock(&service->tune->lock);
        service->tune->profile_generation++; /* what was computed from that machine's costs */
        pthread_mutex_unlock(&service->tune->lock);
    }
end:
    mf_profile_reset(&profile);
    return status;
}
