/*
 * Writing one safetensors file as a stream: names and shapes first, then the data in that order.
 *
 * Who calls it: weights, checkpoint. Owner: open gives a writer that close frees; names are
 * borrowed for the call. Thread: one. Fails: MF_STATUS_IO (disk full), _INVALID for impossible
 * shapes. The same tensors give the same bytes. A file is complete only when finish said OK: write
 *   into a folder that is renamed afterwards, or rename the file.
 */
#ifndef MF_RUNTIME_SAFETENSORS_WRITER_H
#define MF_RUNTIME_SAFETENSORS_WRITER_H

#include "runtime/safetensors.h"

struct mf_safetensors_writer;

/* `tensors`: name, type and shape are read, the rest is worked out. `metadata`: pairs of key and
 * value ended by NULL, or NULL. */
enum mf_status mf_safetensors_writer_open(const char *path,
                                          const struct mf_safetensors_tensor *tensors,
                                          int32_t count, const char *const *metadata,
                                          struct mf_safetensors_writer **out) MF_MUST_USE;
/* The next bytes of the data; pieces may be of any size. */
enum mf_status mf_safetensors_writer_append(struct mf_safetensors_writer *writer, const void *bytes,
                                            size_t count) MF_MUST_USE;
/* All data must have come: on the disk when this returns. */
enum mf_status mf_safetensors_writer_finish(struct mf_safetensors_writer *writer) MF_MUST_USE;
/* NULL is fine. A file that was not finished is removed. */
void mf_safetensors_writer_close(struct mf_safetensors_writer *writer);

/* Bytes of the file's data, and of each tensor into `tensors[i].bytes`. _INVALID on overflow. */
enum mf_status mf_safetensors_writer_measure(struct mf_safetensors_tensor *tensors, int32_t count,
                                             int64_t *out) MF_MUST_USE;

#endif
