/*
 * What a tokenizer needs of Unicode: classes of code points, valid UTF-8, composition (NFC).
 *
 * Who calls it: tokenizer*.c and documents.c. Owner: the caller. Thread: any; a table is only read
 * once it is filled. Fails: never; invalid UTF-8 is an answer.
 */
#ifndef MF_CLIENT_TOKENIZER_UNICODE_H
#define MF_CLIENT_TOKENIZER_UNICODE_H

#include <stddef.h>
#include <stdint.h>

#define MF_TOKENIZER_UNICODE_POINTS 0x110000
/* The longest canonical decomposition has 4 code points, so a text grows at most threefold. */
#define MF_TOKENIZER_UNICODE_GROWTH 3

/* Bits of a code point's class. */
enum {
    MF_TOKENIZER_UNICODE_LETTER = 1,   /* \p{L} */
    MF_TOKENIZER_UNICODE_NUMBER = 2,   /* \p{N} */
    MF_TOKENIZER_UNICODE_MARK = 4,     /* \p{M} */
    MF_TOKENIZER_UNICODE_SPACE = 8,    /* \s */
    MF_TOKENIZER_UNICODE_UNSTABLE = 16 /* may be changed by NFC, or change what is before it */
};

void mf_tokenizer_unicode_fill(uint8_t classes[static MF_TOKENIZER_UNICODE_POINTS]);

/* The code point at `text`, which is valid UTF-8 and has a byte; its length in bytes. */
uint32_t mf_tokenizer_unicode_decode(const char *text, size_t *length);
/* Appends the code point; 1 to 4 bytes. */
size_t mf_tokenizer_unicode_encode(uint32_t point, char *out);
/* Bytes of `text` that are valid UTF-8: `count` when all are. */
size_t mf_tokenizer_unicode_valid(const char *text, size_t count);

/* NFC of valid UTF-8, malloc'ed; NULL when the text is in that form already. */
char *mf_tokenizer_unicode_compose(const uint8_t *classes, const char *text, size_t count,
                                   size_t *out_count);

#endif
