/*
 * A profile: measured times of kernels, keyed by what decides them.
 *
 * What: a table from signature (lane, kernel, shape) to nanoseconds with its spread. The planner
 *   asks it for every task; the profiler fills it; the store keeps it by hardware.
 * Owner: init/reset by the caller. Thread: one writer or many readers. Fails: decode only.
 */
#ifndef MF_CORE_PROFILE_H
#define MF_CORE_PROFILE_H

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

#include "core/hash.h"
#include "core/kernel.h"
#include "core/status.h"

struct mf_signature {
    enum mf_lane lane;
    enum mf_kernel kernel;
    struct mf_shape shape;
};

struct mf_measurement {
    struct mf_signature signature;
    double median_ns;
    double spread_ns; /* median absolute deviation */
    int32_t samples;
};

struct mf_profile {
    struct mf_measurement *entries; /* in the order they were added */
    int32_t count, capacity;
    int32_t *table; /* open addressing: index into entries or -1 */
    int32_t table_size;
    char hardware_fingerprint[MF_HASH_TEXT_MAX];
    int64_t measured_at_unix_s;
    bool complete;   /* false when a time cap or a cancellation cut it short */
    char method[64]; /* "host clock", "CUPTI", "CUDA events (CUPTI held by ...)" */
};

/* Flags that do not change a kernel's cost (FIRST_MICRO ...) are dropped, so that equal work is
 * measured once. COPY is keyed by bytes. */
struct mf_signature mf_profile_signature(enum mf_lane lane, enum mf_kernel kernel,
                                         const struct mf_shape *shape);

void mf_profile_init(struct mf_profile *profile);
void mf_profile_reset(struct mf_profile *profile);
/* Replaces an entry of the same signature. */
void mf_profile_put(struct mf_profile *profile, const struct mf_measurement *measurement);
/* NULL when it was never measured. Borrowed until the next put. */
const struct mf_measurement *mf_profile_find(const struct mf_profile *profile,
                                             const struct mf_signature *signature);
json_t *mf_profile_encode(const struct mf_profile *profile);
enum mf_status mf_profile_decode(const json_t *json, struct mf_profile *out) MF_MUST_USE;

#endif
