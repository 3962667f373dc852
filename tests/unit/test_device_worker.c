/* The device's worker: order, one at a time, limits, failures, closing. */
#include "harness.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "core/limits.h"
#include "server/device_worker.h"

#define POSTERS 6
#define JOBS 200

static void pause_ms(long ms)
{
    (void)nanosleep(&(struct timespec){.tv_nsec = ms * 1000000}, NULL);
}

static struct mf_device_worker *open_worker(void)
{
    const struct mf_device_options options = {.memory_bytes = 16 << 20, .threads = 1};
    struct mf_device_worker *worker = NULL;
    assert_ok(mf_device_worker_open(mf_device_host(), &options, &worker));
    return worker;
}

static void test_describes(void **state)
{
    (void)state;
    struct mf_device_worker *worker = open_worker();
    const struct mf_hardware_device *device = mf_device_worker_described(worker);
    char doing[MF_DEVICE_WHAT_MAX] = "unset";
    assert_string_equal(device->kind, "host");
    assert_int_equal(device->memory_bytes, 16 << 20);
    mf_device_worker_doing(worker, doing, sizeof(doing));
    assert_string_equal(doing, "");
    mf_device_worker_close(worker);
    mf_device_worker_close(NULL);
}

struct counting {
    atomic_int inside, most, done;
    int order[POSTERS][JOBS]; /* by poster, as they ran */
    int ran[POSTERS];
    pthread_t thread; /* that ran the first */
    bool other;       /* another one ran some */
};

struct count_job {
    struct counting *counting;
    int poster, number;
};

static void count(const struct mf_device_interface *interface, struct mf_device *device,
                  void *context)
{
    struct count_job *job = context;
    struct counting *counting = job->counting;
    int inside = atomic_fetch_add(&counting->inside, 1) + 1;
    assert_non_null(interface);
    assert_non_null(device);
    if (inside > atomic_load(&counting->most)) {
        atomic_store(&counting->most, inside);
    }
    if (atomic_fetch_add(&counting->done, 1) == 0) {
        counting->thread = pthread_self();
    }
    counting->other |= !pthread_equal(counting->thread, pthread_self());
    counting->order[job->poster][counting->ran[job->poster]++] = job->number;
    atomic_fetch_sub(&counting->inside, 1);
}

struct poster {
    struct mf_device_worker *worker;
    struct counting *counting;
    struct count_job jobs[JOBS];
    int index;
};

static void *post_many(void *context)
{
    struct poster *poster = context;
    for (int i = 0; i < JOBS; i++) {
        struct count_job *job = &poster->jobs[i];
        *job = (struct count_job){poster->counting, poster->index, i};
        enum mf_status status = MF_STATUS_BUSY;
        while (status == MF_STATUS_BUSY) {
            status = i % 3 == 0 ? mf_device_worker_call(poster->worker, "counting", count, job)
                                : mf_device_worker_post(poster->worker, "counting", count, job);
        }
        if (status != MF_STATUS_OK) {
            return context;
        }
    }
    return NULL;
}

static void test_one_at_a_time_in_order(void **state)
{
    (void)state;
    static struct counting counting;
    static struct poster posters[POSTERS];
    pthread_t threads[POSTERS];
    struct mf_device_worker *worker = open_worker();
    for (int i = 0; i < POSTERS; i++) {
        posters[i].worker = worker;
        posters[i].counting = &counting;
        posters[i].index = i;
        assert_int_equal(pthread_create(&threads[i], NULL, post_many, &posters[i]), 0);
    }
    for (int i = 0; i < POSTERS; i++) {
        void *failed = NULL;
        assert_int_equal(pthread_join(threads[i], &failed), 0);
        assert_null(failed);
    }
    mf_device_worker_close(worker); /* runs what waits */
    assert_int_equal(atomic_load(&counting.done), POSTERS * JOBS);
    assert_int_equal(atomic_load(&counting.most), 1);
    assert_false(counting.other);
    for (int i = 0; i < POSTERS; i++) {
        for (int j = 0; j < JOBS; j++) {
            assert_int_equal(counting.order[i][j], j);
        }
    }
}

static void wait_for_flag(const struct mf_device_interface *interface, struct mf_device *device,
                          void *context)
{
    atomic_bool *flag = context;
    (void)interface;
    (void)device;
    while (!atomic_load(flag)) {
        pause_ms(1);
    }
}

static void test_full_queue(void **state)
{
    (void)state;
    atomic_bool flag = false;
    struct mf_device_worker *worker = open_worker();
    char doing[MF_DEVICE_WHAT_MAX] = "";
    int posted = 0;
    assert_ok(mf_device_worker_post(worker, "session 3f9a: step 7", wait_for_flag, &flag));
    while (doing[0] == 0) { /* taken from the queue */
        pause_ms(1);
        mf_device_worker_doing(worker, doing, sizeof(doing));
    }
    assert_string_equal(doing, "session 3f9a: step 7");
    while (posted <= MF_DEVICE_JOBS_MAX &&
           mf_device_worker_post(worker, "waiting", wait_for_flag, &flag) == MF_STATUS_OK) {
        posted++;
    }
    assert_int_equal(posted, MF_DEVICE_JOBS_MAX);
    assert_fails(mf_device_worker_call(worker, "waiting", wait_for_flag, &flag), MF_STATUS_BUSY,
                 "256");
    assert_string_equal(mf_status_error()->reason, "DEVICE_QUEUE_FULL");
    atomic_store(&flag, true);
    enum mf_status status = MF_STATUS_BUSY;
    while (status == MF_STATUS_BUSY) {
        status = mf_device_worker_call(worker, "last", wait_for_flag, &flag);
    }
    assert_ok(status);
    mf_device_worker_close(worker);
}

static enum mf_status refuse_open(const struct mf_device_options *options, struct mf_device **out)
{
    (void)options;
    *out = NULL;
    return mf_status_set_reason(MF_STATUS_DEVICE, "NO_POWER", "the device has no power");
}

static void test_open_fails(void **state)
{
    (void)state;
    struct mf_device_interface broken = *mf_device_host();
    const struct mf_device_options options = {0};
    struct mf_device_worker *worker = NULL;
    broken.open = refuse_open;
    assert_fails(mf_device_worker_open(&broken, &options, &worker), MF_STATUS_DEVICE, "no power");
    assert_string_equal(mf_status_error()->reason, "NO_POWER"); /* across the thread */
    assert_null(worker);
    broken.abi = MF_DEVICE_ABI + 1;
    assert_status(mf_device_worker_open(&broken, &options, &worker), MF_STATUS_UNSUPPORTED);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_describes),
        cmocka_unit_test(test_one_at_a_time_in_order),
        cmocka_unit_test(test_full_queue),
        cmocka_unit_test(test_open_fails),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
