/*
 * AdamW on the CPU against what this machine's memory can move, in one run.
 *
 *     bench-adam [--device host|cuda] [--threads N] [--elements N] [--repeats N] [--apart]
 *                [--json FILE]
 *
 * The update is the kernel that the CPU lane runs, called through the device, on memory of
 * map_host. It moves 26 bytes an element: 14 read (fp32 m and v, the master as bf16 weight and a
 * 16-bit rest, bf16 gradient), 12 written (all but the gradient). The memory's rate is the best of
 * two loops without arithmetic to speak of, over as many threads and the same memory: STREAM's
 * triad in place, a += s b (16 bytes read, 8 written), and a *= s (8 and 8, the mix of the update).
 * In place, because a store to lines that were not read would move them once more, uncounted.
 * --threads is for these loops and for the update; without it both have a thread a CPU, but the
 * CUDA device leaves one free. With --apart results go to memory of their own, as those of updates
 * that begin before the norm is known.
 */
#include <argp.h>
#include <jansson.h>
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/clock.h"
#include "runtime/device.h"
#include "runtime/host/adamw.h"
#include "runtime/host/bf16.h"

#define SIZES 3 /* elements, a quarter, a sixteenth */
#define REPEATS_MAX 100
#define THREADS_MAX 1024
#define ELEMENT_BYTES (MF_STATE_BYTES + 4) /* held: state, bf16 gradient and weight */
#define MOVED_BYTES MF_ADAMW_BYTES         /* read and written by one update */
#define ALIGN 4096

static struct {
    const char *device;
    const char *json;
    int threads;
    int repeats;
    int64_t elements;
    bool apart;
} options = {"host", NULL, 0, 12, 256ll << 20, false};

static const struct mf_device_interface *interface;
static struct mf_device *device;
static char *memory;

static void must(enum mf_status status, const char *what)
{
    if (status != MF_STATUS_OK) {
        fprintf(stderr, "bench-adam: %s: %s\n", what, mf_status_text());
        exit(1);
    }
}

static int compare_numbers(const void *a, const void *b)
{
    int64_t left = *(const int64_t *)a;
    int64_t right = *(const int64_t *)b;
    return (left > right) - (left < right);
}

static double median_s(int64_t *ns, int count)
{
    qsort(ns, (size_t)count, sizeof(*ns), compare_numbers);
    return (double)ns[count / 2] / 1e9;
}

/* ---- the memory's rate ---- */

struct stripe {
    double *a;
    const double *b; /* NULL: a *= s */
    int64_t count;
    pthread_barrier_t *barrier;
};

static void *run_stripe(void *argument)
{
    const struct stripe *stripe = argument;
    double *restrict a = stripe->a;
    const double *restrict b = stripe->b;
    for (int repeat = 0; repeat < options.repeats; repeat++) {
        pthread_barrier_wait(stripe->barrier);
        if (b != NULL) {
            for (int64_t index = 0; index < stripe->count; index++) {
                a[index] += 1e-9 * b[index];
            }
        } else {
            for (int64_t index = 0; index < stripe->count; index++) {
                a[index] *= 1.0000001;
            }
        }
        pthread_barrier_wait(stripe->barrier);
    }
    return NULL;
}

