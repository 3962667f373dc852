/*
 * Messages of the contract to our structs and back: the only place that reads unpacked messages of
 * hardware, profiles and plans. Every enum, range, count and text is checked here, before anything
 * is built from it.
 *
 * Who calls it: services, sessions. Owner: what comes out borrows nothing from a message: texts are
 * copied into the caller's arena. Messages made for replies point into the arena. Thread: RPC
 * workers and session threads. Fails: MF_STATUS_INVALID naming the field and its range;
 *   MF_STATUS_DENIED for folders outside the allowed ones; as mf_model_from_*.
 */
#ifndef MF_SERVER_CONVERT_H
#define MF_SERVER_CONVERT_H

#include <stdbool.h>
#include <stdint.h>

#include "core/arena.h"
#include "core/model.h"
#include "core/plan.h"
#include "core/workload.h"
#include "memferry/v1/hardware.pb-c.h"
#include "memferry/v1/plan.pb-c.h"
#include "server/service.h"
#include "server/tune.h"

/* `folder` (may be NULL) gets the resolved Hugging Face folder, NULL when only shapes were given.
 * The caller resets the model; `message` may be NULL, which is an error. */
enum mf_status mf_convert_model(struct mf_service *service, const Memferry__V1__Model *message,
                                struct mf_arena *arena, struct mf_model *out,
                                const char **folder) MF_MUST_USE;
/* With defaults for what is zero, checked against the model; `message` may be NULL. */
enum mf_status mf_convert_workload(const Memferry__V1__Workload *message,
                                   const struct mf_model *model,
                                   struct mf_workload *out) MF_MUST_USE;
/* `message` may be NULL. */
enum mf_status mf_convert_constraints(const Memferry__V1__Constraints *message,
                                      struct mf_arena *arena, struct mf_constraints *out,
                                      enum mf_strategy *strategy, struct mf_pin **pins,
                                      int32_t *pin_count) MF_MUST_USE;
enum mf_status mf_convert_effort(Memferry__V1__Effort value, enum mf_effort *out) MF_MUST_USE;
/* A path of the daemon's machine that a client named, resolved, if it may be named. */
enum mf_status mf_convert_path(struct mf_service *service, const char *path, struct mf_arena *arena,
                               const char **out) MF_MUST_USE;

/* Replies. */
enum mf_status mf_convert_plan(struct mf_service *service, const struct mf_plan *plan,
                               const struct mf_model *model, struct mf_arena *arena,
                               Memferry__V1__Plan **out) MF_MUST_USE;
Memferry__V1__Workload *mf_convert_workload_reply(const struct mf_workload *workload,
                                                  struct mf_arena *arena);
Memferry__V1__Contention *mf_convert_contention(const struct mf_contention *contention,
                                                struct mf_arena *arena);
Memferry__V1__Hardware *mf_convert_hardware(const struct mf_hardware *hardware,
                                            int64_t reserved_bytes, struct mf_arena *arena);
/* One unit of a plan, with times in one optimizer step by lane (of mf_unit_times_get). */
Memferry__V1__UnitPlan *mf_convert_unit(const struct mf_plan *plan, const struct mf_model *model,
                                        int32_t unit, const double times[static MF_LANE_COUNT],
                                        struct mf_arena *arena);

#endif
