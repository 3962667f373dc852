/*
 * The header of one safetensors file: parsing and checking it.
 *
 * Who calls it: safetensors.c only. Owner: tensors and names lie in the caller's arena. Thread:
 * any. Fails: MF_STATUS_CORRUPT naming `path`, the tensor, expected and found.
 */
#ifndef MF_RUNTIME_SAFETENSORS_HEADER_H
#define MF_RUNTIME_SAFETENSORS_HEADER_H

#include <jansson.h>

#include "core/arena.h"
#include "runtime/safetensors.h"

struct mf_safetensors_header {
    struct mf_safetensors_tensor *tensors; /* in the order of the header; offsets in the file */
    int32_t count;
    json_t *metadata; /* owned; NULL = none */
};

/* `data_offset`: where data begins in the file; `data_bytes`: to its end. */
enum mf_status mf_safetensors_header_parse(const char *bytes, size_t count, int64_t data_offset,
                                           int64_t data_bytes, const char *path,
                                           struct mf_arena *arena,
                                           struct mf_safetensors_header *out) MF_MUST_USE;
/* Reads and checks the header of the open file. */
enum mf_status mf_safetensors_header_read(int file, const char *path, struct mf_arena *arena,
                                          struct mf_safetensors_header *out) MF_MUST_USE;

#endif
