/* Finding and recognising token files: see tokens_files.h. */
#include "runtime/tokens_files.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/log.h"
#include "runtime/files.h"

#define FOLDER_DEPTH_MAX 16
#define LLMC_HEADER_BYTES 1024
#define LLMC_HEADER_WORDS 3

/* llm.c's two kinds of file; from its dev/data/data_common.py. */
static const struct {
    int32_t magic;
    int32_t version;
    int32_t width;
} llmc_kinds[] = {{20240520, 1, 2}, {20240801, 7, 4}};

struct listing {
    struct mf_arena *arena;
    struct mf_tokens_files *out;
    int32_t room;
    int32_t empty; /* files without a byte, left out of folders */
};

static enum mf_status add_file(struct listing *listing, const char *path, int64_t bytes)
{
    struct mf_tokens_files *out = listing->out;
    if (out->count == MF_TOKENS_FILES_MAX) {
        return mf_status_set(MF_STATUS_INVALID, "more than %d data files: merge them",
                             MF_TOKENS_FILES_MAX);
    }
    if (out->count == listing->room) {
        int32_t room = listing->room == 0 ? 64 : listing->room * 2;
        struct mf_tokens_file *larger =
            mf_arena_alloc(listing->arena, (size_t)room, sizeof(*larger));
        if (out->count > 0) {
            memcpy(larger, out->files, (size_t)out->count * sizeof(*larger));
        }
        out->files = larger;
        listing->room = room;
    }
    out->files[out->count++] =
        (struct mf_tokens_file){.path = mf_arena_string(listing->arena, path), .bytes = bytes};
    return MF_STATUS_OK;
}

static enum mf_status add_folder(struct listing *listing, const char *folder, int depth);

/* Links in a folder are left out: they would bring the same text twice, or go in circles. */
static enum mf_status add_entry(struct listing *listing, const char *path, int depth)
{
    struct stat info;
    if (lstat(path, &info) != 0) {
        return mf_files_failed(errno, "look at", path);
    }
    if (S_ISDIR(info.st_mode)) {
        return add_folder(listing, path, depth + 1);
    }
    if (S_ISREG(info.st_mode) && info.st_size == 0) {
        listing->empty++;
        return MF_STATUS_OK;
    }
    return S_ISREG(info.st_mode) ? add_file(listing, path, info.st_size) : MF_STATUS_OK;
}

/* By bytes, not by the locale: the order decides the training. */
static int compare_names(const struct dirent **left, const struct dirent **right)
{
    return strcmp((*left)->d_name, (*right)->d_name);
}

static enum mf_status add_folder(struct listing *listing, const char *folder, int depth)
{
    struct dirent **entries = NULL;
    if (depth > FOLDER_DEPTH_MAX) {
        return mf_status_set(MF_STATUS_INVALID, "%s is more than %d folders deep", folder,
                             FOLDER_DEPTH_MAX);
    }
    int count = scandir(folder, &entries, NULL, compare_names);
    if (count < 0) {
        return mf_files_failed(errno, "list", folder);
    }
    enum mf_status status = MF_STATUS_OK;
    for (int i = 0; i < count; i++) {
        if (status == MF_STATUS_OK && entries[i]->d_name[0] != '.') {
            status = add_entry(listing,
                               mf_arena_format(listing->arena, "%s/%s", folder, entries[i]->d_name),
                               depth);
        }
        free(entries[i]);
    }
    free(entries);
    return status;
}

static enum mf_status add_path(struct listing *listing, const char *path)
{
    struct stat info;
    if (stat(path, &info) != 0) {
        return mf_files_failed(errno, "find the data", path);
    }
    if (S_ISDIR(info.st_mode)) {
        int32_t before = listing->out->count;
        MF_TRY(add_folder(listing, path, 0));
        return listing->out->count > before
                   ? MF_STATUS_OK
                   : mf_status_set(MF_STATUS_INVALID, "%s holds no file with data (%d empty ones)",
                                   path, (int)listing->empty);
    }
    if (!S_ISREG(info.st_mode)) {
        return mf_status_set(MF_STATUS_INVALID, "%s is neither a file nor a folder", path);
    }
    if (info.st_size == 0) {
        return mf_status_set(MF_STATUS_INVALID, "%s is empty (0 bytes)", path);
    }
    return add_file(listing, path, info.st_size);
}

/* The first bytes of a file, zeros after its end. */
static enum mf_status read_head(const struct mf_tokens_file *file, int32_t words[LLMC_HEADER_WORDS])
{
    memset(words, 0, LLMC_HEADER_WORDS * sizeof(*words));
    int descriptor = open(file->path, O_RDONLY | O_CLOEXEC);
    if (descriptor < 0) {
        return mf_files_failed(errno, "open", file->path);
    }
    size_t wanted = LLMC_HEADER_WORDS * sizeof(*words);
    size_t count = file->bytes < (int64_t)wanted ? (size_t)file->bytes : wanted;
    enum mf_status status = mf_files_read_at(descriptor, 0, words, count, file->path);
    close(descriptor);
    return status;
}

