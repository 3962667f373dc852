/*
 * A token file from inputs, whole: the tokenizer opened, documents read, progress shown.
 *
 * Who calls it: command_tokenize.c, command_train_data.c. Owner: the caller; the spec is borrowed.
 * Thread: the main one. Fails: as tokenizer.h, documents.h, token_writer.h; no file is left then.
 */
#ifndef MF_CLIENT_TOKEN_DATA_H
#define MF_CLIENT_TOKEN_DATA_H

#include "client/chat.h"
#include "core/token_file.h"

struct mf_token_data_spec {
    const char *tokenizer; /* a folder */
    const char *const *paths;
    size_t path_count;
    const char *end_token; /* its text; NULL = what the folder says */
    int template;          /* -1 = none */
    int64_t align;         /* 0 = packed */
    bool quiet;
};

struct mf_token_data_result {
    struct mf_token_file file;
    int64_t input_bytes;
    int64_t learned;
    double seconds;
    enum mf_tokenizer_split split;
};

enum mf_status mf_token_data_make(const struct mf_token_data_spec *spec, const char *output,
                                  struct mf_token_data_result *out) MF_MUST_USE;
/* A name for what make would write: of the contents of all inputs and of the tokenizer. */
enum mf_status mf_token_data_key(const struct mf_token_data_spec *spec,
                                 char out[static MF_HASH_TEXT_MAX]) MF_MUST_USE;

#endif
