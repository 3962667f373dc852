/* See health.h. Handlers run on the completion-queue thread, so that health answers while every
 * worker is busy. Whoever takes a watcher off the list owns its hold on the call. */
#include "server/health.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/limits.h"
#include "grpc/health/v1/health.pb-c.h"
#include "proto/wire.h"

#define OFF_MAX 8
#define REQUEST_BYTES_MAX 1024

typedef Grpc__Health__V1__HealthCheckResponse__ServingStatus serving_status;
#define SERVING GRPC__HEALTH__V1__HEALTH_CHECK_RESPONSE__SERVING_STATUS__SERVING
#define NOT_SERVING GRPC__HEALTH__V1__HEALTH_CHECK_RESPONSE__SERVING_STATUS__NOT_SERVING
#define SERVICE_UNKNOWN GRPC__HEALTH__V1__HEALTH_CHECK_RESPONSE__SERVING_STATUS__SERVICE_UNKNOWN

struct watcher {
    struct watcher *next;
    struct mf_rpc_call *call; /* held */
    serving_status told;
    char service[MF_NAME_MAX];
};

struct mf_health {
    struct mf_rpc_server *server;
    struct mf_rpc_method methods[2];
    pthread_mutex_t lock; /* all below; taken before a call's own */
    struct watcher *watchers;
    bool drained;
    char off[OFF_MAX][MF_NAME_MAX]; /* what does not serve; "" may be one */
    size_t off_count;
};

static bool known(const struct mf_health *health, const char *service)
{
    size_t length = strlen(service);
    const char *path = NULL;
    for (size_t i = 0; (path = mf_rpc_server_method(health->server, i)) != NULL; i++) {
        if (strncmp(path + 1, service, length) == 0 && path[1 + length] == '/') {
            return true;
        }
    }
    return length == 0;
}

static serving_status status_locked(const struct mf_health *health, const char *service)
{
    if (!known(health, service)) {
        return SERVICE_UNKNOWN;
    }
    for (size_t i = 0; i < health->off_count; i++) {
        if (health->off[i][0] == '\0' || strcmp(health->off[i], service) == 0) {
            return NOT_SERVING;
        }
    }
    return health->drained ? NOT_SERVING : SERVING;
}

static uint8_t *pack_status(serving_status status, size_t *count)
{
    Grpc__Health__V1__HealthCheckResponse response = GRPC__HEALTH__V1__HEALTH_CHECK_RESPONSE__INIT;
    response.status = status;
    return mf_wire_pack(&response.base, count);
}

/* A watcher that does not read for 64 changes of status is not worth more than an end. */
static void tell_locked(struct watcher *watcher, serving_status status)
{
    size_t count = 0;
    uint8_t *bytes = pack_status(status, &count);
    watcher->told = status;
    if (mf_rpc_call_send(watcher->call, bytes, count) != MF_STATUS_OK) {
        mf_rpc_call_fail(watcher->call, mf_status_error());
    }
    free(bytes);
}

static void tell_all_locked(struct mf_health *health)
{
    for (struct watcher *at = health->watchers; at != NULL; at = at->next) {
        serving_status status = status_locked(health, at->service);
        if (status != at->told) {
            tell_locked(at, status);
        }
    }
}

/* The service asked about, or a failed call. */
static bool read_request(struct mf_rpc_call *call, const uint8_t *request, size_t bytes,
                         char out[static MF_NAME_MAX])
{
    ProtobufCMessage *message = NULL;
    if (mf_wire_unpack(&grpc__health__v1__health_check_request__descriptor, request, bytes, 0,
                       &message) != MF_STATUS_OK) {
        mf_rpc_call_fail(call, mf_status_error());
        return false;
    }
    /* A name too long for us is no service of ours, cut or not. */
    snprintf(out, MF_NAME_MAX, "%s", ((Grpc__Health__V1__HealthCheckRequest *)message)->service);
    mf_wire_free(message);
    return true;
}

