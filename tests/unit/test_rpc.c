/* The RPC engine and the client channel against each other over real sockets: see server/rpc.h. */
#include "harness.h"

#include <pthread.h>
#include <semaphore.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "client/channel.h"
#include "core/limits.h"
#include "server/rpc.h"

#define HARNESS_THREADS
#define SECOND_MS 1000
#define BULK_BYTES (1u << 20)
#define DEADLINE_MS 20000

/* What handlers and tests share. One server a test. */
static struct {
    struct mf_rpc_server *server;
    struct mf_channel *channel;
    char address[MF_ADDRESS_TEXT_MAX];
    struct mf_rpc_call *held; /* the last one of `hold` */
    struct mf_rpc_call *all[64];
    atomic_int all_count;
    sem_t holding, gate;
    atomic_int cancels, busy, sent;
    enum mf_status last;
    pthread_t thread;
    pthread_mutex_t lock; /* what follows: the wire between us orders nothing TSan can see */
    struct mf_peer peer;
    int64_t remaining_ns;
} shared;

static void sleep_ms(long ms)
{
    const struct timespec time = {.tv_sec = ms / 1000, .tv_nsec = ms % 1000 * 1000000};
    nanosleep(&time, NULL);
}

static bool wait_for(atomic_int *value, int wanted)
{
    for (int i = 0; i < 1000 && atomic_load(value) != wanted; i++) {
        sleep_ms(5);
    }
    return atomic_load(value) == wanted;
}

static void echo(struct mf_rpc_call *call, const uint8_t *request, size_t bytes, void *context)
{
    (void)context;
    pthread_mutex_lock(&shared.lock);
    shared.peer = *mf_rpc_call_peer(call);
    shared.remaining_ns = mf_rpc_call_remaining_ns(call);
    pthread_mutex_unlock(&shared.lock);
    mf_rpc_call_reply(call, request, bytes);
    mf_rpc_call_reply(call, request, bytes); /* Ignored. */
    mf_rpc_call_fail(call, mf_status_error());
}

static void fail_full(struct mf_rpc_call *call, const uint8_t *request, size_t bytes, void *context)
{
    (void)request;
    (void)bytes;
    (void)context;
    (void)mf_status_set_reason(MF_STATUS_NO_DEVICE_MEMORY, "DEVICE_MEMORY_TOO_SMALL",
                               "needs 8.00 GiB, has 4.00 GiB \xe2\x80\x94 name \xff\xfe");
    mf_status_number("needed_bytes", 8ll << 30);
    mf_status_number("available_bytes", -1);
    mf_rpc_call_fail(call, mf_status_error());
}

static void forget(struct mf_rpc_call *call, const uint8_t *request, size_t bytes, void *context)
{
    (void)call;
    (void)request;
    (void)bytes;
    (void)context;
}

/* Blocks a worker until the gate opens. */
static void block(struct mf_rpc_call *call, const uint8_t *request, size_t bytes, void *context)
{
    (void)context;
    sem_post(&shared.holding);
    sem_wait(&shared.gate);
    mf_rpc_call_reply(call, request, bytes);
}

static void on_cancel(struct mf_rpc_call *call, void *context)
{
    MF_ASSERT(context == &shared && mf_rpc_call_cancelled(call));
    atomic_fetch_add(&shared.cancels, 1);
}

/* Leaves the call to the test; teardown releases it. */
static void hold(struct mf_rpc_call *call, const uint8_t *request, size_t bytes, void *context)
{
    (void)request;
    (void)bytes;
    (void)context;
    mf_rpc_call_hold(call);
    mf_rpc_call_on_cancel(call, on_cancel, &shared);
    shared.held = call;
    shared.all[atomic_fetch_add(&shared.all_count, 1)] = call;
    sem_post(&shared.holding);
}

