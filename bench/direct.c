/*
 * Ways to multiply by a matrix that lives in host memory, beside the floor that link and compute
 * leave: resident, copied then multiplied, streamed in panels through a ring as the executor does,
 * and read in place, by the matrix library and by the direct kernel (bench-direct_tiles has more of
 * it). And an embedding table read in place beside a copy.
 *   bench-direct [--device cuda|host] [--small] [--json FILE]
 * Times are medians on the host's clock of graphs of several products in a row, as in a step.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "core/json.h"
#include "runtime/device.h"
#include "runtime/host/bf16.h"

#define REPEATS 5
#define ROW_MAX 8 /* products in one graph */
#define GRAPH_NS 60e6
#define PANEL_BYTES (8ll << 20)
#define RING 4
#define TASKS 4096
#define FILLED_BYTES (64ll << 20)
#define PROBE_BYTES (64ll << 20)
#define SAMPLE_BYTES (1ll << 20)

#define CHECK(call) check((call), #call)

struct size {
    int64_t m, n, k; /* rows of x, of W, width of W */
};

/* One product after another is queued by these; `task` counts up through the graph. */
typedef void (*way)(const struct size *size, int32_t *task);

static const struct mf_device_interface *interface;
static struct mf_device *device;
static struct mf_device *plain_device; /* in place by the matrix library */
static char *arena, *x, *y, *weight, *ring;
static char *pinned; /* the weight or the table, then tokens, then samples */
static char *tokens;
static char *samples;
static int64_t vocabulary, embedding_width, embedding_rows;

