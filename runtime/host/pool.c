/* The fork-join pool; see pool.h.
 *
 * One word, the gate, says everything: the number of the run, whether it is open, how many threads
 * are inside it, whether the caller sleeps until they have left. A thread looks at a run's items
 * only inside; the caller closes the gate when no item is left to take and returns when nobody is
 * inside. So a thread that wakes late finds the gate closed, or of a later run, and harms nothing.
 * All who sleep, sleep on the gate (futex). */
#include "runtime/host/pool.h"

#include <linux/futex.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

/* The gate's parts. Run numbers wrap around: a thread that missed exactly 2^16 runs misses one
 * more. */
#define INSIDE_MASK 0x3fffu
#define CALLER_SLEEPS 0x4000u
#define OPEN 0x8000u
#define RUN_SHIFT 16
_Static_assert(MF_HOST_CORES_MAX < INSIDE_MASK, "all threads can be inside");

/* Tells the core that this thread only waits. */
#if defined(__x86_64__)
#define PAUSE() __builtin_ia32_pause()
#else
#define PAUSE() __asm__ volatile("" ::: "memory")
#endif

#define LINE_BYTES 64      /* what is written by different threads lies in lines of its own */
#define SPINS_PER_CLOCK 32 /* pauses between two looks at the clock */
#define WAKE_FANOUT 2      /* who was woken wakes so many others: a tree, not a queue */

struct worker {
    _Alignas(LINE_BYTES) _Atomic(int64_t) next; /* of its share of the items; others take, too */
    int64_t end;
    struct mf_host_pool *pool;
    pthread_t thread;
    int32_t index;
};

struct mf_host_pool {
    _Alignas(LINE_BYTES) _Atomic(uint32_t) gate;
    _Alignas(LINE_BYTES) _Atomic(int32_t) sleepers; /* threads that sleep or are about to */
    atomic_bool stop;
    int32_t threads;
    int32_t started; /* threads that run; the caller is worker 0 */
    int64_t spin_ns;
    struct worker *workers;
    mf_host_pool_body body;
    const void *argument;
};

static int64_t now_ns(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (int64_t)time.tv_sec * 1000000000 + time.tv_nsec;
}

/* Who sleeps on the gate, as bits that the system compares. */
enum { SLEEPER_WORKER = 1, SLEEPER_CALLER = 2 };

static void sleep_on(struct mf_host_pool *pool, uint32_t gate, uint32_t who)
{
    (void)syscall(SYS_futex, &pool->gate, FUTEX_WAIT_BITSET_PRIVATE, gate, NULL, NULL, who);
}

static void wake(struct mf_host_pool *pool, int count, uint32_t who)
{
    (void)syscall(SYS_futex, &pool->gate, FUTEX_WAKE_BITSET_PRIVATE, count, NULL, NULL, who);
}

/* The own share first, then what others have left. */
static void work(struct mf_host_pool *pool, int32_t index)
{
    for (int32_t step = 0; step < pool->threads; step++) {
        struct worker *share = &pool->workers[(index + step) % pool->threads];
        while (atomic_load_explicit(&share->next, memory_order_relaxed) < share->end) {
            int64_t item = atomic_fetch_add_explicit(&share->next, 1, memory_order_relaxed);
            if (item < share->end) {
                pool->body(pool->argument, item, index);
            }
        }
    }
}

static void leave(struct mf_host_pool *pool)
{
    uint32_t before = atomic_fetch_sub(&pool->gate, 1);
    if ((before & INSIDE_MASK) == 1 && (before & CALLER_SLEEPS) != 0) {
        wake(pool, 1, SLEEPER_CALLER);
    }
}

/* Whether the gate is that of an open run other than `last`. */
static bool is_new(uint32_t gate, uint32_t last)
{
    return (gate & OPEN) != 0 && gate >> RUN_SHIFT != last;
}

/* Returns when there is a new run, or the pool closes. */
static void wait_for_run(struct mf_host_pool *pool, uint32_t last)
{
    int64_t end_ns = pool->spin_ns > 0 ? now_ns() + pool->spin_ns : 0;
    for (int spins = 1; pool->spin_ns > 0; spins++) {
        if (is_new(atomic_load(&pool->gate), last) || atomic_load(&pool->stop)) {
            return;
        }
        if (spins % SPINS_PER_CLOCK == 0 && now_ns() >= end_ns) {
            break;
        }
        PAUSE();
    }
    /* Counted before the gate is looked at, as the caller moves the gate before it looks at the
     * count: one of the two sees the other. */
    atomic_fetch_add(&pool->sleepers, 1);
    uint32_t gate = atomic_load(&pool->gate);
    while (!is_new(gate, last) && !atomic_load(&pool->stop)) {
        sleep_on(pool, gate, SLEEPER_WORKER);
        gate = atomic_load(&pool->gate);
    }
    if (atomic_fetch_sub(&pool->sleepers, 1) > 1) {
        wake(pool, WAKE_FANOUT, SLEEPER_WORKER);
    }
}

static void *run_worker(void *argument)
{
    struct worker *worker = argument;
    struct mf_host_pool *pool = worker->pool;
    uint32_t last = UINT32_MAX; /* no run's number */
    while (!atomic_load(&pool->stop)) {
        uint32_t gate = atomic_load(&pool->gate);
        if (!is_new(gate, last)) {
            wait_for_run(pool, last);
        } else if (atomic_compare_exchange_weak(&pool->gate, &gate, gate + 1)) {
            last = gate >> RUN_SHIFT;
            work(pool, worker->index);
            leave(pool);
        }
    }
    return NULL;
}

