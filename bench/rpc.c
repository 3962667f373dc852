/*
 * How long a cached GetPlan takes beside an empty call, on a running daemon and the same gRPC C
 * core.
 *
 *     bench-rpc [--address ADDRESS] [--calls N] [--json FILE]
 *
 * The empty call is grpc.health.v1.Health/Check: a few bytes each way, answered at once. Calls of
 * both kinds alternate in rounds, so that what else the machine does falls on both; medians of all
 * rounds. Target: p50 of a cached GetPlan within 1.5 times the empty call's.
 */
#include <argp.h>
#include <jansson.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "client/channel.h"
#include "memferry/v1/plan.pb-c.h"
#include "proto/wire.h"

#define ROUNDS 20
#define FLIGHT_THREADS 8

struct kind {
    const char *name;
    const char *path;
    uint8_t *request;
    size_t request_bytes;
    size_t reply_bytes;
    double *latencies_us;
    size_t count;
    double per_second;
};

static struct {
    const char *address;
    const char *json;
    long calls;
} options = {.calls = 4000};

static double now_us(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec * 1e6 + (double)now.tv_nsec * 1e-3;
}

static void must(enum mf_status status, const char *what)
{
    if (status != MF_STATUS_OK) {
        fprintf(stderr, "bench-rpc: %s: %s\n", what, mf_status_text());
        exit(1);
    }
}

static void call(struct mf_channel *channel, struct kind *kind)
{
    uint8_t *reply = NULL;
    must(mf_channel_call(channel, kind->path, kind->request, kind->request_bytes, 60000, &reply,
                         &kind->reply_bytes),
         kind->name);
    free(reply);
}

static struct kind get_plan(const char *name, char *preset)
{
    Memferry__V1__GetPlanRequest request = MEMFERRY__V1__GET_PLAN_REQUEST__INIT;
    Memferry__V1__Model model = MEMFERRY__V1__MODEL__INIT;
    Memferry__V1__Workload workload = MEMFERRY__V1__WORKLOAD__INIT;
    struct kind kind = {.name = name, .path = "/memferry.v1.PlanService/GetPlan"};
    model.source_case = MEMFERRY__V1__MODEL__SOURCE_PRESET;
    model.preset = preset;
    workload.seq_len = 128;
    request.model = &model;
    request.workload = &workload;
    request.effort = MEMFERRY__V1__EFFORT__EFFORT_ESTIMATE;
    kind.request = mf_wire_pack(&request.base, &kind.request_bytes);
    return kind;
}

static int compare(const void *a, const void *b)
{
    double x = *(const double *)a;
    double y = *(const double *)b;
    return (x > y) - (x < y);
}

static double percentile(const struct kind *kind, double share)
{
    return kind->latencies_us[(size_t)(share * (double)(kind->count - 1))];
}

static void measure_latency(struct mf_channel *channel, struct kind *kinds, size_t count)
{
    size_t per_round = (size_t)options.calls / ROUNDS;
    for (size_t k = 0; k < count; k++) {
        kinds[k].latencies_us = calloc(per_round * ROUNDS, sizeof(double));
        call(channel, &kinds[k]); /* solved and cached here */
        call(channel, &kinds[k]);
    }
    for (int round = 0; round < ROUNDS; round++) {
        for (size_t k = 0; k < count; k++) {
            for (size_t i = 0; i < per_round; i++) {
                double start = now_us();
                call(channel, &kinds[k]);
                kinds[k].latencies_us[kinds[k].count++] = now_us() - start;
            }
        }
    }
    for (size_t k = 0; k < count; k++) {
        qsort(kinds[k].latencies_us, kinds[k].count, sizeof(double), compare);
    }
}

struct flight {
    struct mf_channel *channel;
    struct kind *kind;
    atomic_long left;
};

static void *fly(void *context)
{
    struct flight *flight = context;
    struct kind own = *flight->kind;
    while (atomic_fetch_sub(&flight->left, 1) > 0) {
        call(flight->channel, &own);
    }
    return NULL;
}

