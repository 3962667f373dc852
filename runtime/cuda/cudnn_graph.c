/* Tables of tensors and operations, and how they become descriptors; see cudnn_graph.h. The graphs
 * are those of cuDNN's documentation of scaled dot-product attention (Graph API, "Attention"):
 * engines find them by their pattern, so every operation stands where they look for it. */
#include "runtime/cuda/cudnn_graph.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#define RANK 4 /* [sequences, heads, rows, columns] */
#define CONFIGS_MAX 8
#define NOTES_MAX 16

/* How a tensor's sizes and strides follow from the key. */
enum form {
    FORM_QUERIES, /* [b, heads, s, d] of an operand */
    FORM_KEYS,    /* [b, kv_heads, s, d] of an operand */
    FORM_KEYS_T,  /* [b, kv_heads, d, s] of an operand */
    FORM_DENSE,   /* [b, heads, s, d] */
    FORM_SCORES,  /* [b, heads, s, s] */
    FORM_SCORES_T,
    FORM_ROWS, /* [b, heads, s, 1] */
    FORM_SCALAR,
};

/* Where a tensor's values are, beside the operands 0.. of the kernel call. */
enum { IN_DELTA = MF_CUDA_CUDNN_DELTA, VIRTUAL, VALUE_SCALE, VALUE_HIDDEN, VALUE_ONE };

#define BF16 CUDNN_DATA_BFLOAT16
#define FP32 CUDNN_DATA_FLOAT
#define INT32 CUDNN_DATA_INT32
#define BOOL CUDNN_DATA_BOOLEAN

/* X(name, form, type, place). The same keys or values in two forms are two tensors. */
#define TENSOR_MAP(X)                                                                              \
    X(NONE, SCALAR, FP32, VIRTUAL)                                                                 \
    X(Q, QUERIES, BF16, 0)                                                                         \
    X(K_T, KEYS_T, BF16, 1)                                                                        \
    X(V, KEYS, BF16, 2)                                                                            \
    X(V_T, KEYS_T, BF16, 2)                                                                        \
    X(O, QUERIES, BF16, 3)                                                                         \
    X(LSE, ROWS, FP32, 4)                                                                          \
    X(DO, QUERIES, BF16, 5)                                                                        \
    X(DQ, QUERIES, BF16, 6)                                                                        \
    X(DK, KEYS, BF16, 7)                                                                           \
    X(DV, KEYS, BF16, 8)                                                                           \
    X(SCALE, SCALAR, FP32, VALUE_SCALE)                                                            \
    X(HIDDEN, SCALAR, FP32, VALUE_HIDDEN)                                                          \
    X(ONE, SCALAR, FP32, VALUE_ONE)                                                                \
    X(SCORES, SCORES, FP32, VIRTUAL)                                                               \
    X(SCALED, SCORES, FP32, VIRTUAL)                                                               \
    X(LOWERED, SCORES, FP32, VIRTUAL)                                                              \
    X(QUERY_INDEX, SCORES, INT32, VIRTUAL)                                                         \
    X(KEY_INDEX, SCORES, INT32, VIRTUAL)                                                           \
    X(SEEN, SCORES, BOOL, VIRTUAL)                                                                 \
    X(MASKED, SCORES, FP32, VIRTUAL)                                                               \
    X(TOP, ROWS, FP32, VIRTUAL)                                                                    \
    X(POWER, SCORES, FP32, VIRTUAL)                                                                \
    X(SUM, ROWS, FP32, VIRTUAL)                                                                    \
    X(LOG, ROWS, FP32, VIRTUAL)                                                                    \
    X(P, SCORES, BF16, VIRTUAL)                                                                    \
    X(P_T, SCORES_T, BF16, VIRTUAL)                                                                \
    X(O_DO, DENSE, FP32, VIRTUAL)                                                                  \
    X(O_DO_SUM, ROWS, FP32, VIRTUAL)                                                               \
    X(DELTA, ROWS, FP32, IN_DELTA)                                                                 \
    X(DV_ALL, DENSE, BF16, VIRTUAL)                                                                \
    X(DP, SCORES, FP32, VIRTUAL)                                                                   \
    X(DP_DELTA, SCORES, FP32, VIRTUAL)                                                             \
    X(DS, SCORES, FP32, VIRTUAL)                                                                   \
    X(DS_SCALED, SCORES, FP32, VIRTUAL)                                                            \
    X(DS_T, SCORES_T, BF16, VIRTUAL)                                                               \
    X(DK_ALL, DENSE, BF16, VIRTUAL)                                                                \
    X(K, KEYS, BF16, VIRTUAL)

