/*
 * The machines that plans are for: this one, those in the store, those described in files.
 *
 * What: a name (or a description) becomes a hardware and what was measured on it; a stored plan's
 *   fingerprint leads back to the same, so that a plan for another machine is shown with that
 *   machine's costs and never run here. A machine and its profile travel as one text.
 * Who calls it: services, tune, sessions, timelines. Owner: profiles are the caller's to reset.
 *   Thread: any. Fails: MF_STATUS_NOT_FOUND naming the nearest; MF_STATUS_INVALID as decoding.
 */
#ifndef MF_SERVER_TUNE_MACHINE_H
#define MF_SERVER_TUNE_MACHINE_H

#include "core/arena.h"
#include "core/hardware.h"
#include "core/plan.h"
#include "core/profile.h"
#include "memferry/v1/hardware.pb-c.h"
#include "server/service.h"

/* `name`: "" or NULL = this machine as known now; a file that came with memferry; a fingerprint or
 * its first digits; the name of a device in the store; the text of a description. */
enum mf_status mf_tune_machine_find(struct mf_service *service, const char *name,
                                    struct mf_hardware *out) MF_MUST_USE;
/* Whether it is this machine as known now. */
bool mf_tune_machine_here(struct mf_service *service, const struct mf_hardware *hardware);
/* What was measured on it; this machine's from memory. */
void mf_tune_machine_profile(struct mf_service *service, const struct mf_hardware *hardware,
                             struct mf_profile *out);
/* The machine of a plan, and what was measured on it (NULL = not wanted). A machine that the store
 * does not know (any more) stands for this one: plans from before its rates were refined. Returns
 * whether the plan may run here: same kind and name of device, same CPU. */
bool mf_tune_machine_of(struct mf_service *service, const char *fingerprint,
                        struct mf_hardware *hardware, struct mf_profile *profile);
/* MF_STATUS_UNSUPPORTED, naming both machines, when the plan is for another one. */
enum mf_status mf_tune_machine_check(struct mf_service *service,
                                     const struct mf_plan *plan) MF_MUST_USE;
/* Everything that mf_tune_machine_find() finds; in the arena. */
enum mf_status mf_tune_machine_list(struct mf_service *service, struct mf_arena *arena,
                                    Memferry__V1__HardwareSummary ***out,
                                    size_t *count) MF_MUST_USE;
Memferry__V1__HardwareSummary *mf_tune_machine_summary(struct mf_service *service,
                                                       const struct mf_hardware *hardware,
                                                       struct mf_arena *arena);
/* A machine and its profile as text, in the arena, and back: into the store, and if it is this
 * machine's, into the profile in memory. */
enum mf_status mf_tune_machine_export(struct mf_service *service, const char *name,
                                      struct mf_arena *arena, const char **text,
                                      int32_t *count) MF_MUST_USE;
enum mf_status mf_tune_machine_import(struct mf_service *service, const char *text,
                                      struct mf_hardware *out, int32_t *count) MF_MUST_USE;

#endif
