/* A plan's timeline in the terminal: see render_timeline.h. */
#include "client/render_timeline.h"

#include <langinfo.h>
#include <locale.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#define WIDTH_DEFAULT 100 /* of text that goes to no terminal */
#define LABEL 17          /* characters of a row's name */
#define VALUE 26          /* behind the row */
#define COLUMNS_MIN 20
#define COLUMNS_MAX 400
#define LEVELS 8 /* above nothing */

/* What a chart's rows have in common. */
struct chart {
    const struct mf_render *render;
    double step_ns;
    int columns;
    bool utf8;
};

static bool terminal_is_utf8(void)
{
    locale_t locale = newlocale(LC_CTYPE_MASK, "", (locale_t)0);
    bool utf8 = locale != (locale_t)0 && strcmp(nl_langinfo_l(CODESET, locale), "UTF-8") == 0;
    if (locale != (locale_t)0) {
        freelocale(locale);
    }
    return utf8;
}

static struct chart make_chart(const struct mf_render *render, double step_ns)
{
    int width = render->width > 0 ? render->width : WIDTH_DEFAULT;
    int columns = width - LABEL - VALUE - 4;
    columns = columns < COLUMNS_MIN ? COLUMNS_MIN : columns;
    return (struct chart){.render = render,
                          .step_ns = step_ns,
                          .columns = columns < COLUMNS_MAX ? columns : COLUMNS_MAX,
                          .utf8 = terminal_is_utf8()};
}

/* One character for a share of 0..1; anything above nothing shows. */
static void put_level(const struct chart *chart, double share)
{
    static const char *const blocks[LEVELS + 1] = {" ", "▁", "▂", "▃", "▄", "▅", "▆", "▇", "█"};
    static const char *const plain[LEVELS + 1] = {" ", ".", ":", "-", "=", "+", "*", "#", "@"};
    int level = (int)ceil(share * LEVELS - 1e-9);
    level = level < 0 ? 0 : level;
    level = level > LEVELS ? LEVELS : level;
    fputs(chart->utf8 ? blocks[level] : plain[level], chart->render->out);
}

static void begin_row(const struct chart *chart, const char *name)
{
    fprintf(chart->render->out, "  %-*.*s ", LABEL, LABEL, name);
}

/* ---- lanes ---- */

struct cells {
    double busy_ns[COLUMNS_MAX];
    double phase_ns[COLUMNS_MAX][4]; /* by Phase */
};

static void fill_cells(const struct chart *chart, const Memferry__V1__LaneTimeline *lane,
                       struct cells *cells)
{
    double column_ns = chart->step_ns / chart->columns;
    memset(cells, 0, sizeof(*cells));
    for (size_t i = 0; i < lane->n_spans && column_ns > 0; i++) {
        const Memferry__V1__Span *span = lane->spans[i];
        double end = span->start_ns + span->duration_ns;
        double density = span->duration_ns > 0 ? span->busy_ns / span->duration_ns : 0;
        for (int c = (int)(span->start_ns / column_ns); c >= 0 && c < chart->columns; c++) {
            double inside = fmin(end, (c + 1) * column_ns) - fmax(span->start_ns, c * column_ns);
            if (inside <= 0) {
                break;
            }
            cells->busy_ns[c] += inside * density;
            cells->phase_ns[c][(int)span->phase & 3] += inside * density;
        }
    }
}

static int main_phase(const struct cells *cells, int column)
{
    int best = 0;
    for (int phase = 1; phase < 4; phase++) {
        best = cells->phase_ns[column][phase] > cells->phase_ns[column][best] ? phase : best;
    }
    return best;
}

static enum mf_render_tone phase_tone(int phase)
{
    static const enum mf_render_tone tones[] = {MF_RENDER_PLAIN, MF_RENDER_GOOD, MF_RENDER_NOTE,
                                                MF_RENDER_BOLD};
    return tones[phase];
}

/* What compute works at; of a column in which it idles, nothing. */
static void phase_row(const struct chart *chart, const struct cells *cells)
{
    begin_row(chart, "phase");
    for (int c = 0; c < chart->columns; c++) {
        fputc(" FBU"[main_phase(cells, c)], chart -> render -> out);
    }
    fputs("  forward, backward, update\n", chart->render->out);
}

static void lane_row(const struct chart *chart, const Memferry__V1__LaneTimeline *lane,
                     const struct cells *cells)
{
    char busy[MF_FORMAT_MAX];
    double column_ns = chart->step_ns / chart->columns;
    begin_row(chart, lane->lane);
    for (int c = 0; c < chart->columns; c++) {
        enum mf_render_tone tone = phase_tone(main_phase(cells, c));
        fputs(mf_render_tone_begin(chart->render, tone), chart->render->out);
        put_level(chart, column_ns > 0 ? cells->busy_ns[c] / column_ns : 0);
        if (tone != MF_RENDER_PLAIN) {
            fputs(mf_render_tone_end(chart->render), chart->render->out);
        }
    }
    fprintf(chart->render->out, "  %5.1f%%  %s\n",
            chart->step_ns > 0 ? 100 * lane->busy_ns / chart->step_ns : 0.0,
            mf_render_time(lane->busy_ns, busy));
}

static void lanes(const struct chart *chart, const Memferry__V1__GetTimelineResponse *timeline)
{
    char step[MF_FORMAT_MAX];
    char column[MF_FORMAT_MAX];
    struct cells *cells = calloc(1, sizeof(*cells));
    MF_ASSERT(cells != NULL);
    mf_render_heading(chart->render, "one step: %s, a column is %s; %d tasks",
                      mf_format_ns(timeline->step_ns, step),
                      mf_format_ns(chart->step_ns / chart->columns, column), timeline->task_count);
    for (size_t i = 0; i < timeline->n_lanes; i++) {
        fill_cells(chart, timeline->lanes[i], cells);
        if (i == 0) {
            phase_row(chart, cells);
        }
        lane_row(chart, timeline->lanes[i], cells);
    }
    begin_row(chart, "");
    int length = fprintf(chart->render->out, "0");
    fprintf(chart->render->out, "%*s\n", chart->columns - length, step);
    free(cells);
}

