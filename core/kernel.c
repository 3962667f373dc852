/* Names of kernels and lanes, and what a kernel costs at least; see kernel.h. */
#include "core/kernel.h"

#include <stdbool.h>
#include <string.h>

/*
 * Costs as sums of products of the shape: columns are the coefficients of rows * n * k, rows * n,
 * n * k and n. `groups` multiplies rows by heads (norms hold `heads` groups in a row). Attention,
 * rope and the effects of flags are added by the functions below.
 */
struct cost {
    double rows_n_k;
    double rows_n;
    double n_k;
    double n;
};

struct kernel_cost {
    struct cost flops;
    struct cost bytes;
    double bytes_rows_k;
    double bytes_rows;
    int groups;
};

static const struct kernel_cost costs[MF_KERNEL_COUNT] = {
    [MF_KERNEL_EMBEDDING_FORWARD] = {.bytes = {.rows_n = 4}, .bytes_rows = 4},
    [MF_KERNEL_EMBEDDING_BACKWARD] = {.flops = {.rows_n = 1},
                                      .bytes = {.rows_n = 2, .n_k = 2},
                                      .bytes_rows = 4},
    [MF_KERNEL_POSITION_FORWARD] = {.flops = {.rows_n = 1}, .bytes = {.rows_n = 4}},
    [MF_KERNEL_POSITION_BACKWARD] = {.flops = {.rows_n = 1}, .bytes = {.rows_n = 2, .n_k = 2}},
    [MF_KERNEL_RMS_NORM_FORWARD] = {.flops = {.rows_n = 4},
                                    .bytes = {.rows_n = 4, .n = 2},
                                    .bytes_rows = 8,
                                    .groups = 1},
    [MF_KERNEL_RMS_NORM_BACKWARD] = {.flops = {.rows_n = 7},
                                     .bytes = {.rows_n = 6, .n = 2},
                                     .bytes_rows = 8,
                                     .groups = 1},
    [MF_KERNEL_RMS_NORM_BACKWARD_WEIGHT] = {.flops = {.rows_n = 3},
                                            .bytes = {.rows_n = 4, .n = 2},
                                            .bytes_rows = 8,
                                            .groups = 1},
    [MF_KERNEL_LAYER_NORM_FORWARD] = {.flops = {.rows_n = 7},
                                      .bytes = {.rows_n = 4, .n = 4},
                                      .bytes_rows = 8,
                                      .groups = 1},
    [MF_KERNEL_LAYER_NORM_BACKWARD] = {.flops = {.rows_n = 10},
                                       .bytes = {.rows_n = 6, .n = 2},
                                       .bytes_rows = 8,
                                       .groups = 1},
    [MF_KERNEL_LAYER_NORM_BACKWARD_WEIGHT] = {.flops = {.rows_n = 5},
                                              .bytes = {.rows_n = 4, .n = 4},
                                              .bytes_rows = 8,
                                              .groups = 1},
    [MF_KERNEL_LINEAR_FORWARD] = {.flops = {.rows_n_k = 2},
                                  .bytes = {.rows_n = 2, .n_k = 2},
                                  .bytes_rows_k = 2},
    [MF_KERNEL_LINEAR_BACKWARD_DATA] = {.flops = {.rows_n_k = 2},
                                        .bytes = {.rows_n = 2, .n_k = 2},
                                        .bytes_rows_k = 4},
    [MF_KERNEL_LINEAR_BACKWARD_WEIGHT] = {.flops = {.rows_n_k = 2},
                                          .bytes = {.rows_n = 2, .n_k = 2},
                                          .bytes_rows_k = 2},
    [MF_KERNEL_GELU_FORWARD] = {.flops = {.rows_n = 10}, .bytes = {.rows_n = 4}},
    [MF_KERNEL_GELU_BACKWARD] = {.flops = {.rows_n = 18}, .bytes = {.rows_n = 6}},
    [MF_KERNEL_SWIGLU_FORWARD] = {.flops = {.rows_n = 6}, .bytes = {.rows_n = 6}},
    [MF_KERNEL_SWIGLU_BACKWARD] = {.flops = {.rows_n = 12}, .bytes = {.rows_n = 10}},
    [MF_KERNEL_ADD_FORWARD] = {.flops = {.rows_n = 1}, .bytes = {.rows_n = 6}},
    [MF_KERNEL_GRADIENT_COPY] = {.bytes = {.rows_n = 4}},
    [MF_KERNEL_HEAD_FORWARD] = {.flops = {.rows_n_k = 2, .rows_n = 3},
                                .bytes = {.n_k = 2},
                                .bytes_rows_k = 2,
                                .bytes_rows = 16},
    [MF_KERNEL_HEAD_LOSS] = {.bytes_rows = 24},
    [MF_KERNEL_HEAD_BACKWARD] = {.flops = {.rows_n_k = 2, .rows_n = 3},
                                 .bytes = {.rows_n = 2, .n_k = 2},
                                 .bytes_rows_k = 2,
                                 .bytes_rows = 8},
    [MF_KERNEL_GRADIENT_ACCUMULATE] = {.flops = {.n = 1}, .bytes = {.n = 6}},
    [MF_KERNEL_GRADIENT_NORM] = {.flops = {.n = 2}, .bytes = {.n = 2}},
    [MF_KERNEL_CLIP] = {.flops = {.n = 1}, .bytes = {.n = 8}},
    [MF_KERNEL_ADAMW] = {.flops = {.n = 14}, .bytes = {.n = MF_ADAMW_BYTES}},
    [MF_KERNEL_COPY] = {.bytes = {.n = 2}}, /* n counts bytes */
};

