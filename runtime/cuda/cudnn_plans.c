/* The library, the table of plans, and how a call runs in parts; see cudnn_plans.h. */
#include "runtime/cuda/cudnn_plans.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/cuda/cudnn_graph.h"

#define PLANS_MAX 512 /* shapes of a process's models, two passes each; a power of two */
/* Attention of 9.10.0 and 9.10.1 is known to be wrong; earlier ones pad and mask differently. */
#define VERSION_MIN 91002
/* Up to this one a backward pass over other lengths than multiples of 128 needs padding masks. */
#define VERSION_UNPADDED 91500
#define ALIGNMENT 256 /* of parts of the scratch memory */

/* A call in `count` equal parts, each of whole sequences or of some heads of one sequence. */
struct entry {
    struct mf_cuda_cudnn_key key; /* of the whole call */
    struct mf_cuda_cudnn_key part;
    struct mf_cuda_cudnn_plan plan; /* of a part */
    bool used;
    bool refused;
};

struct mf_cuda_cudnn_plans {
    void *module;
    struct mf_cuda_cudnn_library library;
    cudnnHandle_t handle;
    int32_t capability;
    size_t version_number;
    enum mf_status (*drain)(void *lanes);
    void *lanes;
    struct entry *entries; /* [PLANS_MAX], open addressing */
    int32_t count;
    char version[32];
    char refused[320];
};

/* ---- the library ---- */

static void *open_library(char *tried, size_t size)
{
    static const char *const folders[] = {"", "/usr/local/cuda/lib64/", "/opt/cuda/lib64/",
                                          "/usr/lib/x86_64-linux-gnu/", "/usr/local/cuda/lib/"};
    for (size_t index = 0; index < sizeof(folders) / sizeof(folders[0]); index++) {
        char path[128];
        snprintf(path, sizeof(path), "%slibcudnn.so.%d", folders[index], CUDNN_MAJOR);
        void *module = dlopen(path, RTLD_NOW | RTLD_LOCAL);
        if (module != NULL) {
            return module;
        }
        if (index == 0) {
            snprintf(tried, size, "%s", dlerror());
        }
    }
    return NULL;
}

static enum mf_status find_functions(struct mf_cuda_cudnn_plans *plans)
{
    static const struct {
        const char *name;
        size_t offset;
    } functions[] = {
#define X(name) {#name, offsetof(struct mf_cuda_cudnn_library, name)},
        MF_CUDA_CUDNN_FUNCTION_MAP(X)
#undef X
    };
    for (size_t index = 0; index < sizeof(functions) / sizeof(functions[0]); index++) {
        void *symbol = dlsym(plans->module, functions[index].name);
        if (symbol == NULL) {
            return mf_status_set(MF_STATUS_UNSUPPORTED, "cuDNN lacks %s", functions[index].name);
        }
        memcpy((char *)&plans->library + functions[index].offset, &symbol, sizeof(symbol));
    }
    return MF_STATUS_OK;
}

/* major * 10000 + minor * 100 + patch, since cuDNN 9 */
static enum mf_status check_version(struct mf_cuda_cudnn_plans *plans)
{
    size_t version = plans->library.cudnnGetVersion();
    plans->version_number = version;
    snprintf(plans->version, sizeof(plans->version), "cuDNN %zu.%zu.%zu", version / 10000,
             version / 100 % 100, version % 100);
    if (version < VERSION_MIN) {
        return mf_status_set(MF_STATUS_UNSUPPORTED, "%s is too old: 9.10.2 or later is needed",
                             plans->version);
    }
    return MF_STATUS_OK;
}

static enum mf_status open_all(struct mf_cuda_cudnn_plans *plans, cudaStream_t stream)
{
    char tried[200] = "";
    int device = 0;
    int major = 0;
    int minor = 0;
    plans->module = open_library(tried, sizeof(tried));
    if (plans->module == NULL) {
        return mf_status_set(MF_STATUS_UNSUPPORTED,
                             "cuDNN %d is not installed where the loader looks, nor under "
                             "/usr/local/cuda: add its folder to LD_LIBRARY_PATH (%s)",
                             CUDNN_MAJOR, tried);
    }
    MF_TRY(find_functions(plans));
    MF_TRY(check_version(plans));
    plans->library.verbose = getenv("MEMFERRY_CUDNN_VERBOSE") != NULL;
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
                             plans->version, plans->library.cudnnGetErrorString(status));
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
    return plans->version;
}

const char *mf_cuda_cudnn_plans_refused(const struct mf_cuda_cudnn_plans *plans)
{
    return plans->refused;
}

/* ---- plans ---- */

/* Whether the whole softmax statistics and, backward, their sums of o * do, leave `room` bytes of
 * scratch for a workspace. */
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
        return mf_status_set(MF_STATUS_UNSUPPORTED, "head_dim must be a multiple of 8 up to 128");
    }
    if (key->backward && plans->version_number <= VERSION_UNPADDED && key->seq_len % 128 != 0) {
        return mf_status_set(MF_STATUS_UNSUPPORTED,
                             "before 9.15.1 only lengths that are multiples of 128");
    }
    if (key->backward && key->capability / 10 == 10) {
        return mf_status_set(MF_STATUS_UNSUPPORTED,
                             "no fixed order of sums on compute capability 10");
    }
    return MF_STATUS_OK;
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

/* Fewer sequences, or one and fewer heads, when the workspace is too large: it grows with both. */
static bool shrink(struct mf_cuda_cudnn_key *part, int64_t bytes, int64_t room)
{
    int64_t sequences = share(part->sequences, bytes, room);
    if (sequences > 0) {
        part->sequences = sequences;
        return true;
    }
    int64_t kv_heads = share(part->kv_heads, bytes / part->sequences + ALIGNMENT, room);
    part->sequences = 1;
    part->heads = (int32_t)(part->heads / part->kv_heads * kv_heads);
    part->kv_heads = (int32_t)kv_heads;
    return kv_heads > 0;
}

static enum mf_status build(struct mf_cuda_cudnn_plans *plans, int64_t room, struct entry *entry)
{
    MF_TRY(check_shape(plans, &entry->key));
    entry->part = entry->key;
    enum mf_status status = mf_cuda_cudnn_graph_build(&plans->library, plans->handle, NULL,
                                                      &entry->part, room, &entry->plan);
    int64_t bytes = entry->plan.workspace_bytes;
    if (status == MF_STATUS_OK || bytes <= room) {
        return status;
    }
    mf_cuda_cudnn_graph_reset(&plans->library, &entry->plan);
    if (!shrink(&entry->part, bytes, room)) {
        return status; /* not even one head of one sequence */
    }
    return mf_cuda_cudnn_graph_build(&plans->library, plans->handle, NULL, &entry->part, room,
                                     &entry->plan);
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
            build(plans, room, entry) != MF_STATUS_OK) {
            refuse(plans, entry);
        }
    }
    if (!entry->refused && run_parts(plans, entry, context, call) != MF_STATUS_OK) {
        refuse(plans, entry);
    }
    return !entry->refused;
}
