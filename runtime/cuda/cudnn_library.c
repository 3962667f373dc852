/* Finding the library and its functions; see cudnn_library.h. */
#include "runtime/cuda/cudnn_library.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

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

enum mf_status mf_cuda_cudnn_library_open(struct mf_cuda_cudnn_library *out)
{
    static const struct {
        const char *name;
        size_t offset;
    } functions[] = {
#define X(name) {#name, offsetof(struct mf_cuda_cudnn_library, name)},
        MF_CUDA_CUDNN_FUNCTION_MAP(X)
#undef X
    };
    char tried[200] = "";
    memset(out, 0, sizeof(*out));
    void *module = open_library(tried, sizeof(tried));
    if (module == NULL) {
        return mf_status_set(MF_STATUS_UNSUPPORTED,
                             "cuDNN %d is not installed where the loader looks, nor under "
                             "/usr/local/cuda: add its folder to LD_LIBRARY_PATH (%s)",
                             CUDNN_MAJOR, tried);
    }
    for (size_t index = 0; index < sizeof(functions) / sizeof(functions[0]); index++) {
        void *symbol = dlsym(module, functions[index].name);
        if (symbol == NULL) {
            return mf_status_set(MF_STATUS_UNSUPPORTED, "cuDNN lacks %s", functions[index].name);
        }
        memcpy((char *)out + functions[index].offset, &symbol, sizeof(symbol));
    }
    out->verbose = getenv("MEMFERRY_CUDNN_VERBOSE") != NULL;
    out->version = out->cudnnGetVersion();
    snprintf(out->name, sizeof(out->name), "cuDNN %zu.%zu.%zu", out->version / 10000,
             out->version / 100 % 100, out->version % 100);
    return MF_STATUS_OK;
}
