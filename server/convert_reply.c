/* Our structs to replies: see convert.h. */
#include <string.h>

#include "server/convert.h"
#include "server/tune_machine.h"
#include "server/unit_times.h"

/* A message of the arena with its defaults. */
#define NEW(arena, type, init) ((type *)new_message(arena, sizeof(type), &(const type)init))

static void *new_message(struct mf_arena *arena, size_t size, const void *initial)
{
    void *message = mf_arena_alloc(arena, 1, size);
    memcpy(message, initial, size);
    return message;
}

/* Strings of a message are not const; nobody writes them. */
static char *text(struct mf_arena *arena, const char *from)
{
    return mf_arena_string(arena, from != NULL ? from : "");
}

static Memferry__V1__Device *convert_device(const struct mf_hardware_device *device,
                                            int64_t reserved_bytes, struct mf_arena *arena)
{
    Memferry__V1__Device *out = NEW(arena, Memferry__V1__Device, MEMFERRY__V1__DEVICE__INIT);
    out->kind = text(arena, device->kind);
    out->name = text(arena, device->name);
    out->memory_bytes = device->memory_bytes;
    out->multiprocessors = device->multiprocessors;
    out->compute_capability = device->compute_capability;
    out->matrix_flops = device->matrix_flops;
    out->memory_bytes_per_second = device->memory_bytes_per_s;
    out->h2d_bytes_per_second = device->h2d_bytes_per_s;
    out->d2h_bytes_per_second = device->d2h_bytes_per_s;
    out->copy_latency_ns = device->copy_latency_ns;
    out->link_emulated = device->link_emulated;
    out->driver = text(arena, device->driver);
    out->runtime = text(arena, device->runtime);
    out->reserved_bytes = reserved_bytes;
    return out;
}

static void convert_slowdowns(const struct mf_contention *contention, struct mf_arena *arena,
                              Memferry__V1__Contention *out)
{
    out->slowdowns =
        mf_arena_alloc(arena, (size_t)MF_LOAD_COUNT * MF_LOAD_COUNT, sizeof(*out->slowdowns));
    for (int a = 0; a < MF_LOAD_COUNT; a++) {
        for (int b = 0; b < MF_LOAD_COUNT; b++) {
            if (contention->slowdown[a][b] <= 1) {
                continue;
            }
            Memferry__V1__Slowdown *slowdown =
                NEW(arena, Memferry__V1__Slowdown, MEMFERRY__V1__SLOWDOWN__INIT);
            slowdown->load = text(arena, mf_contention_load_name((enum mf_load)a));
            slowdown->beside = text(arena, mf_contention_load_name((enum mf_load)b));
            slowdown->factor = contention->slowdown[a][b];
            out->slowdowns[out->n_slowdowns++] = slowdown;
        }
    }
}

static void convert_latencies(const struct mf_contention *contention, struct mf_arena *arena,
                              Memferry__V1__Contention *out)
{
    out->lanes = mf_arena_alloc(arena, MF_LANE_COUNT, sizeof(*out->lanes));
    out->hand_overs =
        mf_arena_alloc(arena, (size_t)MF_LANE_COUNT * MF_LANE_COUNT, sizeof(*out->hand_overs));
    for (int a = 0; a < MF_LANE_COUNT; a++) {
        Memferry__V1__LaneLatency *lane =
            NEW(arena, Memferry__V1__LaneLatency, MEMFERRY__V1__LANE_LATENCY__INIT);
        lane->lane = text(arena, mf_kernel_lane_name((enum mf_lane)a));
        lane->gap_ns = contention->gap_ns[a];
        lane->issue_ns = contention->issue_ns[a];
        out->lanes[out->n_lanes++] = lane;
        for (int b = 0; b < MF_LANE_COUNT; b++) {
            if (a == b) {
                continue;
            }
            Memferry__V1__HandOver *hand_over =
                NEW(arena, Memferry__V1__HandOver, MEMFERRY__V1__HAND_OVER__INIT);
            hand_over->from = text(arena, mf_kernel_lane_name((enum mf_lane)a));
            hand_over->to = text(arena, mf_kernel_lane_name((enum mf_lane)b));
            hand_over->latency_ns = contention->handover_ns[a][b];
            out->hand_overs[out->n_hand_overs++] = hand_over;
        }
    }
}

