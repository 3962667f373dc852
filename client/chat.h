/*
 * Conversations as text: a few written templates, cut into what is learned and what is only read.
 *
 * What: the Jinja template of a tokenizer_config.json is never executed; docs/DATA.md shows what
 *   each of ours writes. Who calls it: documents.c. Owner: parts point into the messages. Thread:
 * any. Fails: MF_STATUS_INVALID, _UNSUPPORTED naming the message and what is wrong with it.
 */
#ifndef MF_CLIENT_CHAT_H
#define MF_CLIENT_CHAT_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>

#include "client/tokenizer.h"

#define MF_CHAT_TEMPLATE_MAP(X)                                                                    \
    X(CHATML, "chatml", "<|im_start|>role NEWLINE text<|im_end|>NEWLINE: Qwen and others")         \
    X(LLAMA3, "llama3", "<|start_header_id|>role<|end_header_id|> and so on: Llama 3")             \
    X(PLAIN, "plain", "role: NEWLINE text, an end token after what assistants say; needs no tokens")

enum mf_chat_template {
#define X(name, text, sentence) MF_CHAT_TEMPLATE_##name,
    MF_CHAT_TEMPLATE_MAP(X)
#undef X
        MF_CHAT_TEMPLATE_COUNT
};

struct mf_chat_part {
    const char *text; /* NULL = the end token */
    size_t count;
    bool special; /* the texts of special tokens stand for them */
    bool learned;
};

struct mf_chat_sink {
    enum mf_status (*put)(void *context, const struct mf_chat_part *part);
    void *context;
};

const char *mf_chat_name(enum mf_chat_template template);
/* -1 when the text names none. */
int mf_chat_parse(const char *text);
/* Whether the tokenizer has the tokens that the template writes. */
enum mf_status mf_chat_check(enum mf_chat_template template,
                             const struct mf_tokenizer *tokenizer) MF_MUST_USE;
/* What begins a conversation, then its messages; `learn` = what assistants say in these. */
enum mf_status mf_chat_begin(enum mf_chat_template template,
                             const struct mf_chat_sink *sink) MF_MUST_USE;
enum mf_status mf_chat_messages(enum mf_chat_template template, const json_t *messages, bool learn,
                                const struct mf_chat_sink *sink) MF_MUST_USE;

#endif
