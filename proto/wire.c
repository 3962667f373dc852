/* See wire.h. A message is scanned on its raw bytes before protobuf-c parses it, because the parsed
 * form has lost what must be checked: the length of a string with a NUL in it, and the stack that a
 * deep message has already used. */
#include "proto/wire.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define BUDGET_FACTOR 16
#define BUDGET_FLOOR_BYTES (64u << 10)
#define VARINT_BYTES_MAX 10

struct budget {
    size_t left_bytes;
    bool exceeded;
};

static void *budget_alloc(void *data, size_t size)
{
    struct budget *budget = data;
    if (size > budget->left_bytes) {
        budget->exceeded = true;
        return NULL;
    }
    budget->left_bytes -= size;
    return malloc(size > 0 ? size : 1);
}

static void budget_free(void *data, void *pointer)
{
    (void)data;
    free(pointer);
}

/* The number of bytes of the UTF-8 character at `text`, 0 when it is none or a NUL. */
static size_t utf8_length(const unsigned char *text, size_t count)
{
    static const struct {
        unsigned char lead_low, lead_high, next_low, next_high, bytes;
    } forms[] = {
        {0x01, 0x7f, 0x00, 0x00, 1}, {0xc2, 0xdf, 0x80, 0xbf, 2}, {0xe0, 0xe0, 0xa0, 0xbf, 3},
        {0xe1, 0xec, 0x80, 0xbf, 3}, {0xed, 0xed, 0x80, 0x9f, 3}, {0xee, 0xef, 0x80, 0xbf, 3},
        {0xf0, 0xf0, 0x90, 0xbf, 4}, {0xf1, 0xf3, 0x80, 0xbf, 4}, {0xf4, 0xf4, 0x80, 0x8f, 4},
    };
    for (size_t i = 0; i < sizeof(forms) / sizeof(forms[0]); i++) {
        if (text[0] < forms[i].lead_low || text[0] > forms[i].lead_high) {
            continue;
        }
        if (forms[i].bytes > count) {
            return 0;
        }
        for (size_t k = 1; k < forms[i].bytes; k++) {
            unsigned char low = k == 1 ? forms[i].next_low : 0x80;
            unsigned char high = k == 1 ? forms[i].next_high : 0xbf;
            if (text[k] < low || text[k] > high) {
                return 0;
            }
        }
        return forms[i].bytes;
    }
    return 0;
}

bool mf_wire_utf8(const char *text, size_t count)
{
    for (size_t at = 0; at < count;) {
        size_t bytes = utf8_length((const unsigned char *)text + at, count - at);
        if (bytes == 0) {
            return false;
        }
        at += bytes;
    }
    return true;
}

void mf_wire_utf8_repair(const char *text, char *out, size_t size)
{
    size_t used = 0;
    size_t count = strlen(text);
    for (size_t at = 0; at < count;) {
        size_t bytes = utf8_length((const unsigned char *)text + at, count - at);
        size_t step = bytes > 0 ? bytes : 1;
        if (used + step + 1 > size) {
            break;
        }
        if (bytes > 0) {
            memcpy(out + used, text + at, bytes);
        } else {
            out[used] = '?';
        }
        used += step;
        at += step;
    }
    out[used] = '\0';
}

static bool read_varint(const uint8_t *bytes, size_t count, size_t *at, uint64_t *out)
{
    uint64_t value = 0;
    for (unsigned i = 0; i < VARINT_BYTES_MAX && *at < count; i++) {
        uint8_t byte = bytes[(*at)++];
        value |= (uint64_t)(byte & 0x7f) << (7 * i);
        if ((byte & 0x80) == 0) {
            *out = value;
            return true;
        }
    }
    return false;
}

static enum mf_status malformed(const ProtobufCMessageDescriptor *descriptor)
{
    return mf_status_set_reason(MF_STATUS_INVALID, "MESSAGE_MALFORMED",
                                "the bytes are not a message of type %s", descriptor->name);
}

static enum mf_status scan(const ProtobufCMessageDescriptor *descriptor, const uint8_t *bytes,
                           size_t count, int depth);