static void measure_rate(struct mf_channel *channel, struct kind *kind)
{
    pthread_t threads[FLIGHT_THREADS];
    struct flight flight = {.channel = channel, .kind = kind, .left = options.calls};
    double start = now_us();
    for (int i = 0; i < FLIGHT_THREADS; i++) {
        if (pthread_create(&threads[i], NULL, fly, &flight) != 0) {
            exit(1);
        }
    }
    for (int i = 0; i < FLIGHT_THREADS; i++) {
        pthread_join(threads[i], NULL);
    }
    kind->per_second = (double)options.calls / (now_us() - start) * 1e6;
}

static void print(const struct kind *kinds, size_t count)
{
    json_t *rows = json_array();
    printf("%-28s %9s %9s %9s %7s %12s %7s\n", "call", "reply B", "p50 us", "p99 us", "ratio",
           "calls/s (8)", "ratio");
    for (size_t k = 0; k < count; k++) {
        double p50 = percentile(&kinds[k], 0.5);
        double p99 = percentile(&kinds[k], 0.99);
        double ratio = p50 / percentile(&kinds[0], 0.5);
        printf("%-28s %9zu %9.1f %9.1f %7.2f %12.0f %7.2f\n", kinds[k].name, kinds[k].reply_bytes,
               p50, p99, ratio, kinds[k].per_second, kinds[k].per_second / kinds[0].per_second);
        json_array_append_new(
            rows, json_pack("{s:s, s:I, s:f, s:f, s:f, s:f}", "call", kinds[k].name, "reply_bytes",
                            (json_int_t)kinds[k].reply_bytes, "p50_us", p50, "p99_us", p99,
                            "p50_ratio", ratio, "calls_per_second", kinds[k].per_second));
    }
    if (options.json != NULL && json_dump_file(rows, options.json, JSON_INDENT(1)) != 0) {
        fprintf(stderr, "bench-rpc: cannot write %s\n", options.json);
        exit(1);
    }
    json_decref(rows);
}

static error_t parse(int key, char *argument, struct argp_state *state)
{
    switch (key) {
    case 'a':
        options.address = argument;
        return 0;
    case 'j':
        options.json = argument;
        return 0;
    case 'n':
        options.calls = strtol(argument, NULL, 10);
        if (options.calls < ROUNDS) {
            argp_error(state, "--calls must be at least %d", ROUNDS);
        }
        return 0;
    default:
        return ARGP_ERR_UNKNOWN;
    }
}

int main(int argc, char **argv)
{
    static const struct argp_option flags[] = {
        {"address", 'a', "ADDRESS", 0, "of the daemon (default: the usual one)", 0},
        {"calls", 'n', "N", 0, "of each kind (default 4000)", 0},
        {"json", 'j', "FILE", 0, "write the table as JSON too", 0},
        {0},
    };
    static const struct argp argp = {
        .options = flags, .parser = parse, .doc = "A cached GetPlan beside an empty call."};
    argp_parse(&argp, argc, argv, 0, NULL, NULL);
    struct mf_channel *channel = NULL;
    must(mf_channel_open(options.address, &channel), "open");
    struct kind kinds[] = {
        {.name = "empty (Health/Check)", .path = "/grpc.health.v1.Health/Check"},
        get_plan("cached GetPlan tiny-llama", "tiny-llama"),
        get_plan("cached GetPlan gpt2", "gpt2"),
    };
    size_t count = sizeof(kinds) / sizeof(kinds[0]);
    measure_latency(channel, kinds, count);
    for (size_t k = 0; k < count; k++) {
        measure_rate(channel, &kinds[k]);
    }
    print(kinds, count);
    for (size_t k = 0; k < count; k++) {
        free(kinds[k].request);
        free(kinds[k].latencies_us);
    }
    mf_channel_close(channel);
    return 0;
}
