/* Answers by the bytes of the request: see plan_cache.h. */
#include "server/plan_cache.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/hash.h"
#include "core/status.h"

#define KEPT 64
#define ANSWER_BYTES_MAX (1u << 20)

struct entry {
    char name[MF_HASH_TEXT_MAX]; /* of request and stamp; "" = free */
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
    }
    pthread_mutex_destroy(&cache->lock);
    free(cache);
}

static void name_of(const struct mf_plan_cache_key *key, char out[static MF_HASH_TEXT_MAX])
{
    size_t stamp = strlen(key->stamp) + 1;
    uint8_t *text = malloc(stamp + key->bytes);
    MF_ASSERT(text != NULL);
    memcpy(text, key->stamp, stamp);
    memcpy(text + stamp, key->request, key->bytes);
    mf_hash(text, stamp + key->bytes, out);
    free(text);
}

static struct entry *find(struct mf_plan_cache *cache, const char *name)
{
    for (int i = 0; i < KEPT; i++) {
        if (strcmp(cache->entries[i].name, name) == 0) {
            return &cache->entries[i];
        }
    }
    return NULL;
}

void mf_plan_cache_put(struct mf_plan_cache *cache, const struct mf_plan_cache_key *key,
                       const char *plan_id, int64_t created_unix_s, const uint8_t *answer,
                       size_t bytes)
{
    char name[MF_HASH_TEXT_MAX];
    if (bytes > ANSWER_BYTES_MAX) {
        return;
    }
    uint8_t *copy = malloc(bytes + 1);
    MF_ASSERT(copy != NULL);
    memcpy(copy, answer, bytes);
    name_of(key, name);
    pthread_mutex_lock(&cache->lock);
    struct entry *entry = find(cache, name);
    for (int i = 0; i < KEPT && entry == NULL; i++) {
        entry = cache->entries[i].name[0] == 0 ? &cache->entries[i] : NULL;
    }
    if (entry == NULL) {
        entry = &cache->entries[0];
        for (int i = 1; i < KEPT; i++) {
            entry = cache->entries[i].last_used < entry->last_used ? &cache->entries[i] : entry;
        }
    }
    bool same = strcmp(entry->plan_id, plan_id) == 0;
    free(entry->answer);
    *entry = (struct entry){.generation = key->generation,
                            .last_used = ++cache->clock,
                            .uses = same ? entry->uses : 0,
                            .created_unix_s = created_unix_s,
                            .answer = copy,
                            .bytes = bytes};
    memcpy(entry->name, name, sizeof(name));
    (void)snprintf(entry->plan_id, sizeof(entry->plan_id), "%s", plan_id);
    pthread_mutex_unlock(&cache->lock);
}

bool mf_plan_cache_get(struct mf_plan_cache *cache, const struct mf_plan_cache_key *key,
                       size_t spare, uint8_t **answer, size_t *bytes, int64_t *created_unix_s)
{
    char name[MF_HASH_TEXT_MAX];
    bool found = false;
    name_of(key, name);
    pthread_mutex_lock(&cache->lock);
    struct entry *entry = find(cache, name);
    if (entry != NULL && entry->generation == key->generation) {
        *answer = malloc(entry->bytes + spare);
        MF_ASSERT(*answer != NULL);
        memcpy(*answer, entry->answer, entry->bytes);
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
