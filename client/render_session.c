/* Sessions and jobs for people: see render.h. */
#include <string.h>

#include "client/render.h"

#define STEPS_MAX 48

/* "12/1000" for a job, "12" for a session that a client drives. */
static const char *steps(const Memferry__V1__Session *session, char out[static STEPS_MAX])
{
    if (session->steps_total > 0) {
        snprintf(out, STEPS_MAX, "%lld/%lld", (long long)session->step,
                 (long long)session->steps_total);
    } else {
        snprintf(out, STEPS_MAX, "%lld", (long long)session->step);
    }
    return out;
}

static const char *until(const struct mf_render *render, const Memferry__V1__Session *session,
                         char out[static MF_FORMAT_MAX])
{
    char age[MF_FORMAT_MAX];
    if (session->ended_unix_seconds > 0) {
        mf_render_age((double)(render->now_unix_s - session->ended_unix_seconds), age);
        snprintf(out, MF_FORMAT_MAX, "ended %.16s ago", age);
    } else if (session->steps_total > 0 || session->lease_left_seconds < 0) {
        double left = (double)(session->steps_total - session->step) * session->step_ms / 1e3;
        snprintf(out, MF_FORMAT_MAX, "%s%.16s", left > 0 ? "about " : "",
                 left > 0 ? mf_render_age(left, age) : "");
    } else {
        snprintf(out, MF_FORMAT_MAX, "lease %.16s",
                 mf_render_age(session->lease_left_seconds, age));
    }
    return out;
}

/* Nothing for a session that has ended. */
static void memory_cell(struct mf_table *table, int64_t bytes)
{
    char text[MF_FORMAT_MAX];
    mf_table_cell(table, "%s", bytes > 0 ? mf_format_bytes(bytes, text) : "");
}

void mf_render_session_list(const struct mf_render *render, Memferry__V1__Session *const *sessions,
                            size_t count)
{
    static const struct mf_table_column columns[] = {
        {"session", MF_TABLE_LEFT},    {"model", MF_TABLE_LEFT},     {"state", MF_TABLE_LEFT},
        {"step", MF_TABLE_RIGHT},      {"loss", MF_TABLE_RIGHT},     {"step ms", MF_TABLE_RIGHT},
        {"predicted", MF_TABLE_RIGHT}, {"tokens/s", MF_TABLE_RIGHT}, {"device", MF_TABLE_RIGHT},
        {"host", MF_TABLE_RIGHT},      {"plan", MF_TABLE_LEFT},      {"until", MF_TABLE_LEFT}};
    struct mf_table table;
    char text[STEPS_MAX];
    mf_table_init(&table, columns, sizeof(columns) / sizeof(columns[0]));
    for (size_t i = 0; i < count; i++) {
        const Memferry__V1__Session *row = sessions[i];
        mf_table_cell(&table, "%s", mf_render_short(row->id, text));
        mf_table_cell(&table, "%s", row->model_name);
        mf_table_cell(&table, "%s", row->state);
        mf_table_cell(&table, "%s", steps(row, text));
        mf_table_cell(&table, row->step > 0 ? "%.4f" : "", row->loss);
        mf_table_cell(&table, "%s", mf_render_ms(row->step_ms * 1e6, text));
        mf_table_cell(&table, "%s", mf_render_ms(row->predicted_step_ms * 1e6, text));
        mf_table_cell(&table, row->tokens_per_second > 0 ? "%.0f" : "", row->tokens_per_second);
        memory_cell(&table, row->device_bytes);
        memory_cell(&table, row->host_bytes);
        mf_table_cell(&table, "%s", mf_render_short(row->plan_id, text));
        mf_table_cell(&table, "%s", until(render, row, text));
    }
    mf_render_table(render, &table, "");
    mf_table_reset(&table);
}

static void pace_facts(const struct mf_render *render, const Memferry__V1__Session *session)
{
    char a[STEPS_MAX];
    char b[MF_FORMAT_MAX];
    if (session->step > 0) {
        mf_render_fact(render, "loss", "%.4f at step %s", session->loss, steps(session, a));
    }
    if (session->step_ms > 0) {
        mf_render_fact(render, "pace", "%s a step, %.0f tokens/s; predicted %s",
                       mf_format_ns(session->step_ms * 1e6, a), session->tokens_per_second,
                       mf_format_ns(session->predicted_step_ms * 1e6, b));
    } else if (session->predicted_step_ms > 0) {
        mf_render_fact(render, "pace", "%s a step predicted",
                       mf_format_ns(session->predicted_step_ms * 1e6, a));
    }
}

void mf_render_session(const struct mf_render *render, const Memferry__V1__Session *session)
{
    char a[MF_FORMAT_MAX];
    char b[MF_FORMAT_MAX];
    mf_render_heading(render, "session %s: %s%s%s%s, %s", mf_render_short(session->id, a),
                      session->model_name, session->params > 0 ? ", " : "",
                      session->params > 0 ? mf_format_count((double)session->params, b) : "",
                      session->params > 0 ? " parameters" : "", session->state);
    if (session->error[0] != '\0') {
        mf_render_fact(render, "error", "%s", session->error);
    }
    if (session->plan_id[0] != '\0') {
        mf_render_fact(render, "plan", "%s%s%s", mf_render_short(session->plan_id, a),
                       session->plan_how[0] != '\0' ? ", " : "", session->plan_how);
    }
    if (session->note[0] != '\0') {
        mf_render_fact(render, "note", "%s", session->note);
    }
    const Memferry__V1__Workload *work = session->workload;
    if (work != NULL) {
        mf_render_fact(render, "workload", "%d x %d tokens a micro-batch, %d a step",
                       work->micro_batch, work->seq_len, work->accumulation);
    }
    pace_facts(render, session);
    if (session->device_bytes > 0 || session->host_bytes > 0) {
        mf_render_fact(render, "memory", "device %s, host %s",
                       mf_format_bytes(session->device_bytes, a),
                       mf_format_bytes(session->host_bytes, b));
    }
    if (session->run_folder[0] != '\0') {
        mf_render_fact(render, "folder", "%s", session->run_folder);
    } else if (session->ended_unix_seconds == 0) {
        mf_render_fact(render, "next", "seq_id %lld", (long long)session->next_seq_id);
    }
    double age = (double)(render->now_unix_s - session->started_unix_seconds);
    mf_render_fact(render, "started", "%s ago, by uid %u", mf_render_age(age, a), session->uid);
    if (session->ended_unix_seconds > 0 || session->lease_left_seconds >= 0) {
        mf_render_fact(render, "until", "%s", until(render, session, a));
    }
}
