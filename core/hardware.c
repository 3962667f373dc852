/* The hardware: see hardware.h. */
#include "core/hardware.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/json.h"

#define WHERE "hardware"
#define RATE_MAX 1e18
#define RATE_CLASS 1.25 /* two rates in one class differ by less than about 25% */

static void print_rate(FILE *text, const char *name, double rate)
{
    if (rate > 0 && isfinite(rate)) {
        fprintf(text, " %s %ld", name, lround(log(rate) / log(RATE_CLASS)));
    } else {
        fprintf(text, " %s unknown", name);
    }
}

/* Only link rates: times of kernels and of the CPU are measured with the profile, and a clock that
 * wanders would make every plan a stranger. */
void mf_hardware_fingerprint(const struct mf_hardware *hardware, char out[static MF_HASH_TEXT_MAX])
{
    char *bytes = NULL;
    size_t count = 0;
    FILE *text = open_memstream(&bytes, &count);
    MF_ASSERT(text != NULL);
    fprintf(text, "hardware 1\ncpu \"%s\" %d %d %lld\n", hardware->cpu_name,
            (int)hardware->cpu_cores, (int)hardware->numa_nodes, (long long)hardware->host_bytes);
    for (int32_t i = 0; i < hardware->device_count; i++) {
        const struct mf_hardware_device *device = &hardware->devices[i];
        fprintf(text, "device \"%s\" \"%s\" %lld %d %d \"%s\" \"%s\" %d", device->kind,
                device->name, (long long)device->memory_bytes, (int)device->multiprocessors,
                (int)device->compute_capability, device->driver, device->runtime,
                device->link_emulated);
        print_rate(text, "h2d", device->h2d_bytes_per_s);
        print_rate(text, "d2h", device->d2h_bytes_per_s);
        fputc('\n', text);
    }
    MF_ASSERT(fclose(text) == 0);
    mf_hash(bytes, count, out);
    free(bytes);
}

/* Each key once, for both directions. X(kind, key, low, high) */
#define DEVICE_MAP(X)                                                                              \
    X(text, kind, 0, 0)                                                                            \
    X(text, name, 0, 0)                                                                            \
    X(int64, memory_bytes, 0, INT64_MAX)                                                           \
    X(int32, multiprocessors, 0, 1 << 20)                                                          \
    X(int32, compute_capability, 0, 100000)                                                        \
    X(number, matrix_flops, 0, 1e24)                                                               \
    X(number, memory_bytes_per_s, 0, RATE_MAX)                                                     \
    X(number, h2d_bytes_per_s, 0, RATE_MAX)                                                        \
    X(number, d2h_bytes_per_s, 0, RATE_MAX)                                                        \
    X(number, copy_latency_ns, 0, 1e12)                                                            \
    X(flag, link_emulated, 0, 0)                                                                   \
    X(text, driver, 0, 0)                                                                          \
    X(text, runtime, 0, 0)
#define HARDWARE_MAP(X)                                                                            \
    X(text, cpu_name, 0, 0)                                                                        \
    X(int32, cpu_cores, 0, 1 << 20)                                                                \
    X(int32, numa_nodes, 0, 1 << 16)                                                               \
    X(int64, host_bytes, 0, INT64_MAX)                                                             \
    X(number, host_bytes_per_s, 0, RATE_MAX)                                                       \
    X(flag, measured, 0, 0)

#define ENCODE_text(value) json_string(value)
#define ENCODE_int64(value) json_integer(value)
#define ENCODE_int32(value) json_integer(value)
#define ENCODE_number(value) json_real(value)
#define ENCODE_flag(value) json_boolean(value)

/* A name that is not UTF-8 or a rate that is not finite has no JSON form: the key stays out. */
static json_t *encode_device(const struct mf_hardware_device *device)
{
    json_t *json = json_object();
    MF_ASSERT(json != NULL);
#define X(kind_, key, low, high) (void)json_object_set_new(json, #key, ENCODE_##kind_(device->key));
    DEVICE_MAP(X)
#undef X
    return json;
}