/* Bytes a second of the triad in place, or of scaling, over all of the memory. */
static double measure_memory(bool triad)
{
    static struct stripe stripes[THREADS_MAX];
    static pthread_t threads[THREADS_MAX];
    pthread_barrier_t barrier;
    int64_t count = options.elements * ELEMENT_BYTES / (int64_t)sizeof(double) / (triad ? 2 : 1);
    double *a = (double *)(void *)memory;
    pthread_barrier_init(&barrier, NULL, (unsigned)options.threads + 1);
    for (int index = 0; index < options.threads; index++) {
        int64_t first = count * index / options.threads;
        stripes[index] = (struct stripe){a + first, triad ? a + count + first : NULL,
                                         count * (index + 1) / options.threads - first, &barrier};
        if (pthread_create(&threads[index], NULL, run_stripe, &stripes[index]) != 0) {
            fprintf(stderr, "bench-adam: no more threads than %d\n", index);
            exit(1);
        }
    }
    int64_t ns[REPEATS_MAX];
    for (int repeat = 0; repeat < options.repeats; repeat++) {
        pthread_barrier_wait(&barrier);
        int64_t start = mf_clock_ns();
        pthread_barrier_wait(&barrier);
        ns[repeat] = mf_clock_ns() - start;
    }
    for (int index = 0; index < options.threads; index++) {
        pthread_join(threads[index], NULL);
    }
    pthread_barrier_destroy(&barrier);
    return (double)count * (triad ? 24 : 16) / median_s(ns, options.repeats);
}

/* ---- the update ---- */

/* Values as in training: weights around 0.02, gradients of 1e-3, moments to match. */
static void fill(float *m, uint16_t *gradient, int64_t n)
{
    float *v = m + n;
    int16_t *rest = (int16_t *)(void *)(v + n);
    uint16_t *weight = gradient + n;
    uint64_t random = 88172645463325252u;
    for (int64_t index = 0; index < n; index++) {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        float value = (float)(random >> 40) / 16777216.0f - 0.5f;
        m[index] = 1e-4f * value;
        mf_adamw_split(0.04f * value, 1e-8f + 1e-7f * value * value, &weight[index], &rest[index],
                       &v[index]);
        gradient[index] = mf_bf16_from_float(2e-3f * value);
    }
}

/* Median seconds of one update of n elements. */
static double measure_update(int64_t n)
{
    static struct mf_control control = {.learning_rate = 1e-4,
                                        .beta1 = 0.9,
                                        .beta2 = 0.999,
                                        .eps = 1e-8,
                                        .weight_decay = 0.1,
                                        .step = 10,
                                        .token_count = 1,
                                        .gradient_scale = 1};
    float *state = (float *)(void *)memory;
    uint16_t *gradient = (uint16_t *)(void *)(memory + n * MF_STATE_BYTES);
    struct mf_kernel_call call = {.kernel = MF_KERNEL_ADAMW,
                                  .shape = {.n = n, .k = n, .flags = MF_SHAPE_DECAY_FIRST}};
    call.operands[0].pointer = gradient;
    call.operands[1].pointer = state;
    call.operands[2].pointer = gradient + n;
    call.operands[3].pointer = &control;
    if (options.apart) {
        char *results = memory + options.elements * ELEMENT_BYTES;
        call.operands[4].pointer = results;
        call.operands[5].pointer = results + n * MF_STATE_BYTES;
    }
    fill(state, gradient, n);
    int64_t ns[REPEATS_MAX];
    must(interface->begin(device, true), "begin");
    for (int32_t task = 0; task <= options.repeats; task++) {
        must(interface->submit(device, MF_LANE_CPU, &call, task), "update");
    }
    must(interface->sync(device), "update");
    for (int32_t task = 1; task <= options.repeats; task++) { /* the first one warms up */
        struct mf_device_span span;
        if (!interface->span(device, task, &span)) {
            fprintf(stderr, "bench-adam: no time of task %d\n", task);
            exit(1);
        }
        ns[task - 1] = span.end_ns - span.start_ns;
    }
    return median_s(ns, options.repeats);
}

/* ---- the whole ---- */

static int64_t read_number(const char *text, struct argp_state *state)
{
    char *end;
    int64_t value = strtoll(text, &end, 10);
    if (end == text || *end != '\0') {
        argp_error(state, "%s is no number", text);
    }
    return value;
}

