/* What a run is trained on: see run_config_internal.h and docs/RUNS.md. */
#include <string.h>

#include "core/json.h"
#include "core/limits.h"
#include "server/run_config_internal.h"

#define AT MF_RUN_CONFIG_AT

static const struct mf_run_config_field data_fields[] = {
    {"validation_fraction", MF_RUN_CONFIG_NUMBER, AT(validation_fraction), 0, 0.5,
     "share of the sequences"},
    {"shuffle", MF_RUN_CONFIG_FLAG, AT(shuffle), 0, 0, ""},
    {"seed", MF_RUN_CONFIG_SEED, AT(data_seed), 0, MF_RUN_SEED_MAX, ""},
};
const struct mf_run_config_table mf_run_config_data_table = {data_fields,
                                                             MF_RUN_CONFIG_COUNT(data_fields)};

/* The program memferry makes tokens before it sends a config; what reaches the daemon from
 * elsewhere is not tokenized here. */
static enum mf_status refuse_text_work(const json_t *data)
{
    static const char *const keys[] = {"template", "end_token", "align", "cache"};
    const char *tokenizer = "bytes";
    bool work = false;
    MF_TRY(mf_json_string(data, "memferry.data", "tokenizer", &tokenizer));
    for (size_t i = 0; i < MF_RUN_CONFIG_COUNT(keys); i++) {
        work |= mf_run_config_fields_has(data, keys[i]);
    }
    if (strcmp(tokenizer, "bytes") == 0 && !work) {
        return MF_STATUS_OK;
    }
    return mf_status_set(
        MF_STATUS_INVALID,
        "memferry.data: the daemon does not tokenize (\"tokenizer\" must be bytes, "
        "found \"%.60s\"%s): `memferry train` does it before it sends the config, "
        "`memferry tokenize` makes a file for \"tokens\"",
        tokenizer, work ? ", with template, end_token, align or cache" : "");
}

/* What the three ways to name data mean; exactly one is there. */
static enum mf_status read_source(struct mf_run_config *config, const json_t *data,
                                  const char *base)
{
    static const char *const keys[] = {"text", "tokens", "paths"};
    static const char *const tokenizers[] = {"bytes"};
    const char *formats[MF_TOKENS_FORMAT_COUNT];
    int source = -1;
    int format = -1;
    int tokenizer = -1;
    for (int i = 0; i < MF_TOKENS_FORMAT_COUNT; i++) {
        formats[i] = mf_tokens_format_name((enum mf_tokens_format)i);
    }
    for (int i = 0; i < 3; i++) {
        if (mf_run_config_fields_has(data, keys[i])) {
            if (source >= 0) {
                return mf_status_set(MF_STATUS_INVALID,
                                     "memferry.data: give \"%s\" or \"%s\", not both", keys[source],
                                     keys[i]);
            }
            source = i;
        }
    }
    if (source < 0) {
        return mf_status_set(MF_STATUS_INVALID,
                             "memferry.data: give \"text\" (files or folders of text) or "
                             "\"tokens\" (files of tokens)");
    }
    MF_TRY(mf_run_config_paths_list(config, json_object_get(data, keys[source]), "memferry.data",
                                    keys[source], base, &config->data_paths,
                                    &config->data_path_count));
    MF_TRY(mf_run_config_fields_choice(data, "memferry.data", "format", formats,
                                       MF_TOKENS_FORMAT_COUNT, &format));
    MF_TRY(
        mf_run_config_fields_choice(data, "memferry.data", "tokenizer", tokenizers, 1, &tokenizer));
    bool bytes = source == 0 || tokenizer == 0 || format == MF_TOKENS_FORMAT_BYTES;
    if (bytes && (source == 1 || format > MF_TOKENS_FORMAT_BYTES)) {
        return mf_status_set(
            MF_STATUS_INVALID,
            "memferry.data: text has the format \"bytes\" and the tokenizer "
            "\"bytes\" (or a folder, which memferry train then applies); \"tokens\" "
            "have another format and need no tokenizer");
    }
    config->data_format = bytes        ? MF_TOKENS_FORMAT_BYTES
                          : format < 0 ? MF_TOKENS_FORMAT_AUTO
                                       : (enum mf_tokens_format)format;
    config->data_text = bytes || (source == 2 && config->data_format == MF_TOKENS_FORMAT_AUTO);
    return MF_STATUS_OK;
}

enum mf_status mf_run_config_data_read(struct mf_run_config *config, const json_t *block,
                                       const char *base)
{
    static const char *const extra[] = {"text",      "tokens",     "paths",    "format",
                                        "tokenizer", "validation", "template", "end_token",
                                        "align",     "cache"};
    json_t *data = NULL;
    MF_TRY(mf_json_require(block, "memferry", "data"));
    MF_TRY(mf_run_config_fields_object(block, "memferry", "data", &data));
    MF_TRY(mf_run_config_fields_only(data, "memferry.data", data_fields,
                                     MF_RUN_CONFIG_COUNT(data_fields), extra,
                                     MF_RUN_CONFIG_COUNT(extra)));
    MF_TRY(refuse_text_work(data));
    config->data_seed = config->seed;
    if (!mf_run_config_fields_has(data, "seed")) {
        mf_run_config_fields_reason(config, "memferry.data.seed", "memferry.seed");
    }
    MF_TRY(mf_run_config_fields_read(data, "memferry.data", data_fields,
                                     MF_RUN_CONFIG_COUNT(data_fields), config));
    MF_TRY(read_source(config, data, base));
    if (!mf_run_config_fields_has(data, "validation")) {
        return MF_STATUS_OK;
    }
    if (config->validation_fraction > 0) {
        return mf_status_set(MF_STATUS_INVALID,
                             "memferry.data: give \"validation\" or \"validation_fraction\", not "
                             "both");
    }
    return mf_run_config_paths_list(config, json_object_get(data, "validation"), "memferry.data",
                                    "validation", base, &config->validation_paths,
                                    &config->validation_path_count);
}
