/*
 * What every service handler works with: the daemon's parts, opened by memferryd.c in this order
 * and closed in the reverse one. Borrowed by all; each part says its own thread rule.
 */
#ifndef MF_SERVER_SERVICE_H
#define MF_SERVER_SERVICE_H

#include <pthread.h>
#include <stdint.h>

#include "core/hardware.h"
#include "db/store.h"
#include "server/config.h"
#include "server/device_worker.h"

struct mf_plan_cache;
struct mf_rpc_server;
struct mf_session_table;
struct mf_tune;
struct mf_unit_times;

struct mf_service {
    struct mf_config config;
    struct mf_store *store;
    struct mf_device_worker *worker;
    struct mf_tune *tune; /* plans being made, the profile in memory */
    struct mf_unit_times *unit_times;
    struct mf_plan_cache *plan_cache;
    struct mf_session_table *sessions;
    struct mf_rpc_server *rpc;
    pthread_mutex_t hardware_lock; /* guards `hardware`: measuring refines its rates */
    struct mf_hardware hardware;
    int64_t started_unix_s;
    char no_gpu[512];    /* why no GPU is used; "" = one is */
    const char *address; /* what it listens on, for messages */
    void (*request_shutdown)(struct mf_service *service, bool force);
};

#endif
