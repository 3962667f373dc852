/* Durable files and folders: see files.h. */
#include "runtime/files.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "core/format.h"

#define TREE_DEPTH_MAX 64
#define COPY_BYTES ((size_t)1 << 20)
/* One write(2) moves at most about 2 GiB. */
#define WRITE_BYTES_MAX ((size_t)1 << 30)

enum mf_status mf_files_failed(int code, const char *doing, const char *path)
{
    enum mf_status status = MF_STATUS_IO;
    if (code == ENOENT) {
        status = MF_STATUS_NOT_FOUND;
    } else if (code == EACCES || code == EPERM || code == EROFS) {
        status = MF_STATUS_DENIED;
    } else if (code == EEXIST || code == ENOTEMPTY) {
        status = MF_STATUS_EXISTS;
    }
    return mf_status_set(status, "cannot %s %s: %s", doing, path, strerror(code));
}

enum mf_status mf_files_write_all(int file, const void *bytes, size_t count, const char *path)
{
    const char *next = bytes;
    while (count > 0) {
        ssize_t written = write(file, next, count < WRITE_BYTES_MAX ? count : WRITE_BYTES_MAX);
        if (written < 0 && errno == EINTR) {
            continue;
        }
        if (written <= 0) {
            return mf_files_failed(written < 0 ? errno : EIO, "write", path);
        }
        next += written;
        count -= (size_t)written;
    }
    return MF_STATUS_OK;
}

enum mf_status mf_files_read_at(int file, int64_t offset, void *out, size_t count, const char *path)
{
    size_t done = 0;
    while (done < count) {
        size_t left = count - done;
        ssize_t got =
            pread(file, (char *)out + done, left < WRITE_BYTES_MAX ? left : WRITE_BYTES_MAX,
                  offset + (int64_t)done);
        if (got < 0 && errno == EINTR) {
            continue;
        }
        if (got < 0) {
            return mf_files_failed(errno, "read", path);
        }
        if (got == 0) {
            return mf_status_set(MF_STATUS_CORRUPT,
                                 "%s ends at byte %lld, %zu bytes were to be read from %lld: it "
                                 "became shorter",
                                 path, (long long)offset + (long long)done, count,
                                 (long long)offset);
        }
        done += (size_t)got;
    }
    return MF_STATUS_OK;
}

static char *parent_of(const char *path)
{
    char *copy = strdup(path);
    MF_ASSERT(copy != NULL);
    size_t length = strlen(copy);
    while (length > 1 && copy[length - 1] == '/') {
        copy[--length] = '\0';
    }
    char *slash = strrchr(copy, '/');
    if (slash == NULL) {
        snprintf(copy, strlen(copy) + 1, "%s", length > 0 ? "." : "");
    } else {
        slash[slash == copy ? 1 : 0] = '\0';
    }
    return copy;
}

enum mf_status mf_files_sync_folder(const char *path)
{
    int folder = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (folder < 0) {
        return mf_files_failed(errno, "open", path);
    }
    enum mf_status status = MF_STATUS_OK;
    /* Some file systems cannot sync a folder and say EINVAL; there is nothing to do about it. */
    if (fsync(folder) != 0 && errno != EINVAL) {
        status = mf_files_failed(errno, "sync", path);
    }
    close(folder);
    return status;
}

static enum mf_status sync_parent(const char *path)
{
    char *parent = parent_of(path);
    enum mf_status status = mf_files_sync_folder(parent);
    free(parent);
    return status;
}

static enum mf_status write_temporary(int file, const void *bytes, size_t count, const char *path)
{
    MF_TRY(mf_files_write_all(file, bytes, count, path));
    return fsync(file) == 0 ? MF_STATUS_OK : mf_files_failed(errno, "sync", path);
}

enum mf_status mf_files_write(const char *path, const void *bytes, size_t count)
{
    static atomic_uint counter;
    char *temporary = NULL;
    MF_ASSERT(asprintf(&temporary, "%s.tmp-%ld-%u", path, (long)getpid(),
                       atomic_fetch_add(&counter, 1)) > 0);
    enum mf_status status = MF_STATUS_OK;
    int file = open(temporary, O_WRONLY | O_CREAT | O_TRUNC | O_NOFOLLOW | O_CLOEXEC, 0666);
    if (file < 0) {
        status = mf_files_failed(errno, "make a temporary file for", path);
        free(temporary);
        return status;
    }
    status = write_temporary(file, bytes, count, path);
    if (close(file) != 0 && status == MF_STATUS_OK) {
        status = mf_files_failed(errno, "close", path);
    }
    if (status == MF_STATUS_OK && rename(temporary, path) != 0) {
        status = mf_files_failed(errno, "rename a temporary file to", path);
    }
    if (status != MF_STATUS_OK) {
        unlink(temporary);
    } else {
        status = sync_parent(path);
    }
    free(temporary);
    return status;
}

