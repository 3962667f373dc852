/*
 * libmemferry: memferry from C and C++.
 *
 * What: a connection to the daemon memferryd, plans for models, measuring, training sessions that a
 *   client drives step by step, and whole jobs.
 * Who calls it: training programs and tools. Link with -lmemferry.
 * Owner: what a function gives in `out` is the caller's, freed with the function named there; every
 *   pointer inside it lives as long as it. What is passed in is only read during the call. Strings
 *   are UTF-8.
 * Thread: any function may be called from any thread; one connection or session may be used by many
 *   threads at once. Callbacks run on the thread that made the call. Do not use a connection on
 *   both sides of a fork().
 * Fails: functions that can fail return a status, 0 when they succeeded, and describe the failure
 * in
 *   `*error` when `error` is not NULL. On failure `*out` is NULL or untouched.
 *
 * Numbers: sizes are bytes, durations are nanoseconds where the name ends _ns, milliseconds where
 * it ends _ms. A zero in a request means the default that is named there. Structs of requests must
 * be zeroed first (struct memferry_workload w = {0}), so that fields of a later version keep their
 * default. Versions with the same MEMFERRY_VERSION_MAJOR (while it is 0: and MINOR) are compatible.
 *
 *     struct memferry_connection *connection = NULL;
 *     struct memferry_error error;
 *     if (memferry_open(NULL, &connection, &error) != MEMFERRY_OK) {
 *         fprintf(stderr, "%s\n", error.text);
 *     }
 */
#ifndef MEMFERRY_H
#define MEMFERRY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define MEMFERRY_VERSION_MAJOR 0
#define MEMFERRY_VERSION_MINOR 1
#define MEMFERRY_VERSION_PATCH 0

/* "0.1.0": of the library that is loaded, which may differ from the header's. */
const char *memferry_version(void);

/* ---- Errors ---- */

enum memferry_status {
    MEMFERRY_OK = 0,
    MEMFERRY_INVALID,          /* the input is not acceptable */
    MEMFERRY_NOT_FOUND,        /* no such plan, session, folder */
    MEMFERRY_EXISTS,           /* it is there already */
    MEMFERRY_UNSUPPORTED,      /* not supported here */
    MEMFERRY_NO_MEMORY,        /* not enough host memory */
    MEMFERRY_NO_DEVICE_MEMORY, /* not enough device memory */
    MEMFERRY_DEVICE,           /* the device failed */
    MEMFERRY_IO,               /* reading or writing failed */
    MEMFERRY_BUSY,             /* the daemon is full at the moment */
    MEMFERRY_DEADLINE,         /* the time was up */
    MEMFERRY_CANCELLED,        /* cancelled, also by a callback */
    MEMFERRY_DENIED,           /* not allowed */
    MEMFERRY_UNAVAILABLE,      /* no daemon answers */
    MEMFERRY_CORRUPT,          /* the data or an answer is damaged */
    MEMFERRY_INTERNAL          /* a fault in memferry */
};

struct memferry_number {
    char name[32]; /* unit last: "needed_bytes", "smallest_bytes" */
    int64_t value;
};

struct memferry_error {
    enum memferry_status status;
    char reason[48]; /* stable, for programs: "DEVICE_MEMORY_TOO_SMALL"; "" = none */
    char text[1000]; /* for people: cause and way out */
    size_t number_count;
    struct memferry_number numbers[4];
};

/* "NO_DEVICE_MEMORY". Never NULL. */
const char *memferry_status_name(enum memferry_status status);

/* ---- Connection ---- */

struct memferry_connection; /* opaque; memferry_close() */

/* `address`: "unix:/path" or "host:port"; NULL = $MEMFERRY_HOST, else the user's socket, else the
 * system's. Asks the daemon for its status, so success means that it answers. */
enum memferry_status memferry_open(const char *address, struct memferry_connection **out,
                                   struct memferry_error *error);
/* No other call of the connection may be running or follow; free its sessions first. NULL is
 * nothing. */
void memferry_close(struct memferry_connection *connection);

/* Any unary method of the contract (proto/memferry/v1) as JSON, for all that has no function here:
 * memferry_query(c, "HardwareService/GetStatus", NULL, ...). Keys are the field names of the .proto
 * files, enumerators their short lower-case form ("stream"). `request` NULL = {}. `*out` is the
 * answer's text: memferry_text_free(). */
