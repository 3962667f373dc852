/*
 * Kernels: what a lane of a device can be asked to do, as data.
 *
 * What: the list of kernels, the shape that decides a kernel's cost, and the operands it takes.
 *   The planner emits kernels as tasks, the profiler measures them, devices execute them: one
 *   vocabulary, so that what is planned, measured and run is the same thing.
 * Who calls it: planner, runtime, profiler, devices. Memory: plain data. Thread: any. Fails: no.
 *
 * Conventions. Activations are bf16 matrices [rows, width], rows = micro_batch * seq_len tokens, in
 * row-major order with a row stride in elements (an operand may be a column slice of a wider
 * matrix). Weights are panels: consecutive rows of a matrix [n, k] (output feature first) in bf16,
 * followed by the bias of those rows when the unit has one. All sums are fp32 (fp64 where said),
 * results are rounded to nearest even. Every kernel writes its whole output; ADD_TO_OUTPUT adds to
 * what a bf16 output holds: out = bf16(float(out) + new).
 */
#ifndef MF_CORE_KERNEL_H
#define MF_CORE_KERNEL_H

#include <stdint.h>

/* Where work runs. Each lane is first in, first out; lanes run side by side. */
#define MF_LANE_MAP(X)                                                                             \
    X(COMPUTE, "compute")                                                                          \
    X(H2D, "h2d")                                                                                  \
    X(D2H, "d2h")                                                                                  \
    X(CPU, "cpu")

enum mf_lane {
#define X(name, text) MF_LANE_##name,
    MF_LANE_MAP(X)
#undef X
        MF_LANE_COUNT
};

/*
 * X(name, text, operand list). Operands by position; "W" is one panel (weights then bias),
 * T = rows. Shape fields a kernel reads are named in brackets; shape.n is always the width that the
 * kernel writes or the number of elements of element-wise kernels.
 *
 * EMBEDDING_FORWARD   0 tokens int32[T], 1 W (rows first_row..first_row+k of the table, width n),
 *                     2 y[T,n]: writes the rows of y whose token lies in the panel. [rows n k]
 *                     heads = panels of the table, over which tokens are spread: only cost
 * EMBEDDING_BACKWARD  0 tokens, 1 dy[T,n], 2 dW panel[k,n]: sum over tokens in order; rows that no
 *                     token touches are zero. [rows n k], index0 = first_row, heads as above.
 *                     TOUCHED: the panel still holds what the last call wrote, and 3 marks
 *                     uint8[k] which rows those are; only they and those touched now are written
 * POSITION_FORWARD    0 x[T,n], 1 W[k,n], 2 y = x + W[t % seq_len]. [rows n k seq_len]
 * POSITION_BACKWARD   0 dy[T,n], 1 dW[k,n] (rows from seq_len on are zero). [rows n k seq_len]
 * RMS_NORM_FORWARD    0 x[T,n], 1 W(weight[n]), 2 y, 3 stats fp32[T,heads,2]; each row holds
 * `heads` groups of n elements, normalised alone (heads = 1 for a plain norm; q/k norms use heads >
 * 1). stats = {0, 1/sqrt(mean(x^2) + eps)}. scalar0 = eps. LAYER_NORM_FORWARD  the same with
 * W(weight[n], bias[n]); stats = {mean, 1/sqrt(var + eps)}.
 * *_NORM_BACKWARD     0 x, 1 W, 2 stats, 3 dy, 4 dx (ADD_TO_OUTPUT possible)
 * *_NORM_BACKWARD_WEIGHT 0 x, 1 stats, 2 dy, 3 dW panel (weight[n], bias[n] if LAYER): sums over
 * rows LINEAR_FORWARD      0 x[T,k], 1 W panel[n,k], 2 y[T,n] slice: y = x W^T + bias (BIAS)
 * LINEAR_BACKWARD_DATA 0 dy[T,n] slice, 1 W panel[n,k], 2 sum fp32[T,k] (FIRST_PANEL: assign, else
 *                     add), 3 dx[T,k], written from sum when LAST_PANEL (ADD_TO_OUTPUT possible)
 * LINEAR_BACKWARD_WEIGHT 0 x[T,k], 1 dy[T,n] slice, 2 dW panel[n,k] (+ bias sums of dy if BIAS)
 * ROPE_FORWARD        0 x[T,heads*head_dim], 1 table fp32[seq_len,head_dim/2,2] {cos,sin}, 2 y. The
 *                     pair of element i is i + head_dim/2 (Hugging Face's order). [rows heads
 *                     head_dim seq_len]. ROPE_BACKWARD: the same with the rotation reversed, dx may
 *                     be ADD_TO_OUTPUT.
 * ATTENTION_FORWARD   0 q[T,heads*head_dim], 1 k[T,kv_heads*head_dim], 2 v, 3 o[T,heads*head_dim],
 *                     4 lse fp32[T,heads]. Causal within each sequence of seq_len rows,
 *                     scale 1/sqrt(head_dim).
 * ATTENTION_BACKWARD  0 q, 1 k, 2 v, 3 o, 4 lse, 5 do, 6 dq, 7 dk, 8 dv (written, not added)
 * GELU_FORWARD        0 x[T,n], 1 y: the tanh form (gelu_new). GELU_BACKWARD 0 x, 1 dy, 2 dx
 * SWIGLU_FORWARD      0 gate, 1 up, 2 y = silu(gate) * up. SWIGLU_BACKWARD 0 gate, 1 up, 2 dy,
 *                     3 dgate, 4 dup
 * ADD_FORWARD         0 a, 1 b, 2 y = a + b.   GRADIENT_COPY 0 dy, 1 dx (ADD_TO_OUTPUT possible)
 * HEAD_FORWARD        0 x[T,k], 1 W panel[n,k], 2 labels int32[T] (-100 = ignored), 3 running
 *                     fp32[T,3] {max, sum of exp(logit - max), logit of the label}: FIRST_PANEL
 *                     initialises, panels come in order. index0 = first row of the panel.
 * HEAD_LOSS           0 running, 1 labels, 2 lse fp32[T], 3 logprob fp32[T] (0 where ignored),
 *                     4 result fp64[2] {sum of -logprob, number of tokens counted} of this
 * micro-batch HEAD_BACKWARD       0 x, 1 W panel, 2 labels, 3 lse, 4 dlogits[T,n] bf16 = softmax -
 * onehot, zero for ignored rows (NOT divided by any count). index0 = first row of the panel.
 * HEAD_LOGITS         0 x, 1 W panel[n,k], 2 logits fp32[rows/seq_len, stride]: logits of the row
 *                     `index1` of each sequence, columns of the panel.
 * GRADIENT_ACCUMULATE 0 panel bf16[n], 1 sum fp32[n]: FIRST_MICRO: assign, else add
 * GRADIENT_NORM       0 gradient[n] (fp32 if GRADIENT_FP32, else bf16), 1 square fp64[1]: the sum
 * of squares in the order of mf_kernel_square_sum(): see there. CLIP                0 squares
 * fp64[n], 1 struct mf_control: sums the squares in order, fills norm, finite and gradient_scale.
 * ADAMW               0 gradient[n] (GRADIENT_FP32 or bf16), 1 state {m fp32[n], v fp32[n],
 *                     rest int16[n]}, 2 weight bf16[n], both read and written (MF_STATE_BYTES says
 *                     how they hold the fp32 master), 3 struct mf_control. k = elements of the
 *                     first segment (decayed if DECAY_FIRST), the rest are decayed if DECAY_REST.
 *                     PyTorch's AdamW. CPU lane: 4 state and 5 weight may be given; they are
 *                     written then, 1 and 2 only read.
 * COPY                0 from, 1 to: shape.n bytes. H2D and D2H lanes only.
 */
