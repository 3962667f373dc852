/* The operands of each kernel: see operands.h. */
#include "profiler/operands.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Elements of an operand by the shape; T = rows. */
enum extent {
    EXTENT_NONE,
    EXTENT_ONE,
    EXTENT_TWO,
    EXTENT_N,
    EXTENT_NORM,  /* weight[n], bias[n] */
    EXTENT_PANEL, /* [n, k] and a bias if the flag says so */
    EXTENT_TABLE, /* [k, n] */
    EXTENT_ROWS,  /* T */
    EXTENT_ROWS_3,
    EXTENT_ROWS_N,
    EXTENT_ROWS_K,
    EXTENT_GROUPS,     /* T, heads groups of n */
    EXTENT_STATS,      /* T, heads, 2 */
    EXTENT_ROWS_HEADS, /* T, heads */
    EXTENT_QUERY,      /* T, heads * head_dim */
    EXTENT_KEY,        /* T, kv_heads * head_dim */
    EXTENT_ROPE,       /* seq_len, head_dim / 2, 2 */
    EXTENT_LOGITS,     /* T / seq_len, n */
    EXTENT_MARKS,      /* k if the flag says so */
    EXTENT_APART,      /* n if the flag says so */
};

enum place {
    PLACE_DEVICE,
    PLACE_WEIGHT,   /* in host memory with MF_SHAPE_WEIGHT_HOST */
    PLACE_GRADIENT, /* in host memory with MF_SHAPE_OUTPUT_HOST */
    PLACE_STATE,    /* a parameter of an update: where the lane is */
    PLACE_HOST,     /* always: what the daemon reads or writes itself */
};

struct operand {
    enum mf_operands_content content;
    enum extent extent;
    enum place place;
};

#define X16(extent)                                                                                \
    {                                                                                              \
        MF_OPERANDS_BF16, EXTENT_##extent, PLACE_DEVICE                                            \
    }
#define X32(extent)                                                                                \
    {                                                                                              \
        MF_OPERANDS_FP32, EXTENT_##extent, PLACE_DEVICE                                            \
    }
#define TOKENS                                                                                     \
    {                                                                                              \
        MF_OPERANDS_TOKENS, EXTENT_ROWS, PLACE_DEVICE                                              \
    }
#define LABELS                                                                                     \
    {                                                                                              \
        MF_OPERANDS_LABELS, EXTENT_ROWS, PLACE_DEVICE                                              \
    }
#define STATS                                                                                      \
    {                                                                                              \
        MF_OPERANDS_STATS, EXTENT_STATS, PLACE_DEVICE                                              \
    }
#define HEAD_LSE                                                                                   \
    {                                                                                              \
        MF_OPERANDS_LSE, EXTENT_ROWS, PLACE_DEVICE                                                 \
    }
#define ATTENTION_LSE                                                                              \
    {                                                                                              \
        MF_OPERANDS_LSE, EXTENT_ROWS_HEADS, PLACE_DEVICE                                           \
    }
#define RUNNING                                                                                    \
    {                                                                                              \
        MF_OPERANDS_RUNNING, EXTENT_ROWS_3, PLACE_DEVICE                                           \
    }
#define WEIGHT(extent)                                                                             \
    {                                                                                              \
        MF_OPERANDS_BF16, EXTENT_##extent, PLACE_WEIGHT                                            \
    }
#define GRADIENT(extent)                                                                           \
    {                                                                                              \
        MF_OPERANDS_ZERO, EXTENT_##extent, PLACE_GRADIENT                                          \
    }
#define UPDATE(content, extent)                                                                    \
    {                                                                                              \
        MF_OPERANDS_##content, EXTENT_##extent, PLACE_STATE                                        \
    }
#define SHARED(content, extent)                                                                    \
    {                                                                                              \
        MF_OPERANDS_##content, EXTENT_##extent, PLACE_HOST                                         \
    }

