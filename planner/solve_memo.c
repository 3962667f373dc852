/* Scores by plan, in an open hash table: see solve_memo.h. */
#include "planner/solve_memo.h"

#include <stdlib.h>

#define CAPACITY_MIN 64

/* The finaliser of splitmix64. */
static uint64_t mix(uint64_t hash, uint64_t value)
{
    uint64_t z = (hash ^ value) + 0x9e3779b97f4a7c15ull;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
    return z ^ (z >> 31);
}

uint64_t mf_solve_memo_key(const struct mf_plan *plan)
{
    uint64_t hash = mix((uint64_t)plan->ring_slots, (uint64_t)plan->deferred_blocks);
    hash = mix(hash, plan->speculate ? 1 : 0);
    for (int32_t i = 0; i < plan->block_count; i++) {
        hash = mix(hash, (uint64_t)plan->activations[i]);
    }
    for (int32_t i = 0; i < plan->unit_count; i++) {
        const struct mf_unit_decision *unit = &plan->units[i];
        hash = mix(hash, (uint64_t)unit->forward | (uint64_t)unit->backward << 8 |
                             (uint64_t)unit->gradient << 16 | (uint64_t)unit->optimizer << 24);
    }
    return hash == 0 ? 1 : hash;
}

/* Where the key is, or the free entry where it belongs. */
static struct mf_solve_memo_entry *slot_of(const struct mf_solve_memo *memo, uint64_t key)
{
    uint64_t at = key & (memo->capacity - 1);
    while (memo->entries[at].key != 0 && memo->entries[at].key != key) {
        at = (at + 1) & (memo->capacity - 1);
    }
    return &memo->entries[at];
}

const struct mf_solve_score *mf_solve_memo_find(const struct mf_solve_memo *memo, uint64_t key)
{
    if (memo->capacity == 0) {
        return NULL;
    }
    const struct mf_solve_memo_entry *entry = slot_of(memo, key);
    return entry->key == key ? &entry->score : NULL;
}

static void grow(struct mf_solve_memo *memo)
{
    struct mf_solve_memo old = *memo;
    memo->capacity = old.capacity == 0 ? CAPACITY_MIN : old.capacity * 2;
    memo->entries = calloc(memo->capacity, sizeof(*memo->entries));
    MF_ASSERT(memo->entries != NULL);
    for (uint64_t i = 0; i < old.capacity; i++) {
        if (old.entries[i].key != 0) {
            *slot_of(memo, old.entries[i].key) = old.entries[i];
        }
    }
    free(old.entries);
}

void mf_solve_memo_put(struct mf_solve_memo *memo, uint64_t key, const struct mf_solve_score *score)
{
    if (2 * (memo->count + 1) > memo->capacity) {
        grow(memo);
    }
    struct mf_solve_memo_entry *entry = slot_of(memo, key);
    memo->count += entry->key == 0 ? 1 : 0;
    *entry = (struct mf_solve_memo_entry){.key = key, .score = *score};
}

void mf_solve_memo_reset(struct mf_solve_memo *memo)
{
    free(memo->entries);
    *memo = (struct mf_solve_memo){0};
}