/* ---- memory ---- */

static int64_t sum(const int64_t *rows, size_t count)
{
    int64_t total = 0;
    for (size_t i = 0; i < count; i++) {
        total += rows[i];
    }
    return total;
}

/* Bytes of a sample: of a purpose, or with -1 of all. */
static int64_t bytes_of(const Memferry__V1__MemorySample *sample, bool device, int purpose)
{
    const int64_t *rows = device ? sample->device_bytes : sample->host_bytes;
    size_t count = device ? sample->n_device_bytes : sample->n_host_bytes;
    if (purpose < 0) {
        return sum(rows, count);
    }
    return (size_t)purpose < count ? rows[purpose] : 0;
}

/* Nothing is printed for a purpose that never holds anything. */
static void memory_row(const struct chart *chart, const Memferry__V1__GetTimelineResponse *timeline,
                       bool device, int purpose, int64_t scale)
{
    char most_text[MF_FORMAT_MAX];
    char name[64];
    int64_t most = 0;
    size_t count = timeline->n_memory;
    for (size_t i = 0; i < count; i++) {
        int64_t bytes = bytes_of(timeline->memory[i], device, purpose);
        most = bytes > most ? bytes : most;
    }
    if (most == 0) {
        return;
    }
    snprintf(name, sizeof(name), "%s%s", purpose < 0 ? "" : "  ",
             purpose >= 0 ? timeline->purposes[purpose]
             : device     ? "device"
                          : "host");
    begin_row(chart, name);
    for (int c = 0; c < chart->columns; c++) {
        size_t first = (size_t)c * count / (size_t)chart->columns;
        size_t end = ((size_t)c + 1) * count / (size_t)chart->columns;
        int64_t bytes = 0;
        for (size_t i = first; i == first || i < end; i++) {
            int64_t here = bytes_of(timeline->memory[i], device, purpose);
            bytes = here > bytes ? here : bytes;
        }
        put_level(chart, scale > 0 ? (double)bytes / (double)scale : 0);
    }
    fprintf(chart->render->out, "  %s\n", mf_format_bytes(most, most_text));
}

static void memory(const struct chart *chart, const Memferry__V1__GetTimelineResponse *timeline)
{
    char device[MF_FORMAT_MAX];
    char host[MF_FORMAT_MAX];
    if (timeline->n_memory == 0) {
        return;
    }
    mf_render_heading(chart->render,
                      "memory in use, as a share of what is reserved (device %s, host %s), and "
                      "its most",
                      mf_format_bytes(timeline->device_reserved_bytes, device),
                      mf_format_bytes(timeline->host_reserved_bytes, host));
    for (int space = 0; space < 2; space++) {
        int64_t scale =
            space == 0 ? timeline->device_reserved_bytes : timeline->host_reserved_bytes;
        for (int purpose = -1; purpose < (int)timeline->n_purposes; purpose++) {
            memory_row(chart, timeline, space == 0, purpose, scale);
        }
    }
}

/* ---- stall ---- */

const char *mf_render_timeline_stall(const char *cause)
{
    static const char *const words[][2] = {
        {"h2d", "copies to the device"},
        {"d2h", "copies to the host"},
        {"cpu", "updates by the CPU"},
        {"handover", "the hand-over between lanes"},
        {"issue", "the thread that queues tasks"},
        {"end", "other lanes, at the end"},
    };
    for (size_t i = 0; i < sizeof(words) / sizeof(words[0]); i++) {
        if (strcmp(cause, words[i][0]) == 0) {
            return words[i][1];
        }
    }
    return cause;
}

static void stalls(const struct mf_render *render,
                   const Memferry__V1__GetTimelineResponse *timeline)
{
    static const struct mf_table_column columns[] = {{"compute waits for", MF_TABLE_LEFT},
                                                     {"time", MF_TABLE_RIGHT},
                                                     {"of step", MF_TABLE_RIGHT}};
    struct mf_table table;
    char text[MF_FORMAT_MAX];
    double total = 0;
    mf_table_init(&table, columns, 3);
    for (size_t i = 0; i < timeline->n_stalls; i++) {
        const Memferry__V1__StallCause *stall = timeline->stalls[i];
        total += stall->stall_ns;
        if (stall->stall_ns > 0) {
            mf_table_cell(&table, "%s", mf_render_timeline_stall(stall->cause));
            mf_table_cell(&table, "%s", mf_format_ns(stall->stall_ns, text));
            mf_table_cell(&table, "%.1f%%", 100 * stall->stall_ns / timeline->step_ns);
        }
    }
    mf_table_cell(&table, "in all");
    mf_table_cell(&table, "%s", mf_render_time(total, text));
    mf_table_cell(&table, "%.1f%%", timeline->step_ns > 0 ? 100 * total / timeline->step_ns : 0.0);
    mf_render_table(render, &table, "");
    mf_table_reset(&table);
}

void mf_render_timeline(const struct mf_render *render,
                        const Memferry__V1__GetTimelineResponse *timeline)
{
    struct chart chart = make_chart(render, timeline->step_ns);
    lanes(&chart, timeline);
    fputc('\n', render->out);
    stalls(render, timeline);
    fputc('\n', render->out);
    memory(&chart, timeline);
}
