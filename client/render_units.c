/* The unit table of a plan, equal layers folded into one row: see render.h.
 *
 * A unit's name is taken apart at its layer number: "model.layers.3.self_attn.q_proj" is unit
 * "self_attn.q_proj" of layer 3 of "model.layers". Units that differ only in the layer and have the
 * same decisions share a row; its sizes and times are their sums. */
#include <ctype.h>
#include <stdlib.h>
#include <string.h>

#include "client/render.h"

#define RANGES_MAX 4 /* ranges of layers written in one row */
#define NONE (-1)

struct name_parts {
    size_t prefix; /* bytes before the number, with the dot */
    int layer;     /* NONE: no number */
    const char *suffix;
};

static struct name_parts take_apart(const char *name)
{
    struct name_parts parts = {strlen(name), NONE, ""};
    for (const char *at = name; at != NULL; at = strchr(at, '.')) {
        at += at != name;
        size_t digits = strspn(at, "0123456789");
        if (digits > 0 && digits < 7 && at != name && at[digits] == '.') {
            parts.prefix = (size_t)(at - name);
            parts.layer = (int)strtol(at, NULL, 10);
            parts.suffix = at + digits + 1;
            break;
        }
    }
    return parts;
}

struct row {
    const Memferry__V1__UnitPlan *first;
    struct name_parts parts;
    int count;
    int layers[3 * RANGES_MAX]; /* pairs first, last */
    int range_count;            /* of all, also those that were not written down */
    bool why_differs;
    int64_t weight_bytes;
    double compute_ns, h2d_ns, d2h_ns, cpu_ns;
};

/* Same unit of another layer, held in the same way. */
static bool same(const struct row *row, const Memferry__V1__UnitPlan *unit,
                 const struct name_parts *parts)
{
    const Memferry__V1__UnitPlan *first = row->first;
    return parts->layer != NONE && row->parts.layer != NONE && parts->prefix == row->parts.prefix &&
           strncmp(first->name, unit->name, parts->prefix) == 0 &&
           strcmp(parts->suffix, row->parts.suffix) == 0 && first->rows == unit->rows &&
           first->columns == unit->columns && first->forward == unit->forward &&
           first->backward == unit->backward && first->gradient == unit->gradient &&
           first->optimizer == unit->optimizer && first->pinned == unit->pinned;
}

static void add_layer(struct row *row, int layer)
{
    int last = row->range_count - 1;
    if (last >= 0 && last < RANGES_MAX && row->layers[2 * last + 1] == layer - 1) {
        row->layers[2 * last + 1] = layer;
        return;
    }
    row->range_count++;
    if (row->range_count <= RANGES_MAX) {
        row->layers[2 * last + 2] = row->layers[2 * last + 3] = layer;
    }
}

static void add_unit(struct row *row, const Memferry__V1__UnitPlan *unit,
                     const struct name_parts *parts)
{
    if (row->count == 0) {
        row->first = unit;
        row->parts = *parts;
    }
    row->count++;
    if (parts->layer != NONE) {
        add_layer(row, parts->layer);
    }
    row->why_differs |= strcmp(row->first->why, unit->why) != 0;
    row->weight_bytes += unit->weight_bytes;
    row->compute_ns += unit->compute_ns;
    row->h2d_ns += unit->h2d_ns;
    row->d2h_ns += unit->d2h_ns;
    row->cpu_ns += unit->cpu_ns;
}

static size_t fold(const Memferry__V1__Plan *plan, bool all, struct row *rows)
{
    size_t count = 0;
    for (size_t i = 0; i < plan->n_units; i++) {
        const Memferry__V1__UnitPlan *unit = plan->units[i];
        struct name_parts parts = take_apart(unit->name);
        size_t at = all ? count : 0;
        while (at < count && !same(&rows[at], unit, &parts)) {
            at++;
        }
        count += at == count;
        add_unit(&rows[at], unit, &parts);
    }
    return count;
}

static void name_cell(struct mf_table *table, const struct row *row)
{
    if (row->count == 1) {
        mf_table_cell(table, "%s", row->first->name);
        return;
    }
    char text[RANGES_MAX * 20 + 8] = "";
    size_t length = 0;
    for (int i = 0; i < row->range_count && i < RANGES_MAX; i++) {
        int first = row->layers[2 * i];
        int last = row->layers[2 * i + 1];
        int wrote = first == last ? snprintf(text + length, sizeof(text) - length, "%s%d",
                                             i ? "," : "", first)
                                  : snprintf(text + length, sizeof(text) - length, "%s%d-%d",
                                             i ? "," : "", first, last);
        length += (size_t)wrote;
    }
    mf_table_cell(table, "layers %s%s: %s", text, row->range_count > RANGES_MAX ? ",..." : "",
                  row->parts.suffix);
}

static void numbers(struct mf_table *table, const double *ns)
{
    char text[MF_FORMAT_MAX];
    for (int i = 0; i < 4; i++) {
        mf_table_cell(table, "%s", mf_render_ms(ns[i], text));
    }
}

