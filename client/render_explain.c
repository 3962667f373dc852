/* The alternatives for one unit of a plan: see render.h. */
#include "client/render.h"

static void unit_heading(const struct mf_render *render, const Memferry__V1__UnitPlan *unit)
{
    char bytes[MF_FORMAT_MAX];
    mf_render_heading(render, "%s: %s %lld x %lld, %s", unit->name, unit->kind,
                      (long long)unit->rows, (long long)unit->columns,
                      mf_format_bytes(unit->weight_bytes, bytes));
    if (unit->tied_to[0] != '\0') {
        mf_render_fact(render, "tied to", "%s, which owns the parameters", unit->tied_to);
    }
    if (unit->why[0] != '\0') {
        mf_render_fact(render, "why", "%s", unit->why);
    }
    char a[MF_FORMAT_MAX], b[MF_FORMAT_MAX], c[MF_FORMAT_MAX], d[MF_FORMAT_MAX];
    mf_render_fact(render, "busy", "compute %s, h2d %s, d2h %s, cpu %s in one optimizer step",
                   mf_render_time(unit->compute_ns, a), mf_render_time(unit->h2d_ns, b),
                   mf_render_time(unit->d2h_ns, c), mf_render_time(unit->cpu_ns, d));
}

/* "+3.2%": against the step of the chosen alternative. */
static void change_cell(struct mf_table *table, double step_ns, double chosen_ns)
{
    if (chosen_ns <= 0 || step_ns <= 0 || step_ns == chosen_ns) {
        mf_table_cell(table, "%s", "");
    } else {
        mf_table_cell(table, "%+.2f%%", 100 * (step_ns / chosen_ns - 1));
    }
}

void mf_render_explain(const struct mf_render *render,
                       const Memferry__V1__ExplainPlanResponse *answer)
{
    static const struct mf_table_column columns[] = {
        {"forward", MF_TABLE_LEFT},   {"backward", MF_TABLE_LEFT}, {"gradient", MF_TABLE_LEFT},
        {"optimizer", MF_TABLE_LEFT}, {"step", MF_TABLE_RIGHT},    {"change", MF_TABLE_RIGHT},
        {"device", MF_TABLE_RIGHT},   {"host", MF_TABLE_RIGHT},    {"", MF_TABLE_LEFT}};
    struct mf_table table;
    double chosen_ns = 0;
    for (size_t i = 0; i < answer->n_alternatives; i++) {
        chosen_ns = answer->alternatives[i]->chosen ? answer->alternatives[i]->step_ns : chosen_ns;
    }
    if (answer->unit != NULL) {
        unit_heading(render, answer->unit);
    }
    mf_table_init(&table, columns, sizeof(columns) / sizeof(columns[0]));
    for (size_t i = 0; i < answer->n_alternatives; i++) {
        const Memferry__V1__Alternative *row = answer->alternatives[i];
        char text[MF_LIBRARY_JSON_ENUM_MAX];
        mf_table_cell(&table, "%s", MF_RENDER_ENUM(weight_forward, row->forward, text));
        mf_table_cell(&table, "%s", MF_RENDER_ENUM(weight_backward, row->backward, text));
        mf_table_cell(&table, "%s", MF_RENDER_ENUM(gradient, row->gradient, text));
        mf_table_cell(&table, "%s", MF_RENDER_ENUM(optimizer, row->optimizer, text));
        mf_table_cell(&table, "%s", mf_render_time(row->step_ns, text));
        change_cell(&table, row->step_ns, chosen_ns);
        mf_table_cell(&table, "%s", mf_format_bytes(row->device_peak_bytes, text));
        mf_table_cell(&table, "%s", mf_format_bytes(row->host_peak_bytes, text));
        mf_table_cell(&table, "%s", row->chosen ? "<- chosen" : !row->fits ? "does not fit" : "");
    }
    fputc('\n', render->out);
    mf_render_table(render, &table, "");
    mf_table_reset(&table);
}
