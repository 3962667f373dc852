/* show, rm: see command.h. */
#include <stdlib.h>
#include <string.h>

#include "client/command.h"
#include "client/command_file.h"
#include "client/command_model.h"
#include "client/render_timeline.h"
#include "core/json.h"
#include "proto/wire.h"

#define PLANS (&memferry__v1__plan_service__descriptor)
#define PROFILES (&memferry__v1__profile_service__descriptor)
#define TRAINING (&memferry__v1__training_service__descriptor)

struct options {
    bool all;
    bool discard;
    const char *html; /* file to write; NULL = none */
    struct mf_command_model model;
};

static error_t parse(int key, char *argument, struct argp_state *state, void *input)
{
    struct options *options = input;
    (void)state;
    switch (key) {
    case 'a':
        options->all = true;
        return 0;
    case 'd':
        options->discard = true;
        return 0;
    case 'w':
        options->html = argument;
        return 0;
    default:
        return ARGP_ERR_UNKNOWN;
    }
}

static enum mf_status show_profile(struct mf_command_context *context, const char *name,
                                   struct options *options)
{
    Memferry__V1__GetProfileRequest request = MEMFERRY__V1__GET_PROFILE_REQUEST__INIT;
    Memferry__V1__GetProfileResponse *answer = NULL;
    MF_TRY(mf_command_model_fixed(&options->model));
    MF_TRY(mf_command_model_resolve(&options->model, name));
    request.model = &options->model.model;
    request.workload = &options->model.workload;
    MF_TRY(mf_command_call(context, PROFILES, "GetProfile", &request.base, MF_LIBRARY_CALL_SHORT_MS,
                           (ProtobufCMessage **)&answer));
    if (context->json) {
        mf_command_print_json(context, mf_library_json_encode(&answer->base));
    } else if (answer->profile != NULL) {
        mf_render_profile(&context->render, answer->profile);
    }
    mf_wire_free(answer);
    return MF_STATUS_OK;
}

static enum mf_status get_timeline(struct mf_command_context *context, const char *id,
                                   Memferry__V1__GetTimelineResponse **out)
{
    Memferry__V1__GetTimelineRequest request = MEMFERRY__V1__GET_TIMELINE_REQUEST__INIT;
    request.id = (char *)id;
    request.columns = MF_RENDER_HTML_COLUMNS;
    return mf_command_call(context, PLANS, "GetTimeline", &request.base,
                           MF_LIBRARY_CALL_NO_LIMIT_MS, (ProtobufCMessage **)out);
}

static enum mf_status write_page(const struct mf_command_context *context, const char *path,
                                 const Memferry__V1__Plan *plan,
                                 const Memferry__V1__GetTimelineResponse *timeline,
                                 const Memferry__V1__GetSessionTimelineResponse *session)
{
    FILE *file = NULL;
    MF_TRY(mf_command_file_open(path, &file));
    mf_render_html(file, plan, timeline, session);
    MF_TRY(mf_command_file_close(path, file));
    if (file != stdout && !context->quiet) {
        fprintf(stderr, "%s: open it in a browser\n", path);
    }
    return MF_STATUS_OK;
}

/* A timeline that cannot be made takes nothing from the plan: then it is only said. */
static void print_plan(struct mf_command_context *context, const Memferry__V1__Plan *plan,
                       const struct options *options)
{
    Memferry__V1__GetTimelineResponse *timeline = NULL;
    mf_render_plan(&context->render, plan, NULL, options->all);
    if (get_timeline(context, plan->id, &timeline) == MF_STATUS_OK) {
        fputc('\n', context->render.out);
        mf_render_timeline(&context->render, timeline);
    } else {
        fprintf(stderr, "memferry: no timeline: %s\n", mf_status_text());
    }
    mf_wire_free(timeline);
}

