/*
 * The CPUs that this process may use, in the order in which more of them help memory-bound work.
 *
 * What: the CPUs of the process's own affinity mask, as many as the control group's quota is worth:
 *   first one of each physical core, then their siblings. These help, too: on the 16 CPUs of an
 *   H200 machine 8 threads updated 3.7e9 parameters a second, 12 4.1e9 and 16 4.9e9. From
 *   MF_HOST_CORES_ISSUE_MIN CPUs on one is left to the thread that issues work and to the driver.
 * Who calls it: lanes that have the CPUs to themselves (the CUDA device's CPU lane) when they
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
    int32_t count; /* of threads that are worth while */
    int32_t total; /* of cpus; the one left free is the last */
    int32_t cpus[MF_HOST_CORES_MAX];
};

void mf_host_cores_find(struct mf_host_cores *out);
/* Keeps `thread` on one CPU; where the system refuses it stays where it may run. */
void mf_host_cores_bind(pthread_t thread, int32_t cpu);

#endif
