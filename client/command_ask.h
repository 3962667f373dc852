/*
 * The two questions that several verbs ask: measure this model, plan this model.
 *
 * Who calls it: profile, plan, compare, estimate. Owner: answers are the caller's
 * (mf_wire_free). Thread: the main one. Fails: as library_call.h; Ctrl-C gives
 * MF_STATUS_CANCELLED.
 */
#ifndef MF_CLIENT_COMMAND_ASK_H
#define MF_CLIENT_COMMAND_ASK_H

#include "client/command.h"
#include "client/command_model.h"

/* Measures what is missing, with progress on stderr. */
enum mf_status mf_command_ask_measure(struct mf_command_context *context,
                                      struct mf_command_model *model, double seconds_max,
                                      bool again, bool counters,
                                      Memferry__V1__Profile **out) MF_MUST_USE;
/* One GetPlan. */
enum mf_status mf_command_ask_plan(struct mf_command_context *context,
                                   struct mf_command_model *model, Memferry__V1__Effort effort,
                                   Memferry__V1__GetPlanResponse **out) MF_MUST_USE;
/* The plan under the effort that `model` asks for (MEASURE when it does not say). A plan from the
 * store that was made from measurements is taken at once; else what is missing is measured, where
 * progress can be seen, before the plan is asked for. */
enum mf_status mf_command_ask_best_plan(struct mf_command_context *context,
                                        struct mf_command_model *model,
                                        Memferry__V1__GetPlanResponse **out) MF_MUST_USE;

#endif
