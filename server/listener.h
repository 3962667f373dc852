/*
 * Listening sockets and the loop that accepts on them: who may listen where, how many connections,
 * and who the peer is.
 *
 * What: a thread of its own accepts on unix and TCP sockets and hands each connection on; it lives
 *   through running out of descriptors, and keeps a second descriptor of each connection to see it
 *   end (for the cap) and to know its peer (for identity).
 * Who calls it: rpc_server.c. Owner: opaque, open/close. Thread: add and close from one thread;
 *   mf_listener_peer() from any; the callback runs on the accepting thread.
 * Fails: MF_STATUS_EXISTS (someone serves there, or something else lies at the path),
 *   MF_STATUS_DENIED (not a loopback address), MF_STATUS_INVALID, MF_STATUS_IO.
 *
 * A socket file is guarded by flock on "<path>.lock": a live daemon's socket is never taken; a
 * stale one is removed; anything else at the path is never touched.
 */
#ifndef MF_SERVER_LISTENER_H
#define MF_SERVER_LISTENER_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "core/address.h"
#include "core/status.h"

/* Who is at the other end. */
struct mf_peer {
    bool known; /* uid, gid and pid are the kernel's word (unix sockets); else they are -1 */
    uid_t uid;
    gid_t gid;
    pid_t pid; /* when it connected; it may be gone */
    char text[64];
};

struct mf_listener_options {
    mode_t mode;    /* of a socket file, whatever the umask says; 0 = 0660 */
    bool set_group; /* give the socket file to `group` */
    gid_t group;
    bool allow_remote; /* TCP addresses other than loopback */
};

struct mf_listener;

/* Takes over `fd`, a connected non-blocking socket. Not called any more once close has begun. */
typedef void mf_listener_accept(int fd, void *context);

/* Starts the thread. `connections_max` is at most MF_CONNECTIONS_MAX; 0 means that. */
enum mf_status mf_listener_open(int connections_max, mf_listener_accept *accept, void *context,
                                struct mf_listener **out) MF_MUST_USE;
/* Listens on one more address; `options` NULL = defaults. `bound` gets the address with the real
 * port, as text. A missing folder of a unix socket is made (one level, mode 0755). */
enum mf_status mf_listener_add(struct mf_listener *listener, const char *address,
                               const struct mf_listener_options *options,
                               char bound[static MF_ADDRESS_TEXT_MAX]) MF_MUST_USE;
/* The peer of the connection whose `fd` was handed on; known = false when that one has ended. */
void mf_listener_peer(struct mf_listener *listener, int fd, struct mf_peer *out);
/* Connections open now. */
int mf_listener_count(struct mf_listener *listener);
/* Stops accepting and removes the socket files; connections stay open, and known. */
void mf_listener_stop(struct mf_listener *listener);
/* Stops, ends the thread, forgets the connections (which others own). NULL is nothing. */
void mf_listener_close(struct mf_listener *listener);

#endif
