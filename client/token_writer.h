/*
 * Writing a token file (core/token_file.h): a temporary beside it that is renamed when it is whole.
 *
 * Who calls it: documents.c, command_tokenize.c. Owner: open gives what finish or abandon frees.
 * Thread: one. Fails: MF_STATUS_IO, _DENIED naming the file.
 */
#ifndef MF_CLIENT_TOKEN_WRITER_H
#define MF_CLIENT_TOKEN_WRITER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/token_file.h"

struct mf_token_writer;

struct mf_token_writer_spec {
    const char *path;
    const char *tokenizer; /* its fingerprint */
    int64_t vocab;
    /* > 0: a document that would be cut by a multiple of it begins at the next one, after
     * `padding` that is not learned; longer documents begin there too and are cut. 0 = packed. */
    int64_t align;
    int32_t padding;
};

enum mf_status mf_token_writer_open(const struct mf_token_writer_spec *spec,
                                    struct mf_token_writer **out) MF_MUST_USE;
enum mf_status mf_token_writer_put(struct mf_token_writer *writer, const int32_t *ids, size_t count,
                                   bool learned) MF_MUST_USE;
/* A document without a token does not count. */
enum mf_status mf_token_writer_end_document(struct mf_token_writer *writer) MF_MUST_USE;
/* What is written so far, documents that ended. */
const struct mf_token_file *mf_token_writer_describe(const struct mf_token_writer *writer);
int64_t mf_token_writer_learned(const struct mf_token_writer *writer);
/* Frees the writer, whatever comes back; `file` gets what was written. */
enum mf_status mf_token_writer_finish(struct mf_token_writer *writer,
                                      struct mf_token_file *file) MF_MUST_USE;
void mf_token_writer_abandon(struct mf_token_writer *writer); /* NULL is fine */

#endif