/* `request` = how many messages, each its index in text. */
static void count_up(struct mf_rpc_call *call, const uint8_t *request, size_t bytes, void *context)
{
    (void)context;
    char text[16];
    snprintf(text, sizeof(text), "%.*s", (int)bytes, (const char *)request);
    long count = strtol(text, NULL, 10);
    for (long i = 0; i < count; i++) {
        int length = snprintf(text, sizeof(text), "%ld", i);
        if (mf_rpc_call_send_wait(call, (const uint8_t *)text, (size_t)length, -1) !=
            MF_STATUS_OK) {
            break;
        }
    }
    mf_rpc_call_finish(call);
}

/* Sends 1 MiB messages without waiting, until told that the queue is full; then waits, bounded. */
static void flood(struct mf_rpc_call *call, const uint8_t *request, size_t bytes, void *context)
{
    (void)request;
    (void)bytes;
    (void)context;
    uint8_t *bulk = calloc(1, BULK_BYTES);
    enum mf_status status = MF_STATUS_OK;
    while ((status = mf_rpc_call_send(call, bulk, BULK_BYTES)) == MF_STATUS_OK) {
        atomic_fetch_add(&shared.sent, 1);
    }
    atomic_store(&shared.busy, status == MF_STATUS_BUSY);
    while ((shared.last = mf_rpc_call_send_wait(call, bulk, BULK_BYTES, 200)) == MF_STATUS_OK) {
        atomic_fetch_add(&shared.sent, 1);
    }
    sem_post(&shared.holding);
    sem_wait(&shared.gate);
    status = mf_rpc_call_send_wait(call, bulk, BULK_BYTES, -1);
    if (status == MF_STATUS_OK) {
        atomic_fetch_add(&shared.sent, 1);
    }
    mf_rpc_call_finish(call);
    free(bulk);
}

static const struct mf_rpc_method methods[] = {
    {"/t.T/Echo", MF_RPC_UNARY, false, 0, echo, NULL, NULL},
    {"/t.T/EchoNow", MF_RPC_UNARY, true, 0, echo, NULL, NULL},
    {"/t.T/Small", MF_RPC_UNARY, false, 16, echo, NULL, NULL},
    {"/t.T/Fail", MF_RPC_UNARY, false, 0, fail_full, NULL, NULL},
    {"/t.T/Forget", MF_RPC_UNARY, false, 0, forget, NULL, NULL},
    {"/t.T/Block", MF_RPC_UNARY, false, 0, block, NULL, NULL},
    {"/t.T/Hold", MF_RPC_UNARY, false, 0, hold, NULL, NULL},
    {"/t.T/HoldStream", MF_RPC_SERVER_STREAM, false, 0, hold, NULL, NULL},
    {"/t.T/Count", MF_RPC_SERVER_STREAM, false, 0, count_up, NULL, NULL},
    {"/t.T/Flood", MF_RPC_SERVER_STREAM, false, 0, flood, NULL, NULL},
};

static void open_server(const struct mf_rpc_options *options, const char *address)
{
    memset(&shared, 0, sizeof(shared));
    pthread_mutex_init(&shared.lock, NULL);
    sem_init(&shared.holding, 0, 0);
    sem_init(&shared.gate, 0, 0);
    assert_ok(mf_rpc_server_open(options, &shared.server));
    mf_rpc_server_add(shared.server, methods, sizeof(methods) / sizeof(methods[0]));
    assert_ok(mf_rpc_server_start(shared.server));
    assert_ok(mf_rpc_server_listen(shared.server, address, NULL, shared.address));
    assert_ok(mf_channel_open(shared.address, &shared.channel));
}

static int setup_with(const struct mf_rpc_options *options)
{
    char address[256];
    snprintf(address, sizeof(address), "unix:%s", harness_path(harness_folder(), "a b%41.sock"));
    open_server(options, address);
    return 0;
}

static int setup(void **state)
{
    (void)state;
    return setup_with(NULL);
}

static int setup_tcp(void **state)
{
    (void)state;
    open_server(NULL, "localhost:0");
    return 0;
}

static int setup_tiny(void **state)
{
    (void)state;
    const struct mf_rpc_options tiny = {.workers = 1, .calls_max = 4, .queue_max = 1};
    return setup_with(&tiny);
}

