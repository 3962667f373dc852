/* See listener_socket.h. */
#include "server/listener_socket.h"

#include <errno.h>
#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "core/log.h"

#define BACKLOG 128
#define MODE_DEFAULT 0660
#define SOCKET_TYPE (SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK)

static enum mf_status fail_errno(const char *what, const char *where)
{
    int error = errno;
    return mf_status_set(error == EACCES || error == EPERM ? MF_STATUS_DENIED : MF_STATUS_IO,
                         "%s %s: %s", what, where, strerror(error));
}

static void unix_name(const char *path, struct sockaddr_un *out)
{
    *out = (struct sockaddr_un){.sun_family = AF_UNIX};
    memcpy(out->sun_path, path, strlen(path) + 1);
}

static enum mf_status make_folder(const char *path)
{
    char folder[MF_SOCKET_PATH_MAX + 1];
    snprintf(folder, sizeof(folder), "%s", path);
    char *slash = strrchr(folder, '/');
    if (slash == folder) {
        return MF_STATUS_OK;
    }
    *slash = '\0';
    if (mkdir(folder, 0700) == 0) {
        /* mkdir's mode is cut by the umask; others of the group must get through to the socket. */
        return chmod(folder, 0755) == 0 ? MF_STATUS_OK : fail_errno("cannot set mode of", folder);
    }
    return errno == EEXIST ? MF_STATUS_OK : fail_errno("cannot make folder", folder);
}

/* Holds the lock file of `path` until it is closed. It is never removed: between a removal and the
 * next open two daemons could each lock a file of that name. */
static enum mf_status take_lock(const char *path, int *out)
{
    char name[MF_SOCKET_PATH_MAX + 8];
    snprintf(name, sizeof(name), "%s.lock", path);
    int fd = open(name, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (fd < 0) {
        return fail_errno("cannot open lock file", name);
    }
    char holder[32] = "";
    if (flock(fd, LOCK_EX | LOCK_NB) != 0) {
        enum mf_status status = MF_STATUS_OK;
        if (errno == EWOULDBLOCK) {
            ssize_t bytes = read(fd, holder, sizeof(holder) - 1);
            holder[strcspn(holder, "\n")] = '\0';
            status = mf_status_set_reason(MF_STATUS_EXISTS, "ADDRESS_IN_USE",
                                          "another daemon serves on %s (process %s)", path,
                                          bytes > 0 ? holder : "unknown");
        } else {
            status = fail_errno("cannot lock", name);
        }
        close(fd);
        return status;
    }
    int length = snprintf(holder, sizeof(holder), "%d\n", (int)getpid());
    if (ftruncate(fd, 0) != 0 || write(fd, holder, (size_t)length) != length) {
        mf_log_debug("cannot write %s: %s", name, strerror(errno)); /* The lock counts, not this. */
    }
    *out = fd;
    return MF_STATUS_OK;
}

/* Someone without our lock file may listen here: an older daemon, another program. */
static enum mf_status remove_stale(const char *path)
{
    struct sockaddr_un name;
    unix_name(path, &name);
    int fd = socket(AF_UNIX, SOCKET_TYPE, 0);
    if (fd < 0) {
        return fail_errno("cannot make a socket for", path);
    }
    int result = connect(fd, (const struct sockaddr *)&name, sizeof(name));
    int error = errno;
    close(fd);
    if (result != 0 && error == ECONNREFUSED) {
        return unlink(path) == 0 ? MF_STATUS_OK : fail_errno("cannot remove stale socket", path);
    }
    return mf_status_set_reason(MF_STATUS_EXISTS, "ADDRESS_IN_USE",
                                "another program serves on socket %s", path);
}

static enum mf_status clear_path(const char *path)
{
    struct stat info;
    if (lstat(path, &info) != 0) {
        return errno == ENOENT ? MF_STATUS_OK : fail_errno("cannot look at", path);
    }
    if (S_ISSOCK(info.st_mode)) {
        return remove_stale(path);
    }
    const char *kind = S_ISDIR(info.st_mode)   ? "a folder"
                       : S_ISLNK(info.st_mode) ? "a symbolic link"
                       : S_ISREG(info.st_mode) ? "a file"
                                               : "something else than a socket";
    return mf_status_set_reason(MF_STATUS_EXISTS, "SOCKET_PATH_TAKEN",
                                "cannot listen on %s: %s is there; it was left alone", path, kind);
}

static enum mf_status bind_unix(const struct mf_listener_options *options,
                                struct mf_listener_socket *out)
{
    struct sockaddr_un name;
    unix_name(out->path, &name);
    out->fd = socket(AF_UNIX, SOCKET_TYPE, 0);
    if (out->fd < 0 || bind(out->fd, (const struct sockaddr *)&name, sizeof(name)) != 0) {
        return fail_errno("cannot bind", out->path);
    }
    /* Nobody can connect before listen(), so the mode is set in time. */
    mode_t mode = options->mode != 0 ? options->mode : MODE_DEFAULT;
    if (lstat(out->path, &out->file) != 0 || chmod(out->path, mode) != 0) {
        return fail_errno("cannot set mode of", out->path);
    }
    if (options->set_group && lchown(out->path, (uid_t)-1, options->group) != 0) {
        return fail_errno("cannot set group of", out->path);
    }
    if (listen(out->fd, BACKLOG) != 0) {
        return fail_errno("cannot listen on", out->path);
    }
    return MF_STATUS_OK;
}

static enum mf_status open_unix(const struct mf_address *address,
                                const struct mf_listener_options *options,
                                struct mf_listener_socket *out)
{
    MF_TRY(make_folder(address->path));
    MF_TRY(take_lock(address->path, &out->lock_fd));
    enum mf_status status = clear_path(address->path);
    if (status == MF_STATUS_OK) {
        snprintf(out->path, sizeof(out->path), "%s", address->path);
        status = bind_unix(options, out);
    }
    if (status != MF_STATUS_OK) {
        mf_listener_socket_close(out);
    }
    return status;
}

static bool is_loopback(const struct sockaddr *address)
{
    if (address->sa_family == AF_INET) {
        const struct sockaddr_in *v4 = (const void *)address;
        return ntohl(v4->sin_addr.s_addr) >> 24 == 127;
    }
    const struct sockaddr_in6 *v6 = (const void *)address;
    return address->sa_family == AF_INET6 && IN6_IS_ADDR_LOOPBACK(&v6->sin6_addr);
}

static void set_port(struct sockaddr *address, int port)
{
    if (address->sa_family == AF_INET6) {
        ((struct sockaddr_in6 *)(void *)address)->sin6_port = htons((uint16_t)port);
    } else {
        ((struct sockaddr_in *)(void *)address)->sin_port = htons((uint16_t)port);
    }
}

static int bound_port(int fd)
{
    struct sockaddr_storage name;
    socklen_t length = sizeof(name);
    if (getsockname(fd, (struct sockaddr *)&name, &length) != 0) {
        return 0;
    }
    if (name.ss_family == AF_INET6) {
        return ntohs(((const struct sockaddr_in6 *)(const void *)&name)->sin6_port);
    }
    return ntohs(((const struct sockaddr_in *)(const void *)&name)->sin_port);
}

/* One number of a host. SO_REUSEADDR gets past connections in TIME_WAIT; without SO_REUSEPORT two
 * daemons cannot share a port. */
static int listen_tcp(const struct addrinfo *info)
{
    int yes = 1;
    int fd = socket(info->ai_family, SOCKET_TYPE, 0);
    if (fd < 0) {
        return -1;
    }
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof(yes));
    if (info->ai_family == AF_INET6) {
        setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &yes, sizeof(yes));
    }
    if (bind(fd, info->ai_addr, info->ai_addrlen) == 0 && listen(fd, BACKLOG) == 0) {
        return fd;
    }
    int error = errno;
    close(fd);
    errno = error;
    return -1;
}

