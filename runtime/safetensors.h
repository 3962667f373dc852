/*
 * Tensors in safetensors files: a strict reader of one file or of a folder of shards, and a
 * streaming writer.
 *
 * Who calls it: weights (Hugging Face folders), checkpoint (optimizer state). Owner: open gives a
 *   set that close frees, with the names and tensors it lends; the writer likewise. Thread: a set
 *   that is open may be read by many; a writer belongs to one. Tensors are read with pread, never
 *   mapped: a file that is cut short while in use is an error, not a crash.
 * Fails: MF_STATUS_CORRUPT or _INVALID naming file, expected and found; _NOT_FOUND for a file or
 *   tensor that is not there; _IO.
 *
 * What strict means: the header's length is checked against the file before anything is allocated;
 * no duplicate keys; known types; shape times type size is exactly the byte range; ranges cover
 * the data without overlap, hole or rest. Tensors without elements are legal.
 */
#ifndef MF_RUNTIME_SAFETENSORS_H
#define MF_RUNTIME_SAFETENSORS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/status.h"

#define MF_SAFETENSORS_DIMENSIONS_MAX 8
#define MF_SAFETENSORS_SHARDS_MAX 4096

/* X(enumerator, the format's name, bytes of an element) */
#define MF_SAFETENSORS_TYPE_MAP(X)                                                                 \
    X(F64, "F64", 8)                                                                               \
    X(F32, "F32", 4)                                                                               \
    X(F16, "F16", 2)                                                                               \
    X(BF16, "BF16", 2)                                                                             \
    X(F8_E4M3, "F8_E4M3", 1)                                                                       \
    X(F8_E5M2, "F8_E5M2", 1)                                                                       \
    X(I64, "I64", 8)                                                                               \
    X(I32, "I32", 4)                                                                               \
    X(I16, "I16", 2)                                                                               \
    X(I8, "I8", 1)                                                                                 \
    X(U64, "U64", 8)                                                                               \
    X(U32, "U32", 4)                                                                               \
    X(U16, "U16", 2)                                                                               \
    X(U8, "U8", 1)                                                                                 \
    X(BOOL, "BOOL", 1)

enum mf_safetensors_type {
#define X(name, text, bytes) MF_SAFETENSORS_TYPE_##name,
    MF_SAFETENSORS_TYPE_MAP(X)
#undef X
        MF_SAFETENSORS_TYPE_COUNT
};

struct mf_safetensors_tensor {
    const char *name;
    enum mf_safetensors_type type;
    int32_t dimension_count;
    int64_t shape[MF_SAFETENSORS_DIMENSIONS_MAX];
    int64_t bytes;
    int64_t offset; /* in the file */
    int32_t file;   /* index of the shard */
};

struct mf_safetensors;

const char *mf_safetensors_type_name(enum mf_safetensors_type type);
int64_t mf_safetensors_type_bytes(enum mf_safetensors_type type);
/* "[64, 192]"; returns `out`. */
const char *mf_safetensors_shape_text(const struct mf_safetensors_tensor *tensor, char *out,
                                      size_t size);

/*
 * Opens a .safetensors file, a .safetensors.index.json, or a folder with model.safetensors or
 * model.safetensors.index.json. Headers are read and checked whole. A missing shard's message
 * lists all that are missing; an index entry whose shard lacks the tensor is named.
 */
enum mf_status mf_safetensors_open(const char *path, struct mf_safetensors **out) MF_MUST_USE;
void mf_safetensors_close(struct mf_safetensors *set); /* NULL is fine */

/* In the order of their names. */
int32_t mf_safetensors_count(const struct mf_safetensors *set);
const struct mf_safetensors_tensor *mf_safetensors_at(const struct mf_safetensors *set,
                                                      int32_t index);
/* NULL when it is not there. */
const struct mf_safetensors_tensor *mf_safetensors_find(const struct mf_safetensors *set,
                                                        const char *name);
/* The file with the list of names, for messages: the index, or the only file. */
const char *mf_safetensors_path(const struct mf_safetensors *set);
/* NULL when the first file's __metadata__ has no such key. */
const char *mf_safetensors_metadata(const struct mf_safetensors *set, const char *key);
/* `count` bytes of the tensor from byte `first`. */
enum mf_status mf_safetensors_read(const struct mf_safetensors *set,
                                   const struct mf_safetensors_tensor *tensor, int64_t first,
                                   int64_t count, void *out) MF_MUST_USE;

/* Checks `count` bytes as the header of a file with `data_bytes` of data and forgets them: the
 * reader's parser alone, for tests. */
enum mf_status mf_safetensors_check_header(const char *bytes, size_t count,
                                           int64_t data_bytes) MF_MUST_USE;

#endif
