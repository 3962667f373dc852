/*
 * The order of sequences in an epoch: a permutation that is computed place by place, so that a
 * resumed run finds its place at once.
 *
 * Who calls it: tokens.c. Owner: nothing is kept. Thread: any. Fails: never.
 */
#ifndef MF_RUNTIME_TOKENS_ORDER_H
#define MF_RUNTIME_TOKENS_ORDER_H

#include <stdint.h>

/* Which of `count` > 0 sequences comes at `place` in 0..count - 1 of the epoch. */
int64_t mf_tokens_order_at(uint64_t seed, int64_t epoch, int64_t place, int64_t count);

#endif
