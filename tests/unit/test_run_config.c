/* Run configs: meaning, defaults, DeepSpeed's rules, refusals, and the way back to JSON. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "harness.h"
#include "server/run_config.h"

#define BLOCK "\"model\": \"gpt2\", \"data\": {\"text\": \"a.txt\"}, \"steps\": 50"

/* A config of `top` keys and `more` keys in the memferry block, both with a comma in front. */
static const char *config_text(const char *top, const char *more)
{
    static char text[8192];
    int count = snprintf(text, sizeof(text), "{\"memferry\": {" BLOCK "%s}%s}", more, top);
    assert_in_range(count, 1, sizeof(text) - 1);
    return text;
}

static void read_ok(const char *text, struct mf_run_config *out)
{
    mf_run_config_init(out);
    assert_ok(mf_run_config_read(text, "/base", "/home/m", out));
}

static void refuse(const char *text, enum mf_status status, const char *fragment)
{
    struct mf_run_config config;
    mf_run_config_init(&config);
    assert_fails(mf_run_config_read(text, "/base", "/home/m", &config), status, fragment);
    mf_run_config_reset(&config);
}

static void refuse_top(const char *top, const char *fragment)
{
    refuse(config_text(top, ""), MF_STATUS_INVALID, fragment);
}

static void refuse_block(const char *more, const char *fragment)
{
    refuse(config_text("", more), MF_STATUS_INVALID, fragment);
}

static void unsupported(const char *top, const char *fragment)
{
    refuse(config_text(top, ""), MF_STATUS_UNSUPPORTED, fragment);
}

static const char *reason(const struct mf_run_config *config, const char *key)
{
    for (int32_t i = 0; i < config->reason_count; i++) {
        if (strcmp(config->reasons[i].key, key) == 0) {
            return config->reasons[i].text;
        }
    }
    return "";
}

static void defaults(void **state)
{
    (void)state;
    struct mf_run_config config;
    read_ok(config_text("", ""), &config);
    assert_int_equal(config.model_kind, MF_RUN_MODEL_PRESET);
    assert_string_equal(config.model, "gpt2");
    assert_true(config.random_init);
    assert_string_equal(config.data_paths[0], "/base/a.txt");
    assert_int_equal(config.data_format, MF_TOKENS_FORMAT_BYTES);
    assert_true(config.shuffle);
    assert_int_equal(config.seed, 1);
    assert_int_equal(config.data_seed, 1);
    assert_int_equal(config.workload.micro_batch, 1);
    assert_int_equal(config.workload.accumulation, 1);
    assert_int_equal(config.workload.seq_len, 0);
    assert_true(config.workload.clip); /* to skip what is not finite */
    assert_near(config.adam.learning_rate, 1e-3, 0, 0);
    assert_near(config.adam.beta2, 0.999, 0, 0);
    assert_near(config.adam.weight_decay, 0, 0, 0);
    assert_near(config.adam.clip_norm, 0, 0, 0);
    assert_int_equal(config.schedule.kind, MF_SCHEDULE_CONSTANT);
    assert_int_equal(config.skipped_max, 20);
    assert_int_equal(config.sample_tokens, 0);
    assert_string_equal(config.final_name, "final");
    assert_non_null(strstr(config.output, "/home/m/runs/"));
    assert_non_null(strstr(config.output, "-gpt2"));
    assert_int_equal(config.warning_count, 0);
    assert_string_equal(reason(&config, "memferry.data.seed"), "memferry.seed");
    mf_run_config_reset(&config);
}

