/* metrics.jsonl: whole lines, nothing that is not JSON, cut back to where a run resumes. */
#include <jansson.h>
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>

#include "harness.h"
#include "server/metrics.h"

static void append(struct mf_metrics *metrics, int64_t step)
{
    const struct mf_metrics_step line = {.step = step,
                                         .epoch = 0.5,
                                         .loss = step == 2 ? NAN : 1.25,
                                         .grad_norm = INFINITY,
                                         .learning_rate = 3e-4,
                                         .h2d_bytes = 1ll << 40,
                                         .skipped = step == 2,
                                         .eval_loss = step == 3 ? 2.5 : NAN};
    assert_ok(mf_metrics_append(metrics, &line));
}

static void write_steps(const char *folder, int64_t resume, int64_t first, int64_t last)
{
    struct mf_metrics *metrics = NULL;
    assert_ok(mf_metrics_open(folder, resume, &metrics));
    for (int64_t step = first; step <= last; step++) {
        append(metrics, step);
    }
    mf_metrics_close(metrics);
}

/* The steps in the file, as text: "1 2 3". Every line must be an object. */
static const char *steps(const char *folder)
{
    static char out[256];
    char *text = harness_read(harness_path(folder, "metrics.jsonl"), NULL);
    size_t used = 0;
    out[0] = '\0';
    for (char *line = text; *line != '\0';) {
        char *end = strchr(line, '\n');
        assert_non_null(end);
        json_t *object = json_loadb(line, (size_t)(end - line), 0, NULL);
        assert_true(json_is_object(object));
        used += (size_t)snprintf(out + used, sizeof(out) - used, "%s%lld", used > 0 ? " " : "",
                                 json_integer_value(json_object_get(object, "step")));
        json_decref(object);
        line = end + 1;
    }
    return out;
}

static void lines(void **state)
{
    (void)state;
    static const char *const keys[] = {"step",
                                       "epoch",
                                       "loss",
                                       "grad_norm",
                                       "learning_rate",
                                       "step_time_ms",
                                       "stall_ms",
                                       "h2d_bytes",
                                       "d2h_bytes",
                                       "dha_bytes",
                                       "hbm_peak_bytes",
                                       "pinned_bytes",
                                       "predicted_step_ms",
                                       "tokens_per_second",
                                       "skipped"};
    const char *folder = harness_folder();
    write_steps(folder, 0, 1, 3);
    assert_string_equal(steps(folder), "1 2 3");
    char *text = harness_read(harness_path(folder, "metrics.jsonl"), NULL);
    for (int i = 1; i <= 3; i++) {
        char *end = strchr(text, '\n');
        json_t *object = json_loadb(text, (size_t)(end - text), 0, NULL);
        for (size_t k = 0; k < sizeof(keys) / sizeof(keys[0]); k++) {
            assert_non_null(json_object_get(object, keys[k]));
        }
        assert_true(json_is_null(json_object_get(object, "grad_norm")));
        assert_true(json_is_null(json_object_get(object, "loss")) == (i == 2));
        assert_true(json_is_true(json_object_get(object, "skipped")) == (i == 2));
        assert_true((json_object_get(object, "eval_loss") != NULL) == (i == 3));
        assert_true(json_integer_value(json_object_get(object, "h2d_bytes")) == 1ll << 40);
        json_decref(object);
        text = end + 1;
    }
}

static void resuming(void **state)
{
    (void)state;
    const char *folder = harness_folder();
    write_steps(folder, 0, 1, 9);
    write_steps(folder, 5, 6, 7);
    assert_string_equal(steps(folder), "1 2 3 4 5 6 7");
    write_steps(folder, 100, 8, 8);
    assert_string_equal(steps(folder), "1 2 3 4 5 6 7 8");
    write_steps(folder, 0, 1, 2); /* a new run in the same folder */
    assert_string_equal(steps(folder), "1 2");
}

/* What a crash or another hand left: only the whole lines before it are kept. */
static void damaged(void **state)
{
    (void)state;
    static const char *const tails[] = {"{\"step\": 3, \"lo",
                                        "{\"step\": 3}",
                                        "garbage\n",
                                        "{\"loss\": 1}\n",
                                        "[1]\n",
                                        "\n\n",
                                        "{\"step\": \"3\"}\n{\"step\": 4}\n"};
    for (size_t i = 0; i < sizeof(tails) / sizeof(tails[0]); i++) {
        const char *folder = harness_folder();
        char text[256];
        snprintf(text, sizeof(text), "{\"step\": 1}\n{\"step\": 2}\n%s", tails[i]);
        harness_write(harness_path(folder, "metrics.jsonl"), text, strlen(text));
        write_steps(folder, 9, 10, 10);
        assert_string_equal(steps(folder), "1 2 10");
    }
}

static void no_folder(void **state)
{
    (void)state;
    struct mf_metrics *metrics = NULL;
    assert_status(mf_metrics_open("/nonexistent/folder", 0, &metrics), MF_STATUS_NOT_FOUND);
    mf_metrics_close(NULL);
}

/* A line that does not fit is taken back whole; once there is room, the next one follows. */
static void full_disk(void **state)
{
    (void)state;
    const char *folder = harness_folder();
    struct mf_metrics *metrics = NULL;
    const struct mf_metrics_step line = {.step = 3};
    struct rlimit before;
    size_t count = 0;
    write_steps(folder, 0, 1, 2);
    harness_read(harness_path(folder, "metrics.jsonl"), &count);
    assert_ok(mf_metrics_open(folder, 2, &metrics));
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &before), 0);
    struct rlimit small = {.rlim_cur = count + 40, .rlim_max = before.rlim_max};
    signal(SIGXFSZ, SIG_IGN);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &small), 0);
    enum mf_status status = mf_metrics_append(metrics, &line);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &before), 0);
    assert_status(status, MF_STATUS_IO);
    assert_string_equal(steps(folder), "1 2");
    append(metrics, 4);
    assert_string_equal(steps(folder), "1 2 4");
    mf_metrics_close(metrics);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(lines),     cmocka_unit_test(resuming),  cmocka_unit_test(damaged),
        cmocka_unit_test(no_folder), cmocka_unit_test(full_disk),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
