/* Finding and recognising token files: see tokens_files.h. */
#include "runtime/tokens_files.h"

#include <dirent.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "core/log.h"
#include "runtime/files.h"
#include "runtime/tokens_format.h"

#define FOLDER_DEPTH_MAX 16

struct listing {
    struct mf_arena *arena;
    struct mf_tokens_files *out;
    int32_t room;
    bool indexes;  /* NAME.idx stands for NAME.bin, which is found by itself in a folder */
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
    if (!S_ISREG(info.st_mode) || (listing->indexes && mf_tokens_format_is_index(path))) {
        return MF_STATUS_OK;
    }
    if (info.st_size == 0) {
        listing->empty++;
        return MF_STATUS_OK;
    }
    return add_file(listing, path, info.st_size);
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
    if (listing->indexes && mf_tokens_format_is_index(path)) {
        path = mf_arena_format(listing->arena, "%.*s.bin", (int)strlen(path) - 4, path);
    }
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

enum mf_status mf_tokens_files_list(const struct mf_tokens_spec *spec, struct mf_arena *arena,
                                    struct mf_tokens_files *out)
{
    struct listing listing = {.arena = arena,
                              .out = out,
                              .indexes = spec->format == MF_TOKENS_FORMAT_AUTO ||
                                         spec->format == MF_TOKENS_FORMAT_MEGATRON};
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
            MF_TRY(mf_tokens_format_recognise(file, &format));
        }
        if (i > 0 && format != out->format) {
            return mf_status_set(MF_STATUS_INVALID, "%s holds %s, the files before it %s",
                                 file->path, mf_tokens_format_name(format),
                                 mf_tokens_format_name(out->format));
        }
        out->format = format;
        MF_TRY(mf_tokens_format_measure(file, format));
        if (strcmp(file->tokenizer, out->files[0].tokenizer) != 0) {
            return mf_status_set(MF_STATUS_INVALID,
                                 "%s was made with tokenizer %.12s, %s with %.12s: their tokens "
                                 "mean different texts",
                                 file->path, file->tokenizer, out->files[0].path,
                                 out->files[0].tokenizer);
        }
        file->first = out->token_count;
        out->token_count += file->token_count;
    }
    return MF_STATUS_OK;
}
