/*
 * The table of all settings, private to server/config*.c: see config.h.
 */
#ifndef MF_SERVER_CONFIG_TABLE_H
#define MF_SERVER_CONFIG_TABLE_H

#include <stddef.h>
#include <stdint.h>

#include "server/config.h"

#define MF_CONFIG_TABLE_ROWS 16

enum mf_config_table_type {
    MF_CONFIG_TABLE_TEXT,
    MF_CONFIG_TABLE_PATHS,
    MF_CONFIG_TABLE_INT,
    MF_CONFIG_TABLE_MODE,
    MF_CONFIG_TABLE_BYTES,
    MF_CONFIG_TABLE_CHOICE
};
enum mf_config_table_origin {
    MF_CONFIG_TABLE_DEFAULT,
    MF_CONFIG_TABLE_FILE,
    MF_CONFIG_TABLE_ENVIRONMENT,
    MF_CONFIG_TABLE_FLAG
};

struct mf_config_table_row {
    const char *section;
    const char *key;  /* in the file */
    const char *flag; /* --flag; MEMFERRYD_FLAG */
    const char *argument;
    enum mf_config_table_type type;
    size_t offset;
    size_t size;         /* of a text */
    const char *initial; /* "" = found out at start */
    int64_t low, high;
    const char *const *choices; /* NULL at the end */
    const char *help;
};

extern const struct mf_config_table_row mf_config_table[MF_CONFIG_TABLE_ROWS];

/* Sets one row from text; `where` is for the message: "--threads", "MEMFERRYD_THREADS". */
enum mf_status mf_config_table_set(struct mf_config *config, size_t row,
                                   enum mf_config_table_origin origin, const char *where,
                                   const char *value) MF_MUST_USE;
/* "where: "value" is not wanted". */
enum mf_status mf_config_table_refuse(const char *where, const char *value,
                                      const char *wanted) MF_MUST_USE;

#endif
