/* Merging bytes into tokens: see tokenizer_bpe.h. Symbols are a linked list, pairs that can merge
 * wait in a heap; pieces of text repeat, so short ones are remembered. */
#include "client/tokenizer_bpe.h"

#include <stdlib.h>
#include <string.h>

#include "core/status.h"

#define CACHE_WORDS 32768 /* about 3.5 MiB, of the order of a second-level cache */
#define CACHE_BYTES_MAX 47
#define CACHE_IDS_MAX 14
#define HEAP_PER_SYMBOL 3 /* n - 1 pairs at first, then two new ones for each of n - 1 merges */

struct mf_tokenizer_bpe_rule {
    int32_t left, right, merged; /* merged -1 = an empty place */
    uint32_t rank;
};

struct mf_tokenizer_bpe_word {
    uint8_t byte_count; /* 0 = an empty place */
    char bytes[CACHE_BYTES_MAX];
    uint8_t id_count;
    int32_t ids[CACHE_IDS_MAX];
};

struct mf_tokenizer_bpe_symbol {
    int32_t id; /* -1 = merged into the one before */
    int32_t previous, next;
};

struct mf_tokenizer_bpe_entry {
    uint32_t rank;
    int32_t place;
    int32_t merged;
};

static uint64_t mix(uint64_t value)
{
    /* SplitMix64's output function. */
    value = (value ^ value >> 30) * 0xbf58476d1ce4e5b9u;
    value = (value ^ value >> 27) * 0x94d049bb133111ebu;
    return value ^ value >> 31;
}

static uint64_t hash_text(const char *text, size_t count)
{
    uint64_t hash = count;
    for (; count >= 8; text += 8, count -= 8) {
        uint64_t part = 0;
        memcpy(&part, text, 8);
        hash = mix(hash ^ part);
    }
    uint64_t part = 0;
    memcpy(&part, text, count);
    return mix(hash ^ part);
}

static size_t table_size(size_t count)
{
    size_t size = 16;
    while (size < 2 * count) {
        size *= 2;
    }
    return size;
}

static void *allocate(size_t count, size_t size)
{
    void *memory = calloc(count, size);
    MF_ASSERT(memory != NULL);
    return memory;
}

void mf_tokenizer_bpe_init(struct mf_tokenizer_bpe *bpe, size_t rule_count)
{
    size_t size = table_size(rule_count);
    memset(bpe, 0, sizeof(*bpe));
    bpe->rules = allocate(size, sizeof(*bpe->rules));
    bpe->rule_mask = size - 1;
    for (size_t i = 0; i < size; i++) {
        bpe->rules[i].merged = -1;
    }
    bpe->cache = allocate(CACHE_WORDS, sizeof(*bpe->cache));
}

void mf_tokenizer_bpe_reset(struct mf_tokenizer_bpe *bpe)
{
    free(bpe->rules);
    free(bpe->whole);
    free(bpe->cache);
    free(bpe->symbols);
    free(bpe->heap);
    free(bpe->ids);
    memset(bpe, 0, sizeof(*bpe));
}

static struct mf_tokenizer_bpe_rule *find_rule(const struct mf_tokenizer_bpe *bpe, int32_t left,
                                               int32_t right)
{
    size_t at = mix((uint64_t)(uint32_t)left << 32 | (uint32_t)right) & bpe->rule_mask;
    while (bpe->rules[at].merged >= 0 &&
           (bpe->rules[at].left != left || bpe->rules[at].right != right)) {
        at = (at + 1) & bpe->rule_mask;
    }
    return &bpe->rules[at];
}

void mf_tokenizer_bpe_add(struct mf_tokenizer_bpe *bpe, int32_t left, int32_t right, int32_t merged,
                          uint32_t rank)
{
    *find_rule(bpe, left, right) = (struct mf_tokenizer_bpe_rule){left, right, merged, rank};
}

static size_t find_whole(const struct mf_tokenizer_bpe *bpe, const char *text, size_t count)
{
    size_t at = hash_text(text, count) & bpe->whole_mask;
    while (bpe->whole[at] != NULL &&
           (bpe->whole[at]->count != count || memcmp(bpe->whole[at]->bytes, text, count) != 0)) {
        at = (at + 1) & bpe->whole_mask;
    }
    return at;
}

void mf_tokenizer_bpe_prefer(struct mf_tokenizer_bpe *bpe,
                             const struct mf_tokenizer_bpe_text *texts, size_t count)
{
    size_t size = table_size(count);
    bpe->whole = allocate(size, sizeof(struct mf_tokenizer_bpe_text *));
    bpe->whole_mask = size - 1;
    for (size_t i = 0; i < count; i++) {
        bpe->whole[find_whole(bpe, texts[i].bytes, texts[i].count)] = &texts[i];
    }
}

static int before(const struct mf_tokenizer_bpe_entry *left,
                  const struct mf_tokenizer_bpe_entry *right)
{
    return left->rank != right->rank ? left->rank < right->rank : left->place < right->place;
}