enum memferry_status memferry_query(struct memferry_connection *connection, const char *method,
                                    const char *request, char **out, struct memferry_error *error);
void memferry_text_free(char *text);

/* ---- Models, workloads, budgets ---- */

enum memferry_strategy {
    MEMFERRY_STRATEGY_AUTO = 0,
    MEMFERRY_STRATEGY_RESIDENT = 2, /* no offload */
    MEMFERRY_STRATEGY_STREAM = 3,   /* a well-built native offload */
    MEMFERRY_STRATEGY_ZERO_OFFLOAD = 4,
    MEMFERRY_STRATEGY_MEMFERRY = 5 /* the MemFerry paper */
};

enum memferry_effort {
    MEMFERRY_EFFORT_DEFAULT = 0,  /* MEASURE */
    MEMFERRY_EFFORT_CACHED = 1,   /* from the store or NOT_FOUND */
    MEMFERRY_EFFORT_ESTIMATE = 2, /* uses no device */
    MEMFERRY_EFFORT_MEASURE = 3   /* what is not yet measured is measured first */
};

enum memferry_forward {
    MEMFERRY_FORWARD_ANY = 0,
    MEMFERRY_FORWARD_RESIDENT = 1, /* always in device memory */
    MEMFERRY_FORWARD_STREAM = 2,   /* copied ahead in panels through a ring */
    MEMFERRY_FORWARD_DIRECT = 3    /* the kernel reads mapped host memory */
};

enum memferry_backward {
    MEMFERRY_BACKWARD_ANY = 0,
    MEMFERRY_BACKWARD_KEEP = 1, /* the forward's copy stays */
    MEMFERRY_BACKWARD_STREAM = 2,
    MEMFERRY_BACKWARD_DIRECT = 3,
    MEMFERRY_BACKWARD_LATE = 4 /* direct in the forward, copied before its backward */
};

enum memferry_gradient {
    MEMFERRY_GRADIENT_ANY = 0,
    MEMFERRY_GRADIENT_DEVICE = 1, /* stays in device memory until the update */
    MEMFERRY_GRADIENT_COPY = 2,   /* device panel, then copied to host memory */
    MEMFERRY_GRADIENT_DIRECT = 3  /* the kernel writes mapped host memory */
};

enum memferry_optimizer {
    MEMFERRY_OPTIMIZER_ANY = 0,
    MEMFERRY_OPTIMIZER_CPU = 1,
    MEMFERRY_OPTIMIZER_GPU = 2,
    MEMFERRY_OPTIMIZER_GPU_STREAM = 3
};

enum memferry_activation {
    MEMFERRY_ACTIVATION_KEEP = 1,
    MEMFERRY_ACTIVATION_RECOMPUTE = 2,
    MEMFERRY_ACTIVATION_OFFLOAD = 3
};

/* One weight-bearing operation of a model that the client runs itself: y = x W^T (+ bias). */
struct memferry_unit_shape {
    const char *name; /* unique */
    int32_t block;    /* from 0, never falling from unit to unit */
    int64_t rows;     /* output features */
    int64_t columns;  /* input features */
    bool bias;
};

/* Exactly one of the four. */
struct memferry_model {
    const char *folder;      /* Hugging Face folder on the daemon's machine, absolute */
    const char *preset;      /* "gpt2": shapes only */
    const char *config_json; /* the text of a config.json: shapes only */
    const struct memferry_unit_shape *units; /* can be planned, not trained */
    size_t unit_count;
};

struct memferry_workload {
    int32_t micro_batch;  /* sequences in one forward and backward; 0 = 1 */
    int32_t seq_len;      /* tokens in one sequence; 0 = the model's limit, at most 1024 */
    int32_t accumulation; /* micro-batches in one optimizer step at most; 0 = 1 */
    bool no_clip;         /* the update need not wait for the gradient's norm */
};

/* A wish for all units whose name matches. */
struct memferry_pin {
    const char *pattern; /* shell glob */
    enum memferry_forward forward;
    enum memferry_backward backward;
    enum memferry_gradient gradient;
    enum memferry_optimizer optimizer;
};

struct memferry_constraints {
    int64_t device_memory_bytes; /* 0 = all there is */
    int64_t host_memory_bytes;   /* 0 = all there is */
    enum memferry_strategy strategy;
    const struct memferry_pin *pins; /* at most 256 */
    size_t pin_count;
};

/* ---- Plans ---- */

