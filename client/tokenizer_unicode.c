/* Code points, their classes, NFC: see tokenizer_unicode.h. The algorithm of composition is that of
 * the Unicode Standard, chapter 3.11 and (Hangul) 3.12. */
#include "client/tokenizer_unicode.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "core/status.h"

struct mf_tokenizer_unicode_range {
    uint32_t first, last;
};
struct mf_tokenizer_unicode_combining {
    uint32_t first, last;
    uint8_t rank;
};
struct mf_tokenizer_unicode_decomposition {
    uint32_t point, first, second; /* second 0 = none */
    bool composes;
};

#include "client/tokenizer_unicode_generated.h"

#define COUNT(table) (sizeof(table) / sizeof((table)[0]))

enum {
    HANGUL = 0xac00,
    HANGUL_COUNT = 11172,
    LEADING = 0x1100,
    LEADING_COUNT = 19,
    VOWEL = 0x1161,
    VOWEL_COUNT = 21,
    TRAILING = 0x11a7, /* none of them is a trailing consonant */
    TRAILING_COUNT = 28
};

uint32_t mf_tokenizer_unicode_decode(const char *text, size_t *length)
{
    const unsigned char *byte = (const unsigned char *)text;
    if (byte[0] < 0x80) {
        *length = 1;
        return byte[0];
    }
    if (byte[0] < 0xe0) {
        *length = 2;
        return (byte[0] & 0x1fu) << 6 | (byte[1] & 0x3fu);
    }
    if (byte[0] < 0xf0) {
        *length = 3;
        return (byte[0] & 0xfu) << 12 | (byte[1] & 0x3fu) << 6 | (byte[2] & 0x3fu);
    }
    *length = 4;
    return (byte[0] & 7u) << 18 | (byte[1] & 0x3fu) << 12 | (byte[2] & 0x3fu) << 6 |
           (byte[3] & 0x3fu);
}

size_t mf_tokenizer_unicode_encode(uint32_t point, char *out)
{
    if (point < 0x80) {
        out[0] = (char)point;
        return 1;
    }
    size_t length = point < 0x800 ? 2 : point < 0x10000 ? 3 : 4;
    for (size_t i = length - 1; i > 0; i--) {
        out[i] = (char)(0x80 | (point & 0x3f));
        point >>= 6;
    }
    out[0] = (char)(0xf00 >> length | point);
    return length;
}

/* Bytes of the character at `text`, 0 when it is none: the table 3-7 of the Unicode Standard. */
static size_t check_point(const unsigned char *byte, size_t left)
{
    static const struct {
        unsigned char first, last, second_low, second_high, length;
    } forms[] = {{0xc2, 0xdf, 0x80, 0xbf, 2}, {0xe0, 0xe0, 0xa0, 0xbf, 3},
                 {0xe1, 0xec, 0x80, 0xbf, 3}, {0xed, 0xed, 0x80, 0x9f, 3},
                 {0xee, 0xef, 0x80, 0xbf, 3}, {0xf0, 0xf0, 0x90, 0xbf, 4},
                 {0xf1, 0xf3, 0x80, 0xbf, 4}, {0xf4, 0xf4, 0x80, 0x8f, 4}};
    for (size_t i = 0; i < COUNT(forms); i++) {
        if (byte[0] < forms[i].first || byte[0] > forms[i].last) {
            continue;
        }
        bool valid = left >= forms[i].length && byte[1] >= forms[i].second_low &&
                     byte[1] <= forms[i].second_high;
        for (size_t k = 2; valid && k < forms[i].length; k++) {
            valid = (byte[k] & 0xc0) == 0x80;
        }
        return valid ? forms[i].length : 0;
    }
    return 0;
}

size_t mf_tokenizer_unicode_valid(const char *text, size_t count)
{
    const unsigned char *bytes = (const unsigned char *)text;
    size_t at = 0;
    while (at < count) {
        if (bytes[at] < 0x80) {
            at++;
            continue;
        }
        size_t length = check_point(bytes + at, count - at);
        if (length == 0) {
            break;
        }
        at += length;
    }
    return at;
}

static void mark(uint8_t *classes, const struct mf_tokenizer_unicode_range *ranges, size_t count,
                 uint8_t bit)
{
    for (size_t i = 0; i < count; i++) {
        for (uint32_t point = ranges[i].first; point <= ranges[i].last; point++) {
            classes[point] |= bit;
        }
    }
}

void mf_tokenizer_unicode_fill(uint8_t classes[static MF_TOKENIZER_UNICODE_POINTS])
{
    static const struct mf_tokenizer_unicode_range joining[] = {
        {VOWEL, VOWEL + VOWEL_COUNT - 1}, {TRAILING + 1, TRAILING + TRAILING_COUNT - 1}};
    memset(classes, 0, MF_TOKENIZER_UNICODE_POINTS);
    mark(classes, letters, COUNT(letters), MF_TOKENIZER_UNICODE_LETTER);
    mark(classes, numbers, COUNT(numbers), MF_TOKENIZER_UNICODE_NUMBER);
    mark(classes, marks, COUNT(marks), MF_TOKENIZER_UNICODE_MARK);
    mark(classes, spaces, COUNT(spaces), MF_TOKENIZER_UNICODE_SPACE);
    mark(classes, joining, COUNT(joining), MF_TOKENIZER_UNICODE_UNSTABLE);
    for (size_t i = 0; i < COUNT(combining); i++) {
        const struct mf_tokenizer_unicode_range range = {combining[i].first, combining[i].last};
        mark(classes, &range, 1, MF_TOKENIZER_UNICODE_UNSTABLE);
    }
    for (size_t i = 0; i < COUNT(decompositions); i++) {
        uint32_t point =
            decompositions[i].composes ? decompositions[i].second : decompositions[i].point;
        classes[point] |= MF_TOKENIZER_UNICODE_UNSTABLE;
    }
}

