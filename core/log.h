/*
 * Log lines on stderr: one line each, UTC time, level, text; plain or JSON; with systemd's
 * priority prefix when stderr is the journal. Any thread; a line is written whole. Never fails.
 */
#ifndef MF_CORE_LOG_H
#define MF_CORE_LOG_H

#include <stdbool.h>

enum mf_log_level { MF_LOG_ERROR, MF_LOG_WARN, MF_LOG_INFO, MF_LOG_DEBUG };

/* Names are error, warn, info, debug; false when `name` is none of them. */
bool mf_log_level_parse(const char *name, enum mf_log_level *out);
void mf_log_configure(enum mf_log_level level, bool json);
void mf_log(enum mf_log_level level, const char *format, ...) __attribute__((format(printf, 2, 3)));

#define mf_log_error(...) mf_log(MF_LOG_ERROR, __VA_ARGS__)
#define mf_log_warn(...) mf_log(MF_LOG_WARN, __VA_ARGS__)
#define mf_log_info(...) mf_log(MF_LOG_INFO, __VA_ARGS__)
#define mf_log_debug(...) mf_log(MF_LOG_DEBUG, __VA_ARGS__)

#endif
