/* Attention's graphs of cuDNN become plans for GPUs that are only described: no GPU is used. What
 * is left without a driver (libcuda.so.1), which cuDNN's engines open, is that every descriptor is
 * finalised. MEMFERRY_CUDNN_VERBOSE=1 prints each of them. */
#define HARNESS_TIMEOUT_S 300
#include "runtime/cuda/cudnn_graph.h"

#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

#include "tests/harness.h"

#define DESCRIBED 91100        /* the first version that plans for a described device */
#define ROOM (62ll << 20)      /* what a device's scratch leaves for a workspace, about */
#define FORWARD_ROOM (1 << 20) /* a forward pass keeps no scores */

static struct mf_cuda_cudnn_library library;

static const struct {
    const char *name;
    int version; /* compute capability times 100 */
    long long memory_gib;
    int multiprocessors, shared_bytes, blocks, threads;
} gpus[] = {
    {"NVIDIA A100", 800, 80, 108, 166912, 32, 2048},
    {"NVIDIA RTX A6000", 860, 48, 84, 101376, 16, 1536},
    {"NVIDIA L40", 890, 48, 142, 101376, 24, 1536},
    {"NVIDIA H200", 900, 140, 132, 232448, 32, 2048},
    {"NVIDIA RTX 5090", 1200, 32, 170, 101376, 24, 1536},
};

static cudnnBackendDescriptor_t describe(int gpu)
{
    char text[1024];
    cudnnBackendDescriptor_t device = NULL;
    int length = snprintf(
        text, sizeof(text),
        "{\"cudaDeviceId\":0,\"deviceVer\":%d,\"driverVer\":13000,\"totalGlobalMem\":%lld,"
        "\"maxGridSize\":[2147483647,65535,65535],\"maxBlockSize\":[1024,1024,64],"
        "\"regsPerBlock\":65536,\"multiProcessorCount\":%d,\"warpSize\":32,"
        "\"maxSharedMemoryPerBlock\":49152,\"maxSharedMemoryPerBlockOptin\":%d,"
        "\"reservedSharedMemoryPerBlock\":1024,\"maxRegistersPerSM\":65536,\"maxCtasPerSM\":%d,"
        "\"maxThreadsPerBlock\":1024,\"maxThreadsPerSM\":%d,\"pciDeviceId\":0,\"isTccDriver\":0,"
        "\"supportCoopLaunch\":1,\"smClockRateKHz\":1700000,\"memClockRateKHz\":2000000,"
        "\"l2CacheSize\":50331648,\"deviceName\":\"%s\"}",
        gpus[gpu].version, gpus[gpu].memory_gib << 30, gpus[gpu].multiprocessors,
        gpus[gpu].shared_bytes, gpus[gpu].blocks, gpus[gpu].threads, gpus[gpu].name);
    assert_in_range(length, 1, sizeof(text) - 1);
    assert_int_equal(
        library.cudnnBackendCreateDescriptor(CUDNN_BACKEND_DEVICEPROP_DESCRIPTOR, &device),
        CUDNN_STATUS_SUCCESS);
    assert_int_equal(library.cudnnBackendSetAttribute(device,
                                                      CUDNN_ATTR_DEVICEPROP_JSON_REPRESENTATION,
                                                      CUDNN_TYPE_CHAR, length, text),
                     CUDNN_STATUS_SUCCESS);
    assert_int_equal(library.cudnnBackendFinalize(device), CUDNN_STATUS_SUCCESS);
    return device;
}

/* sequences, seq_len, heads, kv_heads, head_dim, elements between the slices of a fused matrix */
static const int shapes[][6] = {
    {8, 1024, 32, 8, 128, 0}, {8, 1024, 12, 12, 64, 0}, {2, 1000, 16, 2, 64, 64},
    {1, 128, 8, 8, 128, 8},   {3, 384, 4, 1, 96, 16},   {2, 4096, 16, 16, 128, 0},
    {2, 4096, 32, 8, 128, 0},
};

static struct mf_cuda_cudnn_key key_of(const int shape[6], int backward)
{
    static const bool of_keys[MF_OPERANDS_MAX] = {[1] = true, [2] = true, [7] = true, [8] = true};
    struct mf_cuda_cudnn_key key;
    memset(&key, 0, sizeof(key));
    key.sequences = shape[0];
    key.seq_len = shape[1];
    key.heads = shape[2];
    key.kv_heads = shape[3];
    key.head_dim = shape[4];
    key.backward = backward;
    for (int index = 0; index < MF_OPERANDS_MAX; index++) {
        int heads = of_keys[index] ? shape[3] : shape[2];
        key.strides[index] = index == 4 ? 0 : heads * shape[4] + shape[5];
    }
    return key;
}

