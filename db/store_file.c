/* The store's file from outside: see store_file.h. */
#include "db/store_file.h"

#include <errno.h>
#include <fcntl.h>
#include <libgen.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <time.h>
#include <unistd.h>

/* The first bytes of every SQLite 3 file, with the NUL. */
static const char magic[16] = "SQLite format 3";

static enum mf_status failed(int code, const char *path, const char *doing)
{
    enum mf_status status =
        code == EACCES || code == EPERM || code == EROFS ? MF_STATUS_DENIED : MF_STATUS_IO;
    return mf_status_set(status, "store %s: cannot %s: %s", path, doing, strerror(code));
}

static enum mf_status check_folder(const char *path)
{
    char *copy = strdup(path);
    MF_ASSERT(copy != NULL);
    const char *folder = dirname(copy);
    enum mf_status status = MF_STATUS_OK;
    struct stat info;
    if (stat(folder, &info) != 0) {
        status = mf_status_set(MF_STATUS_IO, "store %s: its folder %s: %s", path, folder,
                               strerror(errno));
    } else if (!S_ISDIR(info.st_mode)) {
        status = mf_status_set(MF_STATUS_IO, "store %s: %s is not a folder", path, folder);
    } else if (access(folder, W_OK | X_OK) != 0) {
        status = mf_status_set(MF_STATUS_DENIED,
                               "store %s: its folder %s cannot be written (%s); make it writable "
                               "for this user or choose another place",
                               path, folder, strerror(errno));
    }
    free(copy);
    return status;
}

static enum mf_status check_magic(const char *path, int file, int64_t size)
{
    char head[sizeof(magic)];
    ssize_t count = pread(file, head, sizeof(head), 0);
    if (count < 0) {
        return failed(errno, path, "read it");
    }
    if (count > 0 && ((size_t)count < sizeof(head) || memcmp(head, magic, sizeof(magic)) != 0)) {
        return mf_status_set(MF_STATUS_CORRUPT, "%s (%lld bytes) is not a SQLite database", path,
                             (long long)size);
    }
    return MF_STATUS_OK;
}

enum mf_status mf_store_file_check(const char *path)
{
    MF_TRY(check_folder(path));
    int file = open(path, O_RDWR | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
    if (file < 0 && errno == ENOENT) {
        return MF_STATUS_OK;
    }
    struct stat info;
    if (file < 0 || fstat(file, &info) != 0) {
        enum mf_status status = failed(errno, path, "open it for writing");
        if (file >= 0) {
            close(file);
        }
        return status;
    }
    enum mf_status status = MF_STATUS_OK;
    if (!S_ISREG(info.st_mode)) {
        status = mf_status_set(MF_STATUS_INVALID, "store %s is not a regular file", path);
    } else {
        status = check_magic(path, file, info.st_size);
    }
    close(file);
    return status;
}

const char *mf_store_file_shared_system(const char *path)
{
    /* Magic numbers of statfs(2). */
    static const struct {
        uint32_t magic;
        const char *name;
    } systems[] = {
        {0x6969, "NFS"},        {0x517b, "SMB"},      {0xff534d42, "CIFS"},
        {0xfe534d42, "SMB 2"},  {0x01021997, "9p"},   {0x65735546, "FUSE"},
        {0x5346414f, "AFS"},    {0x00c36400, "Ceph"}, {0x0bd00bd0, "Lustre"},
        {0x47504653, "GPFS"},   {0x73757245, "Coda"}, {0x7461636f, "OCFS2"},
        {0x19830326, "BeeGFS"}, {0x01161970, "GFS2"}, {0x6a656a63, "virtiofs"},
        {0xaad7aaea, "PanFS"},
    };
    char *copy = strdup(path);
    MF_ASSERT(copy != NULL);
    struct statfs info;
    int code = statfs(dirname(copy), &info);
    free(copy);
    for (size_t i = 0; code == 0 && i < sizeof(systems) / sizeof(systems[0]); i++) {
        if ((uint32_t)info.f_type == systems[i].magic) {
            return systems[i].name;
        }
    }
    return NULL;
}

/* "<path>.corrupt-20250131T120000Z", with "-2" and so on when that exists. */
static enum mf_status free_name(const char *path, char **out)
{
    time_t now = time(NULL);
    struct tm utc;
    char when[32];
    if (gmtime_r(&now, &utc) == NULL || strftime(when, sizeof(when), "%Y%m%dT%H%M%SZ", &utc) == 0) {
        snprintf(when, sizeof(when), "%lld", (long long)now);
    }
    for (int number = 1; number < 1000; number++) {
        char tail[16] = "";
        if (number > 1) {
            snprintf(tail, sizeof(tail), "-%d", number);
        }
        MF_ASSERT(asprintf(out, "%s.corrupt-%s%s", path, when, tail) > 0);
        if (access(*out, F_OK) != 0 && errno == ENOENT) {
            return MF_STATUS_OK;
        }
        free(*out);
        *out = NULL;
    }
    return mf_status_set(MF_STATUS_IO, "store %s: cannot find a name to set it aside", path);
}

enum mf_status mf_store_file_set_aside(const char *path, char **out)
{
    static const char *const tails[] = {"", "-wal", "-shm", "-journal"};
    MF_TRY(free_name(path, out));
    for (size_t i = 0; i < sizeof(tails) / sizeof(tails[0]); i++) {
        char *from = NULL;
        char *to = NULL;
        MF_ASSERT(asprintf(&from, "%s%s", path, tails[i]) > 0);
        MF_ASSERT(asprintf(&to, "%s%s", *out, tails[i]) > 0);
        int code = rename(from, to) == 0 || (i > 0 && errno == ENOENT) ? 0 : errno;
        free(from);
        free(to);
        if (code != 0) {
            free(*out);
            *out = NULL;
            return failed(code, path, "set the damaged file aside");
        }
    }
    return MF_STATUS_OK;
}

enum mf_status mf_store_file_lock(const char *path, int seconds, int *out)
{
    char *name = NULL;
    *out = -1;
    MF_ASSERT(asprintf(&name, "%s.lock", path) > 0);
    int file = open(name, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
    free(name);
    if (file < 0) {
        return failed(errno, path, "make its lock file");
    }
    for (int tries = 0; flock(file, LOCK_EX | LOCK_NB) != 0; tries++) {
        if (errno != EWOULDBLOCK && errno != EINTR) { /* a file system without locks */
            close(file);
            return MF_STATUS_OK;
        }
        if (tries >= seconds * 100) {
            close(file);
            return mf_status_set(MF_STATUS_BUSY,
                                 "store %s: another process has been opening it for %d seconds",
                                 path, seconds);
        }
        nanosleep(&(struct timespec){.tv_nsec = 10000000}, NULL);
    }
    *out = file;
    return MF_STATUS_OK;
}
