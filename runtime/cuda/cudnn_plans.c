/* The table of plans and how a call runs in parts; see cudnn_plans.h. */
#include "runtime/cuda/cudnn_plans.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/cuda/cudnn_graph.h"
#include "runtime/cuda/cudnn_library.h"

#define PLANS_MAX 512 /* shapes of a process's models, two passes each; a power of two */
/* Attention of 9.10.0 and 9.10.1 is known to be wrong; earlier ones pad and mask differently. */
#define VERSION_MIN 91002
/* Up to this one a backward pass over other lengths than multiples of 128 needs padding masks. */
#define VERSION_UNPADDED 91500
#define ALIGNMENT 256 /* of parts of the scratch memory */

/* A call in equal parts, each of whole sequences or of some heads of one sequence. */
struct entry {
    struct mf_cuda_cudnn_key key; /* of the whole call */
    struct mf_cuda_cudnn_key part;
    struct mf_cuda_cudnn_plan plan; /* of a part */
    bool used;
    bool refused;
};

struct mf_cuda_cudnn_plans {
    struct mf_cuda_cudnn_library library;
    cudnnHandle_t handle;
    int32_t capability;
    enum mf_status (*drain)(void *lanes);
    void *lanes;
    struct entry *entries; /* [PLANS_MAX], open addressing */
    int32_t count;
    char refused[320];
};

static enum mf_status open_all(struct mf_cuda_cudnn_plans *plans, cudaStream_t stream)
{
    int device = 0;
    int major = 0;
    int minor = 0;
    MF_TRY(mf_cuda_cudnn_library_open(&plans->library));
    if (plans->library.version < VERSION_MIN) {
        return mf_status_set(MF_STATUS_UNSUPPORTED, "%s is too old: 9.10.2 or later is needed",
                             plans->library.name);
    }
    plans->entries = calloc(PLANS_MAX, sizeof(*plans->entries));
    if (plans->entries == NULL) {
        return mf_status_set(MF_STATUS_NO_MEMORY, "no memory for the table of attention plans");
    }
    (void)cudaGetDevice(&device);
    (void)cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device);
    (void)cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, device);
    plans->capability = major * 10 + minor;
    cudnnStatus_t status = plans->library.cudnnCreate(&plans->handle);
    if (status == CUDNN_STATUS_SUCCESS) {
        status = plans->library.cudnnSetStream(plans->handle, stream);
    }
    if (status != CUDNN_STATUS_SUCCESS) {
        return mf_status_set(MF_STATUS_UNSUPPORTED, "%s cannot start on this GPU: %s",
                             plans->library.name, plans->library.cudnnGetErrorString(status));
    }
    return MF_STATUS_OK;
}

enum mf_status mf_cuda_cudnn_plans_open(cudaStream_t stream, enum mf_status (*drain)(void *lanes),
                                        void *lanes, struct mf_cuda_cudnn_plans **out)
{
    *out = NULL;
    struct mf_cuda_cudnn_plans *plans = calloc(1, sizeof(*plans));
    if (plans == NULL) {
        return mf_status_set(MF_STATUS_NO_MEMORY, "no memory for the table of attention plans");
    }
    plans->drain = drain;
    plans->lanes = lanes;
    enum mf_status status = open_all(plans, stream);
    if (status != MF_STATUS_OK) {
        mf_cuda_cudnn_plans_close(plans);
        return status;
    }
    *out = plans;
    return MF_STATUS_OK;
}

void mf_cuda_cudnn_plans_close(struct mf_cuda_cudnn_plans *plans)
{
    if (plans == NULL) {
        return;
    }
    for (int32_t index = 0; plans->entries != NULL && index < PLANS_MAX; index++) {
        mf_cuda_cudnn_graph_reset(&plans->library, &plans->entries[index].plan);
    }
    if (plans->handle != NULL) {
        (void)plans->library.cudnnDestroy(plans->handle);
    }
    free(plans->entries);
    free(plans); /* the library stays: unloading CUDA libraries is not safe at every driver */
}

const char *mf_cuda_cudnn_plans_version(const struct mf_cuda_cudnn_plans *plans)
{
    return plans->library.name;
}

const char *mf_cuda_cudnn_plans_refused(const struct mf_cuda_cudnn_plans *plans)
{
    return plans->refused;
}

