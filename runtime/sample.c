/* Sampling: see sample.h. */
#include "runtime/sample.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* SplitMix64's mixing (Steele, Lea, Flood 2014): a random number from a counter. */
static uint64_t mix(uint64_t x)
{
    x += 0x9e3779b97f4a7c15ull;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
    return x ^ (x >> 31);
}

static int compare_falling(const void *a, const void *b)
{
    float x = *(const float *)a;
    float y = *(const float *)b;
    return (x < y) - (x > y);
}

/* The smallest logit that may be drawn. */
static float border(const float *logits, int64_t vocab, int32_t top_k)
{
    if (top_k <= 0 || top_k >= vocab) {
        return -INFINITY;
    }
    float *sorted = malloc((size_t)vocab * sizeof(*sorted));
    MF_ASSERT(sorted != NULL);
    memcpy(sorted, logits, (size_t)vocab * sizeof(*sorted));
    qsort(sorted, (size_t)vocab, sizeof(*sorted), compare_falling);
    float smallest = sorted[top_k - 1];
    free(sorted);
    return smallest;
}

enum mf_status mf_sample(const float *logits, int64_t vocab, double temperature, int32_t top_k,
                         uint64_t seed, uint64_t counter, int32_t *out)
{
    int64_t best = 0;
    for (int64_t i = 0; i < vocab; i++) {
        if (!isfinite(logits[i])) {
            return mf_status_set(MF_STATUS_INVALID,
                                 "the logit of token %lld is not finite: the model has diverged",
                                 (long long)i);
        }
        best = logits[i] > logits[best] ? i : best;
    }
    *out = (int32_t)best;
    if (temperature <= 0) {
        return MF_STATUS_OK;
    }
    float smallest = border(logits, vocab, top_k);
    double total = 0;
    for (int64_t i = 0; i < vocab; i++) {
        total += logits[i] >= smallest
                     ? exp(((double)logits[i] - (double)logits[best]) / temperature)
                     : 0;
    }
    double left = total * ((double)(mix(seed ^ mix(counter)) >> 11) * 0x1p-53);
    for (int64_t i = 0; i < vocab; i++) {
        if (logits[i] < smallest) {
            continue;
        }
        *out = (int32_t)i;
        left -= exp(((double)logits[i] - (double)logits[best]) / temperature);
        if (left < 0) {
            break;
        }
    }
    return MF_STATUS_OK;
}
