/* libmemferry against a daemon on the host device: plans, measuring, a session driven by several
 * threads, sequence numbers after failures, a job. */
#define HARNESS_THREADS
#define HARNESS_TIMEOUT_S 240

#include <errno.h>
#include <memferry.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "harness.h"

#define SEQ_LEN 16
#define ROWS (2 * SEQ_LEN)
#define STARTS_MAX 300 /* tenths of a second until the daemon must answer */

static struct memferry_connection *connection;
static pid_t daemon_pid;
static char program[4096];
static const char *home;

/* Where a call that must succeed says why it did not; the main thread's. */
static struct memferry_error why;
#define assert_good(call)                                                                          \
    do {                                                                                           \
        if ((call) != MEMFERRY_OK) {                                                               \
            fail_msg("%s: %s", #call, why.text);                                                   \
        }                                                                                          \
    } while (0)

static struct memferry_model tiny(void)
{
    struct memferry_model model = {0};
    model.preset = "tiny-llama";
    return model;
}

static struct memferry_session *new_session(void)
{
    struct memferry_session_options options;
    memset(&options, 0, sizeof(options));
    options.model = tiny();
    options.workload.micro_batch = 2;
    options.workload.seq_len = SEQ_LEN;
    options.workload.accumulation = 4;
    options.effort = MEMFERRY_EFFORT_ESTIMATE;
    options.random_init = true;
    options.seed = 7;
    struct memferry_session *session = NULL;
    assert_good(memferry_session_create(connection, &options, NULL, NULL, &session, &why));
    return session;
}

static void fill(int32_t *tokens, int32_t *labels, int seed)
{
    for (int i = 0; i < ROWS; i++) {
        tokens[i] = (i * 7 + seed) % 50;
        labels[i] = ((i + 1) * 7 + seed) % 50;
    }
}

static void test_errors(void **state)
{
    (void)state;
    struct memferry_error error;
    struct memferry_connection *nobody = NULL;
    assert_int_equal(memferry_open("unix:/nonexistent/s.sock", &nobody, &error),
                     MEMFERRY_UNAVAILABLE);
    assert_null(nobody);
    assert_non_null(strstr(error.text, "/nonexistent/s.sock"));
    assert_string_equal(memferry_status_name(MEMFERRY_NO_DEVICE_MEMORY), "NO_DEVICE_MEMORY");
    assert_string_equal(memferry_status_name((enum memferry_status)99), "UNKNOWN");

    struct memferry_plan *plan = NULL;
    struct memferry_model model = tiny();
    struct memferry_constraints small = {.device_memory_bytes = 1};
    assert_int_equal(memferry_plan_get(connection, &model, NULL, &small, MEMFERRY_EFFORT_ESTIMATE,
                                       &plan, &error),
                     MEMFERRY_NO_DEVICE_MEMORY);
    assert_string_equal(error.reason, "DEVICE_MEMORY_TOO_SMALL");
    assert_true(error.number_count >= 3);
    assert_null(plan);
    assert_int_equal(memferry_plan_show(connection, "123456789abc", &plan, NULL),
                     MEMFERRY_NOT_FOUND);
}

static void test_query(void **state)
{
    (void)state;
    struct memferry_error error;
    char *text = NULL;
    assert_int_equal(memferry_query(connection, "HardwareService/GetStatus", NULL, &text, &error),
                     MEMFERRY_OK);
    assert_non_null(strstr(text, "\"session_count\":"));
    memferry_text_free(text);
    assert_int_equal(memferry_query(connection, "PlanService/GetNothing", NULL, &text, &error),
                     MEMFERRY_NOT_FOUND);
    assert_null(text);
    assert_int_equal(memferry_query(connection, "ProfileService/Measure", NULL, &text, &error),
                     MEMFERRY_UNSUPPORTED);
    assert_int_equal(
        memferry_query(connection, "PlanService/ShowPlan", "{\"idd\":\"x\"}", &text, &error),
        MEMFERRY_INVALID);
    assert_non_null(strstr(error.text, "\"id\""));
}

static void test_plan(void **state)
{
    (void)state;
    struct memferry_model model = tiny();
    struct memferry_workload workload = {.micro_batch = 2, .seq_len = SEQ_LEN};
    struct memferry_pin pin = {.pattern = "*.mlp.*", .forward = MEMFERRY_FORWARD_STREAM};
    struct memferry_constraints constraints = {.pins = &pin, .pin_count = 1};
    struct memferry_plan *plan = NULL;
    assert_good(memferry_plan_get(connection, &model, &workload, &constraints,
                                  MEMFERRY_EFFORT_ESTIMATE, &plan, &why));
    assert_int_equal(strlen(plan->id), 64);
    assert_int_equal(plan->workload.seq_len, SEQ_LEN);
    assert_true(plan->unit_count > 5);
    assert_true(plan->block_count > 2);
    assert_true(plan->step_ns >= plan->bound_ns);
    for (size_t i = 0; i < plan->unit_count; i++) {
        if (strstr(plan->units[i].name, ".mlp.") != NULL) {
            assert_int_equal(plan->units[i].forward, MEMFERRY_FORWARD_STREAM);
            assert_true(plan->units[i].pinned);
        }
    }
    struct memferry_plan *again = NULL;
    assert_good(memferry_plan_show(connection, plan->id, &again, &why));
    assert_string_equal(again->id, plan->id);
    memferry_plan_free(again);
    memferry_plan_free(plan);
    memferry_plan_free(NULL);
}

static bool count_progress(void *context, const char *what, double done)
{
    assert_true(done >= 0 && done <= 1);
    assert_true(what[0] != '\0');
    ++*(int *)context;
    return true;
}

static bool refuse_progress(void *context, const char *what, double done)
{
    (void)context;
    (void)what;
    (void)done;
    return false;
}

static void test_measure(void **state)
{
    (void)state;
    struct memferry_model model = tiny();
    struct memferry_workload workload = {.micro_batch = 2, .seq_len = SEQ_LEN};
    struct memferry_measure_options options = {.seconds_max = 30};
    char *profile = NULL;
    int count = 0;
    assert_good(memferry_measure(connection, &model, &workload, &options, count_progress, &count,
                                 &profile, &why));
    assert_true(count > 0);
    assert_non_null(strstr(profile, "\"measurements\":[{"));
    memferry_text_free(profile);

    struct memferry_error error;
    options.again = true;
    assert_int_equal(memferry_measure(connection, &model, &workload, &options, refuse_progress,
                                      NULL, &profile, &error),
                     MEMFERRY_CANCELLED);
    assert_null(profile);
}

static void test_session(void **state)
{
    (void)state;
    int32_t tokens[ROWS];
    int32_t labels[ROWS];
    float logprobs[ROWS];
    struct memferry_batch batch = {tokens, labels, ROWS};
    struct memferry_loss first;
    struct memferry_loss loss;
    struct memferry_step step;
    struct memferry_adam adam = {.learning_rate = 1e-2, .clip_norm = 1};
    struct memferry_session *session = new_session();
    fill(tokens, labels, 0);
    labels[3] = -100;

    assert_good(memferry_forward(session, 0, &batch, &first, logprobs, &why));
    assert_int_equal(first.token_count, ROWS - 1);
    assert_true(logprobs[3] == 0 && logprobs[4] < 0);
    for (int i = 1; i <= 5; i++) {
        assert_good(memferry_forward_backward(session, 0, &batch, &loss, &why));
        assert_good(memferry_optim_step(session, 0, &adam, &step, &why));
        assert_int_equal(step.step, i);
        assert_true(step.grad_norm > 0 && !step.skipped);
    }
    assert_true(loss.loss < first.loss);

    /* A wrong batch uses its number up; the next call goes on behind it. */
    struct memferry_batch wrong = {tokens, labels, ROWS - 1};
    struct memferry_error error;
    assert_int_equal(memferry_forward_backward(session, 0, &wrong, &loss, &error),
                     MEMFERRY_INVALID);
    assert_good(memferry_forward_backward(session, 0, &batch, &loss, &why));
    assert_good(memferry_optim_step(session, 0, &adam, &step, &why));

    int32_t written[8];
    size_t count = 0;
    struct memferry_sample_options greedy = {.max_tokens = 8};
    assert_good(memferry_sample(session, 0, tokens, 4, &greedy, written, &count, &why));
    assert_int_equal(count, 8);

    const char *path = harness_path(home, "saved");
    int64_t steps = 0;
    assert_good(memferry_save(session, 0, path, false, &why));
    assert_int_equal(memferry_save(session, 0, path, false, &error), MEMFERRY_EXISTS);
    assert_good(memferry_load(session, 0, path, &steps, &why));
    assert_int_equal(steps, 6);

    struct memferry_session_info info;
    assert_good(memferry_session_get(session, &info, &why));
    assert_int_equal(info.step, 6);
    struct memferry_session *other = NULL;
    assert_good(memferry_session_attach(connection, memferry_session_id(session), &other, &why));
    assert_good(memferry_forward(other, 0, &batch, &loss, NULL, &why));
    memferry_session_free(other);

    assert_good(memferry_session_close(session, &why));
    assert_int_not_equal(memferry_forward(session, 0, &batch, &loss, NULL, &error), MEMFERRY_OK);
    memferry_session_free(session);
    memferry_session_free(NULL);
}

/* The caller's own numbers: a call sent again is not carried out again. */
static void test_own_numbers(void **state)
{
    (void)state;
    int32_t tokens[ROWS];
    int32_t labels[ROWS];
    struct memferry_batch batch = {tokens, labels, ROWS};
    struct memferry_loss loss;
    struct memferry_step a;
    struct memferry_step b;
    struct memferry_adam adam = {.learning_rate = 1e-3};
    struct memferry_session *session = new_session();
    fill(tokens, labels, 1);
    assert_good(memferry_forward_backward(session, 1, &batch, &loss, &why));
    assert_good(memferry_optim_step(session, 2, &adam, &a, &why));
    assert_good(memferry_optim_step(session, 2, &adam, &b, &why));
    assert_int_equal(a.step, 1);
    assert_int_equal(b.step, 1);
    assert_good(memferry_session_close(session, &why));
    memferry_session_free(session);
}

struct worker {
    struct memferry_session *session;
    int seed;
    int failures;
};

static void *work(void *argument)
{
    struct worker *worker = argument;
    int32_t tokens[ROWS];
    int32_t labels[ROWS];
    struct memferry_batch batch = {tokens, labels, ROWS};
    fill(tokens, labels, worker->seed);
    for (int i = 0; i < 5; i++) {
        struct memferry_loss loss;
        struct memferry_error error;
        /* Every third batch of one worker is wrong. */
        batch.count = worker->seed == 0 && i % 3 == 2 ? 1 : ROWS;
        bool good =
            memferry_forward(worker->session, 0, &batch, &loss, NULL, &error) == MEMFERRY_OK;
        worker->failures += good != (batch.count == ROWS);
    }
    return NULL;
}

static void test_threads(void **state)
{
    (void)state;
    enum { WORKERS = 20 }; /* more than a session has room for */
    struct worker workers[WORKERS];
    pthread_t threads[WORKERS];
    struct memferry_session *session = new_session();
    for (int i = 0; i < WORKERS; i++) {
        workers[i] = (struct worker){session, i, 0};
        assert_int_equal(pthread_create(&threads[i], NULL, work, &workers[i]), 0);
    }
    for (int i = 0; i < WORKERS; i++) {
        pthread_join(threads[i], NULL);
        assert_int_equal(workers[i].failures, 0);
    }
    assert_good(memferry_session_close(session, &why));
    memferry_session_free(session);
}

struct heard {
    int steps;
    int finished;
    int stop_at;
    char id[64];
};

static bool listen_to(void *context, const struct memferry_event *event)
{
    struct heard *heard = context;
    assert_non_null(event->text);
    if (event->kind == MEMFERRY_EVENT_SESSION) {
        snprintf(heard->id, sizeof(heard->id), "%s", event->session->id);
    }
    if (event->kind == MEMFERRY_EVENT_STEP) {
        assert_true(event->step->loss > 0);
        heard->steps++;
    }
    heard->finished += event->kind == MEMFERRY_EVENT_FINISHED;
    return heard->stop_at == 0 || heard->steps < heard->stop_at;
}

static void write_config(char *out, size_t size, const char *name, int steps)
{
    const char *text = harness_path(home, "text.txt");
    char line[2048];
    memset(line, 'a', sizeof(line));
    for (size_t i = 0; i < sizeof(line); i++) {
        line[i] = (char)('a' + i * i % 23);
    }
    harness_write(text, line, sizeof(line));
    snprintf(out, size,
             "{\"train_batch_size\": 2, \"train_micro_batch_size_per_gpu\": 2, "
             "\"optimizer\": {\"type\": \"AdamW\", \"params\": {\"lr\": 1e-3}}, "
             "\"memferry\": {\"model\": \"%s\", \"init\": \"random\", "
             "\"data\": {\"text\": \"text.txt\"}, \"output\": \"%s\", "
             "\"seq_len\": 16, \"steps\": %d, \"seed\": 1}}",
             harness_source("scripts/quickstart-model"), name, steps);
}

static void test_run(void **state)
{
    (void)state;
    char config[2048];
    struct heard heard = {0};
    write_config(config, sizeof(config), "run", 4);
    assert_good(memferry_run(connection, config, home, NULL, listen_to, &heard, &why));
    assert_int_equal(heard.steps, 4);
    assert_int_equal(heard.finished, 1);
}

static void test_run_is_left_and_stopped(void **state)
{
    (void)state;
    char config[2048];
    struct heard heard = {.stop_at = 2};
    write_config(config, sizeof(config), "run-long", 100000);
    assert_good(memferry_run(connection, config, home, NULL, listen_to, &heard, &why));
    assert_int_equal(heard.finished, 0);

    struct memferry_session_info *list = NULL;
    size_t count = 0;
    assert_good(memferry_session_list(connection, false, &list, &count, &why));
    assert_int_equal(count, 1);
    assert_string_equal(list[0].id, heard.id);
    assert_string_equal(list[0].state, "running");
    memferry_session_list_free(list);

    assert_good(memferry_run_stop(connection, heard.id, true, &why));
    struct heard rest = {0};
    struct memferry_error error;
    enum memferry_status status = memferry_watch(connection, heard.id, listen_to, &rest, &error);
    /* It may have ended before the watch began. */
    assert_true(status == MEMFERRY_CANCELLED || status == MEMFERRY_NOT_FOUND);
}

static int start(void **state)
{
    (void)state;
    static char socket_flag[4096];
    static char home_flag[4096];
    static char root_flag[4096];
    static char address[4096];
    snprintf(socket_flag, sizeof(socket_flag), "--socket=%s/s.sock", home);
    snprintf(home_flag, sizeof(home_flag), "--home=%s", home);
    snprintf(root_flag, sizeof(root_flag), "--root=%s", harness_source("scripts"));
    snprintf(address, sizeof(address), "unix:%s/s.sock", home);
    daemon_pid = fork();
    if (daemon_pid == 0) {
        execl(program, "memferryd", "--device=host", socket_flag, home_flag, root_flag,
              "--log-level=error", (char *)NULL);
        _exit(127);
    }
    struct memferry_error error;
    for (int i = 0; i < STARTS_MAX; i++) {
        if (memferry_open(address, &connection, &error) == MEMFERRY_OK) {
            return 0;
        }
        struct timespec tenth = {.tv_nsec = 100000000};
        nanosleep(&tenth, NULL);
    }
    fprintf(stderr, "the daemon does not answer: %s\n", error.text);
    return 1;
}

static int stop(void **state)
{
    (void)state;
    memferry_close(connection);
    kill(daemon_pid, SIGTERM);
    return waitpid(daemon_pid, NULL, 0) == daemon_pid ? 0 : 1;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_errors),
        cmocka_unit_test(test_query),
        cmocka_unit_test(test_plan),
        cmocka_unit_test(test_measure),
        cmocka_unit_test(test_session),
        cmocka_unit_test(test_own_numbers),
        cmocka_unit_test(test_threads),
        cmocka_unit_test(test_run),
        cmocka_unit_test(test_run_is_left_and_stopped),
    };
    const char *folder = getenv("MEMFERRY_BIN_DIR");
    snprintf(program, sizeof(program), "%s/memferryd", folder != NULL ? folder : ".");
    if (access(program, X_OK) != 0) {
        fprintf(stderr, "skipped: there is no %s\n", program);
        return HARNESS_SKIP;
    }
    home = harness_folder();
    return cmocka_run_group_tests(tests, start, stop);
}
