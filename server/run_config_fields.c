/* Values of the run config by table: see run_config_fields.h. */
#include "server/run_config_fields.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "core/format.h"
#include "core/json.h"

#define KEYS_MAX 96

bool mf_run_config_fields_has(const json_t *object, const char *key)
{
    const json_t *value = json_object_get(object, key);
    return value != NULL && !json_is_null(value);
}

enum mf_status mf_run_config_fields_only(const json_t *object, const char *where,
                                         const struct mf_run_config_field *fields, size_t count,
                                         const char *const *extra, size_t extra_count)
{
    const char *known[KEYS_MAX];
    MF_ASSERT(count + extra_count <= KEYS_MAX);
    for (size_t i = 0; i < count; i++) {
        known[i] = fields[i].key;
    }
    for (size_t i = 0; i < extra_count; i++) {
        known[count + i] = extra[i];
    }
    return mf_json_only(object, where, known, count + extra_count);
}

/* Adds the unit to a refusal, which names the range. */
static enum mf_status with_unit(enum mf_status status, const char *unit)
{
    char text[MF_ERROR_TEXT_MAX];
    if (status == MF_STATUS_OK || unit[0] == '\0') {
        return status;
    }
    snprintf(text, sizeof(text), "%s", mf_status_text());
    return mf_status_set(status, "%s (%s)", text, unit);
}

static enum mf_status read_bytes(const json_t *object, const char *where,
                                 const struct mf_run_config_field *field, int64_t *out)
{
    const char *text = NULL;
    if (!json_is_string(json_object_get(object, field->key))) {
        return mf_json_int(object, where, field->key, (int64_t)field->low, (int64_t)field->high,
                           out);
    }
    MF_TRY(mf_json_string(object, where, field->key, &text));
    if (strcmp(text, "all") == 0) {
        *out = 0;
        return MF_STATUS_OK;
    }
    enum mf_status status = mf_format_parse_bytes(text, out);
    if (status == MF_STATUS_OK && (double)*out > field->high) {
        status =
            mf_status_set(MF_STATUS_INVALID, "\"%.60s\" is more than %g bytes", text, field->high);
    }
    return status == MF_STATUS_OK ? status
                                  : mf_status_context(status, "%s: \"%s\"", where, field->key);
}

static enum mf_status read_text(const json_t *object, const char *where,
                                const struct mf_run_config_field *field,
                                struct mf_run_config *config, const char **out)
{
    const char *text = NULL;
    MF_TRY(mf_json_string(object, where, field->key, &text));
    if (text == NULL) {
        return MF_STATUS_OK;
    }
    if ((double)strlen(text) < field->low || (double)strlen(text) > field->high) {
        return mf_status_set(MF_STATUS_INVALID,
                             "%s: \"%s\" must have %.0f to %.0f bytes, found %zu", where,
                             field->key, field->low, field->high, strlen(text));
    }
    *out = mf_arena_string(&config->arena, text);
    return MF_STATUS_OK;
}

static enum mf_status read_int(const json_t *object, const char *where,
                               const struct mf_run_config_field *field, void *place)
{
    int64_t number = -1; /* below every range: not said */
    MF_TRY(
        mf_json_int(object, where, field->key, (int64_t)field->low, (int64_t)field->high, &number));
    if (number < 0) {
        return MF_STATUS_OK;
    }
    if (field->type == MF_RUN_CONFIG_INT32) {
        *(int32_t *)place = (int32_t)number;
    } else if (field->type == MF_RUN_CONFIG_SEED) {
        *(uint64_t *)place = (uint64_t)number;
    } else {
        *(int64_t *)place = number;
    }
    return MF_STATUS_OK;
}

static enum mf_status read_field(const json_t *object, const char *where,
                                 const struct mf_run_config_field *field,
                                 struct mf_run_config *config)
{
    void *place = (char *)config + field->offset;
    switch (field->type) {
    case MF_RUN_CONFIG_FLAG:
        return mf_json_bool(object, where, field->key, place);
    case MF_RUN_CONFIG_INT32:
    case MF_RUN_CONFIG_INT64:
    case MF_RUN_CONFIG_SEED:
        return read_int(object, where, field, place);
    case MF_RUN_CONFIG_NUMBER:
        return mf_json_number(object, where, field->key, field->low, field->high, place);
    case MF_RUN_CONFIG_BYTES:
        return read_bytes(object, where, field, place);
    case MF_RUN_CONFIG_TEXT:
        return read_text(object, where, field, config, place);
    }
    return MF_STATUS_INTERNAL;
}

