/* The drawings of a plan's page: see render_timeline.h. Each is a whole SVG document with a name
 * space of its own, so that it can be cut out and opened alone. */
#include <math.h>
#include <string.h>

#include "client/render_timeline.h"

#define WIDTH 1200 /* user units; the page scales the drawing to its own width */
#define LEFT 70    /* names of lanes, sizes of memory */
#define RIGHT 60   /* shares */
#define LANE 40    /* height of a lane */
#define BAR 30
#define AXIS 22
#define MEMORY 180 /* height of the chart of memory */
#define TICKS 10
#define FULL 0.97  /* of a span's time: drawn in full colour */
#define FAINT 0.15 /* the least colour */
#define NARROW 0.4 /* rectangles are not drawn narrower */

void mf_render_html_svg_text(FILE *out, const char *text)
{
    for (const unsigned char *c = (const unsigned char *)text; *c != '\0'; c++) {
        switch (*c) {
        case '<':
            fputs("&lt;", out);
            break;
        case '>':
            fputs("&gt;", out);
            break;
        case '&':
            fputs("&amp;", out);
            break;
        case '"':
            fputs("&quot;", out);
            break;
        default: /* no control character is allowed in XML but these two */
            fputc(*c >= 0x20 || *c == '\n' || *c == '\t' ? *c : '?', out);
            break;
        }
    }
}

static void begin(FILE *out, const char *id, const char *title, int height)
{
    fprintf(out,
            "<svg xmlns=\"http://www.w3.org/2000/svg\" class=\"%s\" role=\"img\" "
            "viewBox=\"0 0 %d %d\">\n<title>",
            id, WIDTH, height);
    mf_render_html_svg_text(out, title);
    fputs("</title>\n", out);
}

static double place(double ns, double step_ns)
{
    return LEFT + (step_ns > 0 ? ns / step_ns : 0) * (WIDTH - LEFT - RIGHT);
}

/* Times below a drawing whose plot ends at `y`, and thin lines up to `top`. */
static void time_axis(FILE *out, double step_ns, int top, int y)
{
    char text[MF_FORMAT_MAX];
    for (int i = 0; i <= TICKS; i++) {
        double x = place(step_ns * i / TICKS, step_ns);
        fprintf(out, "<path class=\"grid\" d=\"M%.1f %dV%d\"/>", x, top, y);
        fprintf(out, "<text x=\"%.1f\" y=\"%d\" text-anchor=\"%s\">%s</text>\n", x, y + 15,
                i == 0       ? "start"
                : i == TICKS ? "end"
                             : "middle",
                i == 0 ? "0" : mf_format_ns(step_ns * i / TICKS, text));
    }
}

/* ---- lanes ---- */

static const char *phase_class(Memferry__V1__Phase phase)
{
    static const char *const classes[] = {"o", "f", "b", "u"};
    return classes[(unsigned)phase < 4 ? phase : 0];
}

static void tooltip(FILE *out, const Memferry__V1__Plan *plan, const Memferry__V1__Span *span)
{
    char start[MF_FORMAT_MAX];
    char length[MF_FORMAT_MAX];
    char bytes[MF_FORMAT_MAX];
    static const char *const phases[] = {"", "forward", "backward", "update"};
    mf_render_html_svg_text(out, span->kernel);
    if (span->unit >= 0 && (size_t)span->unit < plan->n_units) {
        fputc(' ', out);
        mf_render_html_svg_text(out, plan->units[span->unit]->name);
    }
    if (span->panel >= 0) {
        fprintf(out, " panel %d", span->panel);
    }
    if (span->task_count > 1) {
        fprintf(out, " and %d more, busy %.0f%%", span->task_count - 1,
                span->duration_ns > 0 ? 100 * span->busy_ns / span->duration_ns : 100.0);
    }
    fprintf(out, "\n%s, micro-batch %d\nstart %s, takes %s",
            phases[(unsigned)span->phase < 4 ? span->phase : 0], span->micro,
            mf_render_time(span->start_ns, start), mf_render_time(span->duration_ns, length));
    if (span->link_bytes > 0) {
        fprintf(out, ", %s over the link", mf_format_bytes(span->link_bytes, bytes));
    }
}

static void draw_lane(FILE *out, const Memferry__V1__Plan *plan,
                      const Memferry__V1__LaneTimeline *lane, double step_ns, int y)
{
    fprintf(out, "<g class=\"lane\">\n<text x=\"%d\" y=\"%d\" text-anchor=\"end\">", LEFT - 8,
            y + BAR / 2 + 4);
    mf_render_html_svg_text(out, lane->lane);
    fprintf(out, "</text>\n<text x=\"%d\" y=\"%d\">%.1f%%</text>\n", WIDTH - RIGHT + 8,
            y + BAR / 2 + 4, step_ns > 0 ? 100 * lane->busy_ns / step_ns : 0.0);
    for (size_t i = 0; i < lane->n_spans; i++) {
        const Memferry__V1__Span *span = lane->spans[i];
        double x = place(span->start_ns, step_ns);
        double width = place(span->start_ns + span->duration_ns, step_ns) - x;
        fprintf(out, "<rect class=\"%s\" x=\"%.2f\" y=\"%d\" width=\"%.2f\" height=\"%d\"",
                phase_class(span->phase), x, y, fmax(width, NARROW), BAR);
        if (span->busy_ns < FULL * span->duration_ns) { /* several, with gaps between them */
            fprintf(out, " fill-opacity=\"%.2f\"", fmax(FAINT, span->busy_ns / span->duration_ns));
        }
        fputs("><title>", out);
        tooltip(out, plan, span);
        fputs("</title></rect>\n", out);
    }
    fputs("</g>\n", out);
}

