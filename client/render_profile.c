/* A profile for people: see render.h. */
#include <string.h>

#include "client/render.h"

static void microseconds(struct mf_table *table, double ns)
{
    double us = ns / 1e3;
    mf_table_cell(table, "%.*f", us >= 100 ? 0 : us >= 10 ? 1 : 2, us);
}

/* Bytes or operations a second of the kernels whose shape tells them. */
static void rate_cell(struct mf_table *table, const Memferry__V1__Measurement *row)
{
    bool product = strncmp(row->kernel, "linear_", 7) == 0;
    if (row->median_ns <= 0) {
        mf_table_cell(table, "%s", "");
    } else if (strcmp(row->kernel, "copy") == 0) {
        mf_table_cell(table, "%.1f GB/s", (double)row->n / row->median_ns);
    } else if (product) {
        double operations = 2.0 * (double)row->rows * (double)row->n * (double)row->k;
        mf_table_cell(table, "%.3g TFLOP/s", operations / row->median_ns / 1e3);
    } else {
        mf_table_cell(table, "%s", "");
    }
}

/* Whether a column of what was counted says anything. */
static bool was_counted(const Memferry__V1__Profile *profile)
{
    bool counted = false;
    for (size_t i = 0; i < profile->n_measurements; i++) {
        counted = counted || profile->measurements[i]->link_needed_bytes > 0;
    }
    return counted;
}

/* Of host memory where that is counted, else on the bus; a copy engine goes past the L2 cache,
 * where the former is. */
static void count_cell(struct mf_table *table, const Memferry__V1__Measurement *row)
{
    bool bus = row->link_memory_bytes < 0 || strcmp(row->kernel, "copy") == 0;
    int64_t counted = bus ? row->link_bus_bytes : row->link_memory_bytes;
    if (row->link_needed_bytes <= 0 || counted < 0) {
        mf_table_cell(table, "%s", "");
        return;
    }
    mf_table_cell(table, "%.2f of %.2f MB, %.2fx", (double)counted / 1e6,
                  (double)row->link_needed_bytes / 1e6,
                  (double)counted / (double)row->link_needed_bytes);
}

static void rows(struct mf_table *table, const Memferry__V1__Profile *profile, bool counted)
{
    for (size_t i = 0; i < profile->n_measurements; i++) {
        const Memferry__V1__Measurement *row = profile->measurements[i];
        mf_table_cell(table, "%s", row->kernel);
        mf_table_cell(table, "%s", row->lane);
        mf_table_cell(table, "%s", row->placement);
        mf_table_cell(table, row->rows > 0 ? "%lld" : "", (long long)row->rows);
        mf_table_cell(table, row->n > 0 ? "%lld" : "", (long long)row->n);
        mf_table_cell(table, row->k > 0 ? "%lld" : "", (long long)row->k);
        microseconds(table, row->median_ns);
        mf_table_cell(table, "%.1f%%",
                      row->median_ns > 0 ? 100 * row->spread_ns / row->median_ns : 0.0);
        mf_table_cell(table, "%d", row->samples);
        rate_cell(table, row);
        if (counted) {
            count_cell(table, row);
        }
        mf_table_cell(table, "%s", row->units);
    }
}

/* What the kernels stand for. */
static void cover(const struct mf_render *render, const Memferry__V1__Profile *profile)
{
    int32_t reads = 0;
    int32_t writes = 0;
    int32_t cpu = 0;
    int32_t copies = 0;
    for (size_t i = 0; i < profile->n_measurements; i++) {
        const Memferry__V1__Measurement *row = profile->measurements[i];
        reads += strncmp(row->placement, "weight", 6) == 0;
        writes += strncmp(row->placement, "output", 6) == 0;
        cpu += strcmp(row->lane, "cpu") == 0;
        copies += strcmp(row->kernel, "copy") == 0;
    }
    int32_t others = profile->measured_count - reads - writes - cpu - copies;
    mf_render_fact(render, "units", "all %d%s", profile->unit_count,
                   profile->complete ? ", in every placement" : "");
    mf_render_fact(render, "kernels",
                   "%d in device memory, %d reading weights in host memory, %d writing gradients "
                   "there, %d on the CPU, %d copies",
                   others, reads, writes, cpu, copies);
}

void mf_render_profile(const struct mf_render *render, const Memferry__V1__Profile *profile)
{
    static const struct mf_table_column columns[] = {
        {"kernel", MF_TABLE_LEFT},     {"lane", MF_TABLE_LEFT},    {"placement", MF_TABLE_LEFT},
        {"tokens", MF_TABLE_RIGHT},    {"n", MF_TABLE_RIGHT},      {"k", MF_TABLE_RIGHT},
        {"median us", MF_TABLE_RIGHT}, {"spread", MF_TABLE_RIGHT}, {"samples", MF_TABLE_RIGHT},
        {"rate", MF_TABLE_RIGHT},      {"units", MF_TABLE_LEFT}};
    struct mf_table_column with_counts[sizeof(columns) / sizeof(columns[0]) + 1];
    size_t count = sizeof(columns) / sizeof(columns[0]);
    bool counted = was_counted(profile);
    char text[MF_FORMAT_MAX];
    mf_render_heading(render, "profile of %s on hardware %s", profile->model_name,
                      mf_render_short(profile->hardware_fingerprint, text));
    mf_render_fact(render, "measured", "%d of the %d kernels this model needs%s",
                   profile->measured_count, profile->needed_count,
                   profile->complete ? "" : "; the others are estimated");
    cover(render, profile);
    if (profile->seconds > 0) {
        mf_render_fact(render, "took", "%.1f s", profile->seconds);
    }
    if (profile->measured_at_unix_seconds > 0) {
        double age = (double)(render->now_unix_s - profile->measured_at_unix_seconds);
        mf_render_fact(render, "when", "%s ago, by %s", mf_render_age(age, text),
                       profile->method[0] != '\0' ? profile->method : "an unknown clock");
    }
    if (profile->link_emulated) {
        mf_render_fact(render, "link", "its rate is emulated, not a real link's");
    }
    if (profile->counters_note[0] != '\0') {
        mf_render_fact(render, "counters", "%s", profile->counters_note);
    }
    if (profile->n_measurements > 0) {
        fputc('\n', render->out);
        struct mf_table table;
        memcpy(with_counts, columns, sizeof(columns));
        with_counts[count] = columns[count - 1];
        with_counts[count - 1] = (struct mf_table_column){"over the link, counted", MF_TABLE_RIGHT};
        mf_table_init(&table, counted ? with_counts : columns, count + counted);
        rows(&table, profile, counted);
        mf_render_table(render, &table, "");
        mf_table_reset(&table);
    }
    if (profile->contention != NULL) {
        mf_render_contention(render, profile->contention);
    }
}
