/* Any bytes as JSONL and as text, with every template: refused with a text, or a token file that
 * can be read back. */
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "client/documents.h"
#include "harness.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check_file(const char *path, const struct mf_token_file *file)
{
    unsigned char bytes[MF_TOKEN_FILE_HEADER_BYTES];
    struct mf_token_file again;
    struct stat info;
    FILE *stream = fopen(path, "rb");
    MF_ASSERT(stream != NULL && fread(bytes, 1, sizeof(bytes), stream) == sizeof(bytes));
    fclose(stream);
    MF_ASSERT(stat(path, &info) == 0);
    MF_ASSERT(mf_token_file_decode(bytes, info.st_size, path, &again) == MF_STATUS_OK);
    MF_ASSERT(again.token_count == file->token_count && again.masked == file->masked);
}

static void run(struct mf_tokenizer *tokenizer, const char *path, const char *text, size_t count,
                int template, bool lines)
{
    struct mf_documents documents = {.tokenizer = tokenizer, .template = template};
    const struct mf_tokenizer_info *info = mf_tokenizer_describe(tokenizer);
    const struct mf_token_writer_spec spec = {.path = path,
                                              .tokenizer = info->fingerprint,
                                              .vocab = info->vocab,
                                              .align = lines ? 16 : 0,
                                              .padding = info->end_token};
    struct mf_token_file file;
    documents.end_token = info->end_token;
    MF_ASSERT(mf_token_writer_open(&spec, &documents.writer) == MF_STATUS_OK);
    enum mf_status status = lines ? mf_documents_lines(&documents, text, count, "fuzz")
                                  : mf_documents_text(&documents, text, count, "fuzz");
    if (status != MF_STATUS_OK) {
        MF_ASSERT(strstr(mf_status_text(), "fuzz") != NULL);
        mf_token_writer_abandon(documents.writer);
        return;
    }
    MF_ASSERT(mf_token_writer_finish(documents.writer, &file) == MF_STATUS_OK);
    check_file(path, &file);
    unlink(path);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static struct mf_tokenizer *tokenizer;
    static const char *path;
    if (tokenizer == NULL) {
        MF_ASSERT(mf_tokenizer_open(harness_source("tests/oracle/fixtures/tokenizers/qwen2"),
                                    &tokenizer) == MF_STATUS_OK);
        path = harness_path(harness_folder(), "out");
    }
    for (int template = -1; template <MF_CHAT_TEMPLATE_COUNT; template ++) {
        run(tokenizer, path, (const char *)data, size, template, true);
    }
    run(tokenizer, path, (const char *)data, size, -1, false);
    return 0;
}
