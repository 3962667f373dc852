/* ps, ls: see command.h. */
#include <stdlib.h>
#include <string.h>

#include "client/command.h"
#include "proto/wire.h"

/* Prints an answer as JSON, or through `table`. Frees it. */
#define PRINT_ANSWER(context, answer, table)                                                       \
    do {                                                                                           \
        if ((context)->json) {                                                                     \
            mf_command_print_json(context, mf_library_json_encode(&(answer)->base));               \
        } else {                                                                                   \
            table;                                                                                 \
        }                                                                                          \
        mf_wire_free(answer);                                                                      \
    } while (0)

static enum mf_status list_sessions(struct mf_command_context *context, bool past)
{
    Memferry__V1__ListSessionsRequest request = MEMFERRY__V1__LIST_SESSIONS_REQUEST__INIT;
    Memferry__V1__ListSessionsResponse *answer = NULL;
    request.past = past;
    MF_TRY(mf_command_call(context, &memferry__v1__training_service__descriptor, "ListSessions",
                           &request.base, MF_LIBRARY_CALL_SHORT_MS, (ProtobufCMessage **)&answer));
    PRINT_ANSWER(context, answer,
                 mf_render_session_list(&context->render, answer->sessions, answer->n_sessions));
    return MF_STATUS_OK;
}

static enum mf_status list_past(struct mf_command_context *context)
{
    return list_sessions(context, true);
}

static enum mf_status list_models(struct mf_command_context *context)
{
    Memferry__V1__ListModelsRequest request = MEMFERRY__V1__LIST_MODELS_REQUEST__INIT;
    Memferry__V1__ListModelsResponse *answer = NULL;
    MF_TRY(mf_command_call(context, &memferry__v1__plan_service__descriptor, "ListModels",
                           &request.base, MF_LIBRARY_CALL_SHORT_MS, (ProtobufCMessage **)&answer));
    PRINT_ANSWER(context, answer, mf_render_list_models(&context->render, answer));
    return MF_STATUS_OK;
}

static enum mf_status list_plans(struct mf_command_context *context)
{
    Memferry__V1__ListPlansRequest request = MEMFERRY__V1__LIST_PLANS_REQUEST__INIT;
    Memferry__V1__ListPlansResponse *answer = NULL;
    MF_TRY(mf_command_call(context, &memferry__v1__plan_service__descriptor, "ListPlans",
                           &request.base, MF_LIBRARY_CALL_SHORT_MS, (ProtobufCMessage **)&answer));
    PRINT_ANSWER(context, answer, mf_render_list_plans(&context->render, answer));
    return MF_STATUS_OK;
}

static enum mf_status list_hardware(struct mf_command_context *context)
{
    Memferry__V1__ListHardwareRequest request = MEMFERRY__V1__LIST_HARDWARE_REQUEST__INIT;
    Memferry__V1__ListHardwareResponse *answer = NULL;
    MF_TRY(mf_command_call(context, &memferry__v1__hardware_service__descriptor, "ListHardware",
                           &request.base, MF_LIBRARY_CALL_SHORT_MS, (ProtobufCMessage **)&answer));
    PRINT_ANSWER(context, answer, mf_render_list_hardware(&context->render, answer));
    return MF_STATUS_OK;
}

static enum mf_status list_profiles(struct mf_command_context *context)
{
    Memferry__V1__ListProfilesRequest request = MEMFERRY__V1__LIST_PROFILES_REQUEST__INIT;
    Memferry__V1__ListProfilesResponse *answer = NULL;
    MF_TRY(mf_command_call(context, &memferry__v1__profile_service__descriptor, "ListProfiles",
                           &request.base, MF_LIBRARY_CALL_SHORT_MS, (ProtobufCMessage **)&answer));
    PRINT_ANSWER(context, answer, mf_render_list_profiles(&context->render, answer));
    return MF_STATUS_OK;
}

enum mf_status mf_command_list_ps(struct mf_command_context *context, int argc, char **argv)
{
    struct mf_command_line line = {
        .context = context,
        .arguments = "",
        .help = "Sessions and jobs that hold memory now; memferry ls sessions lists also those "
                "that ended."};
    mf_command_parse(&line, argc, argv);
    return list_sessions(context, false);
}

enum mf_status mf_command_list_ls(struct mf_command_context *context, int argc, char **argv)
{
    static const struct {
        const char *name;
        enum mf_status (*list)(struct mf_command_context *context);
    } lists[] = {{"models", list_models},
                 {"profiles", list_profiles},
                 {"plans", list_plans},
                 {"sessions", list_past},
                 {"hardware", list_hardware}};
    const char *names[sizeof(lists) / sizeof(lists[0])];
    struct mf_command_line line = {.context = context,
                                   .arguments = "models|profiles|plans|sessions|hardware",
                                   .help = "Lists what the daemon knows: models seen and presets, "
                                           "profiles, plans in the store, sessions also past, "
                                           "machines that plans can be made for.",
                                   .values_min = 1,
                                   .values_max = 1};
    mf_command_parse(&line, argc, argv);
    size_t count = sizeof(lists) / sizeof(lists[0]);
    for (size_t i = 0; i < count; i++) {
        names[i] = lists[i].name;
        /* "plan" does for "plans". */
        size_t length = strlen(lists[i].name);
        if (strcmp(line.values[0], lists[i].name) == 0 ||
            (strlen(line.values[0]) == length - 1 &&
             strncmp(line.values[0], lists[i].name, length - 1) == 0)) {
            return lists[i].list(context);
        }
    }
    const char *nearest = mf_format_nearest(line.values[0], names, count);
    fprintf(stderr,
            "memferry ls: \"%s\" is none of models, profiles, plans, sessions, hardware%s%s%s\n",
            line.values[0], nearest != NULL ? "; did you mean \"" : "",
            nearest != NULL ? nearest : "", nearest != NULL ? "\"?" : "");
    exit(MF_COMMAND_EXIT_USAGE);
}