enum tensor {
#define X(name, form, type, place) name,
    TENSOR_MAP(X)
#undef X
        TENSOR_COUNT
};

static const struct {
    enum form form;
    cudnnDataType_t type;
    int place;
    const char *name;
} tensors[TENSOR_COUNT] = {
#define X(name, form, type, place) [name] = {FORM_##form, type, place, #name},
    TENSOR_MAP(X)
#undef X
};

enum operation { OP_POINTWISE, OP_MATMUL, OP_REDUCE, OP_RESHAPE };

/* out = operation(x, b, t). `mode` is cuDNN's of the operation, `type` the one it computes in,
 * `axis` that of an index. The last sums the query heads of a group, which there may be one of. */
struct step {
    enum operation operation;
    int mode;
    cudnnDataType_t type;
    enum tensor x, b, t, out;
    int axis;
    bool of_group;
};

#define POINT(name, x, b, out)                                                                     \
    {                                                                                              \
        OP_POINTWISE, CUDNN_POINTWISE_##name, FP32, x, b, NONE, out, 0, false                      \
    }
#define INDEX(x, out, axis)                                                                        \
    {                                                                                              \
        OP_POINTWISE, CUDNN_POINTWISE_GEN_INDEX, FP32, x, NONE, NONE, out, axis, false             \
    }
#define MATMUL(x, b, out)                                                                          \
    {                                                                                              \
        OP_MATMUL, 0, FP32, x, b, NONE, out, 0, false                                              \
    }
#define REDUCE(name, x, out, of_group)                                                             \
    {                                                                                              \
        OP_REDUCE, CUDNN_REDUCE_TENSOR_##name, FP32, x, NONE, NONE, out, 0, of_group               \
    }
#define RESHAPE(x, out)                                                                            \
    {                                                                                              \
        OP_RESHAPE, 0, FP32, x, NONE, NONE, out, 0, false                                          \
    }
/* Scores of keys after the query count as minus infinity. */
#define MASK(x)                                                                                    \
    INDEX(x, QUERY_INDEX, 2), INDEX(x, KEY_INDEX, 3), {OP_POINTWISE, CUDNN_POINTWISE_CMP_GE,       \
                                                       BOOL,         QUERY_INDEX,                  \
                                                       KEY_INDEX,    NONE,                         \
                                                       SEEN,         0,                            \
                                                       false},                                     \
    {                                                                                              \
        OP_POINTWISE, CUDNN_POINTWISE_BINARY_SELECT, FP32, x, HIDDEN, SEEN, MASKED, 0, false       \
    }

static const struct step forward_steps[] = {
    MATMUL(Q, K_T, SCORES),
    POINT(MUL, SCORES, SCALE, SCALED),
    MASK(SCALED),
    REDUCE(MAX, MASKED, TOP, false),
    POINT(SUB, MASKED, TOP, LOWERED),
    POINT(EXP, LOWERED, NONE, POWER),
    REDUCE(ADD, POWER, SUM, false),
    POINT(LOG, SUM, NONE, LOG),
    POINT(ADD, TOP, LOG, LSE),
    POINT(DIV, POWER, SUM, P),
    MATMUL(P, V, O),
};

