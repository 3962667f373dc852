/* Documents to tokens: see documents.h. */
#include "client/documents.h"

#include <string.h>
#include <strings.h>

#include "client/inputs.h"
#include "client/tokenizer_unicode.h"
#include "core/json.h"
#include "core/limits.h"

#define PIECES_PER_REPORT 16384
#define COUNT(table) (sizeof(table) / sizeof((table)[0]))

static enum mf_status put_ids(struct mf_documents *documents, const int32_t *ids, size_t count)
{
    return mf_token_writer_put(documents->writer, ids, count, documents->learned);
}

/* Tokens of a piece of text. A text file has no lines to count, so its pieces are. */
static enum mf_status put_piece(void *context, const int32_t *ids, size_t count, size_t bytes)
{
    struct mf_documents *documents = context;
    documents->reached += (int64_t)bytes;
    if (documents->whole && documents->progress != NULL &&
        ++documents->pieces % PIECES_PER_REPORT == 0) {
        documents->progress(documents->context, documents->reached);
    }
    return put_ids(documents, ids, count);
}

static enum mf_status put_part(void *context, const struct mf_chat_part *part)
{
    struct mf_documents *documents = context;
    const struct mf_tokenizer_sink sink = {put_piece, documents};
    documents->learned = part->learned;
    return part->text == NULL ? put_ids(documents, &documents->end_token, 1)
                              : mf_tokenizer_encode(documents->tokenizer, part->text, part->count,
                                                    part->special, &sink);
}

/* What the tokenizer's post-processor puts before a text. */
static enum mf_status put_prefix(struct mf_documents *documents, bool learned)
{
    const struct mf_tokenizer_info *info = mf_tokenizer_describe(documents->tokenizer);
    documents->learned = learned;
    return put_ids(documents, info->prefix, (size_t)info->prefix_count);
}

static enum mf_status put_text(struct mf_documents *documents, const char *text, size_t count)
{
    const struct mf_chat_part part = {text, count, true, true};
    const struct mf_chat_part end = {.learned = true};
    MF_TRY(put_prefix(documents, true));
    MF_TRY(put_part(documents, &part));
    MF_TRY(put_part(documents, &end));
    return mf_token_writer_end_document(documents->writer);
}

enum mf_status mf_documents_text(struct mf_documents *documents, const char *bytes, size_t count,
                                 const char *name)
{
    size_t valid = mf_tokenizer_unicode_valid(bytes, count);
    if (valid < count) {
        return mf_status_set(MF_STATUS_INVALID,
                             "%s: byte %zu (%#x) is no UTF-8: convert the file (iconv -t UTF-8), "
                             "or leave it out",
                             name, valid, (unsigned)(unsigned char)bytes[valid]);
    }
    documents->whole = true;
    documents->reached = 0;
    enum mf_status status = put_text(documents, bytes, count);
    documents->whole = false;
    return status == MF_STATUS_OK ? status : mf_status_context(status, "%s", name);
}

/* Prompt and completion as they are: the template is in them. */
static enum mf_status put_pair(struct mf_documents *documents, const json_t *prompt,
                               const json_t *completion)
{
    if (!json_is_string(prompt) || !json_is_string(completion)) {
        return mf_status_set(MF_STATUS_INVALID,
                             "\"prompt\" and \"completion\" must both be texts, or both be lists "
                             "of messages");
    }
    const struct mf_chat_part parts[] = {
        {json_string_value(prompt), json_string_length(prompt), true, false},
        {json_string_value(completion), json_string_length(completion), true, true},
        {.learned = true},
    };
    MF_TRY(put_prefix(documents, false));
    for (size_t i = 0; i < COUNT(parts); i++) {
        MF_TRY(put_part(documents, &parts[i]));
    }
    return mf_token_writer_end_document(documents->writer);
}

/* `context` may be NULL: messages of which nothing is learned. */
static enum mf_status put_chat(struct mf_documents *documents, const json_t *context,
                               const json_t *messages)
{
    const struct mf_chat_sink sink = {put_part, documents};
    if (documents->template <0) {
        return mf_status_set(MF_STATUS_INVALID,
                             "messages need a template: chatml, llama3 or plain (the Jinja "
                             "template of the tokenizer is not executed)");
    }
    enum mf_chat_template template = (enum mf_chat_template)documents->template;
    MF_TRY(mf_chat_begin(template, &sink));
    if (context != NULL) {
        MF_TRY(mf_chat_messages(template, context, false, &sink));
    }
    MF_TRY(mf_chat_messages(template, messages, true, &sink));
    return mf_token_writer_end_document(documents->writer);
}

