/*
 * Files that the verbs write and read whole: exported machines and plans, pages.
 *
 * Who calls it: profile, plan, show. Owner: a text that is read is the caller's (free). Thread: the
 * main one. Fails: MF_STATUS_IO naming file and cause; MF_STATUS_INVALID for a file over a
 * message's size. A file that could not be written whole is removed.
 */
#ifndef MF_CLIENT_COMMAND_FILE_H
#define MF_CLIENT_COMMAND_FILE_H

#include <stdio.h>

#include "core/status.h"

/* "-" is standard output. */
enum mf_status mf_command_file_open(const char *path, FILE **out) MF_MUST_USE;
/* Ends what open began; says whether all was written. */
enum mf_status mf_command_file_close(const char *path, FILE *file) MF_MUST_USE;
enum mf_status mf_command_file_write(const char *path, const char *text) MF_MUST_USE;
/* "-" is standard input. */
enum mf_status mf_command_file_read(const char *path, char **out) MF_MUST_USE;

#endif
