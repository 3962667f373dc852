/* Many clients, held calls and cancels, while the server drains under them: nothing may crash, leak
 * or be left over. Run it long with MF_TEST_ROUNDS=200, best with sanitizers. */
#include "harness.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "client/channel.h"
#include "server/health.h"
#include "server/rpc.h"

#define HARNESS_THREADS
#define CLIENTS 6
#define KEPT_MAX 256

/* Calls that handlers have left to the finisher thread, as a session's device worker would. */
static struct {
    pthread_mutex_t lock;
    struct mf_rpc_call *calls[KEPT_MAX];
    int count;
    bool closing;
} kept = {.lock = PTHREAD_MUTEX_INITIALIZER};

static char address[MF_ADDRESS_TEXT_MAX];
static atomic_bool stopping;
static atomic_int answered, refused;

static void cancelled(struct mf_rpc_call *call, void *context)
{
    (void)context;
    mf_rpc_call_finish(call);
}

static void keep(struct mf_rpc_call *call, const uint8_t *request, size_t bytes, void *context)
{
    (void)request;
    (void)bytes;
    (void)context;
    mf_rpc_call_hold(call);
    mf_rpc_call_on_cancel(call, cancelled, NULL);
    pthread_mutex_lock(&kept.lock);
    bool room = kept.count < KEPT_MAX;
    if (room) {
        kept.calls[kept.count++] = call;
    }
    pthread_mutex_unlock(&kept.lock);
    if (!room) {
        mf_rpc_call_release(call); /* Unanswered: the engine fails it. */
    }
}

static void echo(struct mf_rpc_call *call, const uint8_t *request, size_t bytes, void *context)
{
    (void)context;
    mf_rpc_call_reply(call, request, bytes);
}

static void pour(struct mf_rpc_call *call, const uint8_t *request, size_t bytes, void *context)
{
    (void)request;
    (void)bytes;
    (void)context;
    static const uint8_t block[10000];
    for (int i = 0; i < 200; i++) {
        if (mf_rpc_call_send_wait(call, block, sizeof(block), 1000) != MF_STATUS_OK) {
            return; /* Left unanswered on purpose. */
        }
    }
    mf_rpc_call_finish(call);
}

static const struct mf_rpc_method methods[] = {
    {"/t.T/Echo", MF_RPC_UNARY, false, 0, echo, NULL, NULL},
    {"/t.T/Keep", MF_RPC_SERVER_STREAM, false, 0, keep, NULL, NULL},
    {"/t.T/Pour", MF_RPC_SERVER_STREAM, false, 0, pour, NULL, NULL},
};

/* Sends to kept calls and ends them, oldest last, while they are cancelled under it. */
static void *finish_calls(void *argument)
{
    (void)argument;
    for (;;) {
        pthread_mutex_lock(&kept.lock);
        struct mf_rpc_call *call = kept.count > 0 ? kept.calls[--kept.count] : NULL;
        bool closing = kept.closing;
        pthread_mutex_unlock(&kept.lock);
        if (call == NULL && closing) {
            return NULL;
        }
        if (call == NULL) {
            usleep(500);
            continue;
        }
        for (int i = 0; i < 3; i++) {
            (void)!mf_rpc_call_send(call, (const uint8_t *)"progress", 8);
        }
        mf_rpc_call_on_cancel(call, NULL, NULL);
        mf_rpc_call_finish(call);
        mf_rpc_call_release(call);
    }
}

static void count_result(enum mf_status status)
{
    atomic_fetch_add(status == MF_STATUS_OK ? &answered : &refused, 1);
}

static void stream_some(struct mf_channel *channel, const char *path, unsigned reads)
{
    struct mf_channel_stream *stream = NULL;
    enum mf_status status = mf_channel_stream_open(channel, path, NULL, 0, 2000, &stream);
    for (unsigned i = 0; i < reads && status == MF_STATUS_OK; i++) {
        uint8_t *reply = NULL;
        size_t bytes = 0;
        status = mf_channel_stream_next(stream, &reply, &bytes);
        if (reply == NULL) {
            break;
        }
        free(reply);
    }
    mf_channel_stream_close(stream); /* Often in the middle. */
    count_result(status);
}

static void *client(void *argument)
{
    unsigned seed = (unsigned)(uintptr_t)argument;
    while (!atomic_load(&stopping)) {
        struct mf_channel *channel = NULL;
        if (mf_channel_open(address, &channel) != MF_STATUS_OK) {
            return NULL;
        }
        for (int i = 0; i < 20 && !atomic_load(&stopping); i++) {
            unsigned choice = (unsigned)rand_r(&seed) % 4;
            if (choice == 0) {
                uint8_t *reply = NULL;
                size_t bytes = 0;
                int64_t deadline_ms = rand_r(&seed) % 2 == 0 ? 1 : 2000;
                count_result(mf_channel_call(channel, "/t.T/Echo", (const uint8_t *)"x", 1,
                                             deadline_ms, &reply, &bytes));
                free(reply);
            } else {
                static const char *const paths[] = {"", "/t.T/Keep", "/t.T/Pour",
                                                    "/grpc.health.v1.Health/Watch"};
                stream_some(channel, paths[choice], choice == 3 ? 1 : (unsigned)rand_r(&seed) % 5);
            }
        }
        mf_channel_close(channel);
    }
    return NULL;
}

static void one_round(unsigned seed)
{
    struct mf_rpc_server *server = NULL;
    pthread_t finisher;
    pthread_t clients[CLIENTS];
    char path[256];
    snprintf(path, sizeof(path), "unix:%s", harness_path(harness_folder(), "s"));
    atomic_store(&stopping, false);
    kept.closing = false;
    assert_ok(mf_rpc_server_open(NULL, &server));
    struct mf_health *health = mf_health_open(server);
    mf_rpc_server_add(server, methods, sizeof(methods) / sizeof(methods[0]));
    assert_ok(mf_rpc_server_start(server));
    assert_ok(mf_rpc_server_listen(server, path, NULL, address));
    assert_int_equal(pthread_create(&finisher, NULL, finish_calls, NULL), 0);
    for (unsigned i = 0; i < CLIENTS; i++) {
        void *argument = (void *)(uintptr_t)(seed * CLIENTS + i);
        assert_int_equal(pthread_create(&clients[i], NULL, client, argument), 0);
    }
    usleep(200000);
    mf_health_set(health, "t.T", false);
    mf_rpc_server_drain(server, (int64_t)(seed % 3) * 10);
    assert_int_equal(mf_rpc_server_calls(server), 0);
    mf_rpc_server_close(server); /* Before the finisher has let go of all calls. */
    mf_health_close(health);
    atomic_store(&stopping, true);
    for (int i = 0; i < CLIENTS; i++) {
        pthread_join(clients[i], NULL);
    }
    pthread_mutex_lock(&kept.lock);
    kept.closing = true;
    pthread_mutex_unlock(&kept.lock);
    pthread_join(finisher, NULL);
}

static void test_storm(void **state)
{
    (void)state;
    const char *rounds = getenv("MF_TEST_ROUNDS");
    long count = rounds != NULL ? strtol(rounds, NULL, 10) : 3;
    for (long i = 0; i < count; i++) {
        one_round((unsigned)i + 1);
    }
    print_message("%d calls ended well, %d did not\n", atomic_load(&answered),
                  atomic_load(&refused));
    assert_true(atomic_load(&answered) > 100);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_storm)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
