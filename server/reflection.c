/* See reflection.h. The descriptor set is read in place: only names and imports are looked at. The
 * messages of v1alpha and v1 are the same bytes, so one handler serves both. */
#include "server/reflection.h"

#include <grpc/status.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/limits.h"
#include "grpc/reflection/v1/reflection.pb-c.h"
#include "proto/wire.h"

#define FILES_MAX 64
#define SERVICES_MAX 64
#define REQUEST_BYTES_MAX 4096

/* Bytes within the descriptor set. */
struct piece {
    const uint8_t *bytes;
    size_t count;
};

struct file {
    struct piece all; /* the FileDescriptorProto */
    struct piece name, package;
};

struct mf_reflection {
    struct mf_rpc_server *server;
    struct mf_rpc_method methods[2];
    struct file files[FILES_MAX];
    size_t file_count;
};

/* Field numbers of google/protobuf/descriptor.proto. */
enum {
    SET_FILE = 1,
    FILE_NAME = 1,
    FILE_PACKAGE = 2,
    FILE_DEPENDENCY = 3,
    FILE_MESSAGE = 4,
    FILE_ENUM = 5,
    FILE_SERVICE = 6,
    ANY_NAME = 1, /* of messages, enums, services, methods */
    MESSAGE_FIELD = 2,
    MESSAGE_NESTED = 3,
    MESSAGE_ENUM = 4,
    SERVICE_METHOD = 2,
};

static bool read_varint(struct piece *from, uint64_t *out)
{
    *out = 0;
    for (unsigned shift = 0; from->count > 0 && shift < 64; shift += 7) {
        uint8_t byte = *from->bytes;
        from->bytes++;
        from->count--;
        *out |= (uint64_t)(byte & 0x7f) << shift;
        if ((byte & 0x80) == 0) {
            return true;
        }
    }
    return false;
}

/* Takes the next length-prefixed field off `from`, passing over numbers. False at the end; `*sound`
 * becomes false when the bytes are damaged. */
static bool next_field(struct piece *from, uint64_t *id, struct piece *value, bool *sound)
{
    while (from->count > 0) {
        uint64_t key = 0;
        uint64_t number = 0;
        if (!read_varint(from, &key) || !read_varint(from, &number) ||
            ((key & 7) != 0 && (key & 7) != 2) || ((key & 7) == 2 && number > from->count)) {
            *sound = false;
            return false;
        }
        if ((key & 7) == 2) {
            *id = key >> 3;
            *value = (struct piece){from->bytes, (size_t)number};
            from->bytes += number;
            from->count -= (size_t)number;
            return true;
        }
    }
    return false;
}

static struct piece field_of(struct piece message, uint64_t wanted)
{
    struct piece value;
    uint64_t id = 0;
    bool sound = true;
    while (next_field(&message, &id, &value, &sound)) {
        if (id == wanted) {
            return value;
        }
    }
    return (struct piece){(const uint8_t *)"", 0};
}

static bool same(struct piece piece, const char *text)
{
    return strlen(text) == piece.count && memcmp(piece.bytes, text, piece.count) == 0;
}

/* Takes "name." or all of "name" off the front of `*symbol`; false when it does not begin so. */
static bool strip(const char **symbol, struct piece name)
{
    if (strncmp(*symbol, (const char *)name.bytes, name.count) != 0) {
        return false;
    }
    char end = (*symbol)[name.count];
    if (end != '\0' && end != '.') {
        return false;
    }
    *symbol += name.count + (end == '.' ? 1 : 0);
    return true;
}

/* Whether the message or service `scope` (its own name still in front of `symbol`) has it. */
static bool defines(struct piece scope, bool service, const char *symbol)
{
    if (!strip(&symbol, field_of(scope, ANY_NAME))) {
        return false;
    }
    bool found = symbol[0] == '\0';
    bool sound = true;
    uint64_t id = 0;
    struct piece value;
    while (!found && next_field(&scope, &id, &value, &sound)) {
        bool named = service ? id == SERVICE_METHOD : id == MESSAGE_ENUM || id == MESSAGE_FIELD;
        found = (named && same(field_of(value, ANY_NAME), symbol)) ||
                (!service && id == MESSAGE_NESTED && defines(value, false, symbol));
    }
    return found;
}

