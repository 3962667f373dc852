/* Any bytes as a safetensors file: refused with a text, or every tensor can be read to its end. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include "core/status.h"
#include "runtime/safetensors.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void read_all(const struct mf_safetensors *set, size_t size)
{
    int64_t total = 0;
    for (int32_t i = 0; i < mf_safetensors_count(set); i++) {
        const struct mf_safetensors_tensor *tensor = mf_safetensors_at(set, i);
        MF_ASSERT(tensor->bytes >= 0 && tensor->bytes <= (int64_t)size);
        MF_ASSERT(mf_safetensors_find(set, tensor->name) == tensor);
        char *bytes = malloc((size_t)tensor->bytes + 1);
        MF_ASSERT(bytes != NULL);
        MF_ASSERT(mf_safetensors_read(set, tensor, 0, tensor->bytes, bytes) == MF_STATUS_OK);
        free(bytes);
        total += tensor->bytes;
    }
    MF_ASSERT(total <= (int64_t)size - 8);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    char path[64];
    struct mf_safetensors *set = NULL;
    int file = memfd_create("fuzz", MFD_CLOEXEC);
    MF_ASSERT(file >= 0);
    MF_ASSERT(write(file, data, size) == (ssize_t)size);
    snprintf(path, sizeof(path), "/proc/self/fd/%d", file);
    enum mf_status status = mf_safetensors_open(path, &set);
    if (status == MF_STATUS_OK) {
        read_all(set, size);
        mf_safetensors_close(set);
    } else {
        MF_ASSERT(set == NULL && mf_status_text()[0] != '\0');
        MF_ASSERT(status == MF_STATUS_CORRUPT);
    }
    close(file);
    /* The parser alone too: a fuzzer rarely finds the length that fits. */
    MF_ASSERT(mf_safetensors_check_header((const char *)data, size, 16) < MF_STATUS_COUNT);
    return 0;
}
