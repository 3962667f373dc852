/* Text forms of sizes and durations: see format.h. */
#include "core/format.h"

#include <ctype.h>
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

static const struct {
    const char *suffix;
    double factor;
} byte_suffixes[] = {
    {"", 1.0},       {"B", 1.0},    {"KiB", 0x1p10}, {"MiB", 0x1p20}, {"GiB", 0x1p30},
    {"TiB", 0x1p40}, {"K", 0x1p10}, {"M", 0x1p20},   {"G", 0x1p30},   {"T", 0x1p40},
    {"kB", 1e3},     {"MB", 1e6},   {"GB", 1e9},     {"TB", 1e12},
};

enum mf_status mf_format_parse_bytes(const char *text, int64_t *out)
{
    errno = 0;
    char *end = NULL;
    double number = strtod(text, &end);
    if (end != text && errno == 0 && isfinite(number) && number >= 0) {
        while (isspace((unsigned char)*end)) {
            end++;
        }
        for (size_t i = 0; i < sizeof(byte_suffixes) / sizeof(byte_suffixes[0]); i++) {
            if (strcasecmp(end, byte_suffixes[i].suffix) == 0) {
                double bytes = number * byte_suffixes[i].factor;
                if (bytes < 0x1p62) {
                    *out = (int64_t)llround(bytes);
                    return MF_STATUS_OK;
                }
            }
        }
    }
    return mf_status_set(MF_STATUS_INVALID,
                         "\"%s\" is not a size: write for example 8GiB, 512MiB, 24GB or bytes",
                         text);
}

struct scale {
    double at_least;
    const char *unit;
};

static const char *scaled(double value, const struct scale *scales, size_t count, char *out)
{
    size_t i = 0;
    while (i + 1 < count && fabs(value) < scales[i].at_least) {
        i++;
    }
    double shown = value / scales[i].at_least;
    int decimals = fabs(shown) >= 100 ? 1 : 2;
    snprintf(out, MF_FORMAT_MAX, "%.*f%s%s", decimals, shown, scales[i].unit[0] ? " " : "",
             scales[i].unit);
    return out;
}

const char *mf_format_bytes(int64_t bytes, char out[static MF_FORMAT_MAX])
{
    static const struct scale scales[] = {
        {0x1p40, "TiB"}, {0x1p30, "GiB"}, {0x1p20, "MiB"}, {0x1p10, "KiB"}};
    if (bytes > -1024 && bytes < 1024) {
        snprintf(out, MF_FORMAT_MAX, "%lld B", (long long)bytes);
        return out;
    }
    return scaled((double)bytes, scales, 4, out);
}

const char *mf_format_ns(double ns, char out[static MF_FORMAT_MAX])
{
    static const struct scale scales[] = {{1e9, "s"}, {1e6, "ms"}, {1e3, "us"}, {1, "ns"}};
    return scaled(ns, scales, 4, out);
}

const char *mf_format_count(double count, char out[static MF_FORMAT_MAX])
{
    static const struct scale scales[] = {{1e9, "B"}, {1e6, "M"}, {1e3, "k"}, {1, ""}};
    return scaled(count, scales, 4, out);
}

static size_t edit_distance(const char *a, const char *b)
{
    size_t columns = strlen(b);
    size_t row[65];
    if (columns > 64 || strlen(a) > 64) {
        return SIZE_MAX;
    }
    for (size_t j = 0; j <= columns; j++) {
        row[j] = j;
    }
    for (size_t i = 1; a[i - 1] != '\0'; i++) {
        size_t diagonal = row[0];
        row[0] = i;
        for (size_t j = 1; j <= columns; j++) {
            size_t substitute = diagonal + (a[i - 1] != b[j - 1]);
            diagonal = row[j];
            size_t best = row[j] < row[j - 1] ? row[j] + 1 : row[j - 1] + 1;
            row[j] = substitute < best ? substitute : best;
        }
    }
    return row[columns];
}

const char *mf_format_nearest(const char *word, const char *const *candidates, size_t count)
{
    const char *best = NULL;
    size_t best_distance = strlen(word) / 2 + 2;
    for (size_t i = 0; i < count; i++) {
        size_t distance = edit_distance(word, candidates[i]);
        if (distance < best_distance) {
            best_distance = distance;
            best = candidates[i];
        }
    }
    return best;
}