static bool file_defines(const struct file *file, const char *symbol)
{
    if (file->package.count > 0 && !strip(&symbol, file->package)) {
        return false;
    }
    struct piece rest = file->all;
    struct piece value;
    uint64_t id = 0;
    bool found = false;
    bool sound = true;
    while (!found && next_field(&rest, &id, &value, &sound)) {
        found = (id == FILE_MESSAGE && defines(value, false, symbol)) ||
                (id == FILE_SERVICE && defines(value, true, symbol)) ||
                (id == FILE_ENUM && same(field_of(value, ANY_NAME), symbol));
    }
    return found;
}

static int find_file(const struct mf_reflection *reflection, struct piece name)
{
    for (size_t i = 0; i < reflection->file_count; i++) {
        const struct piece *found = &reflection->files[i].name;
        if (found->count == name.count && memcmp(found->bytes, name.bytes, name.count) == 0) {
            return (int)i;
        }
    }
    return -1;
}

static int find_symbol(const struct mf_reflection *reflection, const char *symbol)
{
    for (size_t i = 0; i < reflection->file_count; i++) {
        if (file_defines(&reflection->files[i], symbol)) {
            return (int)i;
        }
    }
    return -1;
}

/* Appends the file and what it imports, each once, the file itself first. */
static void collect(const struct mf_reflection *reflection, int index, bool *taken,
                    ProtobufCBinaryData *out, size_t *count)
{
    if (index < 0 || taken[index]) {
        return;
    }
    taken[index] = true;
    struct piece rest = reflection->files[index].all;
    out[(*count)++] = (ProtobufCBinaryData){rest.count, (uint8_t *)(uintptr_t)rest.bytes};
    struct piece value;
    uint64_t id = 0;
    bool sound = true;
    while (next_field(&rest, &id, &value, &sound)) {
        if (id == FILE_DEPENDENCY) {
            collect(reflection, find_file(reflection, value), taken, out, count);
        }
    }
}

typedef Grpc__Reflection__V1__ServerReflectionRequest reflection_request;
typedef Grpc__Reflection__V1__ServerReflectionResponse reflection_response;

static void send_response(struct mf_rpc_call *call, reflection_response *response)
{
    size_t count = 0;
    uint8_t *bytes = mf_wire_pack(&response->base, &count);
    if (mf_rpc_call_send(call, bytes, count) != MF_STATUS_OK) {
        mf_rpc_call_fail(call, mf_status_error());
    }
    free(bytes);
}

static void respond_error(struct mf_rpc_call *call, reflection_response *response, int code,
                          const char *text)
{
    Grpc__Reflection__V1__ErrorResponse error = GRPC__REFLECTION__V1__ERROR_RESPONSE__INIT;
    error.error_code = code;
    error.error_message = (char *)(uintptr_t)text;
    response->message_response_case =
        GRPC__REFLECTION__V1__SERVER_REFLECTION_RESPONSE__MESSAGE_RESPONSE_ERROR_RESPONSE;
    response->error_response = &error;
    send_response(call, response);
}

static void respond_files(const struct mf_reflection *reflection, struct mf_rpc_call *call,
                          reflection_response *response, int index)
{
    if (index < 0) {
        respond_error(call, response, GRPC_STATUS_NOT_FOUND, "no such file or symbol");
        return;
    }
    bool taken[FILES_MAX] = {false};
    ProtobufCBinaryData files[FILES_MAX];
    Grpc__Reflection__V1__FileDescriptorResponse list =
        GRPC__REFLECTION__V1__FILE_DESCRIPTOR_RESPONSE__INIT;
    list.file_descriptor_proto = files;
    collect(reflection, index, taken, files, &list.n_file_descriptor_proto);
    response->message_response_case =
        GRPC__REFLECTION__V1__SERVER_REFLECTION_RESPONSE__MESSAGE_RESPONSE_FILE_DESCRIPTOR_RESPONSE;
    response->file_descriptor_response = &list;
    send_response(call, response);
}

