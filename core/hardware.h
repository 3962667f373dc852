/*
 * The hardware as data: devices, the links to them, memory and CPU of this machine or of another.
 *
 * Who calls it: planner (costs), db (key), server, CLI. Owner: plain data, copied freely.
 * Thread: any. Fails: decoding gives MF_STATUS_INVALID with the key.
 */
#ifndef MF_CORE_HARDWARE_H
#define MF_CORE_HARDWARE_H

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

#include "core/contention.h"
#include "core/hash.h"
#include "core/limits.h"
#include "core/status.h"

#define MF_DEVICES_MAX 16

struct mf_hardware_device {
    char kind[16];              /* "host", "cuda" */
    char name[MF_NAME_MAX];     /* "NVIDIA H200", "CPU as device" */
    int64_t memory_bytes;       /* what sessions may use together */
    int32_t multiprocessors;    /* 0 on the host device */
    int32_t compute_capability; /* 90 = 9.0; 0 on the host device */
    double matrix_flops; /* bf16 products, operations per second: measured, or the data sheet's */
    double memory_bytes_per_s;
    double h2d_bytes_per_s;
    double d2h_bytes_per_s;
    double copy_latency_ns; /* fixed cost of one copy */
    bool link_emulated;     /* rates are emulated: say so wherever they show */
    char driver[32];        /* "" on the host device */
    char runtime[48];       /* CUDA or BLAS version */
};

struct mf_hardware {
    int32_t device_count;
    struct mf_hardware_device devices[MF_DEVICES_MAX];
    char cpu_name[MF_NAME_MAX];
    int32_t cpu_cores;
    int32_t numa_nodes;
    int64_t host_bytes;      /* memory memferry may use: the smaller of machine and cgroup */
    double host_bytes_per_s; /* memory bandwidth seen by the CPU update */
    bool measured;           /* rates were measured here, not read from a description */
    struct mf_contention contention; /* of lanes with each other; not in the fingerprint */
};

/* SHA-256 over what makes plans comparable: names, sizes, versions, and link rates in classes of
 * about 25% so that noise is no change. */
void mf_hardware_fingerprint(const struct mf_hardware *hardware, char out[static MF_HASH_TEXT_MAX]);
/* Sets the contention that is assumed for the first device's kind. */
void mf_hardware_assume(struct mf_hardware *hardware);
json_t *mf_hardware_encode(const struct mf_hardware *hardware); /* caller owns; never NULL */
/* Without a "contention" it is what mf_hardware_assume says. */
enum mf_status mf_hardware_decode(const json_t *json, struct mf_hardware *out) MF_MUST_USE;

#endif
