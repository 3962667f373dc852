/*
 * A model's parameters between Hugging Face folders and the panels of its units.
 *
 * What: reading a folder unit by unit, so that memory stays small; random initialisation that does
 *   not depend on plan or panels; saving a folder that Transformers opens as it is.
 * Who calls it: sessions (load, init), checkpoint (save). Owner: open gives a reader that close
 *   frees; arrays of elements are the caller's, in the layout of core/model.h. Thread: a reader
 *   belongs to one thread; the other functions may be called by any.
 * Fails: MF_STATUS_CORRUPT, _INVALID, _NOT_FOUND naming tensor and file, before anything is read
 *   into a device: open checks every tensor that the model needs.
 */
#ifndef MF_RUNTIME_WEIGHTS_H
#define MF_RUNTIME_WEIGHTS_H

#include <stdint.h>

#include "core/model.h"
#include "core/status.h"

struct mf_weights;

/*
 * `folder`: what mf_safetensors_open() takes. Tensors may be BF16, F16 or F32, with or without the
 * outer "transformer." or "model.". A tied head may be stored under either name; under both it must
 * hold the same numbers. Tensors nobody asks for are named once in the log. `model` is borrowed
 * until close.
 */
enum mf_status mf_weights_open(const struct mf_model *model, const char *folder,
                               struct mf_weights **out) MF_MUST_USE;
void mf_weights_close(struct mf_weights *weights); /* NULL is fine */
/* All elements of a unit that owns its parameters, as fp32; padding is zero. */
enum mf_status mf_weights_read_unit(struct mf_weights *weights, int32_t unit,
                                    float *master) MF_MUST_USE;

/*
 * All elements of a unit that owns its parameters, drawn from `seed`: each number depends on seed,
 * tensor name, row and column alone. Numbers are bf16 values, so that weight and master agree.
 */
void mf_weights_init_unit(const struct mf_model *model, int32_t unit, uint64_t seed, float *master);
/* Rows first..end-1 alone, for threads that share a unit; the rest of `master` is left as it is. */
void mf_weights_init_rows(const struct mf_model *model, int32_t unit, uint64_t seed, int64_t first,
                          int64_t end, float *master);

/* What a unit holds; exactly one of the two, all its elements. */
struct mf_weights_elements {
    const float *master;     /* rounded to bf16 when written */
    const uint16_t *weights; /* bf16 */
};
/* Gives the elements of `unit`, borrowed until the next call; units come in order. */
typedef enum mf_status (*mf_weights_source)(void *context, int32_t unit,
                                            struct mf_weights_elements *out);

struct mf_weights_save_options {
    int64_t shard_bytes; /* larger models are cut into files of at most this; 0 = 5 GB */
    const char
        *companions; /* folder whose tokenizer and generation files are copied; NULL = none */
};

/* Bytes of the tensors that a save writes. */
int64_t mf_weights_save_bytes(const struct mf_model *model);
/* config.json and model.safetensors (or shards and index) into a folder that is there. */
enum mf_status mf_weights_save_into(const struct mf_model *model, const char *folder,
                                    const struct mf_weights_save_options *options,
                                    mf_weights_source source, void *context) MF_MUST_USE;
/* The same into <folder>.partial, renamed to <folder> when all of it is on the disk.
 * MF_STATUS_EXISTS when `folder` is there and not empty. */
enum mf_status mf_weights_save(const struct mf_model *model, const char *folder,
                               const struct mf_weights_save_options *options,
                               mf_weights_source source, void *context) MF_MUST_USE;

#endif