/* One length-prefixed field whose `bytes` lie within the message. */
static enum mf_status scan_value(const ProtobufCMessageDescriptor *descriptor, uint32_t id,
                                 const uint8_t *bytes, size_t count, int depth)
{
    const ProtobufCFieldDescriptor *field = protobuf_c_message_descriptor_get_field(descriptor, id);
    if (field == NULL) {
        return MF_STATUS_OK;
    }
    if (field->type == PROTOBUF_C_TYPE_STRING && !mf_wire_utf8((const char *)bytes, count)) {
        return mf_status_set_reason(MF_STATUS_INVALID, "MESSAGE_NOT_UTF8",
                                    "%s.%s is not UTF-8 text, or has a NUL byte in it",
                                    descriptor->name, field->name);
    }
    if (field->type == PROTOBUF_C_TYPE_MESSAGE) {
        return scan(field->descriptor, bytes, count, depth + 1);
    }
    return MF_STATUS_OK;
}

static enum mf_status scan(const ProtobufCMessageDescriptor *descriptor, const uint8_t *bytes,
                           size_t count, int depth)
{
    if (depth > MF_WIRE_DEPTH_MAX) {
        enum mf_status status =
            mf_status_set_reason(MF_STATUS_INVALID, "MESSAGE_TOO_DEEP",
                                 "the message is nested deeper than %d levels (in %s)",
                                 MF_WIRE_DEPTH_MAX, descriptor->name);
        mf_status_number("depth_max", MF_WIRE_DEPTH_MAX);
        return status;
    }
    size_t at = 0;
    while (at < count) {
        uint64_t key = 0;
        uint64_t value = 0;
        if (!read_varint(bytes, count, &at, &key) || key > UINT32_MAX || key >> 3 == 0) {
            return malformed(descriptor);
        }
        switch (key & 7) {
        case PROTOBUF_C_WIRE_TYPE_VARINT:
            if (!read_varint(bytes, count, &at, &value)) {
                return malformed(descriptor);
            }
            continue;
        case PROTOBUF_C_WIRE_TYPE_64BIT:
            value = 8;
            break;
        case PROTOBUF_C_WIRE_TYPE_32BIT:
            value = 4;
            break;
        case PROTOBUF_C_WIRE_TYPE_LENGTH_PREFIXED:
            if (!read_varint(bytes, count, &at, &value) || value > count - at) {
                return malformed(descriptor);
            }
            MF_TRY(scan_value(descriptor, (uint32_t)(key >> 3), bytes + at, (size_t)value, depth));
            break;
        default: /* Groups, which proto3 does not have. */
            return malformed(descriptor);
        }
        if (value > count - at) {
            return malformed(descriptor);
        }
        at += (size_t)value;
    }
    return MF_STATUS_OK;
}

enum mf_status mf_wire_unpack(const ProtobufCMessageDescriptor *descriptor, const uint8_t *bytes,
                              size_t count, size_t budget_bytes, ProtobufCMessage **out)
{
    static const uint8_t nothing[1];
    *out = NULL;
    bytes = bytes != NULL ? bytes : nothing;
    MF_TRY(scan(descriptor, bytes, count, 0));

    size_t limit = budget_bytes > 0 ? budget_bytes : BUDGET_FACTOR * count + BUDGET_FLOOR_BYTES;
    struct budget budget = {.left_bytes = limit};
    ProtobufCAllocator allocator = {budget_alloc, budget_free, &budget};
    *out = protobuf_c_message_unpack(descriptor, &allocator, count, bytes);
    if (*out != NULL) {
        return MF_STATUS_OK;
    }
    if (!budget.exceeded) {
        return malformed(descriptor);
    }
    enum mf_status status = mf_status_set_reason(
        MF_STATUS_INVALID, "MESSAGE_TOO_COMPLEX",
        "a message of type %s with %zu bytes needs more than %zu bytes of memory to read",
        descriptor->name, count, limit);
    mf_status_number("message_bytes", (int64_t)count);
    mf_status_number("budget_bytes", (int64_t)limit);
    return status;
}

void mf_wire_free(void *message)
{
    /* The budget's allocator is malloc underneath, so protobuf-c's own free fits. */
    protobuf_c_message_free_unpacked(message, NULL);
}

uint8_t *mf_wire_pack(const ProtobufCMessage *message, size_t *count)
{
    size_t bytes = protobuf_c_message_get_packed_size(message);
    uint8_t *packed = malloc(bytes > 0 ? bytes : 1);
    MF_ASSERT(packed != NULL);
    *count = protobuf_c_message_pack(message, packed);
    return packed;
}
