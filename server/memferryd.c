/*
 * memferryd: opens the daemon's parts in order, waits for a signal, closes them in reverse.
 *
 * Order: settings, log, home, store, device worker, hardware, tune, sessions, RPC. The first
 * SIGTERM, SIGINT or Shutdown call ends it after the work in flight, a second one at once.
 */
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "core/format.h"
#include "core/log.h"
#include "proto/descriptors.h"
#include "server/config.h"
#include "server/health.h"
#include "server/notify.h"
#include "server/plan_cache.h"
#include "server/reflection.h"
#include "server/rpc.h"
#include "server/service.h"
#include "server/service_table.h"
#include "server/session.h"
#include "server/startup.h"
#include "server/tune.h"
#include "server/unit_times.h"

#define GRACE_MS 30000

struct daemon {
    struct mf_service service;
    struct mf_health *health;
    struct mf_reflection *reflection;
    char bound[MF_ADDRESS_TEXT_MAX];
    bool force; /* set before draining begins */
};

/* Jobs would otherwise run on, and their streams keep the drain waiting. */
static void on_drain(void *context)
{
    const struct daemon *daemon = context;
    mf_session_table_stop(daemon->service.sessions, daemon->force);
}

/* A Shutdown call is a signal to ourselves: one way to end. */
static void request_shutdown(struct mf_service *service, bool force)
{
    (void)service;
    (void)kill(getpid(), force ? SIGQUIT : SIGTERM);
}

/* Every thread started from here on inherits the mask; main takes the signals by sigwait. */
static void block_signals(sigset_t *set)
{
    sigemptyset(set);
    sigaddset(set, SIGTERM);
    sigaddset(set, SIGINT);
    sigaddset(set, SIGQUIT);
    (void)pthread_sigmask(SIG_BLOCK, set, NULL);
    (void)signal(SIGPIPE, SIG_IGN);
    (void)signal(SIGXFSZ, SIG_IGN); /* a file-size limit is an error of one write */
}

static enum mf_status open_rpc(struct daemon *daemon)
{
    struct mf_service *service = &daemon->service;
    const struct mf_rpc_options options = {0};
    const struct mf_listener_options listening = {.mode = (mode_t)service->config.socket_mode};
    MF_TRY(mf_rpc_server_open(&options, &service->rpc));
    daemon->health = mf_health_open(service->rpc);
    MF_TRY(mf_reflection_open(service->rpc, mf_descriptors, mf_descriptors_bytes,
                              &daemon->reflection));
    mf_rpc_server_on_drain(service->rpc, on_drain, daemon);
    mf_service_table_add(service, service->rpc);
    MF_TRY(mf_rpc_server_start(service->rpc));
    service->address = daemon->bound; /* before the first call can come */
    (void)snprintf(daemon->bound, sizeof(daemon->bound), "%s", service->config.socket);
    if (service->config.tcp[0] != 0) {
        char bound[MF_ADDRESS_TEXT_MAX];
        MF_TRY(mf_rpc_server_listen(service->rpc, service->config.tcp, NULL, bound));
        mf_log_info("listening on %s too", bound);
    }
    return mf_rpc_server_listen(service->rpc, service->config.socket, &listening, NULL);
}

static enum mf_status open_all(struct daemon *daemon)
{
    struct mf_service *service = &daemon->service;
    service->started_unix_s = (int64_t)time(NULL);
    service->request_shutdown = request_shutdown;
    MF_TRY(mf_startup_home(&service->config));
    MF_TRY(mf_startup_store(&service->config, &service->store));
    MF_TRY(mf_startup_worker(service));
    mf_startup_hardware(service);
    service->tune = mf_tune_open(service);
    service->unit_times = mf_unit_times_open();
    service->plan_cache = mf_plan_cache_open();
    mf_startup_rates(service);
    MF_TRY(mf_session_table_open(service, &service->sessions));
    return open_rpc(daemon);
}

static void close_all(struct daemon *daemon, bool force)
{
    struct mf_service *service = &daemon->service;
    struct mf_error error = *mf_status_error();
    mf_rpc_server_close(service->rpc); /* no handler runs any more */
    if (service->sessions != NULL) {
        mf_session_table_close(service->sessions, force);
    }
    mf_health_close(daemon->health);
    mf_reflection_close(daemon->reflection);
    mf_unit_times_close(service->unit_times);
    mf_plan_cache_close(service->plan_cache);
    mf_device_worker_close(service->worker);
    mf_tune_close(service->tune);
    mf_store_close(service->store);
    (void)mf_status_restore(&error);
}

struct watcher {
    struct daemon *daemon;
    sigset_t signals;
};

/* While main drains: a second signal ends the process at once, socket and all. */
static void *wait_for_second(void *context)
{
    struct watcher *watcher = context;
    int number = 0;
    while (sigwait(&watcher->signals, &number) != 0) {
    }
    mf_log_warn("a second signal: ending at once");
    const char *path = watcher->daemon->service.config.socket;
    if (strncmp(path, "unix:", 5) == 0) {
        (void)unlink(path + 5);
    }
    _exit(1);
}

static void run(struct daemon *daemon, const sigset_t *signals)
{
    struct watcher watcher = {.daemon = daemon, .signals = *signals};
    pthread_t thread;
    int number = 0;
    while (sigwait(signals, &number) != 0) {
    }
    bool force = number == SIGQUIT;
    mf_notify_send("STOPPING=1");
    mf_log_info("%s: ending%s", strsignal(number),
                force ? "" : " after the work in flight; a second signal ends at once");
    if (pthread_create(&thread, NULL, wait_for_second, &watcher) == 0) {
        (void)pthread_detach(thread);
    }
    daemon->force = force;
    mf_rpc_server_drain(daemon->service.rpc, force ? 0 : GRACE_MS);
    close_all(daemon, force);
    mf_log_info("ended");
}

int main(int argc, char **argv)
{
    static struct daemon daemon;
    struct mf_config *config = &daemon.service.config;
    sigset_t signals;
    block_signals(&signals);
    mf_rpc_init();
    if (mf_config_read(argc, argv, config) != MF_STATUS_OK) {
        (void)fprintf(stderr, "memferryd: %s\n", mf_status_text());
        return 2;
    }
    if (config->print) {
        mf_config_print(config, stdout);
        return 0;
    }
    mf_log_configure((enum mf_log_level)config->log_level, config->log_json != 0);
    pthread_mutex_init(&daemon.service.hardware_lock, NULL);
    if (open_all(&daemon) != MF_STATUS_OK) {
        mf_log_error("%s", mf_status_text());
        close_all(&daemon, true);
        return 1;
    }
    char memory[MF_FORMAT_MAX];
    const struct mf_hardware_device *device = &daemon.service.hardware.devices[0];
    (void)fprintf(stderr, "memferryd %s ready: %s (%s device, %s)\n", MF_VERSION, config->socket,
                  device->kind, mf_format_bytes(device->memory_bytes, memory));
    mf_notify_send("READY=1");
    run(&daemon, &signals);
    return 0;
}