enum mf_status mf_files_copy(const char *from, const char *to)
{
    int source = open(from, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (source < 0) {
        return mf_files_failed(errno, "open", from);
    }
    struct stat info;
    enum mf_status status = MF_STATUS_OK;
    char *bytes = NULL;
    if (fstat(source, &info) != 0) {
        status = mf_files_failed(errno, "look at", from);
    } else if (!S_ISREG(info.st_mode) || info.st_size > (int64_t)(COPY_BYTES << 8)) {
        status =
            mf_status_set(MF_STATUS_INVALID, "%s is not a regular file of at most 256 MiB", from);
    } else {
        bytes = malloc((size_t)info.st_size + 1);
        MF_ASSERT(bytes != NULL);
        status = mf_files_read_at(source, 0, bytes, (size_t)info.st_size, from);
    }
    if (status == MF_STATUS_OK) {
        status = mf_files_write(to, bytes, (size_t)info.st_size);
    }
    free(bytes);
    close(source);
    return status;
}

enum mf_status mf_files_make_folder(const char *path)
{
    char *copy = strdup(path);
    MF_ASSERT(copy != NULL);
    enum mf_status status = MF_STATUS_OK;
    for (char *end = copy; status == MF_STATUS_OK && *end != '\0';) {
        end += strspn(end, "/");
        end += strcspn(end, "/");
        char kept = *end;
        *end = '\0';
        if (mkdir(copy, 0777) != 0) {
            int code = errno;
            struct stat info;
            /* A folder that is there may answer EEXIST, EROFS or EACCES. */
            if (stat(copy, &info) != 0) {
                status = mf_files_failed(code, "make the folder", copy);
            } else if (!S_ISDIR(info.st_mode)) {
                status = mf_status_set(MF_STATUS_EXISTS, "%s is not a folder", copy);
            }
        }
        *end = kept;
    }
    free(copy);
    return status;
}

enum mf_status mf_files_publish(const char *from, const char *to)
{
    MF_TRY(mf_files_sync_folder(from));
    if (rename(from, to) != 0) {
        int code = errno;
        return code == EEXIST || code == ENOTEMPTY || code == ENOTDIR
                   ? mf_status_set(MF_STATUS_EXISTS, "%s is there already", to)
                   : mf_files_failed(code, "rename a finished folder to", to);
    }
    return sync_parent(to);
}

static enum mf_status remove_entry(int folder, const char *name, const char *path, int depth);

/* Takes over the descriptor `file`. */
static enum mf_status remove_entries(int file, const char *path, int depth)
{
    DIR *stream = fdopendir(file);
    if (stream == NULL) {
        enum mf_status status = mf_files_failed(errno, "list", path);
        close(file);
        return status;
    }
    enum mf_status status = MF_STATUS_OK;
    for (struct dirent *entry = readdir(stream); entry != NULL && status == MF_STATUS_OK;
         entry = readdir(stream)) {
        if (strcmp(entry->d_name, ".") != 0 && strcmp(entry->d_name, "..") != 0) {
            status = remove_entry(dirfd(stream), entry->d_name, path, depth);
        }
    }
    closedir(stream);
    return status;
}

static enum mf_status remove_entry(int folder, const char *name, const char *path, int depth)
{
    if (unlinkat(folder, name, 0) == 0 || errno == ENOENT) {
        return MF_STATUS_OK;
    }
    if (errno != EISDIR && errno != EPERM) { /* EPERM: POSIX's answer for a folder */
        return mf_files_failed(errno, "remove something in", path);
    }
    if (depth >= TREE_DEPTH_MAX) {
        return mf_status_set(MF_STATUS_IO, "%s holds folders more than %d deep", path,
                             TREE_DEPTH_MAX);
    }
    int file = openat(folder, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (file < 0) {
        return mf_files_failed(errno, "open something in", path);
    }
    MF_TRY(remove_entries(file, path, depth + 1));
    if (unlinkat(folder, name, AT_REMOVEDIR) != 0 && errno != ENOENT) {
        return mf_files_failed(errno, "remove something in", path);
    }
    return MF_STATUS_OK;
}

enum mf_status mf_files_remove_tree(const char *path)
{
    size_t length = strlen(path);
    while (length > 0 && path[length - 1] == '/') {
        length--;
    }
    size_t start = length;
    while (start > 0 && path[start - 1] != '/') {
        start--;
    }
    char *copy = strndup(path, length);
    MF_ASSERT(copy != NULL);
    const char *last = copy + start;
    enum mf_status status = MF_STATUS_OK;
    if (length == 0 || strcmp(last, ".") == 0 || strcmp(last, "..") == 0) {
        status = mf_status_set(MF_STATUS_INVALID, "refusing to remove \"%s\"", path);
    } else {
        status = remove_entry(AT_FDCWD, copy, copy, 0);
    }
    free(copy);
    return status;
}

enum mf_status mf_files_free_bytes(const char *path, int64_t *out)
{
    char *place = strdup(path);
    MF_ASSERT(place != NULL);
    struct statvfs info;
    int code = statvfs(place, &info);
    /* What is not there yet will be on the file system of the nearest folder above it. */
    while (code != 0 && errno == ENOENT && strcmp(place, ".") != 0 && strcmp(place, "/") != 0) {
        char *parent = parent_of(place);
        free(place);
        place = parent;
        code = statvfs(place, &info);
    }
    enum mf_status status = MF_STATUS_OK;
    if (code != 0) {
        status = mf_files_failed(errno, "find the free space at", path);
    } else if (__builtin_mul_overflow(info.f_bavail, info.f_frsize, out)) {
        *out = INT64_MAX;
    }
    free(place);
    return status;
}

enum mf_status mf_files_require_space(const char *path, int64_t bytes, const char *what)
{
    int64_t available = 0;
    char needed_text[MF_FORMAT_MAX];
    char available_text[MF_FORMAT_MAX];
    MF_TRY(mf_files_free_bytes(path, &available));
    if (available >= bytes) {
        return MF_STATUS_OK;
    }
    enum mf_status status = mf_status_set_reason(
        MF_STATUS_IO, "DISK_TOO_SMALL", "the %s needs %s at %s, %s are free there", what,
        mf_format_bytes(bytes, needed_text), path, mf_format_bytes(available, available_text));
    mf_status_number("needed_bytes", bytes);
    mf_status_number("available_bytes", available);
    return status;
}

/* The step of "checkpoint-<step>", -1 for any other name. */
static int64_t checkpoint_step(const char *name)
{
    static const char prefix[] = "checkpoint-";
    size_t length = sizeof(prefix) - 1;
    if (strncmp(name, prefix, length) != 0 || name[length] < '0' || name[length] > '9') {
        return -1;
    }
    char *end = NULL;
    errno = 0;
    long long step = strtoll(name + length, &end, 10);
    return *end == '\0' && errno == 0 ? step : -1;
}

static int compare_steps(const void *left, const void *right)
{
    int64_t a = ((const struct mf_files_checkpoint *)left)->step;
    int64_t b = ((const struct mf_files_checkpoint *)right)->step;
    return (a > b) - (a < b);
}

enum mf_status mf_files_list_checkpoints(const char *run_folder, struct mf_arena *arena,
                                         struct mf_files_checkpoint **out, int32_t *count)
{
    *out = NULL;
    *count = 0;
    DIR *stream = opendir(run_folder);
    if (stream == NULL) {
        return mf_files_failed(errno, "list", run_folder);
    }
    struct mf_files_checkpoint *list = NULL;
    int32_t room = 0;
    for (struct dirent *entry = readdir(stream); entry != NULL; entry = readdir(stream)) {
        int64_t step = checkpoint_step(entry->d_name);
        char done[512];
        int length = snprintf(done, sizeof(done), "%s/DONE", entry->d_name);
        if (step < 0 || length >= (int)sizeof(done) ||
            faccessat(dirfd(stream), done, F_OK, 0) != 0) {
            continue;
        }
        if (*count == room) {
            int32_t larger_room = room == 0 ? 16 : room * 2;
            struct mf_files_checkpoint *larger =
                mf_arena_alloc(arena, (size_t)larger_room, sizeof(*larger));
            if (room > 0) {
                memcpy(larger, list, (size_t)room * sizeof(*larger));
            }
            list = larger;
            room = larger_room;
        }
        list[(*count)++] = (struct mf_files_checkpoint){
            step, mf_arena_format(arena, "%s/%s", run_folder, entry->d_name)};
    }
    closedir(stream);
    if (*count > 0) {
        qsort(list, (size_t)*count, sizeof(*list), compare_steps);
    }
    *out = list;
    return MF_STATUS_OK;
}
