/*
 * What kernels that read or write host memory move over the link, by the GPU's own counters, beside
 * what they have to move: a ratio of 1 means "once".
 *   bench-counters [--small] [--json FILE]
 * Where counters may not be read (they are for administrators by default) it says why, prints no
 * numbers and exits with 3.
 */
#include <stdio.h>
#include <string.h>

#include "core/json.h"
#include "profiler/counts.h"

#define EXIT_NO_COUNTERS 3
#define TOKENS 8192

static const struct mf_device_interface *interface;
static struct mf_device *device;
static struct mf_measure_scratch scratch;

struct row {
    enum mf_lane lane;
    enum mf_kernel kernel;
    struct mf_shape shape;
};

#define LINEAR(kind, tokens, width, depth, where)                                                  \
    {                                                                                              \
        MF_LANE_COMPUTE, MF_KERNEL_LINEAR_##kind,                                                  \
        {                                                                                          \
            .rows = (tokens), .n = (width), .k = (depth), .flags = (where)                         \
        }                                                                                          \
    }
#define LINEARS(tokens, width, depth)                                                              \
    LINEAR(FORWARD, tokens, width, depth, MF_SHAPE_WEIGHT_HOST),                                   \
        LINEAR(BACKWARD_DATA, tokens, width, depth, MF_SHAPE_WEIGHT_HOST),                         \
        LINEAR(BACKWARD_WEIGHT, tokens, width, depth, MF_SHAPE_OUTPUT_HOST)
#define TABLE(kind, rows_of_table, width, where)                                                   \
    {                                                                                              \
        MF_LANE_COMPUTE, MF_KERNEL_EMBEDDING_##kind,                                               \
        {                                                                                          \
            .rows = TOKENS, .n = (width), .k = (rows_of_table), .flags = (where)                   \
        }                                                                                          \
    }
#define COPY(lane, bytes)                                                                          \
    {                                                                                              \
        MF_LANE_##lane, MF_KERNEL_COPY,                                                            \
        {                                                                                          \
            .n = (bytes)                                                                           \
        }                                                                                          \
    }

static const struct row large_rows[] = {
    COPY(H2D, 64 << 20),
    COPY(D2H, 64 << 20),
    LINEARS(256, 4096, 4096),
    LINEARS(2048, 4096, 4096),
    LINEARS(8192, 4096, 4096),
    LINEARS(2048, 14336, 4096),
    LINEARS(8192, 4096, 14336),
    TABLE(FORWARD, 131072, 4096, MF_SHAPE_WEIGHT_HOST),
    TABLE(BACKWARD, 131072, 4096, MF_SHAPE_OUTPUT_HOST),
    TABLE(BACKWARD, 131072, 4096, MF_SHAPE_OUTPUT_HOST | MF_SHAPE_TOUCHED),
};
static const struct row small_rows[] = {
    COPY(H2D, 1 << 20),
    COPY(D2H, 1 << 20),
    LINEARS(512, 1024, 1024),
    TABLE(FORWARD, 16384, 512, MF_SHAPE_WEIGHT_HOST),
    TABLE(BACKWARD, 16384, 512, MF_SHAPE_OUTPUT_HOST),
    TABLE(BACKWARD, 16384, 512, MF_SHAPE_OUTPUT_HOST | MF_SHAPE_TOUCHED),
};

static void print_megabytes(int64_t bytes)
{
    if (bytes < 0) {
        printf(" not counted |");
    } else {
        printf(" %.3f |", (double)bytes / 1e6);
    }
}

/* Of the way that the kernel uses most. */
static void print_ratio(const struct mf_counts *counts, const int64_t counted[2])
{
    int way = counts->needed_bytes[1] > counts->needed_bytes[0];
    double needed = (double)counts->needed_bytes[way];
    if (counted[way] < 0 || needed <= 0) {
        printf(" |");
    } else {
        printf(" %.3f |", (double)counted[way] / needed);
    }
}

static enum mf_status measure(const struct row *row, json_t *list)
{
    struct mf_signature signature = mf_profile_signature(row->lane, row->kernel, &row->shape);
    struct mf_counts counts;
    char text[160];
    MF_TRY(mf_counts_measure(interface, device, &scratch, &signature, &counts));
    mf_measure_describe(&signature, text, sizeof(text));
    printf("| %s |", text);
    for (int way = 0; way < 2; way++) {
        print_megabytes(counts.needed_bytes[way]);
        print_megabytes(counts.counted.memory_bytes[way]);
        print_megabytes(counts.counted.link_bytes[way]);
    }
    print_ratio(&counts, counts.counted.memory_bytes);
    print_ratio(&counts, counts.counted.link_bytes);
    printf("\n");
    (void)fflush(stdout);
    json_array_append_new(list, json_pack("{sss[II]s[II]s[II]}", "kernel", text, "needed_bytes",
                                          (json_int_t)counts.needed_bytes[0],
                                          (json_int_t)counts.needed_bytes[1], "memory_bytes",
                                          (json_int_t)counts.counted.memory_bytes[0],
                                          (json_int_t)counts.counted.memory_bytes[1], "link_bytes",
                                          (json_int_t)counts.counted.link_bytes[0],
                                          (json_int_t)counts.counted.link_bytes[1]));
    return MF_STATUS_OK;
}

static enum mf_status measure_all(bool small, json_t *list)
{
    const struct row *rows = small ? small_rows : large_rows;
    size_t count = small ? sizeof(small_rows) / sizeof(small_rows[0])
                         : sizeof(large_rows) / sizeof(large_rows[0]);
    struct mf_hardware_device described;
    const struct mf_device_options options = {0};
    MF_TRY(mf_device_cuda(&interface));
    MF_TRY(interface->open(&options, &device));
    MF_TRY(interface->describe(device, &described));
    for (size_t i = 0; i < count; i++) {
        if (i == 0) {
            printf("%s, %s. MB to the device and back; of host memory, and on the bus with its "
                   "headers\n\n| kernel | to: needed | memory | bus | back: needed | memory | bus "
                   "| memory / needed | bus / needed |\n|%s\n",
                   described.name, described.runtime,
                   " --- | --- | --- | --- | --- | --- | --- | --- | --- |");
        }
        MF_TRY(measure(&rows[i], list));
    }
    return MF_STATUS_OK;
}

int main(int argc, char **argv)
{
    bool small = false;
    const char *json_path = NULL;
    for (int i = 1; i < argc; i++) {
        small = small || strcmp(argv[i], "--small") == 0;
        if (strcmp(argv[i], "--json") == 0 && i + 1 < argc) {
            json_path = argv[++i];
        }
    }
    json_t *list = json_array();
    enum mf_status status = measure_all(small, list);
    if (status != MF_STATUS_OK) {
        fprintf(stderr, "counters: %s\n", mf_status_text());
    } else if (json_path != NULL && json_dump_file(list, json_path, JSON_INDENT(1)) != 0) {
        fprintf(stderr, "counters: %s cannot be written\n", json_path);
        status = MF_STATUS_IO;
    }
    json_decref(list);
    if (device != NULL) {
        mf_measure_release(interface, device, &scratch);
        interface->close(device);
    }
    return status == MF_STATUS_OK ? 0 : status == MF_STATUS_UNSUPPORTED ? EXIT_NO_COUNTERS : 1;
}
