/* Hostile and honest bytes through proto/wire.h, and errors through it and back. */
#include "harness.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "google/rpc/error_details.pb-c.h"
#include "google/rpc/status.pb-c.h"
#include "proto/wire.h"

static const ProtobufCMessageDescriptor *const status_type = &google__rpc__status__descriptor;

static void test_round_trip(void **state)
{
    (void)state;
    Google__Rpc__Status status = GOOGLE__RPC__STATUS__INIT;
    status.code = 5;
    status.message = (char *)"gr\xc3\xbc\xc3\x9f";
    size_t count = 0;
    uint8_t *bytes = mf_wire_pack(&status.base, &count);
    ProtobufCMessage *message = NULL;
    assert_ok(mf_wire_unpack(status_type, bytes, count, 0, &message));
    assert_int_equal(((Google__Rpc__Status *)message)->code, 5);
    assert_string_equal(((Google__Rpc__Status *)message)->message, status.message);
    mf_wire_free(message);
    free(bytes);
    assert_ok(mf_wire_unpack(status_type, NULL, 0, 0, &message));
    mf_wire_free(message);
    mf_wire_free(NULL);
}

static void refuse(const char *bytes, size_t count, const char *reason)
{
    ProtobufCMessage *message = NULL;
    assert_status(mf_wire_unpack(status_type, (const uint8_t *)bytes, count, 0, &message),
                  MF_STATUS_INVALID);
    assert_null(message);
    assert_string_equal(mf_status_error()->reason, reason);
}

static void test_refused(void **state)
{
    (void)state;
    refuse("\x12\x02\xff\xfe", 4, "MESSAGE_NOT_UTF8");
    refuse("\x12\x02"
           "a\0",
           4, "MESSAGE_NOT_UTF8");
    refuse("\x12\x03\xed\xa0\x80", 5, "MESSAGE_NOT_UTF8");     /* A surrogate. */
    refuse("\x12\x02\xc0\x80", 4, "MESSAGE_NOT_UTF8");         /* Overlong. */
    refuse("\x1a\x04\x0a\x02\xff\xff", 6, "MESSAGE_NOT_UTF8"); /* One level down. */
    refuse("\x12\x05", 2, "MESSAGE_MALFORMED");                /* Cut short. */
    refuse("\x12\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff", 11, "MESSAGE_MALFORMED");
    refuse("\x13", 1, "MESSAGE_MALFORMED");     /* A group. */
    refuse("\x02\x00", 2, "MESSAGE_MALFORMED"); /* Field 0. */
    refuse("\xff", 1, "MESSAGE_MALFORMED");
}

static void test_budget(void **state)
{
    (void)state;
    size_t count = 2u << 20;
    uint8_t *bytes = malloc(count);
    for (size_t i = 0; i < count; i += 2) {
        bytes[i] = 0x1a; /* An empty detail. */
        bytes[i + 1] = 0;
    }
    ProtobufCMessage *message = NULL;
    assert_status(mf_wire_unpack(status_type, bytes, count, 0, &message), MF_STATUS_INVALID);
    assert_string_equal(mf_status_error()->reason, "MESSAGE_TOO_COMPLEX");
    assert_ok(mf_wire_unpack(status_type, bytes, 1000, 0, &message));
    mf_wire_free(message);
    free(bytes);
}

static void test_random_bytes(void **state)
{
    (void)state;
    for (int round = 0; round < 20000; round++) {
        uint8_t bytes[64];
        size_t count = harness_random_below(sizeof(bytes));
        for (size_t i = 0; i < count; i++) {
            bytes[i] = (uint8_t)(harness_random() & (round % 2 == 0 ? 0x1f : 0xff));
        }
        ProtobufCMessage *message = NULL;
        struct mf_error error = {.status = MF_STATUS_OK};
        if (mf_wire_unpack(status_type, bytes, count, 0, &message) == MF_STATUS_OK) {
            mf_wire_free(message);
        }
        (void)mf_wire_error_decode(bytes, count, &error);
    }
}

static void test_repair(void **state)
{
    (void)state;
    char out[8];
    mf_wire_utf8_repair("ab\xff"
                        "c",
                        out, sizeof(out));
    assert_string_equal(out, "ab?c");
    mf_wire_utf8_repair("abcdef\xc3\xa4", out, sizeof(out)); /* No half characters. */
    assert_string_equal(out, "abcdef");
    assert_true(mf_wire_utf8("\xf0\x9f\x9a\xa2", 4));
    assert_false(mf_wire_utf8("\xf0\x9f\x9a", 3));
}

static void test_errors(void **state)
{
    (void)state;
    for (int i = 1; i < MF_STATUS_COUNT; i++) {
        struct mf_error error = {.status = (enum mf_status)i, .number_count = 1};
        snprintf(error.numbers[0].name, sizeof(error.numbers[0].name), "needed_bytes");
        error.numbers[0].value = INT64_MIN + i;
        snprintf(error.reason, sizeof(error.reason), "%s", i % 2 == 0 ? "SOME_REASON" : "");
        size_t count = 0;
        uint8_t *bytes = mf_wire_error_encode(&error, 13, &count);
        struct mf_error decoded = {.status = MF_STATUS_OK, .text = "kept"};
        assert_true(mf_wire_error_decode(bytes, count, &decoded));
        assert_int_equal(decoded.status, i);
        assert_string_equal(decoded.reason, error.reason);
        assert_string_equal(decoded.text, "kept");
        assert_int_equal(decoded.number_count, 1);
        assert_int_equal(decoded.numbers[0].value, error.numbers[0].value);
        free(bytes);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_round_trip), cmocka_unit_test(test_refused),
        cmocka_unit_test(test_budget),     cmocka_unit_test(test_random_bytes),
        cmocka_unit_test(test_repair),     cmocka_unit_test(test_errors),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