static void everything_said(void **state)
{
    (void)state;
    struct mf_run_config config;
    read_ok("{\"train_batch_size\": 48, \"gradient_accumulation_steps\": 4,"
            " \"gradient_clipping\": 0.5, \"steps_per_print\": 5, \"bf16\": {\"enabled\": true},"
            " \"optimizer\": {\"type\": \"adam\", \"params\": {\"lr\": 3e-4, \"betas\": [0.8, 0.9],"
            "   \"eps\": 1e-6, \"weight_decay\": 0.1}},"
            " \"memferry\": {\"config_version\": 1, \"model\": \"./m/\", \"init\": \"weights\","
            "  \"seed\": 7, \"data\": {\"tokens\": [\"t/1.bin\", \"/abs/2.bin\"],"
            "    \"format\": \"raw_u16\", \"validation\": \"v.bin\", \"shuffle\": false,"
            "    \"seed\": 9},"
            "  \"seq_len\": 128, \"epochs\": 1.5, \"device_memory\": \"20GiB\","
            "  \"host_memory\": 1000000000, \"strategy\": \"stream\", \"effort\": \"estimate\","
            "  \"plan\": \"abcdef0\", \"placement\": {\"h.*.mlp*\": {\"forward\": \"direct\","
            "    \"gradient\": \"copy\"}}, \"output\": \"out\", \"save_steps\": 10,"
            "  \"save_total_limit\": 0, \"logging_steps\": 2, \"eval_steps\": 20,"
            "  \"eval_batches\": 3, \"skip_nonfinite\": false, \"skipped_max\": 5, \"final\": \"\","
            "  \"schedule\": {\"type\": \"wsd\", \"warmup_steps\": 5, \"decay_steps\": 10,"
            "    \"min_ratio\": 0.1}}}",
            &config);
    assert_int_equal(config.model_kind, MF_RUN_MODEL_FOLDER);
    assert_string_equal(config.model, "/base/m");
    assert_false(config.random_init);
    assert_int_equal(config.workload.micro_batch, 12);
    assert_int_equal(config.workload.accumulation, 4);
    assert_int_equal(config.workload.seq_len, 128);
    assert_true(config.workload.clip);
    assert_false(config.adam.skip_nonfinite);
    assert_near(config.adam.clip_norm, 0.5, 0, 0);
    assert_near(config.adam.beta1, 0.8, 0, 0);
    assert_int_equal(config.data_path_count, 2);
    assert_string_equal(config.data_paths[0], "/base/t/1.bin");
    assert_string_equal(config.data_paths[1], "/abs/2.bin");
    assert_int_equal(config.data_format, MF_TOKENS_FORMAT_RAW_U16);
    assert_string_equal(config.validation_paths[0], "/base/v.bin");
    assert_false(config.shuffle);
    assert_int_equal(config.data_seed, 9);
    assert_int_equal(config.steps, 0);
    assert_near(config.epochs, 1.5, 0, 0);
    assert_true(config.constraints.device_bytes == 20ll << 30);
    assert_int_equal(config.constraints.host_bytes, 1000000000);
    assert_int_equal(config.strategy, MF_STRATEGY_STREAM);
    assert_int_equal(config.effort, MF_EFFORT_ESTIMATE);
    assert_string_equal(config.plan_id, "abcdef0");
    assert_int_equal(config.pin_count, 1);
    assert_string_equal(config.pins[0].pattern, "h.*.mlp*");
    assert_int_equal(config.pins[0].forward, MF_WEIGHT_FORWARD_DIRECT);
    assert_int_equal(config.pins[0].backward, -1);
    assert_int_equal(config.pins[0].gradient, MF_GRADIENT_COPY);
    assert_string_equal(config.output, "/base/out");
    assert_string_equal(config.final_name, "");
    assert_int_equal(config.schedule.kind, MF_SCHEDULE_WSD);
    assert_int_equal(config.schedule.total_steps, 0); /* only the data tells */
    assert_near(config.schedule.floor, 0.1, 0, 0);
    mf_run_config_reset(&config);
}

static void batch_sizes(void **state)
{
    (void)state;
    static const struct {
        const char *top;
        int32_t micro, accumulation;
    } good[] = {
        {", \"train_batch_size\": 16", 16, 1},
        {", \"train_micro_batch_size_per_gpu\": 4", 4, 1},
        {", \"gradient_accumulation_steps\": 4", 1, 4},
        {", \"train_batch_size\": 16, \"train_micro_batch_size_per_gpu\": 8", 8, 2},
        {", \"train_batch_size\": 16, \"gradient_accumulation_steps\": 8", 2, 8},
        {", \"train_micro_batch_size_per_gpu\": 3, \"gradient_accumulation_steps\": 5", 3, 5},
        {", \"train_batch_size\": 6, \"train_micro_batch_size_per_gpu\": 3, "
         "\"gradient_accumulation_steps\": 2",
         3, 2},
        {", \"train_batch_size\": \"auto\", \"train_micro_batch_size_per_gpu\": \"auto\", "
         "\"gradient_accumulation_steps\": 2",
         1, 2},
    };
    for (size_t i = 0; i < sizeof(good) / sizeof(good[0]); i++) {
        struct mf_run_config config;
        read_ok(config_text(good[i].top, ""), &config);
        assert_int_equal(config.workload.micro_batch, good[i].micro);
        assert_int_equal(config.workload.accumulation, good[i].accumulation);
        mf_run_config_reset(&config);
    }
    refuse_top(", \"train_batch_size\": 16, \"train_micro_batch_size_per_gpu\": 6",
               "16 is no multiple of train_micro_batch_size_per_gpu 6");
    refuse_top(", \"train_batch_size\": 16, \"gradient_accumulation_steps\": 32",
               "16 is no multiple of gradient_accumulation_steps 32");
    refuse_top(", \"train_batch_size\": 16, \"train_micro_batch_size_per_gpu\": 4, "
               "\"gradient_accumulation_steps\": 2",
               "which is 8");
    refuse_top(", \"train_batch_size\": 100000", "micro-batches of 100000 (at most 65536)");
    refuse_top(", \"train_batch_size\": 100000, \"train_micro_batch_size_per_gpu\": 1",
               "100000 of them a step (at most 4096)");
    refuse_top(", \"train_batch_size\": 0", "from 1");
    refuse_top(", \"train_batch_size\": 1e300", "from 1");
    refuse_top(", \"train_batch_size\": \"many\"", "whole number");
}

