/* Strategies side by side, and two plans against each other: see render.h. */
#include <stdlib.h>
#include <string.h>

#include "client/render.h"

/* Steps of different batches are compared by their time for a token. */
static double token_ns(const Memferry__V1__Plan *plan)
{
    const Memferry__V1__Workload *work = plan->workload;
    double tokens =
        work != NULL ? (double)work->micro_batch * work->seq_len * work->accumulation : 0;
    return tokens > 0 ? plan->prediction->step_ns / tokens : 0;
}

static void plan_cells(struct mf_table *table, const Memferry__V1__Plan *plan, double best_ns)
{
    const Memferry__V1__Prediction *p = plan->prediction;
    const Memferry__V1__Workload *work = plan->workload;
    char text[MF_FORMAT_MAX];
    mf_table_cell(table, "%d x %d", work != NULL ? work->micro_batch : 0,
                  work != NULL ? work->accumulation : 0);
    mf_table_cell(table, "%s", mf_format_ns(p->step_ns, text));
    mf_table_cell(table, "%.2fx", best_ns > 0 ? token_ns(plan) / best_ns : 0.0);
    mf_table_cell(table, "%s", mf_render_pace(work, p->step_ns, text));
    mf_table_cell(table, "%s", mf_format_bytes(p->device_peak_bytes, text));
    mf_table_cell(table, "%s", mf_format_bytes(p->host_peak_bytes, text));
    mf_table_cell(table, "%s", mf_format_bytes(p->h2d_bytes, text));
    mf_table_cell(table, "%s", mf_format_bytes(p->d2h_bytes, text));
    mf_table_cell(table, "%.1f%%", p->step_ns > 0 ? 100 * p->stall_ns / p->step_ns : 0.0);
    mf_table_cell(table, "%s", mf_format_ns(p->bound_ns, text));
    mf_table_cell(table, "%.1f%%", 100 * p->gap);
    mf_table_cell(table, "%s", mf_render_short(plan->id, text));
}

static bool has_plan(const struct mf_render_compare_row *row)
{
    return row->got != NULL && row->got->plan != NULL && row->got->plan->prediction != NULL;
}

static int64_t number(const struct mf_error *error, const char *name)
{
    for (size_t i = 0; i < error->number_count; i++) {
        if (strcmp(error->numbers[i].name, name) == 0) {
            return error->numbers[i].value;
        }
    }
    return 0;
}

/* Why there is no plan, short where it is a matter of memory. */
static void failure_cell(struct mf_table *table, const struct mf_error *error)
{
    bool device = strcmp(error->reason, "DEVICE_MEMORY_TOO_SMALL") == 0;
    bool host = strcmp(error->reason, "HOST_MEMORY_TOO_SMALL") == 0;
    char needed[MF_FORMAT_MAX];
    char available[MF_FORMAT_MAX];
    if ((device || host) && number(error, "needed_bytes") > 0) {
        mf_table_cell(table, "needs %s of %s memory, there is %s",
                      mf_format_bytes(number(error, "needed_bytes"), needed),
                      device ? "device" : "host",
                      mf_format_bytes(number(error, "available_bytes"), available));
    } else {
        mf_table_cell(table, "%s", error->text);
    }
}

