/*
 * Building a model: units with their panels, operations, values and blocks from a family's
 * templates or from a bare list of units.
 *
 * Who calls it: model.c. Owner: everything is allocated in out->arena, which the caller has made.
 * Thread: any. Fails: MF_STATUS_INVALID naming the unit and the limit; *out is then half built and
 *   must be reset.
 */
#ifndef MF_CORE_MODEL_BUILD_H
#define MF_CORE_MODEL_BUILD_H

#include "core/model.h"
#include "core/model_config.h"
#include "core/status.h"

/* out->panel_bytes is set. */
enum mf_status mf_model_build_family(const struct mf_model_sizes *sizes,
                                     struct mf_model *out) MF_MUST_USE;
enum mf_status mf_model_build_list(const struct mf_unit_shape *shapes, int32_t count,
                                   struct mf_model *out) MF_MUST_USE;

#endif