/* The services that the server has methods of; paths are sorted, so equal ones lie together. */
static void respond_services(const struct mf_reflection *reflection, struct mf_rpc_call *call,
                             reflection_response *response)
{
    char names[SERVICES_MAX][MF_NAME_MAX];
    Grpc__Reflection__V1__ServiceResponse services[SERVICES_MAX];
    Grpc__Reflection__V1__ServiceResponse *pointers[SERVICES_MAX];
    size_t count = 0;
    const char *path = NULL;
    for (size_t i = 0; (path = mf_rpc_server_method(reflection->server, i)) != NULL; i++) {
        int length = (int)strcspn(path + 1, "/");
        if (count > 0 && strncmp(names[count - 1], path + 1, (size_t)length) == 0 &&
            names[count - 1][length] == '\0') {
            continue;
        }
        MF_ASSERT(count < SERVICES_MAX && length < MF_NAME_MAX);
        snprintf(names[count], MF_NAME_MAX, "%.*s", length, path + 1);
        grpc__reflection__v1__service_response__init(&services[count]);
        services[count].name = names[count];
        pointers[count] = &services[count];
        count++;
    }
    Grpc__Reflection__V1__ListServiceResponse list =
        GRPC__REFLECTION__V1__LIST_SERVICE_RESPONSE__INIT;
    list.n_service = count;
    list.service = pointers;
    response->message_response_case =
        GRPC__REFLECTION__V1__SERVER_REFLECTION_RESPONSE__MESSAGE_RESPONSE_LIST_SERVICES_RESPONSE;
    response->list_services_response = &list;
    send_response(call, response);
}

#define ASKED(name) GRPC__REFLECTION__V1__SERVER_REFLECTION_REQUEST__MESSAGE_REQUEST_##name

static void answer(const struct mf_reflection *reflection, struct mf_rpc_call *call,
                   reflection_request *request)
{
    reflection_response response = GRPC__REFLECTION__V1__SERVER_REFLECTION_RESPONSE__INIT;
    response.valid_host = request->host;
    response.original_request = request;
    if (request->message_request_case == ASKED(LIST_SERVICES)) {
        respond_services(reflection, call, &response);
    } else if (request->message_request_case == ASKED(FILE_BY_FILENAME)) {
        const char *name = request->file_by_filename;
        respond_files(reflection, call, &response,
                      find_file(reflection, (struct piece){(const uint8_t *)name, strlen(name)}));
    } else if (request->message_request_case == ASKED(FILE_CONTAINING_SYMBOL)) {
        respond_files(reflection, call, &response,
                      find_symbol(reflection, request->file_containing_symbol));
    } else {
        /* proto3 has no extensions but those of options. */
        respond_error(call, &response, GRPC_STATUS_UNIMPLEMENTED, "no extensions here");
    }
}

static void handle(struct mf_rpc_call *call, const uint8_t *request, size_t bytes, void *context)
{
    if (request == NULL) {
        mf_rpc_call_finish(call);
        return;
    }
    ProtobufCMessage *message = NULL;
    if (mf_wire_unpack(&grpc__reflection__v1__server_reflection_request__descriptor, request, bytes,
                       0, &message) != MF_STATUS_OK) {
        mf_rpc_call_fail(call, mf_status_error());
        return;
    }
    answer(context, call, (reflection_request *)message);
    mf_wire_free(message);
}

enum mf_status mf_reflection_open(struct mf_rpc_server *server, const uint8_t *set, size_t bytes,
                                  struct mf_reflection **out)
{
    static const char *const paths[] = {
        "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo",
        "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo",
    };
    struct mf_reflection *reflection = calloc(1, sizeof(*reflection));
    MF_ASSERT(reflection != NULL);
    reflection->server = server;
    struct piece rest = {set, bytes};
    struct piece value;
    uint64_t id = 0;
    bool sound = true;
    while (next_field(&rest, &id, &value, &sound)) {
        MF_ASSERT(reflection->file_count < FILES_MAX);
        if (id == SET_FILE) {
            reflection->files[reflection->file_count++] =
                (struct file){value, field_of(value, FILE_NAME), field_of(value, FILE_PACKAGE)};
        }
    }
    if (!sound) {
        free(reflection);
        return mf_status_set(MF_STATUS_CORRUPT, "the embedded descriptor set is damaged");
    }
    for (size_t i = 0; i < 2; i++) {
        reflection->methods[i] = (struct mf_rpc_method){.path = paths[i],
                                                        .kind = MF_RPC_BIDI,
                                                        .immediate = true,
                                                        .request_bytes_max = REQUEST_BYTES_MAX,
                                                        .handler = handle,
                                                        .context = reflection};
    }
    mf_rpc_server_add(server, reflection->methods, 2);
    *out = reflection;
    return MF_STATUS_OK;
}

void mf_reflection_close(struct mf_reflection *reflection)
{
    free(reflection);
}