const char *mf_kernel_name(enum mf_kernel kernel)
{
    static const char *const names[MF_KERNEL_COUNT] = {
#define X(name, text) text,
        MF_KERNEL_MAP(X)
#undef X
    };
    return (unsigned)kernel < MF_KERNEL_COUNT ? names[kernel] : "unknown";
}

const char *mf_kernel_lane_name(enum mf_lane lane)
{
    static const char *const names[MF_LANE_COUNT] = {
#define X(name, text) text,
        MF_LANE_MAP(X)
#undef X
    };
    return (unsigned)lane < MF_LANE_COUNT ? names[lane] : "unknown";
}

int mf_kernel_parse(const char *text)
{
    for (int kernel = 0; kernel < MF_KERNEL_COUNT; kernel++) {
        if (strcmp(text, mf_kernel_name((enum mf_kernel)kernel)) == 0) {
            return kernel;
        }
    }
    return -1;
}

static double sum_cost(const struct cost *cost, double rows, double n, double k)
{
    return cost->rows_n_k * rows * n * k + cost->rows_n * rows * n + cost->n_k * n * k +
           cost->n * n;
}

/* Pairs of a query and a key it may look at, over all sequences, for one head. */
static double attention_pairs(const struct mf_shape *shape)
{
    double seq_len = shape->seq_len;
    return (double)shape->rows * (seq_len + 1) / 2;
}

/* Rows as the costs count them. */
static double count_rows(const struct kernel_cost *cost, const struct mf_shape *shape)
{
    double heads = cost->groups && shape->heads > 1 ? shape->heads : 1;
    return (double)shape->rows * heads;
}

/* Rows whose logits HEAD_LOGITS computes: one of each sequence. */
static double count_sequences(const struct mf_shape *shape)
{
    return shape->seq_len > 0 ? (double)shape->rows / shape->seq_len : 0;
}

double mf_kernel_flops(enum mf_kernel kernel, const struct mf_shape *shape)
{
    const struct kernel_cost *cost = &costs[kernel];
    double width = (double)shape->heads * shape->head_dim;
    switch (kernel) {
    case MF_KERNEL_ATTENTION_FORWARD: /* scores and their product with the values */
        return attention_pairs(shape) * width * 4;
    case MF_KERNEL_ATTENTION_BACKWARD: /* scores again, and four gradients */
        return attention_pairs(shape) * width * 10;
    case MF_KERNEL_ROPE_FORWARD:
    case MF_KERNEL_ROPE_BACKWARD:
        return (double)shape->rows * width * 3;
    case MF_KERNEL_HEAD_LOGITS:
        return 2 * count_sequences(shape) * (double)shape->n * (double)shape->k;
    default:
        return sum_cost(&cost->flops, count_rows(cost, shape), (double)shape->n, (double)shape->k);
    }
}

/* What flags add to the bytes of `kernel`. */
static double flag_bytes(enum mf_kernel kernel, const struct mf_shape *shape)
{
    double n = (double)shape->n;
    double rows = (double)shape->rows;
    bool add = (shape->flags & MF_SHAPE_ADD_TO_OUTPUT) != 0;
    double total = (shape->flags & MF_SHAPE_BIAS) != 0 ? 2 * n : 0;
    switch (kernel) {
    case MF_KERNEL_LINEAR_BACKWARD_DATA:
        total += (shape->flags & MF_SHAPE_FIRST_PANEL) == 0 ? 4 * rows * (double)shape->k : 0;
        total += (shape->flags & MF_SHAPE_LAST_PANEL) != 0 ? 2 * rows * (double)shape->k : 0;
        return total + (add ? 2 * rows * (double)shape->k : 0);
    case MF_KERNEL_GRADIENT_ACCUMULATE:
        return total + ((shape->flags & MF_SHAPE_FIRST_MICRO) == 0 ? 4 * n : 0);
    case MF_KERNEL_GRADIENT_NORM:
    case MF_KERNEL_ADAMW:
        return total + ((shape->flags & MF_SHAPE_GRADIENT_FP32) != 0 ? 2 * n : 0);
    default:
        return total + (add ? 2 * count_rows(&costs[kernel], shape) * n : 0);
    }
}

double mf_kernel_bytes(enum mf_kernel kernel, const struct mf_shape *shape)
{
    const struct kernel_cost *cost = &costs[kernel];
    double rows = count_rows(cost, shape);
    double n = (double)shape->n;
    double k = (double)shape->k;
    double width = (double)shape->heads * shape->head_dim;
    double kv_width = (double)shape->kv_heads * shape->head_dim;
    switch (kernel) {
    case MF_KERNEL_ATTENTION_FORWARD:
        return rows * (4 * width + 4 * kv_width + 4.0 * shape->heads);
    case MF_KERNEL_ATTENTION_BACKWARD:
        return rows * (8 * width + 8 * kv_width + 4.0 * shape->heads);
    case MF_KERNEL_ROPE_FORWARD:
    case MF_KERNEL_ROPE_BACKWARD:
        return rows * width * ((shape->flags & MF_SHAPE_ADD_TO_OUTPUT) != 0 ? 6 : 4);
    case MF_KERNEL_HEAD_LOGITS:
        return count_sequences(shape) * (2 * k + 4 * n) + 2 * n * k;
    default:
        return sum_cost(&cost->bytes, rows, n, k) + cost->bytes_rows_k * rows * k +
               cost->bytes_rows * rows + flag_bytes(kernel, shape);
    }
}