static void precision(void **state)
{
    (void)state;
    unsupported(", \"fp16\": {\"enabled\": true, \"loss_scale\": 0}", "fp16.enabled is true");
    unsupported(", \"bf16\": {\"enabled\": false}", "bf16.enabled is false");
    refuse_top(", \"bf16\": {\"enable\": true}", "did you mean \"enabled\"");
    refuse_top(", \"bf16\": true", "must be an object");
    struct mf_run_config config;
    read_ok(config_text(", \"bf16\": {\"enabled\": \"auto\"}, \"fp16\": {\"enabled\": false, "
                        "\"loss_scale\": 0, \"hysteresis\": 2}",
                        ""),
            &config);
    mf_run_config_reset(&config);
}

#define OPTIMIZER(type, params)                                                                    \
    ", \"optimizer\": {\"type\": \"" type "\", \"params\": {" params "}}"

static void optimizers(void **state)
{
    (void)state;
    struct mf_run_config config;
    read_ok(
        config_text(
            OPTIMIZER("AdamW",
                      "\"lr\": \"auto\", \"betas\": \"auto\", \"eps\": "
                      "\"auto\", \"weight_decay\": \"auto\"") ", \"gradient_clipping\": \"auto\"",
            ""),
        &config);
    assert_near(config.adam.learning_rate, 5e-5, 0, 0);
    assert_near(config.adam.clip_norm, 1, 0, 0);
    mf_run_config_reset(&config);
    unsupported(OPTIMIZER("Lamb", ""), "Adam or AdamW, found \"Lamb\"");
    unsupported(OPTIMIZER("Adam", "\"weight_decay\": 0.1, \"adam_w_mode\": false"), "L2");
    unsupported(OPTIMIZER("Adam", "\"amsgrad\": true"), "amsgrad");
    refuse_top(OPTIMIZER("Adam", "\"lr\": -1"), "(the highest learning rate)");
    refuse_top(OPTIMIZER("Adam", "\"learning_rate\": 1"), "unknown key \"learning_rate\"");
    refuse_top(OPTIMIZER("Adam", "\"betas\": [0.9]"), "two numbers");
    refuse_top(OPTIMIZER("Adam", "\"betas\": [0.9, 1]"), "below 1");
    refuse_top(OPTIMIZER("Adam", "\"betas\": {\"0\": 1}"), "two numbers");
    refuse_top(OPTIMIZER("Adam", "\"eps\": 0"), "eps");
    refuse_top(", \"optimizer\": {\"params\": {}}", "\"type\" is missing");
    refuse_top(", \"gradient_clipping\": -0.5", "(global norm; 0 = off)");
}

#define SCHEDULER(type, params)                                                                    \
    ", \"scheduler\": {\"type\": \"" type "\", \"params\": {" params "}}"

