/* tokenize: see command.h. Needs no daemon. What it does is in token_data.c. */
#include <stdlib.h>
#include <string.h>

#include "client/command.h"
#include "client/token_data.h"
#include "core/arena.h"
#include "core/format.h"
#include "core/limits.h"

struct tokenize_options {
    struct mf_arena arena;
    struct mf_token_data_spec spec;
    const char **inputs;
    const char *output;
};

enum { KEY_TOKENIZER = 0x300, KEY_TEMPLATE, KEY_END_TOKEN, KEY_ALIGN };

static void add_input(struct tokenize_options *options, char *path)
{
    size_t count = options->spec.path_count;
    const char **larger = mf_arena_alloc(&options->arena, count + 1, sizeof(*larger));
    if (count > 0) {
        memcpy(larger, options->inputs, count * sizeof(*larger));
    }
    larger[count] = path;
    options->inputs = larger;
    options->spec.paths = larger;
    options->spec.path_count = count + 1;
}

static error_t parse_tokenize(int key, char *argument, struct argp_state *state, void *input)
{
    struct tokenize_options *options = input;
    char *end = NULL;
    switch (key) {
    case KEY_TOKENIZER:
        options->spec.tokenizer = argument;
        return 0;
    case 'i':
        add_input(options, argument);
        while (state->next < state->argc && state->argv[state->next][0] != '-') {
            add_input(options, state->argv[state->next++]);
        }
        return 0;
    case 'o':
        options->output = argument;
        return 0;
    case KEY_TEMPLATE:
        options->spec.template = mf_chat_parse(argument);
        if (options->spec.template <0) {
            argp_error(state, "--template must be chatml, llama3 or plain, not \"%s\"", argument);
        }
        return 0;
    case KEY_END_TOKEN:
        options->spec.end_token = argument;
        return 0;
    case KEY_ALIGN:
        options->spec.align = strtoll(argument, &end, 10);
        if (*end != '\0' || options->spec.align < 1 || options->spec.align > MF_SEQ_LEN_MAX) {
            argp_error(state, "--align must be 1 to %d tokens, not \"%s\"", MF_SEQ_LEN_MAX,
                       argument);
        }
        return 0;
    case ARGP_KEY_END:
        if (options->spec.tokenizer == NULL || options->spec.path_count == 0 ||
            options->output == NULL) {
            argp_error(state, "--tokenizer, --input and --output are needed");
        }
        return 0;
    default:
        return ARGP_ERR_UNKNOWN;
    }
}

static void print_json(const struct mf_command_context *context, const char *output,
                       const struct mf_token_data_result *result)
{
    const struct mf_token_file *file = &result->file;
    json_t *document =
        json_pack("{s:s, s:I, s:I, s:I, s:I, s:i, s:b, s:s, s:s, s:I, s:f}", "file", output,
                  "tokens", (json_int_t)file->token_count, "learned", (json_int_t)result->learned,
                  "documents", (json_int_t)file->document_count, "vocab", (json_int_t)file->vocab,
                  "token_bytes", (int)file->width, "masked", (int)file->masked, "tokenizer",
                  file->tokenizer, "pattern", mf_tokenizer_split_name(result->split), "input_bytes",
                  (json_int_t)result->input_bytes, "seconds", result->seconds);
    MF_ASSERT(document != NULL);
    mf_command_print_json(context, document);
}

static void print_text(const struct mf_command_context *context, const char *output,
                       const struct mf_token_data_result *result)
{
    const struct mf_token_file *file = &result->file;
    char bytes[MF_FORMAT_MAX];
    char tokens[MF_FORMAT_MAX];
    double megabytes = (double)result->input_bytes * 1e-6;
    fprintf(
        context->render.out,
        "%s: %s tokens (%lld, %.1f%% learned) of %lld documents from %s in %.1f s (%.1f MB/s)\n",
        output, mf_format_count((double)file->token_count, tokens), (long long)file->token_count,
        file->token_count > 0 ? 100 * (double)result->learned / (double)file->token_count : 0,
        (long long)file->document_count, mf_format_bytes(result->input_bytes, bytes),
        result->seconds, result->seconds > 0 ? megabytes / result->seconds : 0);
}

enum mf_status mf_command_tokenize_run(struct mf_command_context *context, int argc, char **argv)
{
    static const struct argp_option argp_options[] = {
        {"tokenizer", KEY_TOKENIZER, "FOLDER", 0,
         "A Hugging Face folder with a tokenizer.json (byte-level BPE)", 0},
        {"input", 'i', "FILE...", 0, "Text files, JSONL files (*.jsonl), or folders of them", 0},
        {"output", 'o', "FILE", 0, "The token file, for \"tokens\" of a run config", 0},
        {"template", KEY_TEMPLATE, "NAME", 0,
         "How \"messages\" are written: chatml, llama3 or plain (docs/DATA.md)", 0},
        {"end-token", KEY_END_TOKEN, "TEXT", 0,
         "Ends a document (eos_token of tokenizer_config.json)", 0},
        {"align", KEY_ALIGN, "N", 0,
         "No document is cut by sequences of N tokens unless it is longer: the rest of a sequence "
         "is filled with tokens that are not learned (documents follow without gaps)",
         0},
        {0}};
    struct tokenize_options options = {.spec = {.template = -1}};
    struct mf_command_line line = {
        .context = context,
        .arguments = "",
        .help = "Makes tokens of text: plain files, or JSONL whose lines have \"text\", \"prompt\" "
                "and \"completion\", or \"messages\". Only completions and what assistants say "
                "are learned, the rest is read. Needs no daemon.",
        .options = argp_options,
        .parse = parse_tokenize,
        .input = &options};
    struct mf_token_data_result result;
    mf_arena_init(&options.arena);
    mf_command_parse(&line, argc, argv);
    options.spec.quiet = context->quiet;
    enum mf_status status = mf_token_data_make(&options.spec, options.output, &result);
    if (status == MF_STATUS_OK) {
        (context->json ? print_json : print_text)(context, options.output, &result);
    }
    mf_arena_reset(&options.arena);
    return status;
}
