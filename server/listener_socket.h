/* Making and removing listening sockets: the half of listener.h without threads. Called by
 * listener.c only. Owner: the caller closes. Fails: as in listener.h. */
#ifndef MF_SERVER_LISTENER_SOCKET_H
#define MF_SERVER_LISTENER_SOCKET_H

#include <sys/stat.h>

#include "server/listener.h"

/* One listening socket. */
struct mf_listener_socket {
    int fd;      /* -1 = none */
    int lock_fd; /* of the lock file; -1 for TCP */
    bool tcp;
    struct stat file; /* of the socket file, to remove only our own */
    char path[MF_SOCKET_PATH_MAX + 1];
};

/* Opens the sockets of `address`: one, or one for each number that a host name stands for (at most
 * `max`). Port 0 becomes a real port in `address`. */
enum mf_status mf_listener_socket_open(struct mf_address *address,
                                       const struct mf_listener_options *options,
                                       struct mf_listener_socket *out, int max,
                                       int *count) MF_MUST_USE;
void mf_listener_socket_close(struct mf_listener_socket *socket);

#endif
