/*
 * Megatron's data sets: NAME.bin with tokens, NAME.idx with what they are ("MMIDIDX").
 *
 * What: the .bin is read as one stream, so the index must say that its sequences follow each other
 *   without gaps, as Megatron's tools write them. Who calls it: tokens_format.c. Owner: the caller.
 * Thread: any. Fails: MF_STATUS_CORRUPT naming index, byte, what was found and expected;
 * _UNSUPPORTED for what is no token or another version.
 */
#ifndef MF_RUNTIME_TOKENS_MEGATRON_H
#define MF_RUNTIME_TOKENS_MEGATRON_H

#include "runtime/tokens_files.h"

/* The name of the index beside NAME.bin; false when the name ends otherwise or is too long. */
bool mf_tokens_megatron_index(const char *path, char out[static MF_TOKENS_PATH_MAX]);
/* Fills width, data_offset and token_count of the .bin in `file` from its index. */
enum mf_status mf_tokens_megatron_measure(struct mf_tokens_file *file) MF_MUST_USE;

#endif