static enum mf_status show_plan(struct mf_command_context *context, const char *id,
                                struct options *options)
{
    Memferry__V1__ShowPlanRequest request = MEMFERRY__V1__SHOW_PLAN_REQUEST__INIT;
    Memferry__V1__ShowPlanResponse *answer = NULL;
    Memferry__V1__GetTimelineResponse *timeline = NULL;
    enum mf_status status = MF_STATUS_OK;
    request.id = (char *)id;
    MF_TRY(mf_command_call(context, PLANS, "ShowPlan", &request.base, MF_LIBRARY_CALL_SHORT_MS,
                           (ProtobufCMessage **)&answer));
    if (answer->plan == NULL) {
        status = mf_status_set(MF_STATUS_CORRUPT, "the daemon answered without a plan");
    } else if (options->html != NULL) {
        MF_TRY_GOTO(get_timeline(context, answer->plan->id, &timeline), out);
        MF_TRY_GOTO(write_page(context, options->html, answer->plan, timeline, NULL), out);
    } else if (context->json) {
        mf_command_print_json(context, mf_library_json_encode(&answer->base));
    } else {
        print_plan(context, answer->plan, options);
    }
out:
    mf_wire_free(timeline);
    mf_wire_free(answer);
    return status;
}

/* As JSON it is the description, which --hardware FILE takes. */
static enum mf_status show_hardware(struct mf_command_context *context, const char *name,
                                    struct options *options)
{
    Memferry__V1__GetHardwareRequest request = MEMFERRY__V1__GET_HARDWARE_REQUEST__INIT;
    Memferry__V1__GetHardwareResponse *answer = NULL;
    json_t *description = NULL;
    enum mf_status status = MF_STATUS_OK;
    (void)options;
    request.name = (char *)(name != NULL ? name : "");
    MF_TRY(mf_command_call(context, &memferry__v1__hardware_service__descriptor, "GetHardware",
                           &request.base, MF_LIBRARY_CALL_SHORT_MS, (ProtobufCMessage **)&answer));
    if (context->json) {
        MF_TRY_GOTO(mf_json_parse(answer->description, strlen(answer->description), "description",
                                  &description),
                    out);
        mf_command_print_json(context, description);
    } else if (answer->hardware != NULL) {
        mf_render_daemon_hardware(&context->render, answer->hardware);
    }
out:
    mf_wire_free(answer);
    return status;
}

static enum mf_status get_session(struct mf_command_context *context, const char *id,
                                  Memferry__V1__GetSessionResponse **out)
{
    Memferry__V1__GetSessionRequest request = MEMFERRY__V1__GET_SESSION_REQUEST__INIT;
    request.session_id = (char *)id;
    MF_TRY(mf_command_call(context, TRAINING, "GetSession", &request.base, MF_LIBRARY_CALL_SHORT_MS,
                           (ProtobufCMessage **)out));
    if ((*out)->session == NULL) {
        mf_wire_free(*out);
        *out = NULL;
        return mf_status_set(MF_STATUS_CORRUPT, "the daemon answered without a session");
    }
    return MF_STATUS_OK;
}

/* A session that has ended, which the daemon remembers only in its list. */
static enum mf_status show_past(struct mf_command_context *context, const char *id)
{
    Memferry__V1__ListSessionsRequest request = MEMFERRY__V1__LIST_SESSIONS_REQUEST__INIT;
    Memferry__V1__ListSessionsResponse *list = NULL;
    const Memferry__V1__Session *found = NULL;
    size_t count = 0;
    request.past = true;
    MF_TRY(mf_command_call(context, TRAINING, "ListSessions", &request.base,
                           MF_LIBRARY_CALL_SHORT_MS, (ProtobufCMessage **)&list));
    for (size_t i = 0; i < list->n_sessions; i++) {
        if (strncmp(list->sessions[i]->id, id, strlen(id)) == 0) {
            found = list->sessions[i];
            count++;
        }
    }
    if (count == 1 && context->json) {
        mf_command_print_json(context,
                              json_pack("{s:o}", "session", mf_library_json_encode(&found->base)));
    } else if (count == 1) {
        mf_render_session(&context->render, found);
    }
    mf_wire_free(list);
    if (count == 1) {
        return MF_STATUS_OK;
    }
    return mf_status_set(MF_STATUS_NOT_FOUND,
                         "%s session begins with \"%s\" (memferry ls sessions)",
                         count == 0 ? "no" : "more than one", id);
}