static int teardown(void **state)
{
    (void)state;
    sem_post(&shared.gate); /* A test that failed may have left a handler there. */
    sem_post(&shared.gate);
    mf_channel_close(shared.channel);
    mf_rpc_server_close(shared.server);
    for (int i = 0; i < atomic_load(&shared.all_count); i++) {
        mf_rpc_call_release(shared.all[i]); /* Calls may outlive their server. */
    }
    return 0;
}

static enum mf_status call_text(const char *path, const char *text, char *out, size_t size)
{
    uint8_t *reply = NULL;
    size_t bytes = 0;
    enum mf_status status = mf_channel_call(shared.channel, path, (const uint8_t *)text,
                                            strlen(text), DEADLINE_MS, &reply, &bytes);
    snprintf(out, size, "%.*s", (int)bytes, reply != NULL ? (const char *)reply : "");
    free(reply);
    pthread_mutex_lock(&shared.lock);
    pthread_mutex_unlock(&shared.lock);
    return status;
}

static void test_unary(void **state)
{
    (void)state;
    char reply[64];
    assert_ok(call_text("/t.T/Echo", "hello", reply, sizeof(reply)));
    assert_string_equal(reply, "hello");
    assert_ok(call_text("/t.T/EchoNow", "", reply, sizeof(reply)));
    assert_string_equal(reply, "");
    assert_true(shared.remaining_ns > 0 && shared.remaining_ns <= (DEADLINE_MS + 1000) * 1000000ll);
}

static void test_peer_unix(void **state)
{
    (void)state;
    char reply[64];
    assert_ok(call_text("/t.T/Echo", "who", reply, sizeof(reply)));
    assert_true(shared.peer.known);
    assert_int_equal(shared.peer.uid, geteuid());
    assert_int_equal(shared.peer.gid, getegid());
    assert_int_equal(shared.peer.pid, getpid());
}

static void test_tcp(void **state)
{
    (void)state;
    char reply[64];
    assert_ok(call_text("/t.T/Echo", "over tcp", reply, sizeof(reply)));
    assert_string_equal(reply, "over tcp");
    assert_false(shared.peer.known);
    assert_non_null(strstr(shared.peer.text, "port"));
    assert_null(strstr(shared.address, ":0")); /* The real port. */
}

static void test_large_message(void **state)
{
    (void)state;
    size_t bytes = 4000000;
    uint8_t *request = malloc(bytes);
    uint8_t *reply = NULL;
    size_t reply_bytes = 0;
    for (size_t i = 0; i < bytes; i++) {
        request[i] = (uint8_t)harness_random();
    }
    assert_ok(mf_channel_call(shared.channel, "/t.T/Echo", request, bytes, DEADLINE_MS, &reply,
                              &reply_bytes));
    assert_int_equal(reply_bytes, bytes);
    assert_memory_equal(reply, request, bytes);
    free(request);
    free(reply);
}

static void test_oversize(void **state)
{
    (void)state;
    char reply[64];
    assert_fails(call_text("/t.T/Small", "0123456789abcdefg", reply, sizeof(reply)),
                 MF_STATUS_INVALID, "17 bytes");
    assert_string_equal(mf_status_error()->reason, "REQUEST_TOO_LARGE");
    assert_int_equal(mf_status_error()->numbers[1].value, 16);

    size_t bytes = (size_t)MF_MESSAGE_BYTES_MAX + 1;
    uint8_t *request = calloc(1, bytes);
    uint8_t *got = NULL;
    size_t got_bytes = 0;
    assert_status(
        mf_channel_call(shared.channel, "/t.T/Echo", request, bytes, DEADLINE_MS, &got, &got_bytes),
        MF_STATUS_BUSY); /* gRPC's own RESOURCE_EXHAUSTED. */
    free(request);
    assert_ok(call_text("/t.T/Echo", "still there", reply, sizeof(reply)));
}

