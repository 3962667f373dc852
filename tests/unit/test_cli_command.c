/* The command line: MODEL, pins, errors, exit codes, the table of verbs. */
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "client/command.h"
#include "client/command_model.h"
#include "core/format.h"
#include "harness.h"

static void test_pins(void **state)
{
    (void)state;
    struct mf_command_model model;
    mf_command_model_init(&model);
    assert_ok(mf_command_model_pin(&model, "*.mlp.*=forward:stream,backward:late,gradient:copy,"
                                           "optimizer:cpu"));
    assert_ok(mf_command_model_pin(&model, "lm_head=forward:resident"));
    assert_int_equal(model.constraints.n_pins, 2);
    const Memferry__V1__Pin *pin = model.constraints.pins[0];
    assert_string_equal(pin->pattern, "*.mlp.*");
    assert_int_equal(pin->forward, MEMFERRY__V1__WEIGHT_FORWARD__WEIGHT_FORWARD_STREAM);
    assert_int_equal(pin->backward, MEMFERRY__V1__WEIGHT_BACKWARD__WEIGHT_BACKWARD_LATE);
    assert_int_equal(pin->gradient, MEMFERRY__V1__GRADIENT__GRADIENT_COPY);
    assert_int_equal(pin->optimizer, MEMFERRY__V1__OPTIMIZER__OPTIMIZER_CPU);
    assert_int_equal(model.constraints.pins[1]->backward, 0);

    assert_fails(mf_command_model_pin(&model, "x"), MF_STATUS_INVALID, "PATTERN=");
    assert_fails(mf_command_model_pin(&model, "=forward:stream"), MF_STATUS_INVALID, "PATTERN=");
    assert_fails(mf_command_model_pin(&model, "x=forward:later"), MF_STATUS_INVALID,
                 "\"later\" is no choice for forward");
    assert_fails(mf_command_model_pin(&model, "x=forward:unspecified"), MF_STATUS_INVALID,
                 "no choice");
    assert_fails(mf_command_model_pin(&model, "x=weights:stream"), MF_STATUS_INVALID,
                 "does not begin with");
    mf_command_model_reset(&model);
}

static void test_model_forms(void **state)
{
    (void)state;
    const char *folder = harness_folder();
    const char *config = harness_path(folder, "config.json");
    static const char text[] = "{\"model_type\": \"gpt2\"}";
    harness_write(config, text, strlen(text));
    char absolute[PATH_MAX];
    assert_non_null(realpath(folder, absolute));

    struct mf_command_model model;
    mf_command_model_init(&model);
    assert_ok(mf_command_model_resolve(&model, folder));
    assert_int_equal(model.model.source_case, MEMFERRY__V1__MODEL__SOURCE_FOLDER);
    assert_string_equal(model.model.folder, absolute);
    assert_ok(mf_command_model_resolve(&model, config));
    assert_int_equal(model.model.source_case, MEMFERRY__V1__MODEL__SOURCE_CONFIG_JSON);
    assert_string_equal(model.model.config_json, text);
    assert_ok(mf_command_model_resolve(&model, "llama-3-8b"));
    assert_int_equal(model.model.source_case, MEMFERRY__V1__MODEL__SOURCE_PRESET);
    /* A folder that only the daemon's machine may have. */
    assert_ok(mf_command_model_resolve(&model, "/no/such/folder"));
    assert_int_equal(model.model.source_case, MEMFERRY__V1__MODEL__SOURCE_FOLDER);
    assert_fails(mf_command_model_resolve(&model, "no/such"), MF_STATUS_NOT_FOUND, "no/such");
    mf_command_model_reset(&model);
}

static struct mf_error memory_error(void)
{
    mf_status_set_reason(MF_STATUS_NO_DEVICE_MEMORY, "DEVICE_MEMORY_TOO_SMALL",
                         "the budget is too small");
    mf_status_number("needed_bytes", 3ll << 30);
    mf_status_number("available_bytes", 1ll << 30);
    mf_status_number("smallest_bytes", (1ll << 30) + 1);
    return *mf_status_error();
}

static void test_error_names_the_way_out(void **state)
{
    (void)state;
    struct mf_error error = memory_error();
    char *text = NULL;
    size_t length = 0;
    FILE *out = open_memstream(&text, &length);
    mf_command_error_print(&error, out);
    fclose(out);
    assert_string_equal(text, "memferry: the budget is too small\n"
                              "  needed 3.00 GiB, available 1.00 GiB, smallest 1.00 GiB\n"
                              "  the smallest device budget that works is 1.00 GiB: "
                              "--device-memory 1025MiB\n");
    free(text);
}

static void test_exit_codes(void **state)
{
    (void)state;
    struct mf_error error = memory_error();
    assert_int_equal(mf_command_error_exit(&error), MF_COMMAND_EXIT_NO_FIT);
    const struct {
        enum mf_status status;
        enum mf_command_exit exit;
    } cases[] = {{MF_STATUS_OK, MF_COMMAND_EXIT_OK},
                 {MF_STATUS_INVALID, MF_COMMAND_EXIT_FAILED},
                 {MF_STATUS_UNAVAILABLE, MF_COMMAND_EXIT_NO_DAEMON},
                 {MF_STATUS_NOT_FOUND, MF_COMMAND_EXIT_NOT_FOUND},
                 {MF_STATUS_BUSY, MF_COMMAND_EXIT_BUSY},
                 {MF_STATUS_INTERNAL, MF_COMMAND_EXIT_FAILED}};
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct mf_error other = {.status = cases[i].status};
        assert_int_equal(mf_command_error_exit(&other), cases[i].exit);
    }
}

/* What is suggested must be accepted, and must not be less than what is needed. */
static void test_suggested_sizes(void **state)
{
    (void)state;
    for (int i = 0; i < 2000; i++) {
        int64_t bytes = 1 + (int64_t)harness_random_below(1ull << (10 + i % 35));
        int64_t parsed = 0;
        char text[MF_FORMAT_MAX];
        assert_ok(mf_format_parse_bytes(mf_command_error_size(bytes, text), &parsed));
        assert_true(parsed >= bytes);
        assert_true((double)parsed <= 1.07 * (double)bytes);
    }
}

static void test_verbs_are_complete(void **state)
{
    (void)state;
    size_t count = 0;
    for (const struct mf_command *verb = mf_command_table(); verb->name != NULL; verb++) {
        assert_non_null(verb->run);
        assert_true(strlen(verb->summary) > 10);
        for (const struct mf_command *other = mf_command_table(); other != verb; other++) {
            assert_string_not_equal(verb->name, other->name);
        }
        count++;
    }
    assert_true(count >= 17);
}

static void test_usage(void **state)
{
    (void)state;
    char program[] = "memferry";
    char verb[] = "pln";
    char *unknown[] = {program, verb, NULL};
    assert_int_equal(mf_command_main(2, unknown), MF_COMMAND_EXIT_USAGE);

    char host[] = "--host=unix:/nonexistent/memferryd.sock";
    char status[] = "status";
    char *nobody[] = {program, host, status, NULL};
    assert_int_equal(mf_command_main(3, nobody), MF_COMMAND_EXIT_NO_DAEMON);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_pins),
        cmocka_unit_test(test_model_forms),
        cmocka_unit_test(test_error_names_the_way_out),
        cmocka_unit_test(test_exit_codes),
        cmocka_unit_test(test_suggested_sizes),
        cmocka_unit_test(test_verbs_are_complete),
        cmocka_unit_test(test_usage),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
