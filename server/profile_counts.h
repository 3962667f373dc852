/*
 * Bytes over the link in a profile's answer, counted when a client asks for them.
 *
 * What: each kernel that uses host memory is run again on the device worker under the GPU's
 *   counters; the first refusal ends it and says why. Who calls it: service_profile.c. Owner: the
 *   caller's struct, zeroed but for its first members; close frees. Thread: an RPC worker. Fails:
 *   no; what was not counted stays without numbers, and `note` says why.
 */
#ifndef MF_SERVER_PROFILE_COUNTS_H
#define MF_SERVER_PROFILE_COUNTS_H

#include "memferry/v1/profile.pb-c.h"
#include "profiler/counts.h"
#include "server/rpc.h"
#include "server/service.h"

struct mf_profile_counts {
    struct mf_service *service;
    struct mf_rpc_call *call; /* cancelled: no more is counted */
    struct mf_measure_scratch scratch;
    int32_t skipped; /* did not fit */
    char note[MF_ERROR_TEXT_MAX];
};

/* Fills the link_* fields of `row`, which is of `signature`. */
void mf_profile_counts_add(struct mf_profile_counts *counts, const struct mf_signature *signature,
                           Memferry__V1__Measurement *row);
void mf_profile_counts_close(struct mf_profile_counts *counts);

#endif
