/* Settings: precedence, ranges, unknown keys, folders that clients may name. */
#include "harness.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "server/config.h"

/* A file with `text`; the settings that come of it. */
static enum mf_status read_text(const char *text, struct mf_config *out)
{
    const char *path = harness_path(harness_folder(), "memferryd.ini");
    harness_write(path, text, strlen(text));
    return mf_config_read_file(path, out);
}

static void test_defaults(void **state)
{
    (void)state;
    struct mf_config config;
    assert_ok(mf_config_read_file(NULL, &config));
    assert_int_equal(config.sessions_max, 8);
    assert_int_equal(config.lease_seconds, 600);
    assert_int_equal(config.socket_mode, 0660);
    assert_int_equal(config.device, MF_CONFIG_DEVICE_AUTO);
    assert_int_equal(config.root_count, 0);
    assert_string_equal(config.tcp, "");
    assert_int_equal(config.home[0], '/');
    assert_memory_equal(config.socket, "unix:/", 6);
}

static void test_file_and_environment(void **state)
{
    (void)state;
    struct mf_config config;
    const char *text = "[service]\nsocket = /tmp/x.sock\nsocket_mode = 0600\nroot = /usr\n"
                       "root = /etc\nlog_format = json\n[device]\nkind = host\nmemory = 8GiB\n"
                       "emulate_h2d = 16GB\n[host]\nmemory=1TiB ; much\n[limits]\nlease = 60\n";
    assert_ok(read_text(text, &config));
    assert_string_equal(config.socket, "unix:/tmp/x.sock");
    assert_int_equal(config.socket_mode, 0600);
    assert_int_equal(config.root_count, 2);
    assert_string_equal(config.roots[1], "/etc");
    assert_int_equal(config.log_json, 1);
    assert_int_equal(config.device_memory, 8ll << 30);
    assert_int_equal(config.emulate_h2d, 16000000000);
    assert_int_equal(config.emulate_d2h, 16000000000); /* half a link is none */
    assert_int_equal(config.host_memory, 1ll << 40);
    assert_int_equal(config.lease_seconds, 60);
    setenv("MEMFERRYD_LEASE", "90", 1);
    setenv("MEMFERRYD_EMULATE_D2H", "1GB", 1);
    setenv("MEMFERRYD_ROOT", "/usr/share:/etc", 1);
    enum mf_status status = read_text(text, &config);
    unsetenv("MEMFERRYD_LEASE");
    unsetenv("MEMFERRYD_EMULATE_D2H");
    unsetenv("MEMFERRYD_ROOT");
    assert_ok(status);
    assert_int_equal(config.lease_seconds, 90);
    assert_int_equal(config.emulate_d2h, 1000000000);
    assert_int_equal(config.root_count, 2);
    assert_string_equal(config.roots[0], "/usr/share");
}

static void test_refusals(void **state)
{
    (void)state;
    static const struct {
        const char *text, *fragment;
    } cases[] = {
        {"[device]\nmemry = 1\n", "device.memory"},
        {"[serivce]\nsocket = /x\n", "service.socket"},
        {"[limits]\nsessions = 0\n", "from 1 to 64"},
        {"[limits]\nsessions = 8 GiB\n", "8 GiB"},
        {"[limits]\nlease = 1e3\n", "lease"},
        {"[device]\nkind = tpu\n", "host"},
        {"[device]\nmemory = lots\n", "[device] memory"},
        {"[service]\nsocket_mode = 0999\n", "mode"},
        {"[service]\nroot = /no/such/folder\n", "/no/such/folder"},
        {"[service]\nroot = /etc/passwd\n", "folder"},
        {"[service]\ntcp = /tmp/x.sock\n", "host:port"},
        {"sessions = 3\n", "sessions"},
        {"[limits]\nnothing\n", "line 2"},
    };
    struct mf_config config;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        assert_fails(read_text(cases[i].text, &config), MF_STATUS_INVALID, cases[i].fragment);
    }
    assert_status(mf_config_read_file("/no/such/file.ini", &config), MF_STATUS_NOT_FOUND);
}

