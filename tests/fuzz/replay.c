/*
 * The main of a fuzz target where libFuzzer is not: runs every file of the folders given, then
 * mutations of them from a fixed seed, through LLVMFuzzerTestOneInput.
 *
 * Who runs it: ctest (label fuzz) in the gcc and sanitizer builds. Thread: one. Fails: by the
 * target's own abort, or with exit code 1 when a folder cannot be read; a folder that does not
 * exist is an empty corpus.
 */
#include <dirent.h>
#include <errno.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "harness.h"

#define INPUT_BYTES_MAX (1 << 20)
#define MUTATIONS_PER_INPUT 200

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* An exact-sized copy, so that ASan sees a read past the end. */
static void run_once(const uint8_t *data, size_t size)
{
    uint8_t *copy = malloc(size > 0 ? size : 1);
    assert_non_null(copy);
    memcpy(copy, data, size);
    (void)LLVMFuzzerTestOneInput(copy, size);
    free(copy);
}

/* A few bytes changed, or the end cut off, or a piece repeated. */
static size_t mutate(uint8_t *data, size_t size)
{
    if (size == 0) {
        return 0;
    }
    for (uint64_t count = 1 + harness_random_below(4); count > 0; count--) {
        data[harness_random_below(size)] = (uint8_t)harness_random();
    }
    if (harness_random_below(4) == 0) {
        return (size_t)harness_random_below(size + 1);
    }
    if (harness_random_below(4) == 0 && size * 2 <= INPUT_BYTES_MAX) {
        memcpy(data + size, data, size);
        return size * 2;
    }
    return size;
}

static int replay_file(const char *path, uint8_t *original, uint8_t *changed)
{
    FILE *file = fopen(path, "rb");
    if (file == NULL) {
        fprintf(stderr, "%s: %s\n", path, strerror(errno));
        return 1;
    }
    size_t size = fread(original, 1, INPUT_BYTES_MAX, file);
    fclose(file);
    fprintf(stderr, "replay %s, %zu bytes\n", path, size);
    run_once(original, size);
    for (int round = 0; round < MUTATIONS_PER_INPUT; round++) {
        memcpy(changed, original, size);
        run_once(changed, mutate(changed, size));
    }
    return 0;
}

static int replay_folder(const char *folder, uint8_t *original, uint8_t *changed)
{
    DIR *open_folder = opendir(folder);
    if (open_folder == NULL) {
        if (errno == ENOENT) {
            return 0;
        }
        fprintf(stderr, "%s: %s\n", folder, strerror(errno));
        return 1;
    }
    int failures = 0;
    for (struct dirent *entry = readdir(open_folder); entry != NULL; entry = readdir(open_folder)) {
        if (entry->d_name[0] == '.') {
            continue;
        }
        char path[4096];
        snprintf(path, sizeof path, "%s/%s", folder, entry->d_name);
        failures += replay_file(path, original, changed);
    }
    closedir(open_folder);
    return failures;
}

int main(int argc, char **argv)
{
    uint8_t *original = malloc(INPUT_BYTES_MAX);
    uint8_t *changed = malloc(INPUT_BYTES_MAX);
    int failures = original == NULL || changed == NULL;
    run_once((const uint8_t *)"", 0);
    for (int index = 1; index < argc && failures == 0; index++) {
        failures += replay_folder(argv[index], original, changed);
    }
    free(changed);
    free(original);
    return failures == 0 ? 0 : 1;
}
