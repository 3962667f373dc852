/*
 * A plan: one decision for every unit and block, with what it is predicted to cost.
 *
 * What: decisions and numbers only; the step graph is rebuilt from them on use (planner/step.h).
 * Who calls it: planner makes it, db keeps it, runtime executes it, CLI prints it.
 * Owner: the plan owns its arrays: mf_plan_reset. Thread: read-only after it is made.
 * Fails: validation and decoding give MF_STATUS_INVALID naming unit and choice.
 */
#ifndef MF_CORE_PLAN_H
#define MF_CORE_PLAN_H

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

#include "core/kernel.h"
#include "core/model.h"
#include "core/status.h"
#include "core/workload.h"

/* Raised whenever the same decisions would mean another step or other costs. */
#define MF_PLANNER_VERSION 3

#define MF_WEIGHT_FORWARD_MAP(X)                                                                   \
    X(RESIDENT, "resident", "always in device memory")                                             \
    X(STREAM, "stream", "copied ahead in panels through the ring")                                 \
    X(DIRECT, "direct", "read in place from host memory")
#define MF_WEIGHT_BACKWARD_MAP(X)                                                                  \
    X(KEEP, "keep", "the forward's copy stays")                                                    \
    X(STREAM, "stream", "copied again in panels through the ring")                                 \
    X(DIRECT, "direct", "read in place from host memory")                                          \
    X(LATE, "late", "copied whole into device memory in a gap of the link before its backward")
#define MF_GRADIENT_MAP(X)                                                                         \
    X(DEVICE, "device", "stays in device memory until the update")                                 \
    X(COPY, "copy", "device panel, then copied to host memory")                                    \
    X(DIRECT, "direct", "the kernel writes host memory")
#define MF_OPTIMIZER_MAP(X)                                                                        \
    X(CPU, "cpu", "state in host memory, updated by the CPU")                                      \
    X(GPU, "gpu", "state in device memory, updated there")                                         \
    X(GPU_STREAM, "gpu_stream", "state in host memory, passes through device memory")
#define MF_ACTIVATION_MAP(X)                                                                       \
    X(KEEP, "keep", "stay in device memory until the backward")                                    \
    X(RECOMPUTE, "recompute", "only the block's input stays, the rest is computed again")          \
    X(OFFLOAD, "offload", "copied to host memory and back")

#define X(name, text, sentence) MF_WEIGHT_FORWARD_##name,
enum mf_weight_forward { MF_WEIGHT_FORWARD_MAP(X) MF_WEIGHT_FORWARD_COUNT };
#undef X
#define X(name, text, sentence) MF_WEIGHT_BACKWARD_##name,
enum mf_weight_backward { MF_WEIGHT_BACKWARD_MAP(X) MF_WEIGHT_BACKWARD_COUNT };
#undef X
#define X(name, text, sentence) MF_GRADIENT_##name,
enum mf_gradient { MF_GRADIENT_MAP(X) MF_GRADIENT_COUNT };
#undef X
#define X(name, text, sentence) MF_OPTIMIZER_##name,
enum mf_optimizer { MF_OPTIMIZER_MAP(X) MF_OPTIMIZER_COUNT };
#undef X
#define X(name, text, sentence) MF_ACTIVATION_##name,
enum mf_activation { MF_ACTIVATION_MAP(X) MF_ACTIVATION_COUNT };
#undef X

#define MF_WHY_MAX 96

/* Gradient and optimizer of a tied unit are its owner's; a tied unit is resident exactly when its
 * owner is. Everything else is its own. */
struct mf_unit_decision {
    enum mf_weight_forward forward;
    enum mf_weight_backward backward; /* KEEP when forward is RESIDENT */
    enum mf_gradient gradient;
    enum mf_optimizer optimizer;
    bool pinned;          /* the user said so */
    char why[MF_WHY_MAX]; /* for a person: "fits, saves 12.3 ms of link a step" */
};

enum mf_plan_source { MF_PLAN_ESTIMATE, MF_PLAN_MEASURED };

#define MF_STRATEGY_MAP(X)                                                                         \
    X(AUTO, "auto", "the whole plan space, searched")                                              \
    X(RESIDENT, "resident", "no offload")                                                          \
    X(STREAM, "stream", "everything streamed: a well-built native offload")                        \
    X(ZERO_OFFLOAD, "zero_offload", "the schedule of ZeRO-Offload")                                \
    X(MEMFERRY, "memferry", "the MemFerry paper's algorithms")
#define X(name, text, sentence) MF_STRATEGY_##name,
enum mf_strategy { MF_STRATEGY_MAP(X) MF_STRATEGY_COUNT };
#undef X

