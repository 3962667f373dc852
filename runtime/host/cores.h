/*
 * The CPU cores that this process may use, one CPU of each.
 *
 * What: a list made from the process's own affinity mask, cut to the control group's CPU quota: one
 *   CPU of each physical core, since two threads of one core share its path to memory. From
 *   MF_HOST_CORES_ISSUE_MIN cores on one is left to the thread that issues work and to the driver.
 * Who calls it: lanes that have the cores to themselves (the CUDA device's CPU lane) when they
 *   open their pool. Memory: plain data. Thread: any. Fails: no; without /sys every CPU is a core,
 *   without a mask there is one.
 */
#ifndef MF_RUNTIME_HOST_CORES_H
#define MF_RUNTIME_HOST_CORES_H

#include <pthread.h>
#include <stdint.h>

#define MF_HOST_CORES_MAX 1024 /* what a cpu_set_t holds */
#define MF_HOST_CORES_ISSUE_MIN 8

struct mf_host_cores {
    int32_t count;
    int32_t cpus[MF_HOST_CORES_MAX];
};

void mf_host_cores_find(struct mf_host_cores *out);
/* Keeps `thread` on one CPU; where the system refuses it stays where it may run. */
void mf_host_cores_bind(pthread_t thread, int32_t cpu);

#endif
