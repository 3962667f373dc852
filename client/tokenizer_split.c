/* Pieces of text: see tokenizer_split.h. Each function is one alternative of the patterns there,
 * and they are tried in the order of the patterns. */
#include "client/tokenizer_split.h"

#include <stdbool.h>
#include <string.h>

#include "client/tokenizer_unicode.h"
#include "core/status.h"

enum {
    LETTER = MF_TOKENIZER_UNICODE_LETTER,
    NUMBER = MF_TOKENIZER_UNICODE_NUMBER,
    SPACE = MF_TOKENIZER_UNICODE_SPACE,
    LONG_S = 0x17f /* what (?i:s) matches beside s and S */
};

static const struct {
    const char *name, *pattern;
    uint8_t letters;
    uint8_t digits;
} styles[] = {
#define X(name, text, letters, digits, pattern) {text, pattern, letters, digits},
    MF_TOKENIZER_SPLIT_MAP(X)
#undef X
};

struct cursor {
    const uint8_t *classes;
    const char *text;
    size_t count;
    uint8_t letters;
};

const char *mf_tokenizer_split_name(enum mf_tokenizer_split style)
{
    MF_ASSERT(style < MF_TOKENIZER_SPLIT_COUNT);
    return styles[style].name;
}

int mf_tokenizer_split_parse(const char *pattern)
{
    for (int i = 0; i < MF_TOKENIZER_SPLIT_COUNT; i++) {
        if (strcmp(styles[i].pattern, pattern) == 0) {
            return i;
        }
    }
    return -1;
}

/* Class and length of the character at `at`; at the end both are 0. */
static uint8_t look(const struct cursor *cursor, size_t at, size_t *length)
{
    *length = 0;
    return at < cursor->count
               ? cursor->classes[mf_tokenizer_unicode_decode(cursor->text + at, length)]
               : 0;
}

/* The end of the characters from `at` on that have (`wanted`) or have not one of `bits`. */
static size_t run(const struct cursor *cursor, size_t at, uint8_t bits, bool wanted, size_t most)
{
    size_t length = 0;
    for (size_t i = 0; i < most && at < cursor->count; i++) {
        if (((look(cursor, at, &length) & bits) != 0) != wanted) {
            break;
        }
        at += length;
    }
    return at;
}

static bool is_line_end(char byte)
{
    return byte == '\r' || byte == '\n';
}

/* Bytes of 's 't 're 've 'm 'll 'd; 0 = none of them. */
static size_t contraction(const struct cursor *cursor, bool any_case)
{
    static const char *const tails[] = {"s", "t", "re", "ve", "m", "ll", "d"};
    if (cursor->text[0] != '\'') {
        return 0;
    }
    for (size_t i = 0; i < sizeof(tails) / sizeof(tails[0]); i++) {
        size_t length = strlen(tails[i]);
        if (cursor->count > length &&
            (any_case ? strncasecmp(cursor->text + 1, tails[i], length)
                      : strncmp(cursor->text + 1, tails[i], length)) == 0) {
            return 1 + length;
        }
    }
    size_t length = 0;
    bool long_s = any_case && cursor->count > 2 &&
                  mf_tokenizer_unicode_decode(cursor->text + 1, &length) == LONG_S;
    return long_s ? 1 + length : 0;
}

/* \s*[\r\n]+ (only with `lines`), \s+(?!\S), \s+ */
static size_t blank(const struct cursor *cursor, bool lines)
{
    size_t end = run(cursor, 0, SPACE, true, SIZE_MAX);
    for (size_t i = end; lines && i > 0; i--) {
        if (is_line_end(cursor->text[i - 1])) {
            return i;
        }
    }
    if (end == cursor->count) {
        return end;
    }
    size_t last = end - 1; /* the last blank belongs to what follows, unless it is alone */
    while (last > 0 && (cursor->text[last] & 0xc0) == 0x80) {
        last--;
    }
    return last > 0 ? last : end;
}

static size_t next_gpt2(const struct cursor *cursor)
{
    size_t length = contraction(cursor, false);
    if (length > 0) {
        return length;
    }
    size_t start = cursor->text[0] == ' ' ? 1 : 0;
    uint8_t class = look(cursor, start, &length);
    if (length == 0 || (class & SPACE) != 0) {
        return blank(cursor, false);
    }
    if ((class & (LETTER | NUMBER)) != 0) {
        return run(cursor, start, class & (LETTER | NUMBER), true, SIZE_MAX);
    }
    return run(cursor, start, LETTER | NUMBER | SPACE, false, SIZE_MAX);
}

static size_t next_modern(const struct cursor *cursor, size_t digits)
{
    size_t first = contraction(cursor, true);
    size_t second = 0;
    if (first > 0) {
        return first;
    }
    uint8_t class = look(cursor, 0, &first);
    if ((class & cursor->letters) != 0) {
        return run(cursor, 0, cursor->letters, true, SIZE_MAX);
    }
    if ((class & NUMBER) != 0) {
        return run(cursor, 0, NUMBER, true, digits);
    }
    uint8_t after = look(cursor, first, &second);
    if (!is_line_end(cursor->text[0]) && (after & cursor->letters) != 0) {
        return run(cursor, first, cursor->letters, true, SIZE_MAX);
    }
    const uint8_t known = SPACE | NUMBER | cursor->letters;
    size_t start = cursor->text[0] == ' ' && second > 0 && (after & known) == 0 ? 1 : 0;
    if (start == 0 && (class & SPACE) != 0) {
        return blank(cursor, true);
    }
    size_t end = run(cursor, start, known, false, SIZE_MAX);
    while (end < cursor->count && is_line_end(cursor->text[end])) {
        end++;
    }
    return end;
}

size_t mf_tokenizer_split_next(enum mf_tokenizer_split style, const uint8_t *classes,
                               const char *text, size_t count)
{
    const struct cursor cursor = {classes, text, count, styles[style].letters};
    MF_ASSERT(count > 0 && style < MF_TOKENIZER_SPLIT_COUNT);
    return styles[style].digits == 0 ? next_gpt2(&cursor)
                                     : next_modern(&cursor, styles[style].digits);
}
