/* Tokens as shuffled sequences: see tokens.h. */
#include "runtime/tokens.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "core/limits.h"
#include "runtime/files.h"
#include "runtime/tokens_files.h"
#include "runtime/tokens_order.h"

/* Files kept open; others are opened for each read. */
#define OPEN_FILES_MAX 128
/* Bytes converted at once; a multiple of every width. */
#define CHUNK_BYTES 65536
/* Bytes at either end of a file that go into the fingerprint. */
#define FINGERPRINT_BYTES 4096
#define IGNORED_LABEL (-100) /* PyTorch's ignore_index, and the executor's */

struct mf_tokens {
    struct mf_arena arena;
    struct mf_tokens_files list;
    struct mf_tokens_info info;
    int32_t *descriptors; /* of the first OPEN_FILES_MAX files */
    int32_t open_count;
    int64_t vocab;
    int64_t first; /* sequence of the stream that is ours */
    int64_t all;   /* sequences of the stream */
    int32_t seq_len;
    bool shuffle;
    uint64_t seed;
};

static const char *const format_names[] = {
#define X(name, text, sentence) text,
    MF_TOKENS_FORMAT_MAP(X)
#undef X
};

const char *mf_tokens_format_name(enum mf_tokens_format format)
{
    MF_ASSERT(format < MF_TOKENS_FORMAT_COUNT);
    return format_names[format];
}

int mf_tokens_parse_format(const char *text)
{
    for (int format = 0; format < MF_TOKENS_FORMAT_COUNT; format++) {
        if (strcmp(format_names[format], text) == 0) {
            return format;
        }
    }
    return -1;
}

static enum mf_status enter_file(const struct mf_tokens *tokens, int32_t index, int *out)
{
    *out = index < tokens->open_count ? tokens->descriptors[index]
                                      : open(tokens->list.files[index].path, O_RDONLY | O_CLOEXEC);
    return *out >= 0 ? MF_STATUS_OK
                     : mf_files_failed(errno, "open", tokens->list.files[index].path);
}

static void leave_file(const struct mf_tokens *tokens, int32_t index, int descriptor)
{
    if (index >= tokens->open_count) {
        close(descriptor);
    }
}

static uint32_t decode(const unsigned char *bytes, int32_t width)
{
    uint32_t value = bytes[0];
    if (width >= 2) {
        value |= (uint32_t)bytes[1] << 8;
    }
    if (width == 4) {
        value |= (uint32_t)bytes[2] << 16 | (uint32_t)bytes[3] << 24;
    }
    return value;
}

/* `count` tokens of a file from its token `first`, checked; `out` NULL = only checked. */
static enum mf_status read_file(const struct mf_tokens *tokens, const struct mf_tokens_file *file,
                                int descriptor, int64_t first, int64_t count, int32_t *out)
{
    unsigned char bytes[CHUNK_BYTES];
    int64_t chunk = CHUNK_BYTES / file->width;
    for (int64_t done = 0; done < count;) {
        int64_t part = count - done < chunk ? count - done : chunk;
        int64_t offset = file->data_offset + (first + done) * file->width;
        MF_TRY(
            mf_files_read_at(descriptor, offset, bytes, (size_t)(part * file->width), file->path));
        for (int64_t i = 0; i < part; i++) {
            uint32_t token = decode(bytes + i * file->width, file->width);
            if ((int64_t)token >= tokens->vocab) {
                return mf_status_set(MF_STATUS_INVALID,
                                     "%s: token %lld is %u, the model's vocabulary has %lld: the "
                                     "data was made for another tokenizer",
                                     file->path, (long long)first + (long long)done + (long long)i,
                                     (unsigned)token, (long long)tokens->vocab);
            }
            if (out != NULL) {
                out[done + i] = (int32_t)token;
            }
        }
        done += part;
    }
    return MF_STATUS_OK;
}

/* The file that holds token `position` of the stream. */
static int32_t find_file(const struct mf_tokens *tokens, int64_t position)
{
    int32_t low = 0;
    int32_t high = tokens->list.count - 1;
    while (low < high) {
        int32_t middle = low + (high - low + 1) / 2;
        if (tokens->list.files[middle].first <= position) {
            low = middle;
        } else {
            high = middle - 1;
        }
    }
    return low;
}

static enum mf_status read_stream(const struct mf_tokens *tokens, int64_t position, int64_t count,
                                  int32_t *out)
{
    for (int32_t i = find_file(tokens, position); count > 0; i++) {
        MF_ASSERT(i < tokens->list.count);
        const struct mf_tokens_file *file = &tokens->list.files[i];
        int64_t first = position - file->first;
        int64_t part = file->token_count - first < count ? file->token_count - first : count;
        int descriptor = -1;
        MF_TRY(enter_file(tokens, i, &descriptor));
        enum mf_status status = read_file(tokens, file, descriptor, first, part, out);
        leave_file(tokens, i, descriptor);
        MF_TRY(status);
        position += part;
        out += part;
        count -= part;
    }
    return MF_STATUS_OK;
}

