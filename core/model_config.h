/*
 * Reading a Hugging Face config.json by a family's row: sizes and switches out, or a refusal that
 * names the key.
 *
 * Who calls it: model.c. Owner: plain data; `config` is borrowed. Thread: any.
 * Fails: MF_STATUS_INVALID naming key and values, MF_STATUS_UNSUPPORTED naming the setting: a
 *   setting that changes the computation is never ignored.
 */
#ifndef MF_CORE_MODEL_CONFIG_H
#define MF_CORE_MODEL_CONFIG_H

#include <jansson.h>

#include "core/model.h"
#include "core/model_family.h"
#include "core/status.h"

struct mf_model_sizes {
    const struct mf_model_family *family;
    int64_t dimensions[MF_DIMENSION_COUNT];
    bool switches[MF_SWITCH_COUNT];
    int32_t layers;
    int32_t heads;
    int32_t kv_heads;
    int32_t head_dim;
    int64_t positions_max; /* of a sequence: learned positions, or a sliding window, may bound it */
    bool tie;
    double eps;
    double init_std;
    struct mf_rope rope;
};

enum mf_status mf_model_config_read(const json_t *config, struct mf_model_sizes *out) MF_MUST_USE;

#endif
