/*
 * The data of a run config made into tokens before the config is sent: the daemon reads tokens
 * only.
 *
 * What: with a folder as "tokenizer" the texts become one token file, their validation another,
 *   in a cache folder beside the config; a file that is there already for the same contents is used
 * again. Who calls it: command_train.c. Owner: `config` is the caller's and changed. Thread: the
 * main one. Fails: MF_STATUS_INVALID naming the key; as token_data.h.
 */
#ifndef MF_CLIENT_COMMAND_TRAIN_DATA_H
#define MF_CLIENT_COMMAND_TRAIN_DATA_H

#include <jansson.h>
#include <stdbool.h>

#include "core/status.h"

/* `folder` is the config's: relative paths start there. Nothing happens to other data. */
enum mf_status mf_command_train_data_prepare(json_t *config, const char *folder,
                                             bool quiet) MF_MUST_USE;

#endif
