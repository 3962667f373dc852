/* Addresses, and who may listen where: core/address.h and server/listener.h. */
#include "harness.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include "server/listener.h"

#define FILLER_MAX 128

static atomic_int accepted;
static int fds[64];

/* Keeps what it is given; the tests close it. */
static void keep(int fd, void *context)
{
    (void)context;
    fds[atomic_load(&accepted)] = fd;
    atomic_fetch_add(&accepted, 1);
}

static int setup(void **state)
{
    struct mf_listener *listener = NULL;
    atomic_store(&accepted, 0);
    if (mf_listener_open(4, keep, NULL, &listener) != MF_STATUS_OK) {
        return 1;
    }
    *state = listener;
    return 0;
}

static int teardown(void **state)
{
    mf_listener_close(*state);
    for (int i = 0; i < atomic_load(&accepted); i++) {
        close(fds[i]);
    }
    return 0;
}

static bool wait_until(struct mf_listener *listener, int accepted_count, int open_count)
{
    for (int i = 0; i < 600; i++) {
        if (atomic_load(&accepted) == accepted_count && mf_listener_count(listener) == open_count) {
            return true;
        }
        usleep(5000);
    }
    return false;
}

static int connect_to(const char *path)
{
    struct sockaddr_un name = {.sun_family = AF_UNIX};
    snprintf(name.sun_path, sizeof(name.sun_path), "%s", path);
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd >= 0 && connect(fd, (const struct sockaddr *)&name, sizeof(name)) != 0) {
        close(fd);
        return -1;
    }
    return fd;
}

static int bind_at(const char *path)
{
    struct sockaddr_un name = {.sun_family = AF_UNIX};
    snprintf(name.sun_path, sizeof(name.sun_path), "%s", path);
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_int_equal(bind(fd, (const struct sockaddr *)&name, sizeof(name)), 0);
    return fd;
}

static enum mf_status add(struct mf_listener *listener, const char *path)
{
    char bound[MF_ADDRESS_TEXT_MAX];
    return mf_listener_add(listener, path, NULL, bound);
}

static void test_address(void **state)
{
    (void)state;
    static const struct {
        const char *text, *printed; /* NULL = refused */
    } cases[] = {
        {"unix:/a/b", "unix:/a/b"},
        {"/a/b", "unix:/a/b"},
        {"unix:///a/b", "unix:/a/b"},
        {"localhost:80", "localhost:80"},
        {"127.0.0.1:0", "127.0.0.1:0"},
        {"[::1]:7070", "[::1]:7070"},
        {"unix:a", NULL},
        {"", NULL},
        {"localhost", NULL},
        {":80", NULL},
        {"a:", NULL},
        {"a:65536", NULL},
        {"a:-1", NULL},
        {"a:8x", NULL},
        {"::1:80", NULL},
        {"[::1]", NULL},
        {"[]:80", NULL},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct mf_address address;
        char text[MF_ADDRESS_TEXT_MAX];
        if (cases[i].printed == NULL) {
            assert_status(mf_address_parse(cases[i].text, &address), MF_STATUS_INVALID);
        } else {
            assert_ok(mf_address_parse(cases[i].text, &address));
            assert_string_equal(mf_address_print(&address, text), cases[i].printed);
        }
    }
}

static void test_default(void **state)
{
    (void)state;
    char text[MF_ADDRESS_TEXT_MAX];
    setenv("MEMFERRY_HOST", "/x/y", 1);
    assert_ok(mf_address_default(false, text));
    assert_string_equal(text, "unix:/x/y");
    setenv("MEMFERRY_HOST", "bad", 1);
    assert_fails(mf_address_default(true, text), MF_STATUS_INVALID, "MEMFERRY_HOST");
    unsetenv("MEMFERRY_HOST");
    setenv("XDG_RUNTIME_DIR", "/run/user/7", 1);
    assert_ok(mf_address_default(false, text));
    assert_string_equal(text, "unix:/run/user/7/memferry/memferryd.sock");
    unsetenv("XDG_RUNTIME_DIR");
    assert_ok(mf_address_default(false, text));
    assert_string_equal(strrchr(text, '/'), "/memferryd.sock");
}

