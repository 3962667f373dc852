/* The server: its completion-queue thread, method table, listening and draining. See rpc.h. */
#include <errno.h>
#include <grpc/grpc_posix.h>
#include <grpc/grpc_security.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "core/log.h"
#include "server/rpc_internal.h"

#define SLOTS 64 /* calls armed: how many may begin between two looks at the queue */
#define METHODS_MAX 128
#define HOOKS_MAX 8
#define PING_INTERVAL_MS 1000
/* How long draining waits for idle clients to hang up by themselves, and how often it looks. */
#define HANG_UP_MS 250
#define LOOK_MS 50
#define NS_PER_S 1000000000ll
#define NS_PER_MS 1000000ll

struct hook {
    void (*run)(void *context);
    void *context;
};

struct mf_rpc_server {
    grpc_server *core;
    grpc_completion_queue *queue;
    struct mf_listener *listener;
    struct mf_rpc_pool *pool;
    struct mf_rpc_options options;
    const struct mf_rpc_method *methods[METHODS_MAX];
    size_t method_count;
    struct hook hooks[HOOKS_MAX];
    size_t hook_count;
    bool started, drained;
    pthread_t thread;
    pthread_mutex_t lock; /* quiet */
    pthread_cond_t changed;
    bool quiet; /* gRPC says that no call is left */
    atomic_int live;
    /* Of the completion-queue thread. */
    int armed;
    bool core_down, queue_down;
};

struct mf_rpc_pool *mf_rpc_server_pool(struct mf_rpc_server *server)
{
    return server->pool;
}

static grpc_arg int_arg(const char *name, int value)
{
    grpc_arg arg = {.type = GRPC_ARG_INTEGER, .key = (char *)name};
    arg.value.integer = value;
    return arg;
}

static grpc_server *make_core(const struct mf_rpc_options *options)
{
    grpc_arg args[] = {
        int_arg(GRPC_ARG_MAX_RECEIVE_MESSAGE_LENGTH, MF_MESSAGE_BYTES_MAX),
        /* Identity only: the size limit is checked after decompression, too late. */
        int_arg(GRPC_COMPRESSION_CHANNEL_ENABLED_ALGORITHMS_BITSET, 1),
        /* Calls over the cap are refused by us with numbers, not left waiting in the client. */
        int_arg(GRPC_ARG_MAX_CONCURRENT_STREAMS, 2 * options->calls_max),
        /* A client may ping as it likes while it waits hours for a session. */
        int_arg(GRPC_ARG_HTTP2_MIN_RECV_PING_INTERVAL_WITHOUT_DATA_MS, PING_INTERVAL_MS),
        int_arg(GRPC_ARG_HTTP2_MAX_PING_STRIKES, 0),
        int_arg(GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, 1),
    };
    const grpc_channel_args list = {sizeof(args) / sizeof(args[0]), args};
    return grpc_server_create(&list, NULL);
}

static void on_connection(int fd, void *context)
{
    struct mf_rpc_server *server = context;
    grpc_server_credentials *credentials = grpc_insecure_server_credentials_create();
    grpc_server_add_channel_from_fd(server->core, fd, credentials);
    grpc_server_credentials_release(credentials);
}

static void arm(struct mf_rpc_server *server)
{
    struct mf_rpc_call *call = mf_rpc_event_make(server);
    grpc_call_error error =
        grpc_server_request_call(server->core, &call->core, &call->details, &call->metadata,
                                 server->queue, server->queue, &call->tags[MF_RPC_EVENT_NEW]);
    MF_ASSERT(error == GRPC_CALL_OK);
    server->armed++;
}

static int compare_methods(const void *a, const void *b)
{
    const struct mf_rpc_method *const *left = a;
    const struct mf_rpc_method *const *right = b;
    return strcmp((*left)->path, (*right)->path);
}

static const struct mf_rpc_method *find_method(const struct mf_rpc_server *server, const char *path)
{
    const struct mf_rpc_method key = {.path = path};
    const struct mf_rpc_method *key_pointer = &key;
    const struct mf_rpc_method *const *found =
        bsearch(&key_pointer, server->methods, server->method_count, sizeof(*server->methods),
                compare_methods);
    return found != NULL ? *found : NULL;
}