/* ---- plans ---- */

/* How the scratch is divided: the softmax statistics of the whole call, backward also the sums of
 * o * do, then `room` bytes for a workspace. */
struct layout {
    int64_t delta; /* offsets */
    int64_t workspace;
    int64_t room;
};

static struct layout lay_out(const struct mf_cuda_context *context,
                             const struct mf_kernel_call *call)
{
    int64_t bytes = call->shape.rows * call->shape.heads * (int64_t)sizeof(float);
    bytes = (bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
    int64_t workspace = call->kernel == MF_KERNEL_ATTENTION_BACKWARD ? 2 * bytes : bytes;
    return (struct layout){bytes, workspace, context->scratch_bytes - workspace};
}

static void key_of(const struct mf_cuda_cudnn_plans *plans, const struct mf_kernel_call *call,
                   struct mf_cuda_cudnn_key *out)
{
    const struct mf_shape *shape = &call->shape;
    bool backward = call->kernel == MF_KERNEL_ATTENTION_BACKWARD;
    memset(out, 0, sizeof(*out)); /* keys are compared as bytes */
    out->sequences = shape->rows / shape->seq_len;
    out->seq_len = shape->seq_len;
    out->heads = shape->heads;
    out->kv_heads = shape->kv_heads;
    out->head_dim = shape->head_dim;
    out->backward = backward;
    out->capability = plans->capability;
    for (int index = 0; index < (backward ? MF_OPERANDS_MAX : 4); index++) {
        out->strides[index] = index == 4 ? 0 : call->operands[index].stride;
    }
}

/* FNV-1a */
static struct entry *find_entry(struct mf_cuda_cudnn_plans *plans,
                                const struct mf_cuda_cudnn_key *key)
{
    uint64_t hash = UINT64_C(14695981039346656037);
    for (size_t index = 0; index < sizeof(*key); index++) {
        hash = (hash ^ ((const uint8_t *)key)[index]) * UINT64_C(1099511628211);
    }
    uint64_t at = hash % PLANS_MAX;
    while (plans->entries[at].used && memcmp(&plans->entries[at].key, key, sizeof(*key)) != 0) {
        at = (at + 1) % PLANS_MAX;
    }
    return &plans->entries[at];
}

/* What is known not to work, or not to have a fixed order, whatever the library says: the checks of
 * NVIDIA's cudnn-frontend (its support surface of SDPA). */
static enum mf_status check_shape(const struct mf_cuda_cudnn_plans *plans,
                                  const struct mf_cuda_cudnn_key *key)
{
    if (key->head_dim % 8 != 0 || key->head_dim > 128 || key->seq_len < 2) {
        return mf_status_set(MF_STATUS_UNSUPPORTED, "head_dim must be a multiple of 8 up to 128, "
                                                    "seq_len at least 2");
    }
    if (key->backward && plans->library.version <= VERSION_UNPADDED && key->seq_len % 128 != 0) {
        return mf_status_set(MF_STATUS_UNSUPPORTED,
                             "before 9.15.1 only lengths that are multiples of 128");
    }
    if (key->backward && key->capability / 10 == 10) {
        return mf_status_set(MF_STATUS_UNSUPPORTED,
                             "no fixed order of sums on compute capability 10");
    }
    return MF_STATUS_OK;
}

/* From now on our kernels run this shape, so that it keeps its bits. */
static void refuse(struct mf_cuda_cudnn_plans *plans, struct entry *entry)
{
    const struct mf_cuda_cudnn_key *key = &entry->key;
    entry->refused = true;
    mf_cuda_cudnn_graph_reset(&plans->library, &entry->plan);
    snprintf(plans->refused, sizeof(plans->refused),
             "%s of %lld x %d tokens, %d/%d heads of %d: %.180s",
             key->backward ? "backward" : "forward", (long long)key->sequences, key->seq_len,
             key->heads, key->kv_heads, key->head_dim, mf_status_text());
    (void)cudaGetLastError();
}

/* ---- running ---- */

static bool aligned(const struct mf_kernel_call *call)
{
    int count = call->kernel == MF_KERNEL_ATTENTION_BACKWARD ? MF_OPERANDS_MAX : 4;
    for (int index = 0; index < count; index++) {
        const struct mf_operand *operand = &call->operands[index];
        if (index != 4 && ((uintptr_t)operand->pointer % 16 != 0 || operand->stride % 8 != 0)) {
            return false;
        }
    }
    return true;
}

static enum mf_status run_part(const struct mf_cuda_cudnn_plans *plans, const struct entry *entry,
                               const struct mf_cuda_context *context,
                               const struct mf_kernel_call *call, int64_t sequence, int64_t kv_head)
{
    static const bool of_keys[MF_OPERANDS_MAX] = {[1] = true, [2] = true, [7] = true, [8] = true};
    const struct mf_cuda_cudnn_key *key = &entry->key;
    struct layout layout = lay_out(context, call);
    int64_t head = kv_head * (key->heads / key->kv_heads);
    void *addresses[MF_OPERANDS_MAX + 1] = {NULL};
    for (int index = 0; index < MF_OPERANDS_MAX; index++) {
        const struct mf_operand *operand = &call->operands[index];
        if (operand->pointer != NULL) {
            addresses[index] = (uint16_t *)operand->pointer +
                               sequence * key->seq_len * operand->stride +
                               (of_keys[index] ? kv_head : head) * key->head_dim;
        }
    }
    addresses[4] =
        (float *)(void *)context->scratch + (sequence * key->heads + head) * key->seq_len;
    addresses[MF_CUDA_CUDNN_DELTA] = context->scratch + layout.delta;
    return mf_cuda_cudnn_graph_run(&plans->library, plans->handle, &entry->plan, addresses,
                                   context->scratch + layout.workspace);
}

static enum mf_status run_parts(const struct mf_cuda_cudnn_plans *plans, const struct entry *entry,
                                const struct mf_cuda_context *context,
                                const struct mf_kernel_call *call)
{
    float *ours = call->operands[4].pointer;
    float *packed = (float *)(void *)context->scratch;
    bool backward = entry->key.backward != 0;
    cudaError_t error = cudaSuccess;
    if (backward) {
        error = mf_cuda_cudnn_lse_reorder(context->stream, ours, packed, &call->shape, true);
    }
    for (int64_t sequence = 0; sequence < entry->key.sequences && error == cudaSuccess;
         sequence += entry->part.sequences) {
        for (int64_t kv_head = 0; kv_head < entry->key.kv_heads; kv_head += entry->part.kv_heads) {
            MF_TRY(run_part(plans, entry, context, call, sequence, kv_head));
        }
    }
    if (!backward && error == cudaSuccess) {
        error = mf_cuda_cudnn_lse_reorder(context->stream, packed, ours, &call->shape, false);
    }
    return error == cudaSuccess ? MF_STATUS_OK
                                : mf_status_set(MF_STATUS_DEVICE, "reordering the statistics: %s",
                                                cudaGetErrorString(error));
}

bool mf_cuda_cudnn_plans_run(struct mf_cuda_cudnn_plans *plans,
                             const struct mf_cuda_context *context,
                             const struct mf_kernel_call *call)
{
    struct mf_cuda_cudnn_key key;
    int64_t room = lay_out(context, call).room;
    if (!aligned(call) || room < 0) {
        snprintf(plans->refused, sizeof(plans->refused),
                 "operands that are not aligned to 16 bytes, or more rows than the scratch holds");
        return false;
    }
    key_of(plans, call, &key);
    struct entry *entry = find_entry(plans, &key);
    if (!entry->used) {
        if (plans->count >= PLANS_MAX / 2) {
            snprintf(plans->refused, sizeof(plans->refused), "more than %d shapes", PLANS_MAX / 2);
            return false;
        }
        plans->count++;
        entry->used = true;
        entry->key = key;
        if (plans->drain(plans->lanes) != MF_STATUS_OK ||
            check_shape(plans, &key) != MF_STATUS_OK ||
            mf_cuda_cudnn_graph_fit(&plans->library, plans->handle, NULL, &key, room, &entry->part,
                                    &entry->plan) != MF_STATUS_OK) {
            refuse(plans, entry);
        }
    }
    if (!entry->refused && run_parts(plans, entry, context, call) != MF_STATUS_OK) {
        refuse(plans, entry);
    }
    return !entry->refused;
}
