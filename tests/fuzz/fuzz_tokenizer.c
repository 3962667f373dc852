/* Any bytes as a tokenizer.json: refused with a text, or it encodes texts into ids below its
 * vocabulary. */
#include <stdint.h>
#include <string.h>

#include "client/tokenizer.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static enum mf_status put(void *context, const int32_t *ids, size_t count, size_t bytes)
{
    MF_ASSERT(bytes > 0);
    for (size_t i = 0; i < count; i++) {
        MF_ASSERT(ids[i] >= 0 && ids[i] < *(const int32_t *)context);
    }
    return MF_STATUS_OK;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const char text[] =
        "don't  1234\n\n e\u0301<|endoftext|></tool> \u4e2d \U0001f600 the the";
    struct mf_tokenizer *tokenizer = NULL;
    enum mf_status status = mf_tokenizer_parse((const char *)data, size, "fuzz", &tokenizer);
    if (status != MF_STATUS_OK) {
        MF_ASSERT(tokenizer == NULL && mf_status_text()[0] != '\0');
        return 0;
    }
    int32_t vocab = mf_tokenizer_describe(tokenizer)->vocab;
    const struct mf_tokenizer_sink sink = {put, &vocab};
    for (int special = 0; special < 2; special++) {
        MF_ASSERT(mf_tokenizer_encode(tokenizer, text, strlen(text), special == 1, &sink) ==
                  MF_STATUS_OK);
    }
    mf_tokenizer_close(tokenizer);
    return 0;
}
