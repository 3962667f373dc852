/*
 * MODEL and the flags of workload and budget, as messages of the contract.
 *
 * Who calls it: the verbs that plan or measure. Owner: init/reset by the verb; the messages point
 * into the struct. Thread: one. Fails: MF_STATUS_NOT_FOUND, MF_STATUS_IO for a MODEL that cannot be
 * read; wrong flags end the process with exit code 2 (argp).
 */
#ifndef MF_CLIENT_COMMAND_MODEL_H
#define MF_CLIENT_COMMAND_MODEL_H

#include <argp.h>
#include <stdbool.h>

#include "core/arena.h"
#include "core/status.h"
#include "memferry/v1/plan.pb-c.h"

#define MF_COMMAND_MODEL_PINS_MAX 256 /* as plan.proto */

struct mf_command_model {
    struct mf_arena arena;
    Memferry__V1__Model model;
    Memferry__V1__Workload workload;
    Memferry__V1__Constraints constraints;
    Memferry__V1__Effort effort; /* UNSPECIFIED = not said */
    bool strategy_given;
    int32_t batch;         /* sequences in a step; 0 = micro-batch and accumulation say */
    bool tune_micro_batch; /* --micro-batch auto */
    char *hardware;        /* name or text of a description, "" = the daemon's own */
    Memferry__V1__Pin *pins[MF_COMMAND_MODEL_PINS_MAX];
};

/* The flags, as a child parser whose input is the struct. */
const struct argp *mf_command_model_argp(void);

void mf_command_model_init(struct mf_command_model *model);
void mf_command_model_reset(struct mf_command_model *model);
/* `text`: a folder, a config.json or the name of a preset. */
enum mf_status mf_command_model_resolve(struct mf_command_model *model,
                                        const char *text) MF_MUST_USE;
/* MF_STATUS_INVALID for --micro-batch auto where one workload is needed. */
enum mf_status mf_command_model_fixed(const struct mf_command_model *model) MF_MUST_USE;
/* "PATTERN=forward:stream,backward:late"; adds to the constraints. */
enum mf_status mf_command_model_pin(struct mf_command_model *model, const char *text) MF_MUST_USE;

#endif