#define MF_KERNEL_MAP(X)                                                                           \
    X(EMBEDDING_FORWARD, "embedding_forward")                                                      \
    X(EMBEDDING_BACKWARD, "embedding_backward")                                                    \
    X(POSITION_FORWARD, "position_forward")                                                        \
    X(POSITION_BACKWARD, "position_backward")                                                      \
    X(RMS_NORM_FORWARD, "rms_norm_forward")                                                        \
    X(RMS_NORM_BACKWARD, "rms_norm_backward")                                                      \
    X(RMS_NORM_BACKWARD_WEIGHT, "rms_norm_backward_weight")                                        \
    X(LAYER_NORM_FORWARD, "layer_norm_forward")                                                    \
    X(LAYER_NORM_BACKWARD, "layer_norm_backward")                                                  \
    X(LAYER_NORM_BACKWARD_WEIGHT, "layer_norm_backward_weight")                                    \
    X(LINEAR_FORWARD, "linear_forward")                                                            \
    X(LINEAR_BACKWARD_DATA, "linear_backward_data")                                                \
    X(LINEAR_BACKWARD_WEIGHT, "linear_backward_weight")                                            \
    X(ROPE_FORWARD, "rope_forward")                                                                \
    X(ROPE_BACKWARD, "rope_backward")                                                              \
    X(ATTENTION_FORWARD, "attention_forward")                                                      \
    X(ATTENTION_BACKWARD, "attention_backward")                                                    \
    X(GELU_FORWARD, "gelu_forward")                                                                \
    X(GELU_BACKWARD, "gelu_backward")                                                              \
    X(SWIGLU_FORWARD, "swiglu_forward")                                                            \
    X(SWIGLU_BACKWARD, "swiglu_backward")                                                          \
    X(ADD_FORWARD, "add_forward")                                                                  \
    X(GRADIENT_COPY, "gradient_copy")                                                              \
    X(HEAD_FORWARD, "head_forward")                                                                \
    X(HEAD_LOSS, "head_loss")                                                                      \
    X(HEAD_BACKWARD, "head_backward")                                                              \
    X(HEAD_LOGITS, "head_logits")                                                                  \
    X(GRADIENT_ACCUMULATE, "gradient_accumulate")                                                  \
    X(GRADIENT_NORM, "gradient_norm")                                                              \
    X(CLIP, "clip")                                                                                \
    X(ADAMW, "adamw")                                                                              \
    X(COPY, "copy")

