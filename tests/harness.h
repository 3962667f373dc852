/*
 * What every C test shares: cmocka with its includes in the right order, checks of enum
 * mf_status that print the text, folders that vanish, and random numbers from a printed seed.
 *
 * Who calls it: tests/<kind>/test_*.c and tests/fuzz. Owner: paths and folders belong to the
 * harness, which removes the folders at exit. Thread: one, the test's main. Fails: by failing
 * the cmocka test that called.
 *
 * Read by tests/CMakeLists.txt: `#define HARNESS_TIMEOUT_S 900` (more time than the kind gives)
 * and `#define HARNESS_THREADS` (run under TSan) in a test file.
 */
#ifndef MF_TESTS_HARNESS_H
#define MF_TESTS_HARNESS_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "core/status.h"

/* A test that cannot run here (no GPU, no such tool) exits with this. */
#define HARNESS_SKIP 77

/* The call must return MF_STATUS_OK; otherwise its text is printed. */
#define assert_ok(call) harness_assert_status((call), MF_STATUS_OK, NULL, #call, __FILE__, __LINE__)
/* The call must fail with this status. */
#define assert_status(call, expected)                                                              \
    harness_assert_status((call), (expected), NULL, #call, __FILE__, __LINE__)
/* The call must fail with this status and a text that holds `fragment`. */
#define assert_fails(call, expected, fragment)                                                     \
    harness_assert_status((call), (expected), (fragment), #call, __FILE__, __LINE__)
/* |actual - expected| <= absolute + relative * |expected|; not-a-number fails. */
#define assert_near(actual, expected, absolute, relative)                                          \
    harness_assert_near((actual), (expected), (absolute), (relative), #actual, __FILE__, __LINE__)

void harness_assert_status(enum mf_status actual, enum mf_status expected, const char *fragment,
                           const char *call, const char *file, int line);
void harness_assert_near(double actual, double expected, double absolute, double relative,
                         const char *what, const char *file, int line);

/* A new empty folder, removed with all it holds at exit (kept, and its path printed, when
 * MF_TEST_KEEP is set). The path is good until exit. */
const char *harness_folder(void);
/* "<folder>/<name>"; good until exit. */
const char *harness_path(const char *folder, const char *name);
/* A path inside the source tree, for files committed next to the tests; good until exit. */
const char *harness_source(const char *relative);
void harness_write(const char *path, const void *bytes, size_t count);
/* The file's bytes with a NUL after them; good until exit. `count` may be NULL. */
char *harness_read(const char *path, size_t *count);

/* Numbers from the seed in MF_TEST_SEED, or from a fixed one; the seed is printed at first use,
 * so that a failure can be repeated. MF_TEST_SEED=random takes one from the clock. */
uint64_t harness_random(void);
/* In [0, limit); limit > 0. */
uint64_t harness_random_below(uint64_t limit);
/* In [low, high). */
double harness_random_between(double low, double high);
/* Starts the numbers again from a seed of the test's own, mixed with the printed one. */
void harness_random_restart(uint64_t stream);

#endif
