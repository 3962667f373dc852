/* Every cap of memferry on one page. A full queue or array means MF_STATUS_BUSY or _INVALID with
 * the number; nothing grows without a bound. Sizes are bytes unless the name says otherwise. */
#ifndef MF_CORE_LIMITS_H
#define MF_CORE_LIMITS_H

/* Models */
#define MF_UNITS_MAX 8192 /* weight-bearing operations in one model */
#define MF_BLOCKS_MAX 512 /* transformer layers, plus input and output */
#define MF_OPS_MAX 32768  /* operations in one model */
#define MF_PANELS_PER_UNIT_MAX 4096
/* Measured on an H200: the link is at its peak from 8 MiB on, but a data gradient adds its fp32 sum
 * once a panel: 8 MiB panels made a Llama-3-8B block's backward 1.7 times slower than one panel. */
#define MF_PANEL_BYTES_DEFAULT (32ll << 20)
#define MF_PANEL_BYTES_MIN (1ll << 10)
#define MF_PANEL_BYTES_MAX (1ll << 30)
#define MF_NAME_MAX 128 /* a unit's or tensor's name, with its NUL */
#define MF_DIMENSION_MAX (1ll << 31)
#define MF_CONFIG_FILE_MAX (1ll << 20)
#define MF_SAFETENSORS_HEADER_MAX (100ll << 20) /* the format's own limit */

/* Workloads and steps */
#define MF_MICRO_BATCH_MAX 65536
#define MF_SEQ_LEN_MAX (1 << 20)
#define MF_ACCUMULATION_MAX 4096
#define MF_TASKS_MAX (1 << 22) /* in one step graph */
#define MF_RING_SLOTS_MAX 64
#define MF_PROFILE_ENTRIES_MAX (1 << 18) /* distinct kernels and shapes */

/* Text data */
#define MF_TOKENIZER_FILE_MAX (256ll << 20)
#define MF_TOKENIZER_VOCAB_MAX (1 << 22)
#define MF_TOKENIZER_TOKEN_BYTES_MAX 4096 /* of a vocabulary's text */
#define MF_TOKENIZER_PIECE_MAX (4 << 20)  /* bytes of a word; its merging takes 80 times as much */
#define MF_DOCUMENT_LINE_MAX (64 << 20)   /* bytes of a line of JSONL */

/* Service */
#define MF_SESSIONS_MAX 64
#define MF_SESSION_CALLS_MAX 16 /* calls in flight in one session */
#define MF_CONNECTIONS_MAX 256
#define MF_CALLS_MAX 1024 /* RPCs in flight in the whole daemon */
#define MF_WORKERS 16     /* threads that run RPC handlers; most of them wait */
#define MF_MESSAGE_BYTES_MAX (4ll << 20)
#define MF_STREAM_QUEUE_MAX 64  /* messages waiting for a slow reader of one stream */
#define MF_STATUS_TEXT_MAX 1000 /* of an RPC; the whole trailer block must stay under 8 KiB */
#define MF_SOCKET_PATH_MAX 107  /* sockaddr_un */
#define MF_LEASE_SECONDS_DEFAULT 600
#define MF_DEVICE_JOBS_MAX 256      /* jobs waiting for a device */
#define MF_DEVICE_WHAT_MAX 160      /* what a job does, as text */
#define MF_DEVICE_ATTENTION_MAX 512 /* who computes attention, and why, as text */
#define MF_ROOTS_MAX 32             /* folders that clients may name */
#define MF_CONFIG_SETTINGS_MAX 32
#define MF_PINS_MAX 256              /* of one request */
#define MF_TUNE_SECONDS_MAX 3600     /* measuring for one request */
#define MF_TIMELINE_COLUMNS_MAX 1500 /* parts of a step; the answer must fit a message */
#define MF_TIMELINE_SAMPLES_MAX 500  /* of memory in use */

/* Store */
#define MF_STORE_BLOB_MAX (64ll << 20)

#endif
