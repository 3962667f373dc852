/*
 * Following a job that the daemon runs: its events on stdout, its progress on stderr, Ctrl-C.
 *
 * Who calls it: train, watch. Owner: the caller's struct; the texts in the request stay the
 * caller's. Thread: the main one; signals are taken by a thread that lives as long as the call.
 * Fails: as library_call.h; MF_STATUS_INTERNAL for a job that failed, MF_STATUS_CANCELLED for one
 * that was stopped before its end.
 */
#ifndef MF_CLIENT_COMMAND_JOB_H
#define MF_CLIENT_COMMAND_JOB_H

#include "client/command.h"

struct mf_command_job {
    struct mf_command_context *context;
    const char *method;              /* "Run" or "Watch" */
    const ProtobufCMessage *request; /* of that method */
    bool stoppable;                  /* Ctrl-C stops the job; else it only ends the following */
    bool detach;                     /* leave it as soon as it runs, printing its id */
    int64_t print_every;             /* steps; 0 and 1 = every one */
};

enum mf_status mf_command_job_follow(const struct mf_command_job *wanted) MF_MUST_USE;

#endif
