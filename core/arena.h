/*
 * A growing arena of chunks: many small allocations, one release.
 *
 * Who calls it: request handlers, parsers, builders of plans and graphs. Owner: whoever called
 * init; everything handed out dies at reset. Thread: one. Fails: never returns NULL; running out
 * of host memory here ends the process (sizes are bounded by limits.h before anything is built).
 */
#ifndef MF_CORE_ARENA_H
#define MF_CORE_ARENA_H

#include <stddef.h>

struct mf_arena_chunk;
struct mf_arena {
    struct mf_arena_chunk *chunks;
};

void mf_arena_init(struct mf_arena *arena);
void mf_arena_reset(struct mf_arena *arena);
/* `count * size` zeroed bytes, aligned to 16. The product is checked. */
void *mf_arena_alloc(struct mf_arena *arena, size_t count, size_t size);
char *mf_arena_string(struct mf_arena *arena, const char *text);
char *mf_arena_format(struct mf_arena *arena, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

#endif