static enum mf_status put_object(struct mf_documents *documents, const json_t *object)
{
    /* What would change a conversation and is not done: to leave it out would train another. */
    static const char *const refused[] = {"tools", "tool_calls", "functions", "conversations"};
    const json_t *text = json_object_get(object, "text");
    const json_t *messages = json_object_get(object, "messages");
    const json_t *prompt = json_object_get(object, "prompt");
    const json_t *completion = json_object_get(object, "completion");
    for (size_t i = 0; i < COUNT(refused); i++) {
        const json_t *value = json_object_get(object, refused[i]);
        if (value != NULL && !json_is_null(value)) {
            return mf_status_set(MF_STATUS_UNSUPPORTED,
                                 "\"%s\" is not done: render it yourself into \"prompt\" and "
                                 "\"completion\"",
                                 refused[i]);
        }
    }
    if ((text != NULL) + (messages != NULL) + (prompt != NULL || completion != NULL) != 1) {
        return mf_status_set(MF_STATUS_INVALID,
                             "a document has one of \"text\", \"messages\", or \"prompt\" with "
                             "\"completion\"");
    }
    if (messages != NULL) {
        return put_chat(documents, NULL, messages);
    }
    if (text == NULL) {
        return json_is_array(prompt) && json_is_array(completion)
                   ? put_chat(documents, prompt, completion)
                   : put_pair(documents, prompt, completion);
    }
    return json_is_string(text)
               ? put_text(documents, json_string_value(text), json_string_length(text))
               : mf_status_set(MF_STATUS_INVALID, "\"text\" is no text");
}

static enum mf_status put_line(struct mf_documents *documents, const char *line, size_t count)
{
    static const char hint[] = "; a list must become one object a line: jq -c '.[]'";
    json_error_t error;
    if (count > MF_DOCUMENT_LINE_MAX) {
        return mf_status_set(MF_STATUS_INVALID, "%zu bytes, at most %d", count,
                             MF_DOCUMENT_LINE_MAX);
    }
    json_t *object = json_loadb(line, count, JSON_REJECT_DUPLICATES | JSON_ALLOW_NUL, &error);
    if (object == NULL) {
        return mf_status_set(MF_STATUS_INVALID, "column %d: %s%s", error.column, error.text,
                             line[0] == '[' ? hint : "");
    }
    enum mf_status status = json_is_object(object)
                                ? put_object(documents, object)
                                : mf_status_set(MF_STATUS_INVALID, "no JSON object%s",
                                                json_is_array(object) ? hint : "");
    json_decref(object);
    return status;
}

enum mf_status mf_documents_lines(struct mf_documents *documents, const char *bytes, size_t count,
                                  const char *name)
{
    int64_t number = 1;
    for (size_t at = 0; at < count; number++) {
        const char *end = memchr(bytes + at, '\n', count - at);
        size_t length = end != NULL ? (size_t)(end - bytes) - at : count - at;
        size_t blanks = 0;
        while (blanks < length && strchr(" \t\r", bytes[at + blanks]) != NULL &&
               bytes[at + blanks] != '\0') {
            blanks++;
        }
        enum mf_status status =
            blanks < length ? put_line(documents, bytes + at, length) : MF_STATUS_OK;
        if (status != MF_STATUS_OK) {
            return mf_status_context(status, "%s, line %lld (byte %zu)", name, (long long)number,
                                     at);
        }
        at += length + 1;
        if (documents->progress != NULL) {
            documents->progress(documents->context, (int64_t)(at < count ? at : count));
        }
    }
    return MF_STATUS_OK;
}

bool mf_documents_are_lines(const char *path)
{
    static const char *const ends[] = {".jsonl", ".ndjson", ".json"};
    const char *dot = strrchr(path, '.');
    for (size_t i = 0; i < COUNT(ends) && dot != NULL; i++) {
        if (strcasecmp(dot, ends[i]) == 0) {
            return true;
        }
    }
    return false;
}

enum mf_status mf_documents_read(struct mf_documents *documents, const char *path, int64_t *bytes)
{
    const char *text = NULL;
    size_t count = 0;
    MF_TRY(mf_inputs_map(path, INT64_MAX, &text, &count));
    enum mf_status status = mf_documents_are_lines(path)
                                ? mf_documents_lines(documents, text, count, path)
                                : mf_documents_text(documents, text, count, path);
    mf_inputs_unmap(text, count);
    *bytes = (int64_t)count;
    return status;
}
