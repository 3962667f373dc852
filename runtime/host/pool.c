/* The fork-join pool; see pool.h. Items are taken under the lock: they last tens of microseconds
 * at least, and a thread that wakes late finds nothing to take and harms nothing. */
#include "runtime/host/pool.h"

#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct worker {
    struct mf_host_pool *pool;
    pthread_t thread;
    int32_t index;
};

struct mf_host_pool {
    int32_t threads;
    int32_t started; /* workers that run; the caller is worker 0 */
    struct worker *workers;
    pthread_mutex_t lock;
    pthread_cond_t start;
    pthread_cond_t done;
    bool stop;
    mf_host_pool_body body;
    const void *argument;
    int64_t count;
    int64_t next;
    int64_t finished;
};

/* Takes items until none is left. The lock is held on entry and on return. */
static void work(struct mf_host_pool *pool, int32_t worker)
{
    while (pool->next < pool->count) {
        int64_t item = pool->next++;
        mf_host_pool_body body = pool->body;
        const void *argument = pool->argument;
        pthread_mutex_unlock(&pool->lock);
        body(argument, item, worker);
        pthread_mutex_lock(&pool->lock);
        if (++pool->finished == pool->count) {
            pthread_cond_signal(&pool->done);
        }
    }
}

static void *run_worker(void *argument)
{
    struct worker *worker = argument;
    struct mf_host_pool *pool = worker->pool;
    pthread_mutex_lock(&pool->lock);
    while (!pool->stop) {
        work(pool, worker->index);
        if (!pool->stop) {
            pthread_cond_wait(&pool->start, &pool->lock);
        }
    }
    pthread_mutex_unlock(&pool->lock);
    return NULL;
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

enum mf_status mf_host_pool_open(const char *name, int32_t threads, struct mf_host_pool **out)
{
    *out = NULL;
    MF_ASSERT(threads >= 1);
    struct mf_host_pool *pool = calloc(1, sizeof(*pool));
    if (pool == NULL) {
        return mf_status_set(MF_STATUS_NO_MEMORY, "no memory for a thread pool");
    }
    pool->threads = threads;
    pthread_mutex_init(&pool->lock, NULL);
    pthread_cond_init(&pool->start, NULL);
    pthread_cond_init(&pool->done, NULL);
    pool->workers = calloc((size_t)threads, sizeof(*pool->workers));
    if (pool->workers == NULL) {
        mf_host_pool_close(pool);
        return mf_status_set(MF_STATUS_NO_MEMORY, "no memory for %d threads", threads);
    }
    for (int32_t index = 1; index < threads; index++) {
        struct worker *worker = &pool->workers[index];
        worker->pool = pool;
        worker->index = index;
        char text[16];
        snprintf(text, sizeof(text), "%.10s-%d", name, index % 1000);
        enum mf_status status = mf_host_pool_start(&worker->thread, text, run_worker, worker);
        if (status != MF_STATUS_OK) {
            mf_host_pool_close(pool);
            return status;
        }
        pool->started++;
    }
    *out = pool;
    return MF_STATUS_OK;
}

void mf_host_pool_close(struct mf_host_pool *pool)
{
    if (pool == NULL) {
        return;
    }
    pthread_mutex_lock(&pool->lock);
    pool->stop = true;
    pthread_cond_broadcast(&pool->start);
    pthread_mutex_unlock(&pool->lock);
    for (int32_t index = 1; index <= pool->started; index++) {
        pthread_join(pool->workers[index].thread, NULL);
    }
    pthread_cond_destroy(&pool->done);
    pthread_cond_destroy(&pool->start);
    pthread_mutex_destroy(&pool->lock);
    free(pool->workers);
    free(pool);
}

int32_t mf_host_pool_threads(const struct mf_host_pool *pool)
{
    return pool->threads;
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
    pthread_mutex_lock(&pool->lock);
    pool->body = body;
    pool->argument = argument;
    pool->count = count;
    pool->next = 0;
    pool->finished = 0;
    pthread_cond_broadcast(&pool->start);
    work(pool, 0);
    while (pool->finished < pool->count) {
        pthread_cond_wait(&pool->done, &pool->lock);
    }
    pthread_mutex_unlock(&pool->lock);
}
