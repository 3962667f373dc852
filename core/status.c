/* The thread-local error: see status.h. */
#include "core/status.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static _Thread_local struct mf_error current;

static const char *const names[] = {
#define X(name, sentence) #name,
    MF_STATUS_MAP(X)
#undef X
};

static const char *const sentences[] = {
#define X(name, sentence) sentence,
    MF_STATUS_MAP(X)
#undef X
};

const char *mf_status_name(enum mf_status status)
{
    return (unsigned)status < MF_STATUS_COUNT ? names[status] : "UNKNOWN";
}

const char *mf_status_sentence(enum mf_status status)
{
    return (unsigned)status < MF_STATUS_COUNT ? sentences[status] : "unknown status";
}

static void set(enum mf_status status, const char *reason, const char *format, va_list arguments)
{
    current.status = status;
    current.number_count = 0;
    snprintf(current.reason, sizeof(current.reason), "%s", reason);
    vsnprintf(current.text, sizeof(current.text), format, arguments);
}

enum mf_status mf_status_set(enum mf_status status, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    set(status, "", format, arguments);
    va_end(arguments);
    return status;
}

enum mf_status mf_status_set_reason(enum mf_status status, const char *reason, const char *format,
                                    ...)
{
    va_list arguments;
    va_start(arguments, format);
    set(status, reason, format, arguments);
    va_end(arguments);
    return status;
}

void mf_status_number(const char *name, int64_t value)
{
    if (current.number_count == MF_ERROR_NUMBERS_MAX) {
        return;
    }
    snprintf(current.numbers[current.number_count].name, MF_ERROR_NUMBER_NAME_MAX, "%s", name);
    current.numbers[current.number_count].value = value;
    current.number_count++;
}

enum mf_status mf_status_context(enum mf_status status, const char *format, ...)
{
    char text[MF_ERROR_TEXT_MAX];
    char context[MF_ERROR_TEXT_MAX];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(context, sizeof(context), format, arguments);
    va_end(arguments);
    int written = snprintf(text, sizeof(text), "%s: %s", context, current.text);
    if (written > 0) {
        memcpy(current.text, text, sizeof(text));
    }
    current.status = status;
    return status;
}

const char *mf_status_text(void)
{
    return current.text;
}

const struct mf_error *mf_status_error(void)
{
    return &current;
}

enum mf_status mf_status_restore(const struct mf_error *error)
{
    if (error != &current) {
        current = *error;
    }
    return current.status;
}

_Noreturn void mf_assert_failed(const char *condition, const char *file, int line,
                                const char *function)
{
    fprintf(stderr, "memferry: assertion failed: %s (%s:%d, %s)\n", condition, file, line,
            function);
    abort();
}
