/*
 * Products that read their weights in place, forward and data gradient, with each tile and cluster
 * of the direct kernel, beside the floor: the larger of the product with resident weights and the
 * weights' bytes over the link.
 *   bench-direct_tiles [--device cuda|host] [--small] [--rows ROWS] [--json FILE]
 * A setting is MEMFERRY_DIRECT, see runtime/cuda/direct.h; "plain" is the matrix library. Times are
 * medians on the host's clock of several products in a row. Last comes what the GPU's counters say
 * that a product read of host memory, where they may be read.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "core/json.h"
#include "runtime/device.h"
#include "runtime/host/bf16.h"

#define REPEATS 5
#define IN_A_ROW 4
#define TASKS 64
#define SETTINGS_MAX 16
#define FILLED_BYTES (32ll << 20)
#define PROBE_BYTES (64ll << 20)
#define PLAIN_ROWS_MAX 1024 /* above, the library takes many times the floor */

#define CHECK(call) check((call), #call)

struct size {
    int64_t m, n, k; /* rows of x, of W, width of W */
};

static const struct mf_device_interface *interface;
static struct mf_device *devices[SETTINGS_MAX];
static char *arena, *x, *y, *dx, *weight, *pinned;

/* Tiles; what the size of a cluster is worth; whether half of the clusters fill the link. */
static const char *const settings[] = {"plain",        "auto",        "128x128",    "256x128",
                                       "512x64",       "256x64",      "256x128s",   "128x128/8",
                                       "128x128/16",   "256x128/8",   "256x128/16", "256x64/16",
                                       "128x128/16/4", "256x128/16/4"};
#define SETTINGS ((int)(sizeof(settings) / sizeof(settings[0])))
_Static_assert(sizeof(settings) / sizeof(settings[0]) <= SETTINGS_MAX, "devices[]");

static void check(enum mf_status status, const char *what)
{
    if (status != MF_STATUS_OK) {
        fprintf(stderr, "direct_tiles: %s: %s\n", what, mf_status_text());
        exit(1);
    }
}

static double now_ns(void)
{
    struct timespec now;
    (void)clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec * 1e9 + (double)now.tv_nsec;
}

static int compare_numbers(const void *a, const void *b)
{
    double left = *(const double *)a;
    double right = *(const double *)b;
    return (left > right) - (left < right);
}

static void copy(enum mf_lane lane, void *from, void *to, int64_t bytes)
{
    struct mf_kernel_call call = {.kernel = MF_KERNEL_COPY, .shape = {.n = bytes}};
    call.operands[0].pointer = from;
    call.operands[1].pointer = to;
    CHECK(interface->submit(devices[0], lane, &call, 0));
}

static void copy_alone(enum mf_lane lane, void *from, void *to, int64_t bytes)
{
    CHECK(interface->begin(devices[0], false));
    copy(lane, from, to, bytes);
    CHECK(interface->sync(devices[0]));
}

static void multiply(struct mf_device *device, const struct size *size, bool backward, bool host,
                     int32_t task)
{
    void *in_place = interface->device_address(device, pinned);
    struct mf_kernel_call call = {
        .kernel = backward ? MF_KERNEL_LINEAR_BACKWARD_DATA : MF_KERNEL_LINEAR_FORWARD,
        .shape = {.rows = size->m, .n = size->n, .k = size->k},
    };
    call.shape.flags = (host ? MF_SHAPE_WEIGHT_HOST : 0) |
                       (backward ? MF_SHAPE_FIRST_PANEL | MF_SHAPE_LAST_PANEL : 0);
    call.operands[0] = backward ? (struct mf_operand){y, size->n} : (struct mf_operand){x, size->k};
    call.operands[1] = (struct mf_operand){host ? in_place : weight, size->k};
    call.operands[2] = (struct mf_operand){y, size->n}; /* one panel needs no sum */
    call.operands[3] = (struct mf_operand){dx, size->k};
    CHECK(interface->submit(device, MF_LANE_COMPUTE, &call, task));
}

static double run(struct mf_device *device, const struct size *size, bool backward, bool host)
{
    CHECK(interface->begin(device, false));
    double started = now_ns();
    for (int i = 0; i < IN_A_ROW; i++) {
        multiply(device, size, backward, host, i);
    }
    CHECK(interface->sync(device));
    return (now_ns() - started) / IN_A_ROW;
}

