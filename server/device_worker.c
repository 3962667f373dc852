/* The one thread that owns a device: see device_worker.h. */
#include "server/device_worker.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/limits.h"

struct job {
    mf_device_job run;
    void *context;
    bool *done; /* of a caller that waits; NULL = nobody does */
    char what[MF_DEVICE_WHAT_MAX];
};

enum state { STATE_OPENING, STATE_SERVING, STATE_FAILED };

struct mf_device_worker {
    const struct mf_device_interface *interface;
    struct mf_device_options options;
    struct mf_device *device; /* the worker's thread only */
    struct mf_hardware_device described;
    char pci_address[32];
    pthread_t thread;
    pthread_mutex_t lock; /* guards what follows; never held while a job runs */
    pthread_cond_t posted;
    pthread_cond_t finished; /* the device is open or failed; a job was run */
    enum state state;
    struct mf_error error; /* why it failed */
    bool closing;
    int32_t first, count;
    struct job jobs[MF_DEVICE_JOBS_MAX];
    char doing[MF_DEVICE_WHAT_MAX];
    char memory[128]; /* how pinned memory lies */
    char attention[MF_DEVICE_ATTENTION_MAX];
};

/* Called with the lock, on the worker's thread. */
static void note_attention(struct mf_device_worker *worker)
{
    if (worker->device != NULL && worker->interface->attention != NULL) {
        worker->interface->attention(worker->device, worker->attention,
                                     (int32_t)sizeof(worker->attention));
    }
}

static void open_device(struct mf_device_worker *worker)
{
    const struct mf_device_interface *interface = worker->interface;
    enum mf_status status = interface->open(&worker->options, &worker->device);
    if (status == MF_STATUS_OK) {
        status = interface->describe(worker->device, &worker->described);
    }
    if (status == MF_STATUS_OK && interface->pci_address != NULL) {
        interface->pci_address(worker->device, worker->pci_address, sizeof(worker->pci_address));
    }
    if (status != MF_STATUS_OK && worker->device != NULL) {
        struct mf_error error = *mf_status_error();
        interface->close(worker->device);
        worker->device = NULL;
        (void)mf_status_restore(&error);
    }
    pthread_mutex_lock(&worker->lock);
    worker->error = *mf_status_error();
    worker->state = status == MF_STATUS_OK ? STATE_SERVING : STATE_FAILED;
    note_attention(worker);
    pthread_cond_broadcast(&worker->finished);
    pthread_mutex_unlock(&worker->lock);
}

/* Takes the next job; false when there is none and none will come. Called with the lock. */
static bool take(struct mf_device_worker *worker, struct job *out)
{
    while (worker->count == 0 && !worker->closing) {
        pthread_cond_wait(&worker->posted, &worker->lock);
    }
    if (worker->count == 0) {
        return false;
    }
    *out = worker->jobs[worker->first];
    worker->first = (worker->first + 1) % MF_DEVICE_JOBS_MAX;
    worker->count--;
    memcpy(worker->doing, out->what, sizeof(worker->doing));
    return true;
}

static void *serve(void *context)
{
    struct mf_device_worker *worker = context;
    open_device(worker);
    if (worker->device == NULL) {
        return NULL;
    }
    struct job job;
    pthread_mutex_lock(&worker->lock);
    while (take(worker, &job)) {
        pthread_mutex_unlock(&worker->lock);
        job.run(worker->interface, worker->device, job.context);
        pthread_mutex_lock(&worker->lock);
        worker->doing[0] = 0;
        note_attention(worker);
        if (job.done != NULL) {
            *job.done = true;
            pthread_cond_broadcast(&worker->finished);
        }
    }
    pthread_mutex_unlock(&worker->lock);
    worker->interface->close(worker->device);
    return NULL;
}

static void free_worker(struct mf_device_worker *worker)
{
    pthread_mutex_destroy(&worker->lock);
    pthread_cond_destroy(&worker->posted);
    pthread_cond_destroy(&worker->finished);
    free(worker);
}

