/*
 * Aligned tables of text for people.
 *
 * What: cells are added row by row; columns get the width of their longest cell; the last column
 *   may be cut to the terminal. Bytes that could steer a terminal are shown as '?': names come
 *   from models and configs of others.
 * Who calls it: the CLI's renderers. Owner: init/reset by the caller; cells are copied.
 * Thread: one. Fails: no.
 */
#ifndef MF_CLIENT_TABLE_H
#define MF_CLIENT_TABLE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>

#include "core/arena.h"
#include "core/status.h"

enum mf_table_align { MF_TABLE_LEFT, MF_TABLE_RIGHT };

struct mf_table_column {
    const char *title;
    enum mf_table_align align;
};

struct mf_table {
    const struct mf_table_column *columns; /* borrowed */
    size_t column_count;
    struct mf_arena arena;
    char **cells; /* row after row; malloc'ed array of arena strings */
    size_t cell_count;
    size_t cell_capacity;
};

struct mf_table_style {
    const char *indent; /* before every line; NULL = none */
    bool header;
    bool bold; /* titles in bold */
    int width; /* lines are cut to so many characters; 0 = never */
};

void mf_table_init(struct mf_table *table, const struct mf_table_column *columns, size_t count);
void mf_table_reset(struct mf_table *table);
/* The next cell of the present row; a full row starts the next one. */
void mf_table_cell(struct mf_table *table, const char *format, ...) MF_PRINTF(2, 3);
/* Prints all rows. The last row must be full. Blanks at the end of lines are left out. */
void mf_table_print(const struct mf_table *table, const struct mf_table_style *style, FILE *out);
/* Number of characters (not bytes) of UTF-8 text. */
size_t mf_table_characters(const char *text);
/* `text` with control characters shown as '?'; prints it as it is otherwise. */
void mf_table_print_text(const char *text, FILE *out);

#endif
