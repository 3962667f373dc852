/*
 * Strict reading of JSON objects over jansson: unknown keys are errors that name the nearest
 * known one, wrong types and ranges name the key and the value found.
 *
 * Who calls it: readers of configs, run configs, safetensors headers, stored plans. Owner: the
 * caller owns the json_t it loads (json_decref). Thread: one at a time per value.
 * Fails: MF_STATUS_INVALID with the path of the key, MF_STATUS_IO for files.
 */
#ifndef MF_CORE_JSON_H
#define MF_CORE_JSON_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/status.h"

/* Parses with duplicate keys and trailing bytes refused; `name` is for the message. */
enum mf_status mf_json_parse(const char *bytes, size_t count, const char *name,
                             json_t **out) MF_MUST_USE;
/* Reads a file of at most `bytes_max` bytes and parses it. */
enum mf_status mf_json_load(const char *path, int64_t bytes_max, json_t **out) MF_MUST_USE;

/* Refuses keys of `object` that are not in `known`, naming the nearest. `where` = "run config". */
enum mf_status mf_json_only(const json_t *object, const char *where, const char *const *known,
                            size_t known_count) MF_MUST_USE;

/* Readers of one key. A missing or null key leaves *out as it is (the default) and is OK;
 * mf_json_require makes absence an error. Ranges are inclusive. */
enum mf_status mf_json_require(const json_t *object, const char *where,
                               const char *key) MF_MUST_USE;
enum mf_status mf_json_int(const json_t *object, const char *where, const char *key, int64_t low,
                           int64_t high, int64_t *out) MF_MUST_USE;
enum mf_status mf_json_number(const json_t *object, const char *where, const char *key, double low,
                              double high, double *out) MF_MUST_USE;
enum mf_status mf_json_bool(const json_t *object, const char *where, const char *key,
                            bool *out) MF_MUST_USE;
/* Borrowed from `object`. */
enum mf_status mf_json_string(const json_t *object, const char *where, const char *key,
                              const char **out) MF_MUST_USE;
/* Copies into `out` of `size` bytes; a longer string is refused. */
enum mf_status mf_json_text(const json_t *object, const char *where, const char *key, char *out,
                            size_t size) MF_MUST_USE;

#endif