static void test_error_details(void **state)
{
    (void)state;
    char reply[64];
    assert_fails(call_text("/t.T/Fail", "", reply, sizeof(reply)), MF_STATUS_NO_DEVICE_MEMORY,
                 "needs 8.00 GiB, has 4.00 GiB \xe2\x80\x94 name ??");
    const struct mf_error *error = mf_status_error();
    assert_string_equal(error->reason, "DEVICE_MEMORY_TOO_SMALL");
    assert_int_equal(error->number_count, 2);
    assert_string_equal(error->numbers[0].name, "needed_bytes");
    assert_int_equal(error->numbers[0].value, 8ll << 30);
    assert_string_equal(error->numbers[1].name, "available_bytes");
    assert_int_equal(error->numbers[1].value, -1);
}

static void test_unknown_and_forgotten(void **state)
{
    (void)state;
    char reply[64];
    assert_fails(call_text("/t.T/Nothing", "", reply, sizeof(reply)), MF_STATUS_UNSUPPORTED,
                 "/t.T/Nothing");
    assert_string_equal(mf_status_error()->reason, "UNKNOWN_METHOD");
    assert_fails(call_text("/t.T/Forget", "", reply, sizeof(reply)), MF_STATUS_INTERNAL,
                 "without an answer");
}

static void test_stream(void **state)
{
    (void)state;
    struct mf_channel_stream *stream = NULL;
    uint8_t *reply = NULL;
    size_t bytes = 0;
    assert_ok(mf_channel_stream_open(shared.channel, "/t.T/Count", (const uint8_t *)"1000", 4,
                                     DEADLINE_MS, &stream));
    for (int i = 0; i < 1000; i++) {
        char text[16];
        snprintf(text, sizeof(text), "%d", i);
        assert_ok(mf_channel_stream_next(stream, &reply, &bytes));
        assert_non_null(reply);
        assert_int_equal(bytes, strlen(text));
        assert_memory_equal(reply, text, bytes);
        free(reply);
    }
    for (int i = 0; i < 2; i++) {
        assert_ok(mf_channel_stream_next(stream, &reply, &bytes));
        assert_null(reply);
    }
    mf_channel_stream_close(stream);
}

static void test_slow_reader(void **state)
{
    (void)state;
    struct mf_channel_stream *stream = NULL;
    uint8_t *reply = NULL;
    size_t bytes = 0;
    assert_ok(mf_channel_stream_open(shared.channel, "/t.T/Flood", NULL, 0, DEADLINE_MS, &stream));
    sem_wait(&shared.holding);
    assert_true(atomic_load(&shared.busy));
    assert_int_equal(shared.last, MF_STATUS_DEADLINE);
    /* The queue holds 8 of these, the rest lies in HTTP/2 windows and socket buffers. */
    assert_in_range(atomic_load(&shared.sent), 8, 40);
    sem_post(&shared.gate);
    int received = 0;
    for (;;) {
        assert_ok(mf_channel_stream_next(stream, &reply, &bytes));
        if (reply == NULL) {
            break;
        }
        assert_int_equal(bytes, BULK_BYTES);
        free(reply);
        received++;
    }
    assert_int_equal(received, atomic_load(&shared.sent));
    mf_channel_stream_close(stream);
}

static void test_deadline(void **state)
{
    (void)state;
    uint8_t *reply = NULL;
    size_t bytes = 0;
    assert_fails(mf_channel_call(shared.channel, "/t.T/Hold", NULL, 0, 100, &reply, &bytes),
                 MF_STATUS_DEADLINE, "deadline");
    sem_wait(&shared.holding);
    assert_true(wait_for(&shared.cancels, 1));
    assert_true(mf_rpc_call_cancelled(shared.held));
    assert_status(mf_rpc_call_check(shared.held), MF_STATUS_DEADLINE);
    assert_int_equal(mf_rpc_call_remaining_ns(shared.held), 0);
    mf_rpc_call_reply(shared.held, NULL, 0); /* Too late, and harmless. */
}