static double measure(struct mf_device *device, const struct size *size, bool backward, bool host)
{
    double ns[REPEATS];
    (void)run(device, size, backward, host);
    for (int i = 0; i < REPEATS; i++) {
        ns[i] = run(device, size, backward, host);
    }
    qsort(ns, REPEATS, sizeof(ns[0]), compare_numbers);
    return ns[REPEATS / 2];
}

/* Bytes per second of copies. */
static double probe(void)
{
    double ns[REPEATS];
    for (int i = 0; i < REPEATS; i++) {
        double started = now_ns();
        copy_alone(MF_LANE_H2D, pinned, weight, PROBE_BYTES);
        ns[i] = now_ns() - started;
    }
    qsort(ns, REPEATS, sizeof(ns[0]), compare_numbers);
    return (double)PROBE_BYTES / ns[REPEATS / 2] * 1e9;
}

static void lay_out(const struct size *most)
{
    int64_t x_bytes = most->m * most->k * 2;
    int64_t y_bytes = most->m * most->n * 2;
    int64_t weight_bytes = most->n * most->k * 2;
    weight_bytes = weight_bytes > PROBE_BYTES ? weight_bytes : PROBE_BYTES;
    CHECK(interface->reserve(devices[0], 2 * x_bytes + y_bytes + weight_bytes, (void **)&arena));
    x = arena;
    dx = x + x_bytes;
    y = dx + x_bytes;
    weight = y + y_bytes;
    CHECK(interface->map_host(devices[0], weight_bytes, NULL, NULL, (void **)&pinned));
    uint16_t *values = (uint16_t *)(void *)pinned;
    uint64_t state = 88172645463325252u;
    for (int64_t i = 0; i < weight_bytes / 2; i++) {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        values[i] = mf_bf16_from_float((float)(state >> 40) / 16777216.0f - 0.5f);
    }
    for (char *to = arena; to < weight; to += FILLED_BYTES) {
        copy_alone(MF_LANE_H2D, pinned, to,
                   weight - to < FILLED_BYTES ? weight - to : FILLED_BYTES);
    }
}

/* One line of a table: a size and a direction, all settings. */
static void compare_settings(const struct size *size, bool backward, double link, json_t *rows)
{
    double bytes = (double)(size->n * size->k * 2);
    copy_alone(MF_LANE_H2D, pinned, weight, size->n * size->k * 2);
    double resident = measure(devices[0], size, backward, false);
    double floor_ns = bytes / link * 1e9 > resident ? bytes / link * 1e9 : resident;
    json_t *row =
        json_pack("{sssIsIsIsfsfsf}", "direction", backward ? "gradient" : "forward", "m",
                  (json_int_t)size->m, "n", (json_int_t)size->n, "k", (json_int_t)size->k,
                  "weight_bytes", bytes, "resident_ms", resident / 1e6, "floor_ms", floor_ns / 1e6);
    printf("| %s | %lld x %lld | %lld | %.1f | %.3f | %.3f ", backward ? "gradient" : "forward",
           (long long)size->k, (long long)size->n, (long long)size->m, bytes / 1e6, resident / 1e6,
           floor_ns / 1e6);
    for (int s = 0; s < SETTINGS; s++) {
        if (s == 0 && size->m > PLAIN_ROWS_MAX) {
            printf("| - ");
            continue;
        }
        double ns = measure(devices[s], size, backward, true);
        printf("| %.2f ", ns / floor_ns);
        json_object_set_new(row, settings[s], json_real(ns / 1e6));
    }
    printf("|\n");
    (void)fflush(stdout);
    json_array_append_new(rows, row);
}

/* ---- what was read ---- */

struct counted {
    struct mf_device *device;
    struct size size;
    bool backward;
};

static enum mf_status run_once(void *context)
{
    struct counted *counted = context;
    MF_TRY(interface->begin(counted->device, false));
    multiply(counted->device, &counted->size, counted->backward, true, 0);
    return interface->sync(counted->device);
}