struct memferry_unit_plan {
    const char *name;
    const char *kind; /* "embedding", "linear", "norm", "head", "position" */
    int32_t block;
    int64_t rows;
    int64_t columns;
    int64_t params; /* 0 when tied to another unit */
    int64_t weight_bytes;
    enum memferry_forward forward;
    enum memferry_backward backward;
    enum memferry_gradient gradient;
    enum memferry_optimizer optimizer;
    bool pinned;
    const char *why;     /* for people */
    const char *tied_to; /* "" or the unit that owns the parameters */
    double compute_ns;   /* predicted busy time of each lane in one optimizer step */
    double h2d_ns;
    double d2h_ns;
    double cpu_ns;
};

struct memferry_plan {
    const char *id; /* 64 hex digits */
    const char *model_name;
    const char *how;    /* "cached", "estimated", "measured"; "" when it was only shown */
    const char *miss;   /* why it was not in the store; "" for a hit */
    bool measured;      /* false: from the hardware's rates */
    bool link_emulated; /* the link's rate is emulated: so are the predictions */
    struct memferry_workload workload;
    enum memferry_strategy strategy;
    int64_t device_memory_bytes; /* the budgets; 0 = all there is */
    int64_t host_memory_bytes;
    double step_ns;            /* predicted, one optimizer step */
    double bound_ns;           /* no plan under these budgets can be faster */
    const char *bound_lane;    /* what binds it */
    double stall_ns;           /* compute waits */
    int64_t device_peak_bytes; /* exact */
    int64_t host_peak_bytes;
    int64_t h2d_bytes; /* over the link in one step */
    int64_t d2h_bytes;
    int64_t direct_bytes;
    int32_t ring_slots;
    int32_t deferred_blocks; /* so many, spread evenly, are updated in the next step's forward */
    bool speculate; /* the others before the norm is known, and again where it is too large */
    size_t unit_count;
    const struct memferry_unit_plan *units; /* in the order of the forward */
    size_t block_count;
    const enum memferry_activation *activations; /* of each block */
};

/* The plan for a model under a budget. `workload` and `constraints` may be NULL: all defaults. Does
 * not fit: MEMFERRY_NO_DEVICE_MEMORY or MEMFERRY_NO_MEMORY with reason DEVICE_MEMORY_TOO_SMALL or
 * HOST_MEMORY_TOO_SMALL and the number smallest_bytes. Blocks while measuring: memferry_measure()
 * first shows progress. Free with memferry_plan_free(). */
enum memferry_status memferry_plan_get(struct memferry_connection *connection,
                                       const struct memferry_model *model,
                                       const struct memferry_workload *workload,
                                       const struct memferry_constraints *constraints,
                                       enum memferry_effort effort, struct memferry_plan **out,
                                       struct memferry_error *error);
/* A plan of the store by its id or a unique prefix of at least 6 digits. */
enum memferry_status memferry_plan_show(struct memferry_connection *connection, const char *id,
                                        struct memferry_plan **out, struct memferry_error *error);
void memferry_plan_free(struct memferry_plan *plan);

/* ---- Measuring ---- */

/* `what` says what is done, `done` how much of this stage, 0..1. Returning false cancels the call,
 * which then fails with MEMFERRY_CANCELLED. */
typedef bool memferry_progress(void *context, const char *what, double done);

struct memferry_measure_options {
    double seconds_max; /* 0 = 60; what is left is estimated */
    bool again;         /* measure also what is known */
};

/* Measures what is not yet known of every choice for this model. Cancelling keeps what was
 * measured. `options`, `workload` and `progress` may be NULL; `profile_json`, when not NULL, gets
 * the Profile message as JSON: memferry_text_free(). */
enum memferry_status memferry_measure(struct memferry_connection *connection,
                                      const struct memferry_model *model,
                                      const struct memferry_workload *workload,
                                      const struct memferry_measure_options *options,
                                      memferry_progress *progress, void *context,
                                      char **profile_json, struct memferry_error *error);

/* ---- Sessions: training step by step ---- */

/* Calls of a session are carried out in the order of their sequence number, from 1 on. Each verb
 * takes `seq_id`: 0 numbers the call by the order in which it was made, which is what one wants;
 * several threads may have calls in flight (16 at most), each takes the next number as it starts.
 * A call that fails because the daemon cannot be reached is sent again with its number, which
 * never carries it out twice. A number of one's own is sent as it is, once. Mixing both in one
 * session is not supported. */