/* Memory of a plan by purpose, device and host. */
#define MF_PURPOSE_MAP(X)                                                                          \
    X(WEIGHT, "weights")                                                                           \
    X(RING, "weight ring")                                                                         \
    X(GRADIENT, "gradients")                                                                       \
    X(STATE, "optimizer state")                                                                    \
    X(ACTIVATION, "activations")                                                                   \
    X(WORKSPACE, "workspace")
#define X(name, text) MF_PURPOSE_##name,
enum mf_purpose { MF_PURPOSE_MAP(X) MF_PURPOSE_COUNT };
#undef X

struct mf_plan_prediction {
    double step_ns;      /* one optimizer step of `accumulation` micro-batches */
    double bound_ns;     /* no plan under these budgets can be faster */
    char bound_lane[16]; /* what binds it: a lane, or "critical path" */
    double lane_busy_ns[MF_LANE_COUNT];
    double stall_ns;                                /* compute lane idle */
    int64_t device_peak_bytes;                      /* exact: what is reserved */
    int64_t host_peak_bytes;                        /* pinned host memory, exact */
    int64_t device_purpose_bytes[MF_PURPOSE_COUNT]; /* at the moment of the peak */
    int64_t host_purpose_bytes[MF_PURPOSE_COUNT];
    int64_t h2d_bytes, d2h_bytes, direct_bytes; /* over the link, a step */
    int32_t estimated_tasks;                    /* tasks whose cost was not measured */
    int32_t task_count;
};

struct mf_plan {
    char id[MF_HASH_TEXT_MAX]; /* SHA-256 of the decisions and what they are for; "" until sealed */
    char model_fingerprint[MF_HASH_TEXT_MAX];
    char model_name[MF_NAME_MAX];
    char hardware_fingerprint[MF_HASH_TEXT_MAX];
    struct mf_workload workload;
    struct mf_constraints constraints;
    enum mf_strategy strategy;
    enum mf_plan_source source;
    int64_t created_unix_s;
    int32_t planner_version;
    int32_t
        ring_slots; /* panels the weight ring holds, 2..MF_RING_SLOTS_MAX; 0 = nothing streams */
    int32_t deferred_blocks; /* updated in the next step's forward; see mf_plan_defers */
    bool speculate; /* with clipping: the others before the norm is known, undone if it must be */
    int32_t unit_count;
    struct mf_unit_decision *units;
    int32_t block_count;
    enum mf_activation *activations;
    struct mf_plan_prediction prediction;
};

/* Everything resident, kept and on the device: the starting point of every plan. */
void mf_plan_init(const struct mf_model *model, const struct mf_workload *workload,
                  struct mf_plan *out);
void mf_plan_reset(struct mf_plan *plan);
void mf_plan_copy(const struct mf_plan *plan, struct mf_plan *out); /* out: owned by the caller */
/* Combinations that mean something, checked against the model; the rules are in docs/PLANS.md. */
enum mf_status mf_plan_validate(const struct mf_plan *plan,
                                const struct mf_model *model) MF_MUST_USE;
/* Whether `block` is one of the plan's deferred blocks, which are spread evenly over the model: so
 * both the backward and the next forward have updates beside them, and each has time until its
 * block is needed. */
bool mf_plan_defers(const struct mf_plan *plan, int32_t block);
/* Fills `id`. */
void mf_plan_seal(struct mf_plan *plan);
json_t *mf_plan_encode(const struct mf_plan *plan);
enum mf_status mf_plan_decode(const json_t *json, struct mf_plan *out) MF_MUST_USE;

/* The text of each choice, and back (-1 = no such choice). */
const char *mf_plan_forward_name(enum mf_weight_forward choice);
const char *mf_plan_backward_name(enum mf_weight_backward choice);
const char *mf_plan_gradient_name(enum mf_gradient choice);
const char *mf_plan_optimizer_name(enum mf_optimizer choice);
const char *mf_plan_activation_name(enum mf_activation choice);
const char *mf_plan_strategy_name(enum mf_strategy strategy);
const char *mf_plan_purpose_name(enum mf_purpose purpose);
int mf_plan_parse_forward(const char *text);
int mf_plan_parse_backward(const char *text);
int mf_plan_parse_gradient(const char *text);
int mf_plan_parse_optimizer(const char *text);
int mf_plan_parse_activation(const char *text);
int mf_plan_parse_strategy(const char *text);

/* A user's wish for the units whose name matches `pattern` (shell glob); -1 = not said. */
struct mf_pin {
    const char *pattern;
    int forward, backward, gradient, optimizer;
};

#endif
