/* Private to server/run_config*.c: see run_config.h. */
#ifndef MF_SERVER_RUN_CONFIG_INTERNAL_H
#define MF_SERVER_RUN_CONFIG_INTERNAL_H

#include "server/run_config.h"

const char *mf_run_config_path(struct mf_run_config *config, const char *base, const char *path);
enum mf_status mf_run_config_path_list(struct mf_run_config *config, const json_t *value,
                                       const char *where, const char *key, const char *base,
                                       const char *const **out, int32_t *count) MF_MUST_USE;
void mf_run_config_model(struct mf_run_config *config, const char *base, const char *name);
const char *mf_run_config_default_output(struct mf_run_config *config, const char *home);

void mf_run_config_warn(struct mf_run_config *config, const char *format, ...) MF_PRINTF(2, 3);
/* DeepSpeed's part: batch sizes, optimizer, scheduler, precision, zero_optimization. */
enum mf_status mf_run_config_deepspeed(struct mf_run_config *config,
                                       const json_t *root) MF_MUST_USE;

#endif
