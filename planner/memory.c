/*
 * Placing buffers by lifetime: see memory.h.
 *
 * Several placements are made until one is close to the live peak; the smallest is kept. The first
 * walks time and puts each buffer into the best fitting hole, the second does so for long and for
 * short lives apart (both n log n in practice). In graphs that are not huge buffers are then placed
 * largest first and longest lived first, each at the lowest offset that no buffer alive at the same
 * time covers. All are deterministic.
 */
#include "planner/memory.h"

#include <stdlib.h>
#include <string.h>

/* Largest-first looks at all placed buffers for each one: quadratic, so not for huge graphs. */
#define QUADRATIC_MAX 6000
/* A first placement this close to the live peak is good enough: 1/256. */
#define SLACK_SHIFT 8
/* A life is long when it spans more than this share of the graph. */
#define LONG_SHARE 64

struct item {
    int64_t bytes;
    int64_t offset;
    int32_t first, last;
    int32_t buffer;
};

struct hole {
    int64_t begin, end;
};

static void *allocate(size_t count, size_t size)
{
    void *memory = calloc(count > 0 ? count : 1, size);
    MF_ASSERT(memory != NULL);
    return memory;
}

static bool floats(const struct mf_buffer *buffer, enum mf_space space)
{
    return buffer->space == space && !buffer->persistent && buffer->first_task >= 0;
}

static int by_first(const void *left, const void *right)
{
    const struct item *a = left;
    const struct item *b = right;
    if (a->first != b->first) {
        return a->first < b->first ? -1 : 1;
    }
    return a->buffer < b->buffer ? -1 : 1;
}

/* Larger first, then longer lived, then as they come. */
static int by_size(const void *left, const void *right)
{
    const struct item *a = left;
    const struct item *b = right;
    if (a->bytes != b->bytes) {
        return a->bytes > b->bytes ? -1 : 1;
    }
    int32_t a_life = a->last - a->first;
    int32_t b_life = b->last - b->first;
    if (a_life != b_life) {
        return a_life > b_life ? -1 : 1;
    }
    return a->buffer < b->buffer ? -1 : 1;
}

/* Longer lived first, then larger. */
static int by_life(const void *left, const void *right)
{
    const struct item *a = left;
    const struct item *b = right;
    int32_t a_life = a->last - a->first;
    int32_t b_life = b->last - b->first;
    if (a_life != b_life) {
        return a_life > b_life ? -1 : 1;
    }
    return by_size(left, right);
}

static int by_last(const void *left, const void *right)
{
    const struct item *a = *(struct item *const *)left;
    const struct item *b = *(struct item *const *)right;
    if (a->last != b->last) {
        return a->last < b->last ? -1 : 1;
    }
    return a->buffer < b->buffer ? -1 : 1;
}

