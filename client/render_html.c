/* A plan as a page for a browser: see render_timeline.h. */
#include <string.h>

#include "client/render_timeline.h"

/* Colours that people with the common kinds of colour blindness can tell apart (Okabe and Ito). */
static const char style[] =
    "body{font:14px system-ui,sans-serif;margin:24px auto;max-width:1400px;padding:0 16px;"
    "color:#222;background:#fff}"
    "h1{font-size:20px}h2{font-size:16px;margin:28px 0 8px}"
    "table{border-collapse:collapse;font-variant-numeric:tabular-nums}"
    "th,td{padding:2px 10px;text-align:left;border-bottom:1px solid #e4e4e4;white-space:nowrap}"
    "td.n,th.n{text-align:right}.wide{overflow-x:auto}"
    ".units td:last-child{white-space:normal;min-width:24em}"
    "svg{width:100%;height:auto;display:block}svg text{font-size:11px;fill:#333}"
    ".grid{stroke:#bbb;stroke-width:.5;fill:none}rect:hover{stroke:#000}"
    ".key{display:inline-block;width:12px;height:12px;margin:0 4px 0 14px;vertical-align:-1px}"
    ".f{fill:#009e73;background:#009e73}.b{fill:#e69f00;background:#e69f00}"
    ".u{fill:#cc79a7;background:#cc79a7}.o{fill:#999;background:#999}"
    ".p0{fill:#0072b2;background:#0072b2}.p1{fill:#56b4e9;background:#56b4e9}"
    ".p2{fill:#d55e00;background:#d55e00}.p3{fill:#cc79a7;background:#cc79a7}"
    ".p4{fill:#009e73;background:#009e73}.p5{fill:#999;background:#999}"
    ".note{color:#666}";

/* A cell of text, or of a number when `class` says so. */
static void cell(FILE *out, const char *class, const char *text)
{
    fprintf(out, "<td%s%s%s>", class[0] != '\0' ? " class=\"" : "", class,
            class[0] != '\0' ? "\"" : "");
    mf_render_html_svg_text(out, text);
    fputs("</td>", out);
}

static void fact(FILE *out, const char *name, const char *text)
{
    fputs("<tr>", out);
    cell(out, "", name);
    cell(out, "", text);
    fputs("</tr>\n", out);
}

static const char *size(int64_t bytes, const char *none, char out[static MF_FORMAT_MAX])
{
    if (bytes > 0) {
        return mf_format_bytes(bytes, out);
    }
    return none;
}

static void workload(FILE *out, const Memferry__V1__Plan *plan)
{
    char text[512];
    snprintf(text, sizeof(text), "%s%s", plan->hardware_name,
             plan->here ? "" : ", which is not this machine: a plan to look at, none to run");
    fact(out, "hardware", text);
    char device[MF_FORMAT_MAX];
    char host[MF_FORMAT_MAX];
    char name[MF_LIBRARY_JSON_ENUM_MAX];
    const Memferry__V1__Workload *work = plan->workload;
    const Memferry__V1__Constraints *limits = plan->constraints;
    if (work != NULL) {
        snprintf(text, sizeof(text), "%d x %d tokens a micro-batch, %d of them a step, %s",
                 work->micro_batch, work->seq_len, work->accumulation,
                 work->no_clip ? "no clipping" : "clipping by norm");
        fact(out, "workload", text);
    }
    if (limits != NULL) {
        snprintf(text, sizeof(text), "device memory %s, host memory %s; strategy %s",
                 size(limits->device_memory_bytes, "all there is", device),
                 size(limits->host_memory_bytes, "all there is", host),
                 MF_RENDER_ENUM(strategy, limits->strategy, name));
        fact(out, "budget", text);
    }
}

static void prediction(FILE *out, const Memferry__V1__Plan *plan)
{
    char text[512];
    char a[MF_FORMAT_MAX];
    char b[MF_FORMAT_MAX];
    char c[MF_FORMAT_MAX];
    const Memferry__V1__Prediction *p = plan->prediction;
    if (p == NULL) {
        return;
    }
    snprintf(text, sizeof(text), "%s, %s tokens/s, from %s costs (%d of %d tasks estimated)",
             mf_format_ns(p->step_ns, a), mf_render_pace(plan->workload, p->step_ns, b),
             plan->measured ? "measured" : "estimated", p->estimated_tasks, p->task_count);
    fact(out, "step", text);
    snprintf(text, sizeof(text), "%s (%s): no plan under this budget can be faster; gap %.1f%%",
             mf_format_ns(p->bound_ns, a), p->bound_lane, 100 * p->gap);
    fact(out, "bound", text);
    snprintf(text, sizeof(text), "%s to the device, %s back, %s read or written in place, a step%s",
             mf_format_bytes(p->h2d_bytes, a), mf_format_bytes(p->d2h_bytes, b),
             mf_format_bytes(p->direct_bytes, c),
             plan->link_emulated ? "; the link's rate is emulated" : "");
    fact(out, "link", text);
    snprintf(text, sizeof(text), "device %s, host %s pinned; exact",
             mf_format_bytes(p->device_peak_bytes, a), mf_format_bytes(p->host_peak_bytes, b));
    fact(out, "memory", text);
}

static void phase_keys(FILE *out)
{
    fputs(
        "<p><span class=\"key f\"></span>forward<span class=\"key b\"></span>backward"
        "<span class=\"key u\"></span>update <span class=\"note\">A rectangle is a task, or "
        "several short ones side by side, paler where the lane idles between them; rest on one to "
        "see what it is.</span></p>\n",
        out);
}

