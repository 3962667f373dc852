/* Chunked arena: see arena.h. */
#include "core/arena.h"

#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/status.h"

#define CHUNK_BYTES ((size_t)64 << 10)

struct mf_arena_chunk {
    struct mf_arena_chunk *next;
    size_t used;
    size_t size;
    _Alignas(16) unsigned char bytes[];
};

void mf_arena_init(struct mf_arena *arena)
{
    arena->chunks = NULL;
}

void mf_arena_reset(struct mf_arena *arena)
{
    struct mf_arena_chunk *chunk = arena->chunks;
    while (chunk != NULL) {
        struct mf_arena_chunk *next = chunk->next;
        free(chunk);
        chunk = next;
    }
    arena->chunks = NULL;
}

void *mf_arena_alloc(struct mf_arena *arena, size_t count, size_t size)
{
    size_t bytes = 0;
    MF_ASSERT(!__builtin_mul_overflow(count, size, &bytes) && bytes < SIZE_MAX / 2);
    bytes = (bytes + 15) & ~(size_t)15;
    struct mf_arena_chunk *chunk = arena->chunks;
    if (chunk == NULL || chunk->size - chunk->used < bytes) {
        size_t chunk_bytes = bytes > CHUNK_BYTES ? bytes : CHUNK_BYTES;
        struct mf_arena_chunk *fresh = calloc(1, sizeof(*fresh) + chunk_bytes);
        MF_ASSERT(fresh != NULL);
        fresh->size = chunk_bytes;
        fresh->next = chunk;
        arena->chunks = fresh;
        chunk = fresh;
    }
    void *memory = chunk->bytes + chunk->used;
    chunk->used += bytes;
    return memory;
}

char *mf_arena_string(struct mf_arena *arena, const char *text)
{
    size_t length = strlen(text) + 1;
    char *copy = mf_arena_alloc(arena, length, 1);
    memcpy(copy, text, length);
    return copy;
}

char *mf_arena_format(struct mf_arena *arena, const char *format, ...)
{
    va_list arguments;
    va_list again;
    va_start(arguments, format);
    va_copy(again, arguments);
    int length = vsnprintf(NULL, 0, format, arguments);
    va_end(arguments);
    MF_ASSERT(length >= 0);
    char *text = mf_arena_alloc(arena, (size_t)length + 1, 1);
    vsnprintf(text, (size_t)length + 1, format, again);
    va_end(again);
    return text;
}
