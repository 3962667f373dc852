/*
 * Plans as text with their model, and back.
 *
 * What: an exported plan is decisions, what they are for, and the model's config. One that comes in
 *   is checked against that model, predicted anew with the costs of the machine asked for, and
 *   stored under a key of its own: no request is answered with it, only its id finds it.
 * Who calls it: PlanService. Owner: texts lie in the arena; plan and model are the caller's to
 *   reset. Thread: RPC workers. Fails: MF_STATUS_INVALID naming the key or the decision; as
 *   mf_solve when it does not fit the machine; as mf_tune_find_whole.
 */
#ifndef MF_SERVER_TUNE_FILE_H
#define MF_SERVER_TUNE_FILE_H

#include "core/arena.h"
#include "core/model.h"
#include "core/plan.h"
#include "server/service.h"

enum mf_status mf_tune_file_export(struct mf_service *service, const char *id,
                                   struct mf_arena *arena, const char **text,
                                   const char **full_id) MF_MUST_USE;
/* `wanted` is the fingerprint the model must have, NULL = any. *before: the step that the text
 * predicted. */
enum mf_status mf_tune_file_import(struct mf_service *service, const char *text, const char *wanted,
                                   const struct mf_hardware *hardware, struct mf_plan *plan,
                                   struct mf_model *model, double *before) MF_MUST_USE;

#endif