static void deepspeed_schedulers(void **state)
{
    (void)state;
    struct mf_run_config config;
    read_ok(config_text(OPTIMIZER("Adam", "\"lr\": 0.5")
                            SCHEDULER("WarmupDecayLR", "\"warmup_min_lr\": 1e-4, "
                                                       "\"warmup_max_lr\": 1e-2, "
                                                       "\"warmup_num_steps\": 10, "
                                                       "\"total_num_steps\": 50"),
                        ""),
            &config);
    assert_near(mf_schedule_lr(&config.schedule, 0), 1e-4, 1e-18, 0);
    assert_near(mf_schedule_lr(&config.schedule, 10), 1e-2, 0, 0);
    assert_near(mf_schedule_lr(&config.schedule, 30), 0.0101 / 2, 0, 1e-12);
    assert_near(mf_schedule_lr(&config.schedule, 50), 1e-4, 1e-18, 0);
    assert_near(config.adam.learning_rate, 1e-2, 0, 0);
    assert_true(config.schedule.log_warmup); /* as in DeepSpeed */
    assert_int_equal(config.warning_count, 0);
    mf_run_config_reset(&config);

    read_ok(config_text(OPTIMIZER("Adam", "\"lr\": 2e-3")
                            SCHEDULER("WarmupLR", "\"warmup_type\": \"linear\""),
                        ""),
            &config);
    assert_near(config.schedule.peak, 2e-3, 0, 0);
    assert_int_equal(config.schedule.warmup_steps, 1000);
    assert_int_equal(config.warning_count, 1); /* DeepSpeed would take 1e-3 */
    assert_non_null(strstr(config.warnings[0], "DeepSpeed would take 0.001"));
    mf_run_config_reset(&config);

    read_ok(config_text(SCHEDULER("WarmupCosineLR", "\"warmup_num_steps\": \"auto\", "
                                                    "\"total_num_steps\": \"auto\""),
                        ""),
            &config);
    assert_int_equal(config.schedule.total_steps, 50);
    assert_int_equal(config.schedule.warmup_steps, 2);
    assert_near(config.schedule.floor, 1e-4, 0, 0);
    mf_run_config_reset(&config);

    refuse_top(SCHEDULER("WarmupCosineLR", "\"warmup_max_lr\": 1"), "unknown key");
    refuse_top(SCHEDULER("WarmupLR", "\"total_num_steps\": 5"), "unknown key");
    refuse_top(SCHEDULER("WarmupDecayLR", ""), "50 steps in all, but 1000 of warm-up");
    refuse_top(SCHEDULER("WarmupLR", "\"warmup_min_lr\": 1"), "above warmup_max_lr");
    refuse_top(SCHEDULER("WarmupLR", "\"warmup_type\": \"cubic\""), "linear, log");
    unsupported(SCHEDULER("OneCycle", ""), "found \"OneCycle\"");
    refuse(config_text(SCHEDULER("WarmupLR", ""), ", \"schedule\": {\"type\": \"linear\"}"),
           MF_STATUS_INVALID, "not both");
}

static void own_schedules(void **state)
{
    (void)state;
    struct mf_run_config config;
    read_ok(config_text(OPTIMIZER("AdamW", "\"lr\": 1"),
                        ", \"schedule\": {\"type\": \"cosine\", \"warmup_steps\": 10}"),
            &config);
    assert_near(mf_schedule_lr(&config.schedule, 30), 0.5, 1e-15, 0);
    assert_near(mf_schedule_lr(&config.schedule, 50), 0, 1e-15, 0);
    mf_run_config_reset(&config);
    read_ok(config_text("", ", \"schedule\": {\"type\": \"linear\", \"total_steps\": 20}"),
            &config);
    assert_int_equal(config.warning_count, 1);
    assert_non_null(strstr(config.warnings[0], "has 20 steps, the job has 50"));
    mf_run_config_reset(&config);
    refuse_block(", \"schedule\": {\"type\": \"wsd\"}", "decay_steps");
    refuse_block(", \"schedule\": {\"type\": \"linear\", \"decay_steps\": 3}", "only there");
    refuse_block(", \"schedule\": {\"type\": \"wsd\", \"warmup_steps\": 45, \"decay_steps\": 6}",
                 "50 steps in all, but 45 of warm-up and 6 of decay");
    refuse_block(", \"schedule\": {\"type\": \"cosine\", \"warmup_steps\": 50}", "shorten");
    refuse_block(", \"schedule\": {\"type\": \"polynomial\"}", "constant, linear, cosine, wsd");
    refuse_block(", \"schedule\": {\"warmup_steps\": 5}", "\"type\" is missing");
    refuse_block(", \"schedule\": {\"type\": \"linear\", \"min_ratio\": 1.5}", "share of");
}