/* The plan's page with what the session did last. */
static enum mf_status write_session_page(struct mf_command_context *context,
                                         const Memferry__V1__Session *session, const char *path)
{
    Memferry__V1__GetSessionTimelineRequest request =
        MEMFERRY__V1__GET_SESSION_TIMELINE_REQUEST__INIT;
    Memferry__V1__ShowPlanRequest plan_request = MEMFERRY__V1__SHOW_PLAN_REQUEST__INIT;
    Memferry__V1__GetSessionTimelineResponse *ran = NULL;
    Memferry__V1__ShowPlanResponse *plan = NULL;
    Memferry__V1__GetTimelineResponse *timeline = NULL;
    enum mf_status status = MF_STATUS_OK;
    request.session_id = session->id;
    request.columns = MF_RENDER_HTML_COLUMNS;
    plan_request.id = session->plan_id;
    MF_TRY_GOTO(mf_command_call(context, TRAINING, "GetSessionTimeline", &request.base,
                                MF_LIBRARY_CALL_NO_LIMIT_MS, (ProtobufCMessage **)&ran),
                out);
    MF_TRY_GOTO(mf_command_call(context, PLANS, "ShowPlan", &plan_request.base,
                                MF_LIBRARY_CALL_SHORT_MS, (ProtobufCMessage **)&plan),
                out);
    MF_TRY_GOTO(get_timeline(context, session->plan_id, &timeline), out);
    status = plan->plan != NULL
                 ? write_page(context, path, plan->plan, timeline, ran)
                 : mf_status_set(MF_STATUS_CORRUPT, "the daemon answered without a plan");
out:
    mf_wire_free(timeline);
    mf_wire_free(plan);
    mf_wire_free(ran);
    return status;
}

static enum mf_status show_session(struct mf_command_context *context, const char *id,
                                   struct options *options)
{
    Memferry__V1__GetSessionResponse *answer = NULL;
    enum mf_status status = get_session(context, id, &answer);
    if (status == MF_STATUS_NOT_FOUND && options->html == NULL) {
        return show_past(context, id);
    }
    MF_TRY(status);
    if (options->html != NULL) {
        status = write_session_page(context, answer->session, options->html);
    } else if (context->json) {
        mf_command_print_json(context, mf_library_json_encode(&answer->base));
    } else {
        mf_render_session(&context->render, answer->session);
    }
    mf_wire_free(answer);
    return status;
}

static enum mf_status remove_plan(struct mf_command_context *context, const char *id,
                                  struct options *options)
{
    Memferry__V1__DeletePlanRequest request = MEMFERRY__V1__DELETE_PLAN_REQUEST__INIT;
    Memferry__V1__DeletePlanResponse *answer = NULL;
    (void)options;
    request.id = (char *)id;
    MF_TRY(mf_command_call(context, PLANS, "DeletePlan", &request.base, MF_LIBRARY_CALL_SHORT_MS,
                           (ProtobufCMessage **)&answer));
    mf_wire_free(answer);
    return MF_STATUS_OK;
}

static enum mf_status remove_profile(struct mf_command_context *context, const char *id,
                                     struct options *options)
{
    Memferry__V1__DeleteProfileRequest request = MEMFERRY__V1__DELETE_PROFILE_REQUEST__INIT;
    Memferry__V1__DeleteProfileResponse *answer = NULL;
    (void)options;
    request.hardware_fingerprint = (char *)id;
    MF_TRY(mf_command_call(context, PROFILES, "DeleteProfile", &request.base,
                           MF_LIBRARY_CALL_SHORT_MS, (ProtobufCMessage **)&answer));
    mf_wire_free(answer);
    return MF_STATUS_OK;
}

/* A job is stopped, so that its checkpoint is saved; a session is closed. */
static enum mf_status remove_session(struct mf_command_context *context, const char *id,
                                     struct options *options)
{
    Memferry__V1__GetSessionResponse *found = NULL;
    ProtobufCMessage *answer = NULL;
    enum mf_status status = MF_STATUS_OK;
    MF_TRY(get_session(context, id, &found));
    if (found->session->steps_total > 0 && found->session->ended_unix_seconds == 0) {
        Memferry__V1__StopRunRequest request = MEMFERRY__V1__STOP_RUN_REQUEST__INIT;
        request.session_id = found->session->id;
        request.discard = options->discard;
        status = mf_command_call(context, TRAINING, "StopRun", &request.base,
                                 MF_LIBRARY_CALL_SHORT_MS, &answer);
        if (status == MF_STATUS_OK && !context->quiet) {
            fprintf(stderr, "the job stops after its present step%s\n",
                    options->discard ? "" : " and saves a checkpoint");
        }
    } else {
        Memferry__V1__CloseSessionRequest request = MEMFERRY__V1__CLOSE_SESSION_REQUEST__INIT;
        request.session_id = found->session->id;
        status = mf_command_call(context, TRAINING, "CloseSession", &request.base,
                                 MF_LIBRARY_CALL_SHORT_MS, &answer);
    }
    mf_wire_free(answer);
    mf_wire_free(found);
    return status;
}

