/* Health and reflection as a foreign client sees them: Debian's Python grpc, in rpc_client.py. */
#include "harness.h"

#include <fcntl.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "proto/descriptors.h"
#include "server/health.h"
#include "server/reflection.h"
#include "server/rpc.h"

#define HARNESS_THREADS
#define SLEEP_MS 2500 /* 25 pings */

static struct mf_rpc_server *server;
static struct mf_health *health;
static struct mf_reflection *reflection;
static char address[MF_ADDRESS_TEXT_MAX];

static void sleep_then_reply(struct mf_rpc_call *call, const uint8_t *request, size_t bytes,
                             void *context)
{
    (void)request;
    (void)bytes;
    (void)context;
    const struct timespec time = {.tv_sec = SLEEP_MS / 1000, .tv_nsec = SLEEP_MS % 1000 * 1000000};
    nanosleep(&time, NULL);
    mf_rpc_call_reply(call, (const uint8_t *)"awake", 5);
}

static const struct mf_rpc_method method = {"/t.T/Sleep",     MF_RPC_UNARY, false, 0,
                                            sleep_then_reply, NULL,         NULL};

static int setup(void **state)
{
    (void)state;
    assert_ok(mf_rpc_server_open(NULL, &server));
    health = mf_health_open(server);
    assert_ok(mf_reflection_open(server, mf_descriptors, mf_descriptors_bytes, &reflection));
    mf_rpc_server_add(server, &method, 1);
    assert_ok(mf_rpc_server_start(server));
    assert_ok(mf_rpc_server_listen(server, "127.0.0.1:0", NULL, address));
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    mf_rpc_server_close(server);
    mf_health_close(health);
    mf_reflection_close(reflection);
    return 0;
}

static pid_t client;

/* Starts the client and gives its output; it ends with 0, or 77 where Python has no grpc. */
static FILE *start_client(const char *what)
{
    const char *python = getenv("MEMFERRY_PYTHON");
    python = python != NULL ? python : "/usr/bin/python3";
    char *arguments[] = {(char *)(uintptr_t)python,
                         (char *)(uintptr_t)harness_source("tests/unit/rpc_client.py"), address,
                         (char *)(uintptr_t)what, NULL};
    int ends[2];
    posix_spawn_file_actions_t actions;
    assert_int_equal(pipe2(ends, O_CLOEXEC), 0);
    assert_int_equal(posix_spawn_file_actions_init(&actions), 0);
    assert_int_equal(posix_spawn_file_actions_adddup2(&actions, ends[1], STDOUT_FILENO), 0);
    assert_int_equal(posix_spawn(&client, python, &actions, NULL, arguments, environ), 0);
    posix_spawn_file_actions_destroy(&actions);
    close(ends[1]);
    FILE *output = fdopen(ends[0], "r");
    assert_non_null(output);
    return output;
}

static void end_client(FILE *output)
{
    char line[512];
    int status = 0;
    while (fgets(line, sizeof(line), output) != NULL) {
        print_message("%s", line);
    }
    fclose(output);
    assert_int_equal(waitpid(client, &status, 0), client);
    assert_true(WIFEXITED(status));
    if (WEXITSTATUS(status) == HARNESS_SKIP) {
        skip();
    }
    assert_int_equal(WEXITSTATUS(status), 0);
}

static void test_health(void **state)
{
    (void)state;
    end_client(start_client("health"));
}

static void test_reflection(void **state)
{
    (void)state;
    end_client(start_client("reflection"));
}

static void test_compressed(void **state)
{
    (void)state;
    end_client(start_client("compressed"));
}

static void test_pings(void **state)
{
    (void)state;
    end_client(start_client("pings"));
}

static void test_drain(void **state)
{
    (void)state;
    char line[64] = "";
    FILE *output = start_client("drain");
    if (fgets(line, sizeof(line), output) != NULL && strcmp(line, "watching\n") == 0) {
        mf_rpc_server_drain(server, 5000);
    }
    end_client(output);
}

static void test_damaged_descriptors(void **state)
{
    (void)state;
    struct mf_reflection *broken = NULL;
    struct mf_rpc_server *other = NULL;
    assert_ok(mf_rpc_server_open(NULL, &other));
    assert_status(mf_reflection_open(other, mf_descriptors, mf_descriptors_bytes - 3, &broken),
                  MF_STATUS_CORRUPT);
    mf_rpc_server_close(other);
}

#define WITH(test) cmocka_unit_test_setup_teardown(test, setup, teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        WITH(test_health), WITH(test_reflection), WITH(test_compressed),
        WITH(test_pings),  WITH(test_drain),      cmocka_unit_test(test_damaged_descriptors),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
