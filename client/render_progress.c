/* Progress on stderr: see render.h. */
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <time.h>
#include <unistd.h>

#include "client/render.h"

#define LINE_MAX_BYTES 512
/* A terminal is rewritten ten times a second at most, a log gets a line a second. */
#define TERMINAL_INTERVAL_S 0.1
#define LOG_INTERVAL_S 1.0

static double now_s(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

void mf_render_progress_init(struct mf_render_progress *progress, bool quiet)
{
    const char *kind = getenv("TERM");
    memset(progress, 0, sizeof(*progress));
    progress->out = stderr;
    progress->quiet = quiet;
    progress->terminal = isatty(STDERR_FILENO) && (kind == NULL || strcmp(kind, "dumb") != 0);
    progress->last_s = -1e9;
    struct winsize size;
    progress->width = 79;
    if (progress->terminal && ioctl(STDERR_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 10) {
        progress->width = size.ws_col - 1;
    }
}

void mf_render_progress_update(struct mf_render_progress *progress, const char *format, ...)
{
    double now = now_s();
    double interval = progress->terminal ? TERMINAL_INTERVAL_S : LOG_INTERVAL_S;
    if (progress->quiet || now - progress->last_s < interval) {
        return;
    }
    progress->last_s = now;
    char line[LINE_MAX_BYTES];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(line, sizeof(line), format, arguments);
    va_end(arguments);
    if (progress->terminal) {
        if (strlen(line) > (size_t)progress->width) {
            line[progress->width] = '\0';
        }
        fputs("\r\033[K", progress->out);
        mf_table_print_text(line, progress->out);
        progress->open = true;
    } else {
        mf_table_print_text(line, progress->out);
        fputc('\n', progress->out);
    }
    fflush(progress->out);
}

void mf_render_progress_clear(struct mf_render_progress *progress)
{
    if (progress->open) {
        fputs("\r\033[K", progress->out);
        fflush(progress->out);
        progress->open = false;
    }
    progress->last_s = -1e9;
}