/* The planner's reason, after what it may not say itself. */
static void why_cell(struct mf_table *table, const struct row *row)
{
    const Memferry__V1__UnitPlan *unit = row->first;
    bool pinned = unit->pinned && strstr(unit->why, "pin") == NULL;
    bool tied = unit->tied_to[0] != '\0' && strstr(unit->why, "tied") == NULL;
    mf_table_cell(table, "%s%s%s%s%s%s", pinned ? "pinned by you; " : "", tied ? "tied to " : "",
                  tied ? unit->tied_to : "", tied && unit->why[0] != '\0' ? "; " : "", unit->why,
                  row->why_differs ? " (and others)" : "");
}

static void row_cells(struct mf_table *table, const struct row *row)
{
    const Memferry__V1__UnitPlan *unit = row->first;
    char text[MF_LIBRARY_JSON_ENUM_MAX];
    char bytes[MF_FORMAT_MAX];
    name_cell(table, row);
    mf_table_cell(table, "%d", row->count);
    mf_table_cell(table, "%s",
                  row->weight_bytes > 0 ? mf_format_bytes(row->weight_bytes, bytes) : "");
    mf_table_cell(table, "%s", MF_RENDER_ENUM(weight_forward, unit->forward, text));
    mf_table_cell(table, "%s", MF_RENDER_ENUM(weight_backward, unit->backward, text));
    mf_table_cell(table, "%s", MF_RENDER_ENUM(gradient, unit->gradient, text));
    mf_table_cell(table, "%s", MF_RENDER_ENUM(optimizer, unit->optimizer, text));
    numbers(table, (double[]){row->compute_ns, row->h2d_ns, row->d2h_ns, row->cpu_ns});
    why_cell(table, row);
}

void mf_render_units(const struct mf_render *render, const Memferry__V1__Plan *plan, bool all)
{
    static const struct mf_table_column columns[] = {
        {"unit", MF_TABLE_LEFT},      {"n", MF_TABLE_RIGHT},          {"weights", MF_TABLE_RIGHT},
        {"forward", MF_TABLE_LEFT},   {"backward", MF_TABLE_LEFT},    {"gradient", MF_TABLE_LEFT},
        {"optimizer", MF_TABLE_LEFT}, {"compute ms", MF_TABLE_RIGHT}, {"h2d ms", MF_TABLE_RIGHT},
        {"d2h ms", MF_TABLE_RIGHT},   {"cpu ms", MF_TABLE_RIGHT},     {"why", MF_TABLE_LEFT},
    };
    struct row *rows = calloc(plan->n_units + 1, sizeof(*rows));
    MF_ASSERT(rows != NULL);
    size_t count = fold(plan, all, rows);

    struct mf_table table;
    mf_table_init(&table, columns, sizeof(columns) / sizeof(columns[0]));
    struct row total = {0};
    for (size_t i = 0; i < count; i++) {
        row_cells(&table, &rows[i]);
        total.count += rows[i].count;
        total.weight_bytes += rows[i].weight_bytes;
        total.compute_ns += rows[i].compute_ns;
        total.h2d_ns += rows[i].h2d_ns;
        total.d2h_ns += rows[i].d2h_ns;
        total.cpu_ns += rows[i].cpu_ns;
    }
    char bytes[MF_FORMAT_MAX];
    mf_table_cell(&table, "total");
    mf_table_cell(&table, "%d", total.count);
    mf_table_cell(&table, "%s", mf_format_bytes(total.weight_bytes, bytes));
    for (int i = 0; i < 4; i++) {
        mf_table_cell(&table, "%s", "");
    }
    numbers(&table, (double[]){total.compute_ns, total.h2d_ns, total.d2h_ns, total.cpu_ns});
    mf_table_cell(&table, "%s", "");
    mf_render_table(render, &table, "");
    mf_table_reset(&table);
    free(rows);
}

/* The layer whose units are in `block`; NONE for a block without a numbered one. */
static int block_layer(const Memferry__V1__Plan *plan, int block)
{
    for (size_t i = 0; i < plan->n_units; i++) {
        if (plan->units[i]->block == block) {
            return take_apart(plan->units[i]->name).layer;
        }
    }
    return NONE;
}

void mf_render_units_activations(const struct mf_render *render, const Memferry__V1__Plan *plan)
{
    size_t count = plan->n_activations;
    char *text = NULL;
    size_t length = 0;
    FILE *out = open_memstream(&text, &length);
    MF_ASSERT(out != NULL);
    for (size_t first = 0, last; first < count; first = last + 1) {
        int layer = block_layer(plan, (int)first);
        last = first;
        while (last + 1 < count && plan->activations[last + 1] == plan->activations[first] &&
               (block_layer(plan, (int)last + 1) == NONE) == (layer == NONE)) {
            last++;
        }
        char name[MF_LIBRARY_JSON_ENUM_MAX];
        int last_layer = block_layer(plan, (int)last);
        fprintf(out, "%s%s ", first > 0 ? "; " : "",
                MF_RENDER_ENUM(activation, plan->activations[first], name));
        if (layer != NONE) {
            fprintf(out, layer == last_layer ? "layer %d" : "layers %d-%d", layer, last_layer);
        } else if (first == last && (first == 0 || last + 1 == count) && count > 2) {
            fputs(first == 0 ? "input" : "output", out);
        } else {
            fprintf(out, first == last ? "block %zu" : "blocks %zu-%zu", first, last);
        }
    }
    fclose(out);
    if (count > 0) {
        mf_render_fact(render, "activations", "%s", text);
    }
    free(text);
}