void mf_host_pool_pause(int32_t count)
{
    for (int32_t index = 0; index < count; index++) {
        PAUSE();
    }
}

enum mf_status mf_host_pool_start(pthread_t *out, const char *name, void *(*entry)(void *),
                                  void *argument)
{
    sigset_t all;
    sigset_t before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int code = pthread_create(out, NULL, entry, argument);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (code != 0) {
        return mf_status_set(MF_STATUS_NO_MEMORY, "cannot start the thread %s: %s", name,
                             strerror(code));
    }
    pthread_setname_np(*out, name);
    return MF_STATUS_OK;
}

static enum mf_status start_workers(struct mf_host_pool *pool, const char *name,
                                    const struct mf_host_cores *own)
{
    for (int32_t index = 0; index < pool->threads; index++) {
        struct worker *worker = &pool->workers[index];
        worker->pool = pool;
        worker->index = index;
    }
    for (int32_t index = 1; index < pool->threads; index++) {
        struct worker *worker = &pool->workers[index];
        char text[16];
        snprintf(text, sizeof(text), "%.10s-%d", name, index % 1000);
        MF_TRY(mf_host_pool_start(&worker->thread, text, run_worker, worker));
        pool->started++;
        if (own != NULL) {
            mf_host_cores_bind(worker->thread, own->cpus[index % own->total]);
        }
    }
    return MF_STATUS_OK;
}

enum mf_status mf_host_pool_open(const char *name, int32_t threads, const struct mf_host_cores *own,
                                 struct mf_host_pool **out)
{
    *out = NULL;
    MF_ASSERT(threads >= 1 && threads <= MF_HOST_CORES_MAX);
    struct mf_host_pool *pool = aligned_alloc(LINE_BYTES, sizeof(*pool));
    size_t bytes = (size_t)threads * sizeof(*pool->workers);
    struct worker *workers = aligned_alloc(LINE_BYTES, bytes);
    if (pool == NULL || workers == NULL) {
        free(pool);
        free(workers);
        return mf_status_set(MF_STATUS_NO_MEMORY, "no memory for a pool of %d threads", threads);
    }
    memset(pool, 0, sizeof(*pool));
    memset(workers, 0, bytes);
    pool->threads = threads;
    pool->workers = workers;
    pool->spin_ns = own != NULL ? MF_HOST_POOL_SPIN_NS : 0;
    enum mf_status status = start_workers(pool, name, own);
    if (status != MF_STATUS_OK) {
        mf_host_pool_close(pool);
        return status;
    }
    *out = pool;
    return MF_STATUS_OK;
}

void mf_host_pool_close(struct mf_host_pool *pool)
{
    if (pool == NULL) {
        return;
    }
    atomic_store(&pool->stop, true);
    /* The gate moves so that who was about to sleep on the old one does not. */
    atomic_fetch_add(&pool->gate, 1u << RUN_SHIFT);
    wake(pool, INT32_MAX, SLEEPER_WORKER);
    for (int32_t index = 1; index <= pool->started; index++) {
        pthread_join(pool->workers[index].thread, NULL);
    }
    free(pool->workers);
    free(pool);
}

int32_t mf_host_pool_threads(const struct mf_host_pool *pool)
{
    return pool->threads;
}

/* Nobody enters any more; returns when those inside have left. */
static void close_gate(struct mf_host_pool *pool)
{
    uint32_t gate = atomic_fetch_and(&pool->gate, ~OPEN) & ~OPEN;
    int64_t end_ns = 0;
    for (int spins = 1; pool->spin_ns > 0 && (gate & INSIDE_MASK) != 0; spins++) {
        if (spins % SPINS_PER_CLOCK == 0) {
            int64_t time_ns = now_ns();
            end_ns = end_ns > 0 ? end_ns : time_ns + pool->spin_ns;
            if (time_ns >= end_ns) {
                break;
            }
        }
        PAUSE();
        gate = atomic_load(&pool->gate);
    }
    while ((gate & INSIDE_MASK) != 0) {
        gate = atomic_fetch_or(&pool->gate, CALLER_SLEEPS) | CALLER_SLEEPS;
        if ((gate & INSIDE_MASK) != 0) {
            sleep_on(pool, gate, SLEEPER_CALLER);
            gate = atomic_load(&pool->gate);
        }
    }
}

void mf_host_pool_run(struct mf_host_pool *pool, int64_t count, mf_host_pool_body body,
                      const void *argument)
{
    if (count <= 1 || pool->threads == 1) {
        for (int64_t item = 0; item < count; item++) {
            body(argument, item, 0);
        }
        return;
    }
    pool->body = body;
    pool->argument = argument;
    for (int32_t index = 0; index < pool->threads; index++) {
        struct worker *worker = &pool->workers[index];
        atomic_store_explicit(&worker->next, count * index / pool->threads, memory_order_relaxed);
        worker->end = count * (index + 1) / pool->threads;
    }
    uint32_t run = (atomic_load(&pool->gate) >> RUN_SHIFT) + 1;
    atomic_store(&pool->gate, run << RUN_SHIFT | OPEN);
    if (atomic_load(&pool->sleepers) > 0) {
        wake(pool, WAKE_FANOUT, SLEEPER_WORKER);
    }
    work(pool, 0);
    close_gate(pool);
}
