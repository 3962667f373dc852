/* Matrix products of the host device; see gemm.h. The only caller of OpenBLAS. */
#include "runtime/host/gemm.h"

#include <cblas.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

/* Tile shape: large enough that packing the operands costs little, small enough that a matrix of
 * 512 x 512 gives work to several threads (measured with OpenBLAS's Haswell kernels). */
#define TILE_ROWS 128
#define TILE_COLUMNS 512

void mf_host_gemm_call(const struct mf_host_gemm *gemm, float alpha, float beta, float *c,
                       int64_t c_stride)
{
    cblas_sgemm(CblasRowMajor, gemm->transpose_a ? CblasTrans : CblasNoTrans,
                gemm->transpose_b ? CblasTrans : CblasNoTrans, (blasint)gemm->m, (blasint)gemm->n,
                (blasint)gemm->k, alpha, gemm->a, (blasint)gemm->a_stride, gemm->b,
                (blasint)gemm->b_stride, beta, c, (blasint)c_stride);
}

int64_t mf_host_gemm_tile_count(const struct mf_host_context *context)
{
    return (int64_t)mf_host_pool_threads(context->pool) * TILE_ROWS * TILE_COLUMNS;
}

int64_t mf_host_gemm_tile_rows(int64_t rows)
{
    int64_t eighth = (rows / 8 + 15) / 16 * 16;
    return eighth < 16 ? 16 : eighth > TILE_ROWS ? TILE_ROWS : eighth;
}

struct gemm_job {
    const struct mf_host_gemm *gemm;
    int64_t tile_rows;
    int64_t column_tiles;
    float *tiles; /* NULL: the product goes into c */
    float *c;
    int64_t c_stride;
    float beta;
    mf_host_gemm_store store;
    const void *argument;
};

static void run_tile(const void *argument, int64_t item, int32_t worker)
{
    const struct gemm_job *job = argument;
    struct mf_host_gemm part = *job->gemm;
    struct mf_host_gemm_tile tile = {.row = item / job->column_tiles * job->tile_rows,
                                     .column = item % job->column_tiles * TILE_COLUMNS};
    tile.rows = part.m - tile.row < job->tile_rows ? part.m - tile.row : job->tile_rows;
    tile.columns = part.n - tile.column < TILE_COLUMNS ? part.n - tile.column : TILE_COLUMNS;
    if (job->tiles != NULL) {
        tile.values = job->tiles + (int64_t)worker * TILE_ROWS * TILE_COLUMNS;
        tile.stride = TILE_COLUMNS;
    } else {
        tile.values = job->c + tile.row * job->c_stride + tile.column;
        tile.stride = job->c_stride;
    }
    part.a += part.transpose_a ? tile.row : tile.row * part.a_stride;
    part.b += part.transpose_b ? tile.column * part.b_stride : tile.column;
    part.m = tile.rows;
    part.n = tile.columns;
    mf_host_gemm_call(&part, 1.0f, job->beta, tile.values, tile.stride);
    if (job->store != NULL) {
        job->store(job->argument, &tile);
    }
}

static void run_job(struct mf_host_context *context, struct gemm_job *job)
{
    job->tile_rows = mf_host_gemm_tile_rows(job->gemm->m);
    job->column_tiles = (job->gemm->n + TILE_COLUMNS - 1) / TILE_COLUMNS;
    int64_t row_tiles = (job->gemm->m + job->tile_rows - 1) / job->tile_rows;
    mf_host_pool_run(context->pool, row_tiles * job->column_tiles, run_tile, job);
}

void mf_host_gemm_run(struct mf_host_context *context, const struct mf_host_gemm *gemm,
                      float *tiles, mf_host_gemm_store store, const void *argument)
{
    struct gemm_job job = {
        .gemm = gemm, .tiles = tiles, .beta = 0.0f, .store = store, .argument = argument};
    run_job(context, &job);
}