static void check_plan(const struct mf_cuda_cudnn_key *key, enum mf_status status,
                       const struct mf_cuda_cudnn_key *part, const struct mf_cuda_cudnn_plan *plan)
{
    /* Scores of the query heads of one key head, rounded to bf16: the least a part can be. */
    int64_t least = 2ll * key->seq_len * key->seq_len * (key->heads / key->kv_heads);
    if (key->backward != 0 && least > ROOM) {
        assert_int_equal(status, MF_STATUS_UNSUPPORTED);
        assert_non_null(strstr(mf_status_text(), "needs a workspace"));
        return;
    }
    assert_ok(status);
    assert_in_range(plan->workspace_bytes, 0, key->backward ? ROOM : FORWARD_ROOM);
    assert_int_equal(key->sequences % part->sequences, 0);
    assert_int_equal(key->kv_heads % part->kv_heads, 0);
    assert_int_equal(part->heads * key->kv_heads, key->heads * part->kv_heads);
    assert_true(part->kv_heads == key->kv_heads || part->sequences == 1);
    assert_int_equal(plan->pointer_count, key->backward ? 13 : 7);
    /* Addresses are taken by a plan; without a handle it is not run. */
    float place[4] = {0};
    void *addresses[MF_OPERANDS_MAX + 1];
    for (int index = 0; index <= MF_OPERANDS_MAX; index++) {
        addresses[index] = place;
    }
    assert_int_equal(mf_cuda_cudnn_graph_run(&library, NULL, plan, addresses, place),
                     MF_STATUS_UNSUPPORTED);
    assert_non_null(strstr(mf_status_text(), "cuDNN: running a plan"));
}

static void test_plans(void **state)
{
    (void)state;
    bool driver = dlopen("libcuda.so.1", RTLD_NOW) != NULL;
    for (size_t gpu = 0; gpu < sizeof(gpus) / sizeof(gpus[0]); gpu++) {
        cudnnBackendDescriptor_t device = describe((int)gpu);
        for (size_t at = 0; at < 2 * sizeof(shapes) / sizeof(shapes[0]); at++) {
            struct mf_cuda_cudnn_key key = key_of(shapes[at / 2], at % 2);
            struct mf_cuda_cudnn_key part;
            struct mf_cuda_cudnn_plan plan;
            enum mf_status status =
                mf_cuda_cudnn_graph_fit(&library, NULL, device, &key, ROOM, &part, &plan);
            print_message(
                "%s, %s of %lld x %d, %d/%d heads of %d: %s%s%lld x %d heads, %lld bytes\n",
                gpus[gpu].name, key.backward ? "backward" : "forward", (long long)key.sequences,
                key.seq_len, key.heads, key.kv_heads, key.head_dim,
                status == MF_STATUS_OK ? "" : mf_status_text(),
                status == MF_STATUS_OK ? "parts of " : "; ", (long long)part.sequences, part.heads,
                (long long)plan.workspace_bytes);
            if (driver) {
                check_plan(&key, status, &part, &plan);
            } else { /* as far as it goes: engines were proposed, none could be loaded */
                assert_int_equal(status, MF_STATUS_UNSUPPORTED);
                assert_string_equal(mf_status_text(), "cuDNN: no engine takes this graph");
            }
            mf_cuda_cudnn_graph_reset(&library, &plan);
        }
        assert_int_equal(library.cudnnBackendDestroyDescriptor(device), CUDNN_STATUS_SUCCESS);
    }
}

/* An error of cuDNN comes with its own words. */
static void test_refused(void **state)
{
    (void)state;
    struct mf_cuda_cudnn_key key = key_of(shapes[0], 0);
    struct mf_cuda_cudnn_plan plan;
    key.sequences = -1;
    assert_int_equal(mf_cuda_cudnn_graph_build(&library, NULL, NULL, &key, ROOM, &plan),
                     MF_STATUS_UNSUPPORTED);
    assert_non_null(strstr(mf_status_text(), "cuDNN: finalising Q (0): CUDNN_STATUS_BAD_PARAM: "));
    mf_cuda_cudnn_graph_reset(&library, &plan);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_plans),
                                       cmocka_unit_test(test_refused)};
    if (mf_cuda_cudnn_library_open(&library) != MF_STATUS_OK) {
        fprintf(stderr, "skipped: %s\n", mf_status_text());
        return HARNESS_SKIP;
    }
    if (library.version < DESCRIBED) {
        fprintf(stderr, "skipped: %s does not plan for a described device\n", library.name);
        return HARNESS_SKIP;
    }
    return cmocka_run_group_tests(tests, NULL, NULL);
}
