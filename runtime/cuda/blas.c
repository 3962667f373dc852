/* The table of products and the library behind it; see blas.h. */
#include "runtime/cuda/blas.h"

#include <cublasLt.h>
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/cuda/kernels.h"

#define PRODUCTS_MAX 8192 /* distinct products of a process's models; a power of two */
#define PROPOSALS_MAX 4
#define ALIGNMENT_MAX 16 /* more alignment is not looked at: plans place operands differently */

#define LIBRARY_MAP(X)                                                                             \
    X(cublasLtCreate)                                                                              \
    X(cublasLtDestroy)                                                                             \
    X(cublasLtGetVersion)                                                                          \
    X(cublasLtMatmul)                                                                              \
    X(cublasLtMatmulDescCreate)                                                                    \
    X(cublasLtMatmulDescDestroy)                                                                   \
    X(cublasLtMatmulDescSetAttribute)                                                              \
    X(cublasLtMatrixLayoutCreate)                                                                  \
    X(cublasLtMatrixLayoutDestroy)                                                                 \
    X(cublasLtMatmulPreferenceCreate)                                                              \
    X(cublasLtMatmulPreferenceDestroy)                                                             \
    X(cublasLtMatmulPreferenceSetAttribute)                                                        \
    X(cublasLtMatmulAlgoGetHeuristic)                                                              \
    X(cublasLtMatmulAlgoCheck)

struct library {
#define X(name) __typeof__(&name) name;
    LIBRARY_MAP(X)
#undef X
};

/* What decides a product's algorithm. */
struct key {
    int64_t m, n, k;
    int64_t a_stride, b_stride, out_stride;
    uint8_t transpose_a, transpose_b, out_fp32, add, bias;
    uint8_t a_align, b_align, out_align; /* of the pointers, up to ALIGNMENT_MAX */
};

struct entry {
    struct key key;
    bool used;
    bool plain; /* product.cu runs it */
    cublasLtMatmulDesc_t operation;
    cublasLtMatrixLayout_t a, b, out;
    cublasLtMatmulAlgo_t algorithm;
};

struct mf_cuda_blas {
    void *module;
    struct library library;
    cublasLtHandle_t handle;
    void *workspace;
    struct entry *entries; /* [PRODUCTS_MAX], open addressing */
    int32_t count;
    enum mf_status (*drain)(void *context);
    void *context;
    char version[32];
};

/* ---- the library ---- */