Memferry__V1__Contention *mf_convert_contention(const struct mf_contention *contention,
                                                struct mf_arena *arena)
{
    Memferry__V1__Contention *out =
        NEW(arena, Memferry__V1__Contention, MEMFERRY__V1__CONTENTION__INIT);
    out->measured = contention->measured;
    out->graph_ns = contention->graph_ns;
    convert_slowdowns(contention, arena, out);
    convert_latencies(contention, arena, out);
    return out;
}

Memferry__V1__Hardware *mf_convert_hardware(const struct mf_hardware *hardware,
                                            int64_t reserved_bytes, struct mf_arena *arena)
{
    char fingerprint[MF_HASH_TEXT_MAX];
    Memferry__V1__Hardware *out = NEW(arena, Memferry__V1__Hardware, MEMFERRY__V1__HARDWARE__INIT);
    mf_hardware_fingerprint(hardware, fingerprint);
    out->n_devices = (size_t)hardware->device_count;
    out->devices = mf_arena_alloc(arena, out->n_devices + 1, sizeof(*out->devices));
    for (int32_t i = 0; i < hardware->device_count; i++) {
        out->devices[i] = convert_device(&hardware->devices[i], reserved_bytes, arena);
    }
    out->cpu_name = text(arena, hardware->cpu_name);
    out->cpu_cores = hardware->cpu_cores;
    out->numa_nodes = hardware->numa_nodes;
    out->host_memory_bytes = hardware->host_bytes;
    out->host_bytes_per_second = hardware->host_bytes_per_s;
    out->measured = hardware->measured;
    out->fingerprint = text(arena, fingerprint);
    out->contention = mf_convert_contention(&hardware->contention, arena);
    return out;
}

Memferry__V1__Workload *mf_convert_workload_reply(const struct mf_workload *workload,
                                                  struct mf_arena *arena)
{
    Memferry__V1__Workload *out = NEW(arena, Memferry__V1__Workload, MEMFERRY__V1__WORKLOAD__INIT);
    out->micro_batch = workload->micro_batch;
    out->seq_len = workload->seq_len;
    out->accumulation = workload->accumulation;
    out->no_clip = !workload->clip;
    out->dtype = text(arena, "bf16");
    out->optimizer = text(arena, "adamw");
    return out;
}

Memferry__V1__UnitPlan *mf_convert_unit(const struct mf_plan *plan, const struct mf_model *model,
                                        int32_t unit, const double times[static MF_LANE_COUNT],
                                        struct mf_arena *arena)
{
    const struct mf_unit *from = &model->units[unit];
    const struct mf_unit_decision *decision = &plan->units[unit];
    Memferry__V1__UnitPlan *out = NEW(arena, Memferry__V1__UnitPlan, MEMFERRY__V1__UNIT_PLAN__INIT);
    out->name = text(arena, from->name);
    out->kind = text(arena, mf_model_unit_kind_name(from->kind));
    out->block = from->block;
    out->rows = from->rows;
    out->columns = from->columns;
    out->params = from->params;
    out->weight_bytes = from->elements * 2;
    out->forward = (Memferry__V1__WeightForward)(decision->forward + 1);
    out->backward = (Memferry__V1__WeightBackward)(decision->backward + 1);
    out->gradient = (Memferry__V1__Gradient)(decision->gradient + 1);
    out->optimizer = (Memferry__V1__Optimizer)(decision->optimizer + 1);
    out->pinned = decision->pinned;
    out->why = text(arena, decision->why);
    out->tied_to = text(arena, from->owner != unit ? model->units[from->owner].name : "");
    out->compute_ns = times[MF_LANE_COMPUTE];
    out->h2d_ns = times[MF_LANE_H2D];
    out->d2h_ns = times[MF_LANE_D2H];
    out->cpu_ns = times[MF_LANE_CPU];
    return out;
}