static const struct operand operands[MF_KERNEL_COUNT][MF_OPERANDS_MAX] = {
    [MF_KERNEL_EMBEDDING_FORWARD] = {TOKENS, WEIGHT(TABLE), X16(ROWS_N)},
    [MF_KERNEL_EMBEDDING_BACKWARD] = {TOKENS,
                                      X16(ROWS_N),
                                      GRADIENT(TABLE),
                                      {MF_OPERANDS_MARKS, EXTENT_MARKS, PLACE_DEVICE}},
    [MF_KERNEL_POSITION_FORWARD] = {X16(ROWS_N), WEIGHT(TABLE), X16(ROWS_N)},
    [MF_KERNEL_POSITION_BACKWARD] = {X16(ROWS_N), GRADIENT(TABLE)},
    [MF_KERNEL_RMS_NORM_FORWARD] = {X16(GROUPS), WEIGHT(NORM), X16(GROUPS), STATS},
    [MF_KERNEL_RMS_NORM_BACKWARD] = {X16(GROUPS), WEIGHT(NORM), STATS, X16(GROUPS), X16(GROUPS)},
    [MF_KERNEL_RMS_NORM_BACKWARD_WEIGHT] = {X16(GROUPS), STATS, X16(GROUPS), GRADIENT(NORM)},
    [MF_KERNEL_LAYER_NORM_FORWARD] = {X16(GROUPS), WEIGHT(NORM), X16(GROUPS), STATS},
    [MF_KERNEL_LAYER_NORM_BACKWARD] = {X16(GROUPS), WEIGHT(NORM), STATS, X16(GROUPS), X16(GROUPS)},
    [MF_KERNEL_LAYER_NORM_BACKWARD_WEIGHT] = {X16(GROUPS), STATS, X16(GROUPS), GRADIENT(NORM)},
    [MF_KERNEL_LINEAR_FORWARD] = {X16(ROWS_K), WEIGHT(PANEL), X16(ROWS_N)},
    [MF_KERNEL_LINEAR_BACKWARD_DATA] = {X16(ROWS_N), WEIGHT(PANEL), X32(ROWS_K), X16(ROWS_K)},
    [MF_KERNEL_LINEAR_BACKWARD_WEIGHT] = {X16(ROWS_K), X16(ROWS_N), GRADIENT(PANEL)},
    [MF_KERNEL_ROPE_FORWARD] = {X16(QUERY), X32(ROPE), X16(QUERY)},
    [MF_KERNEL_ROPE_BACKWARD] = {X16(QUERY), X32(ROPE), X16(QUERY)},
    [MF_KERNEL_ATTENTION_FORWARD] = {X16(QUERY), X16(KEY), X16(KEY), X16(QUERY), ATTENTION_LSE},
    [MF_KERNEL_ATTENTION_BACKWARD] = {X16(QUERY), X16(KEY), X16(KEY), X16(QUERY), ATTENTION_LSE,
                                      X16(QUERY), X16(QUERY), X16(KEY), X16(KEY)},
    [MF_KERNEL_GELU_FORWARD] = {X16(ROWS_N), X16(ROWS_N)},
    [MF_KERNEL_GELU_BACKWARD] = {X16(ROWS_N), X16(ROWS_N), X16(ROWS_N)},
    [MF_KERNEL_SWIGLU_FORWARD] = {X16(ROWS_N), X16(ROWS_N), X16(ROWS_N)},
    [MF_KERNEL_SWIGLU_BACKWARD] = {X16(ROWS_N), X16(ROWS_N), X16(ROWS_N), X16(ROWS_N), X16(ROWS_N)},
    [MF_KERNEL_ADD_FORWARD] = {X16(ROWS_N), X16(ROWS_N), X16(ROWS_N)},
    [MF_KERNEL_GRADIENT_COPY] = {X16(ROWS_N), X16(ROWS_N)},
    [MF_KERNEL_HEAD_FORWARD] = {X16(ROWS_K), WEIGHT(PANEL), LABELS, RUNNING},
    [MF_KERNEL_HEAD_LOSS] = {RUNNING, LABELS, HEAD_LSE, SHARED(ZERO, ROWS), SHARED(ZERO, TWO)},
    [MF_KERNEL_HEAD_BACKWARD] = {X16(ROWS_K), WEIGHT(PANEL), LABELS, HEAD_LSE, X16(ROWS_N)},
    [MF_KERNEL_HEAD_LOGITS] = {X16(ROWS_K), WEIGHT(PANEL), SHARED(ZERO, LOGITS)},
    [MF_KERNEL_GRADIENT_ACCUMULATE] = {UPDATE(BF16, N), UPDATE(FP32, N)},
    [MF_KERNEL_GRADIENT_NORM] = {UPDATE(BF16, N), SHARED(SQUARES, ONE)},
    [MF_KERNEL_CLIP] = {SHARED(SQUARES, N), SHARED(CONTROL, ONE)},
    [MF_KERNEL_ADAMW] = {UPDATE(BF16, N), UPDATE(STATE, N), UPDATE(BF16, N), SHARED(CONTROL, ONE),
                         UPDATE(STATE, APART), UPDATE(BF16, APART)},
    [MF_KERNEL_COPY] = {UPDATE(ZERO, N), UPDATE(ZERO, N)},
};

static int64_t times(int64_t a, int64_t b)
{
    int64_t product = 0;
    if (__builtin_mul_overflow(a, b, &product) || product > MF_OPERANDS_BYTES_MAX) {
        return MF_OPERANDS_BYTES_MAX;
    }
    return product;
}