static const struct step backward_steps[] = {
    POINT(MUL, DO, O, O_DO),
    REDUCE(ADD, O_DO, O_DO_SUM, false),
    POINT(MUL, O_DO_SUM, ONE, DELTA),
    MATMUL(Q, K_T, SCORES),
    POINT(MUL, SCORES, SCALE, SCALED),
    POINT(SUB, SCALED, LSE, LOWERED),
    MASK(LOWERED),
    POINT(EXP, MASKED, NONE, POWER),
    RESHAPE(POWER, P_T),
    MATMUL(P_T, DO, DV_ALL),
    REDUCE(ADD, DV_ALL, DV, true),
    MATMUL(DO, V_T, DP),
    POINT(SUB, DP, DELTA, DP_DELTA),
    POINT(MUL, DP_DELTA, POWER, DS),
    POINT(MUL, DS, SCALE, DS_SCALED),
    RESHAPE(DS_SCALED, DS_T),
    MATMUL(DS_T, Q, DK_ALL),
    REDUCE(ADD, DK_ALL, DK, true),
    RESHAPE(K_T, K),
    /* Straight into dq: the graph with a sum in fp32 between them adds in no fixed order. */
    MATMUL(DS_SCALED, K, DQ),
};
#define STEPS_MAX (sizeof(backward_steps) / sizeof(backward_steps[0]))

struct builder {
    const struct mf_cuda_cudnn_library *library;
    const struct mf_cuda_cudnn_key *key;
    struct mf_cuda_cudnn_plan *out;
    cudnnBackendDescriptor_t tensors[TENSOR_COUNT];
};

/* An attribute of a descriptor, as cudnnBackendSetAttribute takes it. */
struct attribute {
    cudnnBackendAttributeName_t name;
    cudnnBackendAttributeType_t type;
    int64_t count;
    const void *values;
};

static enum mf_status explain(const struct mf_cuda_cudnn_library *library, cudnnStatus_t failed,
                              const char *doing, const char *what, int detail)
{
    char text[256] = "";
    library->cudnnGetLastErrorString(text, sizeof(text));
    for (char *end = strchr(text, '\n'); end != NULL; end = strchr(text, '\n')) {
        *end = ' ';
    }
    return mf_status_set(MF_STATUS_UNSUPPORTED, "cuDNN: %s %s (%d): %s: %.200s", doing, what,
                         detail, library->cudnnGetErrorString(failed), text);
}

static enum mf_status create(struct builder *builder, cudnnBackendDescriptorType_t type,
                             const char *what, cudnnBackendDescriptor_t *out)
{
    struct mf_cuda_cudnn_plan *plan = builder->out;
    *out = NULL;
    if (plan->owned_count == MF_CUDA_CUDNN_DESCRIPTORS_MAX) {
        return mf_status_set(MF_STATUS_INTERNAL, "more than %d descriptors of a cuDNN graph",
                             MF_CUDA_CUDNN_DESCRIPTORS_MAX);
    }
    cudnnStatus_t status = builder->library->cudnnBackendCreateDescriptor(type, out);
    if (status != CUDNN_STATUS_SUCCESS) {
        return explain(builder->library, status, "creating", what, 0);
    }
    plan->owned[plan->owned_count++] = *out;
    return MF_STATUS_OK;
}

/* A finalised descriptor. */
static enum mf_status make(struct builder *builder, cudnnBackendDescriptorType_t type,
                           const char *what, const struct attribute *attributes, int count,
                           cudnnBackendDescriptor_t *out)
{
    const struct mf_cuda_cudnn_library *library = builder->library;
    MF_TRY(create(builder, type, what, out));
    for (int index = 0; index < count; index++) {
        const struct attribute *a = &attributes[index];
        cudnnStatus_t status =
            library->cudnnBackendSetAttribute(*out, a->name, a->type, a->count, a->values);
        if (status != CUDNN_STATUS_SUCCESS) {
            return explain(library, status, "an attribute of", what, (int)a->name);
        }
    }
    cudnnStatus_t status = library->cudnnBackendFinalize(*out);
    if (library->verbose) {
        fprintf(stderr, "cuDNN: %s: %s\n", what, library->cudnnGetErrorString(status));
    }
    return status == CUDNN_STATUS_SUCCESS ? MF_STATUS_OK
                                          : explain(library, status, "finalising", what, 0);
}