static Memferry__V1__Prediction *convert_prediction(const struct mf_plan_prediction *from,
                                                    struct mf_arena *arena)
{
    Memferry__V1__Prediction *out =
        NEW(arena, Memferry__V1__Prediction, MEMFERRY__V1__PREDICTION__INIT);
    out->step_ns = from->step_ns;
    out->bound_ns = from->bound_ns;
    out->bound_lane = text(arena, from->bound_lane);
    out->gap = from->bound_ns > 0 ? from->step_ns / from->bound_ns - 1 : 0;
    out->compute_busy_ns = from->lane_busy_ns[MF_LANE_COMPUTE];
    out->h2d_busy_ns = from->lane_busy_ns[MF_LANE_H2D];
    out->d2h_busy_ns = from->lane_busy_ns[MF_LANE_D2H];
    out->cpu_busy_ns = from->lane_busy_ns[MF_LANE_CPU];
    out->stall_ns = from->stall_ns;
    out->device_peak_bytes = from->device_peak_bytes;
    out->host_peak_bytes = from->host_peak_bytes;
    out->n_memory = MF_PURPOSE_COUNT;
    out->memory = mf_arena_alloc(arena, out->n_memory, sizeof(*out->memory));
    for (int i = 0; i < MF_PURPOSE_COUNT; i++) {
        out->memory[i] =
            NEW(arena, Memferry__V1__MemoryByPurpose, MEMFERRY__V1__MEMORY_BY_PURPOSE__INIT);
        out->memory[i]->purpose = text(arena, mf_plan_purpose_name((enum mf_purpose)i));
        out->memory[i]->device_bytes = from->device_purpose_bytes[i];
        out->memory[i]->host_bytes = from->host_purpose_bytes[i];
    }
    out->h2d_bytes = from->h2d_bytes;
    out->d2h_bytes = from->d2h_bytes;
    out->direct_bytes = from->direct_bytes;
    out->task_count = from->task_count;
    out->estimated_tasks = from->estimated_tasks;
    return out;
}

enum mf_status mf_convert_plan(struct mf_service *service, const struct mf_plan *plan,
                               const struct mf_model *model, struct mf_arena *arena,
                               Memferry__V1__Plan **out)
{
    double(*times)[MF_LANE_COUNT] =
        mf_arena_alloc(arena, (size_t)plan->unit_count + 1, sizeof(*times));
    MF_TRY(mf_unit_times_get(service, plan, model, times));
    Memferry__V1__Plan *message = NEW(arena, Memferry__V1__Plan, MEMFERRY__V1__PLAN__INIT);
    struct mf_hardware hardware;
    message->here = mf_tune_machine_of(service, plan->hardware_fingerprint, &hardware, NULL);
    message->hardware_name = text(arena, hardware.devices[0].name);
    message->id = text(arena, plan->id);
    message->model_name = text(arena, plan->model_name);
    message->model_fingerprint = text(arena, plan->model_fingerprint);
    message->hardware_fingerprint = text(arena, plan->hardware_fingerprint);
    message->workload = mf_convert_workload_reply(&plan->workload, arena);
    message->constraints = NEW(arena, Memferry__V1__Constraints, MEMFERRY__V1__CONSTRAINTS__INIT);
    message->constraints->device_memory_bytes = plan->constraints.device_bytes;
    message->constraints->host_memory_bytes = plan->constraints.host_bytes;
    message->constraints->strategy = (Memferry__V1__Strategy)(plan->strategy + 1);
    message->measured = plan->source == MF_PLAN_MEASURED;
    message->created_unix_seconds = plan->created_unix_s;
    message->planner_version = plan->planner_version;
    message->ring_slots = plan->ring_slots;
    message->deferred_blocks = plan->deferred_blocks;
    message->speculate = plan->speculate;
    message->n_units = (size_t)plan->unit_count;
    message->units = mf_arena_alloc(arena, message->n_units + 1, sizeof(*message->units));
    for (int32_t i = 0; i < plan->unit_count; i++) {
        message->units[i] = mf_convert_unit(plan, model, i, times[i], arena);
    }
    message->n_activations = (size_t)plan->block_count;
    message->activations =
        mf_arena_alloc(arena, message->n_activations + 1, sizeof(*message->activations));
    for (int32_t b = 0; b < plan->block_count; b++) {
        message->activations[b] = (Memferry__V1__Activation)(plan->activations[b] + 1);
    }
    message->prediction = convert_prediction(&plan->prediction, arena);
    message->link_emulated = hardware.devices[0].link_emulated;
    *out = message;
    return MF_STATUS_OK;
}
