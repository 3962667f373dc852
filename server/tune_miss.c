/* Why a plan was not in the store: see tune_internal.h. */
#include <stdio.h>
#include <string.h>

#include "core/json.h"
#include "server/tune_internal.h"

/* How near a stored plan is to the request; the last is the nearest. */
enum nearness { NEVER_ASKED, OTHER_PLANNER, OTHER_HARDWARE, OTHER_STRATEGY, OTHER_WORK, ESTIMATE };

static const char *const reasons[] = {
    [NEVER_ASKED] = "no plan for this model yet",
    [OTHER_PLANNER] = "the stored plans of this model are of another planner version",
    [OTHER_HARDWARE] = "the stored plans of this model are for other hardware",
    [OTHER_STRATEGY] = "the stored plans are for another strategy",
    [OTHER_WORK] = "the stored plans are for another workload, budget or pins",
    [ESTIMATE] = "the stored plan was an estimate and measuring was asked for",
};

static enum nearness nearness(const struct mf_store_plan_record *record,
                              const struct mf_tune_miss *miss, const char *fingerprint)
{
    if (strcmp(record->model_fingerprint, miss->model_fingerprint) != 0) {
        return NEVER_ASKED;
    }
    if (strcmp(record->key, miss->estimate_key) == 0) {
        return ESTIMATE;
    }
    if (record->planner_version != MF_PLANNER_VERSION) {
        return OTHER_PLANNER;
    }
    if (strcmp(record->hardware_fingerprint, fingerprint) != 0) {
        return OTHER_HARDWARE;
    }
    return strcmp(record->strategy, mf_plan_strategy_name(miss->strategy)) == 0 ? OTHER_WORK
                                                                                : OTHER_STRATEGY;
}

/* The first thing in which the machine of the stored plan was another. */
static void tell_change(struct mf_service *service, const char *fingerprint,
                        const struct mf_hardware *now, char *out, size_t size)
{
    struct mf_store_hardware_record record;
    struct mf_hardware then;
    struct mf_arena arena;
    json_t *json = NULL;
    mf_arena_init(&arena);
    if (mf_store_hardware_get(service->store, fingerprint, &arena, &record) == MF_STATUS_OK &&
        mf_json_parse(record.json, strlen(record.json), "stored hardware", &json) == MF_STATUS_OK &&
        mf_hardware_decode(json, &then) == MF_STATUS_OK) {
        const struct mf_hardware_device *a = &then.devices[0];
        const struct mf_hardware_device *b = &now->devices[0];
        const struct {
            const char *what, *then, *now;
        } texts[] = {{"device", a->name, b->name},
                     {"driver", a->driver, b->driver},
                     {"runtime", a->runtime, b->runtime},
                     {"CPU", then.cpu_name, now->cpu_name}};
        const struct {
            const char *what;
            double then, now;
            double scale;
            const char *unit;
        } numbers[] = {
            {"device memory", (double)a->memory_bytes, (double)b->memory_bytes, 0x1p20, "MiB"},
            {"host memory", (double)then.host_bytes, (double)now->host_bytes, 0x1p20, "MiB"},
            {"cores", then.cpu_cores, now->cpu_cores, 1, ""},
            {"link", a->h2d_bytes_per_s, b->h2d_bytes_per_s, 1e9, "GB/s"},
            {"link back", a->d2h_bytes_per_s, b->d2h_bytes_per_s, 1e9, "GB/s"}};
        out[0] = 0;
        for (size_t i = 0; i < sizeof(texts) / sizeof(texts[0]) && out[0] == 0; i++) {
            if (strcmp(texts[i].then, texts[i].now) != 0) {
                (void)snprintf(out, size, " (%s: %.32s then, %.32s now)", texts[i].what,
                               texts[i].then, texts[i].now);
            }
        }
        for (size_t i = 0; i < sizeof(numbers) / sizeof(numbers[0]) && out[0] == 0; i++) {
            if (numbers[i].then != numbers[i].now) {
                (void)snprintf(out, size, " (%s: %.4g then, %.4g %s now)", numbers[i].what,
                               numbers[i].then / numbers[i].scale,
                               numbers[i].now / numbers[i].scale, numbers[i].unit);
            }
        }
    }
    json_decref(json);
    mf_arena_reset(&arena);
}

void mf_tune_miss_explain(struct mf_service *service, const struct mf_tune_miss *miss,
                          char out[static MF_TUNE_MISS_MAX])
{
    struct mf_store_plan_record *records = NULL;
    struct mf_arena arena;
    char fingerprint[MF_HASH_TEXT_MAX];
    char change[MF_TUNE_MISS_MAX] = "";
    enum nearness best = NEVER_ASKED;
    const char *other = NULL;
    int32_t count = 0;
    mf_hardware_fingerprint(miss->hardware, fingerprint);
    mf_arena_init(&arena);
    if (mf_store_plan_list(service->store, &arena, &records, &count) != MF_STATUS_OK) {
        count = 0;
    }
    for (int32_t i = 0; i < count; i++) { /* newest first */
        enum nearness near = nearness(&records[i], miss, fingerprint);
        if (near > best) {
            best = near;
            other = records[i].hardware_fingerprint;
        }
    }
    if (best == OTHER_HARDWARE) {
        tell_change(service, other, miss->hardware, change, sizeof(change));
    }
    mf_arena_reset(&arena);
    (void)snprintf(out, MF_TUNE_MISS_MAX, "%s%.90s", reasons[best], change);
}