/* ---- tensors ---- */

static void set4(int64_t out[RANK], int64_t a, int64_t b, int64_t c, int64_t d)
{
    out[0] = a;
    out[1] = b;
    out[2] = c;
    out[3] = d;
}

static void shape_of(const struct mf_cuda_cudnn_key *key, enum tensor tensor, int64_t sizes[RANK],
                     int64_t strides[RANK])
{
    int64_t b = key->sequences;
    int64_t h = key->heads;
    int64_t g = key->kv_heads;
    int64_t s = key->seq_len;
    int64_t d = key->head_dim;
    int place = tensor == K ? 1 : tensors[tensor].place; /* K is K_T seen the other way round */
    int64_t row = place < MF_OPERANDS_MAX ? key->strides[place] : 0;
    switch (tensors[tensor].form) {
    case FORM_QUERIES:
        set4(sizes, b, h, s, d);
        set4(strides, s * row, d, row, 1);
        break;
    case FORM_KEYS:
        set4(sizes, b, g, s, d);
        set4(strides, s * row, d, row, 1);
        break;
    case FORM_KEYS_T:
        set4(sizes, b, g, d, s);
        set4(strides, s * row, d, 1, row);
        break;
    case FORM_DENSE:
        set4(sizes, b, h, s, d);
        set4(strides, h * s * d, s * d, d, 1);
        break;
    case FORM_SCORES:
        set4(sizes, b, h, s, s);
        set4(strides, h * s * s, s * s, s, 1);
        break;
    case FORM_SCORES_T:
        set4(sizes, b, h, s, s);
        set4(strides, h * s * s, s * s, 1, s);
        break;
    case FORM_ROWS:
        set4(sizes, b, h, s, 1);
        set4(strides, h * s, s, 1, 1);
        break;
    case FORM_SCALAR:
        set4(sizes, 1, 1, 1, 1);
        set4(strides, 1, 1, 1, 1);
        break;
    }
}

static void note_pointer(struct builder *builder, enum tensor tensor)
{
    struct mf_cuda_cudnn_plan *plan = builder->out;
    int place = tensors[tensor].place;
    struct mf_cuda_cudnn_pointer *pointer = &plan->pointers[plan->pointer_count++];
    MF_ASSERT(plan->pointer_count <= MF_CUDA_CUDNN_POINTERS_MAX);
    pointer->id = tensor;
    pointer->operand = place <= IN_DELTA ? place : -1;
    pointer->value = place == VALUE_SCALE    ? 1.0f / sqrtf((float)builder->key->head_dim)
                     : place == VALUE_HIDDEN ? -INFINITY
                                             : 1.0f;
}

/* The tensor's descriptor, made when it is first asked for. */
static enum mf_status use(struct builder *builder, enum tensor tensor,
                          cudnnBackendDescriptor_t *out)
{
    int64_t id = tensor;
    int64_t alignment = 16; /* bytes; what the tensor cores' loads need */
    int64_t sizes[RANK];
    int64_t strides[RANK];
    int place = tensors[tensor].place;
    bool no_memory = place == VIRTUAL;
    bool by_value = place > VIRTUAL;
    *out = builder->tensors[tensor];
    if (*out != NULL) {
        return MF_STATUS_OK;
    }
    shape_of(builder->key, tensor, sizes, strides);
    const struct attribute attributes[] = {
        {CUDNN_ATTR_TENSOR_DATA_TYPE, CUDNN_TYPE_DATA_TYPE, 1, &tensors[tensor].type},
        {CUDNN_ATTR_TENSOR_DIMENSIONS, CUDNN_TYPE_INT64, RANK, sizes},
        {CUDNN_ATTR_TENSOR_STRIDES, CUDNN_TYPE_INT64, RANK, strides},
        {CUDNN_ATTR_TENSOR_UNIQUE_ID, CUDNN_TYPE_INT64, 1, &id},
        {CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT, CUDNN_TYPE_INT64, 1, &alignment},
        {CUDNN_ATTR_TENSOR_IS_VIRTUAL, CUDNN_TYPE_BOOLEAN, 1, &no_memory},
        {CUDNN_ATTR_TENSOR_IS_BY_VALUE, CUDNN_TYPE_BOOLEAN, 1, &by_value},
    };
    MF_TRY(
        make(builder, CUDNN_BACKEND_TENSOR_DESCRIPTOR, tensors[tensor].name, attributes, 7, out));
    builder->tensors[tensor] = *out;
    if (!no_memory) {
        note_pointer(builder, tensor);
    }
    return MF_STATUS_OK;
}

