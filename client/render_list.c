/* Lists of what the daemon knows: see render.h. */
#include "client/render.h"

static double age(const struct mf_render *render, int64_t unix_seconds)
{
    return (double)(render->now_unix_s - unix_seconds);
}

void mf_render_list_models(const struct mf_render *render,
                           const Memferry__V1__ListModelsResponse *list)
{
    static const struct mf_table_column columns[] = {{"model", MF_TABLE_LEFT},
                                                     {"family", MF_TABLE_LEFT},
                                                     {"parameters", MF_TABLE_RIGHT},
                                                     {"first seen", MF_TABLE_RIGHT},
                                                     {"fingerprint", MF_TABLE_LEFT}};
    struct mf_table table;
    char text[MF_FORMAT_MAX];
    mf_table_init(&table, columns, sizeof(columns) / sizeof(columns[0]));
    for (size_t i = 0; i < list->n_models; i++) {
        const Memferry__V1__ModelSummary *row = list->models[i];
        mf_table_cell(&table, "%s", row->name);
        mf_table_cell(&table, "%s", row->family);
        mf_table_cell(&table, "%s", mf_format_count((double)row->params, text));
        mf_table_cell(&table, "%s ago",
                      mf_render_age(age(render, row->first_seen_unix_seconds), text));
        mf_table_cell(&table, "%s", mf_render_short(row->fingerprint, text));
    }
    for (size_t i = 0; i < list->n_presets; i++) {
        mf_table_cell(&table, "%s", list->presets[i]);
        mf_table_cell(&table, "(preset)");
        for (int k = 0; k < 3; k++) {
            mf_table_cell(&table, "%s", "");
        }
    }
    mf_render_table(render, &table, "");
    mf_table_reset(&table);
}

static void workload_cell(struct mf_table *table, const Memferry__V1__Workload *work)
{
    if (work == NULL) {
        mf_table_cell(table, "%s", "");
    } else {
        mf_table_cell(table, "%d x %d x %d", work->micro_batch, work->seq_len, work->accumulation);
    }
}

void mf_render_list_plans(const struct mf_render *render,
                          const Memferry__V1__ListPlansResponse *list)
{
    static const struct mf_table_column columns[] = {
        {"plan", MF_TABLE_LEFT},     {"model", MF_TABLE_LEFT}, {"strategy", MF_TABLE_LEFT},
        {"workload", MF_TABLE_LEFT}, {"costs", MF_TABLE_LEFT}, {"step", MF_TABLE_RIGHT},
        {"device", MF_TABLE_RIGHT},  {"host", MF_TABLE_RIGHT}, {"made", MF_TABLE_RIGHT},
        {"uses", MF_TABLE_RIGHT},    {"", MF_TABLE_LEFT}};
    struct mf_table table;
    char text[MF_LIBRARY_JSON_ENUM_MAX];
    mf_table_init(&table, columns, sizeof(columns) / sizeof(columns[0]));
    for (size_t i = 0; i < list->n_plans; i++) {
        const Memferry__V1__PlanSummary *row = list->plans[i];
        mf_table_cell(&table, "%s", mf_render_short(row->id, text));
        mf_table_cell(&table, "%s", row->model_name);
        mf_table_cell(&table, "%s", MF_RENDER_ENUM(strategy, row->strategy, text));
        workload_cell(&table, row->workload);
        mf_table_cell(&table, "%s", row->measured ? "measured" : "estimated");
        mf_table_cell(&table, "%s", mf_format_ns(row->step_ns, text));
        mf_table_cell(&table, "%s", mf_format_bytes(row->device_peak_bytes, text));
        mf_table_cell(&table, "%s", mf_format_bytes(row->host_peak_bytes, text));
        mf_table_cell(&table, "%s ago",
                      mf_render_age(age(render, row->created_unix_seconds), text));
        mf_table_cell(&table, "%lld", (long long)row->use_count);
        mf_table_cell(&table, "%s%s",
                      row->current                    ? ""
                      : row->hardware_name[0] != '\0' ? "for "
                                                      : "of an older planner",
                      row->hardware_name);
    }
    mf_render_table(render, &table, "");
    mf_table_reset(&table);
}

void mf_render_list_profiles(const struct mf_render *render,
                             const Memferry__V1__ListProfilesResponse *list)
{
    static const struct mf_table_column columns[] = {
        {"profile", MF_TABLE_LEFT}, {"hardware", MF_TABLE_LEFT}, {"measurements", MF_TABLE_RIGHT},
        {"last", MF_TABLE_RIGHT},   {"method", MF_TABLE_LEFT},   {"", MF_TABLE_LEFT}};
    struct mf_table table;
    char text[MF_FORMAT_MAX];
    mf_table_init(&table, columns, sizeof(columns) / sizeof(columns[0]));
    for (size_t i = 0; i < list->n_profiles; i++) {
        const Memferry__V1__ProfileSummary *row = list->profiles[i];
        mf_table_cell(&table, "%s", mf_render_short(row->hardware_fingerprint, text));
        mf_table_cell(&table, "%s", row->hardware_name);
        mf_table_cell(&table, "%lld", (long long)row->measurement_count);
        mf_table_cell(&table, "%s ago",
                      mf_render_age(age(render, row->measured_at_unix_seconds), text));
        mf_table_cell(&table, "%s", row->method);
        mf_table_cell(&table, "%s", row->current ? "this machine" : "");
    }
    mf_render_table(render, &table, "");
    mf_table_reset(&table);
}

void mf_render_list_hardware(const struct mf_render *render,
                             const Memferry__V1__ListHardwareResponse *list)
{
    static const char *const sources[] = {"", "this machine", "store", "description"};
    static const struct mf_table_column columns[] = {
        {"name", MF_TABLE_LEFT},  {"device", MF_TABLE_LEFT}, {"memory", MF_TABLE_RIGHT},
        {"host", MF_TABLE_RIGHT}, {"rates", MF_TABLE_LEFT},  {"measurements", MF_TABLE_RIGHT},
        {"seen", MF_TABLE_RIGHT}, {"from", MF_TABLE_LEFT}};
    struct mf_table table;
    char text[MF_FORMAT_MAX];
    mf_table_init(&table, columns, sizeof(columns) / sizeof(columns[0]));
    for (size_t i = 0; i < list->n_machines; i++) {
        const Memferry__V1__HardwareSummary *row = list->machines[i];
        mf_table_cell(&table, "%s", row->name);
        mf_table_cell(&table, "%s", row->device_name);
        mf_table_cell(&table, "%s", mf_format_bytes(row->device_memory_bytes, text));
        mf_table_cell(&table, "%s", mf_format_bytes(row->host_memory_bytes, text));
        mf_table_cell(&table, "%s", row->measured ? "measured" : "estimate");
        mf_table_cell(&table, "%lld", (long long)row->measurement_count);
        if (row->last_seen_unix_seconds > 0) {
            mf_table_cell(&table, "%s ago",
                          mf_render_age(age(render, row->last_seen_unix_seconds), text));
        } else {
            mf_table_cell(&table, "%s", "");
        }
        mf_table_cell(&table, "%s", sources[(unsigned)row->source < 4 ? row->source : 0]);
    }
    mf_render_table(render, &table, "");
    mf_table_reset(&table);
}
