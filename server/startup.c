/* Opening the daemon's parts: see startup.h. */
#include "server/startup.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "core/json.h"
#include "core/log.h"
#include "runtime/device.h"
#include "server/machine.h"
#include "server/tune.h"

#define PROBE_SECONDS 1.0

enum mf_status mf_startup_home(const struct mf_config *config)
{
    char path[MF_CONFIG_PATH_MAX + 2];
    (void)snprintf(path, sizeof(path), "%s/", config->home);
    for (char *slash = strchr(path + 1, '/'); slash != NULL; slash = strchr(slash + 1, '/')) {
        *slash = 0;
        if (mkdir(path, 0700) != 0 && errno != EEXIST) {
            return mf_status_set(errno == EACCES ? MF_STATUS_DENIED : MF_STATUS_IO,
                                 "the folder %s cannot be made (%s): say another one with --home "
                                 "or $MEMFERRY_HOME",
                                 path, strerror(errno));
        }
        *slash = '/';
    }
    return MF_STATUS_OK;
}

enum mf_status mf_startup_store(const struct mf_config *config, struct mf_store **out)
{
    char path[MF_CONFIG_PATH_MAX + 16];
    (void)snprintf(path, sizeof(path), "%s/memferry.db", config->home);
    enum mf_status status = mf_store_open(path, out);
    return status == MF_STATUS_OK ? status : mf_status_context(status, "the store %s", path);
}

enum mf_status mf_startup_worker(struct mf_service *service)
{
    const struct mf_config *config = &service->config;
    const struct mf_device_options options = {
        .memory_bytes = config->device_memory,
        .h2d_bytes_per_s = (double)config->emulate_h2d,
        .d2h_bytes_per_s = (double)config->emulate_d2h,
        .threads = config->threads,
        .index = config->device_index,
    };
    (void)snprintf(service->no_gpu, sizeof(service->no_gpu), "the setting device is host");
    if (config->device != MF_CONFIG_DEVICE_HOST) {
        const struct mf_device_interface *cuda = NULL;
        enum mf_status status = mf_device_cuda(&cuda);
        if (status == MF_STATUS_OK) {
            status = mf_device_worker_open(cuda, &options, &service->worker);
        }
        bool opened = status == MF_STATUS_OK;
        (void)snprintf(service->no_gpu, sizeof(service->no_gpu), "%.500s",
                       opened ? "" : mf_status_text());
        if (opened || config->device == MF_CONFIG_DEVICE_CUDA) {
            return status;
        }
        mf_log_info("no GPU is used: %s", service->no_gpu);
    }
    return mf_device_worker_open(mf_device_host(), &options, &service->worker);
}

/* Whether a stored hardware is this machine, and was measured. */
static bool same_machine(const char *text, const char *identity, struct mf_hardware *out)
{
    struct mf_hardware stripped;
    char fingerprint[MF_HASH_TEXT_MAX];
    json_t *json = NULL;
    if (mf_json_parse(text, strlen(text), "stored hardware", &json) != MF_STATUS_OK) {
        return false;
    }
    bool good = mf_hardware_decode(json, out) == MF_STATUS_OK && out->measured;
    json_decref(json);
    if (!good) {
        return false;
    }
    mf_machine_identity(out, &stripped);
    mf_hardware_fingerprint(&stripped, fingerprint);
    return strcmp(fingerprint, identity) == 0;
}

/* Rates, not sizes: those are of today. */
static void take_rates(const struct mf_hardware *from, struct mf_hardware *to)
{
    for (int32_t i = 0; i < to->device_count && i < from->device_count; i++) {
        struct mf_hardware_device *device = &to->devices[i];
        const struct mf_hardware_device *known = &from->devices[i];
        device->matrix_flops = known->matrix_flops;
        device->memory_bytes_per_s = known->memory_bytes_per_s;
        device->copy_latency_ns = known->copy_latency_ns;
        if (!device->link_emulated) {
            device->h2d_bytes_per_s = known->h2d_bytes_per_s;
            device->d2h_bytes_per_s = known->d2h_bytes_per_s;
        }
    }
    to->host_bytes_per_s = from->host_bytes_per_s;
    to->contention = from->contention;
    to->measured = true;
}

void mf_startup_hardware(struct mf_service *service)
{
    struct mf_store_hardware_record *records = NULL;
    struct mf_hardware identity;
    struct mf_arena arena;
    char fingerprint[MF_HASH_TEXT_MAX];
    int32_t count = 0;
    mf_machine_describe(mf_device_worker_described(service->worker), service->config.host_memory,
                        &service->hardware);
    mf_machine_identity(&service->hardware, &identity);
    mf_hardware_fingerprint(&identity, fingerprint);
    mf_arena_init(&arena);
    if (mf_store_hardware_list(service->store, &arena, &records, &count) != MF_STATUS_OK) {
        mf_log_warn("the store does not say what was measured before: %s", mf_status_text());
        count = 0;
    }
    const struct mf_store_hardware_record *newest = NULL;
    struct mf_hardware known;
    for (int32_t i = 0; i < count; i++) {
        if ((newest == NULL || records[i].last_seen_unix_s > newest->last_seen_unix_s) &&
            same_machine(records[i].json, fingerprint, &known)) {
            newest = &records[i];
            take_rates(&known, &service->hardware);
        }
    }
    mf_arena_reset(&arena);
}

void mf_startup_rates(struct mf_service *service)
{
    if (service->hardware.measured) {
        if (mf_store_hardware_put(service->store, &service->hardware) != MF_STATUS_OK) {
            mf_log_warn("the hardware is not kept: %s", mf_status_text());
        }
    } else {
        mf_log_info("measuring the machine's rates");
        if (mf_tune_measure_rates(service, PROBE_SECONDS) != MF_STATUS_OK) {
            mf_log_warn("the machine's rates are not known, plans rest on cautious guesses: %s",
                        mf_status_text());
            return;
        }
    }
    if (!service->hardware.contention.measured) {
        mf_log_info("measuring what the machine's lanes cost each other");
        if (mf_tune_measure_contention(service) != MF_STATUS_OK) {
            mf_log_warn("what lanes cost each other is assumed: %s", mf_status_text());
        }
    }
}
