/* Worker threads that run RPC handlers; see rpc_internal.h. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "server/rpc_internal.h"

#define THREADS_MAX 64

struct job {
    mf_rpc_job *run;
    void *argument;
};

struct mf_rpc_pool {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    pthread_t threads[THREADS_MAX];
    int thread_count;
    bool closing;
    struct job *jobs; /* a ring of jobs_max */
    int jobs_max, first, count;
};

static void *work(void *argument)
{
    struct mf_rpc_pool *pool = argument;
    pthread_mutex_lock(&pool->lock);
    for (;;) {
        while (pool->count == 0 && !pool->closing) {
            pthread_cond_wait(&pool->changed, &pool->lock);
        }
        if (pool->count == 0) {
            break;
        }
        struct job job = pool->jobs[pool->first];
        pool->first = (pool->first + 1) % pool->jobs_max;
        pool->count--;
        pthread_mutex_unlock(&pool->lock);
        job.run(job.argument);
        pthread_mutex_lock(&pool->lock);
    }
    pthread_mutex_unlock(&pool->lock);
    return NULL;
}

enum mf_status mf_rpc_pool_open(int threads, int jobs_max, struct mf_rpc_pool **out)
{
    MF_ASSERT(threads > 0 && threads <= THREADS_MAX && jobs_max > 0);
    struct mf_rpc_pool *pool = calloc(1, sizeof(*pool));
    MF_ASSERT(pool != NULL);
    pool->jobs = calloc((size_t)jobs_max, sizeof(*pool->jobs));
    MF_ASSERT(pool->jobs != NULL);
    pool->jobs_max = jobs_max;
    pthread_mutex_init(&pool->lock, NULL);
    pthread_cond_init(&pool->changed, NULL);
    while (pool->thread_count < threads) {
        int error = pthread_create(&pool->threads[pool->thread_count], NULL, work, pool);
        if (error != 0) {
            mf_rpc_pool_close(pool);
            return mf_status_set(MF_STATUS_NO_MEMORY, "cannot start a worker thread: %s",
                                 strerror(error));
        }
        pool->thread_count++;
    }
    *out = pool;
    return MF_STATUS_OK;
}

enum mf_status mf_rpc_pool_put(struct mf_rpc_pool *pool, mf_rpc_job *job, void *argument)
{
    pthread_mutex_lock(&pool->lock);
    int count = pool->count;
    bool room = count < pool->jobs_max;
    if (room) {
        pool->jobs[(pool->first + pool->count++) % pool->jobs_max] = (struct job){job, argument};
        pthread_cond_signal(&pool->changed);
    }
    pthread_mutex_unlock(&pool->lock);
    if (room) {
        return MF_STATUS_OK;
    }
    enum mf_status status = mf_status_set_reason(
        MF_STATUS_BUSY, "WORKERS_BUSY",
        "all workers are busy and %d calls wait, the most allowed; try again", count);
    mf_status_number("waiting_count", count);
    mf_status_number("limit_count", pool->jobs_max);
    return status;
}

void mf_rpc_pool_close(struct mf_rpc_pool *pool)
{
    if (pool == NULL) {
        return;
    }
    pthread_mutex_lock(&pool->lock);
    pool->closing = true;
    pthread_cond_broadcast(&pool->changed);
    pthread_mutex_unlock(&pool->lock);
    for (int i = 0; i < pool->thread_count; i++) {
        pthread_join(pool->threads[i], NULL);
    }
    pthread_cond_destroy(&pool->changed);
    pthread_mutex_destroy(&pool->lock);
    free(pool->jobs);
    free(pool);
}
