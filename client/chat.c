/* Rendering messages: see chat.h. The forms are those of the models' own templates for plain
 * conversations: Qwen/Qwen2.5-7B and meta-llama/Meta-Llama-3-8B-Instruct, tokenizer_config.json. */
#include "client/chat.h"

#include <ctype.h>
#include <string.h>

#include "core/json.h"

#define COUNT(table) (sizeof(table) / sizeof((table)[0]))

static const struct form {
    const char *begin;
    const char *before_role, *after_role;
    const char *end;          /* NULL = a newline, after an assistant the end token */
    const char *after_answer; /* not learned */
    const char *needs[4];     /* tokens */
    bool trim;                /* the text of messages */
} forms[MF_CHAT_TEMPLATE_COUNT] = {
    [MF_CHAT_TEMPLATE_CHATML] = {.begin = "",
                                 .before_role = "<|im_start|>",
                                 .after_role = "\n",
                                 .end = "<|im_end|>",
                                 .after_answer = "\n",
                                 .needs = {"<|im_start|>", "<|im_end|>"}},
    [MF_CHAT_TEMPLATE_LLAMA3] = {.begin = "<|begin_of_text|>",
                                 .before_role = "<|start_header_id|>",
                                 .after_role = "<|end_header_id|>\n\n",
                                 .end = "<|eot_id|>",
                                 .after_answer = "",
                                 .needs = {"<|begin_of_text|>", "<|start_header_id|>",
                                           "<|end_header_id|>", "<|eot_id|>"},
                                 .trim = true},
    [MF_CHAT_TEMPLATE_PLAIN] = {.begin = "",
                                .before_role = "",
                                .after_role = ":\n",
                                .after_answer = ""},
};

static const char *const names[] = {
#define X(name, text, sentence) text,
    MF_CHAT_TEMPLATE_MAP(X)
#undef X
};

const char *mf_chat_name(enum mf_chat_template template)
{
    MF_ASSERT(template <MF_CHAT_TEMPLATE_COUNT);
    return names[template];
}

int mf_chat_parse(const char *text)
{
    for (int i = 0; i < MF_CHAT_TEMPLATE_COUNT; i++) {
        if (strcmp(names[i], text) == 0) {
            return i;
        }
    }
    return -1;
}

enum mf_status mf_chat_check(enum mf_chat_template template, const struct mf_tokenizer *tokenizer)
{
    for (size_t i = 0; i < COUNT(forms[template].needs); i++) {
        const char *needed = forms[template].needs[i];
        if (needed != NULL && mf_tokenizer_find(tokenizer, needed) < 0) {
            return mf_status_set(MF_STATUS_INVALID,
                                 "the template %s writes %s, which is no token of this tokenizer: "
                                 "take another template (plain needs none)",
                                 names[template], needed);
        }
    }
    return MF_STATUS_OK;
}

static enum mf_status put(const struct mf_chat_sink *sink, const char *text, bool special,
                          bool learned)
{
    const struct mf_chat_part part = {text, strlen(text), special, learned};
    return part.count > 0 ? sink->put(sink->context, &part) : MF_STATUS_OK;
}

enum mf_status mf_chat_begin(enum mf_chat_template template, const struct mf_chat_sink *sink)
{
    return put(sink, forms[template].begin, true, false);
}

/* Role and text of a message, and whether it may be learned ("weight", as in OpenAI's files). */
static enum mf_status read_message(const json_t *message, size_t index, const char **role,
                                   struct mf_chat_part *text, bool *learned)
{
    static const char *const known[] = {"role", "content", "name", "weight"};
    static const char *const roles[] = {"system", "user", "assistant"};
    char where[48];
    double weight = 1;
    snprintf(where, sizeof(where), "message %zu", index);
    MF_TRY(mf_json_only(message, where, known, COUNT(known)));
    MF_TRY(mf_json_require(message, where, "role"));
    MF_TRY(mf_json_string(message, where, "role", role));
    MF_TRY(mf_json_number(message, where, "weight", 0, 1, &weight));
    size_t at = 0;
    while (at < COUNT(roles) && strcmp(roles[at], *role) != 0) {
        at++;
    }
    const json_t *content = json_object_get(message, "content");
    if (at == COUNT(roles) || !json_is_string(content) || (weight > 0 && weight < 1)) {
        return mf_status_set(MF_STATUS_UNSUPPORTED,
                             "%s has the role \"%.40s\" (known: system, user, assistant), %s "
                             "as content and the weight %g (0 or 1)",
                             where, *role,
                             json_is_string(content) ? "text"
                             : json_is_array(content)
                                 ? "a list of parts, of which only text alone is done,"
                                 : "no text",
                             weight);
    }
    *text = (struct mf_chat_part){.text = json_string_value(content),
                                  .count = json_string_length(content)};
    *learned = weight > 0 && strcmp(*role, "assistant") == 0;
    return MF_STATUS_OK;
}

static void trim(struct mf_chat_part *text)
{
    while (text->count > 0 && isspace((unsigned char)text->text[0])) {
        text->text++;
        text->count--;
    }
    while (text->count > 0 && isspace((unsigned char)text->text[text->count - 1])) {
        text->count--;
    }
}

static enum mf_status put_message(const struct form *form, const json_t *message, size_t index,
                                  bool learn, const struct mf_chat_sink *sink)
{
    const char *role = NULL;
    struct mf_chat_part text;
    bool learned = false;
    MF_TRY(read_message(message, index, &role, &text, &learned));
    text.learned = learned = learned && learn;
    if (form->trim) {
        trim(&text);
    }
    MF_TRY(put(sink, form->before_role, true, false));
    MF_TRY(put(sink, role, false, false));
    MF_TRY(put(sink, form->after_role, true, false));
    if (text.count > 0) {
        MF_TRY(sink->put(sink->context, &text));
    }
    if (form->end != NULL) {
        MF_TRY(put(sink, form->end, true, learned));
    } else if (strcmp(role, "assistant") == 0) {
        MF_TRY(sink->put(sink->context, &(struct mf_chat_part){.learned = learned}));
    } else {
        MF_TRY(put(sink, "\n", false, false));
    }
    return put(sink, form->after_answer, false, false);
}

enum mf_status mf_chat_messages(enum mf_chat_template template, const json_t *messages, bool learn,
                                const struct mf_chat_sink *sink)
{
    if (!json_is_array(messages) || json_array_size(messages) == 0) {
        return mf_status_set(MF_STATUS_INVALID, "messages must be a list with at least one");
    }
    for (size_t i = 0; i < json_array_size(messages); i++) {
        MF_TRY(put_message(&forms[template], json_array_get(messages, i), i, learn, sink));
    }
    return MF_STATUS_OK;
}
