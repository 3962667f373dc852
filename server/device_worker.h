/*
 * The one thread that owns a device. RPC threads never touch a device; they post jobs here.
 *
 * What: a bounded queue of jobs, run one after another in the order they were posted. Long work is
 *   posted in slices (one step, one measurement), so that sessions take turns.
 * Who calls it: tune, session, run, services. Owner: open/close by the daemon; a job's context is
 *   its poster's and must live until the job has run. Thread: post and call from any thread but the
 *   worker's own; jobs run on the worker's. Fails: MF_STATUS_BUSY when MF_DEVICE_JOBS_MAX wait.
 */
#ifndef MF_SERVER_DEVICE_WORKER_H
#define MF_SERVER_DEVICE_WORKER_H

#include <stdbool.h>
#include <stddef.h>

#include "core/hardware.h"
#include "core/status.h"
#include "runtime/device.h"

struct mf_device_worker;

typedef void (*mf_device_job)(const struct mf_device_interface *interface, struct mf_device *device,
                              void *context);

/* Opens the device on the worker's thread and describes it. */
enum mf_status mf_device_worker_open(const struct mf_device_interface *interface,
                                     const struct mf_device_options *options,
                                     struct mf_device_worker **out) MF_MUST_USE;
/* Runs the jobs that wait, then closes the device and joins the thread. */
void mf_device_worker_close(struct mf_device_worker *worker);
/* `what` (copied) is shown by status while the job runs: "session 3f9a: forward_backward". */
enum mf_status mf_device_worker_post(struct mf_device_worker *worker, const char *what,
                                     mf_device_job job, void *context) MF_MUST_USE;
/* The same, and waits until it has run. */
enum mf_status mf_device_worker_call(struct mf_device_worker *worker, const char *what,
                                     mf_device_job job, void *context) MF_MUST_USE;
/* Copies what is being done now, "" when idle. */
void mf_device_worker_doing(struct mf_device_worker *worker, char *out, size_t size);
/* As described when it was opened. */
const struct mf_hardware_device *mf_device_worker_described(const struct mf_device_worker *worker);
/* Its slot, "0000:3b:00.0"; "" where it has none. */
const char *mf_device_worker_pci_address(const struct mf_device_worker *worker);
/* Keeps what the device says about its pinned memory; for a job, on the worker's thread. */
void mf_device_worker_note_memory(struct mf_device_worker *worker);
/* Copies that, "" before any was pinned. */
void mf_device_worker_memory(struct mf_device_worker *worker, char *out, size_t size);
/* Copies what the device last said about who computes attention; "" when it does not say. */
void mf_device_worker_attention(struct mf_device_worker *worker, char *out, size_t size);

#endif