/* Elements, and those between two rows (0 = no matrix). */
static int64_t count(enum extent extent, const struct mf_shape *shape, int64_t *stride)
{
    int64_t rows = shape->rows;
    int64_t width = 0;
    switch (extent) {
    case EXTENT_NONE:
        return 0;
    case EXTENT_ONE:
        return 1;
    case EXTENT_TWO:
        return 2;
    case EXTENT_N:
        return shape->n;
    case EXTENT_NORM:
        return shape->n * 2;
    case EXTENT_PANEL:
        return times(shape->n, shape->k + 1);
    case EXTENT_TABLE:
        return times(shape->n, shape->k);
    case EXTENT_ROWS:
        return rows;
    case EXTENT_ROWS_3:
        return rows * 3;
    case EXTENT_STATS:
        return times(rows, shape->heads * 2ll);
    case EXTENT_ROWS_HEADS:
        return times(rows, shape->heads);
    case EXTENT_MARKS:
        return (shape->flags & MF_SHAPE_TOUCHED) != 0 ? shape->k : 0;
    case EXTENT_APART:
        return (shape->flags & MF_SHAPE_APART) != 0 ? shape->n : 0;
    case EXTENT_ROPE:
        return times(shape->seq_len, shape->head_dim);
    case EXTENT_LOGITS:
        *stride = shape->n;
        return times(rows / (shape->seq_len > 0 ? shape->seq_len : 1), shape->n);
    case EXTENT_ROWS_N:
        width = shape->n;
        break;
    case EXTENT_ROWS_K:
        width = shape->k;
        break;
    case EXTENT_GROUPS:
        width = times(shape->n, shape->heads > 0 ? shape->heads : 1);
        break;
    case EXTENT_QUERY:
        width = (int64_t)shape->heads * shape->head_dim;
        break;
    case EXTENT_KEY:
        width = (int64_t)shape->kv_heads * shape->head_dim;
        break;
    }
    *stride = width;
    return times(rows, width);
}

static int64_t element_bytes(const struct mf_signature *signature, enum mf_operands_content content,
                             bool shared)
{
    if (signature->kernel == MF_KERNEL_COPY) {
        return 1; /* n counts bytes */
    }
    switch (content) {
    case MF_OPERANDS_NONE:
        return 0;
    case MF_OPERANDS_MARKS:
        return 1;
    case MF_OPERANDS_BF16:
        return 2;
    case MF_OPERANDS_ZERO: /* a gradient panel, or logits, log-probabilities and results */
        return shared ? 8 : 2;
    case MF_OPERANDS_FP32:
    case MF_OPERANDS_TOKENS:
    case MF_OPERANDS_LABELS:
    case MF_OPERANDS_STATS:
    case MF_OPERANDS_LSE:
    case MF_OPERANDS_RUNNING:
        return 4;
    case MF_OPERANDS_STATE:
        return MF_STATE_BYTES;
    case MF_OPERANDS_SQUARES:
        return 8;
    case MF_OPERANDS_CONTROL:
        break;
    }
    return (int64_t)sizeof(struct mf_control);
}

static bool in_host_memory(const struct mf_signature *signature, enum place place, int index)
{
    switch (signature->lane) {
    case MF_LANE_CPU:
        return true;
    case MF_LANE_H2D:
        return index == 0;
    case MF_LANE_D2H:
        return index == 1;
    case MF_LANE_COMPUTE:
    case MF_LANE_COUNT:
        break;
    }
    uint32_t flags = signature->shape.flags;
    return place == PLACE_HOST || (place == PLACE_WEIGHT && (flags & MF_SHAPE_WEIGHT_HOST) != 0) ||
           (place == PLACE_GRADIENT && (flags & MF_SHAPE_OUTPUT_HOST) != 0);
}

void mf_operands_list(const struct mf_signature *signature,
                      struct mf_operands_need out[static MF_OPERANDS_MAX])
{
    bool fp32 = (signature->shape.flags & MF_SHAPE_GRADIENT_FP32) != 0;
    for (int i = 0; i < MF_OPERANDS_MAX; i++) {
        const struct operand *operand = &operands[signature->kernel][i];
        struct mf_operands_need *need = &out[i];
        *need = (struct mf_operands_need){.content = operand->content};
        if (operand->content == MF_OPERANDS_NONE) {
            continue;
        }
        if (i == 0 && fp32) { /* the gradient of a norm or an update */
            need->content = MF_OPERANDS_FP32;
        }
        need->host = in_host_memory(signature, operand->place, i);
        need->parameter = operand->place == PLACE_WEIGHT || operand->place == PLACE_GRADIENT ||
                          operand->place == PLACE_STATE;
        int64_t elements = count(operand->extent, &signature->shape, &need->stride);
        need->bytes =
            times(elements, element_bytes(signature, need->content, operand->place == PLACE_HOST));
    }
}

