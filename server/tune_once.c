/* What two callers want at the same time is done once: see tune_internal.h. */
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "server/tune_internal.h"

#define WAIT_NS 50000000 /* between two looks at whether a waiting caller gave up */

static int find_making(const struct mf_tune *tune, const char *key)
{
    int i = 0;
    while (i < MF_TUNE_MAKING_MAX && strcmp(tune->making[i], key) != 0) {
        i++;
    }
    return i;
}

enum mf_status mf_tune_once_begin(struct mf_tune *tune, const struct mf_tune_request *request,
                                  const char *key, bool *waited, int *slot)
{
    enum mf_status status = MF_STATUS_OK;
    *waited = false;
    pthread_mutex_lock(&tune->lock);
    while (find_making(tune, key) < MF_TUNE_MAKING_MAX && status == MF_STATUS_OK) {
        struct timespec until;
        clock_gettime(CLOCK_REALTIME, &until);
        until.tv_nsec += WAIT_NS;
        until.tv_sec += until.tv_nsec / 1000000000;
        until.tv_nsec %= 1000000000;
        *waited = true;
        (void)pthread_cond_timedwait(&tune->made, &tune->lock, &until);
        if (request->cancelled != NULL && request->cancelled(request->context)) {
            status =
                mf_status_set(MF_STATUS_CANCELLED,
                              "waiting for another caller's plan or measurement was cancelled");
        }
    }
    *slot = find_making(tune, "");
    if (status == MF_STATUS_OK && *slot == MF_TUNE_MAKING_MAX) {
        status = mf_status_set_reason(MF_STATUS_BUSY, "PLANS_FULL",
                                      "%d plans are being made already, try again later",
                                      MF_TUNE_MAKING_MAX);
    }
    if (status == MF_STATUS_OK) {
        (void)snprintf(tune->making[*slot], sizeof(tune->making[*slot]), "%s", key);
    }
    pthread_mutex_unlock(&tune->lock);
    return status;
}

void mf_tune_once_end(struct mf_tune *tune, int slot)
{
    pthread_mutex_lock(&tune->lock);
    tune->making[slot][0] = 0;
    pthread_cond_broadcast(&tune->made);
    pthread_mutex_unlock(&tune->lock);
}

enum mf_status mf_tune_once_measure(struct mf_service *service,
                                    const struct mf_tune_request *request, int32_t *needed,
                                    int32_t *measured)
{
    char text[MF_HASH_TEXT_MAX + 64];
    char key[MF_HASH_TEXT_MAX];
    bool waited = false;
    int slot = 0;
    int length = snprintf(text, sizeof(text), "measure %s %d %d", request->model->fingerprint,
                          request->workload.micro_batch, request->workload.seq_len);
    mf_hash(text, (size_t)length, key);
    MF_TRY(mf_tune_once_begin(service->tune, request, key, &waited, &slot));
    enum mf_status status = mf_tune_measure(service, request, needed, measured);
    mf_tune_once_end(service->tune, slot);
    return status;
}