static void deepspeed_without_meaning(void **state)
{
    (void)state;
    struct mf_run_config config;
    read_ok(config_text(", \"zero_optimization\": {\"stage\": 3, \"reduce_bucket_size\": \"auto\", "
                        "\"overlap_comm\": true, \"offload_param\": {\"device\": \"cpu\", "
                        "\"pin_memory\": true}}, \"wall_clock_breakdown\": false, "
                        "\"csv_monitor\": {\"enabled\": false}, \"amp\": {\"enabled\": false}, "
                        "\"zero_allow_untested_optimizer\": true",
                        ""),
            &config);
    assert_int_equal(config.warning_count, 2);
    assert_non_null(strstr(config.warnings[0], "planned automatically"));
    assert_non_null(strstr(config.warnings[0], "stage, overlap_comm, offload_param"));
    assert_non_null(strstr(config.warnings[1], "zero_allow_untested_optimizer"));
    assert_null(strstr(config.warnings[1], "csv_monitor"));
    mf_run_config_reset(&config);
    refuse_top(", \"zero_optimization\": {\"stages\": 3}", "did you mean \"stage\"");
    refuse_top(", \"zero_optimization\": {\"stage\": 4}", "from 0 to 3");
    refuse_top(", \"zero_optimization\": {\"offload_param\": {\"devise\": \"cpu\"}}",
               "zero_optimization.offload_param: unknown key \"devise\"");
    unsupported(", \"zero_optimization\": {\"offload_optimizer\": {\"device\": \"nvme\"}}",
                "host memory only");
    unsupported(", \"zero_optimization\": {\"zero_quantized_weights\": true}",
                "would change the result");
    unsupported(", \"curriculum_learning\": {\"enabled\": true}", "curriculum_learning");
}

static void refusals(void **state)
{
    (void)state;
    static const char whole[] = "{\"memferry\": {%s}}";
    static const struct {
        const char *block, *fragment;
    } wrong[] = {
        {"\"data\": {\"text\": \"a\"}, \"steps\": 1", "\"model\" is missing"},
        {"\"model\": \"gpt2\", \"steps\": 1", "\"data\" is missing"},
        {"\"model\": \"gpt2\", \"data\": {}, \"steps\": 1", "give \"text\""},
        {"\"model\": \"gpt2\", \"data\": {\"text\": []}, \"steps\": 1", "1 to"},
        {"\"model\": \"gpt2\", \"data\": {\"text\": [1]}, \"steps\": 1", "list of paths"},
        {"\"model\": \"gpt2\", \"data\": {\"text\": \"\"}, \"steps\": 1", "1 to 1023 bytes"},
        {"\"model\": \"gpt2\", \"data\": {\"text\": \"a\", \"tokens\": \"b\"}, \"steps\": 1",
         "not both"},
        {"\"model\": \"gpt2\", \"data\": {\"text\": \"a\", \"format\": \"raw_u16\"}, \"steps\": 1",
         "text has the format"},
        {"\"model\": \"gpt2\", \"data\": {\"tokens\": \"a\", \"tokenizer\": \"bytes\"}, "
         "\"steps\": 1",
         "need no tokenizer"},
        {"\"model\": \"gpt2\", \"data\": {\"text\": \"a\", \"tokenizer\": \"gpt2\"}, \"steps\": 1",
         "memferry tokenize"},
        {"\"model\": \"gpt2\", \"data\": {\"text\": \"a\", \"template\": \"plain\"}, \"steps\": 1",
         "does not tokenize"},
        {"\"model\": \"gpt2\", \"data\": {\"text\": \"a\"}", "give \"steps\" or \"epochs\""},
        {"\"model\": \"gpt2\", \"data\": {\"text\": \"a\"}, \"steps\": 1, \"epochs\": 2",
         "not both"},
        {"\"model\": \"gpt2\", \"init\": \"weights\", \"data\": {\"text\": \"a\"}, \"steps\": 1",
         "has only shapes"},
        {"\"model\": \"\", \"data\": {\"text\": \"a\"}, \"steps\": 1", "1 to 1023 bytes"},
        {"\"model\": \"gpt2\", \"data\": {\"text\": \"a\"}, \"steps\": 1, \"steps\": 2",
         "duplicate"},
    };
    for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++) {
        char text[1024];
        snprintf(text, sizeof(text), whole, wrong[i].block);
        refuse(text, MF_STATUS_INVALID, wrong[i].fragment);
    }
    refuse("{}", MF_STATUS_INVALID, "\"memferry\" is missing");
    refuse("[]", MF_STATUS_INVALID, "JSON object");
    refuse("", MF_STATUS_INVALID, "not valid JSON");
    refuse("{\"memferry\": {}", MF_STATUS_INVALID, "not valid JSON");
    refuse("{\"memferry\": 5}", MF_STATUS_INVALID, "must be an object");
    struct mf_run_config config;
    mf_run_config_init(&config);
    assert_fails(mf_run_config_read(config_text("", ""), "relative", "/home/m", &config),
                 MF_STATUS_INVALID, "absolute");
    mf_run_config_reset(&config);
}

