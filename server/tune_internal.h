/* Private to server/tune*.c: plans being made, and the profile in memory. See tune.h. */
#ifndef MF_SERVER_TUNE_INTERNAL_H
#define MF_SERVER_TUNE_INTERNAL_H

#include <pthread.h>

#include "core/hash.h"
#include "core/profile.h"
#include "server/tune.h"

#define MF_TUNE_MAKING_MAX 64 /* different plans being made at the same time */

struct mf_tune {
    struct mf_service *service;
    struct mf_hardware identity; /* what profiles are kept by */
    char identity_fingerprint[MF_HASH_TEXT_MAX];
    pthread_mutex_t lock; /* guards what follows; never held while solving or measuring */
    pthread_cond_t made;
    char making[MF_TUNE_MAKING_MAX][MF_HASH_TEXT_MAX]; /* keys; "" = free */
    struct mf_profile profile;
    uint64_t plan_generation;
    uint64_t profile_generation;
};

/* Waits while someone else does what `key` names; then it is ours to do, in *slot, until the end.
 * MF_STATUS_BUSY when too much is being done. tune_once.c. */
enum mf_status mf_tune_once_begin(struct mf_tune *tune, const struct mf_tune_request *request,
                                  const char *key, bool *waited, int *slot) MF_MUST_USE;
void mf_tune_once_end(struct mf_tune *tune, int slot);

/* Why a plan was not in the store: the nearest of what is there. tune_miss.c. */
#define MF_TUNE_MISS_MAX 160
struct mf_tune_miss {
    const char *model_fingerprint;
    enum mf_strategy strategy;
    const struct mf_hardware *hardware;
    const char *estimate_key; /* under which an estimate would be */
};
void mf_tune_miss_explain(struct mf_service *service, const struct mf_tune_miss *miss,
                          char out[static MF_TUNE_MISS_MAX]);

/* The model of a family, or of a list of units ("units"), from its stored config. tune_find.c. */
enum mf_status mf_tune_find_build(const char *family, const char *name, json_t *config,
                                  struct mf_model *out) MF_MUST_USE;

/* Seconds on a clock that never goes back. */
double mf_tune_measure_clock(void);

#endif