static enum mf_status admit(const struct mf_rpc_server *server, const struct mf_rpc_call *call,
                            int live)
{
    if (call->method == NULL) {
        return mf_status_set_reason(MF_STATUS_UNSUPPORTED, "UNKNOWN_METHOD",
                                    "this daemon has no method %s", call->path);
    }
    if (live <= server->options.calls_max) {
        return MF_STATUS_OK;
    }
    enum mf_status status = mf_status_set_reason(
        MF_STATUS_BUSY, "TOO_MANY_CALLS", "%d calls are in flight, the most allowed; try again",
        server->options.calls_max);
    mf_status_number("calls_count", live - 1);
    mf_status_number("limit_count", server->options.calls_max);
    return status;
}

static void on_new(struct mf_rpc_server *server, struct mf_rpc_call *call, bool ok)
{
    server->armed--;
    if (!ok) {
        mf_rpc_event_retire(call); /* The server shuts down; nothing was filled in. */
        return;
    }
    arm(server);
    int live = atomic_fetch_add(&server->live, 1) + 1;
    mf_rpc_event_begin(call, server->listener);
    call->method = find_method(server, call->path);
    if (admit(server, call, live) == MF_STATUS_OK) {
        mf_rpc_event_receive(call);
    } else {
        mf_rpc_call_fail(call, mf_status_error());
    }
}

static void set_quiet(struct mf_rpc_server *server)
{
    pthread_mutex_lock(&server->lock);
    server->quiet = true;
    pthread_cond_broadcast(&server->changed);
    pthread_mutex_unlock(&server->lock);
}

static void *poll_queue(void *argument)
{
    struct mf_rpc_server *server = argument;
    const gpr_timespec never = gpr_inf_future(GPR_CLOCK_MONOTONIC);
    for (;;) {
        grpc_event event = grpc_completion_queue_next(server->queue, never, NULL);
        if (event.type == GRPC_QUEUE_SHUTDOWN) {
            return NULL;
        }
        if (event.tag == server) {
            server->core_down = true;
            set_quiet(server);
        } else {
            const struct mf_rpc_tag *tag = event.tag;
            if (tag->event == MF_RPC_EVENT_NEW) {
                on_new(server, tag->call, event.success != 0);
            } else if (mf_rpc_event_handle(tag->call, tag->event, event.success != 0)) {
                atomic_fetch_sub(&server->live, 1);
            }
        }
        /* No call is left that could start a batch: closed calls do not. */
        if (server->core_down && !server->queue_down && server->armed == 0 &&
            atomic_load(&server->live) == 0) {
            server->queue_down = true;
            grpc_completion_queue_shutdown(server->queue);
        }
    }
}

static int or_default(int value, int otherwise)
{
    return value > 0 ? value : otherwise;
}

static void destroy(struct mf_rpc_server *server)
{
    mf_listener_close(server->listener); /* First: it hands connections to the server. */
    grpc_server_destroy(server->core);
    grpc_completion_queue_destroy(server->queue);
    pthread_cond_destroy(&server->changed);
    pthread_mutex_destroy(&server->lock);
    free(server);
    grpc_shutdown();
}

enum mf_status mf_rpc_server_open(const struct mf_rpc_options *options, struct mf_rpc_server **out)
{
    static const struct mf_rpc_options defaults;
    options = options != NULL ? options : &defaults;
    mf_rpc_init();
    grpc_init();
    struct mf_rpc_server *server = calloc(1, sizeof(*server));
    MF_ASSERT(server != NULL);
    server->options.workers = or_default(options->workers, MF_WORKERS);
    server->options.calls_max = or_default(options->calls_max, MF_CALLS_MAX);
    server->options.queue_max = or_default(options->queue_max, MF_CALLS_MAX / 4);
    server->options.connections_max = or_default(options->connections_max, MF_CONNECTIONS_MAX);
    pthread_mutex_init(&server->lock, NULL);
    pthread_condattr_t attributes;
    pthread_condattr_init(&attributes);
    pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
    pthread_cond_init(&server->changed, &attributes);
    pthread_condattr_destroy(&attributes);
    server->queue = grpc_completion_queue_create_for_next(NULL);
    server->core = make_core(&server->options);
    grpc_server_register_completion_queue(server->core, server->queue, NULL);
    *out = server;
    return MF_STATUS_OK;
}

void mf_rpc_server_add(struct mf_rpc_server *server, const struct mf_rpc_method *methods,
                       size_t count)
{
    MF_ASSERT(!server->started && server->method_count + count <= METHODS_MAX);
    for (size_t i = 0; i < count; i++) {
        MF_ASSERT(methods[i].path[0] == '/' && methods[i].handler != NULL);
        server->methods[server->method_count++] = &methods[i];
    }
}

