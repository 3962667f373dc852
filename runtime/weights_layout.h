/*
 * Where an element of a stored tensor lies in its unit's panels, and moving pieces between the two.
 *
 * Who calls it: weights, weights_init, weights_save; tests. Owner: the caller. Thread: any. Fails:
 * no; wrong pieces assert.
 *
 * A stored tensor is a matrix of lines, row-major: [rows, columns], or [columns, rows] when it is
 * transposed; a bias is one line of `rows`.
 */
#ifndef MF_RUNTIME_WEIGHTS_LAYOUT_H
#define MF_RUNTIME_WEIGHTS_LAYOUT_H

#include <stdbool.h>
#include <stdint.h>

#include "core/model.h"
#include "runtime/weights.h"

enum mf_weights_part { MF_WEIGHTS_PART_WEIGHT, MF_WEIGHTS_PART_BIAS, MF_WEIGHTS_PART_COUNT };

/* Lines `line` to line + line_count, of each `at_count` elements from `at`. Either whole lines or
 * one part of one line, so that pieces in order are the stored tensor in order. */
struct mf_weights_piece {
    int64_t line, line_count;
    int64_t at, at_count;
};

/* The unit's tensor of that part; name NULL when it has none. */
const struct mf_tensor *mf_weights_layout_tensor(const struct mf_unit *unit,
                                                 enum mf_weights_part part);
/* Its shape as Hugging Face stores it; returns the number of dimensions, 1 or 2. */
int32_t mf_weights_layout_shape(const struct mf_unit *unit, enum mf_weights_part part,
                                int64_t shape[static 2]);
/* Index into the unit's elements. */
int64_t mf_weights_layout_offset(const struct mf_unit *unit, int64_t row, int64_t column);
int64_t mf_weights_layout_bias_offset(const struct mf_unit *unit, int64_t row);

/* The piece after *piece (all zero = before the first) of at most `elements_max` elements; false at
 * the end. */
bool mf_weights_layout_next(const struct mf_unit *unit, enum mf_weights_part part,
                            int64_t elements_max, struct mf_weights_piece *piece);
/* Stored values of the piece to their places. */
void mf_weights_layout_scatter(const struct mf_unit *unit, enum mf_weights_part part,
                               const struct mf_weights_piece *piece, const float *values,
                               float *elements);
/* The piece's stored values as bf16. */
void mf_weights_layout_gather(const struct mf_unit *unit, enum mf_weights_part part,
                              const struct mf_weights_piece *piece,
                              const struct mf_weights_elements *elements, uint16_t *values);

#endif
