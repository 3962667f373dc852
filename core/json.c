/* Strict JSON reading: see json.h. */
#include "core/json.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/format.h"

enum mf_status mf_json_parse(const char *bytes, size_t count, const char *name, json_t **out)
{
    json_error_t error;
    *out = json_loadb(bytes, count, JSON_REJECT_DUPLICATES, &error);
    if (*out == NULL) {
        return mf_status_set(MF_STATUS_INVALID, "%s is not valid JSON: line %d, column %d: %s",
                             name, error.line, error.column, error.text);
    }
    return MF_STATUS_OK;
}

enum mf_status mf_json_load(const char *path, int64_t bytes_max, json_t **out)
{
    enum mf_status status = MF_STATUS_OK;
    char *bytes = NULL;
    *out = NULL;
    FILE *file = fopen(path, "rbe");
    if (file == NULL) {
        return mf_status_set(errno == ENOENT ? MF_STATUS_NOT_FOUND : MF_STATUS_IO,
                             "cannot open %s: %s", path, strerror(errno));
    }
    bytes = malloc((size_t)bytes_max + 1);
    MF_ASSERT(bytes != NULL);
    size_t count = fread(bytes, 1, (size_t)bytes_max + 1, file);
    if (ferror(file)) {
        status = mf_status_set(MF_STATUS_IO, "cannot read %s: %s", path, strerror(errno));
    } else if (count > (size_t)bytes_max) {
        status = mf_status_set(MF_STATUS_INVALID, "%s is larger than %lld bytes", path,
                               (long long)bytes_max);
    } else {
        status = mf_json_parse(bytes, count, path, out);
    }
    free(bytes);
    fclose(file);
    return status;
}

enum mf_status mf_json_only(const json_t *object, const char *where, const char *const *known,
                            size_t known_count)
{
    if (!json_is_object(object)) {
        return mf_status_set(MF_STATUS_INVALID, "%s: must be a JSON object", where);
    }
    const char *key = NULL;
    json_t *value = NULL;
    json_object_foreach((json_t *)object, key, value)
    {
        bool found = false;
        for (size_t i = 0; i < known_count && !found; i++) {
            found = strcmp(key, known[i]) == 0;
        }
        if (!found) {
            const char *nearest = mf_format_nearest(key, known, known_count);
            return mf_status_set(MF_STATUS_INVALID, "%s: unknown key \"%s\"%s%s%s", where, key,
                                 nearest ? ", did you mean \"" : "", nearest ? nearest : "",
                                 nearest ? "\"?" : "");
        }
    }
    return MF_STATUS_OK;
}

enum mf_status mf_json_require(const json_t *object, const char *where, const char *key)
{
    const json_t *value = json_object_get(object, key);
    if (value == NULL || json_is_null(value)) {
        return mf_status_set(MF_STATUS_INVALID, "%s: \"%s\" is missing", where, key);
    }
    return MF_STATUS_OK;
}

static const json_t *present(const json_t *object, const char *key)
{
    const json_t *value = json_object_get(object, key);
    return value == NULL || json_is_null(value) ? NULL : value;
}

static enum mf_status refuse(const json_t *value, const char *where, const char *key,
                             const char *wanted)
{
    char *text = json_dumps(value, JSON_ENCODE_ANY | JSON_COMPACT);
    enum mf_status status = mf_status_set(MF_STATUS_INVALID, "%s: \"%s\" must be %s, found %.60s",
                                          where, key, wanted, text ? text : "?");
    free(text);
    return status;
}

enum mf_status mf_json_int(const json_t *object, const char *where, const char *key, int64_t low,
                           int64_t high, int64_t *out)
{
    const json_t *value = present(object, key);
    if (value == NULL) {
        return MF_STATUS_OK;
    }
    bool whole = json_is_integer(value);
    int64_t number = whole ? json_integer_value(value) : 0;
    if (json_is_real(value)) { /* 1e6 is a common spelling of a count */
        double real = json_real_value(value);
        whole = real == floor(real) && fabs(real) < 0x1p53;
        number = whole ? (int64_t)real : 0;
    }
    if (!whole || number < low || number > high) {
        char wanted[96];
        snprintf(wanted, sizeof(wanted), "a whole number from %lld to %lld", (long long)low,
                 (long long)high);
        return refuse(value, where, key, wanted);
    }
    *out = number;
    return MF_STATUS_OK;
}

enum mf_status mf_json_number(const json_t *object, const char *where, const char *key, double low,
                              double high, double *out)
{
    const json_t *value = present(object, key);
    if (value == NULL) {
        return MF_STATUS_OK;
    }
    double number = json_number_value(value);
    if (!json_is_number(value) || !(number >= low && number <= high)) {
        char wanted[96];
        snprintf(wanted, sizeof(wanted), "a number from %g to %g", low, high);
        return refuse(value, where, key, wanted);
    }
    *out = number;
    return MF_STATUS_OK;
}

enum mf_status mf_json_bool(const json_t *object, const char *where, const char *key, bool *out)
{
    const json_t *value = present(object, key);
    if (value == NULL) {
        return MF_STATUS_OK;
    }
    if (!json_is_boolean(value)) {
        return refuse(value, where, key, "true or false");
    }
    *out = json_is_true(value);
    return MF_STATUS_OK;
}

enum mf_status mf_json_string(const json_t *object, const char *where, const char *key,
                              const char **out)
{
    const json_t *value = present(object, key);
    if (value == NULL) {
        return MF_STATUS_OK;
    }
    if (!json_is_string(value)) {
        return refuse(value, where, key, "a string");
    }
    *out = json_string_value(value);
    return MF_STATUS_OK;
}

enum mf_status mf_json_text(const json_t *object, const char *where, const char *key, char *out,
                            size_t size)
{
    const char *text = NULL;
    MF_TRY(mf_json_string(object, where, key, &text));
    if (text == NULL) {
        return MF_STATUS_OK;
    }
    size_t length = strlen(text);
    if (length >= size) {
        char wanted[64];
        snprintf(wanted, sizeof(wanted), "a string of at most %zu bytes", size - 1);
        return refuse(json_object_get(object, key), where, key, wanted);
    }
    memcpy(out, text, length + 1);
    return MF_STATUS_OK;
}
