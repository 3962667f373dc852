/*
 * Files and folders that survive a crash: what is written is whole or absent.
 *
 * Who calls it: weights, checkpoint, sessions (run folders), server. Owner: the caller; lists lie
 * in the caller's arena. Thread: any. Fails: MF_STATUS_IO (with the path, the reason and, where
 * space is the reason, both numbers), _DENIED, _NOT_FOUND, _EXISTS, _INVALID.
 */
#ifndef MF_RUNTIME_FILES_H
#define MF_RUNTIME_FILES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/arena.h"
#include "core/status.h"

/* The failure of a call on `path` by errno value `code`; `doing` = "write". */
enum mf_status mf_files_failed(int code, const char *doing, const char *path);

/* The whole file at once: a temporary next to it, synced, renamed over it, folder synced. */
enum mf_status mf_files_write(const char *path, const void *bytes, size_t count) MF_MUST_USE;
/* All `count` bytes to a descriptor. `path` is for the message. */
enum mf_status mf_files_write_all(int file, const void *bytes, size_t count,
                                  const char *path) MF_MUST_USE;
/* Exactly `count` bytes from `offset`; fewer is MF_STATUS_CORRUPT with the numbers. */
enum mf_status mf_files_read_at(int file, int64_t offset, void *out, size_t count,
                                const char *path) MF_MUST_USE;
/* A regular file's content, copied atomically; MF_STATUS_NOT_FOUND when it is not there. */
enum mf_status mf_files_copy(const char *from, const char *to) MF_MUST_USE;

/* Makes the folder and those above it, mode 0777 & ~umask; fine when it is there. */
enum mf_status mf_files_make_folder(const char *path) MF_MUST_USE;
/* Names in the folder are on the disk when this returns. */
enum mf_status mf_files_sync_folder(const char *path) MF_MUST_USE;
/* Renames a finished folder to its name and syncs the folder above. MF_STATUS_EXISTS when `to` is
 * there and not an empty folder. */
enum mf_status mf_files_publish(const char *from, const char *to) MF_MUST_USE;
/* Removes a file or a folder with all it holds; symbolic links are removed, not followed; fine when
 * it is not there. Refuses "", "/", "." and "..". */
enum mf_status mf_files_remove_tree(const char *path) MF_MUST_USE;

/* Bytes this user can still write where `path` is, or will be. */
enum mf_status mf_files_free_bytes(const char *path, int64_t *out) MF_MUST_USE;
/* MF_STATUS_IO, reason DISK_TOO_SMALL, when fewer than `bytes` are free; `what` = "checkpoint". */
enum mf_status mf_files_require_space(const char *path, int64_t bytes,
                                      const char *what) MF_MUST_USE;

struct mf_files_checkpoint {
    int64_t step;
    const char *path;
};
/* The complete checkpoint-<step> folders of a run folder (those with DONE), lowest step first. */
enum mf_status mf_files_list_checkpoints(const char *run_folder, struct mf_arena *arena,
                                         struct mf_files_checkpoint **out,
                                         int32_t *count) MF_MUST_USE;

#endif
