/* struct mf_error as google.rpc.Status and back: the error half of wire.h. */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/limits.h"
#include "google/protobuf/any.pb-c.h"
#include "google/rpc/error_details.pb-c.h"
#include "google/rpc/status.pb-c.h"
#include "proto/wire.h"

#define DOMAIN_NAME "memferry"
#define TYPE_URL "type.googleapis.com/google.rpc.ErrorInfo"
#define STATUS_KEY "status"
#define ENTRIES_MAX (MF_ERROR_NUMBERS_MAX + 1)

typedef Google__Rpc__ErrorInfo__MetadataEntry entry;

static void entry_init(entry *out, char *key, char *value)
{
    google__rpc__error_info__metadata_entry__init(out);
    out->key = key;
    out->value = value;
}

/* The packed ErrorInfo of `error`. */
static uint8_t *info_pack(const struct mf_error *error, size_t *count)
{
    char keys[ENTRIES_MAX][MF_ERROR_NUMBER_NAME_MAX] = {STATUS_KEY};
    char values[ENTRIES_MAX][MF_ERROR_NUMBER_NAME_MAX];
    entry entries[ENTRIES_MAX];
    entry *pointers[ENTRIES_MAX];
    char reason[MF_ERROR_REASON_MAX];

    size_t entry_count = error->number_count + 1;
    MF_ASSERT(entry_count <= ENTRIES_MAX);
    snprintf(values[0], sizeof(values[0]), "%s", mf_status_name(error->status));
    for (size_t i = 1; i < entry_count; i++) {
        mf_wire_utf8_repair(error->numbers[i - 1].name, keys[i], sizeof(keys[i]));
        snprintf(values[i], sizeof(values[i]), "%" PRId64, error->numbers[i - 1].value);
    }
    for (size_t i = 0; i < entry_count; i++) {
        entry_init(&entries[i], keys[i], values[i]);
        pointers[i] = &entries[i];
    }
    const char *name = error->reason[0] != '\0' ? error->reason : mf_status_name(error->status);
    mf_wire_utf8_repair(name, reason, sizeof(reason));

    Google__Rpc__ErrorInfo info = GOOGLE__RPC__ERROR_INFO__INIT;
    info.reason = reason;
    info.domain = (char *)DOMAIN_NAME;
    info.n_metadata = entry_count;
    info.metadata = pointers;
    return mf_wire_pack(&info.base, count);
}

uint8_t *mf_wire_error_encode(const struct mf_error *error, int code, size_t *count)
{
    char text[MF_STATUS_TEXT_MAX];
    mf_wire_utf8_repair(error->text, text, sizeof(text));

    Google__Protobuf__Any any = GOOGLE__PROTOBUF__ANY__INIT;
    Google__Protobuf__Any *details[] = {&any};
    any.type_url = (char *)TYPE_URL;
    any.value.data = info_pack(error, &any.value.len);

    Google__Rpc__Status status = GOOGLE__RPC__STATUS__INIT;
    status.code = code;
    status.message = text;
    status.n_details = 1;
    status.details = details;
    uint8_t *bytes = mf_wire_pack(&status.base, count);
    free(any.value.data);
    return bytes;
}

static enum mf_status status_parse(const char *name)
{
    for (int i = 0; i < MF_STATUS_COUNT; i++) {
        if (strcmp(name, mf_status_name((enum mf_status)i)) == 0) {
            return (enum mf_status)i;
        }
    }
    return MF_STATUS_INTERNAL;
}

static void info_read(const Google__Rpc__ErrorInfo *info, struct mf_error *out)
{
    out->number_count = 0;
    snprintf(out->reason, sizeof(out->reason), "%s", info->reason);
    for (size_t i = 0; i < info->n_metadata; i++) {
        const entry *pair = info->metadata[i];
        if (strcmp(pair->key, STATUS_KEY) == 0) {
            enum mf_status status = status_parse(pair->value);
            out->status = status != MF_STATUS_OK ? status : MF_STATUS_INTERNAL;
            /* Without a reason of its own an error carries its status' name as one. */
            if (strcmp(out->reason, pair->value) == 0) {
                out->reason[0] = '\0';
            }
            continue;
        }
        char *end = NULL;
        errno = 0;
        long long value = strtoll(pair->value, &end, 10);
        if (end == pair->value || *end != '\0' || errno != 0 ||
            out->number_count == MF_ERROR_NUMBERS_MAX) {
            continue;
        }
        size_t index = out->number_count++;
        snprintf(out->numbers[index].name, sizeof(out->numbers[index].name), "%s", pair->key);
        out->numbers[index].value = value;
    }
}

bool mf_wire_error_decode(const uint8_t *bytes, size_t count, struct mf_error *out)
{
    ProtobufCMessage *message = NULL;
    if (mf_wire_unpack(&google__rpc__status__descriptor, bytes, count, 0, &message) !=
        MF_STATUS_OK) {
        return false;
    }
    const Google__Rpc__Status *status = (const Google__Rpc__Status *)message;
    bool found = false;
    for (size_t i = 0; i < status->n_details && !found; i++) {
        const Google__Protobuf__Any *any = status->details[i];
        ProtobufCMessage *detail = NULL;
        if (strcmp(any->type_url, TYPE_URL) != 0 ||
            mf_wire_unpack(&google__rpc__error_info__descriptor, any->value.data, any->value.len, 0,
                           &detail) != MF_STATUS_OK) {
            continue;
        }
        const Google__Rpc__ErrorInfo *info = (const Google__Rpc__ErrorInfo *)detail;
        if (strcmp(info->domain, DOMAIN_NAME) == 0) {
            info_read(info, out);
            found = true;
        }
        mf_wire_free(detail);
    }
    mf_wire_free(message);
    return found;
}