static void test_path_length(void **state)
{
    char path[128] = "";
    const char *folder = harness_folder();
    int used = snprintf(path, sizeof(path), "%s/", folder);
    memset(path + used, 'x', sizeof(path) - (size_t)used);
    path[108] = '\0';
    assert_fails(add(*state, path), MF_STATUS_INVALID, "108 bytes");
    assert_int_equal(mf_status_error()->numbers[1].value, 107);
    path[107] = '\0';
    assert_ok(add(*state, path));
    int fd = connect_to(path);
    assert_true(fd >= 0);
    close(fd);
}

static void test_mode_and_removal(void **state)
{
    const char *path = harness_path(harness_folder(), "made/here.sock");
    const struct mf_listener_options options = {.mode = 0620};
    char bound[MF_ADDRESS_TEXT_MAX];
    struct stat info;
    mode_t before = umask(0777);
    enum mf_status status = mf_listener_add(*state, path, &options, bound);
    umask(before);
    assert_ok(status);
    assert_int_equal(stat(path, &info), 0);
    assert_int_equal(info.st_mode & 0777, 0620);
    const char *plain = harness_path(harness_folder(), "plain.sock");
    assert_ok(add(*state, plain));
    assert_int_equal(stat(plain, &info), 0);
    assert_int_equal(info.st_mode & 0777, 0660);
    mf_listener_stop(*state);
    assert_int_equal(stat(path, &info), -1);
    assert_int_equal(connect_to(path), -1);
}

static void test_live_socket(void **state)
{
    const char *path = harness_path(harness_folder(), "s");
    struct mf_listener *second = NULL;
    assert_ok(add(*state, path));
    assert_ok(mf_listener_open(0, keep, NULL, &second));
    char pid[32];
    snprintf(pid, sizeof(pid), "process %d", (int)getpid());
    assert_fails(add(second, path), MF_STATUS_EXISTS, pid);
    mf_listener_close(second);
    int fd = connect_to(path);
    assert_true(fd >= 0);
    assert_true(wait_until(*state, 1, 1));
    close(fd);
}

static void test_foreign_socket(void **state)
{
    const char *path = harness_path(harness_folder(), "s");
    int fd = bind_at(path);
    assert_int_equal(listen(fd, 1), 0);
    assert_fails(add(*state, path), MF_STATUS_EXISTS, "another program");
    close(fd); /* Now it is stale. */
    assert_ok(add(*state, path));
    fd = connect_to(path);
    assert_true(fd >= 0);
    close(fd);
}

static void test_replaced_socket(void **state)
{
    const char *path = harness_path(harness_folder(), "s");
    assert_ok(add(*state, path));
    assert_int_equal(unlink(path), 0);
    harness_write(path, "x", 1);
    mf_listener_stop(*state); /* Not ours any more: stays. */
    assert_int_equal(access(path, F_OK), 0);
}

static void test_things_in_the_way(void **state)
{
    const char *folder = harness_folder();
    const char *file = harness_path(folder, "file");
    const char *directory = harness_path(folder, "directory");
    const char *link = harness_path(folder, "link");
    struct stat info;
    harness_write(file, "precious", 8);
    assert_int_equal(mkdir(directory, 0700), 0);
    assert_int_equal(symlink("/nowhere/at/all", link), 0);
    assert_fails(add(*state, file), MF_STATUS_EXISTS, "a file is there");
    assert_fails(add(*state, directory), MF_STATUS_EXISTS, "a folder is there");
    assert_fails(add(*state, link), MF_STATUS_EXISTS, "a symbolic link is there");
    assert_string_equal(harness_read(file, NULL), "precious");
    assert_int_equal(lstat(directory, &info), 0);
    assert_int_equal(lstat(link, &info), 0);
    assert_status(add(*state, harness_path(folder, "no/such/folder/s")), MF_STATUS_IO);
}

