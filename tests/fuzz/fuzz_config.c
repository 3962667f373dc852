/* Any bytes as a config.json: refused with a text, or a model whose panels add up. */
#include <stdint.h>

#include "core/json.h"
#include "core/model.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check_unit(const struct mf_unit *unit)
{
    int64_t elements = 0;
    int64_t rows = 0;
    MF_ASSERT(unit->panel_count >= 1 && unit->panel_count <= MF_PANELS_PER_UNIT_MAX);
    for (int32_t panel = 0; panel < unit->panel_count; panel++) {
        MF_ASSERT(mf_model_panel_offset(unit, panel) == elements);
        MF_ASSERT(mf_model_panel_first_row(unit, panel) == rows);
        MF_ASSERT(mf_model_panel_row_count(unit, panel) > 0);
        elements += mf_model_panel_size(unit, panel);
        rows += mf_model_panel_row_count(unit, panel);
    }
    MF_ASSERT(elements == unit->elements && rows == unit->rows);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    json_t *config = NULL;
    struct mf_model model;
    if (mf_json_parse((const char *)data, size, "config.json", &config) != MF_STATUS_OK) {
        return 0;
    }
    enum mf_status status = mf_model_from_config(config, "fuzz", 0, &model);
    if (status == MF_STATUS_OK) {
        MF_ASSERT(model.unit_count > 0 && model.unit_count <= MF_UNITS_MAX);
        for (int32_t i = 0; i < model.unit_count; i++) {
            check_unit(&model.units[i]);
        }
        mf_model_reset(&model);
    } else {
        MF_ASSERT(mf_status_text()[0] != '\0');
    }
    json_decref(config);
    return 0;
}
