/*
 * Opening the daemon's parts: home, store, device, hardware and its rates.
 *
 * Who calls it: memferryd.c, tests, in this order. Owner: the caller closes what it gets. Thread:
 * main. Fails: as said; a store that cannot be opened ends the start, unknown rates do not.
 */
#ifndef MF_SERVER_STARTUP_H
#define MF_SERVER_STARTUP_H

#include "server/service.h"

/* Makes the home folder, mode 0700, with its parents. */
enum mf_status mf_startup_home(const struct mf_config *config) MF_MUST_USE;
enum mf_status mf_startup_store(const struct mf_config *config, struct mf_store **out) MF_MUST_USE;
/* Opens the worker of the device that the settings name; auto is cuda where there is one. Without a
 * GPU service->no_gpu says why. */
enum mf_status mf_startup_worker(struct mf_service *service) MF_MUST_USE;
/* Fills service->hardware, with the rates that the store remembers of this machine. */
void mf_startup_hardware(struct mf_service *service);
/* Measures the rates when nobody did; after mf_tune_open(). */
void mf_startup_rates(struct mf_service *service);

#endif
