/* Finding and mapping input files: see inputs.h. */
#include "client/inputs.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#define DEPTH_MAX 16
#define FILES_MAX 65536

static enum mf_status failed(const char *doing, const char *path)
{
    int code = errno;
    enum mf_status status = code == ENOENT   ? MF_STATUS_NOT_FOUND
                            : code == EACCES ? MF_STATUS_DENIED
                                             : MF_STATUS_IO;
    return mf_status_set(status, "cannot %s %s: %s", doing, path, strerror(code));
}

static enum mf_status add_file(struct mf_inputs *inputs, struct mf_arena *arena, const char *path,
                               int64_t bytes)
{
    if (inputs->count == FILES_MAX) {
        return mf_status_set(MF_STATUS_INVALID, "more than %d input files: merge them", FILES_MAX);
    }
    if ((inputs->count & (inputs->count - 1)) == 0) { /* 0, 1, 2, 4 ...: full */
        const char **larger = mf_arena_alloc(arena, 2 * inputs->count + 1, sizeof(*larger));
        if (inputs->count > 0) {
            memcpy(larger, inputs->paths, inputs->count * sizeof(*larger));
        }
        inputs->paths = larger;
    }
    inputs->paths[inputs->count++] = mf_arena_string(arena, path);
    inputs->bytes += bytes;
    return MF_STATUS_OK;
}

/* By bytes, not by the locale: the order decides the training. */
static int compare_names(const struct dirent **left, const struct dirent **right)
{
    return strcmp((*left)->d_name, (*right)->d_name);
}

static enum mf_status add_path(struct mf_inputs *inputs, struct mf_arena *arena, const char *path,
                               int depth)
{
    struct stat info;
    struct dirent **entries = NULL;
    if ((depth > 0 ? lstat(path, &info) : stat(path, &info)) != 0) {
        return failed("find", path);
    }
    size_t length = strlen(path);
    if (depth > 0 && length > 9 && strcmp(path + length - 9, ".mftokens") == 0) {
        return MF_STATUS_OK; /* made by us of what is beside it */
    }
    if (S_ISREG(info.st_mode)) {
        return info.st_size > 0 || depth == 0 ? add_file(inputs, arena, path, info.st_size)
                                              : MF_STATUS_OK;
    }
    if (!S_ISDIR(info.st_mode) || depth > DEPTH_MAX) {
        return depth > 0 && depth <= DEPTH_MAX
                   ? MF_STATUS_OK
                   : mf_status_set(MF_STATUS_INVALID,
                                   "%s is neither a file nor a folder, or more than %d folders "
                                   "deep",
                                   path, DEPTH_MAX);
    }
    int count = scandir(path, &entries, NULL, compare_names);
    if (count < 0) {
        return failed("list", path);
    }
    enum mf_status status = MF_STATUS_OK;
    for (int i = 0; i < count; i++) {
        if (status == MF_STATUS_OK && entries[i]->d_name[0] != '.') {
            const char *name = mf_arena_format(arena, "%s/%s", path, entries[i]->d_name);
            status = add_path(inputs, arena, name, depth + 1);
        }
        free(entries[i]);
    }
    free(entries);
    return status;
}

enum mf_status mf_inputs_list(const char *const *paths, size_t count, struct mf_arena *arena,
                              struct mf_inputs *out)
{
    *out = (struct mf_inputs){0};
    for (size_t i = 0; i < count; i++) {
        MF_TRY(add_path(out, arena, paths[i], 0));
    }
    return out->count > 0 ? MF_STATUS_OK
                          : mf_status_set(MF_STATUS_INVALID, "no input: %s holds no file with data",
                                          count > 0 ? paths[0] : "an empty list");
}

enum mf_status mf_inputs_map(const char *path, int64_t bytes_max, const char **out, size_t *count)
{
    struct stat info;
    enum mf_status status = MF_STATUS_OK;
    void *memory = NULL;
    int file = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    *out = "";
    *count = 0;
    if (file < 0 || fstat(file, &info) != 0) {
        status = failed("read", path);
    } else if (!S_ISREG(info.st_mode) || info.st_size > bytes_max) {
        status = mf_status_set(MF_STATUS_INVALID, "%s is not a regular file of at most %lld bytes",
                               path, (long long)bytes_max);
    } else if (info.st_size > 0) {
        memory = mmap(NULL, (size_t)info.st_size, PROT_READ, MAP_PRIVATE, file, 0);
        status = memory != MAP_FAILED ? MF_STATUS_OK : failed("map", path);
    }
    if (status == MF_STATUS_OK && memory != NULL) {
        madvise(memory, (size_t)info.st_size, MADV_SEQUENTIAL);
        *out = memory;
        *count = (size_t)info.st_size;
    }
    if (file >= 0) {
        close(file);
    }
    return status;
}

void mf_inputs_unmap(const char *bytes, size_t count)
{
    if (count > 0) {
        munmap((void *)bytes, count);
    }
}
