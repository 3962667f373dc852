/* Stored tensors and panels: see weights_layout.h. */
#include "runtime/weights_layout.h"

#include <string.h>

#include "runtime/host/bf16.h"

const struct mf_tensor *mf_weights_layout_tensor(const struct mf_unit *unit,
                                                 enum mf_weights_part part)
{
    return part == MF_WEIGHTS_PART_WEIGHT ? &unit->weight : &unit->bias;
}

int32_t mf_weights_layout_shape(const struct mf_unit *unit, enum mf_weights_part part,
                                int64_t shape[static 2])
{
    shape[0] = unit->rows;
    shape[1] = 1;
    if (part == MF_WEIGHTS_PART_BIAS || unit->kind == MF_UNIT_NORM) {
        return 1;
    }
    shape[1] = unit->columns;
    if (unit->weight.transposed) {
        shape[0] = unit->columns;
        shape[1] = unit->rows;
    }
    return 2;
}

int64_t mf_weights_layout_offset(const struct mf_unit *unit, int64_t row, int64_t column)
{
    int64_t panel = row / unit->panel_rows;
    return panel * unit->panel_elements + row % unit->panel_rows * unit->columns + column;
}

int64_t mf_weights_layout_bias_offset(const struct mf_unit *unit, int64_t row)
{
    int64_t panel = row / unit->panel_rows;
    int64_t first = panel * unit->panel_rows;
    int64_t left = unit->rows - first;
    int64_t rows = left < unit->panel_rows ? left : unit->panel_rows;
    return panel * unit->panel_elements + rows * unit->columns + row - first;
}

/* Lines of the stored matrix, and the width of one. */
static void stored_size(const struct mf_unit *unit, enum mf_weights_part part, int64_t *lines,
                        int64_t *width)
{
    int64_t shape[2];
    bool matrix = mf_weights_layout_shape(unit, part, shape) == 2;
    *lines = matrix ? shape[0] : 1;
    *width = matrix ? shape[1] : shape[0];
}

bool mf_weights_layout_next(const struct mf_unit *unit, enum mf_weights_part part,
                            int64_t elements_max, struct mf_weights_piece *piece)
{
    int64_t lines = 0;
    int64_t width = 0;
    stored_size(unit, part, &lines, &width);
    if (piece->at + piece->at_count < width) {
        piece->at += piece->at_count;
    } else {
        piece->at = 0;
        piece->line += piece->line_count;
    }
    if (piece->line >= lines || width == 0) {
        return false;
    }
    if (width <= elements_max) {
        int64_t fit = elements_max / width;
        int64_t left = lines - piece->line;
        piece->line_count = fit < left ? fit : left;
        piece->at_count = width;
    } else {
        int64_t left = width - piece->at;
        piece->line_count = 1;
        piece->at_count = elements_max < left ? elements_max : left;
    }
    return true;
}

/*
 * A piece as runs: for each of `count` runs, `length` stored values `stride` apart belong to
 * consecutive elements. A norm's weight is one run; a transposed matrix is read down its columns.
 */
struct runs {
    int64_t count, length, stride;
    int64_t step; /* between the first values of two runs */
};

static struct runs describe_runs(const struct mf_unit *unit, enum mf_weights_part part,
                                 const struct mf_weights_piece *piece)
{
    int64_t lines = 0;
    int64_t width = 0;
    stored_size(unit, part, &lines, &width);
    MF_ASSERT(piece->line >= 0 && piece->line + piece->line_count <= lines);
    MF_ASSERT(piece->at >= 0 && piece->at + piece->at_count <= width);
    if (part == MF_WEIGHTS_PART_BIAS) {
        return (struct runs){.count = piece->at_count, .length = 1, .stride = 1, .step = 1};
    }
    if (unit->weight.transposed) {
        return (struct runs){piece->at_count, piece->line_count, piece->at_count, 1};
    }
    return (struct runs){piece->line_count, piece->at_count, 1, piece->at_count};
}

/* Where run `run` begins among the unit's elements. */
static int64_t run_offset(const struct mf_unit *unit, enum mf_weights_part part,
                          const struct mf_weights_piece *piece, int64_t run)
{
    if (part == MF_WEIGHTS_PART_BIAS) {
        return mf_weights_layout_bias_offset(unit, piece->at + run);
    }
    if (unit->kind == MF_UNIT_NORM) { /* one line of `rows`, one panel, one column */
        return mf_weights_layout_offset(unit, piece->at, 0);
    }
    if (unit->weight.transposed) {
        return mf_weights_layout_offset(unit, piece->at + run, piece->line);
    }
    return mf_weights_layout_offset(unit, piece->line + run, piece->at);
}

void mf_weights_layout_scatter(const struct mf_unit *unit, enum mf_weights_part part,
                               const struct mf_weights_piece *piece, const float *values,
                               float *elements)
{
    struct runs runs = describe_runs(unit, part, piece);
    for (int64_t run = 0; run < runs.count; run++) {
        const float *from = values + run * runs.step;
        float *to = elements + run_offset(unit, part, piece, run);
        if (runs.stride == 1) {
            memcpy(to, from, (size_t)runs.length * sizeof(*to));
            continue;
        }
        for (int64_t i = 0; i < runs.length; i++) {
            to[i] = from[i * runs.stride];
        }
    }
}

void mf_weights_layout_gather(const struct mf_unit *unit, enum mf_weights_part part,
                              const struct mf_weights_piece *piece,
                              const struct mf_weights_elements *elements, uint16_t *values)
{
    MF_ASSERT((elements->master == NULL) != (elements->weights == NULL));
    struct runs runs = describe_runs(unit, part, piece);
    for (int64_t run = 0; run < runs.count; run++) {
        uint16_t *to = values + run * runs.step;
        int64_t offset = run_offset(unit, part, piece, run);
        if (elements->weights != NULL) {
            for (int64_t i = 0; i < runs.length; i++) {
                to[i * runs.stride] = elements->weights[offset + i];
            }
        } else {
            for (int64_t i = 0; i < runs.length; i++) {
                to[i * runs.stride] = mf_bf16_from_float(elements->master[offset + i]);
            }
        }
    }
}
