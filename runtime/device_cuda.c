/* Finds and opens the CUDA device module, which is a shared object of its own so that one program
 * runs with and without an NVIDIA driver. The module stays open for the life of the process. */
#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "runtime/device.h"

#define MODULE_FILE "memferry-cuda.so"
#define MODULE_ENTRY "mf_device_cuda_entry"
#define PATH_BYTES_MAX 4096

/* The module has its own copy of the error text: it gives its errors to the function handed in. */
typedef const struct mf_device_interface *(*entry_function)(
    enum mf_status (*restore)(const struct mf_error *error));

/* $MEMFERRY_CUDA_MODULE, or ../lib/ beside the folder of the program. */
static enum mf_status find_module(char *out, size_t size)
{
    const char *given = secure_getenv("MEMFERRY_CUDA_MODULE");
    if (given != NULL && given[0] != '\0') {
        if (strchr(given, '/') == NULL || strlen(given) >= size) {
            return mf_status_set(MF_STATUS_UNSUPPORTED,
                                 "MEMFERRY_CUDA_MODULE must be a path with a slash: \"%s\"", given);
        }
        snprintf(out, size, "%s", given);
    } else {
        char program[PATH_BYTES_MAX];
        ssize_t length = readlink("/proc/self/exe", program, sizeof(program) - 1);
        program[length > 0 ? length : 0] = '\0';
        for (int up = 0; up < 2; up++) {
            char *slash = strrchr(program, '/');
            program[slash != NULL ? slash - program : 0] = '\0';
        }
        snprintf(out, size, "%s/lib/%s", program, MODULE_FILE);
    }
    if (access(out, R_OK) != 0) {
        return mf_status_set(MF_STATUS_UNSUPPORTED,
                             "no CUDA device: %s is not there (it is built where nvcc is found; "
                             "MEMFERRY_CUDA_MODULE names another place)",
                             out);
    }
    return MF_STATUS_OK;
}

static enum mf_status open_module(const struct mf_device_interface **out)
{
    char path[PATH_BYTES_MAX + 64];
    MF_TRY(find_module(path, sizeof(path)));
    void *module = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (module == NULL) {
        return mf_status_set(MF_STATUS_UNSUPPORTED,
                             "no CUDA device: the module cannot be loaded, a CUDA library or the "
                             "NVIDIA driver may be missing (%s)",
                             dlerror());
    }
    void *symbol = dlsym(module, MODULE_ENTRY);
    if (symbol == NULL) {
        dlclose(module);
        return mf_status_set(MF_STATUS_UNSUPPORTED, "%s is no device module: it lacks %s", path,
                             MODULE_ENTRY);
    }
    entry_function entry;
    memcpy(&entry, &symbol, sizeof(entry)); /* ISO C has no cast from data to function */
    const struct mf_device_interface *table = entry(mf_status_restore);
    if (table == NULL || table->abi != MF_DEVICE_ABI) {
        uint32_t abi = table != NULL ? table->abi : 0;
        dlclose(module);
        return mf_status_set(MF_STATUS_UNSUPPORTED,
                             "%s has device interface %u, this program needs %u: both must come "
                             "from one build",
                             path, abi, (unsigned)MF_DEVICE_ABI);
    }
    *out = table;
    return MF_STATUS_OK;
}

enum mf_status mf_device_cuda(const struct mf_device_interface **out)
{
    static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    static const struct mf_device_interface *loaded;
    enum mf_status status = MF_STATUS_OK;
    pthread_mutex_lock(&lock);
    if (loaded == NULL) {
        status = open_module(&loaded);
    }
    *out = loaded;
    pthread_mutex_unlock(&lock);
    return status;
}
