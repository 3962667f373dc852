/* The shared parts of the C tests; harness.h says how they are used. */
#include "harness.h"

#include <errno.h>
#include <ftw.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "core/arena.h"

#define SEED_DEFAULT 20250101u
#define FOLDERS_MAX 256
#define FILE_BYTES_MAX (1l << 30)

static struct mf_arena strings;
static const char *folders[FOLDERS_MAX];
static size_t folder_count;
static pid_t owner;

static uint64_t seed;
static uint64_t state;
static int seeded;

void harness_assert_status(enum mf_status actual, enum mf_status expected, const char *fragment,
                           const char *call, const char *file, int line)
{
    if (actual != expected) {
        print_error("%s\n  returned %s, expected %s; text: %s\n", call, mf_status_name(actual),
                    mf_status_name(expected), actual == MF_STATUS_OK ? "-" : mf_status_text());
        _fail(file, line);
    }
    if (fragment != NULL && strstr(mf_status_text(), fragment) == NULL) {
        print_error("%s\n  failed as expected, but without \"%s\" in its text: %s\n", call,
                    fragment, mf_status_text());
        _fail(file, line);
    }
}

void harness_assert_near(double actual, double expected, double absolute, double relative,
                         const char *what, const char *file, int line)
{
    double allowed = absolute + relative * fabs(expected);
    if (!(fabs(actual - expected) <= allowed)) {
        print_error("%s = %.17g, expected %.17g within %.3g\n", what, actual, expected, allowed);
        _fail(file, line);
    }
}

static int remove_entry(const char *path, const struct stat *info, int kind, struct FTW *walk)
{
    (void)info;
    (void)kind;
    (void)walk;
    return remove(path);
}

static void remove_folders(void)
{
    /* A forked child that exits must not take the parent's folders away. */
    if (getpid() != owner) {
        return;
    }
    for (size_t index = 0; index < folder_count; index++) {
        if (getenv("MF_TEST_KEEP") != NULL) {
            fprintf(stderr, "kept %s\n", folders[index]);
        } else if (nftw(folders[index], remove_entry, 16, FTW_DEPTH | FTW_PHYS) != 0) {
            fprintf(stderr, "could not remove %s: %s\n", folders[index], strerror(errno));
        }
    }
    mf_arena_reset(&strings);
}

static void prepare(void)
{
    if (owner == 0) {
        owner = getpid();
        mf_arena_init(&strings);
        atexit(remove_folders);
    }
}

const char *harness_folder(void)
{
    prepare();
    if (folder_count == FOLDERS_MAX) {
        fail_msg("more than %d test folders", FOLDERS_MAX);
    }
    const char *base = getenv("TMPDIR");
    char *path = mf_arena_format(&strings, "%s/memferry-test-XXXXXX",
                                 base != NULL && base[0] != '\0' ? base : "/tmp");
    if (mkdtemp(path) == NULL) {
        fail_msg("mkdtemp %s: %s", path, strerror(errno));
    }
    folders[folder_count++] = path;
    return path;
}

const char *harness_path(const char *folder, const char *name)
{
    prepare();
    return mf_arena_format(&strings, "%s/%s", folder, name);
}

const char *harness_source(const char *relative)
{
    const char *given = getenv("MEMFERRY_SOURCE_DIR"); /* a bundle runs beside another tree */
    return harness_path(given != NULL ? given : HARNESS_SOURCE_DIR, relative);
}

void harness_write(const char *path, const void *bytes, size_t count)
{
    FILE *file = fopen(path, "wb");
    if (file == NULL) {
        fail_msg("%s: %s", path, strerror(errno));
        return;
    }
    size_t written = fwrite(bytes, 1, count, file);
    if (fclose(file) != 0 || written != count) {
        fail_msg("%s: could not write %zu bytes", path, count);
    }
}

char *harness_read(const char *path, size_t *count)
{
    prepare();
    FILE *file = fopen(path, "rb");
    if (file == NULL) {
        fail_msg("%s: %s", path, strerror(errno));
        return NULL;
    }
    fseek(file, 0, SEEK_END);
    long size = ftell(file);
    rewind(file);
    if (size < 0 || size > FILE_BYTES_MAX) {
        fclose(file);
        fail_msg("%s: a size of %ld bytes", path, size);
        return NULL;
    }
    char *bytes = mf_arena_alloc(&strings, (size_t)size + 1, 1);
    size_t got = fread(bytes, 1, (size_t)size, file);
    fclose(file);
    assert_int_equal(got, size);
    if (count != NULL) {
        *count = got;
    }
    return bytes;
}

static void plant_seed(void)
{
    const char *wish = getenv("MF_TEST_SEED");
    seed = SEED_DEFAULT;
    if (wish != NULL && strcmp(wish, "random") == 0) {
        struct timespec now;
        clock_gettime(CLOCK_REALTIME, &now);
        seed = (uint64_t)now.tv_sec * 1000000007u + (uint64_t)now.tv_nsec;
    } else if (wish != NULL) {
        seed = strtoull(wish, NULL, 0);
    }
    state = seed;
    seeded = 1;
    fprintf(stderr, "random numbers from MF_TEST_SEED=%llu\n", (unsigned long long)seed);
}

/* SplitMix64 (Steele, Lea, Flood 2014): one word of state, every seed is good. */
uint64_t harness_random(void)
{
    if (!seeded) {
        plant_seed();
    }
    state += 0x9e3779b97f4a7c15u;
    uint64_t mixed = state;
    mixed = (mixed ^ (mixed >> 30)) * 0xbf58476d1ce4e5b9u;
    mixed = (mixed ^ (mixed >> 27)) * 0x94d049bb133111ebu;
    return mixed ^ (mixed >> 31);
}

uint64_t harness_random_below(uint64_t limit)
{
    assert_true(limit > 0);
    return limit > 0 ? harness_random() % limit : 0;
}

double harness_random_between(double low, double high)
{
    return low + (high - low) * ((double)(harness_random() >> 11) * 0x1.0p-53);
}

void harness_random_restart(uint64_t stream)
{
    if (!seeded) {
        plant_seed();
    }
    state = seed ^ (stream * 0xd1342543de82ef95u);
}
