/*
 * Checkpoints: a Hugging Face folder with the optimizer's state beside it, complete or not there.
 *
 * What: config.json and model.safetensors (bf16, opens in Transformers), optimizer.safetensors
 *   (fp32: "master.<name>", "exp_avg.<name>", "exp_avg_sq.<name>", each [rows, columns] with the
 *   output feature first, or [rows]), state.json (step and what the caller adds) and DONE, written
 *   last. Everything is made under <folder>.partial, synced, then renamed.
 * Who calls it: session_state.c. Owner: the caller; state is borrowed by save, owned after load.
 * Thread: any; units are asked for one after another, so memory stays at one unit.
 * Fails: MF_STATUS_IO (disk full: reason DISK_TOO_SMALL with the numbers, before anything is
 *   written), _EXISTS, _CORRUPT naming the file. A failed save leaves no folder of that name.
 */
#ifndef MF_RUNTIME_CHECKPOINT_H
#define MF_RUNTIME_CHECKPOINT_H

#include <jansson.h>
#include <stdbool.h>

#include "core/model.h"
#include "core/status.h"

/* fp32 arrays of one owner unit in panel layout; moments are NULL where they are not wanted. */
struct mf_checkpoint_unit {
    float *master;
    float *first;
    float *second;
};

/* save: fills the arrays of `unit`; load: takes them. */
typedef enum mf_status (*mf_checkpoint_exchange)(void *context, int32_t unit,
                                                 const struct mf_checkpoint_unit *arrays);

struct mf_checkpoint_options {
    bool weights_only;      /* no optimizer.safetensors */
    const char *companions; /* folder whose tokenizer files are copied; NULL = none */
    const json_t *state;    /* written as state.json; NULL = only the format's version */
};

enum mf_status mf_checkpoint_save(const struct mf_model *model, const char *folder,
                                  const struct mf_checkpoint_options *options,
                                  mf_checkpoint_exchange read, void *context) MF_MUST_USE;
/* Weights, and the optimizer's state when the folder has it (else master is the bf16 weight and the
 * moments are NULL). *state (may be NULL) gets state.json of a folder with DONE, NULL for any other
 * or when the call fails. MF_STATUS_CORRUPT, before `write` is called, when a folder with the
 * optimizer's state has no DONE or no state.json, or a tensor is missing, cut short or of another
 * shape; _INVALID for a state.json of a later version. */
enum mf_status mf_checkpoint_load(const struct mf_model *model, const char *folder,
                                  mf_checkpoint_exchange write, void *context, bool *optimizer,
                                  json_t **state) MF_MUST_USE;
/* The weights of any Hugging Face folder alone: master is the stored weight, the moments are NULL.
 */
enum mf_status mf_checkpoint_load_weights(const struct mf_model *model, const char *folder,
                                          mf_checkpoint_exchange write, void *context) MF_MUST_USE;
/* Bytes a save writes. */
int64_t mf_checkpoint_bytes(const struct mf_model *model, bool weights_only);

#endif
