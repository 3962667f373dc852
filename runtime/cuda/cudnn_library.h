/*
 * cuDNN's library, opened at run time: the functions that are used of it.
 *
 * What: libcudnn.so.9 where the loader looks, else under the toolkit's usual folders. It is never
 *   unloaded: unloading CUDA libraries is not safe at every driver.
 * Who calls it: cudnn_plans.c. Memory: plain data. Thread: any. Fails: MF_STATUS_UNSUPPORTED with
 *   what is missing.
 */
#ifndef MF_RUNTIME_CUDA_CUDNN_LIBRARY_H
#define MF_RUNTIME_CUDA_CUDNN_LIBRARY_H

#include <cudnn_graph.h>
#include <stdbool.h>
#include <stddef.h>

#include "core/status.h"

#define MF_CUDA_CUDNN_FUNCTION_MAP(X)                                                              \
    X(cudnnGetVersion)                                                                             \
    X(cudnnCreate)                                                                                 \
    X(cudnnDestroy)                                                                                \
    X(cudnnSetStream)                                                                              \
    X(cudnnGetErrorString)                                                                         \
    X(cudnnGetLastErrorString)                                                                     \
    X(cudnnBackendCreateDescriptor)                                                                \
    X(cudnnBackendDestroyDescriptor)                                                               \
    X(cudnnBackendFinalize)                                                                        \
    X(cudnnBackendSetAttribute)                                                                    \
    X(cudnnBackendGetAttribute)                                                                    \
    X(cudnnBackendExecute)

struct mf_cuda_cudnn_library {
#define X(name) __typeof__(&name) name;
    MF_CUDA_CUDNN_FUNCTION_MAP(X)
#undef X
    size_t version; /* major * 10000 + minor * 100 + patch */
    char name[32];  /* "cuDNN 9.14.0" */
    bool verbose; /* MEMFERRY_CUDNN_VERBOSE is set: one line on standard error for every descriptor
                     that is finalised */
};

enum mf_status mf_cuda_cudnn_library_open(struct mf_cuda_cudnn_library *out) MF_MUST_USE;

#endif