static void purpose_keys(FILE *out, const Memferry__V1__GetTimelineResponse *timeline)
{
    fputs("<p>", out);
    for (size_t i = 0; i < timeline->n_purposes && i < MF_RENDER_HTML_PURPOSES; i++) {
        fprintf(out, "<span class=\"key p%zu\"></span>", i);
        mf_render_html_svg_text(out, timeline->purposes[i]);
    }
    fputs("</p>\n", out);
}

static void stalls(FILE *out, const Memferry__V1__GetTimelineResponse *timeline)
{
    char text[MF_FORMAT_MAX];
    char share[32];
    double total = 0;
    fputs("<h2>Why compute waits</h2>\n<table class=\"stalls\">\n", out);
    for (size_t i = 0; i <= timeline->n_stalls; i++) {
        bool last = i == timeline->n_stalls;
        double ns = last ? total : timeline->stalls[i]->stall_ns;
        total += last ? 0 : ns;
        snprintf(share, sizeof(share), "%.1f%%",
                 timeline->step_ns > 0 ? 100 * ns / timeline->step_ns : 0.0);
        fputs("<tr>", out);
        cell(out, "", last ? "in all" : mf_render_timeline_stall(timeline->stalls[i]->cause));
        cell(out, "n", mf_render_time(ns, text));
        cell(out, "n", share);
        fputs("</tr>\n", out);
    }
    fputs("</table>\n", out);
}

static void unit_row(FILE *out, const Memferry__V1__UnitPlan *unit)
{
    char text[MF_FORMAT_MAX + 32];
    char name[MF_LIBRARY_JSON_ENUM_MAX];
    const double times[] = {unit->compute_ns, unit->h2d_ns, unit->d2h_ns, unit->cpu_ns};
    fputs("<tr>", out);
    cell(out, "", unit->name);
    snprintf(text, sizeof(text), "%lld x %lld", (long long)unit->rows, (long long)unit->columns);
    cell(out, "n", text);
    cell(out, "n", size(unit->weight_bytes, "", text));
    cell(out, "", MF_RENDER_ENUM(weight_forward, unit->forward, name));
    cell(out, "", MF_RENDER_ENUM(weight_backward, unit->backward, name));
    cell(out, "", MF_RENDER_ENUM(gradient, unit->gradient, name));
    cell(out, "", MF_RENDER_ENUM(optimizer, unit->optimizer, name));
    for (size_t i = 0; i < sizeof(times) / sizeof(times[0]); i++) {
        cell(out, "n", mf_render_ms(times[i], text));
    }
    cell(out, "", unit->why);
    fputs("</tr>\n", out);
}

static void units(FILE *out, const Memferry__V1__Plan *plan)
{
    static const char *const titles[] = {"unit",     "shape",    "weights",   "forward",
                                         "backward", "gradient", "optimizer", "compute ms",
                                         "h2d ms",   "d2h ms",   "cpu ms",    "why"};
    fputs("<h2>Decisions</h2>\n<div class=\"wide\"><table class=\"units\">\n<tr>", out);
    for (size_t i = 0; i < sizeof(titles) / sizeof(titles[0]); i++) {
        bool number = i == 1 || i == 2 || (i >= 7 && i <= 10);
        fprintf(out, "<th%s>%s</th>", number ? " class=\"n\"" : "", titles[i]);
    }
    fputs("</tr>\n", out);
    for (size_t i = 0; i < plan->n_units; i++) {
        unit_row(out, plan->units[i]);
    }
    fputs("</table></div>\n<p>Activations: ", out);
    for (size_t first = 0, end; first < plan->n_activations; first = end) {
        char name[MF_LIBRARY_JSON_ENUM_MAX];
        end = first + 1;
        while (end < plan->n_activations && plan->activations[end] == plan->activations[first]) {
            end++;
        }
        fprintf(out, "%sblocks %zu-%zu %s", first > 0 ? ", " : "", first, end - 1,
                MF_RENDER_ENUM(activation, plan->activations[first], name));
    }
    fprintf(out, ". Weight ring: %d slots. Updated in the next step's forward: %d blocks.</p>\n",
            plan->ring_slots, plan->deferred_blocks);
}

void mf_render_html(FILE *out, const Memferry__V1__Plan *plan,
                    const Memferry__V1__GetTimelineResponse *timeline,
                    const Memferry__V1__GetSessionTimelineResponse *session)
{
    fputs("<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"/><title>", out);
    mf_render_html_svg_text(out, plan->model_name);
    fprintf(out, " - plan %.12s</title>\n<style>%s</style></head>\n<body>\n<h1>", plan->id, style);
    mf_render_html_svg_text(out, plan->model_name);
    fprintf(out, ", plan %.12s</h1>\n<table class=\"facts\">\n", plan->id);
    workload(out, plan);
    prediction(out, plan);
    fputs("</table>\n<h2>Lanes</h2>\n", out);
    phase_keys(out);
    mf_render_html_svg_lanes(out, "lanes as predicted", plan, timeline);
    if (session != NULL && session->predicted != NULL && session->measured != NULL) {
        fputs("<h2>The session's last work as predicted</h2>\n", out);
        mf_render_html_svg_lanes(out, "last work as predicted", plan, session->predicted);
        fputs("<h2>The session's last work as measured</h2>\n", out);
        mf_render_html_svg_lanes(out, "last work as measured", plan, session->measured);
    }
    stalls(out, timeline);
    fputs("<h2>Device memory in use</h2>\n", out);
    purpose_keys(out, timeline);
    mf_render_html_svg_memory(out, timeline, true);
    fputs("<h2>Pinned host memory in use</h2>\n", out);
    mf_render_html_svg_memory(out, timeline, false);
    units(out, plan);
    fputs("</body></html>\n", out);
}