void mf_hardware_assume(struct mf_hardware *hardware)
{
    bool host = strcmp(hardware->devices[0].kind, "host") == 0;
    mf_contention_assume(!host, &hardware->contention);
}

json_t *mf_hardware_encode(const struct mf_hardware *hardware)
{
    json_t *json = json_object();
    json_t *devices = json_array();
    MF_ASSERT(json != NULL && devices != NULL);
#define X(kind_, key, low, high)                                                                   \
    (void)json_object_set_new(json, #key, ENCODE_##kind_(hardware->key));
    HARDWARE_MAP(X)
#undef X
    for (int32_t i = 0; i < hardware->device_count; i++) {
        MF_ASSERT(json_array_append_new(devices, encode_device(&hardware->devices[i])) == 0);
    }
    MF_ASSERT(json_object_set_new(json, "devices", devices) == 0);
    json_t *contention = mf_contention_encode(&hardware->contention);
    MF_ASSERT(json_object_set_new(json, "contention", contention) == 0);
    return json;
}

static enum mf_status decode_int32(const json_t *json, const char *where, const char *key,
                                   int64_t low, int64_t high, int32_t *out)
{
    int64_t value = *out;
    MF_TRY(mf_json_int(json, where, key, low, high, &value));
    *out = (int32_t)value;
    return MF_STATUS_OK;
}

#define DECODE_text(key, low, high, out) mf_json_text(json, where, key, out, sizeof(out))
#define DECODE_int64(key, low, high, out) mf_json_int(json, where, key, low, high, &(out))
#define DECODE_int32(key, low, high, out) decode_int32(json, where, key, low, high, &(out))
#define DECODE_number(key, low, high, out) mf_json_number(json, where, key, low, high, &(out))
#define DECODE_flag(key, low, high, out) mf_json_bool(json, where, key, &(out))

static enum mf_status decode_device(const json_t *json, const char *where,
                                    struct mf_hardware_device *out)
{
    static const char *const known[] = {
#define X(kind_, key, low, high) #key,
        DEVICE_MAP(X)
#undef X
    };
    MF_TRY(mf_json_only(json, where, known, sizeof(known) / sizeof(known[0])));
    MF_TRY(mf_json_require(json, where, "kind"));
    MF_TRY(mf_json_require(json, where, "memory_bytes"));
#define X(kind_, key, low, high) MF_TRY(DECODE_##kind_(#key, low, high, out->key));
    DEVICE_MAP(X)
#undef X
    return MF_STATUS_OK;
}

static enum mf_status decode_fields(const json_t *json, const char *where, struct mf_hardware *out)
{
#define X(kind_, key, low, high) MF_TRY(DECODE_##kind_(#key, low, high, out->key));
    HARDWARE_MAP(X)
#undef X
    return MF_STATUS_OK;
}

enum mf_status mf_hardware_decode(const json_t *json, struct mf_hardware *out)
{
    static const char *const known[] = {
#define X(kind_, key, low, high) #key,
        HARDWARE_MAP(X)
#undef X
            "devices",
        "contention"};
    memset(out, 0, sizeof(*out));
    MF_TRY(mf_json_only(json, WHERE, known, sizeof(known) / sizeof(known[0])));
    MF_TRY(decode_fields(json, WHERE, out));
    const json_t *devices = json_object_get(json, "devices");
    size_t count = json_array_size(devices);
    if (!json_is_array(devices) || count < 1 || count > MF_DEVICES_MAX) {
        return mf_status_set(MF_STATUS_INVALID, WHERE ": \"devices\" must list 1 to %d devices",
                             MF_DEVICES_MAX);
    }
    for (size_t i = 0; i < count; i++) {
        char where[32];
        snprintf(where, sizeof(where), "devices[%zu]", i);
        MF_TRY(decode_device(json_array_get(devices, i), where, &out->devices[i]));
    }
    out->device_count = (int32_t)count;
    const json_t *contention = json_object_get(json, "contention");
    if (contention == NULL || json_is_null(contention)) {
        mf_hardware_assume(out);
        return MF_STATUS_OK;
    }
    return mf_contention_decode(contention, &out->contention);
}
