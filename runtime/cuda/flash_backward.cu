/* Causal attention, backward, in two kernels: queries walk their keys, then keys and values walk
 * the queries that see them. Probabilities are computed again from lse in both: two products more
 * than with atomic sums of grad_q, and the same bits every time. */
#include "runtime/cuda/flash_backward_keys.cuh"
#include "runtime/cuda/flash_backward_queries.cuh"

namespace mf_flash
{

/* The maps of the operands; q_rows and k_rows are copied at a time. */
static cudaError_t map_all(const struct mf_flash_args *args, uint32_t q_rows, uint32_t k_rows,
                           struct backward_params *p)
{
    cudaError_t error = map_operand(args, &args->q, args->heads, q_rows, &p->q);
    if (error == cudaSuccess) {
        error = map_operand(args, &args->grad_o, args->heads, q_rows, &p->grad_o);
    }
    if (error == cudaSuccess) {
        error = map_operand(args, &args->k, args->kv_heads, k_rows, &p->k);
    }
    if (error == cudaSuccess) {
        error = map_operand(args, &args->v, args->kv_heads, k_rows, &p->v);
    }
    if (error == cudaSuccess) {
        error = map_operand(args, &args->o, args->heads, q_rows, &p->o);
    }
    return error;
}

static cudaError_t launch_keys(const struct mf_flash_args *args, struct backward_params p,
                               cudaStream_t stream)
{
    /* A unit's blocks share the queries of its group. */
    int64_t keys_bytes = head_bytes(args) * p.group;
    p.plan = make_schedule(args, args->kv_heads, keys_bytes, false);
    p.first = (__nv_bfloat16 *)args->grad_k.pointer;
    p.first_stride = args->grad_k.stride;
    p.second = (__nv_bfloat16 *)args->grad_v.pointer;
    p.second_stride = args->grad_v.stride;
    cudaError_t error = map_all(args, args->head_dim > 64 ? walk_queries<128> : walk_queries<64>,
                                MF_FLASH_TILE, &p);
    if (error != cudaSuccess) {
        return error;
    }
    return args->head_dim > 64
               ? launch(keys_kernel<128>, p, sizeof(struct keys_shared<128>) + 1024, &p.plan,
                        stream)
               : launch(keys_kernel<64>, p, sizeof(struct keys_shared<64>) + 1024, &p.plan, stream);
}

static cudaError_t launch_queries(const struct mf_flash_args *args, struct backward_params p,
                                  cudaStream_t stream)
{
    p.plan = make_schedule(args, args->heads, head_bytes(args) / p.group, true);
    p.first = (__nv_bfloat16 *)args->grad_q.pointer;
    p.first_stride = args->grad_q.stride;
    cudaError_t error =
        map_all(args, MF_FLASH_TILE, args->head_dim > 64 ? walk_keys<128> : walk_keys<64>, &p);
    if (error != cudaSuccess) {
        return error;
    }
    return args->head_dim > 64 ? launch(queries_kernel<128>, p,
                                        sizeof(struct queries_shared<128>) + 1024, &p.plan, stream)
                               : launch(queries_kernel<64>, p,
                                        sizeof(struct queries_shared<64>) + 1024, &p.plan, stream);
}

} // namespace mf_flash

using namespace mf_flash;

size_t mf_flash_workspace_bytes(int64_t rows, int heads, int head_dim)
{
    (void)head_dim; /* both values are of a row of a head, however wide */
    return (size_t)rows * (size_t)heads * 2 * sizeof(float);
}

cudaError_t mf_flash_backward(const struct mf_flash_args *args, cudaStream_t stream)
{
    const struct mf_operand *operands[] = {&args->q,      &args->k,      &args->v,
                                           &args->o,      &args->grad_o, &args->grad_q,
                                           &args->grad_k, &args->grad_v};
    bool usable = valid(args) && args->workspace;
    for (const struct mf_operand *operand : operands) {
        usable = usable && aligned(operand);
    }
    if (!usable) {
        return cudaErrorInvalidValue;
    }
    struct backward_params p = {};
    p.natural_lse = args->lse;
    p.lse = (float *)args->workspace;
    p.delta = p.lse + args->rows * args->heads;
    p.rows = args->rows;
    p.seq_len = args->seq_len;
    p.heads = args->heads;
    p.group = args->heads / args->kv_heads;
    p.head_dim = args->head_dim;
    p.scale = 1.0f / sqrtf((float)args->head_dim);
    cudaError_t error = launch_queries(args, p, stream);
    return error == cudaSuccess ? launch_keys(args, p, stream) : error;
}
