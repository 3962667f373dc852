/* See listener.h. One thread polls the listening sockets, and the watched descriptors for the end
 * of their connections. */
#include "server/listener.h"

#include <errno.h>
#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include "core/log.h"
#include "server/listener_socket.h"

#define SOCKETS_MAX 8
#define RETRY_MS 100 /* after accept has failed for want of descriptors */
/* Numbers of handed-on descriptors go round in this range. A call names its connection only by that
 * number, so it must not come to mean another peer while a call of the former is still in a queue.
 */
#define NUMBER_FIRST 1024
#define NUMBER_COUNT 8192
/* A silent TCP peer is given up after about 60 + 3 * 10 s. Done by the kernel and not by HTTP/2
 * pings, which would also end a suspended client (Ctrl-Z) of a unix socket. */
#define TCP_IDLE_S 60
#define TCP_INTERVAL_S 10
#define TCP_PROBES 3

struct connection {
    int number;   /* the descriptor handed on, which others close */
    int watch_fd; /* ours, the same connection */
    struct mf_peer peer;
};

struct mf_listener {
    pthread_mutex_t lock; /* sockets, connections */
    pthread_t thread;
    int wake_fd;
    int spare_fd; /* given up to accept, and end, a connection when descriptors have run out */
    int number_next;
    bool closing;
    struct mf_listener_socket sockets[SOCKETS_MAX];
    int socket_count;
    struct connection connections[MF_CONNECTIONS_MAX];
    int connection_count;
    int connections_max;
    mf_listener_accept *accept;
    void *context;
};

static void wake(struct mf_listener *listener)
{
    uint64_t one = 1;
    if (write(listener->wake_fd, &one, sizeof(one)) < 0) {
        return; /* Full: it is awake already. */
    }
}

static void peer_unknown(struct mf_peer *out)
{
    *out = (struct mf_peer){
        .known = false, .uid = (uid_t)-1, .gid = (gid_t)-1, .pid = (pid_t)-1, .text = "unknown"};
}

static void peer_of(int fd, bool tcp, struct mf_peer *out)
{
    peer_unknown(out);
    if (tcp) {
        struct sockaddr_storage name;
        socklen_t length = sizeof(name);
        char host[48];
        char port[8];
        if (getpeername(fd, (struct sockaddr *)&name, &length) == 0 &&
            getnameinfo((struct sockaddr *)&name, length, host, sizeof(host), port, sizeof(port),
                        NI_NUMERICHOST | NI_NUMERICSERV) == 0) {
            snprintf(out->text, sizeof(out->text), "%s port %s", host, port);
        }
        return;
    }
    struct ucred credentials;
    socklen_t length = sizeof(credentials);
    if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &credentials, &length) == 0) {
        out->known = true;
        out->uid = credentials.uid;
        out->gid = credentials.gid;
        out->pid = credentials.pid;
        snprintf(out->text, sizeof(out->text), "uid %u pid %d", (unsigned)credentials.uid,
                 (int)credentials.pid);
    }
}

static void tune_tcp(int fd)
{
    int yes = 1, idle = TCP_IDLE_S, interval = TCP_INTERVAL_S, probes = TCP_PROBES;
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof(yes));
    setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &yes, sizeof(yes));
    setsockopt(fd, IPPROTO_TCP, TCP_KEEPIDLE, &idle, sizeof(idle));
    setsockopt(fd, IPPROTO_TCP, TCP_KEEPINTVL, &interval, sizeof(interval));
    setsockopt(fd, IPPROTO_TCP, TCP_KEEPCNT, &probes, sizeof(probes));
}

/* A second descriptor of `fd` with the next number of the round; any number when the process may
 * not have such high ones. */
static int hand_number(struct mf_listener *listener, int fd)
{
    struct rlimit limit;
    int span = NUMBER_COUNT;
    if (getrlimit(RLIMIT_NOFILE, &limit) == 0 && limit.rlim_cur < NUMBER_FIRST + NUMBER_COUNT) {
        span = limit.rlim_cur > NUMBER_FIRST ? (int)(limit.rlim_cur - NUMBER_FIRST) : 0;
    }
    if (span == 0) {
        return fcntl(fd, F_DUPFD_CLOEXEC, 0);
    }
    int number = fcntl(fd, F_DUPFD_CLOEXEC, NUMBER_FIRST + listener->number_next % span);
    if (number < 0) {
        number = fcntl(fd, F_DUPFD_CLOEXEC, NUMBER_FIRST);
    }
    if (number >= 0) {
        listener->number_next = number + 1 - NUMBER_FIRST;
    }
    return number;
}

