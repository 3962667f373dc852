/* SHA-256 through OpenSSL: see hash.h. */
#include "core/hash.h"

#include <openssl/evp.h>

#include "core/status.h"

void mf_hash(const void *bytes, size_t count, char out[static MF_HASH_TEXT_MAX])
{
    unsigned char digest[EVP_MAX_MD_SIZE];
    unsigned length = 0;
    MF_ASSERT(EVP_Digest(bytes, count, digest, &length, EVP_sha256(), NULL) == 1 && length == 32);
    for (unsigned i = 0; i < length; i++) {
        out[2 * i] = "0123456789abcdef"[digest[i] >> 4];
        out[2 * i + 1] = "0123456789abcdef"[digest[i] & 15];
    }
    out[2 * length] = '\0';
}