static void refused_values(void **state)
{
    (void)state;
    refuse_top(", \"train_batchsize\": 3", "did you mean \"train_batch_size\"");
    refuse_block(", \"device_memry\": \"2GiB\"", "did you mean \"device_memory\"");
    refuse_block(", \"device_memory\": \"2 apples\"", "is not a size");
    refuse_block(", \"device_memory\": -5", "from 0");
    refuse_block(", \"seq_len\": 2000000", "(tokens");
    refuse_block(", \"seed\": -1", "from 0");
    refuse_block(", \"save_steps\": 1.5", "(optimizer steps; 0 = at the end)");
    refuse_block(", \"logging_steps\": 0", "from 1");
    refuse_block(", \"strategy\": \"fast\"", "auto, resident, stream, zero_offload, memferry");
    refuse_block(", \"effort\": 3", "a string");
    refuse_block(", \"plan\": \"abc\"", "6 to 64 hexadecimal");
    refuse_block(", \"plan\": \"ABCDEF\"", "6 to 64 hexadecimal");
    refuse_block(", \"config_version\": 2", "from 1 to 1");
    refuse_block(", \"final\": \"../x\"", "folder's name");
    refuse_block(", \"final\": \"checkpoint-5\"", "checkpoint-");
    refuse_block(", \"eval_steps\": 5", "nothing to evaluate");
    refuse_block(", \"placement\": {\"a\": {}}", "says nothing");
    refuse_block(", \"placement\": {\"a\": {\"forward\": \"fly\"}}", "resident, stream, direct");
    refuse_block(", \"placement\": {\"a\": {\"foward\": \"stream\"}}", "did you mean \"forward\"");
    refuse_block(", \"placement\": {\"a\": 3}", "JSON object");
    refuse_block(", \"placement\": {\"\": {\"forward\": \"stream\"}}", "1 to 127 bytes");
    refuse_block(", \"sample\": {\"prompt\": \"\"}", "1 to 4096 bytes");
    refuse_block(", \"sample\": {\"temperature\": -1}", "likeliest");
    refuse_block(", \"sample\": {\"tokens\": 5000}", "from 1 to 4096");
    refuse_block(", \"output\": \"\"", "memferry.output");
    refuse("{\"memferry\": {\"model\": \"gpt2\", \"data\": {\"tokens\": \"a\"}, \"steps\": 1, "
           "\"sample\": {}}}",
           MF_STATUS_INVALID, "unknown tokenizer");
}

/* A path just short enough, one too long, and more patterns than there may be. */
static void limits(void **state)
{
    (void)state;
    char path[1100];
    char more[1300];
    struct mf_run_config config;
    memset(path, 'a', sizeof(path));
    path[0] = '/';
    path[1023] = '\0';
    snprintf(more, sizeof(more), ", \"output\": \"%s\"", path);
    read_ok(config_text("", more), &config);
    assert_int_equal(strlen(config.output), 1023);
    mf_run_config_reset(&config);
    path[1023] = 'a';
    path[1024] = '\0';
    snprintf(more, sizeof(more), ", \"output\": \"%s\"", path);
    refuse_block(more, "found \"/aaa");

    json_t *root = json_loads(config_text("", ""), 0, NULL);
    json_t *placement = json_object();
    for (int i = 0; i < 257; i++) {
        char pattern[16];
        snprintf(pattern, sizeof(pattern), "u%d", i);
        json_object_set_new(placement, pattern, json_pack("{s:s}", "forward", "stream"));
    }
    json_object_set_new(json_object_get(root, "memferry"), "placement", placement);
    char *text = json_dumps(root, 0);
    refuse(text, MF_STATUS_INVALID, "256 patterns, found 257");
    free(text);
    json_decref(root);
}