/* Times that the weights were read, with the setting "auto". */
static void count_reads(const struct size *size, bool backward, json_t *rows)
{
    const char *direction = backward ? "gradient" : "forward";
    struct counted counted = {devices[1], *size, backward};
    struct mf_device_counts counts;
    if (interface->count == NULL) {
        return;
    }
    if (interface->count(counted.device, run_once, &counted, &counts) != MF_STATUS_OK) {
        printf("not counted: %s\n", mf_status_text());
        return;
    }
    double times = (double)counts.memory_bytes[0] / (double)(size->n * size->k * 2);
    printf("| %s | %lld x %lld | %lld | %.2f |\n", direction, (long long)size->k,
           (long long)size->n, (long long)size->m, times);
    (void)fflush(stdout);
    json_array_append_new(rows, json_pack("{sssIsIsIsf}", "direction", direction, "m",
                                          (json_int_t)size->m, "n", (json_int_t)size->n, "k",
                                          (json_int_t)size->k, "times", times));
}

static json_t *count_all(bool small)
{
    static const int64_t counted_rows[] = {1024, 4096, 8320};
    json_t *rows = json_array();
    printf("\ntimes that the weights were read\n\n"
           "| direction | W (K x N) | M | auto |\n| --- | --- | --- | --- |\n");
    for (int r = 0; r < (small ? 1 : 3); r++) {
        struct size size = {counted_rows[r], small ? 512 : 4096, small ? 512 : 4096};
        count_reads(&size, false, rows);
        count_reads(&size, true, rows);
    }
    return rows;
}

static void compare_all(bool small, int64_t only_rows, const char *json_path)
{
    static const struct size large_weights[] = {{0, 4096, 4096}, {0, 14336, 4096}, {0, 1024, 4096}};
    static const int64_t all_rows[] = {256, 512, 1024, 2048, 4096, 8192};
    struct mf_hardware_device described;
    json_t *rows = json_array();
    CHECK(interface->describe(devices[0], &described));
    double link = probe();
    printf("%s, %s; copies to the device: %.1f GB/s\n\ntimes over the floor, by setting\n\n",
           described.name, described.runtime, link / 1e9);
    printf("| direction | W (K x N) | M | MB of W | resident ms | floor ms ");
    for (int s = 0; s < SETTINGS; s++) {
        printf("| %s ", settings[s]);
    }
    printf("|\n| --- | --- | --- | --- | --- | --- ");
    for (int s = 0; s < SETTINGS; s++) {
        printf("| --- ");
    }
    printf("|\n");
    for (int w = 0; w < (small ? 1 : 3); w++) {
        for (int r = 0; r < (small ? 1 : 6); r++) {
            struct size size = small ? (struct size){0, 512, 512} : large_weights[w];
            size.m = all_rows[r];
            for (int backward = 0; backward < 2 && (only_rows == 0 || only_rows == size.m);
                 backward++) {
                compare_settings(&size, backward != 0, link, rows);
            }
        }
    }
    json_t *out = json_pack("{sssssfsoso}", "device", described.name, "runtime", described.runtime,
                            "h2d_bytes_per_s", link, "products", rows, "reads", count_all(small));
    if (json_path != NULL && json_dump_file(out, json_path, JSON_INDENT(1)) != 0) {
        fprintf(stderr, "direct_tiles: %s cannot be written\n", json_path);
        exit(1);
    }
    json_decref(out);
}

int main(int argc, char **argv)
{
    bool small = false;
    bool host = false;
    int64_t rows = 0;
    const char *json_path = NULL;
    for (int i = 1; i < argc; i++) {
        small = small || strcmp(argv[i], "--small") == 0;
        host = host || strcmp(argv[i], "host") == 0;
        if (strcmp(argv[i], "--rows") == 0 && i + 1 < argc) {
            rows = strtoll(argv[++i], NULL, 10);
        } else if (strcmp(argv[i], "--json") == 0 && i + 1 < argc) {
            json_path = argv[++i];
        }
    }
    if (host) {
        interface = mf_device_host();
    } else {
        CHECK(mf_device_cuda(&interface));
    }
    const struct mf_device_options options = {.threads = host ? 0 : 1};
    const struct size most =
        small ? (struct size){1024, 512, 512} : (struct size){8320, 14336, 4096};
    for (int s = 0; s < SETTINGS; s++) {
        (void)setenv("MEMFERRY_DIRECT", settings[s], 1);
        CHECK(interface->open(&options, &devices[s]));
        CHECK(interface->prepare(devices[s], TASKS));
    }
    lay_out(&most);
    compare_all(small, rows, json_path);
    interface->release(devices[0], arena);
    interface->unmap_host(devices[0], pinned);
    for (int s = 0; s < SETTINGS; s++) {
        interface->close(devices[s]);
    }
    return 0;
}
