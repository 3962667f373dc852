/*
 * Causal attention as tensors and operations of cuDNN's graphs: the tables of cudnn_graph.c.
 *
 * What: every tensor's form, type and place, and the steps of both passes. The patterns are those
 * of cuDNN's documentation (Graph API, "Attention") and of the open cudnn-frontend: engines find
 *   them by their shape, so every operation stands where they look for it.
 * Who calls it: cudnn_graph.c alone. Memory: constant. Thread: any. Fails: no.
 */
#ifndef MF_RUNTIME_CUDA_CUDNN_TABLES_H
#define MF_RUNTIME_CUDA_CUDNN_TABLES_H

#include "runtime/cuda/cudnn_graph.h"

/* Sizes and strides: b sequences, h heads, g key heads, s tokens, d elements of a head, row = the
 * elements between rows of an operand. */
enum number { N_1, N_B, N_H, N_G, N_S, N_D, N_ROW, N_S_ROW, N_SD, N_HSD, N_SS, N_HSS, N_HS };

enum form {
    FORM_QUERIES, /* an operand */
    FORM_KEYS,
    FORM_KEYS_T,   /* the same seen the other way round */
    FORM_DENSE,    /* as large as the queries */
    FORM_SCORES,   /* [query, key] */
    FORM_SCORES_T, /* the same seen the other way round */
    FORM_ROWS,     /* a number a query */
    FORM_SCALAR,
};