enum mf_status mf_run_config_fields_read(const json_t *object, const char *where,
                                         const struct mf_run_config_field *fields, size_t count,
                                         struct mf_run_config *config)
{
    for (size_t i = 0; i < count; i++) {
        MF_TRY(with_unit(read_field(object, where, &fields[i], config), fields[i].unit));
    }
    return MF_STATUS_OK;
}

static json_t *encode_field(const struct mf_run_config_field *field,
                            const struct mf_run_config *config)
{
    const void *place = (const char *)config + field->offset;
    switch (field->type) {
    case MF_RUN_CONFIG_FLAG:
        return json_boolean(*(const bool *)place);
    case MF_RUN_CONFIG_INT32:
        return json_integer(*(const int32_t *)place);
    case MF_RUN_CONFIG_INT64:
        return json_integer(*(const int64_t *)place);
    case MF_RUN_CONFIG_SEED:
        return json_integer((json_int_t) * (const uint64_t *)place);
    case MF_RUN_CONFIG_NUMBER:
        return json_real(*(const double *)place);
    case MF_RUN_CONFIG_BYTES:
        return *(const int64_t *)place > 0 ? json_integer(*(const int64_t *)place)
                                           : json_string("all");
    case MF_RUN_CONFIG_TEXT:
        return json_string(*(const char *const *)place);
    }
    return NULL;
}

void mf_run_config_fields_encode(const struct mf_run_config_field *fields, size_t count,
                                 const struct mf_run_config *config, json_t *object)
{
    for (size_t i = 0; i < count; i++) {
        json_t *value = encode_field(&fields[i], config);
        MF_ASSERT(json_object_set_new(object, fields[i].key, value) == 0);
    }
}

enum mf_status mf_run_config_fields_choice(const json_t *object, const char *where, const char *key,
                                           const char *const *names, size_t count, int *out)
{
    const char *text = NULL;
    char list[256];
    size_t used = 0;
    MF_TRY(mf_json_string(object, where, key, &text));
    if (text == NULL) {
        return MF_STATUS_OK;
    }
    for (size_t i = 0; i < count; i++) {
        if (strcmp(text, names[i]) == 0) {
            *out = (int)i;
            return MF_STATUS_OK;
        }
        int wrote = snprintf(list + used, sizeof(list) - used, "%s%s", i > 0 ? ", " : "", names[i]);
        MF_ASSERT(wrote > 0 && used + (size_t)wrote < sizeof(list));
        used += (size_t)wrote;
    }
    return mf_status_set(MF_STATUS_INVALID, "%s: \"%s\" must be one of %s, found \"%.60s\"", where,
                         key, list, text);
}

enum mf_status mf_run_config_fields_object(const json_t *object, const char *where, const char *key,
                                           json_t **out)
{
    *out = NULL;
    if (!mf_run_config_fields_has(object, key)) {
        return MF_STATUS_OK;
    }
    *out = json_object_get(object, key);
    if (!json_is_object(*out)) {
        return mf_status_set(MF_STATUS_INVALID, "%s: \"%s\" must be an object", where, key);
    }
    return MF_STATUS_OK;
}

bool mf_run_config_fields_auto(json_t *object, const char *key)
{
    const char *text = json_string_value(json_object_get(object, key));
    if (text == NULL || strcmp(text, "auto") != 0) {
        return false;
    }
    json_object_del(object, key);
    return true;
}

void mf_run_config_fields_warn(struct mf_run_config *config, const char *format, ...)
{
    char text[MF_ERROR_TEXT_MAX];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof(text), format, arguments);
    va_end(arguments);
    if (config->warning_count < MF_RUN_WARNINGS_MAX) {
        config->warnings[config->warning_count++] = mf_arena_string(&config->arena, text);
    }
}

void mf_run_config_fields_reason(struct mf_run_config *config, const char *key, const char *format,
                                 ...)
{
    char text[MF_ERROR_TEXT_MAX];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof(text), format, arguments);
    va_end(arguments);
    if (config->reason_count < MF_RUN_REASONS_MAX) {
        struct mf_run_reason *reason = &config->reasons[config->reason_count++];
        reason->key = mf_arena_string(&config->arena, key);
        reason->text = mf_arena_string(&config->arena, text);
    }
}