/* Nesting without end, a key as large as a config may be, numbers that are none. */
static void hostile(void **state)
{
    (void)state;
    enum { DEPTH = 200000, KEY = 1000000 };
    char *deep = malloc(DEPTH + 1);
    char *large = malloc(KEY + 64);
    assert_true(deep != NULL && large != NULL);
    memset(deep, '[', DEPTH);
    deep[DEPTH] = '\0';
    refuse(deep, MF_STATUS_INVALID, "not valid JSON");
    snprintf(large, KEY + 64, "{\"%0*d\": 1}", KEY, 0);
    refuse(large, MF_STATUS_INVALID, "unknown key \"000");
    memset(large, ' ', KEY + 63);
    large[KEY + 63] = '\0';
    refuse(large, MF_STATUS_INVALID, "not valid JSON");
    free(deep);
    free(large);
    refuse_top(", \"gradient_clipping\": NaN", "not valid JSON");
    refuse_top(", \"gradient_clipping\": Infinity", "not valid JSON");
    refuse_top(", \"gradient_clipping\": 1e999", "not valid JSON");
    refuse_top(", \"train_batch_size\": 99999999999999999999", "not valid JSON");
    refuse_top(", \"train_batch_size\": true", "whole number");
    refuse_block(", \"device_memory\": \"99999999999999999999GiB\"", "device_memory");
    refuse_block(", \"device_memory\": \"\"", "is not a size");
    refuse_block(", \"output\": \"a\\u0000b\"", "not valid JSON");
}

static void folders(void **state)
{
    (void)state;
    struct mf_run_config first;
    struct mf_run_config second;
    read_ok(config_text("", ""), &first);
    read_ok(config_text("", ""), &second);
    assert_string_not_equal(first.output, second.output); /* within one second */
    mf_run_config_reset(&first);
    mf_run_config_reset(&second);
    read_ok(config_text("", ", \"output\": \"./\""), &first);
    assert_string_equal(first.output, "/base/.");
    mf_run_config_reset(&first);
}

static void models(void **state)
{
    (void)state;
    const char *folder = harness_folder();
    const char *config_json = harness_path(folder, "config.json");
    struct mf_run_config config;
    char text[1024];
    harness_write(config_json, "{}", 2);
    snprintf(text, sizeof(text),
             "{\"memferry\": {\"model\": \"config.json\", \"data\": {\"paths\": \"a\"}, "
             "\"steps\": 1}}");
    mf_run_config_init(&config);
    assert_ok(mf_run_config_read(text, folder, "/home/m", &config));
    assert_int_equal(config.model_kind, MF_RUN_MODEL_FOLDER);
    assert_string_equal(config.model, folder);
    assert_true(config.random_init);
    assert_int_equal(config.data_format, MF_TOKENS_FORMAT_AUTO);
    mf_run_config_reset(&config);

    snprintf(text, sizeof(text),
             "{\"memferry\": {\"model\": \"%s\", \"data\": {\"text\": \"a\"}, \"steps\": 1}}",
             folder);
    read_ok(text, &config);
    assert_false(config.random_init);
    mf_run_config_reset(&config);

    harness_write(harness_path(folder, "model.txt"), "", 0);
    snprintf(text, sizeof(text),
             "{\"memferry\": {\"model\": \"%s/model.txt\", \"data\": {\"text\": \"a\"}, "
             "\"steps\": 1}}",
             folder);
    refuse(text, MF_STATUS_INVALID, "found the file");
}

/* What is resolved reads as the same job, word for word. */
static void round_trip(const char *text)
{
    struct mf_run_config first;
    struct mf_run_config second;
    read_ok(text, &first);
    json_t *resolved = mf_run_config_resolved(&first);
    char *written = json_dumps(resolved, JSON_COMPACT);
    assert_non_null(written);
    mf_run_config_init(&second);
    assert_ok(mf_run_config_read(written, "/elsewhere", "/nowhere", &second));
    assert_int_equal(second.warning_count, 0);
    json_t *again = mf_run_config_resolved(&second);
    json_object_del(json_object_get(resolved, "memferry"), "reasons");
    json_object_del(json_object_get(again, "memferry"), "reasons");
    char *expected = json_dumps(resolved, JSON_SORT_KEYS);
    char *actual = json_dumps(again, JSON_SORT_KEYS);
    assert_string_equal(expected, actual);
    for (int64_t step = 0; step < 60; step++) {
        assert_near(mf_schedule_lr(&second.schedule, step), mf_schedule_lr(&first.schedule, step),
                    0, 0);
    }
    free(expected);
    free(actual);
    free(written);
    json_decref(resolved);
    json_decref(again);
    mf_run_config_reset(&first);
    mf_run_config_reset(&second);
}