/* ---- operations ---- */

#define DESCRIPTOR(name, pointer)                                                                  \
    {                                                                                              \
        name, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, pointer                                            \
    }

static enum mf_status make_pointwise(struct builder *builder, const struct step *step,
                                     const cudnnBackendDescriptor_t operands[4],
                                     cudnnBackendDescriptor_t *out)
{
    cudnnBackendDescriptor_t how = NULL;
    cudnnPointwiseMode_t mode = (cudnnPointwiseMode_t)step->mode;
    int64_t axis = step->axis;
    const struct attribute hows[] = {
        {CUDNN_ATTR_POINTWISE_MODE, CUDNN_TYPE_POINTWISE_MODE, 1, &mode},
        {CUDNN_ATTR_POINTWISE_MATH_PREC, CUDNN_TYPE_DATA_TYPE, 1, &step->type},
        {CUDNN_ATTR_POINTWISE_AXIS, CUDNN_TYPE_INT64, 1, &axis},
    };
    MF_TRY(make(builder, CUDNN_BACKEND_POINTWISE_DESCRIPTOR, tensors[step->out].name, hows,
                mode == CUDNN_POINTWISE_GEN_INDEX ? 3 : 2, &how));
    const struct attribute attributes[] = {
        DESCRIPTOR(CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR, &how),
        DESCRIPTOR(CUDNN_ATTR_OPERATION_POINTWISE_XDESC, &operands[0]),
        DESCRIPTOR(CUDNN_ATTR_OPERATION_POINTWISE_YDESC, &operands[3]),
        DESCRIPTOR(CUDNN_ATTR_OPERATION_POINTWISE_BDESC, &operands[1]),
        DESCRIPTOR(CUDNN_ATTR_OPERATION_POINTWISE_TDESC, &operands[2]),
    };
    int count = step->b == NONE ? 3 : step->t == NONE ? 4 : 5;
    return make(builder, CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR, tensors[step->out].name,
                attributes, count, out);
}

static enum mf_status make_matmul(struct builder *builder, const struct step *step,
                                  const cudnnBackendDescriptor_t operands[4],
                                  cudnnBackendDescriptor_t *out)
{
    cudnnBackendDescriptor_t how = NULL;
    const struct attribute hows[] = {
        {CUDNN_ATTR_MATMUL_COMP_TYPE, CUDNN_TYPE_DATA_TYPE, 1, &step->type},
    };
    MF_TRY(make(builder, CUDNN_BACKEND_MATMUL_DESCRIPTOR, tensors[step->out].name, hows, 1, &how));
    const struct attribute attributes[] = {
        DESCRIPTOR(CUDNN_ATTR_OPERATION_MATMUL_ADESC, &operands[0]),
        DESCRIPTOR(CUDNN_ATTR_OPERATION_MATMUL_BDESC, &operands[1]),
        DESCRIPTOR(CUDNN_ATTR_OPERATION_MATMUL_CDESC, &operands[3]),
        DESCRIPTOR(CUDNN_ATTR_OPERATION_MATMUL_DESC, &how),
    };
    return make(builder, CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR, tensors[step->out].name,
                attributes, 4, out);
}

