/*
 * The tables of the store and the steps from each version of them to the next.
 *
 * Who calls it: store.c while it opens. Thread: the opener. Fails: as store.h; a version newer than
 * ours is MF_STATUS_UNSUPPORTED and nothing is changed.
 */
#ifndef MF_DB_STORE_SCHEMA_H
#define MF_DB_STORE_SCHEMA_H

#include <stdint.h>

#include "core/status.h"
#include "db/store_sql.h"

#define MF_STORE_SCHEMA_APPLICATION_ID 0x4d464552 /* "MFER" */

/* The version this program writes. */
int64_t mf_store_schema_version(void);
/* Whose file it is: OK for ours and for an empty one, _CORRUPT for another program's, _UNSUPPORTED
 * for a newer memferry's. */
enum mf_status mf_store_schema_check(struct mf_store *store) MF_MUST_USE;
/* Brings the tables to our version, in one transaction; safe when several processes do it. */
enum mf_status mf_store_schema_migrate(struct mf_store *store) MF_MUST_USE;

#endif
