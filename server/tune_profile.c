/* What is measured, in memory and in the store: see tune.h. */
#include <stdio.h>
#include <string.h>

#include "core/log.h"
#include "server/tune_internal.h"

void mf_tune_profile(struct mf_service *service, struct mf_profile *out)
{
    struct mf_tune *tune = service->tune;
    mf_profile_init(out);
    pthread_mutex_lock(&tune->lock);
    for (int32_t i = 0; i < tune->profile.count; i++) {
        mf_profile_put(out, &tune->profile.entries[i]);
    }
    out->measured_at_unix_s = tune->profile.measured_at_unix_s;
    out->complete = tune->profile.complete;
    memcpy(out->method, tune->profile.method, sizeof(out->method));
    memcpy(out->hardware_fingerprint, tune->identity_fingerprint,
           sizeof(out->hardware_fingerprint));
    pthread_mutex_unlock(&tune->lock);
}

uint64_t mf_tune_profile_generation(struct mf_service *service)
{
    pthread_mutex_lock(&service->tune->lock);
    uint64_t generation = service->tune->profile_generation;
    pthread_mutex_unlock(&service->tune->lock);
    return generation;
}

void mf_tune_profile_learn(struct mf_service *service, const struct mf_profile *measured)
{
    struct mf_tune *tune = service->tune;
    struct mf_profile stored = *measured; /* borrows the entries */
    memcpy(stored.hardware_fingerprint, tune->identity_fingerprint,
           sizeof(stored.hardware_fingerprint));
    pthread_mutex_lock(&tune->lock);
    for (int32_t i = 0; i < measured->count; i++) {
        if (tune->profile.count < MF_PROFILE_ENTRIES_MAX) {
            mf_profile_put(&tune->profile, &measured->entries[i]);
        }
    }
    tune->profile.measured_at_unix_s = measured->measured_at_unix_s;
    tune->profile.complete = measured->complete;
    memcpy(tune->profile.method, stored.method, sizeof(stored.method));
    tune->profile_generation++;
    pthread_mutex_unlock(&tune->lock);
    if (mf_store_profile_merge(service->store, &tune->identity, &stored) != MF_STATUS_OK) {
        mf_log_warn("measurements are not kept: %s", mf_status_text());
    }
}

/* The one stored hardware whose fingerprint begins with `prefix`. */
static enum mf_status find_hardware(struct mf_service *service, const char *prefix,
                                    struct mf_arena *arena, const char **out)
{
    struct mf_store_profile_record *records = NULL;
    int32_t count = 0;
    size_t length = strlen(prefix);
    *out = NULL;
    if (length < 6) {
        return mf_status_set(MF_STATUS_INVALID,
                             "hardware_fingerprint: at least 6 digits, found \"%s\"", prefix);
    }
    MF_TRY(mf_store_profile_list(service->store, arena, &records, &count));
    for (int32_t i = 0; i < count; i++) {
        const char *fingerprint = records[i].hardware_fingerprint;
        if (strncmp(fingerprint, prefix, length) != 0) {
            continue;
        }
        if (*out != NULL && strcmp(*out, fingerprint) != 0) {
            return mf_status_set(MF_STATUS_INVALID, "more than one profile begins with %.64s",
                                 prefix);
        }
        *out = fingerprint;
    }
    return *out != NULL ? MF_STATUS_OK
                        : mf_status_set(MF_STATUS_NOT_FOUND,
                                        "no profile of hardware %.64s in the store", prefix);
}

enum mf_status mf_tune_profile_forget(struct mf_service *service, const char *fingerprint)
{
    struct mf_tune *tune = service->tune;
    struct mf_arena arena;
    const char *full = NULL;
    mf_arena_init(&arena);
    enum mf_status status = find_hardware(service, fingerprint, &arena, &full);
    if (status == MF_STATUS_OK) {
        status = mf_store_profile_delete(service->store, full);
    }
    if (status == MF_STATUS_OK && strcmp(full, tune->identity_fingerprint) == 0) {
        pthread_mutex_lock(&tune->lock);
        mf_profile_reset(&tune->profile);
        tune->profile_generation++;
        pthread_mutex_unlock(&tune->lock);
    }
    mf_arena_reset(&arena);
    return status;
}
