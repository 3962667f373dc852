/*
 * The one way a call fails.
 *
 * What: a small enum of outcomes, a sentence for the person, and a stable reason with numbers
 *   for the program. Who calls it: every module. Memory: the text is thread-local and fixed in
 *   size; a pointer from mf_status_text() is good until the same thread sets another text.
 *   Thread: each thread has its own text; copy a `struct mf_error` to carry it across.
 * Fails: nothing here fails.
 *
 * Set the text once, where the error happens; pass the status up with MF_TRY.
 */
#ifndef MF_CORE_STATUS_H
#define MF_CORE_STATUS_H

#include <stddef.h>
#include <stdint.h>

#define MF_STATUS_MAP(X)                                                                           \
    X(OK, "ok")                                                                                    \
    X(INVALID, "the input is not acceptable")                                                      \
    X(NOT_FOUND, "no such thing")                                                                  \
    X(EXISTS, "it is there already")                                                               \
    X(UNSUPPORTED, "not supported here")                                                           \
    X(NO_MEMORY, "not enough host memory")                                                         \
    X(NO_DEVICE_MEMORY, "not enough device memory")                                                \
    X(DEVICE, "the device failed")                                                                 \
    X(IO, "reading or writing failed")                                                             \
    X(BUSY, "full at the moment, try again")                                                       \
    X(DEADLINE, "the time was up")                                                                 \
    X(CANCELLED, "cancelled")                                                                      \
    X(DENIED, "not allowed")                                                                       \
    X(UNAVAILABLE, "the service cannot be reached")                                                \
    X(CORRUPT, "the data is damaged")                                                              \
    X(INTERNAL, "a fault in memferry")

enum mf_status {
#define X(name, sentence) MF_STATUS_##name,
    MF_STATUS_MAP(X)
#undef X
        MF_STATUS_COUNT
};

#define MF_MUST_USE __attribute__((warn_unused_result))
#define MF_PRINTF(format_index, first_index)                                                       \
    __attribute__((format(printf, format_index, first_index)))

#define MF_ERROR_TEXT_MAX 1000
#define MF_ERROR_REASON_MAX 48
#define MF_ERROR_NUMBERS_MAX 4
#define MF_ERROR_NUMBER_NAME_MAX 32

/* A failure as data: what crosses threads and, over gRPC, processes. */
struct mf_error {
    enum mf_status status;
    char reason[MF_ERROR_REASON_MAX]; /* stable, upper case: "DEVICE_MEMORY_TOO_SMALL"; "" = none */
    char text[MF_ERROR_TEXT_MAX];     /* for a person: cause, numbers, way out */
    size_t number_count;
    struct {
        char name[MF_ERROR_NUMBER_NAME_MAX]; /* unit last: "needed_bytes" */
        int64_t value;
    } numbers[MF_ERROR_NUMBERS_MAX];
};

/* "INVALID"; the enumerator without its prefix. */
const char *mf_status_name(enum mf_status status);
/* The general sentence of the enumerator. */
const char *mf_status_sentence(enum mf_status status);

/* Sets this thread's error text and returns `status`, so `return mf_status_set(...)` reads well. */
enum mf_status mf_status_set(enum mf_status status, const char *format, ...) MF_PRINTF(2, 3);
/* The same with a stable reason; numbers are then attached with mf_status_number(). */
enum mf_status mf_status_set_reason(enum mf_status status, const char *reason, const char *format,
                                    ...) MF_PRINTF(3, 4);
/* Attaches a named number to this thread's present error; ignored when four are attached. */
void mf_status_number(const char *name, int64_t value);
/* Puts `format` and ": " before this thread's present text (context on the way up). */
enum mf_status mf_status_context(enum mf_status status, const char *format, ...) MF_PRINTF(2, 3);
/* This thread's last text; never NULL. */
const char *mf_status_text(void);
/* This thread's last error whole. Borrowed until the thread sets another. */
const struct mf_error *mf_status_error(void);
/* Makes `error` this thread's present error and returns its status. */
enum mf_status mf_status_restore(const struct mf_error *error);

#define MF_TRY(call)                                                                               \
    do {                                                                                           \
        enum mf_status mf_try_status_ = (call);                                                    \
        if (mf_try_status_ != MF_STATUS_OK) {                                                      \
            return mf_try_status_;                                                                 \
        }                                                                                          \
    } while (0)

/* For functions with one exit label; `status` must be in scope. */
#define MF_TRY_GOTO(call, label)                                                                   \
    do {                                                                                           \
        status = (call);                                                                           \
        if (status != MF_STATUS_OK) {                                                              \
            goto label;                                                                            \
        }                                                                                          \
    } while (0)

/* A programmer's error: always on. Data from wire or disk is validated, never asserted. */
#define MF_ASSERT(condition)                                                                       \
    ((condition) ? (void)0 : mf_assert_failed(#condition, __FILE__, __LINE__, __func__))
_Noreturn void mf_assert_failed(const char *condition, const char *file, int line,
                                const char *function);

#endif
