/*
 * Descriptions of common machines, built in: the files hardware/<name>.json as text, which
 * mf_hardware_decode() reads. Who calls it: tune_machine.c. Owner: static. Thread: any. Fails: no.
 */
#ifndef MF_SERVER_CATALOG_H
#define MF_SERVER_CATALOG_H

#include <stddef.h>

struct mf_catalog_entry {
    const char *name;
    const char *text;
};

extern const struct mf_catalog_entry mf_catalog_entries[];
extern const size_t mf_catalog_count;

#endif