static volatile sig_atomic_t interrupt_flag;

static void *interrupt_soon(void *argument)
{
    (void)argument;
    sem_wait(&shared.holding);
    __atomic_store_n(&interrupt_flag, 1, __ATOMIC_RELAXED);
    return NULL;
}

static void test_interrupt(void **state)
{
    (void)state;
    uint8_t *reply = NULL;
    size_t bytes = 0;
    pthread_t thread;
    interrupt_flag = 0;
    mf_channel_set_cancel(shared.channel, &interrupt_flag);
    pthread_create(&thread, NULL, interrupt_soon, NULL);
    assert_fails(mf_channel_call(shared.channel, "/t.T/Hold", NULL, 0, 0, &reply, &bytes),
                 MF_STATUS_CANCELLED, "interrupted");
    pthread_join(thread, NULL);
    assert_true(wait_for(&shared.cancels, 1));
    assert_status(mf_rpc_call_check(shared.held), MF_STATUS_CANCELLED);
}

static void test_stream_cancel(void **state)
{
    (void)state;
    struct mf_channel_stream *stream = NULL;
    uint8_t *reply = NULL;
    size_t bytes = 0;
    assert_ok(mf_channel_stream_open(shared.channel, "/t.T/HoldStream", NULL, 0, 0, &stream));
    sem_wait(&shared.holding);
    assert_ok(mf_rpc_call_send(shared.held, (const uint8_t *)"x", 1));
    assert_ok(mf_channel_stream_next(stream, &reply, &bytes));
    assert_int_equal(bytes, 1);
    free(reply);
    mf_channel_stream_cancel(stream);
    assert_status(mf_channel_stream_next(stream, &reply, &bytes), MF_STATUS_CANCELLED);
    assert_null(reply);
    assert_true(wait_for(&shared.cancels, 1));
    assert_status(mf_rpc_call_send(shared.held, (const uint8_t *)"y", 1), MF_STATUS_CANCELLED);
    mf_channel_stream_close(stream);
}

static void *answer_later(void *argument)
{
    (void)argument;
    sem_wait(&shared.holding);
    sleep_ms(20);
    mf_rpc_call_reply(shared.held, (const uint8_t *)"late", 4);
    return NULL;
}

static void test_other_thread(void **state)
{
    (void)state;
    for (int i = 0; i < 50; i++) {
        char reply[64];
        pthread_t thread;
        pthread_create(&thread, NULL, answer_later, NULL);
        assert_ok(call_text("/t.T/Hold", "", reply, sizeof(reply)));
        assert_string_equal(reply, "late");
        pthread_join(thread, NULL);
    }
    assert_int_equal(atomic_load(&shared.cancels), 0);
}

static void *call_block(void *argument)
{
    char reply[64];
    *(enum mf_status *)argument = call_text("/t.T/Block", "b", reply, sizeof(reply));
    return NULL;
}

static void test_queue_full(void **state)
{
    (void)state;
    pthread_t threads[2];
    enum mf_status results[2];
    char reply[64];
    pthread_create(&threads[0], NULL, call_block, &results[0]);
    sem_wait(&shared.holding); /* The only worker is taken, */
    pthread_create(&threads[1], NULL, call_block, &results[1]);
    while (mf_rpc_server_calls(shared.server) < 2) {
        sleep_ms(5);
    }
    sleep_ms(50); /* and the only place to wait. */
    assert_fails(call_text("/t.T/Echo", "x", reply, sizeof(reply)), MF_STATUS_BUSY, "workers");
    assert_string_equal(mf_status_error()->reason, "WORKERS_BUSY");
    assert_int_equal(mf_status_error()->numbers[1].value, 1);
    assert_ok(call_text("/t.T/EchoNow", "x", reply, sizeof(reply))); /* Needs no worker. */
    sem_post(&shared.gate);
    sem_post(&shared.gate);
    for (int i = 0; i < 2; i++) {
        pthread_join(threads[i], NULL);
        assert_int_equal(results[i], MF_STATUS_OK);
    }
}

