/* From tables of tensors and operations to descriptors and a plan; see cudnn_graph.h. */
#include "runtime/cuda/cudnn_graph.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "runtime/cuda/cudnn_tables.h"

#define RANK 4 /* [sequences, heads, rows, columns] */
#define CONFIGS_MAX 8
#define NOTES_MAX 16
#define WORKSPACE_GRAIN 256 /* bytes; beside what grows with the shape there are 128 or so */

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

static void shape_of(const struct mf_cuda_cudnn_key *key, enum tensor tensor, int64_t sizes[RANK],
                     int64_t strides[RANK])
{
    int place = tensor == K ? 1 : tensors[tensor].place; /* K is K_T seen the other way round */
    int64_t s = key->seq_len;
    int64_t d = key->head_dim;
    int64_t row = place < MF_OPERANDS_MAX ? key->strides[place] : 0;
    const int64_t values[] = {
        [N_1] = 1,
        [N_B] = key->sequences,
        [N_H] = key->heads,
        [N_G] = key->kv_heads,
        [N_S] = s,
        [N_D] = d,
        [N_ROW] = row,
        [N_S_ROW] = s * row,
        [N_SD] = s * d,
        [N_HSD] = key->heads * s * d,
        [N_SS] = s * s,
        [N_HSS] = key->heads * s * s,
        [N_HS] = key->heads * s,
    };
    for (int index = 0; index < RANK; index++) {
        sizes[index] = values[forms[tensors[tensor].form].sizes[index]];
        strides[index] = values[forms[tensors[tensor].form].strides[index]];
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

/* How an operation is done; NULL for those that need not say. */
static enum mf_status make_how(struct builder *builder, const struct step *step,
                               cudnnBackendDescriptor_t *out)
{
    enum sort sort = operations[step->operation].sort;
    int64_t axis = step->operation == INDEX_2 ? 2 : 3;
    struct attribute attributes[3] = {
        {sorts[sort].precision, CUDNN_TYPE_DATA_TYPE, 1, &operations[step->operation].type},
    };
    int count = 1;
    *out = NULL;
    if (sorts[sort].precision == OTHER) {
        return MF_STATUS_OK;
    }
    if (sorts[sort].mode != OTHER) {
        attributes[count++] = (struct attribute){sorts[sort].mode, sorts[sort].mode_type, 1,
                                                 &operations[step->operation].mode};
    }
    if (step->operation == INDEX_2 || step->operation == INDEX_3) {
        attributes[count++] =
            (struct attribute){CUDNN_ATTR_POINTWISE_AXIS, CUDNN_TYPE_INT64, 1, &axis};
    }
    return make(builder, sorts[sort].how, tensors[step->out].name, attributes, count, out);
}

static enum mf_status make_operation(struct builder *builder, const struct step *step,
                                     cudnnBackendDescriptor_t *out)
{
    enum sort sort = operations[step->operation].sort;
    const enum tensor used[4] = {step->x, step->b, step->t, step->out};
    cudnnBackendDescriptor_t operands[4];
    cudnnBackendDescriptor_t how;
    struct attribute attributes[5];
    int count = 0;
    MF_TRY(make_how(builder, step, &how));
    if (how != NULL) {
        attributes[count++] =
            (struct attribute){sorts[sort].how_name, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &how};
    }
    for (int index = 0; index < 4; index++) {
        if (used[index] != NONE) {
            MF_TRY(use(builder, used[index], &operands[index]));
            attributes[count++] = (struct attribute){
                sorts[sort].operands[index], CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &operands[index]};
        }
    }
    return make(builder, sorts[sort].operation, tensors[step->out].name, attributes, count, out);
}

static enum mf_status make_graph(struct builder *builder, cudnnHandle_t handle,
                                 cudnnBackendDescriptor_t *out)
{
    bool backward = builder->key->backward != 0;
    const struct step *steps = backward ? backward_steps : forward_steps;
    size_t count = backward ? STEPS_MAX : sizeof(forward_steps) / sizeof(forward_steps[0]);
    bool grouped = builder->key->kv_heads != builder->key->heads;
    cudnnBackendDescriptor_t made[STEPS_MAX];
    int64_t made_count = 0;
    for (size_t index = 0; index < count; index++) {
        struct step step = steps[index];
        if (!grouped && step.operation == SUM_GROUP) {
            continue;
        }
        if (!grouped) { /* nothing to sum: the product is the gradient */
            step.out = step.out == DV_ALL ? DV : step.out == DK_ALL ? DK : step.out;
        }
        MF_TRY(make_operation(builder, &step, &made[made_count]));
        made_count++;
    }
    const struct attribute attributes[] = {
        {CUDNN_ATTR_OPERATIONGRAPH_OPS, CUDNN_TYPE_BACKEND_DESCRIPTOR, made_count, made},
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
        {CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &config},
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
        {CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &graph},
        {CUDNN_ATTR_ENGINEHEUR_MODE, CUDNN_TYPE_HEUR_MODE, 1, &mode},
        {CUDNN_ATTR_ENGINEHEUR_DEVICEPROP, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &device},
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

/* The largest divisor of `count` whose share of `bytes` (of all) fits into `room`; 0 = none. */
static int64_t share(int64_t count, int64_t bytes, int64_t room)
{
    int64_t each = (bytes + count - 1) / count;
    for (int64_t part = count; part > 0; part--) {
        if (count % part == 0 && part * each <= room) {
            return part;
        }
    }
    return 0;
}

/* Workspaces grow with sequences and heads, by `bytes` for all of them, and a little more. */
static bool shrink(struct mf_cuda_cudnn_key *part, int64_t bytes, int64_t room)
{
    int64_t sequences = share(part->sequences, bytes, room);
    if (sequences > 0) {
        part->sequences = sequences;
        return true;
    }
    int64_t kv_heads = share(part->kv_heads, bytes / part->sequences + WORKSPACE_GRAIN, room);
    part->sequences = 1;
    part->heads = (int32_t)(part->heads / part->kv_heads * kv_heads);
    part->kv_heads = (int32_t)kv_heads;
    return kv_heads > 0;
}

enum mf_status mf_cuda_cudnn_graph_fit(const struct mf_cuda_cudnn_library *library,
                                       cudnnHandle_t handle, cudnnBackendDescriptor_t device,
                                       const struct mf_cuda_cudnn_key *key,
                                       int64_t workspace_bytes_max, struct mf_cuda_cudnn_key *part,
                                       struct mf_cuda_cudnn_plan *out)
{
    *part = *key;
    enum mf_status status =
        mf_cuda_cudnn_graph_build(library, handle, device, part, workspace_bytes_max, out);
    int64_t bytes = out->workspace_bytes;
    if (status == MF_STATUS_OK || bytes <= workspace_bytes_max) {
        return status;
    }
    mf_cuda_cudnn_graph_reset(library, out);
    if (!shrink(part, bytes, workspace_bytes_max)) {
        return status; /* not even one key head of one sequence */
    }
    return mf_cuda_cudnn_graph_build(library, handle, device, part, workspace_bytes_max, out);
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