static enum mf_status make_reduce(struct builder *builder, const struct step *step,
                                  const cudnnBackendDescriptor_t operands[4],
                                  cudnnBackendDescriptor_t *out)
{
    cudnnBackendDescriptor_t how = NULL;
    cudnnReduceTensorOp_t mode = (cudnnReduceTensorOp_t)step->mode;
    const struct attribute hows[] = {
        {CUDNN_ATTR_REDUCTION_COMP_TYPE, CUDNN_TYPE_DATA_TYPE, 1, &step->type},
        {CUDNN_ATTR_REDUCTION_OPERATOR, CUDNN_TYPE_REDUCTION_OPERATOR_TYPE, 1, &mode},
    };
    MF_TRY(
        make(builder, CUDNN_BACKEND_REDUCTION_DESCRIPTOR, tensors[step->out].name, hows, 2, &how));
    const struct attribute attributes[] = {
        DESCRIPTOR(CUDNN_ATTR_OPERATION_REDUCTION_XDESC, &operands[0]),
        DESCRIPTOR(CUDNN_ATTR_OPERATION_REDUCTION_YDESC, &operands[3]),
        DESCRIPTOR(CUDNN_ATTR_OPERATION_REDUCTION_DESC, &how),
    };
    return make(builder, CUDNN_BACKEND_OPERATION_REDUCTION_DESCRIPTOR, tensors[step->out].name,
                attributes, 3, out);
}

static enum mf_status make_reshape(struct builder *builder, const struct step *step,
                                   const cudnnBackendDescriptor_t operands[4],
                                   cudnnBackendDescriptor_t *out)
{
    const struct attribute attributes[] = {
        DESCRIPTOR(CUDNN_ATTR_OPERATION_RESHAPE_XDESC, &operands[0]),
        DESCRIPTOR(CUDNN_ATTR_OPERATION_RESHAPE_YDESC, &operands[3]),
    };
    return make(builder, CUDNN_BACKEND_OPERATION_RESHAPE_DESCRIPTOR, tensors[step->out].name,
                attributes, 2, out);
}

static enum mf_status make_operation(struct builder *builder, const struct step *step,
                                     cudnnBackendDescriptor_t *out)
{
    static enum mf_status (*const makers[])(struct builder *, const struct step *,
                                            const cudnnBackendDescriptor_t[4],
                                            cudnnBackendDescriptor_t *) = {
        [OP_POINTWISE] = make_pointwise,
        [OP_MATMUL] = make_matmul,
        [OP_REDUCE] = make_reduce,
        [OP_RESHAPE] = make_reshape,
    };
    bool grouped = builder->key->kv_heads != builder->key->heads;
    struct step made = *step;
    if (!grouped) { /* nothing to sum: the product is the gradient */
        made.out = made.out == DV_ALL ? DV : made.out == DK_ALL ? DK : made.out;
    }
    const enum tensor used[4] = {made.x, made.b, made.t, made.out};
    cudnnBackendDescriptor_t operands[4] = {NULL};
    for (int index = 0; index < 4; index++) {
        if (used[index] != NONE) {
            MF_TRY(use(builder, used[index], &operands[index]));
        }
    }
    return makers[made.operation](builder, &made, operands, out);
}

static enum mf_status make_graph(struct builder *builder, cudnnHandle_t handle,
                                 cudnnBackendDescriptor_t *out)
{
    bool backward = builder->key->backward != 0;
    const struct step *steps = backward ? backward_steps : forward_steps;
    size_t count = backward ? STEPS_MAX : sizeof(forward_steps) / sizeof(forward_steps[0]);
    cudnnBackendDescriptor_t operations[STEPS_MAX];
    int64_t made = 0;
    for (size_t index = 0; index < count; index++) {
        if (!steps[index].of_group || builder->key->kv_heads != builder->key->heads) {
            MF_TRY(make_operation(builder, &steps[index], &operations[made]));
            made++;
        }
    }
    const struct attribute attributes[] = {
        {CUDNN_ATTR_OPERATIONGRAPH_OPS, CUDNN_TYPE_BACKEND_DESCRIPTOR, made, operations},
        {CUDNN_ATTR_OPERATIONGRAPH_HANDLE, CUDNN_TYPE_HANDLE, 1, &handle},
    };
    return make(builder, CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR,
                backward ? "the backward graph" : "the forward graph", attributes,
                handle != NULL ? 2 : 1, out);
}

