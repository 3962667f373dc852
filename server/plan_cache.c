/* Answers by the bytes of the request: see plan_cache.h. */
#include "server/plan_cache.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/hash.h"
#include "core/status.h"

/* Requests are compared as they are: with so few entries that beats any hash. */

#define KEPT 64
#define ANSWER_BYTES_MAX (1u << 20)
#define STAMP_MAX 128

struct entry {
    uint8_t *request; /* NULL = free */
    size_t request_bytes;
    char stamp[STAMP_MAX];
    char plan_id[MF_HASH_TEXT_MAX];
    uint64_t generation;
    uint64_t last_used;
    int64_t uses;
    int64_t created_unix_s;
    uint8_t *answer;
    size_t bytes;
};

struct mf_plan_cache {
    pthread_mutex_t lock;
    uint64_t clock;
    struct entry entries[KEPT];
};

struct mf_plan_cache *mf_plan_cache_open(void)
{
    struct mf_plan_cache *cache = calloc(1, sizeof(*cache));
    MF_ASSERT(cache != NULL);
    pthread_mutex_init(&cache->lock, NULL);
    return cache;
}

void mf_plan_cache_close(struct mf_plan_cache *cache)
{
    if (cache == NULL) {
        return;
    }
    for (int i = 0; i < KEPT; i++) {
        free(cache->entries[i].answer);
        free(cache->entries[i].request);
    }
    pthread_mutex_destroy(&cache->lock);
    free(cache);
}

static struct entry *find(struct mf_plan_cache *cache, const struct mf_plan_cache_key *key)
{
    for (int i = 0; i < KEPT; i++) {
        struct entry *entry = &cache->entries[i];
        if (entry->request != NULL && entry->request_bytes == key->bytes &&
            memcmp(entry->request, key->request, key->bytes) == 0 &&
            strcmp(entry->stamp, key->stamp) == 0) {
            return entry;
        }
    }
    return NULL;
}

static uint8_t *copy_of(const uint8_t *bytes, size_t count, size_t spare)
{
    uint8_t *copy = malloc(count + spare + 1);
    MF_ASSERT(copy != NULL);
    memcpy(copy, bytes, count);
    return copy;
}

/* A free entry, else the one not used for longest. */
static struct entry *oldest(struct mf_plan_cache *cache)
{
    struct entry *entry = &cache->entries[0];
    for (int i = 0; i < KEPT && entry->request != NULL; i++) {
        if (cache->entries[i].last_used < entry->last_used) {
            entry = &cache->entries[i];
        }
    }
    return entry;
}

void mf_plan_cache_put(struct mf_plan_cache *cache, const struct mf_plan_cache_key *key,
                       const char *plan_id, int64_t created_unix_s, const uint8_t *answer,
                       size_t bytes)
{
    if (bytes > ANSWER_BYTES_MAX || strlen(key->stamp) >= STAMP_MAX) {
        return;
    }
    uint8_t *answer_copy = copy_of(answer, bytes, 0);
    uint8_t *request_copy = copy_of(key->request, key->bytes, 0);
    pthread_mutex_lock(&cache->lock);
    struct entry *entry = find(cache, key);
    entry = entry != NULL ? entry : oldest(cache);
    bool same = strcmp(entry->plan_id, plan_id) == 0;
    free(entry->answer);
    free(entry->request);
    *entry = (struct entry){.request = request_copy,
                            .request_bytes = key->bytes,
                            .generation = key->generation,
                            .last_used = ++cache->clock,
                            .uses = same ? entry->uses : 0,
                            .created_unix_s = created_unix_s,
                            .answer = answer_copy,
                            .bytes = bytes};
    (void)snprintf(entry->stamp, sizeof(entry->stamp), "%s", key->stamp);
    (void)snprintf(entry->plan_id, sizeof(entry->plan_id), "%s", plan_id);
    pthread_mutex_unlock(&cache->lock);
}

bool mf_plan_cache_get(struct mf_plan_cache *cache, const struct mf_plan_cache_key *key,
                       size_t spare, uint8_t **answer, size_t *bytes, int64_t *created_unix_s)
{
    bool found = false;
    pthread_mutex_lock(&cache->lock);
    struct entry *entry = find(cache, key);
    if (entry != NULL && entry->generation == key->generation) {
        *answer = copy_of(entry->answer, entry->bytes, spare);
        *bytes = entry->bytes;
        *created_unix_s = entry->created_unix_s;
        entry->uses++;
        entry->last_used = ++cache->clock;
        found = true;
    }
    pthread_mutex_unlock(&cache->lock);
    return found;
}

int64_t mf_plan_cache_uses(struct mf_plan_cache *cache, const char *plan_id)
{
    int64_t uses = 0;
    pthread_mutex_lock(&cache->lock);
    for (int i = 0; i < KEPT; i++) {
        uses += strcmp(cache->entries[i].plan_id, plan_id) == 0 ? cache->entries[i].uses : 0;
    }
    pthread_mutex_unlock(&cache->lock);
    return uses;
}
