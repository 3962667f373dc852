/* See address.h. */
#include "core/address.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define SYSTEM_SOCKET "/run/memferry/memferryd.sock"
#define SOCKET_NAME "memferryd.sock"

static enum mf_status parse_unix(const char *text, const char *path, struct mf_address *out)
{
    if (strncmp(path, "//", 2) == 0) {
        path += 2; /* The URI form unix:///path. */
    }
    if (path[0] != '/') {
        return mf_status_set(MF_STATUS_INVALID,
                             "address '%s': a socket path must be absolute (unix:/path)", text);
    }
    size_t bytes = strlen(path);
    if (bytes > MF_SOCKET_PATH_MAX) {
        enum mf_status status =
            mf_status_set_reason(MF_STATUS_INVALID, "SOCKET_PATH_TOO_LONG",
                                 "socket path of %zu bytes; the system takes at most %d: %s", bytes,
                                 MF_SOCKET_PATH_MAX, path);
        mf_status_number("path_bytes", (int64_t)bytes);
        mf_status_number("limit_bytes", MF_SOCKET_PATH_MAX);
        return status;
    }
    out->kind = MF_ADDRESS_UNIX;
    memcpy(out->path, path, bytes + 1);
    return MF_STATUS_OK;
}

static enum mf_status parse_port(const char *text, const char *digits, int *out)
{
    char *end = NULL;
    long port = strtol(digits, &end, 10);
    if (digits[0] < '0' || digits[0] > '9' || *end != '\0' || port > 65535) {
        return mf_status_set(MF_STATUS_INVALID, "address '%s': the port must be 0..65535", text);
    }
    *out = (int)port;
    return MF_STATUS_OK;
}

static enum mf_status parse_tcp(const char *text, struct mf_address *out)
{
    const char *host = text;
    const char *host_end = strrchr(text, ':');
    const char *port = host_end != NULL ? host_end + 1 : NULL;
    if (text[0] == '[') {
        host = text + 1;
        host_end = strchr(text, ']');
        port = host_end != NULL && host_end[1] == ':' ? host_end + 2 : NULL;
    } else if (host_end != NULL && memchr(text, ':', (size_t)(host_end - text)) != NULL) {
        port = NULL; /* A bare IPv6 number: where its port begins is a guess. */
    }
    if (port == NULL || host_end == host) {
        return mf_status_set(MF_STATUS_INVALID,
                             "address '%s' is none of unix:/path, host:port, [IPv6 number]:port",
                             text);
    }
    size_t bytes = (size_t)(host_end - host);
    if (bytes >= sizeof(out->host)) {
        return mf_status_set(MF_STATUS_INVALID, "address: host name of %zu bytes; at most %zu",
                             bytes, sizeof(out->host) - 1);
    }
    out->kind = MF_ADDRESS_TCP;
    memcpy(out->host, host, bytes);
    out->host[bytes] = '\0';
    return parse_port(text, port, &out->port);
}

enum mf_status mf_address_parse(const char *text, struct mf_address *out)
{
    *out = (struct mf_address){.port = 0};
    if (text[0] == '/') {
        return parse_unix(text, text, out);
    }
    if (strncmp(text, "unix:", 5) == 0) {
        return parse_unix(text, text + 5, out);
    }
    return parse_tcp(text, out);
}

const char *mf_address_print(const struct mf_address *address, char out[static MF_ADDRESS_TEXT_MAX])
{
    if (address->kind == MF_ADDRESS_UNIX) {
        snprintf(out, MF_ADDRESS_TEXT_MAX, "unix:%s", address->path);
    } else if (strchr(address->host, ':') != NULL) {
        snprintf(out, MF_ADDRESS_TEXT_MAX, "[%s]:%d", address->host, address->port);
    } else {
        snprintf(out, MF_ADDRESS_TEXT_MAX, "%s:%d", address->host, address->port);
    }
    return out;
}

/* The folder for sockets of a user without a runtime folder. */
static enum mf_status private_folder(char *out, size_t size)
{
    snprintf(out, size, "/tmp/memferry-%u", (unsigned)geteuid());
    struct stat info;
    if (lstat(out, &info) == 0 && (!S_ISDIR(info.st_mode) || info.st_uid != geteuid())) {
        return mf_status_set(MF_STATUS_DENIED,
                             "%s is not a folder of yours; set MEMFERRY_HOST to the address to use",
                             out);
    }
    return MF_STATUS_OK;
}

enum mf_status mf_address_default(bool connecting, char text[static MF_ADDRESS_TEXT_MAX])
{
    const char *host = getenv("MEMFERRY_HOST");
    if (host != NULL && host[0] != '\0') {
        struct mf_address parsed;
        enum mf_status status = mf_address_parse(host, &parsed);
        if (status != MF_STATUS_OK) {
            return mf_status_context(status, "MEMFERRY_HOST");
        }
        mf_address_print(&parsed, text);
        return MF_STATUS_OK;
    }
    char path[MF_ADDRESS_TEXT_MAX] = SYSTEM_SOCKET;
    char folder[64];
    const char *runtime = getenv("XDG_RUNTIME_DIR");
    if (runtime != NULL && runtime[0] == '/') {
        int bytes = snprintf(path, sizeof(path), "%s/memferry/%s", runtime, SOCKET_NAME);
        if (bytes > MF_SOCKET_PATH_MAX) {
            return mf_status_set(
                MF_STATUS_INVALID,
                "XDG_RUNTIME_DIR makes a socket path of %d bytes, the system takes at most %d; set "
                "MEMFERRY_HOST to the address to use",
                bytes, MF_SOCKET_PATH_MAX);
        }
    } else if (geteuid() != 0) {
        MF_TRY(private_folder(folder, sizeof(folder)));
        snprintf(path, sizeof(path), "%s/%s", folder, SOCKET_NAME);
    }
    if (connecting && access(path, F_OK) != 0 && access(SYSTEM_SOCKET, F_OK) == 0) {
        snprintf(path, sizeof(path), "%s", SYSTEM_SOCKET);
    }
    snprintf(text, MF_ADDRESS_TEXT_MAX, "unix:%.*s", MF_SOCKET_PATH_MAX, path);
    return MF_STATUS_OK;
}
