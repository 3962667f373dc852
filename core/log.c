/* One writer for all log lines: see log.h. */
#include "core/log.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define LINE_MAX_BYTES 2048

static enum mf_log_level threshold = MF_LOG_INFO;
static bool as_json;
static bool journal;

static const struct {
    const char *name;
    int priority; /* syslog's, for the journal's "<N>" prefix */
} levels[] = {
    [MF_LOG_ERROR] = {"error", 3},
    [MF_LOG_WARN] = {"warn", 4},
    [MF_LOG_INFO] = {"info", 6},
    [MF_LOG_DEBUG] = {"debug", 7},
};

bool mf_log_level_parse(const char *name, enum mf_log_level *out)
{
    for (size_t i = 0; i < sizeof(levels) / sizeof(levels[0]); i++) {
        if (strcmp(name, levels[i].name) == 0) {
            *out = (enum mf_log_level)i;
            return true;
        }
    }
    return false;
}

void mf_log_configure(enum mf_log_level level, bool json)
{
    threshold = level;
    as_json = json;
    journal = getenv("JOURNAL_STREAM") != NULL;
}

static size_t escape(char *out, size_t size, const char *text)
{
    size_t used = 0;
    for (; *text != '\0' && used + 7 < size; text++) {
        unsigned char c = (unsigned char)*text;
        if (c == '"' || c == '\\') {
            out[used++] = '\\';
            out[used++] = (char)c;
        } else if (c < 0x20) {
            used += (size_t)snprintf(out + used, size - used, "\\u%04x", c);
        } else {
            out[used++] = (char)c;
        }
    }
    out[used] = '\0';
    return used;
}

void mf_log(enum mf_log_level level, const char *format, ...)
{
    if (level > threshold) {
        return;
    }
    char text[LINE_MAX_BYTES / 2];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof(text), format, arguments);
    va_end(arguments);

    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    struct tm utc;
    gmtime_r(&now.tv_sec, &utc);
    char when[40];
    size_t length = strftime(when, sizeof(when), "%Y-%m-%dT%H:%M:%S", &utc);
    snprintf(when + length, sizeof(when) - length, ".%03ldZ", now.tv_nsec / 1000000);

    char line[LINE_MAX_BYTES];
    int bytes = 0;
    if (as_json) {
        char escaped[LINE_MAX_BYTES - 128];
        escape(escaped, sizeof(escaped), text);
        bytes = snprintf(line, sizeof(line), "{\"time\":\"%s\",\"level\":\"%s\",\"text\":\"%s\"}\n",
                         when, levels[level].name, escaped);
    } else if (journal) {
        bytes = snprintf(line, sizeof(line), "<%d>%s\n", levels[level].priority, text);
    } else {
        bytes = snprintf(line, sizeof(line), "%s %-5s %s\n", when, levels[level].name, text);
    }
    if (bytes > (int)sizeof(line) - 1) {
        bytes = (int)sizeof(line) - 1;
    }
    if (bytes > 0 && write(STDERR_FILENO, line, (size_t)bytes) < 0) {
        return; /* Nowhere to say it. */
    }
}