static void *open_library(char *tried, size_t size)
{
    static const char *const folders[] = {"", "/usr/local/cuda/lib64/", "/opt/cuda/lib64/",
                                          "/usr/lib/x86_64-linux-gnu/", "/usr/local/cuda/lib/"};
    for (size_t index = 0; index < sizeof(folders) / sizeof(folders[0]); index++) {
        char path[128];
        snprintf(path, sizeof(path), "%slibcublasLt.so.%d", folders[index], CUDART_VERSION / 1000);
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

static enum mf_status find_functions(struct mf_cuda_blas *blas)
{
    static const char *const names[] = {
#define X(name) #name,
        LIBRARY_MAP(X)
#undef X
    };
    _Static_assert(sizeof(struct library) == sizeof(names), "one pointer a name");
    for (size_t index = 0; index < sizeof(names) / sizeof(names[0]); index++) {
        void *symbol = dlsym(blas->module, names[index]);
        if (symbol == NULL) {
            return mf_status_set(MF_STATUS_UNSUPPORTED, "cuBLASLt lacks %s", names[index]);
        }
        memcpy((char *)&blas->library + index * sizeof(symbol), &symbol, sizeof(symbol));
    }
    return MF_STATUS_OK;
}

static enum mf_status open_all(struct mf_cuda_blas *blas)
{
    char tried[300] = "";
    blas->module = open_library(tried, sizeof(tried));
    if (blas->module == NULL) {
        return mf_status_set(MF_STATUS_UNSUPPORTED,
                             "cuBLASLt %d is not installed where the loader looks, nor under "
                             "/usr/local/cuda: add its folder to LD_LIBRARY_PATH (%s)",
                             CUDART_VERSION / 1000, tried);
    }
    MF_TRY(find_functions(blas));
    blas->entries = calloc(PRODUCTS_MAX, sizeof(*blas->entries));
    if (blas->entries == NULL) {
        return mf_status_set(MF_STATUS_NO_MEMORY, "no memory for the table of products");
    }
    cublasStatus_t made = blas->library.cublasLtCreate(&blas->handle);
    if (made != CUBLAS_STATUS_SUCCESS) {
        return mf_status_set(MF_STATUS_DEVICE, "cuBLASLt cannot start: status %d", (int)made);
    }
    cudaError_t error = cudaMalloc(&blas->workspace, MF_CUDA_BLAS_WORKSPACE_BYTES);
    if (error != cudaSuccess) {
        (void)cudaGetLastError();
        return mf_status_set(MF_STATUS_NO_DEVICE_MEMORY,
                             "no device memory for a workspace of %lld bytes: %s",
                             (long long)MF_CUDA_BLAS_WORKSPACE_BYTES, cudaGetErrorString(error));
    }
    size_t version = blas->library.cublasLtGetVersion();
    snprintf(blas->version, sizeof(blas->version), "cuBLASLt %zu.%zu.%zu", version / 10000,
             version / 100 % 100, version % 100);
    return MF_STATUS_OK;
}

enum mf_status mf_cuda_blas_open(enum mf_status (*drain)(void *context), void *context,
                                 struct mf_cuda_blas **out)
{
    *out = NULL;
    struct mf_cuda_blas *blas = calloc(1, sizeof(*blas));
    if (blas == NULL) {
        return mf_status_set(MF_STATUS_NO_MEMORY, "no memory for the table of products");
    }
    blas->drain = drain;
    blas->context = context;
    enum mf_status status = open_all(blas);
    if (status != MF_STATUS_OK) {
        mf_cuda_blas_close(blas);
        return status;
    }
    *out = blas;
    return MF_STATUS_OK;
}

static void reset_entry(const struct library *library, struct entry *entry)
{
    if (entry->operation != NULL) {
        library->cublasLtMatmulDescDestroy(entry->operation);
    }
    cublasLtMatrixLayout_t layouts[] = {entry->a, entry->b, entry->out};
    for (int index = 0; index < 3; index++) {
        if (layouts[index] != NULL) {
            library->cublasLtMatrixLayoutDestroy(layouts[index]);
        }
    }
    memset(entry, 0, sizeof(*entry));
}

void mf_cuda_blas_close(struct mf_cuda_blas *blas)
{
    if (blas == NULL) {
        return;
    }
    for (int32_t index = 0; blas->entries != NULL && index < PRODUCTS_MAX; index++) {
        if (blas->entries[index].used) {
            reset_entry(&blas->library, &blas->entries[index]);
        }
    }
    if (blas->workspace != NULL) {
        cudaFree(blas->workspace);
    }
    if (blas->handle != NULL) {
        blas->library.cublasLtDestroy(blas->handle);
    }
    free(blas->entries);
    free(blas); /* the library stays: unloading CUDA libraries is not safe at every driver */
}

const char *mf_cuda_blas_version(const struct mf_cuda_blas *blas)
{
    return blas->version;
}

/* ---- products ---- */

/* Of every row: of the first and of what lies between them. */
static uint8_t alignment_of(const void *pointer, int64_t stride_bytes)
{
    uint8_t alignment = ALIGNMENT_MAX;
    while ((uintptr_t)pointer % alignment != 0 || stride_bytes % alignment != 0) {
        alignment /= 2;
    }
    return alignment;
}

static void key_of(const struct mf_cuda_product *product, struct key *out)
{
    memset(out, 0, sizeof(*out)); /* keys are compared as bytes */
    out->m = product->m;
    out->n = product->n;
    out->k = product->k;
    out->a_stride = product->a_stride;
    out->b_stride = product->b_stride;
    out->out_stride = product->out_stride;
    out->transpose_a = product->transpose_a;
    out->transpose_b = product->transpose_b;
    out->out_fp32 = product->out_fp32;
    out->add = product->add;
    out->bias = product->bias != NULL;
    out->a_align = alignment_of(product->a, product->a_stride * 2);
    out->b_align = alignment_of(product->b, product->b_stride * 2);
    out->out_align = alignment_of(product->out, product->out_stride * (product->out_fp32 ? 4 : 2));
    if (product->bias != NULL) { /* it is read as the output is written */
        uint8_t bias = alignment_of(product->bias, ALIGNMENT_MAX);
        out->out_align = bias < out->out_align ? bias : out->out_align;
    }
}

/* FNV-1a */
static uint64_t hash_of(const struct key *key)
{
    uint64_t hash = UINT64_C(14695981039346656037);
    for (size_t index = 0; index < sizeof(*key); index++) {
        hash = (hash ^ ((const uint8_t *)key)[index]) * UINT64_C(1099511628211);
    }
    return hash;
}

/* The product's entry, or the free one it will take. */
static struct entry *find_entry(struct mf_cuda_blas *blas, const struct key *key)
{
    uint64_t at = hash_of(key) % PRODUCTS_MAX;
    while (blas->entries[at].used && memcmp(&blas->entries[at].key, key, sizeof(*key)) != 0) {
        at = (at + 1) % PRODUCTS_MAX;
    }
    return &blas->entries[at];
}

static cublasStatus_t describe(const struct library *library, struct entry *entry)
{
    const struct key *key = &entry->key;
    cudaDataType_t out_type = key->out_fp32 ? CUDA_R_32F : CUDA_R_16BF;
    cublasOperation_t a = key->transpose_a ? CUBLAS_OP_T : CUBLAS_OP_N;
    cublasOperation_t b = key->transpose_b ? CUBLAS_OP_T : CUBLAS_OP_N;
    cublasLtEpilogue_t epilogue = key->bias ? CUBLASLT_EPILOGUE_BIAS : CUBLASLT_EPILOGUE_DEFAULT;
    int bad = library->cublasLtMatmulDescCreate(&entry->operation, CUBLAS_COMPUTE_32F, CUDA_R_32F);
    const struct {
        cublasLtMatmulDescAttributes_t attribute;
        const void *value;
        size_t size;
    } settings[] = {
        {CUBLASLT_MATMUL_DESC_TRANSA, &a, sizeof(a)},
        {CUBLASLT_MATMUL_DESC_TRANSB, &b, sizeof(b)},
        {CUBLASLT_MATMUL_DESC_EPILOGUE, &epilogue, sizeof(epilogue)},
    };
    for (int index = 0; index < 3 && bad == 0; index++) {
        bad = library->cublasLtMatmulDescSetAttribute(entry->operation, settings[index].attribute,
                                                      settings[index].value, settings[index].size);
    }
    uint64_t m = (uint64_t)key->m;
    uint64_t n = (uint64_t)key->n;
    uint64_t k = (uint64_t)key->k;
    if (bad == 0) {
        bad = library->cublasLtMatrixLayoutCreate(&entry->a, CUDA_R_16BF, key->transpose_a ? k : m,
                                                  key->transpose_a ? m : k, key->a_stride);
    }
    if (bad == 0) {
        bad = library->cublasLtMatrixLayoutCreate(&entry->b, CUDA_R_16BF, key->transpose_b ? n : k,
                                                  key->transpose_b ? k : n, key->b_stride);
    }
    if (bad == 0) {
        bad = library->cublasLtMatrixLayoutCreate(&entry->out, out_type, m, n, key->out_stride);
    }
    return (cublasStatus_t)bad;
}

/* The first proposal that the library, asked again, can run. */
static void take_proposal(const struct mf_cuda_blas *blas, struct entry *entry,
                          const cublasLtMatmulHeuristicResult_t *proposals, int count)
{
    for (int index = 0; index < count && entry->plain; index++) {
        cublasLtMatmulHeuristicResult_t checked;
        const cublasLtMatmulHeuristicResult_t *proposal = &proposals[index];
        if (proposal->state == CUBLAS_STATUS_SUCCESS &&
            blas->library.cublasLtMatmulAlgoCheck(blas->handle, entry->operation, entry->a,
                                                  entry->b, entry->out, entry->out, &proposal->algo,
                                                  &checked) == CUBLAS_STATUS_SUCCESS &&
            checked.workspaceSize <= MF_CUDA_BLAS_WORKSPACE_BYTES) {
            entry->algorithm = proposal->algo;
            entry->plain = false;
        }
    }
}

/* The first algorithm the library proposes for this product; none: the product is plain. */
static void choose(const struct mf_cuda_blas *blas, struct entry *entry)
{
    const struct library *library = &blas->library;
    const struct key *key = &entry->key;
    cublasLtMatmulPreference_t preference = NULL;
    cublasLtMatmulHeuristicResult_t proposals[PROPOSALS_MAX];
    int found = 0;
    size_t workspace = MF_CUDA_BLAS_WORKSPACE_BYTES;
    uint32_t reductions = CUBLASLT_REDUCTION_SCHEME_NONE | CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE;
    uint32_t a = key->a_align;
    uint32_t b = key->b_align;
    uint32_t out = key->out_align;
    const struct {
        cublasLtMatmulPreferenceAttributes_t attribute;
        const void *value;
        size_t size;
    } settings[] = {
        {CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &workspace, sizeof(workspace)},
        {CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, &reductions, sizeof(reductions)},
        {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, &a, sizeof(a)},
        {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, &b, sizeof(b)},
        {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, &out, sizeof(out)},
        {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, &out, sizeof(out)},
    };
    int bad = library->cublasLtMatmulPreferenceCreate(&preference);
    for (size_t index = 0; index < sizeof(settings) / sizeof(settings[0]) && bad == 0; index++) {
        bad = library->cublasLtMatmulPreferenceSetAttribute(
            preference, settings[index].attribute, settings[index].value, settings[index].size);
    }
    if (bad == 0) {
        bad = library->cublasLtMatmulAlgoGetHeuristic(blas->handle, entry->operation, entry->a,
                                                      entry->b, entry->out, entry->out, preference,
                                                      PROPOSALS_MAX, proposals, &found);
    }
    if (preference != NULL) {
        library->cublasLtMatmulPreferenceDestroy(preference);
    }
    entry->plain = true;
    take_proposal(blas, entry, proposals, bad == 0 ? found : 0);
}

static enum mf_status new_entry(struct mf_cuda_blas *blas, const struct key *key,
                                struct entry *entry)
{
    if (blas->count >= PRODUCTS_MAX / 2) {
        return mf_status_set(MF_STATUS_BUSY, "more than %d distinct matrix products",
                             PRODUCTS_MAX / 2);
    }
    MF_TRY(blas->drain(blas->context));
    entry->key = *key;
    cublasStatus_t described = describe(&blas->library, entry);
    if (described != CUBLAS_STATUS_SUCCESS) {
        reset_entry(&blas->library, entry);
        return mf_status_set(
            MF_STATUS_DEVICE, "cuBLASLt cannot describe a product of %lld x %lld x %lld: status %d",
            (long long)key->m, (long long)key->n, (long long)key->k, (int)described);
    }
    choose(blas, entry);
    entry->used = true;
    blas->count++;
    return MF_STATUS_OK;
}

static enum mf_status run_plain(cudaStream_t stream, const struct mf_cuda_product *product)
{
    cudaError_t error = mf_cuda_product_run(stream, product);
    if (error != cudaSuccess) {
        return mf_status_set(MF_STATUS_DEVICE, "a plain product failed to start: %s",
                             cudaGetErrorString(error));
    }
    return MF_STATUS_OK;
}

enum mf_status mf_cuda_blas_run(struct mf_cuda_blas *blas, cudaStream_t stream,
                                const struct mf_cuda_product *product)
{
    const float one = 1.0f;
    const float beta = product->add ? 1.0f : 0.0f;
    struct key key;
    key_of(product, &key);
    struct entry *entry = find_entry(blas, &key);
    if (!entry->used) {
        MF_TRY(new_entry(blas, &key, entry));
    }
    if (entry->plain) {
        return run_plain(stream, product);
    }
    if (product->bias != NULL) {
        const void *bias = product->bias;
        (void)blas->library.cublasLtMatmulDescSetAttribute(
            entry->operation, CUBLASLT_MATMUL_DESC_BIAS_POINTER, &bias, sizeof(bias));
    }
    cublasStatus_t status = blas->library.cublasLtMatmul(
        blas->handle, entry->operation, &one, product->a, entry->a, product->b, entry->b, &beta,
        product->out, entry->out, product->out, entry->out, &entry->algorithm, blas->workspace,
        MF_CUDA_BLAS_WORKSPACE_BYTES, stream);
    if (status == CUBLAS_STATUS_NOT_SUPPORTED) {
        /* Proposed for odd strides, refused when asked: from now on always plain, so that the
         * same product keeps the same bits. */
        entry->plain = true;
        return run_plain(stream, product);
    }
    if (status != CUBLAS_STATUS_SUCCESS) {
        return mf_status_set(
            MF_STATUS_DEVICE, "cuBLASLt cannot run a product of %lld x %lld x %lld: status %d",
            (long long)product->m, (long long)product->n, (long long)product->k, (int)status);
    }
    return MF_STATUS_OK;
}
