/* A keyed permutation: see tokens_order.h. */
#include "runtime/tokens_order.h"

#define FEISTEL_ROUNDS 6

/* SplitMix64's output function. */
static uint64_t mix(uint64_t value)
{
    value = (value ^ value >> 30) * 0xbf58476d1ce4e5b9u;
    value = (value ^ value >> 27) * 0x94d049bb133111ebu;
    return value ^ value >> 31;
}

/* A permutation of [0, 4^half_bits): a Feistel network is one whatever its round function is. */
static uint64_t feistel(uint64_t value, uint64_t key, int half_bits)
{
    uint64_t mask = (1ull << half_bits) - 1;
    uint64_t left = value >> half_bits;
    uint64_t right = value & mask;
    for (uint64_t round = 0; round < FEISTEL_ROUNDS; round++) {
        uint64_t next = left ^ (mix(key + round * 0x9e3779b97f4a7c15u + mix(right)) & mask);
        left = right;
        right = next;
    }
    return left << half_bits | right;
}

int64_t mf_tokens_order_at(uint64_t seed, int64_t epoch, int64_t place, int64_t count)
{
    uint64_t value = (uint64_t)place;
    int half_bits = 1;
    while (1ull << (2 * half_bits) < (uint64_t)count) {
        half_bits++;
    }
    uint64_t key = mix(mix(seed + 0x9e3779b97f4a7c15u) + (uint64_t)epoch);
    /* Walk the cycle until it is back in range: at most 4 steps on average. */
    do {
        value = feistel(value, key, half_bits);
    } while (value >= (uint64_t)count);
    return (int64_t)value;
}
