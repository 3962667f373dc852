/*
 * What kind of token file a file is, and where its tokens lie.
 *
 * Who calls it: tokens_files.c only. Owner: the caller. Thread: one. Fails: as tokens.h.
 */
#ifndef MF_RUNTIME_TOKENS_FORMAT_H
#define MF_RUNTIME_TOKENS_FORMAT_H

#include "runtime/tokens_files.h"

/* By its first bytes, by what stands beside it, by its name. */
enum mf_status mf_tokens_format_recognise(const struct mf_tokens_file *file,
                                          enum mf_tokens_format *out) MF_MUST_USE;
/* Fills all but `path`, `bytes` and `first`, and checks them against each other. */
enum mf_status mf_tokens_format_measure(struct mf_tokens_file *file,
                                        enum mf_tokens_format format) MF_MUST_USE;
/* A Megatron index, which stands for the .bin beside it. */
bool mf_tokens_format_is_index(const char *path);

#endif
