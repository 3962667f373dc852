/*
 * Sizes, durations and counts between text and numbers, one spelling everywhere.
 * Any thread; results go to the caller's buffer; only the parser can fail.
 */
#ifndef MF_CORE_FORMAT_H
#define MF_CORE_FORMAT_H

#include <stddef.h>
#include <stdint.h>

#include "core/status.h"

#define MF_FORMAT_MAX 32

/* "8GiB", "512 MiB", "1.5e9", "24GB", "4096": binary suffixes KiB MiB GiB TiB (also K M G T),
 * decimal kB MB GB TB, none = bytes. MF_STATUS_INVALID names the accepted forms. */
enum mf_status mf_format_parse_bytes(const char *text, int64_t *out) MF_MUST_USE;
/* "1.50 GiB"; exact below 1 KiB ("512 B"). Returns `out`. */
const char *mf_format_bytes(int64_t bytes, char out[static MF_FORMAT_MAX]);
/* "812.4 ms", "3.20 s", "45.0 us". */
const char *mf_format_ns(double ns, char out[static MF_FORMAT_MAX]);
/* "1.24 B", "124 M", "3.5 k". */
const char *mf_format_count(double count, char out[static MF_FORMAT_MAX]);
/* The member of `candidates` with the smallest edit distance to `word`; NULL when none is near. */
const char *mf_format_nearest(const char *word, const char *const *candidates, size_t count);

#endif