static void resolved(void **state)
{
    (void)state;
    round_trip(config_text("", ""));
    round_trip(config_text(SCHEDULER("WarmupDecayLR", "\"warmup_num_steps\": 7, "
                                                      "\"warmup_min_lr\": 3e-7"),
                           ", \"output\": \"x\", \"sample\": {}, \"device_memory\": \"7GiB\", "
                           "\"eval_steps\": 0, \"placement\": {\"*\": {\"optimizer\": \"cpu\"}}"));
    round_trip(config_text(SCHEDULER("WarmupCosineLR", "\"warmup_num_steps\": 7"),
                           ", \"plan\": \"0123456789\", \"seed\": 9007199254740991"));
    round_trip("{\"memferry\": {\"model\": \"a/b\", \"data\": {\"tokens\": [\"t\"], "
               "\"validation_fraction\": 0.1}, \"epochs\": 0.3, \"eval_steps\": 4}}");
    struct mf_run_config config;
    read_ok(config_text(", \"train_batch_size\": 6, \"gradient_accumulation_steps\": 3", ""),
            &config);
    json_t *json = mf_run_config_resolved(&config);
    const json_t *reasons = json_object_get(json_object_get(json, "memferry"), "reasons");
    assert_string_equal(
        json_string_value(json_object_get(reasons, "train_micro_batch_size_per_gpu")),
        "train_batch_size 6 / gradient_accumulation_steps 3");
    json_decref(json);
    mf_run_config_reset(&config);
}

static void quickstart(void **state)
{
    (void)state;
    char *text = harness_read(harness_source("scripts/quickstart.json"), NULL);
    for (char *at = text; (at = strstr(at, "@STEPS@")) != NULL;) {
        memcpy(at, "    150", 7);
    }
    memcpy(strstr(text, "@DEVICE_MEMORY@"), "          24MiB", 15);
    struct mf_run_config config;
    read_ok(text, &config);
    assert_int_equal(config.workload.micro_batch, 8);
    assert_int_equal(config.workload.accumulation, 2);
    assert_int_equal(config.steps, 150);
    assert_int_equal(config.warning_count, 0);
    mf_run_config_reset(&config);
}

/* Every key of a resolved config is in the docs between backquotes. */
static void check_documented(const json_t *object, const char *docs)
{
    const char *key = NULL;
    json_t *value = NULL;
    json_object_foreach((json_t *)object, key, value)
    {
        char quoted[128];
        char path_end[128];
        snprintf(quoted, sizeof(quoted), "`%s`", key);
        snprintf(path_end, sizeof(path_end), ".%s`", key);
        if (strstr(docs, quoted) == NULL && strstr(docs, path_end) == NULL &&
            strcmp(key, "bf16") != 0 && strcmp(key, "params") != 0 &&
            strcmp(key, "optimizer") != 0) {
            fail_msg("docs/RUNS.md does not mention `%s`", key);
        }
        if (strcmp(key, "reasons") != 0 && strcmp(key, "placement") != 0) {
            check_documented(value, docs);
        }
    }
}

static void documented(void **state)
{
    (void)state;
    static const char open[] = "```json\n";
    char *docs = harness_read(harness_source("docs/RUNS.md"), NULL);
    struct mf_run_config config;
    read_ok(config_text("", ", \"sample\": {}"), &config);
    json_t *json = mf_run_config_resolved(&config);
    check_documented(json, docs);
    json_decref(json);
    mf_run_config_reset(&config);
    int examples = 0;
    for (char *at = docs; (at = strstr(at, open)) != NULL; examples++) {
        at += strlen(open);
        char *end = strstr(at, "```");
        assert_non_null(end);
        *end = '\0';
        read_ok(at, &config);
        assert_int_equal(config.warning_count, 0);
        mf_run_config_reset(&config);
        at = end + 1;
    }
    assert_int_equal(examples, 3);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(defaults),      cmocka_unit_test(everything_said),
        cmocka_unit_test(batch_sizes),   cmocka_unit_test(precision),
        cmocka_unit_test(optimizers),    cmocka_unit_test(deepspeed_schedulers),
        cmocka_unit_test(own_schedules), cmocka_unit_test(deepspeed_without_meaning),
        cmocka_unit_test(refusals),      cmocka_unit_test(refused_values),
        cmocka_unit_test(limits),        cmocka_unit_test(models),
        cmocka_unit_test(folders),       cmocka_unit_test(hostile),
        cmocka_unit_test(resolved),      cmocka_unit_test(quickstart),
        cmocka_unit_test(documented),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
