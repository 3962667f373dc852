/* See library_json.h. Walks protobuf-c's descriptors: the offsets in them are what its own packer
 * uses. */
#include "client/library_json.h"

#include <ctype.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "core/format.h"
#include "core/json.h"

#define FIELDS_MAX 64 /* of one message of the contract */

/* Characters of the enumerators that repeat the enum's name: WeightForward -> WEIGHT_FORWARD_. */
static size_t enum_prefix(const ProtobufCEnumDescriptor *descriptor)
{
    size_t length = 0;
    for (const char *at = descriptor->short_name; *at != '\0'; at++) {
        length += isupper((unsigned char)*at) && at != descriptor->short_name ? 2 : 1;
    }
    return length + 1;
}

const char *mf_library_json_enum(const ProtobufCEnumDescriptor *descriptor, int value,
                                 char out[static MF_LIBRARY_JSON_ENUM_MAX])
{
    const ProtobufCEnumValue *found = protobuf_c_enum_descriptor_get_value(descriptor, value);
    snprintf(out, MF_LIBRARY_JSON_ENUM_MAX, "%s",
             found != NULL ? found->name + enum_prefix(descriptor) : "?");
    for (char *at = out; *at != '\0'; at++) {
        *at = (char)tolower((unsigned char)*at);
    }
    return out;
}

int mf_library_json_enum_value(const ProtobufCEnumDescriptor *descriptor, const char *name)
{
    for (unsigned i = 0; i < descriptor->n_values; i++) {
        const char *whole = descriptor->values[i].name;
        if (strcasecmp(whole, name) == 0 ||
            strcasecmp(whole + enum_prefix(descriptor), name) == 0) {
            return descriptor->values[i].value;
        }
    }
    return -1;
}

static json_t *encode_text(const char *text)
{
    json_t *value = json_string(text != NULL ? text : "");
    return value != NULL ? value : json_string("");
}

static json_t *encode_double(double value)
{
    return isfinite(value) ? json_real(value) : json_null();
}

/* One value of `field` at `at`. */
static json_t *encode_value(const ProtobufCFieldDescriptor *field, const void *at)
{
    char name[MF_LIBRARY_JSON_ENUM_MAX];
    switch (field->type) {
    case PROTOBUF_C_TYPE_INT32:
    case PROTOBUF_C_TYPE_SINT32:
    case PROTOBUF_C_TYPE_SFIXED32:
        return json_integer(*(const int32_t *)at);
    case PROTOBUF_C_TYPE_UINT32:
    case PROTOBUF_C_TYPE_FIXED32:
        return json_integer(*(const uint32_t *)at);
    case PROTOBUF_C_TYPE_INT64:
    case PROTOBUF_C_TYPE_SINT64:
    case PROTOBUF_C_TYPE_SFIXED64:
        return json_integer(*(const int64_t *)at);
    case PROTOBUF_C_TYPE_UINT64:
    case PROTOBUF_C_TYPE_FIXED64:
        return json_integer((json_int_t) * (const uint64_t *)at);
    case PROTOBUF_C_TYPE_FLOAT:
        return encode_double((double)*(const float *)at);
    case PROTOBUF_C_TYPE_DOUBLE:
        return encode_double(*(const double *)at);
    case PROTOBUF_C_TYPE_BOOL:
        return json_boolean(*(const protobuf_c_boolean *)at);
    case PROTOBUF_C_TYPE_ENUM:
        return encode_text(mf_library_json_enum(field->descriptor, *(const int *)at, name));
    case PROTOBUF_C_TYPE_STRING:
        return encode_text(*(char *const *)at);
    case PROTOBUF_C_TYPE_MESSAGE: {
        const ProtobufCMessage *message = *(ProtobufCMessage *const *)at;
        return message != NULL ? mf_library_json_encode(message) : json_null();
    }
    case PROTOBUF_C_TYPE_BYTES:
        break; /* The contract has no bytes. */
    }
    return json_null();
}