static void test_calls_max(void **state)
{
    (void)state;
    struct mf_channel_stream *streams[4];
    char reply[64];
    for (int i = 0; i < 4; i++) {
        assert_ok(
            mf_channel_stream_open(shared.channel, "/t.T/HoldStream", NULL, 0, 0, &streams[i]));
        sem_wait(&shared.holding);
    }
    assert_fails(call_text("/t.T/EchoNow", "x", reply, sizeof(reply)), MF_STATUS_BUSY, "4 calls");
    assert_string_equal(mf_status_error()->reason, "TOO_MANY_CALLS");
    for (int i = 0; i < 4; i++) {
        mf_channel_stream_close(streams[i]);
    }
    assert_true(wait_for(&shared.cancels, 4));
}

static void *drain_soon(void *argument)
{
    (void)argument;
    mf_rpc_server_drain(shared.server, SECOND_MS / 5);
    return NULL;
}

static void test_drain_cancels(void **state)
{
    (void)state;
    struct mf_channel_stream *stream = NULL;
    uint8_t *reply = NULL;
    size_t bytes = 0;
    pthread_t thread;
    assert_ok(mf_channel_stream_open(shared.channel, "/t.T/HoldStream", NULL, 0, 0, &stream));
    sem_wait(&shared.holding);
    pthread_create(&thread, NULL, drain_soon, NULL);
    assert_ok(mf_rpc_call_send(shared.held, (const uint8_t *)"x", 1));
    assert_ok(mf_channel_stream_next(stream, &reply, &bytes));
    free(reply);
    assert_status(mf_channel_stream_next(stream, &reply, &bytes), MF_STATUS_UNAVAILABLE);
    pthread_join(thread, NULL);
    assert_int_equal(atomic_load(&shared.cancels), 1);
    assert_int_equal(mf_rpc_server_calls(shared.server), 0);
    /* After gRPC is gone a held call is safe to use. */
    assert_status(mf_rpc_call_send(shared.held, (const uint8_t *)"y", 1), MF_STATUS_CANCELLED);
    mf_rpc_call_finish(shared.held);
    mf_channel_stream_close(stream);
    char text[64];
    assert_fails(call_text("/t.T/Echo", "x", text, sizeof(text)), MF_STATUS_UNAVAILABLE,
                 "memferry serve");
    assert_non_null(strstr(mf_status_text(), shared.address));
}

static void test_drain_waits(void **state)
{
    (void)state;
    pthread_t thread;
    enum mf_status result = MF_STATUS_INTERNAL;
    pthread_create(&thread, NULL, call_block, &result);
    sem_wait(&shared.holding);
    sem_post(&shared.gate);
    mf_rpc_server_drain(shared.server, 10 * SECOND_MS);
    pthread_join(thread, NULL);
    assert_int_equal(result, MF_STATUS_OK);
}

static void test_close_unstarted(void **state)
{
    (void)state;
    struct mf_rpc_server *server = NULL;
    assert_ok(mf_rpc_server_open(NULL, &server));
    mf_rpc_server_close(server);
}

#define AROUND(test, before) cmocka_unit_test_setup_teardown(test, before, teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        AROUND(test_unary, setup),
        AROUND(test_peer_unix, setup),
        AROUND(test_tcp, setup_tcp),
        AROUND(test_large_message, setup),
        AROUND(test_oversize, setup),
        AROUND(test_error_details, setup),
        AROUND(test_unknown_and_forgotten, setup),
        AROUND(test_stream, setup),
        AROUND(test_slow_reader, setup),
        AROUND(test_deadline, setup),
        AROUND(test_interrupt, setup),
        AROUND(test_stream_cancel, setup),
        AROUND(test_other_thread, setup),
        AROUND(test_queue_full, setup_tiny),
        AROUND(test_calls_max, setup_tiny),
        AROUND(test_drain_cancels, setup),
        AROUND(test_drain_waits, setup),
        cmocka_unit_test(test_close_unstarted),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