enum mf_status mf_device_worker_open(const struct mf_device_interface *interface,
                                     const struct mf_device_options *options,
                                     struct mf_device_worker **out)
{
    *out = NULL;
    if (interface->abi != MF_DEVICE_ABI) {
        return mf_status_set(MF_STATUS_UNSUPPORTED,
                             "the device module is of another memferry (interface %u, this one "
                             "is %u): build both together",
                             interface->abi, MF_DEVICE_ABI);
    }
    struct mf_device_worker *worker = calloc(1, sizeof(*worker));
    MF_ASSERT(worker != NULL);
    worker->interface = interface;
    worker->options = *options;
    pthread_mutex_init(&worker->lock, NULL);
    pthread_cond_init(&worker->posted, NULL);
    pthread_cond_init(&worker->finished, NULL);
    if (pthread_create(&worker->thread, NULL, serve, worker) != 0) {
        free_worker(worker);
        return mf_status_set(MF_STATUS_NO_MEMORY, "the device's thread cannot be started");
    }
    (void)pthread_setname_np(worker->thread, "device");
    pthread_mutex_lock(&worker->lock);
    while (worker->state == STATE_OPENING) {
        pthread_cond_wait(&worker->finished, &worker->lock);
    }
    pthread_mutex_unlock(&worker->lock);
    if (worker->state == STATE_FAILED) {
        pthread_join(worker->thread, NULL);
        enum mf_status status = mf_status_restore(&worker->error);
        free_worker(worker);
        return status;
    }
    *out = worker;
    return MF_STATUS_OK;
}

void mf_device_worker_close(struct mf_device_worker *worker)
{
    if (worker == NULL) {
        return;
    }
    pthread_mutex_lock(&worker->lock);
    worker->closing = true;
    pthread_cond_signal(&worker->posted);
    pthread_mutex_unlock(&worker->lock);
    pthread_join(worker->thread, NULL);
    free_worker(worker);
}

/* Called with the lock. */
static enum mf_status enqueue(struct mf_device_worker *worker, const char *what, mf_device_job run,
                              void *context, bool *done)
{
    if (worker->closing) {
        return mf_status_set_reason(MF_STATUS_CANCELLED, "SHUTTING_DOWN",
                                    "the daemon is shutting down");
    }
    if (worker->count == MF_DEVICE_JOBS_MAX) {
        return mf_status_set_reason(MF_STATUS_BUSY, "DEVICE_QUEUE_FULL",
                                    "%d jobs wait for the device already, try again later",
                                    MF_DEVICE_JOBS_MAX);
    }
    int32_t last = (worker->first + worker->count) % MF_DEVICE_JOBS_MAX;
    struct job *job = &worker->jobs[last];
    *job = (struct job){.run = run, .context = context, .done = done};
    (void)snprintf(job->what, sizeof(job->what), "%s", what);
    worker->count++;
    pthread_cond_signal(&worker->posted);
    return MF_STATUS_OK;
}

enum mf_status mf_device_worker_post(struct mf_device_worker *worker, const char *what,
                                     mf_device_job job, void *context)
{
    pthread_mutex_lock(&worker->lock);
    enum mf_status status = enqueue(worker, what, job, context, NULL);
    pthread_mutex_unlock(&worker->lock);
    return status;
}

enum mf_status mf_device_worker_call(struct mf_device_worker *worker, const char *what,
                                     mf_device_job job, void *context)
{
    MF_ASSERT(!pthread_equal(pthread_self(), worker->thread)); /* it would wait for itself */
    bool done = false;
    pthread_mutex_lock(&worker->lock);
    enum mf_status status = enqueue(worker, what, job, context, &done);
    while (status == MF_STATUS_OK && !done) {
        pthread_cond_wait(&worker->finished, &worker->lock);
    }
    pthread_mutex_unlock(&worker->lock);
    return status;
}

void mf_device_worker_doing(struct mf_device_worker *worker, char *out, size_t size)
{
    pthread_mutex_lock(&worker->lock);
    (void)snprintf(out, size, "%s", worker->doing);
    pthread_mutex_unlock(&worker->lock);
}

const struct mf_hardware_device *mf_device_worker_described(const struct mf_device_worker *worker)
{
    return &worker->described;
}

const char *mf_device_worker_pci_address(const struct mf_device_worker *worker)
{
    return worker->pci_address;
}

void mf_device_worker_note_memory(struct mf_device_worker *worker)
{
    char text[sizeof(worker->memory)] = "";
    if (worker->interface->host_memory != NULL) {
        worker->interface->host_memory(worker->device, text, sizeof(text));
    }
    pthread_mutex_lock(&worker->lock);
    memcpy(worker->memory, text, sizeof(worker->memory));
    pthread_mutex_unlock(&worker->lock);
}

void mf_device_worker_attention(struct mf_device_worker *worker, char *out, size_t size)
{
    pthread_mutex_lock(&worker->lock);
    (void)snprintf(out, size, "%s", worker->attention);
    pthread_mutex_unlock(&worker->lock);
}

void mf_device_worker_memory(struct mf_device_worker *worker, char *out, size_t size)
{
    pthread_mutex_lock(&worker->lock);
    (void)snprintf(out, size, "%s", worker->memory);
    pthread_mutex_unlock(&worker->lock);
}