static void test_folders(void **state)
{
    (void)state;
    struct mf_config config;
    char out[MF_CONFIG_PATH_MAX];
    char expected[MF_CONFIG_PATH_MAX];
    char text[2048];
    char *real = realpath(harness_folder(), NULL);
    const char *open_folder = harness_path(real, "open");
    const char *closed_folder = harness_path(real, "closed");
    assert_int_equal(mkdir(open_folder, 0755), 0);
    assert_int_equal(mkdir(closed_folder, 0755), 0);
    assert_int_equal(mkdir(harness_path(real, "open-not"), 0755), 0);
    assert_int_equal(symlink(closed_folder, harness_path(open_folder, "link")), 0);
    (void)snprintf(text, sizeof(text), "[service]\nroot = %s\nhome = /nowhere\n", open_folder);
    assert_ok(read_text(text, &config));
    assert_ok(mf_config_allow(&config, open_folder, out));
    assert_string_equal(out, open_folder);
    /* What does not exist yet, for saving. */
    (void)snprintf(text, sizeof(text), "%s/./new//run-1", open_folder);
    (void)snprintf(expected, sizeof(expected), "%s/new//run-1", open_folder);
    assert_ok(mf_config_allow(&config, text, out));
    assert_string_equal(out, expected);
    const char *const refused[] = {"/",
                                   "/etc",
                                   closed_folder,
                                   harness_path(real, "open-not"),
                                   harness_path(open_folder, "link"),
                                   harness_path(open_folder, "link/new"),
                                   harness_path(open_folder, "../closed/new")};
    for (size_t i = 0; i < sizeof(refused) / sizeof(refused[0]); i++) {
        assert_status(mf_config_allow(&config, refused[i], out), MF_STATUS_DENIED);
        assert_string_equal(mf_status_error()->reason, "PATH_NOT_ALLOWED");
    }
    assert_status(mf_config_allow(&config, harness_path(open_folder, "new/../../closed"), out),
                  MF_STATUS_NOT_FOUND);
    assert_status(mf_config_allow(&config, "open", out), MF_STATUS_INVALID);
    assert_status(mf_config_allow(&config, "", out), MF_STATUS_INVALID);
    /* Without roots: every folder, but only home once TCP is on. */
    assert_ok(read_text("[service]\nhome = /var\n", &config));
    assert_ok(mf_config_allow(&config, "/etc", out));
    assert_ok(read_text("[service]\nhome = /var\ntcp = 127.0.0.1:0\n", &config));
    assert_status(mf_config_allow(&config, "/etc", out), MF_STATUS_DENIED);
    assert_ok(mf_config_allow(&config, "/var/runs", out));
    free(real);
}

/* What is printed reads as the same settings. */
static void test_print(void **state)
{
    (void)state;
    struct mf_config first;
    struct mf_config second;
    char *text = NULL;
    size_t size = 0;
    FILE *file = open_memstream(&text, &size);
    assert_ok(read_text("[service]\nroot = /usr\nsocket = /tmp/x.sock\n[device]\nmemory = 3GiB\n",
                        &first));
    mf_config_print(&first, file);
    (void)fclose(file);
    assert_non_null(strstr(text, "memory = 3221225472 ; file"));
    assert_ok(read_text(text, &second));
    assert_int_equal(second.device_memory, first.device_memory);
    assert_int_equal(second.root_count, 1);
    assert_string_equal(second.socket, first.socket);
    assert_string_equal(second.home, first.home);
    assert_int_equal(second.socket_mode, first.socket_mode);
    free(text);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_defaults), cmocka_unit_test(test_file_and_environment),
        cmocka_unit_test(test_refusals), cmocka_unit_test(test_folders),
        cmocka_unit_test(test_print),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
