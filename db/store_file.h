/*
 * The store's file seen from outside SQLite: is it a database at all, is it on a file system that
 * can share memory, and how a damaged one is set aside.
 *
 * Who calls it: store.c while it opens. Memory: strings are malloc'd, the caller frees. Thread:
 * any. Fails: MF_STATUS_IO, _DENIED, _INVALID, _CORRUPT naming the path.
 */
#ifndef MF_DB_STORE_FILE_H
#define MF_DB_STORE_FILE_H

#include <stdbool.h>

#include "core/status.h"

/* OK when the file may be opened: absent, empty or with SQLite's first bytes, in a folder that can
 * be written. _CORRUPT when it is something else. */
enum mf_status mf_store_file_check(const char *path) MF_MUST_USE;
/* The name of the network or user-space file system `path` is on, where a write-ahead log's shared
 * memory cannot be trusted; NULL on others. */
const char *mf_store_file_shared_system(const char *path);
/* Renames path, path-wal, path-shm and path-journal to <path>.corrupt-<UTC>...; *out = new name. */
enum mf_status mf_store_file_set_aside(const char *path, char **out) MF_MUST_USE;
/* Waits up to `seconds` for the lock that opening holds (<path>.lock, freed by the kernel when a
 * process dies). *out = descriptor to close, -1 where the file system has no locks. */
enum mf_status mf_store_file_lock(const char *path, int seconds, int *out) MF_MUST_USE;

#endif