/* Gives up the spare descriptor to take one connection and end it, so that its client learns at
 * once, and the waiting connection does not wake the loop for ever. */
static void refuse_without_descriptors(struct mf_listener *listener, int listening_fd)
{
    mf_log_warn("out of file descriptors: refusing connections");
    close(listener->spare_fd);
    int fd = accept4(listening_fd, NULL, NULL, SOCK_CLOEXEC);
    if (fd >= 0) {
        close(fd);
    }
    listener->spare_fd = open("/dev/null", O_RDONLY | O_CLOEXEC);
}

/* Takes one connection of `socket`; false when none is waiting or none can be taken now. */
static bool take(struct mf_listener *listener, const struct mf_listener_socket *socket,
                 int *out_number)
{
    *out_number = -1;
    int fd = accept4(socket->fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
    if (fd < 0) {
        if (errno == EMFILE || errno == ENFILE) {
            refuse_without_descriptors(listener, socket->fd);
        }
        return errno == ECONNABORTED || errno == EINTR;
    }
    int number = -1;
    if (listener->connection_count >= listener->connections_max) {
        mf_log_warn("refusing a connection: %d are open, the most allowed",
                    listener->connection_count);
    } else {
        number = hand_number(listener, fd);
    }
    if (number < 0) {
        close(fd);
        return true;
    }
    struct connection *connection = &listener->connections[listener->connection_count++];
    connection->number = number;
    connection->watch_fd = fd;
    peer_of(fd, socket->tcp, &connection->peer);
    if (socket->tcp) {
        tune_tcp(fd);
    }
    *out_number = number;
    return true;
}

static void accept_all(struct mf_listener *listener, int index)
{
    for (bool more = true; more;) {
        int number = -1;
        pthread_mutex_lock(&listener->lock);
        more = !listener->closing && index < listener->socket_count &&
               take(listener, &listener->sockets[index], &number);
        pthread_mutex_unlock(&listener->lock);
        if (number >= 0) {
            listener->accept(number, listener->context);
        }
    }
}

static void forget(struct mf_listener *listener, int watch_fd)
{
    pthread_mutex_lock(&listener->lock);
    for (int i = 0; i < listener->connection_count; i++) {
        if (listener->connections[i].watch_fd == watch_fd) {
            close(watch_fd);
            listener->connections[i] = listener->connections[--listener->connection_count];
            break;
        }
    }
    pthread_mutex_unlock(&listener->lock);
}

struct poll_set {
    struct pollfd items[1 + SOCKETS_MAX + MF_CONNECTIONS_MAX];
    int sockets, count;
};

/* False when the listener is closing. */
static bool fill(struct mf_listener *listener, struct poll_set *out)
{
    pthread_mutex_lock(&listener->lock);
    bool closing = listener->closing;
    out->count = 0;
    out->items[out->count++] = (struct pollfd){.fd = listener->wake_fd, .events = POLLIN};
    out->sockets = listener->socket_count;
    for (int i = 0; i < listener->socket_count; i++) {
        out->items[out->count++] = (struct pollfd){.fd = listener->sockets[i].fd, .events = POLLIN};
    }
    for (int i = 0; i < listener->connection_count; i++) {
        out->items[out->count++] =
            (struct pollfd){.fd = listener->connections[i].watch_fd, .events = POLLRDHUP};
    }
    pthread_mutex_unlock(&listener->lock);
    return !closing;
}

static void *run(void *argument)
{
    struct mf_listener *listener = argument;
    struct poll_set *set = calloc(1, sizeof(*set));
    MF_ASSERT(set != NULL);
    while (fill(listener, set)) {
        if (poll(set->items, (nfds_t)set->count, -1) < 0) {
            continue;
        }
        uint64_t ignored = 0;
        if (set->items[0].revents != 0 && read(listener->wake_fd, &ignored, sizeof(ignored)) < 0) {
            mf_log_debug("listener: %s", strerror(errno));
        }
        for (int i = 1 + set->sockets; i < set->count; i++) {
            if (set->items[i].revents != 0) {
                forget(listener, set->items[i].fd);
            }
        }
        for (int i = 0; i < set->sockets; i++) {
            if (set->items[1 + i].revents != 0) {
                accept_all(listener, i);
            }
        }
        if (listener->spare_fd < 0) {
            usleep(RETRY_MS * 1000);
            listener->spare_fd = open("/dev/null", O_RDONLY | O_CLOEXEC);
        }
    }
    free(set);
    return NULL;
}

enum mf_status mf_listener_open(int connections_max, mf_listener_accept *accept, void *context,
                                struct mf_listener **out)
{
    MF_ASSERT(connections_max >= 0 && connections_max <= MF_CONNECTIONS_MAX);
    struct mf_listener *listener = calloc(1, sizeof(*listener));
    MF_ASSERT(listener != NULL);
    listener->connections_max = connections_max > 0 ? connections_max : MF_CONNECTIONS_MAX;
    listener->accept = accept;
    listener->context = context;
    pthread_mutex_init(&listener->lock, NULL);
    listener->spare_fd = open("/dev/null", O_RDONLY | O_CLOEXEC);
    listener->wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (listener->wake_fd < 0 || pthread_create(&listener->thread, NULL, run, listener) != 0) {
        enum mf_status status =
            mf_status_set(MF_STATUS_IO, "cannot start listening: %s", strerror(errno));
        close(listener->spare_fd);
        close(listener->wake_fd);
        pthread_mutex_destroy(&listener->lock);
        free(listener);
        return status;
    }
    *out = listener;
    return MF_STATUS_OK;
}

enum mf_status mf_listener_add(struct mf_listener *listener, const char *address,
                               const struct mf_listener_options *options,
                               char bound[static MF_ADDRESS_TEXT_MAX])
{
    static const struct mf_listener_options defaults;
    struct mf_address parsed;
    int count = 0;
    MF_TRY(mf_address_parse(address, &parsed));
    pthread_mutex_lock(&listener->lock);
    int room = SOCKETS_MAX - listener->socket_count;
    enum mf_status status =
        room == 0
            ? mf_status_set(MF_STATUS_BUSY, "cannot listen on %s: %d sockets are the most", address,
                            SOCKETS_MAX)
            : mf_listener_socket_open(&parsed, options != NULL ? options : &defaults,
                                      &listener->sockets[listener->socket_count], room, &count);
    listener->socket_count += count;
    pthread_mutex_unlock(&listener->lock);
    if (status == MF_STATUS_OK) {
        mf_address_print(&parsed, bound);
        wake(listener);
    }
    return status;
}

void mf_listener_peer(struct mf_listener *listener, int fd, struct mf_peer *out)
{
    peer_unknown(out);
    pthread_mutex_lock(&listener->lock);
    for (int i = 0; i < listener->connection_count; i++) {
        if (listener->connections[i].number == fd) {
            *out = listener->connections[i].peer;
            break;
        }
    }
    pthread_mutex_unlock(&listener->lock);
}

int mf_listener_count(struct mf_listener *listener)
{
    pthread_mutex_lock(&listener->lock);
    int count = listener->connection_count;
    pthread_mutex_unlock(&listener->lock);
    return count;
}

void mf_listener_stop(struct mf_listener *listener)
{
    pthread_mutex_lock(&listener->lock);
    while (listener->socket_count > 0) {
        mf_listener_socket_close(&listener->sockets[--listener->socket_count]);
    }
    pthread_mutex_unlock(&listener->lock);
    wake(listener);
}

void mf_listener_close(struct mf_listener *listener)
{
    if (listener == NULL) {
        return;
    }
    mf_listener_stop(listener);
    pthread_mutex_lock(&listener->lock);
    listener->closing = true;
    pthread_mutex_unlock(&listener->lock);
    wake(listener);
    pthread_join(listener->thread, NULL);
    while (listener->connection_count > 0) {
        close(listener->connections[--listener->connection_count].watch_fd);
    }
    close(listener->spare_fd);
    close(listener->wake_fd);
    pthread_mutex_destroy(&listener->lock);
    free(listener);
}