static void test_tcp(void **state)
{
    char bound[MF_ADDRESS_TEXT_MAX];
    char again[MF_ADDRESS_TEXT_MAX];
    assert_ok(mf_listener_add(*state, "127.0.0.1:0", NULL, bound));
    assert_string_not_equal(bound, "127.0.0.1:0");
    struct mf_listener *second = NULL;
    assert_ok(mf_listener_open(0, keep, NULL, &second));
    assert_fails(mf_listener_add(second, bound, NULL, again), MF_STATUS_EXISTS, "in use");
    mf_listener_close(second);
    assert_fails(mf_listener_add(*state, "0.0.0.0:0", NULL, again), MF_STATUS_DENIED,
                 "other machines");
    assert_status(mf_listener_add(*state, "[::]:0", NULL, again), MF_STATUS_DENIED);
    assert_status(mf_listener_add(*state, "192.0.2.1:0", NULL, again), MF_STATUS_DENIED);
    const struct mf_listener_options remote = {.allow_remote = true};
    assert_ok(mf_listener_add(*state, "0.0.0.0:0", &remote, again));
}

static void test_peer_and_end(void **state)
{
    const char *path = harness_path(harness_folder(), "s");
    assert_ok(add(*state, path));
    int fd = connect_to(path);
    assert_true(wait_until(*state, 1, 1));
    struct mf_peer peer;
    mf_listener_peer(*state, fds[0], &peer);
    assert_true(peer.known);
    assert_int_equal(peer.uid, geteuid());
    assert_int_equal(peer.pid, getpid());
    mf_listener_peer(*state, fds[0] + 1, &peer);
    assert_false(peer.known);
    assert_int_equal(peer.uid, (uid_t)-1);
    close(fd);
    assert_true(wait_until(*state, 1, 0)); /* The end of a connection is seen. */
    mf_listener_peer(*state, fds[0], &peer);
    assert_false(peer.known);
    /* The next connection has another number, whatever was closed meanwhile. */
    close(fds[0]);
    int former = fds[0];
    fds[0] = -1;
    fd = connect_to(path);
    assert_true(wait_until(*state, 2, 1));
    assert_int_not_equal(fds[1], former);
    close(fd);
}

static void test_connections_max(void **state)
{
    const char *path = harness_path(harness_folder(), "s");
    int clients[5];
    char byte = 0;
    assert_ok(add(*state, path));
    for (int i = 0; i < 5; i++) {
        clients[i] = connect_to(path);
        assert_true(clients[i] >= 0);
    }
    assert_int_equal(read(clients[4], &byte, 1), 0); /* Ended at once. */
    assert_true(wait_until(*state, 4, 4));
    close(clients[0]);
    assert_true(wait_until(*state, 4, 3));
    close(clients[4]);
    clients[4] = connect_to(path);
    assert_true(wait_until(*state, 5, 4));
    for (int i = 1; i < 5; i++) {
        close(clients[i]);
    }
}

static void test_out_of_descriptors(void **state)
{
    const char *path = harness_path(harness_folder(), "s");
    struct rlimit before;
    struct rlimit low = {.rlim_cur = FILLER_MAX};
    int filler[FILLER_MAX];
    int count = 0;
    char byte = 0;
    assert_ok(add(*state, path));
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &before), 0);
    low.rlim_max = before.rlim_max;
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &low), 0);
    struct sockaddr_un name = {.sun_family = AF_UNIX};
    snprintf(name.sun_path, sizeof(name.sun_path), "%s", path);
    int client = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    while (count < FILLER_MAX && (filler[count] = open("/dev/null", O_RDONLY)) >= 0) {
        count++;
    }
    int connected = connect(client, (const struct sockaddr *)&name, sizeof(name));
    ssize_t bytes = read(client, &byte, 1);
    while (count > 0) {
        close(filler[--count]);
    }
    close(client);
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &before), 0);
    assert_int_equal(connected, 0);
    assert_int_equal(bytes, 0); /* Refused, not left hanging, */
    client = connect_to(path);
    assert_true(wait_until(*state, 1, 1)); /* and the listener lives. */
    close(client);
}

#define WITH(test) cmocka_unit_test_setup_teardown(test, setup, teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_address),
        cmocka_unit_test(test_default),
        WITH(test_path_length),
        WITH(test_mode_and_removal),
        WITH(test_live_socket),
        WITH(test_foreign_socket),
        WITH(test_replaced_socket),
        WITH(test_things_in_the_way),
        WITH(test_tcp),
        WITH(test_peer_and_end),
        WITH(test_connections_max),
        WITH(test_out_of_descriptors),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