static void push(struct mf_tokenizer_bpe *bpe, int32_t place)
{
    const struct mf_tokenizer_bpe_symbol *symbol = &bpe->symbols[place];
    if (symbol->next < 0) {
        return;
    }
    const struct mf_tokenizer_bpe_rule *rule =
        find_rule(bpe, symbol->id, bpe->symbols[symbol->next].id);
    if (rule->merged < 0) {
        return;
    }
    const struct mf_tokenizer_bpe_entry entry = {rule->rank, place, rule->merged};
    MF_ASSERT(bpe->heap_count < HEAP_PER_SYMBOL * bpe->room);
    size_t at = bpe->heap_count++;
    for (; at > 0 && before(&entry, &bpe->heap[(at - 1) / 2]); at = (at - 1) / 2) {
        bpe->heap[at] = bpe->heap[(at - 1) / 2];
    }
    bpe->heap[at] = entry;
}

static struct mf_tokenizer_bpe_entry pop(struct mf_tokenizer_bpe *bpe)
{
    struct mf_tokenizer_bpe_entry top = bpe->heap[0];
    struct mf_tokenizer_bpe_entry last = bpe->heap[--bpe->heap_count];
    size_t at = 0;
    for (size_t child = 1; child < bpe->heap_count; child = 2 * at + 1) {
        if (child + 1 < bpe->heap_count && before(&bpe->heap[child + 1], &bpe->heap[child])) {
            child++;
        }
        if (!before(&bpe->heap[child], &last)) {
            break;
        }
        bpe->heap[at] = bpe->heap[child];
        at = child;
    }
    bpe->heap[at] = last;
    return top;
}

static void merge_all(struct mf_tokenizer_bpe *bpe)
{
    while (bpe->heap_count > 0) {
        const struct mf_tokenizer_bpe_entry entry = pop(bpe);
        struct mf_tokenizer_bpe_symbol *symbol = &bpe->symbols[entry.place];
        if (symbol->id < 0 || symbol->next < 0) {
            continue;
        }
        struct mf_tokenizer_bpe_symbol *gone = &bpe->symbols[symbol->next];
        /* What stood here when the entry was made may have changed since. */
        if (find_rule(bpe, symbol->id, gone->id)->merged != entry.merged) {
            continue;
        }
        symbol->id = entry.merged;
        symbol->next = gone->next;
        gone->id = -1;
        if (symbol->next >= 0) {
            bpe->symbols[symbol->next].previous = entry.place;
        }
        if (symbol->previous >= 0) {
            push(bpe, symbol->previous);
        }
        push(bpe, entry.place);
    }
}

static void make_room(struct mf_tokenizer_bpe *bpe, size_t count)
{
    if (count <= bpe->room) {
        return;
    }
    bpe->room = count < 256 ? 256 : count + count / 2;
    free(bpe->symbols);
    free(bpe->heap);
    free(bpe->ids);
    bpe->symbols = allocate(bpe->room, sizeof(*bpe->symbols));
    bpe->heap = allocate(HEAP_PER_SYMBOL * bpe->room, sizeof(*bpe->heap));
    bpe->ids = allocate(bpe->room, sizeof(*bpe->ids));
}

static size_t merge(struct mf_tokenizer_bpe *bpe, const char *text, size_t count)
{
    MF_ASSERT(count <= INT32_MAX / 4);
    make_room(bpe, count);
    bpe->heap_count = 0;
    for (size_t i = 0; i < count; i++) {
        bpe->symbols[i] = (struct mf_tokenizer_bpe_symbol){bpe->byte_ids[(unsigned char)text[i]],
                                                           (int32_t)i - 1, (int32_t)i + 1};
    }
    bpe->symbols[count - 1].next = -1;
    for (size_t i = 0; i + 1 < count; i++) {
        push(bpe, (int32_t)i);
    }
    merge_all(bpe);
    size_t made = 0;
    for (int32_t at = 0; at >= 0; at = bpe->symbols[at].next) {
        bpe->ids[made++] = bpe->symbols[at].id;
    }
    return made;
}

const int32_t *mf_tokenizer_bpe_encode(struct mf_tokenizer_bpe *bpe, const char *text, size_t count,
                                       size_t *out_count)
{
    struct mf_tokenizer_bpe_word *word = NULL;
    if (count <= CACHE_BYTES_MAX) {
        word = &bpe->cache[hash_text(text, count) % CACHE_WORDS];
        if (word->byte_count == count && memcmp(word->bytes, text, count) == 0) {
            *out_count = word->id_count;
            return word->ids;
        }
    }
    const struct mf_tokenizer_bpe_text *whole =
        bpe->whole != NULL ? bpe->whole[find_whole(bpe, text, count)] : NULL;
    if (whole != NULL) {
        make_room(bpe, 1);
        bpe->ids[0] = whole->id;
        *out_count = 1;
    } else {
        *out_count = merge(bpe, text, count);
    }
    if (word != NULL && *out_count <= CACHE_IDS_MAX) {
        word->byte_count = (uint8_t)count;
        word->id_count = (uint8_t)*out_count;
        memcpy(word->bytes, text, count);
        memcpy(word->ids, bpe->ids, *out_count * sizeof(*bpe->ids));
    }
    return bpe->ids;
}