/* ---- data ---- */

#define PATTERN_BYTES (1ll << 16)

struct generator {
    uint64_t state;
};

static uint32_t draw(struct generator *generator)
{
    generator->state = generator->state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(generator->state >> 33);
}

/* Close to normal with deviation 1: the sum of four uniform numbers. */
static float draw_normal(struct generator *generator)
{
    float sum = 0;
    for (int i = 0; i < 4; i++) {
        sum += (float)(draw(generator) & 0xffff) / 65536.0f - 0.5f;
    }
    return sum * 1.732f;
}

static uint16_t bf16_bits(float value)
{
    uint32_t bits = 0;
    memcpy(&bits, &value, sizeof(bits));
    return (uint16_t)(bits >> 16);
}

/* One element's bytes in `at`; returns how many. */
static size_t element(enum mf_operands_content content, int64_t limit, struct generator *generator,
                      int64_t index, char *at)
{
    static const float running[] = {0.0f, 1.0f, 0.0f};
    float value = 0;
    switch (content) {
    case MF_OPERANDS_BF16: {
        uint16_t bits = bf16_bits(draw_normal(generator));
        memcpy(at, &bits, sizeof(bits));
        return sizeof(bits);
    }
    case MF_OPERANDS_TOKENS:
    case MF_OPERANDS_LABELS: {
        int32_t id = (int32_t)(draw(generator) % (uint64_t)(limit > 0 ? limit : 1));
        memcpy(at, &id, sizeof(id));
        return sizeof(id);
    }
    case MF_OPERANDS_SQUARES: {
        double square = 1.0;
        memcpy(at, &square, sizeof(square));
        return sizeof(square);
    }
    case MF_OPERANDS_STATS:
        value = index % 2 == 0 ? 0.0f : 1.0f;
        break;
    case MF_OPERANDS_LSE:
        value = 8.0f;
        break;
    case MF_OPERANDS_RUNNING:
        value = running[index % 3];
        break;
    case MF_OPERANDS_STATE: /* v must not be negative */
        value = 1e-3f * fabsf(draw_normal(generator));
        break;
    case MF_OPERANDS_FP32:
        value = 0.02f * draw_normal(generator);
        break;
    case MF_OPERANDS_NONE:
    case MF_OPERANDS_ZERO:
    case MF_OPERANDS_MARKS:
    case MF_OPERANDS_CONTROL:
        break;
    }
    memcpy(at, &value, sizeof(value));
    return sizeof(value);
}

static void fill_control(void *memory, int64_t bytes)
{
    const struct mf_control control = {
        .learning_rate = 1e-4,
        .beta1 = 0.9,
        .beta2 = 0.999,
        .eps = 1e-8,
        .weight_decay = 0.01,
        .clip_norm = 1.0,
        .step = 1,
        .token_count = 1,
        .gradient_scale = 1e-3,
    };
    memcpy(memory, &control, bytes < (int64_t)sizeof(control) ? (size_t)bytes : sizeof(control));
}

void mf_operands_fill(const struct mf_signature *signature, const struct mf_operands_need *need,
                      void *memory, int64_t bytes)
{
    /* Tables are looked up by row (k of them in each of the panels), heads by column. */
    const struct mf_shape *shape = &signature->shape;
    int64_t table_rows = times(shape->k, shape->heads > 1 ? shape->heads : 1);
    int64_t limit = need->content == MF_OPERANDS_TOKENS ? table_rows : shape->n;
    struct generator generator = {.state = 0x853c49e6748fea9bu + (uint64_t)need->content};
    if (need->content == MF_OPERANDS_CONTROL) {
        fill_control(memory, bytes);
        return;
    }
    if (need->content == MF_OPERANDS_ZERO || need->content == MF_OPERANDS_MARKS ||
        signature->kernel == MF_KERNEL_COPY) {
        memset(memory, 0, (size_t)bytes);
        return;
    }
    /* A multiple of every element's and every group's size, repeated. */
    static const int64_t pattern = PATTERN_BYTES * 3;
    char *out = memory;
    int64_t done = 0;
    int64_t first = bytes < pattern ? bytes : pattern;
    for (int64_t index = 0; done < first; index++) {
        char bytes_of_one[8];
        size_t size = element(need->content, limit, &generator, index, bytes_of_one);
        size = (int64_t)size < first - done ? size : (size_t)(first - done);
        memcpy(out + done, bytes_of_one, size);
        done += (int64_t)size;
    }
    for (done = first; done < bytes;) {
        int64_t piece = bytes - done < pattern ? bytes - done : pattern;
        memcpy(out + done, out, (size_t)piece);
        done += piece;
    }
}
