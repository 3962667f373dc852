/*
 * Bytes from and to protobuf messages, with what protobuf-c leaves to its caller: a memory budget,
 * a depth limit, UTF-8, and errors as struct mf_error.
 *
 * Who calls it: server (convert, rpc, reflection, health) and client. Owner: an unpacked message is
 * the caller's until mf_wire_free(); packed bytes until free(). Thread: any. Fails: unpacking gives
 * MF_STATUS_INVALID; packing never fails (out of memory ends the process).
 */
#ifndef MF_PROTO_WIRE_H
#define MF_PROTO_WIRE_H

#include <protobuf-c/protobuf-c.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/status.h"

/* Nested messages deeper than this are refused: protobuf-c's parser recurses without a limit. */
#define MF_WIRE_DEPTH_MAX 32

/*
 * Unpacks one message of `descriptor`. `budget_bytes` bounds what the parser may allocate (a small
 * hostile message can grow 45 times); 0 = 16 times `count` + 64 KiB, enough for every message of
 * memferry.v1. Strings must be UTF-8 without NUL bytes. Failures are MF_STATUS_INVALID with reason
 * MESSAGE_MALFORMED, MESSAGE_NOT_UTF8, MESSAGE_TOO_DEEP or MESSAGE_TOO_COMPLEX.
 *
 *     Memferry__V1__GetPlanRequest *request = NULL;
 *     MF_TRY(mf_wire_unpack(&memferry__v1__get_plan_request__descriptor, bytes, count, 0,
 *                           (ProtobufCMessage **)&request));
 */
enum mf_status mf_wire_unpack(const ProtobufCMessageDescriptor *descriptor, const uint8_t *bytes,
                              size_t count, size_t budget_bytes,
                              ProtobufCMessage **out) MF_MUST_USE;
/* Frees what mf_wire_unpack() gave; NULL is nothing. Takes any message pointer. */
void mf_wire_free(void *message);

/* Packs `message` into malloc'ed bytes, owned by the caller. Never NULL, also when *count is 0. */
uint8_t *mf_wire_pack(const ProtobufCMessage *message, size_t *count);

/* True when the `count` bytes are valid UTF-8 (no surrogates, no overlong forms) without NUL. */
bool mf_wire_utf8(const char *text, size_t count);
/* Copies `text` into `out`, at most `size` bytes with the NUL, cut between characters; bytes that
 * are no UTF-8 become '?'. */
void mf_wire_utf8_repair(const char *text, char *out, size_t size);

/*
 * `error` as the bytes of a google.rpc.Status with one google.rpc.ErrorInfo in domain "memferry":
 * reason, status name and numbers. `code` is the gRPC code. malloc'ed, owned by the caller.
 */
uint8_t *mf_wire_error_encode(const struct mf_error *error, int code, size_t *count);
/* Fills status, reason and numbers of `out` from such bytes; the text is left alone. False, with
 * `out` untouched, when they are no such message or of another domain. */
bool mf_wire_error_decode(const uint8_t *bytes, size_t count, struct mf_error *out);

#endif
