/*
 * Private to server/run_config*.c: the parts of a run config, one file each. See run_config.h.
 *
 * Owner: the config's arena. `root` is changed while it is read: "auto" is taken out. Thread: one.
 * Fails: as run_config.h.
 */
#ifndef MF_SERVER_RUN_CONFIG_INTERNAL_H
#define MF_SERVER_RUN_CONFIG_INTERNAL_H

#include "server/run_config_fields.h"

/* Plain values by block; the rows are beside what reads them. */
struct mf_run_config_table {
    const struct mf_run_config_field *fields;
    size_t count;
};
extern const struct mf_run_config_table mf_run_config_block_main;
extern const struct mf_run_config_table mf_run_config_data_table;
extern const struct mf_run_config_table mf_run_config_block_sample;
extern const struct mf_run_config_table mf_run_config_schedule_table;
extern const char *const mf_run_config_block_efforts[3]; /* by enum mf_effort */

/* run_config_paths.c */
enum mf_status mf_run_config_paths_one(struct mf_run_config *config, const char *base,
                                       const char *where, const char *path,
                                       const char **out) MF_MUST_USE;
enum mf_status mf_run_config_paths_list(struct mf_run_config *config, const json_t *value,
                                        const char *where, const char *key, const char *base,
                                        const char *const **out, int32_t *count) MF_MUST_USE;
/* Fills model and model_kind; *shapes = a preset or a config.json, which have no weights. */
enum mf_status mf_run_config_paths_model(struct mf_run_config *config, const char *base,
                                         const char *name, bool *shapes) MF_MUST_USE;
const char *mf_run_config_paths_output(struct mf_run_config *config, const char *home);

/* run_config_data.c: the block's "data"; after "seed". */
enum mf_status mf_run_config_data_read(struct mf_run_config *config, const json_t *block,
                                       const char *base) MF_MUST_USE;
/* run_config_deepspeed.c: batch sizes, optimizer, precision, and the keys without meaning here. */
enum mf_status mf_run_config_deepspeed_read(struct mf_run_config *config, json_t *root) MF_MUST_USE;
/* run_config_zero.c: keys of DeepSpeed's that are planned here, do not matter, or are refused. */
enum mf_status mf_run_config_zero_read(struct mf_run_config *config, json_t *root) MF_MUST_USE;
/* Refuses keys at the top that are nobody's. */
enum mf_status mf_run_config_zero_only(const json_t *root) MF_MUST_USE;
/* run_config_schedule.c: "scheduler" or "memferry"."schedule"; after steps and optimizer. */
enum mf_status mf_run_config_schedule_read(struct mf_run_config *config, json_t *root,
                                           const json_t *block) MF_MUST_USE;
/* run_config_block.c: the "memferry" block without its schedule. */
enum mf_status mf_run_config_block_read(struct mf_run_config *config, const json_t *block,
                                        const char *base, const char *home) MF_MUST_USE;

/* run_config_encode.c */
json_t *mf_run_config_encode(const struct mf_run_config *config);

#endif
