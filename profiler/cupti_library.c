/* Opening CUPTI: see cupti_library.h. */
#include "profiler/cupti_library.h"

#include <cupti_version.h>
#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

static const char *folder = ""; /* where CUPTI was found; "" = by the system */

static void *open_library(void)
{
    static const char *const folders[] = {"", "/usr/local/cuda/lib64/",
                                          "/usr/local/cuda/extras/CUPTI/lib64/",
                                          "/opt/cuda/extras/CUPTI/lib64/"};
    void *library = NULL;
    for (size_t i = 0; i < sizeof(folders) / sizeof(folders[0]) && library == NULL; i++) {
        char path[128];
        (void)snprintf(path, sizeof(path), "%slibcupti.so.%d", folders[i],
                       CUPTI_API_VERSION / 10000);
        library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
        folder = folders[i];
    }
    return library;
}

enum mf_status mf_cupti_library_load(const struct mf_cupti_library_function *functions,
                                     size_t count)
{
    static void *library;
    library = library != NULL ? library : open_library();
    if (library == NULL) {
        return mf_status_set(MF_STATUS_UNSUPPORTED, "libcupti.so.%d not found",
                             CUPTI_API_VERSION / 10000);
    }
    for (size_t i = 0; i < count; i++) {
        void *function = dlsym(library, functions[i].name);
        if (function == NULL) {
            return mf_status_set(MF_STATUS_UNSUPPORTED, "CUPTI lacks %s", functions[i].name);
        }
        memcpy(functions[i].to, &function, sizeof(function)); /* no cast from data to function */
    }
    return MF_STATUS_OK;
}

void mf_cupti_library_load_counters(void)
{
    static const char *const names[] = {"libnvperf_host.so", "libnvperf_target.so"};
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]) && folder[0] != '\0'; i++) {
        char path[128];
        (void)snprintf(path, sizeof(path), "%s%s", folder, names[i]);
        (void)dlopen(path, RTLD_NOW | RTLD_GLOBAL);
    }
}