static void check(enum mf_status status, const char *what)
{
    if (status != MF_STATUS_OK) {
        fprintf(stderr, "direct: %s: %s\n", what, mf_status_text());
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

static void copy(enum mf_lane lane, void *from, void *to, int64_t bytes, int32_t task)
{
    struct mf_kernel_call call = {.kernel = MF_KERNEL_COPY, .shape = {.n = bytes}};
    call.operands[0].pointer = from;
    call.operands[1].pointer = to;
    CHECK(interface->submit(device, lane, &call, task));
}

/* y[:, first..] = x W^T of `rows` rows of W at `at`. */
static void multiply(const struct size *size, void *at, int64_t first, int64_t rows, uint32_t flags,
                     int32_t task)
{
    struct mf_kernel_call call = {
        .kernel = MF_KERNEL_LINEAR_FORWARD,
        .shape = {.rows = size->m, .n = rows, .k = size->k, .flags = flags},
    };
    call.operands[0] = (struct mf_operand){x, size->k};
    call.operands[1] = (struct mf_operand){at, size->k};
    call.operands[2] = (struct mf_operand){y + first * 2, size->n};
    CHECK(interface->submit(device, MF_LANE_COMPUTE, &call, task));
}

/* What is queued on `after` from here on waits for what is queued on `before`. */
static void order(enum mf_lane before, enum mf_lane after, int32_t task)
{
    CHECK(interface->record(device, before, task));
    CHECK(interface->wait(device, after, task));
}

/* ---- the ways ---- */

static void resident(const struct size *size, int32_t *task)
{
    multiply(size, weight, 0, size->n, 0, (*task)++);
}

static void copied(const struct size *size, int32_t *task)
{
    copy(MF_LANE_H2D, pinned, weight, size->n * size->k * 2, *task);
    order(MF_LANE_H2D, MF_LANE_COMPUTE, (*task)++);
    multiply(size, weight, 0, size->n, 0, *task);
    order(MF_LANE_COMPUTE, MF_LANE_H2D, (*task)++);
}

static int32_t ring_tasks[RING]; /* the product that last read the slot; -1 = none in this graph */
static int ring_at;

static void streamed(const struct size *size, int32_t *task)
{
    int64_t panel_rows = PANEL_BYTES / (size->k * 2);
    if (*task == 0) {
        memset(ring_tasks, -1, sizeof(ring_tasks));
        ring_at = 0;
    }
    for (int64_t first = 0; first < size->n; first += panel_rows) {
        int64_t rows = size->n - first < panel_rows ? size->n - first : panel_rows;
        char *slot = ring + ring_at * PANEL_BYTES;
        if (ring_tasks[ring_at] >= 0) {
            CHECK(interface->wait(device, MF_LANE_H2D, ring_tasks[ring_at]));
        }
        copy(MF_LANE_H2D, pinned + first * size->k * 2, slot, rows * size->k * 2, *task);
        order(MF_LANE_H2D, MF_LANE_COMPUTE, (*task)++);
        multiply(size, slot, first, rows, 0, *task);
        CHECK(interface->record(device, MF_LANE_COMPUTE, *task));
        ring_tasks[ring_at] = (*task)++;
        ring_at = (ring_at + 1) % RING;
    }
}

static void mapped(const struct size *size, int32_t *task)
{
    multiply(size, interface->device_address(device, pinned), 0, size->n, MF_SHAPE_WEIGHT_HOST,
             (*task)++);
}

static void look_up(const struct size *size, void *table, uint32_t flags, int32_t task)
{
    struct mf_kernel_call call = {
        .kernel = MF_KERNEL_EMBEDDING_FORWARD,
        .shape = {.rows = size->m, .n = size->k, .k = size->n, .flags = flags},
    };
    call.operands[0].pointer = interface->device_address(device, tokens);
    call.operands[1].pointer = table;
    call.operands[2] = (struct mf_operand){y, size->k};
    CHECK(interface->submit(device, MF_LANE_COMPUTE, &call, task));
}

static void table_copied(const struct size *size, int32_t *task)
{
    copy(MF_LANE_H2D, pinned, weight, size->n * size->k * 2, *task);
    order(MF_LANE_H2D, MF_LANE_COMPUTE, (*task)++);
    look_up(size, weight, 0, *task);
    order(MF_LANE_COMPUTE, MF_LANE_H2D, (*task)++);
}

static void table_in_place(const struct size *size, int32_t *task)
{
    look_up(size, interface->device_address(device, pinned), MF_SHAPE_WEIGHT_HOST, (*task)++);
}

/* The gradient of the table: `x` holds dy, the ring's memory the marks. */
static void scatter(const struct size *size, void *to, uint32_t flags, int32_t task)
{
    struct mf_kernel_call call = {
        .kernel = MF_KERNEL_EMBEDDING_BACKWARD,
        .shape = {.rows = size->m, .n = size->k, .k = size->n, .flags = flags},
    };
    call.operands[0].pointer = interface->device_address(device, tokens);
    call.operands[1] = (struct mf_operand){x, size->k};
    call.operands[2].pointer = to;
    call.operands[3].pointer = ring;
    CHECK(interface->submit(device, MF_LANE_COMPUTE, &call, task));
}

static void gradient_copied(const struct size *size, int32_t *task)
{
    scatter(size, weight, 0, *task);
    order(MF_LANE_COMPUTE, MF_LANE_D2H, (*task)++);
    copy(MF_LANE_D2H, weight, pinned, size->n * size->k * 2, *task);
    order(MF_LANE_D2H, MF_LANE_COMPUTE, (*task)++);
}

static void gradient_touched(const struct size *size, int32_t *task)
{
    scatter(size, interface->device_address(device, pinned),
            MF_SHAPE_OUTPUT_HOST | MF_SHAPE_TOUCHED, (*task)++);
}

static void probe(const struct size *size, int32_t *task)
{
    (void)size;
    copy(MF_LANE_H2D, pinned, weight, PROBE_BYTES, (*task)++);
}

/* ---- timing ---- */

static double run(way queue, const struct size *size, int count)
{
    int32_t task = 0;
    CHECK(interface->begin(device, false));
    double started = now_ns();
    for (int i = 0; i < count; i++) {
        queue(size, &task);
    }
    CHECK(interface->sync(device));
    return (now_ns() - started) / count;
}

/* Other values than any product's, so that one that wrote nothing is seen. */
static void smear(void)
{
    CHECK(interface->begin(device, false));
    copy(MF_LANE_H2D, pinned, y, SAMPLE_BYTES, 0);
    CHECK(interface->sync(device));
}

/* ns of one product, of `count` in a row; 0 = as many as fill GRAPH_NS. */
static double measure(way queue, const struct size *size, int count)
{
    double ns[REPEATS];
    smear();
    double warm = run(queue, size, 1);
    warm = run(queue, size, 1);
    if (count == 0) {
        count = warm > 0 && GRAPH_NS / warm < ROW_MAX ? (int)(GRAPH_NS / warm) : ROW_MAX;
        count = count > 1 ? count : 1;
    }
    for (int i = 0; i < REPEATS; i++) {
        ns[i] = run(queue, size, count);
    }
    qsort(ns, REPEATS, sizeof(ns[0]), compare_numbers);
    return ns[REPEATS / 2];
}

static double measure_plain(const struct size *size)
{
    struct mf_device *kept = device;
    device = plain_device;
    double ns = measure(mapped, size, 0);
    device = kept;
    return ns;
}

/* The first bytes of y into sample `index`. */
static const uint16_t *sample(int index)
{
    char *to = samples + index * SAMPLE_BYTES;
    CHECK(interface->begin(device, false));
    copy(MF_LANE_D2H, y, to, SAMPLE_BYTES, 0);
    CHECK(interface->sync(device));
    return (const uint16_t *)(const void *)to;
}

/* The largest difference of two samples beside their largest value. */
static double difference(const uint16_t *a, const uint16_t *b)
{
    double most = 0;
    double largest = 1e-30;
    for (int64_t i = 0; i < SAMPLE_BYTES / 2; i++) {
        double left = (double)mf_bf16_to_float(a[i]);
        double right = (double)mf_bf16_to_float(b[i]);
        double apart = left > right ? left - right : right - left;
        double height = left > 0 ? left : -left;
        most = apart > most ? apart : most;
        largest = height > largest ? height : largest;
    }
    return most / largest;
}

/* ---- memory ---- */

static void fill(void *at, int64_t bytes)
{
    uint16_t *values = at;
    uint64_t state = 88172645463325252u;
    int64_t first = bytes < FILLED_BYTES ? bytes : FILLED_BYTES;
    for (int64_t i = 0; i < first / 2; i++) {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        values[i] = mf_bf16_from_float((float)(state >> 40) / 16777216.0f - 0.5f);
    }
    for (int64_t done = first; done < bytes; done += first) {
        memcpy((char *)at + done, at, (size_t)(bytes - done < first ? bytes - done : first));
    }
}

static void lay_out(const struct size *most)
{
    int64_t table = vocabulary * embedding_width * 2;
    int64_t largest = most->n * most->k * 2;
    int64_t x_bytes = most->m * most->k * 2;
    largest = largest > table ? largest : table;
    largest = largest > PROBE_BYTES ? largest : PROBE_BYTES;
    int64_t y_bytes = most->m * most->n * 2;
    int64_t gathered = embedding_rows * embedding_width * 2;
    y_bytes = y_bytes > gathered ? y_bytes : gathered;
    int64_t token_bytes = (embedding_rows * 4 + 4095) / 4096 * 4096;
    CHECK(interface->reserve(device, x_bytes + y_bytes + largest + RING * PANEL_BYTES,
                             (void **)&arena));
    x = arena;
    y = x + x_bytes;
    weight = y + y_bytes;
    ring = weight + largest;
    CHECK(interface->map_host(device, largest + token_bytes + 4 * SAMPLE_BYTES, NULL, NULL,
                              (void **)&pinned));
    tokens = pinned + largest;
    samples = tokens + token_bytes;
    fill(pinned, largest);
    for (int64_t i = 0; i < embedding_rows; i++) {
        ((int32_t *)(void *)tokens)[i] = (int32_t)(i * 2654435761 % vocabulary);
    }
    CHECK(interface->begin(device, false));
    for (int64_t done = 0; done < x_bytes; done += FILLED_BYTES) {
        int64_t bytes = x_bytes - done < FILLED_BYTES ? x_bytes - done : FILLED_BYTES;
        copy(MF_LANE_H2D, pinned, x + done, bytes, 0);
    }
    CHECK(interface->sync(device));
}

/* ---- the tables ---- */

static void compare_products(const struct size *size, double link, json_t *rows)
{
    double bytes = (double)(size->n * size->k * 2);
    double ms[6];
    CHECK(interface->begin(device, false));
    copy(MF_LANE_H2D, pinned, weight, size->n * size->k * 2, 0);
    CHECK(interface->sync(device));
    ms[0] = measure(resident, size, 0) / 1e6;
    const uint16_t *right = sample(0);
    ms[1] = measure(copied, size, 0) / 1e6;
    ms[2] = measure(streamed, size, 0) / 1e6;
    double panels_apart = difference(right, sample(1));
    ms[3] = measure(streamed, size, 1) / 1e6;
    ms[4] = measure_plain(size) / 1e6;
    double mapped_apart = difference(right, sample(2));
    ms[5] = measure(mapped, size, 0) / 1e6;
    double direct_apart = difference(right, sample(3));
    double floor_ms = bytes / link * 1e3 > ms[0] ? bytes / link * 1e3 : ms[0];
    printf("| %lld x %lld | %lld | %.3f | %.3f | %.3f | %.3f | %.3f | %.3f | %.1f | %.3f | %.2f | "
           "%.2f "
           "| %.2f |\n",
           (long long)size->k, (long long)size->n, (long long)size->m, ms[0], ms[1], ms[2], ms[3],
           ms[4], ms[5], bytes / 1e6, floor_ms, ms[1] / floor_ms, ms[2] / floor_ms,
           ms[5] / floor_ms);
    (void)fflush(stdout);
    json_array_append_new(
        rows, json_pack("{sIsIsIsfsfsfsfsfsfsfsfsfsfsf}", "m", (json_int_t)size->m, "n",
                        (json_int_t)size->n, "k", (json_int_t)size->k, "resident_ms", ms[0],
                        "copied_ms", ms[1], "streamed_ms", ms[2], "streamed_alone_ms", ms[3],
                        "mapped_ms", ms[4], "direct_ms", ms[5], "weight_bytes", bytes, "floor_ms",
                        floor_ms, "streamed_difference", panels_apart, "mapped_difference",
                        mapped_apart, "direct_difference", direct_apart));
}

static json_t *compare_embedding(double link)
{
    const struct size size = {.m = embedding_rows, .n = vocabulary, .k = embedding_width};
    double table_bytes = (double)(size.n * size.k * 2);
    double touched_bytes = (double)(size.m * size.k * 2);
    double copied_ms = measure(table_copied, &size, 2) / 1e6;
    const uint16_t *right = sample(0);
    double direct_ms = measure(table_in_place, &size, 0) / 1e6;
    double apart = difference(right, sample(1));
    printf("\nembedding %lld x %lld, %lld tokens: whole copy %.3f ms (%.1f MB), touched rows in "
           "place %.3f ms (%.1f MB, floor %.3f ms), difference %g\n",
           (long long)size.n, (long long)size.k, (long long)size.m, copied_ms, table_bytes / 1e6,
           direct_ms, touched_bytes / 1e6, touched_bytes / link * 1e3, apart);
    return json_pack("{sIsIsIsfsfsfsfsf}", "vocabulary", (json_int_t)size.n, "width",
                     (json_int_t)size.k, "tokens", (json_int_t)size.m, "copied_ms", copied_ms,
                     "direct_ms", direct_ms, "copied_bytes", table_bytes, "direct_bytes",
                     touched_bytes, "difference", apart);
}

static uint64_t hash_table(const struct size *size)
{
    const uint64_t *words = (const uint64_t *)(const void *)pinned;
    uint64_t hash = 0;
    for (int64_t i = 0; i < size->n * size->k / 4; i++) {
        hash = (hash ^ words[i]) * 0x100000001b3u;
    }
    return hash;
}

/* Uses the table's memory up. */
static json_t *compare_gradient(double link)
{
    const struct size size = {.m = embedding_rows, .n = vocabulary, .k = embedding_width};
    double touched_bytes = (double)(size.m * size.k * 2);
    double copied_ms = measure(gradient_copied, &size, 2) / 1e6;
    uint64_t right = hash_table(&size);
    memset(pinned, 0, (size_t)(size.n * size.k * 2));
    CHECK(interface->begin(device, false));
    copy(MF_LANE_H2D, pinned, ring, size.n, 0); /* no row is marked */
    CHECK(interface->sync(device));
    double touched_ms = measure(gradient_touched, &size, 0) / 1e6;
    bool same = hash_table(&size) == right;
    printf("embedding gradient %lld x %lld, %lld tokens: dense copy %.3f ms, touched rows %.3f ms "
           "(floor %.3f ms), the same bits: %s\n",
           (long long)size.n, (long long)size.k, (long long)size.m, copied_ms, touched_ms,
           touched_bytes / link * 1e3, same ? "yes" : "NO");
    return json_pack("{sfsfsb}", "copied_ms", copied_ms, "touched_ms", touched_ms, "same", same);
}

static void compare_all(bool small, const char *json_path)
{
    static const struct size large_weights[] = {{0, 4096, 4096}, {0, 14336, 4096}};
    static const struct size small_weights[] = {{0, 512, 512}};
    static const int64_t large_rows[] = {256, 512, 1024, 2048, 4096, 8192, 16384};
    const struct size *weights = small ? small_weights : large_weights;
    int weight_count = small ? 1 : 2;
    int rows_count = small ? 1 : 7;
    struct mf_hardware_device described;
    json_t *rows = json_array();
    CHECK(interface->describe(device, &described));
    double link = (double)PROBE_BYTES / measure(probe, NULL, 0) * 1e9;
    printf("%s, %s; copies to the device: %.1f GB/s\n\n", described.name, described.runtime,
           link / 1e9);
    printf(
        "| W (K x N) | M | resident ms | copy, then multiply | panels of %lld MiB | panels, alone "
        "| mapped pointer | direct kernel | MB of W | floor | copy / floor | panels / floor "
        "| direct / floor |\n",
        PANEL_BYTES >> 20);
    printf("| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |\n");
    for (int w = 0; w < weight_count; w++) {
        for (int r = 0; r < rows_count; r++) {
            struct size size = weights[w];
            size.m = large_rows[r];
            compare_products(&size, link, rows);
        }
    }
    json_t *out =
        json_pack("{sssssfsoso}", "device", described.name, "runtime", described.runtime,
                  "h2d_bytes_per_s", link, "products", rows, "embedding", compare_embedding(link));
    json_object_set_new(out, "embedding_gradient", compare_gradient(link));
    if (json_path != NULL && json_dump_file(out, json_path, JSON_INDENT(1)) != 0) {
        fprintf(stderr, "direct: %s cannot be written\n", json_path);
        exit(1);
    }
    json_decref(out);
}

int main(int argc, char **argv)
{
    bool small = false;
    bool host = false;
    const char *json_path = NULL;
    for (int i = 1; i < argc; i++) {
        small = small || strcmp(argv[i], "--small") == 0;
        host = host || strcmp(argv[i], "host") == 0;
        if (strcmp(argv[i], "--json") == 0 && i + 1 < argc) {
            json_path = argv[++i];
        }
    }
    if (host) {
        interface = mf_device_host();
    } else {
        CHECK(mf_device_cuda(&interface));
    }
    const struct mf_device_options options = {0};
    const struct size most =
        small ? (struct size){1024, 512, 512} : (struct size){16384, 14336, 4096};
    vocabulary = small ? 8192 : 128 * 1024;
    embedding_width = small ? 512 : 4096;
    embedding_rows = small ? 1024 : 8192;
    CHECK(interface->open(&options, &device));
    CHECK(interface->prepare(device, TASKS));
    (void)setenv("MEMFERRY_DIRECT", "plain", 1);
    CHECK(interface->open(&options, &plain_device));
    CHECK(interface->prepare(plain_device, TASKS));
    lay_out(&most);
    compare_all(small, json_path);
    interface->release(device, arena);
    interface->unmap_host(device, pinned);
    interface->close(device);
    interface->close(plain_device);
    return 0;
}
