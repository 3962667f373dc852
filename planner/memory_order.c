/*
 * The edges that shared memory needs: see mf_memory_order() in memory.h.
 *
 * Buffers are walked in the order of their first task over a map from addresses to the buffer
 * that last lay there. A buffer waits only for those directly before it: they in turn waited for
 * the ones before them, on every lane they used, and lanes are first in, first out.
 */
#include <stdlib.h>
#include <string.h>

#include "planner/memory.h"

struct extent {
    int64_t begin, end;
    int32_t buffer;
};

/* Extents by address, none overlapping. */
struct map {
    struct extent *extents;
    int32_t count;
};

struct entry {
    int32_t first;
    int32_t buffer;
};

static int by_first(const void *left, const void *right)
{
    const struct entry *a = left;
    const struct entry *b = right;
    if (a->first != b->first) {
        return a->first < b->first ? -1 : 1;
    }
    return a->buffer < b->buffer ? -1 : 1;
}

/* The first extent that ends behind `begin`. */
static int32_t find(const struct map *map, int64_t begin)
{
    int32_t low = 0;
    int32_t high = map->count;
    while (low < high) {
        int32_t middle = low + (high - low) / 2;
        if (map->extents[middle].end <= begin) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    return low;
}

static void wait_for(struct mf_step *step, const struct mf_buffer *before,
                     const int32_t first_access[MF_LANE_COUNT])
{
    for (int lane = 0; lane < MF_LANE_COUNT; lane++) {
        if (first_access[lane] < 0) {
            continue;
        }
        struct mf_task *task = &step->tasks[first_access[lane]];
        for (int other = 0; other < MF_LANE_COUNT; other++) {
            if (other != lane && before->last_access[other] > task->depends[other]) {
                task->depends[other] = before->last_access[other];
            }
        }
    }
}

/* Replaces what lies in [begin, end) by `buffer`; cut extents keep their outer parts. */
static void put(struct map *map, int32_t from, int32_t to, int64_t begin, int64_t end,
                int32_t buffer)
{
    struct extent fresh[3];
    int32_t fresh_count = 0;
    if (from < to && map->extents[from].begin < begin) {
        fresh[fresh_count] = map->extents[from];
        fresh[fresh_count++].end = begin;
    }
    fresh[fresh_count++] = (struct extent){begin, end, buffer};
    if (from < to && map->extents[to - 1].end > end) {
        fresh[fresh_count] = map->extents[to - 1];
        fresh[fresh_count++].begin = end;
    }
    memmove(map->extents + from + fresh_count, map->extents + to,
            (size_t)(map->count - to) * sizeof(*map->extents));
    memcpy(map->extents + from, fresh, (size_t)fresh_count * sizeof(*fresh));
    map->count += fresh_count - (to - from);
}

static void order_space(struct mf_step *step, const int32_t (*first_access)[MF_LANE_COUNT],
                        enum mf_space space)
{
    size_t count = (size_t)step->buffer_count;
    struct entry *entries = calloc(count + 1, sizeof(*entries));
    /* Each buffer adds at most two extents: itself, and the far part of one it cuts in two. */
    struct map map = {.extents = calloc(2 * count + 3, sizeof(*map.extents))};
    MF_ASSERT(entries != NULL && map.extents != NULL);
    int32_t entry_count = 0;
    for (int32_t i = 0; i < step->buffer_count; i++) {
        const struct mf_buffer *buffer = &step->buffers[i];
        if (buffer->space == space && !buffer->persistent && buffer->first_task >= 0 &&
            buffer->bytes > 0) {
            entries[entry_count++] = (struct entry){buffer->first_task, i};
        }
    }
    qsort(entries, (size_t)entry_count, sizeof(*entries), by_first);
    for (int32_t i = 0; i < entry_count; i++) {
        int32_t index = entries[i].buffer;
        int64_t begin = step->buffers[index].offset;
        int64_t end = begin + step->buffers[index].bytes;
        int32_t from = find(&map, begin);
        int32_t to = from;
        for (; to < map.count && map.extents[to].begin < end; to++) {
            wait_for(step, &step->buffers[map.extents[to].buffer], first_access[index]);
        }
        put(&map, from, to, begin, end, index);
    }
    free(map.extents);
    free(entries);
}

void mf_memory_order(struct mf_step *step, const int32_t (*first_access)[MF_LANE_COUNT])
{
    for (int space = 0; space < MF_SPACE_COUNT; space++) {
        order_space(step, first_access, (enum mf_space)space);
    }
}