static uint8_t rank_of(uint32_t point)
{
    size_t low = 0;
    size_t high = COUNT(combining);
    while (low < high) {
        size_t middle = (low + high) / 2;
        if (combining[middle].last < point) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    return low < COUNT(combining) && combining[low].first <= point ? combining[low].rank : 0;
}

/* Appends the full decomposition; returns the new count. */
static size_t decompose(uint32_t point, uint32_t *out, size_t count)
{
    if (point - HANGUL < HANGUL_COUNT) {
        uint32_t index = point - HANGUL;
        out[count++] = LEADING + index / (VOWEL_COUNT * TRAILING_COUNT);
        out[count++] = VOWEL + index / TRAILING_COUNT % VOWEL_COUNT;
        if (index % TRAILING_COUNT != 0) {
            out[count++] = TRAILING + index % TRAILING_COUNT;
        }
        return count;
    }
    size_t low = 0;
    size_t high = COUNT(decompositions);
    while (low < high) {
        size_t middle = (low + high) / 2;
        if (decompositions[middle].point < point) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    if (low == COUNT(decompositions) || decompositions[low].point != point) {
        out[count++] = point;
        return count;
    }
    count = decompose(decompositions[low].first, out, count);
    if (decompositions[low].second != 0) {
        out[count++] = decompositions[low].second; /* none of these has one of its own */
    }
    return count;
}

/* 0 = the two do not compose. */
static uint32_t compose_pair(uint32_t first, uint32_t second)
{
    if (first - LEADING < LEADING_COUNT && second - VOWEL < VOWEL_COUNT) {
        return HANGUL + ((first - LEADING) * VOWEL_COUNT + second - VOWEL) * TRAILING_COUNT;
    }
    if (first - HANGUL < HANGUL_COUNT && (first - HANGUL) % TRAILING_COUNT == 0 &&
        second > TRAILING && second < TRAILING + TRAILING_COUNT) {
        return first + second - TRAILING;
    }
    size_t low = 0;
    size_t high = COUNT(pairs);
    while (low < high) {
        size_t middle = (low + high) / 2;
        const struct mf_tokenizer_unicode_decomposition *at = &decompositions[pairs[middle]];
        if (at->first == first && at->second == second) {
            return at->point;
        }
        if (at->first < first || (at->first == first && at->second < second)) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    return 0;
}

/* Marks between two starters in the order of their ranks, equal ones as they were. */
static void reorder(uint32_t *points, size_t count)
{
    for (size_t i = 1; i < count; i++) {
        uint8_t rank = rank_of(points[i]);
        uint32_t point = points[i];
        size_t place = i;
        while (rank != 0 && place > 0 && rank_of(points[place - 1]) > rank) {
            points[place] = points[place - 1];
            place--;
        }
        points[place] = point;
    }
}

/* Composes in place; returns the new count. */
static size_t compose(uint32_t *points, size_t count)
{
    size_t made = 0;
    size_t starter = SIZE_MAX;
    uint8_t last_rank = 0;
    for (size_t i = 0; i < count; i++) {
        uint8_t rank = rank_of(points[i]);
        bool blocked = starter != SIZE_MAX && made > starter + 1 && last_rank >= rank;
        uint32_t whole =
            starter != SIZE_MAX && !blocked ? compose_pair(points[starter], points[i]) : 0;
        if (whole != 0) {
            points[starter] = whole;
            continue;
        }
        if (rank == 0) {
            starter = made;
        }
        last_rank = rank;
        points[made++] = points[i];
    }
    return made;
}

/* One stretch that may change: from a starter to before the next stable one. */
static size_t compose_stretch(const char *text, size_t count, char *out)
{
    uint32_t *points = malloc((count + 1) * 4 * sizeof(*points));
    size_t point_count = 0;
    size_t written = 0;
    MF_ASSERT(points != NULL);
    for (size_t at = 0, length = 0; at < count; at += length) {
        point_count =
            decompose(mf_tokenizer_unicode_decode(text + at, &length), points, point_count);
    }
    reorder(points, point_count);
    point_count = compose(points, point_count);
    for (size_t i = 0; i < point_count; i++) {
        written += mf_tokenizer_unicode_encode(points[i], out + written);
    }
    free(points);
    return written;
}

char *mf_tokenizer_unicode_compose(const uint8_t *classes, const char *text, size_t count,
                                   size_t *out_count)
{
    char *out = NULL;
    size_t made = 0;
    size_t copied = 0;   /* bytes of the text that are in `out` */
    size_t previous = 0; /* where the last stable character began */
    for (size_t at = 0, length = 0; at < count; at += length) {
        uint32_t point = mf_tokenizer_unicode_decode(text + at, &length);
        if ((classes[point] & MF_TOKENIZER_UNICODE_UNSTABLE) == 0) {
            previous = at;
            continue;
        }
        size_t end = at + length;
        for (size_t more = 0; end < count; end += more) {
            point = mf_tokenizer_unicode_decode(text + end, &more);
            if ((classes[point] & MF_TOKENIZER_UNICODE_UNSTABLE) == 0) {
                break;
            }
        }
        if (out == NULL) {
            out = malloc(count * MF_TOKENIZER_UNICODE_GROWTH + 1);
            MF_ASSERT(out != NULL);
        }
        memcpy(out + made, text + copied, previous - copied);
        made += previous - copied;
        made += compose_stretch(text + previous, end - previous, out + made);
        copied = previous = end;
        length = end - at;
    }
    if (out != NULL) {
        memcpy(out + made, text + copied, count - copied);
        *out_count = made + count - copied;
    }
    return out;
}