/* Labels of `count` tokens of a file from its token `first`: ignored where not learned. */
static enum mf_status mask_file(const struct mf_tokens_file *file, int descriptor, int64_t first,
                                int64_t count, int32_t *labels)
{
    unsigned char bits[CHUNK_BYTES];
    for (int64_t done = 0; done < count;) {
        int64_t from = first + done;
        int64_t part = 8 * CHUNK_BYTES - from % 8;
        part = count - done < part ? count - done : part;
        MF_TRY(mf_files_read_at(descriptor, file->mask_offset + from / 8, bits,
                                (size_t)((from % 8 + part + 7) / 8), file->path));
        for (int64_t i = 0; i < part; i++) {
            int64_t bit = from % 8 + i;
            if ((bits[bit / 8] >> (bit % 8) & 1) == 0) {
                labels[done + i] = IGNORED_LABEL;
            }
        }
        done += part;
    }
    return MF_STATUS_OK;
}

static enum mf_status mask_stream(const struct mf_tokens *tokens, int64_t position, int64_t count,
                                  int32_t *labels)
{
    for (int32_t i = find_file(tokens, position); count > 0; i++) {
        const struct mf_tokens_file *file = &tokens->list.files[i];
        int64_t first = position - file->first;
        int64_t part = file->token_count - first < count ? file->token_count - first : count;
        if (file->mask_offset > 0) {
            int descriptor = -1;
            MF_TRY(enter_file(tokens, i, &descriptor));
            enum mf_status status = mask_file(file, descriptor, first, part, labels);
            leave_file(tokens, i, descriptor);
            MF_TRY(status);
        }
        position += part;
        labels += part;
        count -= part;
    }
    return MF_STATUS_OK;
}

/* No id of this width can be out of range: nothing to look at. */
static bool always_valid(const struct mf_tokens *tokens, int32_t width)
{
    return width < 4 && tokens->vocab >= (1ll << (8 * width));
}

/* Checks a file's tokens and adds its ends to the fingerprint's text. */
static enum mf_status inspect_file(struct mf_tokens *tokens, int32_t index, FILE *text)
{
    const struct mf_tokens_file *file = &tokens->list.files[index];
    unsigned char bytes[FINGERPRINT_BYTES];
    char hash[MF_HASH_TEXT_MAX];
    int descriptor = -1;
    MF_TRY(enter_file(tokens, index, &descriptor));
    size_t count = file->bytes < FINGERPRINT_BYTES ? (size_t)file->bytes : FINGERPRINT_BYTES;
    enum mf_status status = mf_files_read_at(descriptor, 0, bytes, count, file->path);
    mf_hash(bytes, status == MF_STATUS_OK ? count : 0, hash);
    fprintf(text, "%lld %s", (long long)file->bytes, hash);
    if (status == MF_STATUS_OK) {
        status =
            mf_files_read_at(descriptor, file->bytes - (int64_t)count, bytes, count, file->path);
    }
    mf_hash(bytes, status == MF_STATUS_OK ? count : 0, hash);
    fprintf(text, " %s\n", hash);
    if (status == MF_STATUS_OK && !always_valid(tokens, file->width)) {
        status = read_file(tokens, file, descriptor, 0, file->token_count, NULL);
    }
    leave_file(tokens, index, descriptor);
    return status;
}

static enum mf_status inspect(struct mf_tokens *tokens)
{
    char *bytes = NULL;
    size_t count = 0;
    FILE *text = open_memstream(&bytes, &count);
    MF_ASSERT(text != NULL);
    fprintf(text, "tokens %s\n", mf_tokens_format_name(tokens->list.format));
    if (tokens->info.sequence_count != tokens->all) {
        fprintf(text, "sequences %lld from %lld\n", (long long)tokens->info.sequence_count,
                (long long)tokens->first);
    }
    enum mf_status status = MF_STATUS_OK;
    for (int32_t i = 0; i < tokens->list.count && status == MF_STATUS_OK; i++) {
        status = inspect_file(tokens, i, text);
    }
    MF_ASSERT(fclose(text) == 0);
    mf_hash(bytes, count, tokens->info.fingerprint);
    free(bytes);
    return status;
}

static enum mf_status open_files(struct mf_tokens *tokens)
{
    int32_t count = tokens->list.count < OPEN_FILES_MAX ? tokens->list.count : OPEN_FILES_MAX;
    tokens->descriptors = mf_arena_alloc(&tokens->arena, (size_t)count, sizeof(int32_t));
    for (int32_t i = 0; i < count; i++) {
        int descriptor = open(tokens->list.files[i].path, O_RDONLY | O_CLOEXEC);
        if (descriptor < 0) {
            return mf_files_failed(errno, "open", tokens->list.files[i].path);
        }
        tokens->descriptors[tokens->open_count++] = descriptor;
    }
    return MF_STATUS_OK;
}