struct memferry_session; /* opaque; memferry_session_free() */

struct memferry_session_options {
    struct memferry_model model;
    struct memferry_workload workload;
    struct memferry_constraints constraints;
    enum memferry_effort effort;
    const char *plan_id;  /* use this plan; NULL = make one */
    uint64_t seed;        /* of the random initialisation */
    bool random_init;     /* initialise even though the folder has weights */
    double lease_seconds; /* without any call the session ends after this, 10..86400; 0 = 600 */
};

struct memferry_session_info {
    char id[64];
    char model_name[128];
    char plan_id[65];
    char state[16]; /* "ready", "running", "closed", "failed", "lost", "finished", "stopped" */
    char error[1000];
    char run_folder[4096]; /* of a job */
    int64_t step;          /* optimizer steps done */
    int64_t steps_total;   /* of a job; 0 = not a job */
    int64_t next_seq_id;   /* the first that was not yet carried out */
    int64_t params;
    int64_t vocab;
    struct memferry_workload workload;
    int64_t device_bytes;
    int64_t host_bytes;
    double loss; /* of the last step */
    double tokens_per_second;
    double step_ms;
    double predicted_step_ms;
    double lease_left_seconds; /* < 0: a job */
};

/* One micro-batch: workload.micro_batch sequences of workload.seq_len tokens, one after another. */
struct memferry_batch {
    const int32_t *tokens; /* 0..vocab-1 */
    const int32_t *labels; /* the target at each position, already shifted; -100 = ignored */
    size_t count;          /* of both */
};

struct memferry_loss {
    double loss_sum;     /* of -log p over the counted tokens */
    int64_t token_count; /* labels that are not -100 */
    double loss;         /* loss_sum / token_count */
};

struct memferry_adam {
    double learning_rate;
    double beta1, beta2; /* both 0 = 0.9 and 0.999 */
    double eps;          /* 0 = 1e-8 */
    double weight_decay; /* matrices only */
    double clip_norm;    /* 0 = do not clip */
    bool update_nonfinite;
};

struct memferry_step {
    int64_t step;     /* optimizer steps done */
    double grad_norm; /* of the mean gradient, before clipping */
    bool skipped;     /* nothing was changed: the norm was not finite, or no token counted */
    int64_t token_count;
    double loss; /* mean over them */
    double elapsed_ms;
};

struct memferry_sample_options {
    int32_t max_tokens; /* 1..4096 */
    double temperature; /* 0 = greedy */
    int32_t top_k;      /* 0 = all */
    uint64_t seed;
};

/* Plans, reserves all memory, loads or initialises the weights. `progress` may be NULL. */
enum memferry_status memferry_session_create(struct memferry_connection *connection,
                                             const struct memferry_session_options *options,
                                             memferry_progress *progress, void *context,
                                             struct memferry_session **out,
                                             struct memferry_error *error);
/* Goes on with a session that another connection or process made; nobody else may drive it. */
enum memferry_status memferry_session_attach(struct memferry_connection *connection, const char *id,
                                             struct memferry_session **out,
                                             struct memferry_error *error);
/* Frees the handle only: the session lives on until its lease ends. No call may be running. NULL is
 * nothing. */
void memferry_session_free(struct memferry_session *session);
/* Ends the session and frees its memory in the daemon; the handle must still be freed. Calls in
 * flight end with MEMFERRY_CANCELLED. */
enum memferry_status memferry_session_close(struct memferry_session *session,
                                            struct memferry_error *error);
/* Borrowed from the handle. */
const char *memferry_session_id(const struct memferry_session *session);
/* State, step and memory; renews the lease. */
enum memferry_status memferry_session_get(struct memferry_session *session,
                                          struct memferry_session_info *out,
                                          struct memferry_error *error);
/* Sessions and jobs; `past` also those that ended. `*out` is an array of `*count`, freed with
 * memferry_session_list_free(). */
enum memferry_status memferry_session_list(struct memferry_connection *connection, bool past,
                                           struct memferry_session_info **out, size_t *count,
                                           struct memferry_error *error);
void memferry_session_list_free(struct memferry_session_info *list);

/* Forward and backward of one micro-batch, whose gradients are added to those since the last
 * memferry_optim_step(). */
enum memferry_status memferry_forward_backward(struct memferry_session *session, int64_t seq_id,
                                               const struct memferry_batch *batch,
                                               struct memferry_loss *out,
                                               struct memferry_error *error);