enum mf_kernel {
#define X(name, text) MF_KERNEL_##name,
    MF_KERNEL_MAP(X)
#undef X
        MF_KERNEL_COUNT
};

enum {
    MF_SHAPE_BIAS = 1u << 0, /* the panel ends with a bias */
    MF_SHAPE_ADD_TO_OUTPUT = 1u << 1,
    MF_SHAPE_FIRST_PANEL = 1u << 2,
    MF_SHAPE_LAST_PANEL = 1u << 3,
    MF_SHAPE_FIRST_MICRO = 1u << 4,
    MF_SHAPE_GRADIENT_FP32 = 1u << 5,
    MF_SHAPE_DECAY_FIRST = 1u << 6,
    MF_SHAPE_DECAY_REST = 1u << 7,
    MF_SHAPE_WEIGHT_HOST = 1u << 8, /* direct host access: W is in mapped host memory */
    MF_SHAPE_OUTPUT_HOST = 1u << 9, /* direct write: the gradient goes to mapped host memory */
    MF_SHAPE_TOUCHED = 1u << 10,    /* rows of a table that stay zero are not written */
    MF_SHAPE_APART = 1u << 11,      /* ADAMW's results go to operands 4 and 5 */
};

/* What decides a kernel's cost; with the kernel and the lane it is the key of a measurement. */
struct mf_shape {
    int64_t rows; /* tokens of the micro-batch */
    int64_t n;
    int64_t k;
    int32_t seq_len;
    int32_t heads;
    int32_t kv_heads;
    int32_t head_dim;
    uint32_t flags; /* MF_SHAPE_* */
};

#define MF_OPERANDS_MAX 9

/* One operand, resolved to an address the lane can use. */
struct mf_operand {
    void *pointer;
    int64_t stride; /* elements between rows; 0 where the operand is not a matrix */
};

/* A kernel ready to run. `index0`, `index1`, `scalar0` are named in the list above. */
struct mf_kernel_call {
    enum mf_kernel kernel;
    struct mf_shape shape;
    int64_t index0;
    int64_t index1;
    double scalar0;
    struct mf_operand operands[MF_OPERANDS_MAX];
};

/* The scalars of one optimizer step, in mapped host memory; written by the executor before the
 * update's first task and by CLIP. */
struct mf_control {
    double learning_rate;
    double beta1;
    double beta2;
    double eps;
    double weight_decay;
    double clip_norm;       /* 0 = do not clip */
    int64_t step;           /* of AdamW, from 1 */
    int64_t token_count;    /* non-ignored tokens of the whole optimizer step */
    double norm;            /* out: global norm of the mean gradient */
    double gradient_scale;  /* out: what AdamW multiplies the summed gradient by */
    int32_t skip_nonfinite; /* a norm that is not finite leaves weights and state untouched */
    int32_t skipped;        /* out: 1 when the update was skipped */
};

/*
 * Bytes of optimizer state of an element beside its bf16 weight: fp32 m and v and a rest of 16
 * bits. With weight and gradient that makes 14 a parameter. The fp32 master is exact, but not
 * stored: its bits = ((weight + t) << 16) + rest, where weight is the master rounded to nearest
 * even and t is 1 where it lies exactly halfway above an even weight: the one master of the 65537
 * that round to such a weight which 16 bits cannot tell from the others. t is kept as the sign of
 * v, which is never negative. A master that is not a number becomes 0x7fc00000.
 */
#define MF_STATE_BYTES 10
/* What ADAMW moves in memory for an element: weight and state both ways, a bf16 gradient in. */
#define MF_ADAMW_BYTES (2 * (2 + MF_STATE_BYTES) + 2)

const char *mf_kernel_name(enum mf_kernel kernel);
const char *mf_kernel_lane_name(enum mf_lane lane);
/* -1 when the text names no kernel. */
int mf_kernel_parse(const char *text);

/*
 * The sum of squares whose order every device follows, so that the norm has the same bits
 * wherever a gradient lies: blocks of MF_SQUARE_BLOCK elements; in a block element i is added, in
 * order, to lane i % MF_SQUARE_LANES in fp64; the lanes of a block are added pairwise (lane j +=
 * lane j + half, half = 32, 16 .. 1); the blocks are added in order.
 */
#define MF_SQUARE_BLOCK 4096
#define MF_SQUARE_LANES 64

/* floor operations of one call, 2 per multiply-add; for MFU and for estimates. */
double mf_kernel_flops(enum mf_kernel kernel, const struct mf_shape *shape);
/* Bytes the kernel touches in memory, at least; for estimates. */
double mf_kernel_bytes(enum mf_kernel kernel, const struct mf_shape *shape);

#endif