/* Splits the stream's sequences in two parts, neither of them empty. */
static enum mf_status hold_out(struct mf_tokens *tokens, const struct mf_tokens_spec *spec)
{
    if (!(spec->held_out > 0)) {
        return MF_STATUS_OK;
    }
    if (spec->held_out >= 1 || tokens->all < 2) {
        return mf_status_set(MF_STATUS_INVALID,
                             "a share of %g cannot be held out of %lld sequences: bring more data, "
                             "or shorten the sequence",
                             spec->held_out, (long long)tokens->all);
    }
    int64_t held = (int64_t)llround(spec->held_out * (double)tokens->all);
    held = held < 1 ? 1 : held > tokens->all - 1 ? tokens->all - 1 : held;
    tokens->first = spec->take_held_out ? tokens->all - held : 0;
    tokens->info.sequence_count = spec->take_held_out ? held : tokens->all - held;
    return MF_STATUS_OK;
}

static enum mf_status prepare(struct mf_tokens *tokens, const struct mf_tokens_spec *spec)
{
    MF_TRY(mf_tokens_files_list(spec, &tokens->arena, &tokens->list));
    struct mf_tokens_info *info = &tokens->info;
    info->format = tokens->list.format;
    info->file_count = tokens->list.count;
    info->token_count = tokens->list.token_count;
    if (info->format == MF_TOKENS_FORMAT_BYTES && tokens->vocab < 256) {
        return mf_status_set(MF_STATUS_INVALID,
                             "bytes as tokens need a vocabulary of at least 256, this model has "
                             "%lld",
                             (long long)tokens->vocab);
    }
    if (info->token_count < (int64_t)spec->seq_len + 1) {
        return mf_status_set(
            MF_STATUS_INVALID,
            "%s%s: %lld tokens, one sequence of %d needs %lld: bring more data or "
            "shorten the sequence",
            tokens->list.files[0].path, tokens->list.count > 1 ? " and others" : "",
            (long long)info->token_count, (int)spec->seq_len, (long long)spec->seq_len + 1);
    }
    tokens->all = (info->token_count - 1) / spec->seq_len;
    info->sequence_count = tokens->all;
    MF_TRY(hold_out(tokens, spec));
    MF_TRY(open_files(tokens));
    return inspect(tokens);
}

enum mf_status mf_tokens_open(const struct mf_tokens_spec *spec, int64_t vocab,
                              struct mf_tokens **out)
{
    *out = NULL;
    if (spec->seq_len < 1 || spec->seq_len > MF_SEQ_LEN_MAX) {
        return mf_status_set(MF_STATUS_INVALID, "a sequence has 1 to %d tokens, not %d",
                             MF_SEQ_LEN_MAX, (int)spec->seq_len);
    }
    struct mf_tokens *tokens = calloc(1, sizeof(*tokens));
    MF_ASSERT(tokens != NULL);
    mf_arena_init(&tokens->arena);
    tokens->vocab = vocab;
    tokens->seq_len = spec->seq_len;
    tokens->shuffle = spec->shuffle;
    tokens->seed = spec->seed;
    enum mf_status status = prepare(tokens, spec);
    if (status != MF_STATUS_OK) {
        mf_tokens_close(tokens);
        return status;
    }
    *out = tokens;
    return MF_STATUS_OK;
}

void mf_tokens_close(struct mf_tokens *tokens)
{
    if (tokens == NULL) {
        return;
    }
    for (int32_t i = 0; i < tokens->open_count; i++) {
        close(tokens->descriptors[i]);
    }
    mf_arena_reset(&tokens->arena);
    free(tokens);
}

const struct mf_tokens_info *mf_tokens_describe(const struct mf_tokens *tokens)
{
    return &tokens->info;
}

int64_t mf_tokens_sequence_at(const struct mf_tokens *tokens, int64_t index)
{
    MF_ASSERT(index >= 0);
    int64_t count = tokens->info.sequence_count;
    return tokens->shuffle ? mf_tokens_order_at(tokens->seed, index / count, index % count, count)
                           : index % count;
}

enum mf_status mf_tokens_batch(const struct mf_tokens *tokens, int64_t index, int32_t count,
                               int32_t *inputs, int32_t *labels)
{
    int64_t length = tokens->seq_len;
    for (int64_t i = 0; i < count; i++) {
        int64_t position = (tokens->first + mf_tokens_sequence_at(tokens, index + i)) * length;
        MF_TRY(read_stream(tokens, position, length, inputs + i * length));
        /* Labels are the inputs one place on: only the last is new. */
        memcpy(labels + i * length, inputs + i * length + 1,
               (size_t)(length - 1) * sizeof(*labels));
        MF_TRY(read_stream(tokens, position + length, 1, labels + (i + 1) * length - 1));
        MF_TRY(mask_stream(tokens, position + 1, length, labels + i * length));
    }
    return MF_STATUS_OK;
}