void mf_rpc_server_on_drain(struct mf_rpc_server *server, void (*hook)(void *context),
                            void *context)
{
    MF_ASSERT(!server->started && server->hook_count < HOOKS_MAX);
    server->hooks[server->hook_count++] = (struct hook){hook, context};
}

enum mf_status mf_rpc_server_start(struct mf_rpc_server *server)
{
    MF_ASSERT(!server->started);
    qsort(server->methods, server->method_count, sizeof(*server->methods), compare_methods);
    for (size_t i = 1; i < server->method_count; i++) {
        MF_ASSERT(strcmp(server->methods[i - 1]->path, server->methods[i]->path) != 0);
    }
    MF_TRY(mf_rpc_pool_open(server->options.workers, server->options.queue_max, &server->pool));
    MF_TRY(mf_listener_open(server->options.connections_max, on_connection, server,
                            &server->listener));
    grpc_server_start(server->core);
    for (int i = 0; i < SLOTS; i++) {
        arm(server);
    }
    int error = pthread_create(&server->thread, NULL, poll_queue, server);
    if (error != 0) {
        return mf_status_set(MF_STATUS_NO_MEMORY, "cannot start the RPC thread: %s",
                             strerror(error));
    }
    server->started = true;
    return MF_STATUS_OK;
}

enum mf_status mf_rpc_server_listen(struct mf_rpc_server *server, const char *address,
                                    const struct mf_listener_options *options, char *bound)
{
    MF_ASSERT(server->started && !server->drained);
    char text[MF_ADDRESS_TEXT_MAX];
    MF_TRY(mf_listener_add(server->listener, address, options, text));
    if (bound != NULL) {
        memcpy(bound, text, strlen(text) + 1);
    }
    return MF_STATUS_OK;
}

/* True when gRPC is quiet within `wait_ms`; -1 = however long it takes. */
static bool wait_quiet(struct mf_rpc_server *server, int64_t wait_ms)
{
    int64_t until_ns = mf_rpc_call_now_ns() + (wait_ms > 0 ? wait_ms : 0) * NS_PER_MS;
    const struct timespec until = {.tv_sec = until_ns / NS_PER_S, .tv_nsec = until_ns % NS_PER_S};
    int error = 0;
    pthread_mutex_lock(&server->lock);
    while (!server->quiet && error != ETIMEDOUT) {
        error = wait_ms < 0 ? pthread_cond_wait(&server->changed, &server->lock)
                            : pthread_cond_timedwait(&server->changed, &server->lock, &until);
    }
    bool quiet = server->quiet;
    pthread_mutex_unlock(&server->lock);
    return quiet;
}

/* The same for a drain, which does not wait for connections without calls: an idle client of
 * gRPC's C core may only look every 5 s whether its server goes away. */
static bool wait_calls(struct mf_rpc_server *server, int64_t grace_ms)
{
    int64_t idle_ms = 0;
    bool quiet = wait_quiet(server, 0);
    for (int64_t ms = 0; !quiet && ms < grace_ms && idle_ms < HANG_UP_MS; ms += LOOK_MS) {
        quiet = wait_quiet(server, LOOK_MS);
        idle_ms = atomic_load(&server->live) == 0 ? idle_ms + LOOK_MS : 0;
    }
    return quiet;
}

void mf_rpc_server_drain(struct mf_rpc_server *server, int64_t grace_ms)
{
    if (!server->started || server->drained) {
        return;
    }
    server->drained = true;
    for (size_t i = 0; i < server->hook_count; i++) {
        server->hooks[i].run(server->hooks[i].context);
    }
    mf_listener_stop(server->listener);
    grpc_server_shutdown_and_notify(server->core, server->queue, server);
    if (!wait_calls(server, grace_ms)) {
        mf_log_debug("rpc: cancelling %d calls still in flight", atomic_load(&server->live));
        grpc_server_cancel_all_calls(server->core);
        wait_quiet(server, -1);
    }
    pthread_join(server->thread, NULL);
}

void mf_rpc_server_close(struct mf_rpc_server *server)
{
    if (server == NULL) {
        return;
    }
    mf_rpc_server_drain(server, 0);
    mf_rpc_pool_close(server->pool);
    if (!server->started) {
        /* gRPC wants even a server that never served to be shut down, and the event taken. */
        grpc_server_shutdown_and_notify(server->core, server->queue, server);
        poll_queue(server);
    }
    destroy(server);
}

int mf_rpc_server_calls(struct mf_rpc_server *server)
{
    return atomic_load(&server->live);
}

const char *mf_rpc_server_method(const struct mf_rpc_server *server, size_t index)
{
    return index < server->method_count ? server->methods[index]->path : NULL;
}