/* One AdamW update with the mean gradient over all counted tokens. Made from another thread while
 * the last memferry_forward_backward() runs, it starts during that backward where it can. */
enum memferry_status memferry_optim_step(struct memferry_session *session, int64_t seq_id,
                                         const struct memferry_adam *adam,
                                         struct memferry_step *out, struct memferry_error *error);
/* Forward only. `logprobs`, when not NULL, has room for batch->count values: of each label, 0 where
 * ignored. */
enum memferry_status memferry_forward(struct memferry_session *session, int64_t seq_id,
                                      const struct memferry_batch *batch, struct memferry_loss *out,
                                      float *logprobs, struct memferry_error *error);
/* Continues a prompt of `prompt_count` tokens. `tokens` has room for options->max_tokens; `*count`
 * gets how many were written. */
enum memferry_status memferry_sample(struct memferry_session *session, int64_t seq_id,
                                     const int32_t *prompt, size_t prompt_count,
                                     const struct memferry_sample_options *options, int32_t *tokens,
                                     size_t *count, struct memferry_error *error);
/* Writes a Hugging Face folder, with the optimizer's state unless `weights_only`. `path` is
 * absolute, on the daemon's machine, and must not exist. */
enum memferry_status memferry_save(struct memferry_session *session, int64_t seq_id,
                                   const char *path, bool weights_only,
                                   struct memferry_error *error);
/* Replaces weights, and the optimizer's state where the folder has it. `step` gets the optimizer
 * steps done, may be NULL. */
enum memferry_status memferry_load(struct memferry_session *session, int64_t seq_id,
                                   const char *path, int64_t *step, struct memferry_error *error);

/* ---- Jobs: a whole training run in the daemon ---- */

enum memferry_event_kind {
    MEMFERRY_EVENT_PROGRESS = 1, /* text, done */
    MEMFERRY_EVENT_SESSION,      /* session: memory is reserved, the job has begun */
    MEMFERRY_EVENT_PLAN,         /* text: the plan's id */
    MEMFERRY_EVENT_STEP,         /* step */
    MEMFERRY_EVENT_CHECKPOINT,   /* text: the folder of a completed checkpoint */
    MEMFERRY_EVENT_SAMPLE,       /* text: what the model wrote */
    MEMFERRY_EVENT_FINISHED,     /* session: last */
    MEMFERRY_EVENT_WARNING       /* text: something went wrong that the job survives */
};

struct memferry_step_report {
    int64_t step;
    int64_t steps_total;
    double epoch;
    double loss;
    double grad_norm;
    double learning_rate;
    double step_ms;
    double predicted_step_ms;
    double tokens_per_second;
    double stall; /* share of the step in which compute waited; 0 = not traced */
    bool skipped;
    double validation_loss; /* 0 = not evaluated at this step */
};

/* Lives during the callback only. */
struct memferry_event {
    enum memferry_event_kind kind;
    const char *text;                            /* "" where it is not named above */
    double done;                                 /* 0..1 */
    const struct memferry_session_info *session; /* NULL where it is not named above */
    const struct memferry_step_report *step;     /* NULL where it is not named above */
};

/* Returning false stops listening, not the job: the call then succeeds. */
typedef bool memferry_event_callback(void *context, const struct memferry_event *event);

/* Starts a job and reports it until it has ended or the callback returns false. `config_json`: the
 * run config (docs/RUNS.md); relative paths in it start at `base_folder`, which is absolute;
 * `resume`: NULL, "latest", or a checkpoint folder. A job that failed is MEMFERRY_INTERNAL with its
 * text, one that was stopped MEMFERRY_CANCELLED; both after MEMFERRY_EVENT_FINISHED. */
enum memferry_status memferry_run(struct memferry_connection *connection, const char *config_json,
                                  const char *base_folder, const char *resume,
                                  memferry_event_callback *callback, void *context,
                                  struct memferry_error *error);
/* Attaches to a job. Otherwise as memferry_run(). */
enum memferry_status memferry_watch(struct memferry_connection *connection, const char *session_id,
                                    memferry_event_callback *callback, void *context,
                                    struct memferry_error *error);
/* Ends a job after its present step, saving a checkpoint unless `discard`. */
enum memferry_status memferry_run_stop(struct memferry_connection *connection,
                                       const char *session_id, bool discard,
                                       struct memferry_error *error);

#ifdef __cplusplus
}
#endif

#endif
