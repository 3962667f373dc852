/* The workload: see workload.h. */
#include "core/workload.h"

#include "core/limits.h"

static enum mf_status check(const char *name, int32_t value, int32_t high)
{
    if (value < 1 || value > high) {
        return mf_status_set(MF_STATUS_INVALID, "%s must be from 1 to %d, found %d", name,
                             (int)high, (int)value);
    }
    return MF_STATUS_OK;
}

enum mf_status mf_workload_validate(const struct mf_workload *workload)
{
    MF_TRY(check("micro_batch", workload->micro_batch, MF_MICRO_BATCH_MAX));
    MF_TRY(check("seq_len", workload->seq_len, MF_SEQ_LEN_MAX));
    return check("accumulation", workload->accumulation, MF_ACCUMULATION_MAX);
}

int64_t mf_workload_rows(const struct mf_workload *workload)
{
    return (int64_t)workload->micro_batch * workload->seq_len;
}
