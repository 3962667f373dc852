/*
 * Private to server/run_config*.c: plain values of the run config as rows of a table, each with its
 * key, place, range and unit, read and written by one loop; and the helpers those files share.
 *
 * Owner: what is read lies in the config's arena. Thread: one a config. Fails: MF_STATUS_INVALID
 * with the key, the value, the range and the unit.
 */
#ifndef MF_SERVER_RUN_CONFIG_FIELDS_H
#define MF_SERVER_RUN_CONFIG_FIELDS_H

#include "server/run_config.h"

#define MF_RUN_STEPS_MAX 1000000000
#define MF_RUN_SEED_MAX 9007199254740991 /* 2^53 - 1: exact in every JSON reader */
#define MF_RUN_PATH_MAX 1023

enum mf_run_config_type {
    MF_RUN_CONFIG_FLAG,
    MF_RUN_CONFIG_INT32,
    MF_RUN_CONFIG_INT64,
    MF_RUN_CONFIG_SEED,
    MF_RUN_CONFIG_NUMBER,
    MF_RUN_CONFIG_BYTES, /* "20GiB", a number of bytes, or "all" = 0 */
    MF_RUN_CONFIG_TEXT,
};

struct mf_run_config_field {
    const char *key;
    enum mf_run_config_type type;
    size_t offset;    /* in struct mf_run_config */
    double low, high; /* of numbers; bytes of a text */
    const char *unit; /* "" = none */
};

#define MF_RUN_CONFIG_AT(field) offsetof(struct mf_run_config, field)
#define MF_RUN_CONFIG_COUNT(array) (sizeof(array) / sizeof((array)[0]))

/* Refuses keys that are neither fields nor in `extra` (NULL = none). */
enum mf_status mf_run_config_fields_only(const json_t *object, const char *where,
                                         const struct mf_run_config_field *fields, size_t count,
                                         const char *const *extra, size_t extra_count) MF_MUST_USE;
/* Missing keys leave what is there. */
enum mf_status mf_run_config_fields_read(const json_t *object, const char *where,
                                         const struct mf_run_config_field *fields, size_t count,
                                         struct mf_run_config *config) MF_MUST_USE;
void mf_run_config_fields_encode(const struct mf_run_config_field *fields, size_t count,
                                 const struct mf_run_config *config, json_t *object);

/* One of `names`; *out is its index. A missing key leaves *out. */
enum mf_status mf_run_config_fields_choice(const json_t *object, const char *where, const char *key,
                                           const char *const *names, size_t count,
                                           int *out) MF_MUST_USE;
/* An object, or NULL when the key is missing. */
enum mf_status mf_run_config_fields_object(const json_t *object, const char *where, const char *key,
                                           json_t **out) MF_MUST_USE;
bool mf_run_config_fields_has(const json_t *object, const char *key);

/* Whether the key says "auto"; takes it out, so that it reads as missing. */
bool mf_run_config_fields_auto(json_t *object, const char *key);

/* Those beyond MF_RUN_WARNINGS_MAX and MF_RUN_REASONS_MAX are dropped. */
void mf_run_config_fields_warn(struct mf_run_config *config, const char *format, ...)
    MF_PRINTF(2, 3);
void mf_run_config_fields_reason(struct mf_run_config *config, const char *key, const char *format,
                                 ...) MF_PRINTF(3, 4);

#endif