/* Size of one element of a repeated field of this type. */
static size_t element_size(ProtobufCType type)
{
    switch (type) {
    case PROTOBUF_C_TYPE_INT64:
    case PROTOBUF_C_TYPE_SINT64:
    case PROTOBUF_C_TYPE_SFIXED64:
    case PROTOBUF_C_TYPE_UINT64:
    case PROTOBUF_C_TYPE_FIXED64:
    case PROTOBUF_C_TYPE_DOUBLE:
        return 8;
    case PROTOBUF_C_TYPE_BOOL:
        return sizeof(protobuf_c_boolean);
    case PROTOBUF_C_TYPE_ENUM:
        return sizeof(int);
    case PROTOBUF_C_TYPE_STRING:
    case PROTOBUF_C_TYPE_MESSAGE:
        return sizeof(void *);
    case PROTOBUF_C_TYPE_BYTES:
        return sizeof(ProtobufCBinaryData);
    case PROTOBUF_C_TYPE_INT32:
    case PROTOBUF_C_TYPE_SINT32:
    case PROTOBUF_C_TYPE_SFIXED32:
    case PROTOBUF_C_TYPE_UINT32:
    case PROTOBUF_C_TYPE_FIXED32:
    case PROTOBUF_C_TYPE_FLOAT:
        break;
    }
    return 4;
}

static bool is_oneof(const ProtobufCFieldDescriptor *field)
{
    return (field->flags & PROTOBUF_C_FIELD_FLAG_ONEOF) != 0;
}

json_t *mf_library_json_encode(const ProtobufCMessage *message)
{
    json_t *object = json_object();
    const char *base = (const char *)message;
    for (unsigned i = 0; i < message->descriptor->n_fields; i++) {
        const ProtobufCFieldDescriptor *field = &message->descriptor->fields[i];
        const void *at = base + field->offset;
        if (field->label == PROTOBUF_C_LABEL_REPEATED) {
            json_t *array = json_array();
            size_t count = *(const size_t *)(const void *)(base + field->quantifier_offset);
            const char *elements = *(char *const *)at;
            for (size_t k = 0; k < count; k++) {
                json_array_append_new(
                    array, encode_value(field, elements + k * element_size(field->type)));
            }
            json_object_set_new(object, field->name, array);
        } else if (!is_oneof(field) ||
                   *(const uint32_t *)(const void *)(base + field->quantifier_offset) ==
                       field->id) {
            json_object_set_new(object, field->name, encode_value(field, at));
        }
    }
    return object;
}

static enum mf_status decode_enum(const ProtobufCFieldDescriptor *field, const json_t *json,
                                  int *out)
{
    const char *text = json_string_value(json);
    int value = text != NULL ? mf_library_json_enum_value(field->descriptor, text) : -1;
    if (value < 0) {
        return mf_status_set(MF_STATUS_INVALID, "\"%s\": %s%s%s is no choice", field->name,
                             text != NULL ? "\"" : "", text != NULL ? text : "this value",
                             text != NULL ? "\"" : "");
    }
    *out = value;
    return MF_STATUS_OK;
}

static enum mf_status decode_integer(const ProtobufCFieldDescriptor *field, const json_t *json,
                                     int64_t low, int64_t high, int64_t *out)
{
    if (!json_is_integer(json) || json_integer_value(json) < low ||
        json_integer_value(json) > high) {
        return mf_status_set(MF_STATUS_INVALID, "\"%s\" must be an integer in %lld..%lld",
                             field->name, (long long)low, (long long)high);
    }
    *out = json_integer_value(json);
    return MF_STATUS_OK;
}

static enum mf_status decode_kind(const ProtobufCFieldDescriptor *field, bool right,
                                  const char *kind)
{
    if (right) {
        return MF_STATUS_OK;
    }
    return mf_status_set(MF_STATUS_INVALID, "\"%s\" must be %s", field->name, kind);
}

