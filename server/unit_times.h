/*
 * Busy time of each lane for each unit of a plan in one optimizer step: what the plan table shows.
 *
 * What: read from the plan's step graphs and the present costs; the last few plans are kept, so
 *   that showing a cached plan stays cheap. Who calls it: convert, services. Owner: open/close; the
 *   caller owns the array it passes. Thread: any. Fails: as mf_step_build.
 */
#ifndef MF_SERVER_UNIT_TIMES_H
#define MF_SERVER_UNIT_TIMES_H

#include "core/kernel.h"
#include "core/model.h"
#include "core/plan.h"
#include "server/service.h"

struct mf_unit_times;

struct mf_unit_times *mf_unit_times_open(void);
void mf_unit_times_close(struct mf_unit_times *times);
/* Fills `out`, one row for each unit of the plan. */
enum mf_status mf_unit_times_get(struct mf_service *service, const struct mf_plan *plan,
                                 const struct mf_model *model,
                                 double (*out)[MF_LANE_COUNT]) MF_MUST_USE;

#endif