/* ---- from a graph to a plan ---- */

/* Whether the engine of a configuration adds in a fixed order. */
static enum mf_status ask_order(struct builder *builder, cudnnBackendDescriptor_t config,
                                bool *fixed)
{
    const struct mf_cuda_cudnn_library *library = builder->library;
    cudnnBackendDescriptor_t engine = NULL;
    cudnnBackendNumericalNote_t notes[NOTES_MAX];
    int64_t count = 0;
    MF_TRY(create(builder, CUDNN_BACKEND_ENGINE_DESCRIPTOR, "an engine", &engine));
    cudnnStatus_t status = library->cudnnBackendGetAttribute(
        config, CUDNN_ATTR_ENGINECFG_ENGINE, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &count, &engine);
    if (status == CUDNN_STATUS_SUCCESS) {
        status =
            library->cudnnBackendGetAttribute(engine, CUDNN_ATTR_ENGINE_NUMERICAL_NOTE,
                                              CUDNN_TYPE_NUMERICAL_NOTE, NOTES_MAX, &count, notes);
    }
    if (status != CUDNN_STATUS_SUCCESS) {
        return explain(library, status, "asking for the notes of", "an engine", 0);
    }
    *fixed = true;
    for (int64_t index = 0; index < count && index < NOTES_MAX; index++) {
        *fixed = *fixed && notes[index] != CUDNN_NUMERICAL_NOTE_NONDETERMINISTIC;
    }
    return MF_STATUS_OK;
}

static enum mf_status try_config(struct builder *builder, cudnnHandle_t handle,
                                 cudnnBackendDescriptor_t config, int64_t workspace_bytes_max)
{
    struct mf_cuda_cudnn_plan *out = builder->out;
    cudnnBackendDescriptor_t plan = NULL;
    bool fixed = false;
    int64_t bytes = 0;
    int64_t count = 0;
    MF_TRY(ask_order(builder, config, &fixed));
    if (!fixed) {
        return mf_status_set(MF_STATUS_UNSUPPORTED, "cuDNN: its engine adds in no fixed order");
    }
    const struct attribute attributes[] = {
        DESCRIPTOR(CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG, &config),
        {CUDNN_ATTR_EXECUTION_PLAN_HANDLE, CUDNN_TYPE_HANDLE, 1, &handle},
    };
    MF_TRY(make(builder, CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR, "the plan", attributes,
                handle != NULL ? 2 : 1, &plan));
    cudnnStatus_t status = builder->library->cudnnBackendGetAttribute(
        plan, CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE, CUDNN_TYPE_INT64, 1, &count, &bytes);
    if (status != CUDNN_STATUS_SUCCESS) {
        return explain(builder->library, status, "asking for the workspace of", "a plan", 0);
    }
    out->workspace_bytes = bytes;
    if (bytes > workspace_bytes_max) {
        return mf_status_set(MF_STATUS_UNSUPPORTED,
                             "cuDNN: its plan needs a workspace of %lld bytes, there are %lld",
                             (long long)bytes, (long long)workspace_bytes_max);
    }
    out->plan = plan;
    return MF_STATUS_OK;
}