struct kind {
    const char *name;
    enum mf_status (*run)(struct mf_command_context *context, const char *id,
                          struct options *options);
};

static enum mf_status dispatch(const struct mf_command_line *line, const char *verb,
                               const struct kind *kinds, size_t count, struct options *options)
{
    for (size_t i = 0; i < count; i++) {
        if (strcmp(line->values[0], kinds[i].name) == 0) {
            if (line->value_count < 2 && kinds[i].run != show_hardware) {
                fprintf(stderr, "memferry %s %s: an argument is missing\n", verb, kinds[i].name);
                exit(MF_COMMAND_EXIT_USAGE);
            }
            if (options->html != NULL && kinds[i].run != show_plan &&
                kinds[i].run != show_session) {
                fprintf(stderr, "memferry %s %s: --html is for plans and sessions\n", verb,
                        kinds[i].name);
                exit(MF_COMMAND_EXIT_USAGE);
            }
            return kinds[i].run(line->context, line->values[1], options);
        }
    }
    fprintf(stderr, "memferry %s: \"%s\" is none of profile, plan, session%s\n", verb,
            line->values[0], count > 3 ? ", hardware" : "");
    exit(MF_COMMAND_EXIT_USAGE);
}

enum mf_status mf_command_show_run(struct mf_command_context *context, int argc, char **argv)
{
    static const struct argp_option argp_options[] = {
        {"all", 'a', NULL, 0, "Of a plan: a row for every unit", 0},
        {"html", 'w', "FILE", 0,
         "Of a plan: write a page for a browser instead, with lanes and memory over time; of a "
         "session that is open, also what it did last beside what was predicted; - is standard "
         "output",
         0},
        {0}};
    static const struct kind kinds[] = {{"profile", show_profile},
                                        {"plan", show_plan},
                                        {"session", show_session},
                                        {"hardware", show_hardware}};
    struct options options = {0};
    struct mf_command_line line = {
        .context = context,
        .arguments = "profile MODEL\nplan ID\nsession ID\nhardware [NAME]",
        .help = "One thing whole. ID may be its first digits. Without NAME it is this machine; as "
                "JSON a machine is a description that --hardware takes. The flags of workload "
                "matter for a "
                "profile: they decide which kernels the model needs.",
        .values_min = 1,
        .values_max = 2,
        .options = argp_options,
        .parse = parse,
        .input = &options,
        .model = &options.model};
    mf_command_model_init(&options.model);
    mf_command_parse(&line, argc, argv);
    enum mf_status status = dispatch(&line, "show", kinds, 4, &options);
    mf_command_model_reset(&options.model);
    return status;
}

enum mf_status mf_command_show_rm(struct mf_command_context *context, int argc, char **argv)
{
    static const struct argp_option argp_options[] = {
        {"discard", 'd', NULL, 0, "Of a job: save no checkpoint", 0}, {0}};
    static const struct kind kinds[] = {
        {"profile", remove_profile}, {"plan", remove_plan}, {"session", remove_session}};
    struct options options = {0};
    struct mf_command_line line = {
        .context = context,
        .arguments = "profile ID\nplan ID\nsession ID",
        .help = "Forgets a plan or the measurements of a hardware, ends a session. A job ends "
                "after its present step and saves a checkpoint.",
        .values_min = 2,
        .values_max = 2,
        .options = argp_options,
        .parse = parse,
        .input = &options};
    mf_command_parse(&line, argc, argv);
    return dispatch(&line, "rm", kinds, 3, &options);
}
