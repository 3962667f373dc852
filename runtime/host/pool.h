/*
 * A fork-join pool: the threads that share one kernel's work.
 *
 * What: run() hands items 0..count-1 to the caller and the pool's threads and returns when all are
 *   done. A thread starts with its own share of the items, the same in every run of as many, so
 *   that it meets the same memory again; who is done helps others. Items must not depend on each
 *   other and must be cut the same way whatever the number of threads: then results do not depend
 *   on it. Who calls it: the lane that owns the pool, through its context. Owner: open/close.
 *   Thread: one caller at a time. Fails: open, when a thread cannot be started
 *   (MF_STATUS_NO_MEMORY).
 */
#ifndef MF_RUNTIME_HOST_POOL_H
#define MF_RUNTIME_HOST_POOL_H

#include <pthread.h>
#include <stdint.h>

#include "core/status.h"
#include "runtime/host/cores.h"

/* How long a thread of a pool with cores of its own looks for work before it sleeps: waking 15
 * sleepers takes tens of microseconds, about what a small kernel lasts. */
#define MF_HOST_POOL_SPIN_NS 100000

struct mf_host_pool;

/* `worker` is in 0..threads-1 and names the thread that runs the item. */
typedef void (*mf_host_pool_body)(const void *argument, int64_t item, int32_t worker);

/* `threads` counts the caller; `name` starts the names of the others (at most 10 characters).
 * `own`: NULL, or CPUs that nobody else computes on: worker i stays on cpus[i % total] (the caller
 * binds itself, to cpus[0]) and spins for a while before it sleeps. */
enum mf_status mf_host_pool_open(const char *name, int32_t threads, const struct mf_host_cores *own,
                                 struct mf_host_pool **out) MF_MUST_USE;
void mf_host_pool_close(struct mf_host_pool *pool);
int32_t mf_host_pool_threads(const struct mf_host_pool *pool);
void mf_host_pool_run(struct mf_host_pool *pool, int64_t count, mf_host_pool_body body,
                      const void *argument);

/* A short wait without giving up the core, `count` times what the processor calls a pause. */
void mf_host_pool_pause(int32_t count);
/* Starts a named thread with all signals blocked: signals belong to the main thread. */
enum mf_status mf_host_pool_start(pthread_t *out, const char *name, void *(*entry)(void *),
                                  void *argument) MF_MUST_USE;

#endif
