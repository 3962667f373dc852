/*
 * Where the daemon listens: "unix:/path" or "host:port", parsed and chosen by one rule for the
 * daemon and its clients.
 *
 * Who calls it: server (listener), client (channel), CLI. Owner: plain data in the caller's memory.
 * Thread: any. Fails: MF_STATUS_INVALID with the address and what is wrong with it.
 */
#ifndef MF_CORE_ADDRESS_H
#define MF_CORE_ADDRESS_H

#include <stdbool.h>

#include "core/limits.h"
#include "core/status.h"

#define MF_ADDRESS_HOST_MAX 256
/* Long enough for every address as text, with its NUL. */
#define MF_ADDRESS_TEXT_MAX 288

enum mf_address_kind { MF_ADDRESS_UNIX, MF_ADDRESS_TCP };

struct mf_address {
    enum mf_address_kind kind;
    char path[MF_SOCKET_PATH_MAX + 1]; /* absolute; UNIX only */
    char host[MF_ADDRESS_HOST_MAX];    /* name or number, without brackets; TCP only */
    int port;                          /* 0..65535; TCP only */
};

/* Takes "unix:/path", "unix:///path", "/path", "host:port", "[v6]:port". A path must be absolute
 * and at most MF_SOCKET_PATH_MAX bytes. */
enum mf_status mf_address_parse(const char *text, struct mf_address *out) MF_MUST_USE;
/* "unix:/path", "host:port" or "[v6]:port"; returns `out`. */
const char *mf_address_print(const struct mf_address *address,
                             char out[static MF_ADDRESS_TEXT_MAX]);

/*
 * The address used when nobody names one: $MEMFERRY_HOST, else memferry/memferryd.sock in
 * $XDG_RUNTIME_DIR, else /run/memferry/memferryd.sock for root, else /tmp/memferry-<uid>/
 * memferryd.sock (refused when another user owns that folder). A daemon passes `connecting` false;
 * a client passes true and so falls back to the system's daemon in /run/memferry when the user has
 * no socket of their own but that one is there. `text` is what mf_address_parse() takes.
 */
enum mf_status mf_address_default(bool connecting,
                                  char text[static MF_ADDRESS_TEXT_MAX]) MF_MUST_USE;

#endif
