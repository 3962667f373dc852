/* Tables: alignment, cutting, what may not reach a terminal. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "client/table.h"
#include "harness.h"

static const struct mf_table_column columns[] = {
    {"name", MF_TABLE_LEFT}, {"n", MF_TABLE_RIGHT}, {"note", MF_TABLE_LEFT}};

static char *print(const struct mf_table *table, const struct mf_table_style *style)
{
    char *text = NULL;
    size_t length = 0;
    FILE *out = open_memstream(&text, &length);
    assert_non_null(out);
    mf_table_print(table, style, out);
    fclose(out);
    return text;
}

static void fill(struct mf_table *table)
{
    mf_table_init(table, columns, 3);
    mf_table_cell(table, "%s", "alpha");
    mf_table_cell(table, "%d", 7);
    mf_table_cell(table, "%s", "first");
    mf_table_cell(table, "%s", "b");
    mf_table_cell(table, "%d", 1234);
    mf_table_cell(table, "%s", "");
}

static void test_alignment(void **state)
{
    (void)state;
    struct mf_table table;
    struct mf_table_style style = {.header = true};
    fill(&table);
    char *text = print(&table, &style);
    assert_string_equal(text, "name      n  note\n"
                              "alpha     7  first\n"
                              "b      1234\n");
    free(text);
    style.header = false;
    style.indent = "  ";
    text = print(&table, &style);
    assert_string_equal(text, "  alpha     7  first\n  b      1234\n");
    free(text);
    mf_table_reset(&table);
}

static void test_many_rows(void **state)
{
    (void)state;
    struct mf_table table;
    struct mf_table_style style = {.header = false};
    mf_table_init(&table, columns, 1);
    for (int i = 0; i < 1000; i++) {
        mf_table_cell(&table, "%d", i);
    }
    char *text = print(&table, &style);
    assert_non_null(strstr(text, "\n999\n"));
    free(text);
    mf_table_reset(&table);
}

static void test_empty(void **state)
{
    (void)state;
    struct mf_table table;
    struct mf_table_style style = {.header = true};
    mf_table_init(&table, columns, 3);
    char *text = print(&table, &style);
    assert_string_equal(text, "name  n  note\n");
    free(text);
    mf_table_reset(&table);
}

/* Only the last column is cut, and not below what is needed to recognise it. */
static void test_width(void **state)
{
    (void)state;
    struct mf_table table;
    struct mf_table_style style = {.header = false, .width = 40};
    mf_table_init(&table, columns, 3);
    mf_table_cell(&table, "alpha");
    mf_table_cell(&table, "7");
    mf_table_cell(&table, "abcdefghijklmnopqrstuvwxyzabcdefghijklmnop");
    char *text = print(&table, &style);
    assert_string_equal(text, "alpha  7  abcdefghijklmnopqrstuvwxyzabc~\n");
    free(text);
    style.width = 10;
    text = print(&table, &style);
    assert_string_equal(text, "alpha  7  abcdefghijklmnopqrstuvw~\n");
    free(text);
    mf_table_reset(&table);
}

/* Characters count, not bytes; a cut never splits one. */
static void test_utf8(void **state)
{
    (void)state;
    struct mf_table table;
    struct mf_table_style style = {.header = false, .width = 24};
    assert_int_equal(mf_table_characters("\xc3\xa4\xc3\xb6\xe2\x82\xac"), 3);
    mf_table_init(&table, columns, 1);
    mf_table_cell(&table, "0123456789012345678901\xc3\xa4\xc3\xa4\xc3\xa4");
    char *text = print(&table, &style);
    assert_string_equal(text, "0123456789012345678901\xc3\xa4~\n");
    free(text);
    mf_table_reset(&table);

    mf_table_init(&table, columns, 2);
    mf_table_cell(&table, "%s", "\xc3\xa4");
    mf_table_cell(&table, "%s", "1");
    mf_table_cell(&table, "%s", "bb");
    mf_table_cell(&table, "%s", "2");
    style.width = 0;
    text = print(&table, &style);
    assert_string_equal(text, "\xc3\xa4   1\nbb  2\n");
    free(text);
    mf_table_reset(&table);
}

static void test_control_characters(void **state)
{
    (void)state;
    struct mf_table table;
    struct mf_table_style style = {.header = false};
    mf_table_init(&table, columns, 1);
    mf_table_cell(&table, "%s",
                  "a\033[31m\nb\x7f\xc2\x9b"
                  "c");
    char *text = print(&table, &style);
    assert_string_equal(text, "a?[31m?b???c\n");
    free(text);
    mf_table_reset(&table);
}

static void test_bold_titles(void **state)
{
    (void)state;
    struct mf_table table;
    struct mf_table_style style = {.header = true, .bold = true};
    fill(&table);
    char *text = print(&table, &style);
    assert_int_equal(strncmp(text, "\033[1mname      n  note\033[0m\n", 26), 0);
    free(text);
    mf_table_reset(&table);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_alignment),   cmocka_unit_test(test_many_rows),
        cmocka_unit_test(test_empty),       cmocka_unit_test(test_width),
        cmocka_unit_test(test_utf8),        cmocka_unit_test(test_control_characters),
        cmocka_unit_test(test_bold_titles),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
