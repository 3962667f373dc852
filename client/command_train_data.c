/* Texts of a run config as token files: see command_train_data.h. */
#include "client/command_train_data.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "client/documents.h"
#include "client/token_data.h"
#include "core/arena.h"
#include "core/json.h"
#include "core/limits.h"

#define WHERE "memferry.data"
#define CACHE_NAME "memferry-tokens"
#define KEY_DIGITS 24

struct preparing {
    struct mf_arena arena;
    const char *folder;
    const char *cache;
    struct mf_token_data_spec spec;
};

static const char *absolute(struct preparing *preparing, const char *path)
{
    return path[0] == '/' ? mf_arena_string(&preparing->arena, path)
                          : mf_arena_format(&preparing->arena, "%s/%s", preparing->folder, path);
}

/* What says how to tokenize; it is taken out of the data. */
static enum mf_status take_options(struct preparing *preparing, json_t *data)
{
    static const char *const keys[] = {"tokenizer", "template", "end_token", "align", "cache"};
    struct mf_token_data_spec *spec = &preparing->spec;
    const char *template = NULL;
    const char *end_token = NULL;
    const char *cache = CACHE_NAME;
    MF_TRY(mf_json_string(data, WHERE, "template", &template));
    MF_TRY(mf_json_string(data, WHERE, "end_token", &end_token));
    MF_TRY(mf_json_string(data, WHERE, "cache", &cache));
    MF_TRY(mf_json_int(data, WHERE, "align", 0, MF_SEQ_LEN_MAX, &spec->align));
    spec->template = template != NULL ? mf_chat_parse(template) : -1;
    if (template != NULL && spec->template <0) {
        return mf_status_set(MF_STATUS_INVALID,
                             WHERE ": \"template\" must be chatml, llama3 or plain, found "
                                   "\"%.60s\" (a Jinja template is not executed)",
                             template);
    }
    spec->tokenizer = absolute(preparing, json_string_value(json_object_get(data, "tokenizer")));
    spec->end_token = end_token != NULL ? mf_arena_string(&preparing->arena, end_token) : NULL;
    preparing->cache = absolute(preparing, cache);
    for (size_t i = 0; i < sizeof(keys) / sizeof(keys[0]); i++) {
        json_object_del(data, keys[i]);
    }
    return MF_STATUS_OK;
}

static enum mf_status read_paths(struct preparing *preparing, const json_t *value, const char *key)
{
    size_t count = json_is_array(value) ? json_array_size(value) : 1;
    const char **paths = mf_arena_alloc(&preparing->arena, count + 1, sizeof(*paths));
    for (size_t i = 0; i < count; i++) {
        const json_t *item = json_is_array(value) ? json_array_get(value, i) : value;
        if (!json_is_string(item) || json_string_length(item) == 0) {
            return mf_status_set(MF_STATUS_INVALID, WHERE ": \"%s\" must be a path or paths", key);
        }
        paths[i] = absolute(preparing, json_string_value(item));
    }
    preparing->spec.paths = paths;
    preparing->spec.path_count = count;
    return MF_STATUS_OK;
}

/* Whether a file in the cache is whole. */
static bool is_made(const char *path)
{
    unsigned char bytes[MF_TOKEN_FILE_HEADER_BYTES];
    struct stat info;
    struct mf_token_file header;
    int file = open(path, O_RDONLY | O_CLOEXEC);
    bool made = file >= 0 && fstat(file, &info) == 0 &&
                read(file, bytes, sizeof(bytes)) == (ssize_t)sizeof(bytes) &&
                mf_token_file_decode(bytes, info.st_size, path, &header) == MF_STATUS_OK;
    if (file >= 0) {
        close(file);
    }
    return made;
}

/* The texts under `from` become a token file under `to`. */
static enum mf_status convert(struct preparing *preparing, json_t *data, const char *from,
                              const char *to)
{
    char key[MF_HASH_TEXT_MAX];
    struct mf_token_data_result result;
    MF_TRY(read_paths(preparing, json_object_get(data, from), from));
    MF_TRY(mf_token_data_key(&preparing->spec, key));
    if (mkdir(preparing->cache, 0777) != 0 && errno != EEXIST) {
        return mf_status_set(MF_STATUS_IO,
                             "cannot make the folder %s for tokens: %s; name another (data.cache)",
                             preparing->cache, strerror(errno));
    }
    const char *path =
        mf_arena_format(&preparing->arena, "%s/%.*s.mftokens", preparing->cache, KEY_DIGITS, key);
    if (!is_made(path)) {
        MF_TRY(mf_token_data_make(&preparing->spec, path, &result));
        if (!preparing->spec.quiet) {
            fprintf(stderr, "memferry: %lld tokens, %lld of them learned, are in %s\n",
                    (long long)result.file.token_count, (long long)result.learned, path);
        }
    }
    json_object_del(data, from);
    json_object_set_new(data, to, json_pack("[s]", path));
    return MF_STATUS_OK;
}

static enum mf_status prepare(struct preparing *preparing, json_t *data)
{
    const char *format = NULL;
    MF_TRY(mf_json_string(data, WHERE, "format", &format));
    if (format != NULL || json_object_get(data, "tokens") != NULL ||
        json_object_get(data, "paths") != NULL || json_object_get(data, "text") == NULL) {
        return mf_status_set(MF_STATUS_INVALID,
                             WHERE ": a tokenizer is for \"text\" (files of text or JSONL, told by "
                                   "their names), without \"format\"; tokens need none");
    }
    MF_TRY(take_options(preparing, data));
    MF_TRY(convert(preparing, data, "text", "tokens"));
    if (json_object_get(data, "validation") != NULL) {
        MF_TRY(convert(preparing, data, "validation", "validation"));
    }
    json_object_set_new(data, "format", json_string("memferry"));
    return MF_STATUS_OK;
}

/* Nobody means to learn the braces and quotes of JSONL byte by byte without saying so. */
static enum mf_status check_bytes(const json_t *text)
{
    size_t count = json_is_array(text) ? json_array_size(text) : 1;
    for (size_t i = 0; i < count; i++) {
        const char *path = json_string_value(json_is_array(text) ? json_array_get(text, i) : text);
        if (path != NULL && mf_documents_are_lines(path)) {
            return mf_status_set(MF_STATUS_INVALID,
                                 WHERE ": %s is JSONL: name the folder of a \"tokenizer\", or say "
                                       "\"tokenizer\": \"bytes\" to learn it byte by byte",
                                 path);
        }
    }
    return MF_STATUS_OK;
}

enum mf_status mf_command_train_data_prepare(json_t *config, const char *folder, bool quiet)
{
    json_t *data = json_object_get(json_object_get(config, "memferry"), "data");
    const char *tokenizer = json_string_value(json_object_get(data, "tokenizer"));
    if (tokenizer == NULL) {
        return check_bytes(json_object_get(data, "text"));
    }
    if (strcmp(tokenizer, "bytes") == 0) {
        return MF_STATUS_OK;
    }
    struct preparing preparing = {.folder = folder, .spec = {.quiet = quiet}};
    mf_arena_init(&preparing.arena);
    enum mf_status status = prepare(&preparing, data);
    mf_arena_reset(&preparing.arena);
    return status;
}
