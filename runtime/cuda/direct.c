/* Which tile and cluster a direct product runs with; see direct.h. */
#include "runtime/cuda/direct.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#define TILES_BY_ROWS 3 /* tiles that are tried in turn, those before are faster */
#define SIZE_MAX_LOG (MF_CUDA_DIRECT_SIZES - 1)
#define CLUSTERS_MAX 4096
#define INDEX_MAX ((1ll << 31) - 65536) /* rows and columns are counted in 32 bits */

static enum mf_status check(cudaError_t error, const char *what)
{
    if (error == cudaSuccess) {
        return MF_STATUS_OK;
    }
    (void)cudaGetLastError();
    return mf_status_set(MF_STATUS_DEVICE, "%s: %s (CUDA error %d)", what,
                         cudaGetErrorString(error), (int)error);
}

/* "/16" at *text, up to `most`; what is not there leaves *out as it is. */
static bool parse_number(const char **text, long most, int32_t *out)
{
    char *end = NULL;
    if (**text == '\0') {
        return true;
    }
    long value = strtol(*text + 1, &end, 10);
    bool good = **text == '/' && end != *text + 1 && value >= 1 && value <= most;
    *out = good ? (int32_t)value : 0;
    *text = end;
    return good;
}

/* "256x128", "256x128/16" or "256x128/16/4". */
static bool parse_tile(const char *text, struct mf_cuda_direct *out)
{
    size_t length = strcspn(text, "/");
    for (int32_t index = 0; index < MF_CUDA_DIRECT_TILES; index++) {
        const char *name = mf_cuda_direct_tiles_get(index)->name;
        if (strlen(name) == length && strncmp(name, text, length) == 0) {
            out->tile = index;
        }
    }
    text += length;
    return out->tile >= 0 && parse_number(&text, 1 << SIZE_MAX_LOG, &out->size) &&
           (out->size & (out->size - 1)) == 0 && parse_number(&text, CLUSTERS_MAX, &out->most) &&
           *text == '\0';
}

static enum mf_status parse(const char *text, struct mf_cuda_direct *out)
{
    out->on = true;
    out->tile = -1;
    if (text == NULL || strcmp(text, "auto") == 0) {
        return MF_STATUS_OK;
    }
    if (strcmp(text, "plain") == 0) {
        out->on = false;
        return MF_STATUS_OK;
    }
    if (!parse_tile(text, out)) {
        return mf_status_set(MF_STATUS_INVALID,
                             "MEMFERRY_DIRECT=%s: auto, plain, or a tile such as %s, then /1, /2, "
                             "/4, /8 or /16 blocks in a cluster, then / and clusters at a time",
                             text, mf_cuda_direct_tiles_get(1)->name);
    }
    return MF_STATUS_OK;
}

enum mf_status mf_cuda_direct_open(int32_t device, struct mf_cuda_direct *out)
{
    int major = 0;
    int minor = 0;
    memset(out, 0, sizeof(*out));
    MF_TRY(parse(getenv("MEMFERRY_DIRECT"), out));
    MF_TRY(check(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device),
                 "asking for the compute capability"));
    MF_TRY(check(cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, device),
                 "asking for the compute capability"));
    out->on = out->on && major == 9 && minor == 0; /* the kernels exist for sm_90a alone */
    for (int32_t index = 0; index < MF_CUDA_DIRECT_TILES && out->on; index++) {
        if (out->tile < 0 ? index < TILES_BY_ROWS : index == out->tile) {
            MF_TRY(check(mf_cuda_direct_tiles_load(index, out->clusters[index]),
                         "loading the direct products"));
        }
    }
    return MF_STATUS_OK;
}

/* The least cluster that covers all rows, or the largest there is; -1 = none. As a logarithm. */
static int32_t choose_size(const struct mf_cuda_direct *direct, int32_t tile, int64_t rows)
{
    int32_t found = -1;
    for (int32_t at = 0; at < MF_CUDA_DIRECT_SIZES; at++) {
        bool asked = direct->size == 0 || direct->size == 1 << at;
        if (asked && direct->clusters[tile][at] > 0) {
            found = at;
            if (((int64_t)mf_cuda_direct_tiles_get(tile)->rows << at) >= rows) {
                break;
            }
        }
    }
    return found;
}

/* The first tile whose clusters cover all rows, else the one whose clusters cover most. */
static bool choose(const struct mf_cuda_direct *direct, int64_t rows, int32_t *tile, int32_t *size)
{
    int64_t most = 0;
    int32_t first = direct->tile < 0 ? 0 : direct->tile;
    int32_t end = direct->tile < 0 ? TILES_BY_ROWS : direct->tile + 1;
    for (int32_t index = first; index < end && most < rows; index++) {
        int32_t at = choose_size(direct, index, rows);
        int64_t covered = at < 0 ? 0 : (int64_t)mf_cuda_direct_tiles_get(index)->rows << at;
        if (covered > most) {
            most = covered;
            *tile = index;
            *size = at;
        }
    }
    return most > 0;
}

static bool aligned(const void *pointer, int64_t stride)
{
    return (uintptr_t)pointer % 16 == 0 && stride % 8 == 0;
}

bool mf_cuda_direct_takes(const struct mf_cuda_direct *direct,
                          const struct mf_cuda_product *product)
{
    int32_t tile;
    int32_t size;
    return direct->on && !product->transpose_b && product->m % 2 == 0 && product->m < INDEX_MAX &&
           product->n < INDEX_MAX && product->k < INDEX_MAX && product->k > 0 &&
           aligned(product->a, product->a_stride) && aligned(product->b, product->b_stride) &&
           aligned(product->out, product->out_stride) && choose(direct, product->n, &tile, &size);
}

enum mf_status mf_cuda_direct_run(const struct mf_cuda_direct *direct, cudaStream_t stream,
                                  const struct mf_cuda_product *product)
{
    int32_t tile = 0;
    int32_t size = 0;
    if (!choose(direct, product->n, &tile, &size)) {
        return mf_status_set(MF_STATUS_INTERNAL, "a direct product of %lld rows has no tile",
                             (long long)product->n);
    }
    return check(
        mf_cuda_direct_tiles_launch(tile, 1 << size, direct->clusters[tile][size], product, stream),
        "starting a direct product");
}
