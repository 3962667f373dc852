/*
 * Checks of the installation: what is there, whether it is well, and what it means for speed.
 *
 * Who calls it: service_hardware.c. Owner: the caller's array. Thread: RPC workers; touches no
 *   device in use beyond what is known of it; beside the host device it tries to open a GPU. Fails:
 * no; what cannot be found out is said so.
 */
#ifndef MF_SERVER_DOCTOR_H
#define MF_SERVER_DOCTOR_H

#include <stdint.h>

#include "server/service.h"

#define MF_DOCTOR_CHECKS_MAX 32

enum mf_doctor_verdict {
    MF_DOCTOR_GOOD,
    MF_DOCTOR_NOTE, /* works, could be better */
    MF_DOCTOR_BAD,  /* does not work */
};

struct mf_doctor_check {
    const char *name; /* static */
    enum mf_doctor_verdict verdict;
    char value[160];
    char meaning[320];
};

/* Returns how many. */
int32_t mf_doctor_run(struct mf_service *service,
                      struct mf_doctor_check out[static MF_DOCTOR_CHECKS_MAX]);

#endif