static void check(struct mf_rpc_call *call, const uint8_t *request, size_t bytes, void *context)
{
    struct mf_health *health = context;
    char service[MF_NAME_MAX];
    if (!read_request(call, request, bytes, service)) {
        return;
    }
    pthread_mutex_lock(&health->lock);
    serving_status status = status_locked(health, service);
    pthread_mutex_unlock(&health->lock);
    if (status == SERVICE_UNKNOWN) {
        (void)mf_status_set(MF_STATUS_NOT_FOUND, "this daemon has no service '%s'", service);
        mf_rpc_call_fail(call, mf_status_error());
        return;
    }
    size_t count = 0;
    uint8_t *reply = pack_status(status, &count);
    mf_rpc_call_reply(call, reply, count);
    free(reply);
}

static void watch_ended(struct mf_rpc_call *call, void *context)
{
    struct mf_health *health = context;
    pthread_mutex_lock(&health->lock);
    struct watcher **link = &health->watchers;
    while (*link != NULL && (*link)->call != call) {
        link = &(*link)->next;
    }
    struct watcher *watcher = *link;
    if (watcher != NULL) {
        *link = watcher->next;
    }
    pthread_mutex_unlock(&health->lock);
    if (watcher != NULL) {
        mf_rpc_call_release(call);
        free(watcher);
    }
}

static void watch(struct mf_rpc_call *call, const uint8_t *request, size_t bytes, void *context)
{
    struct mf_health *health = context;
    struct watcher *watcher = calloc(1, sizeof(*watcher));
    MF_ASSERT(watcher != NULL);
    if (!read_request(call, request, bytes, watcher->service)) {
        free(watcher);
        return;
    }
    watcher->call = call;
    mf_rpc_call_hold(call);
    pthread_mutex_lock(&health->lock);
    watcher->next = health->watchers;
    health->watchers = watcher;
    tell_locked(watcher, status_locked(health, watcher->service));
    pthread_mutex_unlock(&health->lock);
    mf_rpc_call_on_cancel(call, watch_ended, health);
}

static void drain(void *context)
{
    struct mf_health *health = context;
    pthread_mutex_lock(&health->lock);
    health->drained = true;
    tell_all_locked(health);
    struct watcher *watchers = health->watchers;
    health->watchers = NULL;
    pthread_mutex_unlock(&health->lock);
    (void)mf_status_set(MF_STATUS_UNAVAILABLE, "the daemon shuts down");
    while (watchers != NULL) {
        struct watcher *next = watchers->next;
        mf_rpc_call_fail(watchers->call, mf_status_error());
        mf_rpc_call_release(watchers->call);
        free(watchers);
        watchers = next;
    }
}

struct mf_health *mf_health_open(struct mf_rpc_server *server)
{
    struct mf_health *health = calloc(1, sizeof(*health));
    MF_ASSERT(health != NULL);
    health->server = server;
    pthread_mutex_init(&health->lock, NULL);
    health->methods[0] = (struct mf_rpc_method){.path = "/grpc.health.v1.Health/Check",
                                                .kind = MF_RPC_UNARY,
                                                .immediate = true,
                                                .request_bytes_max = REQUEST_BYTES_MAX,
                                                .handler = check,
                                                .context = health};
    health->methods[1] = health->methods[0];
    health->methods[1].path = "/grpc.health.v1.Health/Watch";
    health->methods[1].kind = MF_RPC_SERVER_STREAM;
    health->methods[1].handler = watch;
    mf_rpc_server_add(server, health->methods, 2);
    mf_rpc_server_on_drain(server, drain, health);
    return health;
}

void mf_health_set(struct mf_health *health, const char *service, bool serving)
{
    pthread_mutex_lock(&health->lock);
    size_t at = 0;
    while (at < health->off_count && strcmp(health->off[at], service) != 0) {
        at++;
    }
    if (serving && at < health->off_count) {
        memmove(health->off[at], health->off[health->off_count - 1], MF_NAME_MAX);
        health->off_count--;
    } else if (!serving && at == health->off_count) {
        MF_ASSERT(health->off_count < OFF_MAX);
        snprintf(health->off[health->off_count++], MF_NAME_MAX, "%s", service);
    }
    tell_all_locked(health);
    pthread_mutex_unlock(&health->lock);
}

void mf_health_close(struct mf_health *health)
{
    if (health == NULL) {
        return;
    }
    MF_ASSERT(health->watchers == NULL); /* Drained with the server. */
    pthread_mutex_destroy(&health->lock);
    free(health);
}