void mf_render_compare(const struct mf_render *render, const struct mf_render_compare_row *rows,
                       size_t count)
{
    static const struct mf_table_column columns[] = {
        {"strategy", MF_TABLE_LEFT}, {"batch", MF_TABLE_RIGHT},    {"step", MF_TABLE_RIGHT},
        {"", MF_TABLE_RIGHT},        {"tokens/s", MF_TABLE_RIGHT}, {"device", MF_TABLE_RIGHT},
        {"host", MF_TABLE_RIGHT},    {"h2d", MF_TABLE_RIGHT},      {"d2h", MF_TABLE_RIGHT},
        {"stall", MF_TABLE_RIGHT},   {"bound", MF_TABLE_RIGHT},    {"gap", MF_TABLE_RIGHT},
        {"plan", MF_TABLE_LEFT}};
    struct mf_table table;
    char name[MF_LIBRARY_JSON_ENUM_MAX];
    double best_ns = 0;
    for (size_t i = 0; i < count; i++) {
        double ns = has_plan(&rows[i]) ? token_ns(rows[i].got->plan) : 0;
        best_ns = ns > 0 && (best_ns == 0 || ns < best_ns) ? ns : best_ns;
    }
    mf_table_init(&table, columns, sizeof(columns) / sizeof(columns[0]));
    for (size_t i = 0; i < count; i++) {
        mf_table_cell(&table, "%s", MF_RENDER_ENUM(strategy, rows[i].strategy, name));
        if (has_plan(&rows[i])) {
            plan_cells(&table, rows[i].got->plan, best_ns);
            continue;
        }
        mf_table_cell(&table, "%s", "");
        mf_table_cell(&table, "-");
        for (size_t k = 3; k + 1 < table.column_count; k++) {
            mf_table_cell(&table, "%s", "");
        }
        failure_cell(&table, &rows[i].error);
    }
    mf_render_table(render, &table, "");
    mf_table_reset(&table);
}

/* The unit of that name in `plan`, looked for from `at` on first: plans of one model have the same
 * order. */
static const Memferry__V1__UnitPlan *find_unit(const Memferry__V1__Plan *plan, const char *name,
                                               size_t at)
{
    for (size_t i = 0; i < plan->n_units; i++) {
        const Memferry__V1__UnitPlan *unit = plan->units[(at + i) % plan->n_units];
        if (strcmp(unit->name, name) == 0) {
            return unit;
        }
    }
    return NULL;
}

static const char *decisions(const Memferry__V1__UnitPlan *unit, char *out, size_t size)
{
    char f[MF_LIBRARY_JSON_ENUM_MAX], b[MF_LIBRARY_JSON_ENUM_MAX];
    char g[MF_LIBRARY_JSON_ENUM_MAX], o[MF_LIBRARY_JSON_ENUM_MAX];
    if (unit == NULL) {
        return "(not in this plan)";
    }
    snprintf(out, size, "%s/%s/%s/%s", MF_RENDER_ENUM(weight_forward, unit->forward, f),
             MF_RENDER_ENUM(weight_backward, unit->backward, b),
             MF_RENDER_ENUM(gradient, unit->gradient, g),
             MF_RENDER_ENUM(optimizer, unit->optimizer, o));
    return out;
}

static bool decided_alike(const Memferry__V1__UnitPlan *a, const Memferry__V1__UnitPlan *b)
{
    return a != NULL && b != NULL && a->forward == b->forward && a->backward == b->backward &&
           a->gradient == b->gradient && a->optimizer == b->optimizer;
}

/* Calls `each` for every unit that the plans hold differently; returns how many there are. */
static size_t each_difference(const Memferry__V1__Plan *a, const Memferry__V1__Plan *b,
                              void (*each)(void *context, const char *name,
                                           const Memferry__V1__UnitPlan *left,
                                           const Memferry__V1__UnitPlan *right),
                              void *context)
{
    size_t count = 0;
    for (size_t i = 0; i < a->n_units; i++) {
        const Memferry__V1__UnitPlan *other = find_unit(b, a->units[i]->name, i);
        if (!decided_alike(a->units[i], other)) {
            each(context, a->units[i]->name, a->units[i], other);
            count++;
        }
    }
    for (size_t i = 0; i < b->n_units; i++) {
        if (find_unit(a, b->units[i]->name, i) == NULL) {
            each(context, b->units[i]->name, NULL, b->units[i]);
            count++;
        }
    }
    return count;
}