static enum mf_status check_loopback(const struct mf_address *address, const struct addrinfo *list)
{
    for (const struct addrinfo *at = list; at != NULL; at = at->ai_next) {
        if (!is_loopback(at->ai_addr)) {
            return mf_status_set_reason(
                MF_STATUS_DENIED, "ADDRESS_NOT_LOOPBACK",
                "refusing to listen on %s:%d: it can be reached from other machines, and "
                "connections are neither encrypted nor authenticated; use 127.0.0.1, [::1] or a "
                "unix socket",
                address->host, address->port);
        }
    }
    return MF_STATUS_OK;
}

static enum mf_status open_tcp(struct mf_address *address,
                               const struct mf_listener_options *options,
                               struct mf_listener_socket *out, int max, int *count)
{
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_PASSIVE};
    struct addrinfo *list = NULL;
    int failed = getaddrinfo(address->host, NULL, &hints, &list);
    if (failed != 0) {
        return mf_status_set(MF_STATUS_INVALID, "cannot listen on host '%s': %s", address->host,
                             gai_strerror(failed));
    }
    enum mf_status status = MF_STATUS_OK;
    int skipped = 0;
    if (!options->allow_remote) {
        MF_TRY_GOTO(check_loopback(address, list), out);
    }
    for (struct addrinfo *at = list; at != NULL && *count < max; at = at->ai_next) {
        set_port(at->ai_addr, address->port);
        int fd = listen_tcp(at);
        if (fd >= 0) {
            out[(*count)++] = (struct mf_listener_socket){.fd = fd, .lock_fd = -1, .tcp = true};
            address->port = bound_port(fd);
        } else if (errno == EADDRNOTAVAIL || errno == EAFNOSUPPORT) {
            skipped = errno; /* "localhost" also means ::1 where the machine has no IPv6. */
        } else {
            status = mf_status_set_reason(errno == EADDRINUSE ? MF_STATUS_EXISTS : MF_STATUS_IO,
                                          errno == EADDRINUSE ? "ADDRESS_IN_USE" : "",
                                          "cannot listen on %s:%d: %s", address->host,
                                          address->port, strerror(errno));
            break;
        }
    }
    if (status == MF_STATUS_OK && *count == 0) {
        status = mf_status_set(MF_STATUS_IO, "cannot listen on %s:%d: %s", address->host,
                               address->port, strerror(skipped));
    }
out:
    freeaddrinfo(list);
    while (status != MF_STATUS_OK && *count > 0) {
        mf_listener_socket_close(&out[--*count]);
    }
    return status;
}

enum mf_status mf_listener_socket_open(struct mf_address *address,
                                       const struct mf_listener_options *options,
                                       struct mf_listener_socket *out, int max, int *count)
{
    *count = 0;
    if (address->kind == MF_ADDRESS_TCP) {
        return open_tcp(address, options, out, max, count);
    }
    *out = (struct mf_listener_socket){.fd = -1, .lock_fd = -1};
    MF_TRY(open_unix(address, options, out));
    *count = 1;
    return MF_STATUS_OK;
}

void mf_listener_socket_close(struct mf_listener_socket *socket)
{
    struct stat now;
    if (socket->file.st_ino != 0 && lstat(socket->path, &now) == 0 &&
        now.st_ino == socket->file.st_ino && now.st_dev == socket->file.st_dev) {
        unlink(socket->path);
    }
    if (socket->fd >= 0) {
        close(socket->fd);
    }
    if (socket->lock_fd >= 0) {
        close(socket->lock_fd);
    }
    *socket = (struct mf_listener_socket){.fd = -1, .lock_fd = -1};
}