static bool ends_with(const char *text, const char *tail)
{
    size_t length = strlen(text);
    size_t tail_length = strlen(tail);
    return length >= tail_length && strcmp(text + length - tail_length, tail) == 0;
}

static int llmc_kind(int32_t magic)
{
    for (size_t i = 0; i < sizeof(llmc_kinds) / sizeof(llmc_kinds[0]); i++) {
        if (llmc_kinds[i].magic == magic) {
            return (int)i;
        }
    }
    return -1;
}

static enum mf_status recognise(const struct mf_tokens_file *file, enum mf_tokens_format *out)
{
    int32_t words[LLMC_HEADER_WORDS];
    MF_TRY(read_head(file, words));
    if (memcmp(words, "MMIDIDX", 7) == 0) {
        return mf_status_set(MF_STATUS_UNSUPPORTED,
                             "%s is the index of a Megatron data set, which is not read yet",
                             file->path);
    }
    if (llmc_kind(words[0]) >= 0) {
        *out = MF_TOKENS_FORMAT_LLMC;
    } else if (ends_with(file->path, ".bin")) {
        return mf_status_set(MF_STATUS_INVALID,
                             "%s has no llm.c header: say whether its format is raw_u16, raw_u32 "
                             "or bytes",
                             file->path);
    } else {
        *out = MF_TOKENS_FORMAT_BYTES;
    }
    return MF_STATUS_OK;
}

static enum mf_status measure_llmc(struct mf_tokens_file *file)
{
    int32_t words[LLMC_HEADER_WORDS];
    MF_TRY(read_head(file, words));
    int kind = llmc_kind(words[0]);
    if (kind < 0 || words[1] != llmc_kinds[kind].version) {
        return mf_status_set(MF_STATUS_INVALID,
                             "%s is no llm.c token file: magic %d, version %d; known are 20240520 "
                             "version 1 and 20240801 version 7",
                             file->path, (int)words[0], (int)words[1]);
    }
    file->width = llmc_kinds[kind].width;
    file->data_offset = LLMC_HEADER_BYTES;
    file->token_count = words[2];
    int64_t expected = LLMC_HEADER_BYTES + file->token_count * file->width;
    if (file->token_count < 0 || file->bytes != expected) {
        return mf_status_set(MF_STATUS_CORRUPT,
                             "%s: its header counts %lld tokens, so it should have %lld bytes; it "
                             "has %lld",
                             file->path, (long long)file->token_count, (long long)expected,
                             (long long)file->bytes);
    }
    return MF_STATUS_OK;
}

static enum mf_status measure(struct mf_tokens_file *file, enum mf_tokens_format format)
{
    if (format == MF_TOKENS_FORMAT_LLMC) {
        return measure_llmc(file);
    }
    file->width = format == MF_TOKENS_FORMAT_RAW_U32   ? 4
                  : format == MF_TOKENS_FORMAT_RAW_U16 ? 2
                                                       : 1;
    file->token_count = file->bytes / file->width;
    if (file->bytes % file->width != 0) {
        return mf_status_set(MF_STATUS_CORRUPT, "%s has %lld bytes, not a multiple of %d: %s",
                             file->path, (long long)file->bytes, (int)file->width,
                             "it is cut short or of another format");
    }
    return MF_STATUS_OK;
}

enum mf_status mf_tokens_files_list(const struct mf_tokens_spec *spec, struct mf_arena *arena,
                                    struct mf_tokens_files *out)
{
    struct listing listing = {.arena = arena, .out = out};
    *out = (struct mf_tokens_files){.format = spec->format};
    for (int32_t i = 0; i < spec->path_count; i++) {
        MF_TRY(add_path(&listing, spec->paths[i]));
    }
    if (out->count == 0) {
        return mf_status_set(MF_STATUS_INVALID, "no data: name at least one file or folder");
    }
    if (listing.empty > 0) {
        mf_log_info("%d empty data files are left out", (int)listing.empty);
    }
    for (int32_t i = 0; i < out->count; i++) {
        struct mf_tokens_file *file = &out->files[i];
        enum mf_tokens_format format = spec->format;
        if (format == MF_TOKENS_FORMAT_AUTO) {
            MF_TRY(recognise(file, &format));
        }
        if (i > 0 && format != out->format) {
            return mf_status_set(MF_STATUS_INVALID, "%s holds %s, the files before it %s",
                                 file->path, mf_tokens_format_name(format),
                                 mf_tokens_format_name(out->format));
        }
        out->format = format;
        MF_TRY(measure(file, format));
        file->first = out->token_count;
        out->token_count += file->token_count;
    }
    return MF_STATUS_OK;
}