/* One row of the difference: units of equal layers whose decisions differ in the same way. */
struct difference {
    const Memferry__V1__UnitPlan *left;
    const Memferry__V1__UnitPlan *right;
    struct mf_render_layers layers;
};

struct differences {
    struct difference *rows;
    size_t count;
};

static bool both_alike(const Memferry__V1__UnitPlan *a, const Memferry__V1__UnitPlan *b)
{
    return (a == NULL && b == NULL) || decided_alike(a, b);
}

static void collect_difference(void *context, const char *name, const Memferry__V1__UnitPlan *left,
                               const Memferry__V1__UnitPlan *right)
{
    struct differences *all = context;
    for (size_t i = 0; i < all->count; i++) {
        struct difference *row = &all->rows[i];
        if (mf_render_layers_same(&row->layers, name) && both_alike(row->left, left) &&
            both_alike(row->right, right)) {
            mf_render_layers_add(&row->layers, name);
            return;
        }
    }
    struct difference *row = &all->rows[all->count++];
    row->left = left;
    row->right = right;
    mf_render_layers_begin(&row->layers, name);
}

static void difference_cells(struct mf_table *table, const struct difference *row)
{
    char text[4 * MF_LIBRARY_JSON_ENUM_MAX];
    mf_render_layers_cell(table, &row->layers);
    mf_table_cell(table, "%s", decisions(row->left, text, sizeof(text)));
    mf_table_cell(table, "%s", decisions(row->right, text, sizeof(text)));
}

/* The numbers of a prediction that a comparison shows, by their place in the message. */
#define NUMBER(field, is_bytes, title)                                                             \
    {                                                                                              \
#field, title, offsetof(Memferry__V1__Prediction, field), is_bytes                         \
    }
static const struct {
    const char *key;
    const char *title;
    size_t offset;
    bool bytes;
} numbers[] = {
    NUMBER(step_ns, false, "step"),
    NUMBER(bound_ns, false, "bound"),
    NUMBER(compute_busy_ns, false, "compute busy"),
    NUMBER(h2d_busy_ns, false, "h2d busy"),
    NUMBER(d2h_busy_ns, false, "d2h busy"),
    NUMBER(cpu_busy_ns, false, "cpu busy"),
    NUMBER(stall_ns, false, "compute waits"),
    NUMBER(device_peak_bytes, true, "device peak"),
    NUMBER(host_peak_bytes, true, "host peak"),
    NUMBER(h2d_bytes, true, "to the device"),
    NUMBER(d2h_bytes, true, "to the host"),
    NUMBER(direct_bytes, true, "in place"),
};
#define NUMBER_COUNT (sizeof(numbers) / sizeof(numbers[0]))

static double number_of(const Memferry__V1__Plan *plan, size_t index)
{
    if (plan->prediction == NULL) {
        return 0;
    }
    const char *at = (const char *)plan->prediction + numbers[index].offset;
    return numbers[index].bytes ? (double)*(const int64_t *)(const void *)at
                                : *(const double *)(const void *)at;
}

static void number_cell(struct mf_table *table, size_t index, double value)
{
    char text[MF_FORMAT_MAX];
    mf_table_cell(table, "%s",
                  numbers[index].bytes ? mf_format_bytes((int64_t)value, text)
                                       : mf_render_time(value, text));
}

static void numbers_table(const struct mf_render *render, const Memferry__V1__Plan *a,
                          const Memferry__V1__Plan *b, const struct mf_table_column *columns)
{
    struct mf_table table;
    mf_table_init(&table, columns, 4);
    for (size_t i = 0; i < NUMBER_COUNT; i++) {
        double left = number_of(a, i);
        double right = number_of(b, i);
        if (left == right) {
            continue;
        }
        mf_table_cell(&table, "%s", numbers[i].title);
        number_cell(&table, i, left);
        number_cell(&table, i, right);
        if (left > 0) {
            mf_table_cell(&table, "%+.1f%%", 100 * (right / left - 1));
        } else {
            mf_table_cell(&table, "%s", "");
        }
    }
    if (table.cell_count == 0) {
        fprintf(render->out, "all predicted numbers of plans %.12s and %.12s are equal\n", a->id,
                b->id);
    } else {
        mf_render_table(render, &table, "");
    }
    mf_table_reset(&table);
}

