/*
 * Drawing the next token from logits. Pure: the same seed and counter give the same token. The
 * caller owns everything; any thread. Fails: MF_STATUS_INVALID when a logit is not finite.
 */
#ifndef MF_RUNTIME_SAMPLE_H
#define MF_RUNTIME_SAMPLE_H

#include <stdint.h>

#include "core/status.h"

/* temperature 0: the largest logit, the lowest id among equals. Else softmax of logits /
 * temperature over the top_k largest (0 = all; ties at the border count as in). `counter` is the
 * position of the token, so that a text depends on seed and prompt alone. */
enum mf_status mf_sample(const float *logits, int64_t vocab, double temperature, int32_t top_k,
                         uint64_t seed, uint64_t counter, int32_t *out) MF_MUST_USE;

#endif
