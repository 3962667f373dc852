/*
 * The fields of a plan in JSON, each once for both directions: see plan_encode.c, plan_decode.c.
 *
 * Who calls it: those two. Owner, thread: constant text. Fails: no.
 */
#ifndef MF_CORE_PLAN_FIELDS_H
#define MF_CORE_PLAN_FIELDS_H

/* X(kind, key, low, high); low and high of numbers only. */
#define MF_PLAN_FIELDS_PREDICTION(X)                                                               \
    X(number, step_ns, 0, 1e300)                                                                   \
    X(number, bound_ns, 0, 1e300)                                                                  \
    X(text, bound_lane, 0, 0)                                                                      \
    X(number, stall_ns, 0, 1e300)                                                                  \
    X(int64, device_peak_bytes, 0, INT64_MAX)                                                      \
    X(int64, host_peak_bytes, 0, INT64_MAX)                                                        \
    X(int64, h2d_bytes, 0, INT64_MAX)                                                              \
    X(int64, d2h_bytes, 0, INT64_MAX)                                                              \
    X(int64, direct_bytes, 0, INT64_MAX)                                                           \
    X(int32, estimated_tasks, 0, INT32_MAX)                                                        \
    X(int32, task_count, 0, INT32_MAX)

#define MF_PLAN_FIELDS_WORKLOAD(X)                                                                 \
    X(int32, micro_batch, 1, MF_MICRO_BATCH_MAX)                                                   \
    X(int32, seq_len, 1, MF_SEQ_LEN_MAX)                                                           \
    X(int32, accumulation, 1, MF_ACCUMULATION_MAX)                                                 \
    X(flag, clip, 0, 0)

#define MF_PLAN_FIELDS_CONSTRAINTS(X)                                                              \
    X(int64, device_bytes, 0, INT64_MAX)                                                           \
    X(int64, host_bytes, 0, INT64_MAX)

#define MF_PLAN_FIELDS_PLAN(X)                                                                     \
    X(text, id, 0, 0)                                                                              \
    X(text, model_fingerprint, 0, 0)                                                               \
    X(text, model_name, 0, 0)                                                                      \
    X(text, hardware_fingerprint, 0, 0)                                                            \
    X(int64, created_unix_s, 0, INT64_MAX)                                                         \
    X(int32, planner_version, 0, INT32_MAX)                                                        \
    X(int32, ring_slots, 0, MF_RING_SLOTS_MAX)                                                     \
    X(int32, deferred_blocks, 0, INT32_MAX)                                                        \
    X(flag, speculate, 0, 0)

/* X(key): objects, lists and choices by name. */
#define MF_PLAN_FIELDS_REST(X)                                                                     \
    X(workload)                                                                                    \
    X(constraints)                                                                                 \
    X(strategy)                                                                                    \
    X(source)                                                                                      \
    X(units)                                                                                       \
    X(activations)                                                                                 \
    X(prediction)

/* A unit is a list in this order. */
enum {
    MF_PLAN_FIELD_FORWARD,
    MF_PLAN_FIELD_BACKWARD,
    MF_PLAN_FIELD_GRADIENT,
    MF_PLAN_FIELD_OPTIMIZER,
    MF_PLAN_FIELD_PINNED,
    MF_PLAN_FIELD_WHY,
    MF_PLAN_FIELD_COUNT
};

#define MF_PLAN_FIELDS_SOURCE_ESTIMATE "estimate"
#define MF_PLAN_FIELDS_SOURCE_MEASURED "measured"

#endif