static enum mf_status choose(struct builder *builder, cudnnHandle_t handle,
                             cudnnBackendDescriptor_t device, cudnnBackendDescriptor_t graph,
                             int64_t workspace_bytes_max)
{
    const struct mf_cuda_cudnn_library *library = builder->library;
    cudnnBackendDescriptor_t heuristics = NULL;
    cudnnBackendDescriptor_t configs[CONFIGS_MAX];
    cudnnBackendHeurMode_t mode = CUDNN_HEUR_MODE_A;
    int64_t count = 0;
    const struct attribute attributes[] = {
        DESCRIPTOR(CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH, &graph),
        {CUDNN_ATTR_ENGINEHEUR_MODE, CUDNN_TYPE_HEUR_MODE, 1, &mode},
        DESCRIPTOR(CUDNN_ATTR_ENGINEHEUR_DEVICEPROP, &device),
    };
    MF_TRY(make(builder, CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR, "the choice of an engine", attributes,
                device != NULL ? 3 : 2, &heuristics));
    for (int index = 0; index < CONFIGS_MAX; index++) {
        MF_TRY(create(builder, CUDNN_BACKEND_ENGINECFG_DESCRIPTOR, "a configuration",
                      &configs[index]));
    }
    cudnnStatus_t status = library->cudnnBackendGetAttribute(
        heuristics, CUDNN_ATTR_ENGINEHEUR_RESULTS, CUDNN_TYPE_BACKEND_DESCRIPTOR, CONFIGS_MAX,
        &count, configs);
    if (status != CUDNN_STATUS_SUCCESS) {
        return explain(library, status, "asking for", "engines", 0);
    }
    enum mf_status last = mf_status_set(MF_STATUS_UNSUPPORTED, "cuDNN: no engine takes this graph");
    for (int64_t index = 0; index < count && index < CONFIGS_MAX; index++) {
        last = try_config(builder, handle, configs[index], workspace_bytes_max);
        if (last == MF_STATUS_OK) {
            break;
        }
    }
    return last;
}

enum mf_status mf_cuda_cudnn_graph_build(const struct mf_cuda_cudnn_library *library,
                                         cudnnHandle_t handle, cudnnBackendDescriptor_t device,
                                         const struct mf_cuda_cudnn_key *key,
                                         int64_t workspace_bytes_max,
                                         struct mf_cuda_cudnn_plan *out)
{
    struct builder builder = {.library = library, .key = key, .out = out};
    cudnnBackendDescriptor_t graph = NULL;
    memset(out, 0, sizeof(*out));
    MF_TRY(make_graph(&builder, handle, &graph));
    return choose(&builder, handle, device, graph, workspace_bytes_max);
}

void mf_cuda_cudnn_graph_reset(const struct mf_cuda_cudnn_library *library,
                               struct mf_cuda_cudnn_plan *plan)
{
    while (plan->owned_count > 0) {
        plan->owned_count--;
        (void)library->cudnnBackendDestroyDescriptor(plan->owned[plan->owned_count]);
    }
    memset(plan, 0, sizeof(*plan));
}

enum mf_status mf_cuda_cudnn_graph_run(const struct mf_cuda_cudnn_library *library,
                                       cudnnHandle_t handle, const struct mf_cuda_cudnn_plan *plan,
                                       void *const addresses[MF_OPERANDS_MAX + 1], void *workspace)
{
    int64_t ids[MF_CUDA_CUDNN_POINTERS_MAX];
    const void *pointers[MF_CUDA_CUDNN_POINTERS_MAX];
    for (int32_t index = 0; index < plan->pointer_count; index++) {
        const struct mf_cuda_cudnn_pointer *pointer = &plan->pointers[index];
        ids[index] = pointer->id;
        pointers[index] = pointer->operand >= 0 ? addresses[pointer->operand] : &pointer->value;
    }
    const struct attribute attributes[] = {
        {CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS, CUDNN_TYPE_INT64, plan->pointer_count, ids},
        {CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS, CUDNN_TYPE_VOID_PTR, plan->pointer_count, pointers},
        {CUDNN_ATTR_VARIANT_PACK_WORKSPACE, CUDNN_TYPE_VOID_PTR, 1, &workspace},
    };
    struct mf_cuda_cudnn_plan pack = {0};
    struct builder builder = {.library = library, .out = &pack};
    cudnnBackendDescriptor_t made = NULL;
    enum mf_status status = make(&builder, CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR, "the addresses",
                                 attributes, 3, &made);
    if (status == MF_STATUS_OK) {
        cudnnStatus_t failed = library->cudnnBackendExecute(handle, plan->plan, made);
        status = failed == CUDNN_STATUS_SUCCESS ? MF_STATUS_OK
                                                : explain(library, failed, "running", "a plan", 0);
    }
    mf_cuda_cudnn_graph_reset(library, &pack);
    return status;
}
