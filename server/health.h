/*
 * grpc.health.v1: whether the daemon, or one of its services, takes calls.
 *
 * Who calls it: memferryd (open, set), gRPC clients (Check, Watch). A service is known when the
 * server has a method of it; "" is the whole daemon. Everything serves from the start, nothing once
 * the server drains. Owner: opaque, open/close; close after the server. Thread: set from any.
 * Fails: nothing here; an unknown service is NOT_FOUND for Check, SERVICE_UNKNOWN for Watch.
 */
#ifndef MF_SERVER_HEALTH_H
#define MF_SERVER_HEALTH_H

#include <stdbool.h>

#include "server/rpc.h"

struct mf_health;

/* Adds its methods and its drain hook to `server`, which has not started. */
struct mf_health *mf_health_open(struct mf_rpc_server *server);
/* `service` is "" or a full name such as "memferry.v1.PlanService", at most 8 different ones. A
 * daemon that does not serve has no service that does. */
void mf_health_set(struct mf_health *health, const char *service, bool serving);
void mf_health_close(struct mf_health *health);

#endif
