/*
 * Inputs as documents of tokens: text files, and JSONL with "text", "prompt" and "completion", or
 * "messages".
 *
 * What: a text file is one document, a line of JSONL is one. Every document ends with the end
 *   token, but conversations of a template that has an end of its own. Who calls it:
 *   token_data.c. Owner: the caller; `path` is borrowed. Thread: one. Fails:
 *   MF_STATUS_INVALID, _UNSUPPORTED, _CORRUPT naming file, line, byte and what was found.
 */
#ifndef MF_CLIENT_DOCUMENTS_H
#define MF_CLIENT_DOCUMENTS_H

#include "client/chat.h"
#include "client/token_writer.h"
#include "client/tokenizer.h"

struct mf_documents {
    struct mf_tokenizer *tokenizer;
    struct mf_token_writer *writer;
    int32_t end_token;
    int template; /* enum mf_chat_template; -1 = none: messages are refused */
    /* May be NULL: about how many bytes of the present file are done. */
    void (*progress)(void *context, int64_t bytes);
    void *context;
    bool learned;    /* of what is being put */
    bool whole;      /* a text file is being put, of which this is known: */
    size_t pieces;   /* so many were put */
    int64_t reached; /* bytes of the file */
};

/* .jsonl, .ndjson and .json are JSONL, all else is text. */
bool mf_documents_are_lines(const char *path);
/* `bytes` = the file's size. */
enum mf_status mf_documents_read(struct mf_documents *documents, const char *path,
                                 int64_t *bytes) MF_MUST_USE;
/* The same from memory; `name` is for messages. */
enum mf_status mf_documents_text(struct mf_documents *documents, const char *bytes, size_t count,
                                 const char *name) MF_MUST_USE;
enum mf_status mf_documents_lines(struct mf_documents *documents, const char *bytes, size_t count,
                                  const char *name) MF_MUST_USE;

#endif
