/* The fork-join pool: every item once whatever the threads, also when they sleep, are late or are
 * more than the cores; and the list of cores it is bound to. */
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <string.h>
#include <time.h>

#include "harness.h"
#include "runtime/host/cores.h"
#include "runtime/host/pool.h"

#define ITEMS_MAX 300
#define RUNS 400

struct job {
    _Atomic(int32_t) seen[ITEMS_MAX];
    _Atomic(int32_t) wrong_worker;
    int32_t threads;
    bool slow;
};

static void pause_us(long us)
{
    struct timespec time = {.tv_nsec = us * 1000};
    nanosleep(&time, NULL);
}

static void count(const void *argument, int64_t item, int32_t worker)
{
    struct job *job = *(struct job *const *)argument;
    atomic_fetch_add(&job->seen[item], 1);
    if (worker < 0 || worker >= job->threads) {
        atomic_fetch_add(&job->wrong_worker, 1);
    }
    if (job->slow && item % 7 == 0) {
        pause_us(200);
    }
}

/* Runs of all sizes; now and then a pause, so that threads meet a run spinning, falling asleep and
 * asleep. */
static void check_pool(int32_t threads, const struct mf_host_cores *own, bool slow)
{
    static struct job job;
    struct job *pointer = &job;
    struct mf_host_pool *pool;
    memset(&job, 0, sizeof(job));
    job.threads = threads;
    job.slow = slow;
    assert_ok(mf_host_pool_open("test", threads, own, &pool));
    assert_int_equal(mf_host_pool_threads(pool), threads);
    int runs = slow ? RUNS / 20 : RUNS;
    for (int run = 0; run < runs; run++) {
        int64_t items = (int64_t)harness_random_below(ITEMS_MAX + 1);
        mf_host_pool_run(pool, items, count, &pointer);
        for (int64_t item = 0; item < ITEMS_MAX; item++) {
            assert_int_equal(atomic_exchange(&job.seen[item], 0), item < items ? 1 : 0);
        }
        if (run % 16 == 0) {
            pause_us((long)harness_random_below(3 * MF_HOST_POOL_SPIN_NS / 1000));
        }
    }
    assert_int_equal(job.wrong_worker, 0);
    mf_host_pool_close(pool);
}

static void test_every_item_once(void **state)
{
    (void)state;
    struct mf_host_cores cores;
    mf_host_cores_find(&cores);
    const int32_t threads[] = {1, 2, 3, 8, 33};
    for (size_t index = 0; index < sizeof(threads) / sizeof(threads[0]); index++) {
        check_pool(threads[index], NULL, false);
        check_pool(threads[index], &cores, false);
        check_pool(threads[index], NULL, true);
        check_pool(threads[index], &cores, true);
    }
}

/* The number of a run has 16 bits: it wraps around. */
static void test_many_runs(void **state)
{
    (void)state;
    static struct job job;
    struct job *pointer = &job;
    struct mf_host_pool *pool;
    job.threads = 2;
    assert_ok(mf_host_pool_open("test", 2, NULL, &pool));
    for (int run = 0; run < 70000; run++) {
        mf_host_pool_run(pool, 2, count, &pointer);
    }
    assert_int_equal(job.seen[0], 70000);
    assert_int_equal(job.seen[1], 70000);
    mf_host_pool_close(pool);
}

static void test_unused(void **state)
{
    (void)state;
    struct mf_host_cores cores;
    struct mf_host_pool *pool;
    mf_host_cores_find(&cores);
    for (int run = 0; run < 50; run++) {
        assert_ok(mf_host_pool_open("test", 5, run % 2 == 0 ? &cores : NULL, &pool));
        mf_host_pool_close(pool);
    }
    mf_host_pool_close(NULL);
}

/* CPUs are in the mask, each once; a smaller mask is respected; a thread can be bound. */
static void test_cores(void **state)
{
    (void)state;
    struct mf_host_cores cores;
    cpu_set_t before;
    cpu_set_t now;
    assert_int_equal(sched_getaffinity(0, sizeof(before), &before), 0);
    mf_host_cores_find(&cores);
    assert_int_equal(cores.total, CPU_COUNT(&before));
    assert_in_range(cores.count, 1, cores.total);
    now = before;
    for (int32_t index = 0; index < cores.total; index++) {
        assert_true(CPU_ISSET((size_t)cores.cpus[index], &now));
        CPU_CLR((size_t)cores.cpus[index], &now); /* so that it is not seen again */
    }
    int32_t last = cores.cpus[cores.total - 1];
    mf_host_cores_bind(pthread_self(), last);
    assert_int_equal(sched_getaffinity(0, sizeof(now), &now), 0);
    assert_int_equal(CPU_COUNT(&now), 1);
    assert_true(CPU_ISSET((size_t)last, &now));
    mf_host_cores_find(&cores);
    assert_int_equal(cores.count, 1);
    assert_int_equal(cores.cpus[0], last);
    assert_int_equal(sched_setaffinity(0, sizeof(before), &before), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_item_once),
        cmocka_unit_test(test_many_runs),
        cmocka_unit_test(test_unused),
        cmocka_unit_test(test_cores),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
