/* Any bytes as a run config: refused with a text, or a job whose resolved form reads as itself. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "server/run_config.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check(const struct mf_run_config *config)
{
    MF_ASSERT(config->data_path_count > 0 && config->data_paths[0][0] == '/');
    MF_ASSERT(config->output[0] == '/' && config->model[0] != '\0');
    MF_ASSERT((config->steps > 0) != (config->epochs > 0));
    MF_ASSERT(config->workload.micro_batch > 0 && config->workload.accumulation > 0);
    MF_ASSERT(mf_executor_check_adam(&config->workload, &config->adam) == MF_STATUS_OK);
    for (int64_t step = 0; step < 4; step++) {
        double rate = mf_schedule_lr(&config->schedule, step * 300);
        MF_ASSERT(rate >= 0 && rate <= config->schedule.peak * (1 + 1e-9));
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct mf_run_config config;
    char *text = malloc(size + 1);
    MF_ASSERT(text != NULL);
    memcpy(text, data, size);
    text[size] = '\0';
    mf_run_config_init(&config);
    if (mf_run_config_read(text, "/base", "/home", &config) == MF_STATUS_OK) {
        check(&config);
        struct mf_run_config again;
        json_t *resolved = mf_run_config_resolved(&config);
        char *written = json_dumps(resolved, JSON_COMPACT);
        MF_ASSERT(written != NULL);
        mf_run_config_init(&again);
        MF_ASSERT(mf_run_config_read(written, "/base", "/home", &again) == MF_STATUS_OK);
        mf_run_config_reset(&again);
        free(written);
        json_decref(resolved);
    } else {
        MF_ASSERT(mf_status_text()[0] != '\0');
    }
    mf_run_config_reset(&config);
    free(text);
    return 0;
}