/* One value of `field` into `at`. */
static enum mf_status decode_value(const ProtobufCFieldDescriptor *field, const json_t *json,
                                   struct mf_arena *arena, void *at)
{
    int64_t integer = 0;
    switch (element_size(field->type)) {
    case 4:
        if (field->type == PROTOBUF_C_TYPE_ENUM) {
            return decode_enum(field, json, at);
        }
        if (field->type == PROTOBUF_C_TYPE_BOOL) {
            MF_TRY(decode_kind(field, json_is_boolean(json), "true or false"));
            *(protobuf_c_boolean *)at = json_is_true(json);
            return MF_STATUS_OK;
        }
        if (field->type == PROTOBUF_C_TYPE_FLOAT) {
            MF_TRY(decode_kind(field, json_is_number(json), "a number"));
            *(float *)at = (float)json_number_value(json);
            return MF_STATUS_OK;
        }
        MF_TRY(decode_integer(field, json, INT32_MIN, INT32_MAX, &integer));
        *(int32_t *)at = (int32_t)integer;
        return MF_STATUS_OK;
    case 8:
        if (field->type == PROTOBUF_C_TYPE_DOUBLE) {
            MF_TRY(decode_kind(field, json_is_number(json), "a number"));
            *(double *)at = json_number_value(json);
            return MF_STATUS_OK;
        }
        if (field->type == PROTOBUF_C_TYPE_STRING) {
            MF_TRY(decode_kind(field, json_is_string(json), "a string"));
            *(char **)at = mf_arena_string(arena, json_string_value(json));
            return MF_STATUS_OK;
        }
        if (field->type == PROTOBUF_C_TYPE_MESSAGE) {
            return mf_library_json_decode(field->descriptor, json, arena, at);
        }
        MF_TRY(decode_integer(field, json, INT64_MIN, INT64_MAX, &integer));
        *(int64_t *)at = integer;
        return MF_STATUS_OK;
    default:
        return mf_status_set(MF_STATUS_UNSUPPORTED, "\"%s\" cannot be given as JSON", field->name);
    }
}

static enum mf_status decode_array(const ProtobufCFieldDescriptor *field, const json_t *json,
                                   struct mf_arena *arena, char *base)
{
    MF_TRY(decode_kind(field, json_is_array(json), "an array"));
    size_t count = json_array_size(json);
    size_t size = element_size(field->type);
    char *elements = mf_arena_alloc(arena, count > 0 ? count : 1, size);
    for (size_t i = 0; i < count; i++) {
        MF_TRY(decode_value(field, json_array_get(json, i), arena, elements + i * size));
    }
    *(size_t *)(void *)(base + field->quantifier_offset) = count;
    *(char **)(void *)(base + field->offset) = elements;
    return MF_STATUS_OK;
}

static enum mf_status decode_field(const ProtobufCFieldDescriptor *field, const json_t *json,
                                   struct mf_arena *arena, char *base)
{
    if (field->label == PROTOBUF_C_LABEL_REPEATED) {
        return decode_array(field, json, arena, base);
    }
    if (is_oneof(field)) {
        uint32_t *which = (uint32_t *)(void *)(base + field->quantifier_offset);
        if (*which != 0) {
            return mf_status_set(MF_STATUS_INVALID, "\"%s\" and another of its kind are both given",
                                 field->name);
        }
        *which = field->id;
    }
    return decode_value(field, json, arena, base + field->offset);
}

enum mf_status mf_library_json_decode(const ProtobufCMessageDescriptor *descriptor,
                                      const json_t *json, struct mf_arena *arena,
                                      ProtobufCMessage **out)
{
    if (!json_is_object(json)) {
        return mf_status_set(MF_STATUS_INVALID, "%s must be a JSON object", descriptor->short_name);
    }
    const char *names[FIELDS_MAX];
    MF_ASSERT(descriptor->n_fields <= FIELDS_MAX);
    for (unsigned i = 0; i < descriptor->n_fields; i++) {
        names[i] = descriptor->fields[i].name;
    }
    MF_TRY(mf_json_only(json, descriptor->short_name, names, descriptor->n_fields));

    ProtobufCMessage *message = mf_arena_alloc(arena, 1, descriptor->sizeof_message);
    protobuf_c_message_init(descriptor, message);
    for (unsigned i = 0; i < descriptor->n_fields; i++) {
        const ProtobufCFieldDescriptor *field = &descriptor->fields[i];
        const json_t *value = json_object_get(json, field->name);
        if (value != NULL && !json_is_null(value)) {
            MF_TRY(decode_field(field, value, arena, (char *)message));
        }
    }
    *out = message;
    return MF_STATUS_OK;
}
