/*
 * Answers to GetPlan by the bytes of the request: a hit costs a comparison and a copy.
 *
 * What: the last answers from the store, packed, without their age. An entry holds while no plan
 * and no measurement has changed (the generation) and the model's file is the same (the stamp). Who
 * calls it: service_plan.c. Owner: open/close; bytes that are got are the caller's to free. Thread:
 * any. Fails: no; what does not fit is not kept.
 */
#ifndef MF_SERVER_PLAN_CACHE_H
#define MF_SERVER_PLAN_CACHE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct mf_plan_cache;

/* What an answer is for. */
struct mf_plan_cache_key {
    const uint8_t *request;
    size_t bytes;
    uint64_t generation;
    const char *stamp; /* of the model's file; "" = none */
};

struct mf_plan_cache *mf_plan_cache_open(void);
void mf_plan_cache_close(struct mf_plan_cache *cache);
/* `created_unix_s` is the plan's. */
void mf_plan_cache_put(struct mf_plan_cache *cache, const struct mf_plan_cache_key *key,
                       const char *plan_id, int64_t created_unix_s, const uint8_t *answer,
                       size_t bytes);
/* False on a miss. `spare` bytes are left free behind the answer. Counts the use. */
bool mf_plan_cache_get(struct mf_plan_cache *cache, const struct mf_plan_cache_key *key,
                       size_t spare, uint8_t **answer, size_t *bytes, int64_t *created_unix_s);
/* Uses of the plan that were answered from here and that the store does not know of. */
int64_t mf_plan_cache_uses(struct mf_plan_cache *cache, const char *plan_id);

#endif
