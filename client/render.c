/* What the renderers share: see render.h. */
#include "client/render.h"

#include <math.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#define FACT_WIDTH 11
#define WRAP_WIDTH 100 /* of text that goes to no terminal */
#define WRAP_MIN 40

const char *mf_render_ms(double ns, char out[static MF_FORMAT_MAX])
{
    double ms = ns / 1e6;
    if (ms == 0.0) {
        out[0] = '\0';
    } else if (ms < 0.005) {
        snprintf(out, MF_FORMAT_MAX, "<0.01");
    } else {
        snprintf(out, MF_FORMAT_MAX, "%.2f", ms);
    }
    return out;
}

const char *mf_render_time(double ns, char out[static MF_FORMAT_MAX])
{
    if (ns == 0) {
        snprintf(out, MF_FORMAT_MAX, "0");
        return out;
    }
    return mf_format_ns(ns, out);
}

const char *mf_render_age(double seconds, char out[static MF_FORMAT_MAX])
{
    static const struct {
        double seconds;
        const char *unit;
    } scales[] = {{86400, "d"}, {3600, "h"}, {60, "min"}, {1, "s"}};
    size_t i = 0;
    while (i < 3 && seconds < 2 * scales[i].seconds) {
        i++;
    }
    snprintf(out, MF_FORMAT_MAX, "%.0f %s", floor(fmax(seconds, 0) / scales[i].seconds),
             scales[i].unit);
    return out;
}

const char *mf_render_rate(double bytes_per_s, char out[static MF_FORMAT_MAX])
{
    if (bytes_per_s <= 0) {
        snprintf(out, MF_FORMAT_MAX, "not measured");
    } else {
        snprintf(out, MF_FORMAT_MAX, "%.*f GB/s", bytes_per_s < 1e11 ? 1 : 0, bytes_per_s / 1e9);
    }
    return out;
}

const char *mf_render_pace(const Memferry__V1__Workload *workload, double step_ns,
                           char out[static MF_FORMAT_MAX])
{
    double tokens = 0;
    if (workload != NULL && step_ns > 0) {
        tokens = (double)workload->micro_batch * workload->seq_len * workload->accumulation /
                 (step_ns * 1e-9);
    }
    snprintf(out, MF_FORMAT_MAX, "%.*f", tokens < 100 ? 2 : 0, tokens);
    return out;
}

const char *mf_render_short(const char *id, char out[static MF_FORMAT_MAX])
{
    snprintf(out, MF_FORMAT_MAX, "%.12s", id);
    return out;
}

const char *mf_render_tone_begin(const struct mf_render *render, enum mf_render_tone tone)
{
    static const char *const codes[] = {"", "\033[1m", "\033[32m", "\033[33m", "\033[31m"};
    return render->colour ? codes[tone] : "";
}

const char *mf_render_tone_end(const struct mf_render *render)
{
    return render->colour ? "\033[0m" : "";
}

void mf_render_table(const struct mf_render *render, struct mf_table *table, const char *indent)
{
    struct mf_table_style style = {
        .indent = indent, .header = render->header, .bold = render->colour, .width = render->width};
    mf_table_print(table, &style, render->out);
}

static void print_formatted(const struct mf_render *render, const char *format, va_list arguments)
{
    char *text = NULL;
    int length = vasprintf(&text, format, arguments);
    MF_ASSERT(length >= 0);
    mf_table_print_text(text, render->out);
    free(text);
}

void mf_render_fact(const struct mf_render *render, const char *name, const char *format, ...)
{
    fprintf(render->out, "  %s%-*s%s ", mf_render_tone_begin(render, MF_RENDER_BOLD), FACT_WIDTH,
            name, mf_render_tone_end(render));
    va_list arguments;
    va_start(arguments, format);
    print_formatted(render, format, arguments);
    va_end(arguments);
    fputc('\n', render->out);
}

void mf_render_heading(const struct mf_render *render, const char *format, ...)
{
    fputs(mf_render_tone_begin(render, MF_RENDER_BOLD), render->out);
    va_list arguments;
    va_start(arguments, format);
    print_formatted(render, format, arguments);
    va_end(arguments);
    fprintf(render->out, "%s\n", mf_render_tone_end(render));
}

void mf_render_wrapped(const struct mf_render *render, int indent, const char *text)
{
    int width = (render->width > 0 ? render->width : WRAP_WIDTH) - indent;
    int column = 0;
    width = width < WRAP_MIN ? WRAP_MIN : width;
    while (*text != '\0') {
        size_t length = strcspn(text, " ");
        char *word = strndup(text, length);
        MF_ASSERT(word != NULL);
        int characters = (int)mf_table_characters(word);
        if (column > 0 && column + 1 + characters > width) {
            fputc('\n', render->out);
            column = 0;
        }
        fprintf(render->out, "%*s", column == 0 ? indent : 1, "");
        mf_table_print_text(word, render->out);
        column += characters + (column > 0);
        free(word);
        text += length + strspn(text + length, " ");
    }
    fputc('\n', render->out);
}