void mf_host_gemm_into(struct mf_host_context *context, const struct mf_host_gemm *gemm, bool add,
                       float *c, int64_t c_stride, mf_host_gemm_store store, const void *argument)
{
    struct gemm_job job = {.gemm = gemm,
                           .c = c,
                           .c_stride = c_stride,
                           .beta = add ? 1.0f : 0.0f,
                           .store = store,
                           .argument = argument};
    run_job(context, &job);
}

void mf_host_gemm_version(char *out, int64_t size)
{
    char name[16] = "";
    char version[16] = "";
    (void)sscanf(openblas_get_config(), "%15s %15s", name, version);
    snprintf(out, (size_t)size, "%.8s %.10s %.10s", name, version, openblas_get_corename());
}

/* Sizes of the check: odd, with edges in every direction and more than one block of k. */
#define CHECK_ROWS 67
#define CHECK_COLUMNS 131
#define CHECK_INNER 389

/* Small numbers with a few bits, different in every place: products and sums of them are exact in
 * fp32, so a right product has no error at all. */
static float check_value(int64_t index)
{
    return (float)((index * 7919 + index / 13 * 31) % 15 - 7) * 0.125f;
}

static double check_expected(const struct mf_host_gemm *gemm, int64_t row, int64_t column)
{
    double sum = 0;
    for (int64_t index = 0; index < gemm->k; index++) {
        int64_t a = gemm->transpose_a ? index * gemm->a_stride + row : row * gemm->a_stride + index;
        int64_t b =
            gemm->transpose_b ? column * gemm->b_stride + index : index * gemm->b_stride + column;
        sum += (double)gemm->a[a] * (double)gemm->b[b];
    }
    return sum;
}

/* The largest error of one form of product. */
static double check_form(bool transpose_a, bool transpose_b, const float *a, const float *b,
                         float *c)
{
    struct mf_host_gemm gemm = {.transpose_a = transpose_a,
                                .transpose_b = transpose_b,
                                .m = CHECK_ROWS,
                                .n = CHECK_COLUMNS,
                                .k = CHECK_INNER,
                                .a = a,
                                .a_stride = transpose_a ? CHECK_ROWS : CHECK_INNER,
                                .b = b,
                                .b_stride = transpose_b ? CHECK_INNER : CHECK_COLUMNS};
    mf_host_gemm_call(&gemm, 1.0f, 0.0f, c, CHECK_COLUMNS);
    double worst = 0;
    for (int64_t row = 0; row < CHECK_ROWS; row++) {
        for (int64_t column = 0; column < CHECK_COLUMNS; column++) {
            double error =
                fabs((double)c[row * CHECK_COLUMNS + column] - check_expected(&gemm, row, column));
            worst = error > worst || isnan(error) ? error : worst;
        }
    }
    return worst;
}

enum mf_status mf_host_gemm_check(void)
{
    static float a[CHECK_ROWS * CHECK_INNER];
    static float b[CHECK_INNER * CHECK_COLUMNS];
    static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    static float c[CHECK_ROWS * CHECK_COLUMNS];
    double worst = 0;
    pthread_mutex_lock(&lock);
    openblas_set_num_threads(1);
    for (int64_t index = 0; index < CHECK_ROWS * CHECK_INNER; index++) {
        a[index] = check_value(index);
    }
    for (int64_t index = 0; index < CHECK_INNER * CHECK_COLUMNS; index++) {
        b[index] = check_value(index + 3);
    }
    for (int form = 0; form < 4 && !(worst > 0) && !isnan(worst); form++) {
        worst = check_form((form & 1) != 0, (form & 2) != 0, a, b, c);
    }
    pthread_mutex_unlock(&lock);
    if (worst == 0) {
        return MF_STATUS_OK;
    }
    char version[40];
    mf_host_gemm_version(version, sizeof(version));
    return mf_status_set_reason(
        MF_STATUS_DEVICE, "BLAS_WRONG",
        "matrix products are wrong on this CPU (%s, error %g): OpenBLAS chose kernels that do not "
        "fit it. Start memferry with OPENBLAS_CORETYPE=Haswell (any x86-64 CPU with AVX2) or "
        "OPENBLAS_CORETYPE=Prescott in the environment",
        version, worst);
}
