/* Counting bytes over the link for a profile: see profile_counts.h. */
#include "server/profile_counts.h"

#include <stdio.h>

#include "core/log.h"

struct job {
    const struct mf_signature *signature;
    struct mf_measure_scratch *scratch;
    struct mf_counts counts;
    enum mf_status status;
    struct mf_error error; /* carried across threads */
};

static void run_job(const struct mf_device_interface *interface, struct mf_device *device,
                    void *context)
{
    struct job *job = context;
    job->status = mf_counts_measure(interface, device, job->scratch, job->signature, &job->counts);
    job->error = *mf_status_error();
}

static void run_release(const struct mf_device_interface *interface, struct mf_device *device,
                        void *context)
{
    mf_measure_release(interface, device, context);
}

static void stop(struct mf_profile_counts *counts, const char *why)
{
    (void)snprintf(counts->note, sizeof(counts->note), "%s", why);
}

void mf_profile_counts_add(struct mf_profile_counts *counts, const struct mf_signature *signature,
                           Memferry__V1__Measurement *row)
{
    struct job job = {.signature = signature, .scratch = &counts->scratch};
    char text[120];
    char what[MF_DEVICE_WHAT_MAX];
    if (counts->note[0] != '\0' || !mf_counts_wanted(signature)) {
        return;
    }
    if (mf_rpc_call_cancelled(counts->call)) {
        stop(counts, "counting was cancelled");
        return;
    }
    mf_measure_describe(signature, text, sizeof(text));
    (void)snprintf(what, sizeof(what), "counting: %s", text);
    if (mf_device_worker_call(counts->service->worker, what, run_job, &job) != MF_STATUS_OK) {
        stop(counts, mf_status_text());
    } else if (job.status == MF_STATUS_NO_DEVICE_MEMORY || job.status == MF_STATUS_NO_MEMORY) {
        counts->skipped++;
    } else if (job.status != MF_STATUS_OK) {
        stop(counts, job.error.text);
    } else {
        int way = job.counts.needed_bytes[1] > job.counts.needed_bytes[0];
        row->link_needed_bytes = job.counts.needed_bytes[way];
        row->link_memory_bytes = job.counts.counted.memory_bytes[way];
        row->link_bus_bytes = job.counts.counted.link_bytes[way];
    }
}

void mf_profile_counts_close(struct mf_profile_counts *counts)
{
    if (counts->skipped > 0) {
        mf_log_info("%d kernels were not counted for want of memory", counts->skipped);
    }
    if ((counts->scratch.device != NULL || counts->scratch.host != NULL) &&
        mf_device_worker_call(counts->service->worker, "freeing scratch", run_release,
                              &counts->scratch) != MF_STATUS_OK) {
        mf_log_warn("scratch memory was not freed: %s", mf_status_text());
    }
}
