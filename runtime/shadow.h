/*
 * Shadows: one logical tensor with up to two storages, and which of them holds its present value.
 *
 * What: a state machine for each weight panel. The executor reports every read, write and copy as
 *   it issues them; one that would use a stale storage asserts, because a plan that does so is a
 *   fault of memferry and its result would be wrong.
 * Who calls it: executor only. Owner: the executor's array. Thread: the device worker's.
 */
#ifndef MF_RUNTIME_SHADOW_H
#define MF_RUNTIME_SHADOW_H

#include <stdbool.h>
#include <stdint.h>

#include "planner/step.h"

struct mf_shadow {
    int64_t version;                  /* of the logical tensor: rises with every write */
    int64_t versions[MF_SPACE_COUNT]; /* held by each storage; 0 = nothing */
};

static inline bool mf_shadow_valid(const struct mf_shadow *shadow, enum mf_space space)
{
    return shadow->version > 0 && shadow->versions[space] == shadow->version;
}

/* A new value was written into `space`; the other storage is stale from now on. */
static inline void mf_shadow_write(struct mf_shadow *shadow, enum mf_space space)
{
    shadow->versions[space] = ++shadow->version;
}

static inline void mf_shadow_read(const struct mf_shadow *shadow, enum mf_space space)
{
    MF_ASSERT(mf_shadow_valid(shadow, space));
}

/* The present value was copied from the other storage into `to`. */
static inline void mf_shadow_copy(struct mf_shadow *shadow, enum mf_space to)
{
    mf_shadow_read(shadow, to == MF_SPACE_HOST ? MF_SPACE_DEVICE : MF_SPACE_HOST);
    shadow->versions[to] = shadow->version;
}

#endif