static error_t parse(int key, char *value, struct argp_state *state)
{
    switch (key) {
    case 'd':
        options.device = value;
        break;
    case 'j':
        options.json = value;
        break;
    case 't':
        options.threads = (int)read_number(value, state);
        break;
    case 'n':
        options.elements = read_number(value, state);
        break;
    case 'r':
        options.repeats = (int)read_number(value, state);
        break;
    case 'a':
        options.apart = true;
        break;
    case ARGP_KEY_END:
        if (options.threads < 0 || options.threads > THREADS_MAX || options.repeats < 1 ||
            options.repeats > REPEATS_MAX || options.elements < 4096) {
            argp_error(state, "threads 1..%d, repeats 1..%d, elements from 4096", THREADS_MAX,
                       REPEATS_MAX);
        }
        break;
    default:
        return ARGP_ERR_UNKNOWN;
    }
    return 0;
}

static void open_device(void)
{
    cpu_set_t cores;
    const struct mf_device_options settings = {.threads = options.threads};
    if (options.threads == 0) {
        options.threads = sched_getaffinity(0, sizeof(cores), &cores) == 0 ? CPU_COUNT(&cores) : 1;
    }
    options.elements = options.elements / 1024 * 1024;
    if (strcmp(options.device, "host") == 0) {
        interface = mf_device_host();
    } else {
        must(mf_device_cuda(&interface), "device");
    }
    must(interface->open(&settings, &device), "device");
    must(interface->prepare(device, options.repeats + 1), "device");
    int64_t held = options.apart ? ELEMENT_BYTES + MF_STATE_BYTES + 2 : ELEMENT_BYTES;
    must(interface->map_host(device, options.elements * held + ALIGN, NULL, NULL, (void **)&memory),
         "memory");
}

static json_t *measure_sizes(double bytes_per_s)
{
    json_t *rows = json_array();
    printf("%12s %10s %12s %10s %10s\n", "elements", "ms", "G elem/s", "GB/s", "of memory");
    int64_t n = options.elements;
    for (int size = 0; size < SIZES; size++, n = n / 4 / 64 * 64) {
        double seconds = measure_update(n);
        double rate = (double)n * MOVED_BYTES / seconds;
        printf("%12lld %10.3f %12.3f %10.1f %9.1f%%\n", (long long)n, seconds * 1e3,
               (double)n / seconds / 1e9, rate / 1e9, 100 * rate / bytes_per_s);
        json_array_append_new(rows, json_pack("{s:I,s:f,s:f,s:f}", "elements", (json_int_t)n,
                                              "seconds", seconds, "bytes_per_s", rate, "of_memory",
                                              rate / bytes_per_s));
    }
    return rows;
}

int main(int argc, char **argv)
{
    static const struct argp_option known[] = {
        {"device", 'd', "KIND", 0, "host or cuda", 0},
        {"json", 'j', "FILE", 0, "results as JSON", 0},
        {"threads", 't', "N", 0, "threads, default: all cores", 0},
        {"elements", 'n', "N", 0, "of the largest update", 0},
        {"repeats", 'r', "N", 0, "medians of so many", 0},
        {"apart", 'a', NULL, 0, "results in memory of their own", 0},
        {0}};
    static const struct argp argp = {.options = known, .parser = parse};
    argp_parse(&argp, argc, argv, 0, NULL, NULL);
    open_device();
    double triad = measure_memory(true);
    double scale = measure_memory(false);
    double best = triad > scale ? triad : scale;
    printf("%s, %d threads: triad in place %.1f GB/s, scaling in place %.1f GB/s\n", options.device,
           options.threads, triad / 1e9, scale / 1e9);
    json_t *document =
        json_pack("{s:s,s:i,s:f,s:f,s:i,s:o}", "device", options.device, "threads", options.threads,
                  "triad_bytes_per_s", triad, "scale_bytes_per_s", scale, "bytes_per_element",
                  MOVED_BYTES, "rows", measure_sizes(best));
    if (options.json != NULL && json_dump_file(document, options.json, JSON_INDENT(1)) != 0) {
        fprintf(stderr, "bench-adam: %s cannot be written\n", options.json);
        return 1;
    }
    json_decref(document);
    interface->close(device);
    return 0;
}
