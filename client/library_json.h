/*
 * Any message of the contract as JSON and back: keys are the field names of the .proto files,
 * enumerators their short form ("stream" for WEIGHT_FORWARD_STREAM).
 *
 * Who calls it: the CLI's --format json, memferry_query(). Owner: an encoded value is the caller's
 * (json_decref); a decoded message lives in the arena given. Thread: any. Fails: decoding gives
 * MF_STATUS_INVALID naming the key.
 */
#ifndef MF_CLIENT_LIBRARY_JSON_H
#define MF_CLIENT_LIBRARY_JSON_H

#include <jansson.h>
#include <protobuf-c/protobuf-c.h>

#include "core/arena.h"
#include "core/status.h"

/* "WEIGHT_FORWARD_STREAM" -> "stream". */
#define MF_LIBRARY_JSON_ENUM_MAX 48

/* Every field, unset ones with their default; of a oneof only the member that is set. Numbers that
 * JSON does not have (infinity, not-a-number) are null. Never NULL. */
json_t *mf_library_json_encode(const ProtobufCMessage *message);
/* Fields that are missing keep their default; unknown keys are refused. */
enum mf_status mf_library_json_decode(const ProtobufCMessageDescriptor *descriptor,
                                      const json_t *json, struct mf_arena *arena,
                                      ProtobufCMessage **out) MF_MUST_USE;
/* The short form of an enumerator; "?" when the contract has none of that value. Returns `out`. */
const char *mf_library_json_enum(const ProtobufCEnumDescriptor *descriptor, int value,
                                 char out[static MF_LIBRARY_JSON_ENUM_MAX]);
/* The value of a short or whole name; -1 when there is none. */
int mf_library_json_enum_value(const ProtobufCEnumDescriptor *descriptor, const char *name);

#endif