static const struct {
    enum number sizes[4], strides[4];
} forms[] = {
    [FORM_QUERIES] = {{N_B, N_H, N_S, N_D}, {N_S_ROW, N_D, N_ROW, N_1}},
    [FORM_KEYS] = {{N_B, N_G, N_S, N_D}, {N_S_ROW, N_D, N_ROW, N_1}},
    [FORM_KEYS_T] = {{N_B, N_G, N_D, N_S}, {N_S_ROW, N_D, N_1, N_ROW}},
    [FORM_DENSE] = {{N_B, N_H, N_S, N_D}, {N_HSD, N_SD, N_D, N_1}},
    [FORM_SCORES] = {{N_B, N_H, N_S, N_S}, {N_HSS, N_SS, N_S, N_1}},
    [FORM_SCORES_T] = {{N_B, N_H, N_S, N_S}, {N_HSS, N_SS, N_1, N_S}},
    [FORM_ROWS] = {{N_B, N_H, N_S, N_1}, {N_HS, N_S, N_1, N_1}},
    [FORM_SCALAR] = {{N_1, N_1, N_1, N_1}, {N_1, N_1, N_1, N_1}},
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
    X(SUM_LOG, ROWS, FP32, VIRTUAL)                                                                \
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

/* The four sorts of operations: the descriptor of one, and that of how it is done, with the
 * attributes that they have; OTHER = it has no such attribute. */
enum sort { POINTWISE, PRODUCT, REDUCTION, RESHAPE };

#define OTHER ((cudnnBackendAttributeName_t)-1)

static const struct {
    cudnnBackendDescriptorType_t how;
    cudnnBackendAttributeName_t precision, mode;
    cudnnBackendAttributeType_t mode_type;
    cudnnBackendDescriptorType_t operation;
    cudnnBackendAttributeName_t how_name;
    cudnnBackendAttributeName_t operands[4]; /* x, b, t, out */
} sorts[] = {
    [POINTWISE] = {CUDNN_BACKEND_POINTWISE_DESCRIPTOR,
                   CUDNN_ATTR_POINTWISE_MATH_PREC,
                   CUDNN_ATTR_POINTWISE_MODE,
                   CUDNN_TYPE_POINTWISE_MODE,
                   CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR,
                   CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR,
                   {CUDNN_ATTR_OPERATION_POINTWISE_XDESC, CUDNN_ATTR_OPERATION_POINTWISE_BDESC,
                    CUDNN_ATTR_OPERATION_POINTWISE_TDESC, CUDNN_ATTR_OPERATION_POINTWISE_YDESC}},
    [PRODUCT] = {CUDNN_BACKEND_MATMUL_DESCRIPTOR,
                 CUDNN_ATTR_MATMUL_COMP_TYPE,
                 OTHER,
                 CUDNN_TYPE_INT64,
                 CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR,
                 CUDNN_ATTR_OPERATION_MATMUL_DESC,
                 {CUDNN_ATTR_OPERATION_MATMUL_ADESC, CUDNN_ATTR_OPERATION_MATMUL_BDESC, OTHER,
                  CUDNN_ATTR_OPERATION_MATMUL_CDESC}},
    [REDUCTION] = {CUDNN_BACKEND_REDUCTION_DESCRIPTOR,
                   CUDNN_ATTR_REDUCTION_COMP_TYPE,
                   CUDNN_ATTR_REDUCTION_OPERATOR,
                   CUDNN_TYPE_REDUCTION_OPERATOR_TYPE,
                   CUDNN_BACKEND_OPERATION_REDUCTION_DESCRIPTOR,
                   CUDNN_ATTR_OPERATION_REDUCTION_DESC,
                   {CUDNN_ATTR_OPERATION_REDUCTION_XDESC, OTHER, OTHER,
                    CUDNN_ATTR_OPERATION_REDUCTION_YDESC}},
    [RESHAPE] = {.operation = CUDNN_BACKEND_OPERATION_RESHAPE_DESCRIPTOR,
                 .precision = OTHER,
                 .operands = {CUDNN_ATTR_OPERATION_RESHAPE_XDESC, OTHER, OTHER,
                              CUDNN_ATTR_OPERATION_RESHAPE_YDESC}},
};

/* X(name, sort, cuDNN's mode, type it computes in) */
#define OPERATION_MAP(X)                                                                           \
    X(MATMUL, PRODUCT, 0, FP32)                                                                    \
    X(TRANSPOSE, RESHAPE, 0, FP32)                                                                 \
    X(MAX_ROW, REDUCTION, CUDNN_REDUCE_TENSOR_MAX, FP32)                                           \
    X(SUM_ROW, REDUCTION, CUDNN_REDUCE_TENSOR_ADD, FP32)                                           \
    X(SUM_GROUP, REDUCTION, CUDNN_REDUCE_TENSOR_ADD, FP32)                                         \
    X(ADD, POINTWISE, CUDNN_POINTWISE_ADD, FP32)                                                   \
    X(SUBTRACT, POINTWISE, CUDNN_POINTWISE_SUB, FP32)                                              \
    X(MULTIPLY, POINTWISE, CUDNN_POINTWISE_MUL, FP32)                                              \
    X(DIVIDE, POINTWISE, CUDNN_POINTWISE_DIV, FP32)                                                \
    X(EXP, POINTWISE, CUDNN_POINTWISE_EXP, FP32)                                                   \
    X(LOG, POINTWISE, CUDNN_POINTWISE_LOG, FP32)                                                   \
    X(INDEX_2, POINTWISE, CUDNN_POINTWISE_GEN_INDEX, FP32)                                         \
    X(INDEX_3, POINTWISE, CUDNN_POINTWISE_GEN_INDEX, FP32)                                         \
    X(NOT_LESS, POINTWISE, CUDNN_POINTWISE_CMP_GE, BOOL)                                           \
    X(SELECT, POINTWISE, CUDNN_POINTWISE_BINARY_SELECT, FP32)

enum operation {
#define X(name, sort, mode, type) name,
    OPERATION_MAP(X)
#undef X
};

static const struct {
    enum sort sort;
    int mode;
    cudnnDataType_t type;
} operations[] = {
#define X(name, sort, mode, type) [name] = {sort, mode, type},
    OPERATION_MAP(X)
#undef X
};

/* out = operation(x, b, t). SUM_GROUP sums the query heads of a key head, if there are several. */
struct step {
    enum operation operation;
    enum tensor x, b, t, out;
};

static const struct step forward_steps[] = {
    {MATMUL, Q, K_T, NONE, SCORES},
    {MULTIPLY, SCORES, SCALE, NONE, SCALED},
    {INDEX_2, SCALED, NONE, NONE, QUERY_INDEX},
    {INDEX_3, SCALED, NONE, NONE, KEY_INDEX},
    {NOT_LESS, QUERY_INDEX, KEY_INDEX, NONE, SEEN},
    {SELECT, SCALED, HIDDEN, SEEN, MASKED},
    {MAX_ROW, MASKED, NONE, NONE, TOP},
    {SUBTRACT, MASKED, TOP, NONE, LOWERED},
    {EXP, LOWERED, NONE, NONE, POWER},
    {SUM_ROW, POWER, NONE, NONE, SUM},
    {LOG, SUM, NONE, NONE, SUM_LOG},
    {ADD, TOP, SUM_LOG, NONE, LSE},
    {DIVIDE, POWER, SUM, NONE, P},
    {MATMUL, P, V, NONE, O},
};

static const struct step backward_steps[] = {
    {MULTIPLY, DO, O, NONE, O_DO},
    {SUM_ROW, O_DO, NONE, NONE, O_DO_SUM},
    {MULTIPLY, O_DO_SUM, ONE, NONE, DELTA},
    {MATMUL, Q, K_T, NONE, SCORES},
    {MULTIPLY, SCORES, SCALE, NONE, SCALED},
    {SUBTRACT, SCALED, LSE, NONE, LOWERED},
    {INDEX_2, LOWERED, NONE, NONE, QUERY_INDEX},
    {INDEX_3, LOWERED, NONE, NONE, KEY_INDEX},
    {NOT_LESS, QUERY_INDEX, KEY_INDEX, NONE, SEEN},
    {SELECT, LOWERED, HIDDEN, SEEN, MASKED},
    {EXP, MASKED, NONE, NONE, POWER},
    {TRANSPOSE, POWER, NONE, NONE, P_T},
    {MATMUL, P_T, DO, NONE, DV_ALL},
    {SUM_GROUP, DV_ALL, NONE, NONE, DV},
    {MATMUL, DO, V_T, NONE, DP},
    {SUBTRACT, DP, DELTA, NONE, DP_DELTA},
    {MULTIPLY, DP_DELTA, POWER, NONE, DS},
    {MULTIPLY, DS, SCALE, NONE, DS_SCALED},
    {TRANSPOSE, DS_SCALED, NONE, NONE, DS_T},
    {MATMUL, DS_T, Q, NONE, DK_ALL},
    {SUM_GROUP, DK_ALL, NONE, NONE, DK},
    {TRANSPOSE, K_T, NONE, NONE, K},
    /* Straight into dq, as cudnn-frontend has it for deterministic gradients: with a sum in fp32
     * between them, blocks of keys add to it in any order. */
    {MATMUL, DS_SCALED, K, NONE, DQ},
};
#define STEPS_MAX (sizeof(backward_steps) / sizeof(backward_steps[0]))

#endif
