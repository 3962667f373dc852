/* The table of rotary embeddings, with Llama 3's frequency scaling. Pure; never fails. */
#ifndef MF_RUNTIME_ROPE_H
#define MF_RUNTIME_ROPE_H

#include "core/model.h"

/* Fills float[seq_len][head_dim / 2][2] with {cos, sin} of position times frequency. */
void mf_rope_table(const struct mf_model *model, int64_t seq_len, float *out);

#endif