static size_t activation_differences(const Memferry__V1__Plan *a, const Memferry__V1__Plan *b)
{
    size_t count = a->n_activations < b->n_activations ? a->n_activations : b->n_activations;
    size_t differences = a->n_activations + b->n_activations - 2 * count;
    for (size_t i = 0; i < count; i++) {
        differences += a->activations[i] != b->activations[i];
    }
    return differences;
}

void mf_render_compare_diff(const struct mf_render *render, const Memferry__V1__Plan *a,
                            const Memferry__V1__Plan *b)
{
    char left[MF_FORMAT_MAX];
    char right[MF_FORMAT_MAX];
    mf_render_short(a->id, left);
    mf_render_short(b->id, right);
    const struct mf_table_column columns[] = {{"", MF_TABLE_LEFT},
                                              {left, MF_TABLE_RIGHT},
                                              {right, MF_TABLE_RIGHT},
                                              {"change", MF_TABLE_RIGHT}};
    numbers_table(render, a, b, columns);
    fputc('\n', render->out);

    const struct mf_table_column units[] = {
        {"unit (forward/backward/gradient/optimizer)", MF_TABLE_LEFT},
        {left, MF_TABLE_LEFT},
        {right, MF_TABLE_LEFT}};
    struct mf_table table;
    mf_table_init(&table, units, 3);
    struct differences all = {.rows = calloc(a->n_units + b->n_units + 1, sizeof(*all.rows))};
    MF_ASSERT(all.rows != NULL);
    size_t count = each_difference(a, b, collect_difference, &all);
    for (size_t i = 0; i < all.count; i++) {
        difference_cells(&table, &all.rows[i]);
    }
    if (count > 0) {
        mf_render_table(render, &table, "");
    }
    mf_table_reset(&table);
    free(all.rows);
    fprintf(render->out, "%zu unit%s held differently\n", count, count == 1 ? " is" : "s are");
    if (activation_differences(a, b) > 0) {
        mf_render_heading(render, "activations of %s:", left);
        mf_render_units_activations(render, a);
        mf_render_heading(render, "activations of %s:", right);
        mf_render_units_activations(render, b);
    }
}

static void difference_json(void *context, const char *name, const Memferry__V1__UnitPlan *left,
                            const Memferry__V1__UnitPlan *right)
{
    json_t *pair = json_object();
    json_object_set_new(pair, "name", json_string(name));
    json_object_set_new(pair, "a",
                        left != NULL ? mf_library_json_encode(&left->base) : json_null());
    json_object_set_new(pair, "b",
                        right != NULL ? mf_library_json_encode(&right->base) : json_null());
    json_array_append_new(context, pair);
}

json_t *mf_render_compare_diff_json(const Memferry__V1__Plan *a, const Memferry__V1__Plan *b)
{
    json_t *document = json_object();
    json_t *units = json_array();
    json_t *changed = json_object();
    for (size_t i = 0; i < NUMBER_COUNT; i++) {
        double left = number_of(a, i);
        double right = number_of(b, i);
        if (left != right) {
            json_object_set_new(changed, numbers[i].key,
                                json_pack("{s:f,s:f}", "a", left, "b", right));
        }
    }
    each_difference(a, b, difference_json, units);
    json_object_set_new(document, "a", json_string(a->id));
    json_object_set_new(document, "b", json_string(b->id));
    json_object_set_new(document, "prediction", changed);
    json_object_set_new(document, "units", units);
    json_object_set_new(document, "activation_differences",
                        json_integer((json_int_t)activation_differences(a, b)));
    return document;
}
