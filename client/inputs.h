/*
 * Files of text for the tokenizer: found below folders, mapped, hashed.
 *
 * Who calls it: tokenizer.c, documents.c, command_tokenize.c. Owner: names lie in the caller's
 * arena; a mapping is the caller's until mf_inputs_unmap(). Thread: any. Fails:
 * MF_STATUS_NOT_FOUND, _DENIED, _IO, _INVALID naming the path. A file that becomes shorter while it
 * is mapped ends the process (SIGBUS).
 */
#ifndef MF_CLIENT_INPUTS_H
#define MF_CLIENT_INPUTS_H

#include <stddef.h>
#include <stdint.h>

#include "core/arena.h"
#include "core/status.h"

struct mf_inputs {
    const char **paths;
    size_t count;
    int64_t bytes; /* of all */
};

/* Files as they are; of folders all regular files below, by name, without hidden and empty ones,
 * links and *.mftokens. At least one, else MF_STATUS_INVALID. */
enum mf_status mf_inputs_list(const char *const *paths, size_t count, struct mf_arena *arena,
                              struct mf_inputs *out) MF_MUST_USE;
/* A whole file, read-only; an empty one is "". */
enum mf_status mf_inputs_map(const char *path, int64_t bytes_max, const char **out,
                             size_t *count) MF_MUST_USE;
void mf_inputs_unmap(const char *bytes, size_t count);

#endif
