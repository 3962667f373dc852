/* See table.h. */
#include "client/table.h"

#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#define GAP 2       /* blanks between columns */
#define LAST_MIN 24 /* characters of the last column that are never cut */

void mf_table_init(struct mf_table *table, const struct mf_table_column *columns, size_t count)
{
    memset(table, 0, sizeof(*table));
    table->columns = columns;
    table->column_count = count;
    mf_arena_init(&table->arena);
}

void mf_table_reset(struct mf_table *table)
{
    mf_arena_reset(&table->arena);
    free(table->cells);
    table->cells = NULL;
    table->cell_count = table->cell_capacity = 0;
}

/* Control characters (also the two-byte ones of UTF-8, U+0080..U+009F) become '?'. */
static void disarm(char *text)
{
    for (unsigned char *at = (unsigned char *)text; *at != '\0'; at++) {
        if (*at < 0x20 || *at == 0x7f) {
            *at = '?';
        } else if (*at == 0xc2 && at[1] >= 0x80 && at[1] <= 0x9f) {
            at[0] = at[1] = '?';
        }
    }
}

void mf_table_cell(struct mf_table *table, const char *format, ...)
{
    va_list arguments;
    char *text = NULL;
    va_start(arguments, format);
    int length = vasprintf(&text, format, arguments);
    va_end(arguments);
    if (table->cell_count == table->cell_capacity) {
        table->cell_capacity = table->cell_capacity == 0 ? 64 : table->cell_capacity * 2;
        table->cells = realloc(table->cells, table->cell_capacity * sizeof(*table->cells));
    }
    MF_ASSERT(length >= 0 && table->cells != NULL);
    disarm(text);
    table->cells[table->cell_count++] = mf_arena_string(&table->arena, text);
    free(text);
}

size_t mf_table_characters(const char *text)
{
    size_t count = 0;
    for (const char *at = text; *at != '\0'; at++) {
        count += ((unsigned char)*at & 0xc0) != 0x80;
    }
    return count;
}

void mf_table_print_text(const char *text, FILE *out)
{
    char *copy = strdup(text);
    MF_ASSERT(copy != NULL);
    disarm(copy);
    fputs(copy, out);
    free(copy);
}

/* One line is laid out in memory first, so that it can be cut and its end trimmed. */
struct line {
    char *bytes;
    size_t length;
    size_t capacity;
};

static void line_put(struct line *line, const char *text, size_t count)
{
    if (line->length + count + 1 > line->capacity) {
        line->capacity = (line->length + count + 1) * 2;
        line->bytes = realloc(line->bytes, line->capacity);
        MF_ASSERT(line->bytes != NULL);
    }
    memcpy(line->bytes + line->length, text, count);
    line->length += count;
    line->bytes[line->length] = '\0';
}

static void line_blanks(struct line *line, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        line_put(line, " ", 1);
    }
}

/* Where lines are cut: only the last column may be, never numbers before it; 0 = nowhere. */
static size_t cut_at(const struct mf_table *table, const size_t *widths,
                     const struct mf_table_style *style)
{
    if (style->width <= 0) {
        return 0;
    }
    size_t last = table->column_count - 1;
    size_t least = style->indent != NULL ? strlen(style->indent) : 0;
    for (size_t i = 0; i < last; i++) {
        least += widths[i] + GAP;
    }
    least += widths[last] < LAST_MIN ? widths[last] : LAST_MIN;
    return (size_t)style->width > least ? (size_t)style->width : least;
}

/* Cuts to `width` characters, the last of which becomes "~" when something was cut. */
static void line_cut(struct line *line, size_t width)
{
    if (width < 2 || mf_table_characters(line->bytes) <= width) {
        return;
    }
    size_t seen = 0;
    size_t at = 0;
    while (at < line->length) {
        if (((unsigned char)line->bytes[at] & 0xc0) != 0x80 && seen++ == width - 1) {
            break;
        }
        at++;
    }
    line->length = at;
    line_put(line, "~", 1);
}

static void print_row(const struct mf_table *table, char *const *cells, const size_t *widths,
                      const struct mf_table_style *style, bool bold, FILE *out)
{
    struct line line = {0};
    line_put(&line, "", 0);
    if (style->indent != NULL) {
        line_put(&line, style->indent, strlen(style->indent));
    }
    for (size_t i = 0; i < table->column_count; i++) {
        size_t pad = widths[i] - mf_table_characters(cells[i]);
        bool right = table->columns[i].align == MF_TABLE_RIGHT;
        line_blanks(&line, (i > 0 ? GAP : 0) + (right ? pad : 0));
        line_put(&line, cells[i], strlen(cells[i]));
        line_blanks(&line, right ? 0 : pad);
    }
    while (line.length > 0 && line.bytes[line.length - 1] == ' ') {
        line.bytes[--line.length] = '\0';
    }
    line_cut(&line, cut_at(table, widths, style));
    fprintf(out, "%s%s%s\n", bold ? "\033[1m" : "", line.bytes, bold ? "\033[0m" : "");
    free(line.bytes);
}

void mf_table_print(const struct mf_table *table, const struct mf_table_style *style, FILE *out)
{
    MF_ASSERT(table->column_count > 0 && table->cell_count % table->column_count == 0);
    size_t *widths = calloc(table->column_count, sizeof(*widths));
    char **titles = calloc(table->column_count, sizeof(*titles));
    MF_ASSERT(widths != NULL && titles != NULL);
    for (size_t i = 0; i < table->column_count; i++) {
        titles[i] = (char *)table->columns[i].title;
        widths[i] = style->header ? mf_table_characters(titles[i]) : 0;
    }
    for (size_t i = 0; i < table->cell_count; i++) {
        size_t characters = mf_table_characters(table->cells[i]);
        size_t *width = &widths[i % table->column_count];
        *width = characters > *width ? characters : *width;
    }
    if (style->header) {
        print_row(table, titles, widths, style, style->bold, out);
    }
    for (size_t i = 0; i < table->cell_count; i += table->column_count) {
        print_row(table, table->cells + i, widths, style, false, out);
    }
    free(titles);
    free(widths);
}