void mf_render_html_svg_lanes(FILE *out, const char *title, const Memferry__V1__Plan *plan,
                              const Memferry__V1__GetTimelineResponse *timeline)
{
    int bottom = LANE * (int)timeline->n_lanes;
    begin(out, "lanes", title, bottom + AXIS);
    time_axis(out, timeline->step_ns, 0, bottom);
    for (size_t i = 0; i < timeline->n_lanes; i++) {
        draw_lane(out, plan, timeline->lanes[i], timeline->step_ns,
                  (int)i * LANE + (LANE - BAR) / 2);
    }
    fputs("</svg>\n", out);
}

/* ---- memory ---- */

static int64_t below(const Memferry__V1__MemorySample *sample, bool device, size_t purposes)
{
    const int64_t *rows = device ? sample->device_bytes : sample->host_bytes;
    size_t count = device ? sample->n_device_bytes : sample->n_host_bytes;
    int64_t total = 0;
    for (size_t i = 0; i < purposes && i < count; i++) {
        total += rows[i];
    }
    return total;
}

struct area {
    FILE *out;
    const Memferry__V1__GetTimelineResponse *timeline;
    bool device;
    int64_t scale; /* bytes at the top */
};

static double height_of(const struct area *area, int64_t bytes)
{
    return MEMORY + 8 - (area->scale > 0 ? (double)bytes / (double)area->scale * MEMORY : 0);
}

/* From left to right on top of the purpose, and back below it. Each sample is a stair. */
static void draw_purpose(const struct area *area, size_t purpose, int64_t most)
{
    const Memferry__V1__GetTimelineResponse *timeline = area->timeline;
    char text[MF_FORMAT_MAX];
    size_t count = timeline->n_memory;
    double step = timeline->step_ns;
    for (int pass = 0; pass < 2; pass++) {
        for (size_t k = 0; k < count; k++) {
            size_t i = pass == 0 ? k : count - 1 - k;
            const Memferry__V1__MemorySample *sample = timeline->memory[i];
            double from = place(sample->time_ns, step);
            double to = place(i + 1 < count ? timeline->memory[i + 1]->time_ns : step, step);
            double y = height_of(area, below(sample, area->device, purpose + (pass == 0)));
            if (pass == 0 && k == 0) {
                fprintf(area->out, "<path class=\"p%zu\" d=\"M%.1f %.1f", purpose, from, y);
            } else {
                fprintf(area->out, "V%.1f", y);
            }
            fprintf(area->out, "H%.1f", pass == 0 ? to : from);
        }
    }
    fputs("Z\"><title>", area->out);
    mf_render_html_svg_text(area->out, timeline->purposes[purpose]);
    fprintf(area->out, ": at most %s</title></path>\n", mf_format_bytes(most, text));
}

static int64_t most_of(const struct area *area, size_t purpose)
{
    int64_t most = 0;
    for (size_t i = 0; i < area->timeline->n_memory; i++) {
        const Memferry__V1__MemorySample *sample = area->timeline->memory[i];
        int64_t bytes =
            below(sample, area->device, purpose + 1) - below(sample, area->device, purpose);
        most = bytes > most ? bytes : most;
    }
    return most;
}

static void size_axis(const struct area *area)
{
    char text[MF_FORMAT_MAX];
    for (int i = 0; i <= 2; i++) {
        int64_t bytes = area->scale * i / 2;
        double y = height_of(area, bytes);
        fprintf(area->out,
                "<path class=\"grid\" d=\"M%d %.1fH%d\"/><text x=\"%d\" y=\"%.1f\" "
                "text-anchor=\"end\">%s</text>\n",
                LEFT, y, WIDTH - RIGHT, LEFT - 4, y + 4,
                i == 0 ? "0" : mf_format_bytes(bytes, text));
    }
}

void mf_render_html_svg_memory(FILE *out, const Memferry__V1__GetTimelineResponse *timeline,
                               bool device)
{
    struct area area = {.out = out,
                        .timeline = timeline,
                        .device = device,
                        .scale = device ? timeline->device_reserved_bytes
                                        : timeline->host_reserved_bytes};
    for (size_t i = 0; i < timeline->n_memory; i++) {
        int64_t all = below(timeline->memory[i], device, timeline->n_purposes);
        area.scale = all > area.scale ? all : area.scale;
    }
    begin(out, device ? "memory device" : "memory host",
          device ? "device memory in use" : "pinned host memory in use", MEMORY + 8 + AXIS);
    for (size_t i = 0; i < timeline->n_purposes && i < MF_RENDER_HTML_PURPOSES; i++) {
        int64_t most = most_of(&area, i);
        if (most > 0 && timeline->n_memory > 0) {
            draw_purpose(&area, i, most);
        }
    }
    size_axis(&area);
    time_axis(out, timeline->step_ns, 8, MEMORY + 8);
    fputs("</svg>\n", out);
}
