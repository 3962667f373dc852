/* From inputs to a token file: see token_data.h. */
#include "client/token_data.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "client/documents.h"
#include "client/inputs.h"
#include "client/render.h"
#include "core/format.h"
#include "core/limits.h"

struct making {
    const struct mf_token_data_spec *spec;
    struct mf_arena arena;
    struct mf_inputs inputs;
    struct mf_tokenizer *tokenizer;
    struct mf_documents documents;
    struct mf_render_progress progress;
    int64_t done; /* bytes of the files before this one */
    double begun_s;
};

static double now_s(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

static void show(void *context, int64_t bytes)
{
    struct making *making = context;
    const struct mf_token_file *file = mf_token_writer_describe(making->documents.writer);
    char tokens[MF_FORMAT_MAX];
    double done = (double)(making->done + bytes);
    double seconds = now_s() - making->begun_s;
    mf_render_progress_update(&making->progress, "tokenize, %.0f%%, %s tokens, %.1f MB/s",
                              making->inputs.bytes > 0 ? 100 * done / (double)making->inputs.bytes
                                                       : 100,
                              mf_format_count((double)file->token_count, tokens),
                              seconds > 0 ? done * 1e-6 / seconds : 0);
}

static enum mf_status find_end(struct making *making)
{
    const struct mf_token_data_spec *spec = making->spec;
    int32_t *end = &making->documents.end_token;
    *end = spec->end_token != NULL ? mf_tokenizer_find(making->tokenizer, spec->end_token)
                                   : mf_tokenizer_describe(making->tokenizer)->end_token;
    if (*end >= 0) {
        return MF_STATUS_OK;
    }
    return spec->end_token != NULL
               ? mf_status_set(MF_STATUS_INVALID, "the tokenizer has no added token \"%s\"",
                               spec->end_token)
               : mf_status_set(MF_STATUS_INVALID,
                               "%s: neither tokenizer_config.json (eos_token) nor config.json "
                               "(eos_token_id) names a token that ends a document: name it "
                               "(--end-token, data.end_token)",
                               spec->tokenizer);
}

static enum mf_status open_parts(struct making *making)
{
    const struct mf_token_data_spec *spec = making->spec;
    MF_TRY(mf_inputs_list(spec->paths, spec->path_count, &making->arena, &making->inputs));
    MF_TRY(mf_tokenizer_open(spec->tokenizer, &making->tokenizer));
    MF_TRY(find_end(making));
    return spec->template >= 0
               ? mf_chat_check((enum mf_chat_template)spec->template, making->tokenizer)
               : MF_STATUS_OK;
}

static enum mf_status read_all(struct making *making, const char *output,
                               struct mf_token_data_result *out)
{
    const struct mf_tokenizer_info *info = mf_tokenizer_describe(making->tokenizer);
    struct mf_documents *documents = &making->documents;
    const struct mf_token_writer_spec writer = {.path = output,
                                                .tokenizer = info->fingerprint,
                                                .vocab = info->vocab,
                                                .align = making->spec->align,
                                                .padding = documents->end_token};
    MF_TRY(mf_token_writer_open(&writer, &documents->writer));
    documents->tokenizer = making->tokenizer;
    documents->template = making->spec->template;
    documents->progress = show;
    documents->context = making;
    enum mf_status status = MF_STATUS_OK;
    for (size_t i = 0; i < making->inputs.count && status == MF_STATUS_OK; i++) {
        int64_t bytes = 0;
        show(making, 0);
        status = mf_documents_read(documents, making->inputs.paths[i], &bytes);
        making->done += bytes;
    }
    mf_render_progress_clear(&making->progress);
    if (status != MF_STATUS_OK) {
        mf_token_writer_abandon(documents->writer);
        return status;
    }
    out->learned = mf_token_writer_learned(documents->writer);
    return mf_token_writer_finish(documents->writer, &out->file);
}

enum mf_status mf_token_data_make(const struct mf_token_data_spec *spec, const char *output,
                                  struct mf_token_data_result *out)
{
    struct making making = {.spec = spec, .begun_s = now_s()};
    mf_arena_init(&making.arena);
    mf_render_progress_init(&making.progress, spec->quiet);
    *out = (struct mf_token_data_result){0};
    enum mf_status status = open_parts(&making);
    if (status == MF_STATUS_OK) {
        status = read_all(&making, output, out);
        out->input_bytes = making.inputs.bytes;
        out->seconds = now_s() - making.begun_s;
        out->split = mf_tokenizer_describe(making.tokenizer)->split;
    }
    mf_tokenizer_close(making.tokenizer);
    mf_arena_reset(&making.arena);
    return status;
}

static enum mf_status hash_file(FILE *text, const char *path)
{
    const char *bytes = NULL;
    size_t count = 0;
    char hash[MF_HASH_TEXT_MAX];
    MF_TRY(mf_inputs_map(path, INT64_MAX, &bytes, &count));
    mf_hash(bytes, count, hash);
    mf_inputs_unmap(bytes, count);
    fprintf(text, "%s %d\n", hash, mf_documents_are_lines(path));
    return MF_STATUS_OK;
}

/* The tokenizer's folder counts with all that decides tokens; what is not there does not. */
static void hash_folder(FILE *text, const char *folder)
{
    static const char *const files[] = {"tokenizer.json", "tokenizer_config.json", "config.json"};
    for (size_t i = 0; i < sizeof(files) / sizeof(files[0]); i++) {
        char *path = NULL;
        MF_ASSERT(asprintf(&path, "%s/%s", folder, files[i]) > 0);
        if (hash_file(text, path) != MF_STATUS_OK) {
            fprintf(text, "none\n");
        }
        free(path);
    }
}

enum mf_status mf_token_data_key(const struct mf_token_data_spec *spec,
                                 char out[static MF_HASH_TEXT_MAX])
{
    struct mf_arena arena;
    struct mf_inputs inputs;
    char *bytes = NULL;
    size_t count = 0;
    FILE *text = open_memstream(&bytes, &count);
    MF_ASSERT(text != NULL);
    mf_arena_init(&arena);
    fprintf(text, "tokens %d of memferry %s, template %d, end %s, align %lld\n",
            MF_TOKEN_FILE_VERSION, MF_VERSION, spec->template,
            spec->end_token != NULL ? spec->end_token : "", (long long)spec->align);
    hash_folder(text, spec->tokenizer);
    enum mf_status status = mf_inputs_list(spec->paths, spec->path_count, &arena, &inputs);
    for (size_t i = 0; status == MF_STATUS_OK && i < inputs.count; i++) {
        status = hash_file(text, inputs.paths[i]);
    }
    mf_arena_reset(&arena);
    MF_ASSERT(fclose(text) == 0);
    mf_hash(bytes, count, out);
    free(bytes);
    return status;
}
