/* Any bytes as a Megatron index over 64 bytes of tokens: refused with a text, or every sequence can
 * be read. */
#include <stdint.h>
#include <string.h>

#include "harness.h"
#include "runtime/tokens.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const char *index, *tokens_path;
    struct mf_tokens *tokens = NULL;
    if (index == NULL) {
        const char *folder = harness_folder();
        const char zeros[64] = {0};
        index = harness_path(folder, "fuzz.idx");
        tokens_path = harness_path(folder, "fuzz.bin");
        harness_write(tokens_path, zeros, sizeof(zeros));
    }
    harness_write(index, data, size);
    const struct mf_tokens_spec spec = {
        .paths = &tokens_path, .path_count = 1, .format = MF_TOKENS_FORMAT_MEGATRON, .seq_len = 7};
    enum mf_status status = mf_tokens_open(&spec, 1000, &tokens);
    if (status != MF_STATUS_OK) {
        MF_ASSERT(tokens == NULL && strstr(mf_status_text(), index) != NULL);
        MF_ASSERT(status == MF_STATUS_CORRUPT || status == MF_STATUS_UNSUPPORTED);
        return 0;
    }
    int32_t ids[2][7];
    for (int64_t i = 0; i < mf_tokens_describe(tokens)->sequence_count; i++) {
        MF_ASSERT(mf_tokens_batch(tokens, i, 1, ids[0], ids[1]) == MF_STATUS_OK);
    }
    mf_tokens_close(tokens);
    return 0;
}