/* Index of the first hole that begins at or after `begin`. */
static int32_t find_hole(const struct hole *holes, int32_t count, int64_t begin)
{
    int32_t low = 0;
    int32_t high = count;
    while (low < high) {
        int32_t middle = low + (high - low) / 2;
        if (holes[middle].begin < begin) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    return low;
}

static void give_back(struct hole *holes, int32_t *count, int64_t begin, int64_t end)
{
    int32_t at = find_hole(holes, *count, begin);
    bool left = at > 0 && holes[at - 1].end == begin;
    bool right = at < *count && holes[at].begin == end;
    size_t tail = (size_t)(*count - at);
    if (left && right) {
        holes[at - 1].end = holes[at].end;
        memmove(holes + at, holes + at + 1, (tail - 1) * sizeof(*holes));
        (*count)--;
    } else if (left) {
        holes[at - 1].end = end;
    } else if (right) {
        holes[at].begin = begin;
    } else {
        memmove(holes + at + 1, holes + at, tail * sizeof(*holes));
        holes[at] = (struct hole){begin, end};
        (*count)++;
    }
}

/* Takes `bytes` from the smallest hole that holds them, else from the top; the offset. */
static int64_t take(struct hole *holes, int32_t *count, int64_t *top, int64_t bytes)
{
    int32_t best = -1;
    for (int32_t i = 0; i < *count; i++) {
        int64_t size = holes[i].end - holes[i].begin;
        if (size >= bytes && (best < 0 || size < holes[best].end - holes[best].begin)) {
            best = i;
        }
    }
    if (best < 0) {
        bool at_top = *count > 0 && holes[*count - 1].end == *top;
        int64_t offset = at_top ? holes[*count - 1].begin : *top;
        *count -= at_top ? 1 : 0;
        *top = offset + bytes;
        return offset;
    }
    int64_t offset = holes[best].begin;
    holes[best].begin += bytes;
    if (holes[best].begin == holes[best].end) {
        memmove(holes + best, holes + best + 1, (size_t)(*count - best - 1) * sizeof(*holes));
        (*count)--;
    }
    return offset;
}

/* In the order of time; `items` sorted by first task. Returns the extent. */
static int64_t place_in_time(struct item *items, int32_t count)
{
    struct item **ends = allocate((size_t)count, sizeof(struct item *));
    struct hole *holes = allocate((size_t)count + 1, sizeof(*holes));
    int32_t hole_count = 0;
    int32_t ended = 0;
    int64_t top = 0;
    for (int32_t i = 0; i < count; i++) {
        ends[i] = &items[i];
    }
    qsort(ends, (size_t)count, sizeof(struct item *), by_last);
    for (int32_t i = 0; i < count; i++) {
        for (; ends[ended]->last < items[i].first; ended++) {
            int64_t begin = ends[ended]->offset;
            give_back(holes, &hole_count, begin, begin + ends[ended]->bytes);
        }
        items[i].offset = take(holes, &hole_count, &top, items[i].bytes);
    }
    free(holes);
    free(ends);
    return top;
}

/* In the given order, each at the lowest offset free for its whole life. Returns the extent. */
static int64_t place_in_order(struct item *items, int32_t count)
{
    /* Indices of placed items by offset. */
    int32_t *placed = allocate((size_t)count, sizeof(*placed));
    int64_t extent = 0;
    for (int32_t i = 0; i < count; i++) {
        struct item *item = &items[i];
        int64_t offset = 0;
        for (int32_t j = 0; j < i; j++) {
            const struct item *other = &items[placed[j]];
            if (other->last < item->first || other->first > item->last) {
                continue;
            }
            if (other->offset >= offset + item->bytes) {
                break;
            }
            if (other->offset + other->bytes > offset) {
                offset = other->offset + other->bytes;
            }
        }
        item->offset = offset;
        extent = offset + item->bytes > extent ? offset + item->bytes : extent;
        int32_t at = i;
        for (; at > 0 && items[placed[at - 1]].offset > offset; at--) {
            placed[at] = placed[at - 1];
        }
        placed[at] = i;
    }
    free(placed);
    return extent;
}

/* As place_in_time, but what lives long lies below what lives short: short lives leave holes that
 * long ones then cut up. Sorts `items` into the two classes. Returns the extent. */
static int64_t place_apart(struct item *items, int32_t count)
{
    struct item *sorted = allocate((size_t)count, sizeof(*sorted));
    int32_t span = 0;
    for (int32_t i = 0; i < count; i++) {
        span = items[i].last > span ? items[i].last : span;
    }
    int32_t long_count = 0;
    int32_t filled = 0;
    for (int pass = 0; pass < 2; pass++) {
        for (int32_t i = 0; i < count; i++) {
            bool lasts = items[i].last - items[i].first > span / LONG_SHARE;
            if (lasts == (pass == 0)) {
                sorted[filled++] = items[i];
            }
        }
        long_count = pass == 0 ? filled : long_count;
    }
    memcpy(items, sorted, (size_t)count * sizeof(*items));
    free(sorted);
    int64_t below = place_in_time(items, long_count);
    int64_t above = place_in_time(items + long_count, count - long_count);
    for (int32_t i = long_count; i < count; i++) {
        items[i].offset += below;
    }
    return below + above;
}

/* Counts time in tasks that begin or end a life: tasks that touch only persistent buffers, such as
 * updates of the step before, then change no placement. */
static void rank_times(struct item *items, int32_t count)
{
    int32_t last = -1;
    for (int32_t i = 0; i < count; i++) {
        last = items[i].last > last ? items[i].last : last;
    }
    int32_t *ranks = allocate((size_t)last + 1, sizeof(*ranks));
    for (int32_t i = 0; i < count; i++) {
        ranks[items[i].first] = ranks[items[i].last] = 1;
    }
    for (int32_t i = 0, rank = 0; i <= last; i++) {
        rank += ranks[i];
        ranks[i] = rank;
    }
    for (int32_t i = 0; i < count; i++) {
        items[i].first = ranks[items[i].first];
        items[i].last = ranks[items[i].last];
    }
    free(ranks);
}

static void keep(const struct item *items, int32_t count, struct mf_buffer *buffers, int64_t base)
{
    for (int32_t i = 0; i < count; i++) {
        buffers[items[i].buffer].offset = base + items[i].offset;
    }
}

/* The shared part of `space`, from `base` on; its extent. */
static int64_t place_shared(struct mf_buffer *buffers, int32_t count, enum mf_space space,
                            int64_t base, int64_t live_peak)
{
    static int (*const orders[])(const void *, const void *) = {by_size, by_life};
    struct item *items = allocate((size_t)count, sizeof(*items));
    int32_t item_count = 0;
    for (int32_t i = 0; i < count; i++) {
        if (floats(&buffers[i], space)) {
            items[item_count++] = (struct item){.bytes = buffers[i].bytes,
                                                .first = buffers[i].first_task,
                                                .last = buffers[i].last_task,
                                                .buffer = i};
        }
    }
    rank_times(items, item_count);
    qsort(items, (size_t)item_count, sizeof(*items), by_first);
    int64_t best = place_in_time(items, item_count);
    int64_t enough = live_peak - base;
    enough += enough >> SLACK_SHIFT;
    keep(items, item_count, buffers, base);
    if (best > enough) {
        int64_t extent = place_apart(items, item_count);
        if (extent < best) {
            best = extent;
            keep(items, item_count, buffers, base);
        }
    }
    for (size_t i = 0; i < sizeof(orders) / sizeof(orders[0]); i++) {
        if (best <= enough || item_count > QUADRATIC_MAX) {
            break;
        }
        qsort(items, (size_t)item_count, sizeof(*items), orders[i]);
        int64_t extent = place_in_order(items, item_count);
        if (extent < best) {
            best = extent;
            keep(items, item_count, buffers, base);
        }
    }
    free(items);
    return best;
}

void mf_memory_place(struct mf_buffer *buffers, int32_t count,
                     int64_t space_bytes[static MF_SPACE_COUNT])
{
    for (int space = 0; space < MF_SPACE_COUNT; space++) {
        int64_t base = 0;
        for (int32_t i = 0; i < count; i++) {
            if ((int)buffers[i].space != space) {
                continue;
            }
            buffers[i].offset = base;
            if (buffers[i].persistent) {
                base +=
                    (buffers[i].bytes + MF_BUFFER_ALIGN - 1) / MF_BUFFER_ALIGN * MF_BUFFER_ALIGN;
            }
        }
        int64_t live_peak = mf_memory_live_peak(buffers, count, (enum mf_space)space);
        space_bytes[space] =
            base + place_shared(buffers, count, (enum mf_space)space, base, live_peak);
    }
}

int64_t mf_memory_live_peak(const struct mf_buffer *buffers, int32_t count, enum mf_space space)
{
    int32_t last = -1;
    int64_t live = 0;
    for (int32_t i = 0; i < count; i++) {
        if (buffers[i].space == space && buffers[i].persistent) {
            live += buffers[i].bytes;
        } else if (floats(&buffers[i], space) && buffers[i].last_task > last) {
            last = buffers[i].last_task;
        }
    }
    int64_t *change = allocate((size_t)last + 2, sizeof(*change));
    for (int32_t i = 0; i < count; i++) {
        if (floats(&buffers[i], space)) {
            change[buffers[i].first_task] += buffers[i].bytes;
            change[buffers[i].last_task + 1] -= buffers[i].bytes;
        }
    }
    int64_t peak = live;
    for (int32_t i = 0; i <= last; i++) {
        live += change[i];
        peak = live > peak ? live : peak;
    }
    free(change);
    return peak;
}
