/* SHA-256 (OpenSSL) as lower-case hex: fingerprints and cache keys. Any thread; the caller owns
 * `out`; running out of memory inside OpenSSL ends the process. */
#ifndef MF_CORE_HASH_H
#define MF_CORE_HASH_H

#include <stddef.h>

#define MF_HASH_TEXT_MAX 65 /* 64 hex digits and NUL */

void mf_hash(const void *bytes, size_t count, char out[static MF_HASH_TEXT_MAX]);

#endif
