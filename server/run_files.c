/* A job's files: the run folder, checkpoints, and coming back to one of them. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "core/log.h"
#include "runtime/files.h"
#include "server/run_internal.h"

static enum mf_status write_json(const char *folder, const char *name, json_t *value)
{
    struct mf_arena arena;
    mf_arena_init(&arena);
    char *text = json_dumps(value, JSON_INDENT(2) | JSON_REAL_PRECISION(17));
    MF_ASSERT(text != NULL);
    enum mf_status status =
        mf_files_write(mf_arena_format(&arena, "%s/%s", folder, name), text, strlen(text));
    free(text);
    json_decref(value);
    mf_arena_reset(&arena);
    return status;
}

/* A new job would mix its checkpoints with those of an older one, and rotation would delete them.
 */
static enum mf_status refuse_used(const struct mf_run *run)
{
    const char *folder = run->config->output;
    struct mf_files_checkpoint *list = NULL;
    struct mf_arena arena;
    int32_t count = 0;
    if (run->session->spec.resume != NULL && run->session->spec.resume[0] != '\0') {
        return MF_STATUS_OK;
    }
    mf_arena_init(&arena);
    enum mf_status status = mf_files_list_checkpoints(folder, &arena, &list, &count);
    if (status == MF_STATUS_OK && count > 0) {
        status = mf_status_set_reason(MF_STATUS_EXISTS, "RUN_FOLDER_USED",
                                      "%s holds checkpoints of an earlier job (the last at step "
                                      "%lld): continue it with --resume latest, or name another "
                                      "output",
                                      folder, (long long)list[count - 1].step);
    }
    mf_arena_reset(&arena);
    return status;
}

enum mf_status mf_run_files_prepare(struct mf_run *run)
{
    const char *folder = run->config->output;
    MF_TRY(mf_files_make_folder(folder));
    MF_TRY(refuse_used(run));
    MF_TRY(write_json(folder, "run.json", mf_run_config_resolved(run->config)));
    return write_json(folder, "plan.json", mf_plan_encode(&run->session->plan));
}

static json_t *encode_state(const struct mf_run *run)
{
    json_t *state = json_pack("{s:I, s:s, s:I, s:i}", "run_step", (json_int_t)run->step,
                              "data_fingerprint", mf_tokens_describe(run->train)->fingerprint,
                              "sequences_per_step", (json_int_t)run->sequences_per_step,
                              "skipped_in_a_row", (int)run->skipped_in_a_row);
    MF_ASSERT(state != NULL);
    return state;
}

/* Old checkpoints go only once the new one is complete. Those beyond this step are of an earlier
 * try and do not count: the one just written must never be the first to go. */
static void rotate(const struct mf_run *run)
{
    struct mf_files_checkpoint *list = NULL;
    struct mf_arena arena;
    int32_t count = 0;
    mf_arena_init(&arena);
    if (run->config->save_total_limit > 0 &&
        mf_files_list_checkpoints(run->config->output, &arena, &list, &count) == MF_STATUS_OK) {
        while (count > 0 && list[count - 1].step > run->step) {
            count--;
        }
        for (int32_t i = 0; i + run->config->save_total_limit < count; i++) {
            if (mf_files_remove_tree(list[i].path) != MF_STATUS_OK) {
                mf_log_warn("%s", mf_status_text());
            }
        }
    }
    mf_arena_reset(&arena);
}

/* Writes the folder; one of an earlier try at the same steps stays until the new one is complete.
 */
static enum mf_status save(struct mf_run *run, const char *folder, struct mf_arena *arena)
{
    const char *old = mf_arena_format(arena, "%s.old", folder);
    MF_TRY(mf_files_remove_tree(old));
    bool replaces = rename(folder, old) == 0;
    json_t *state = encode_state(run);
    enum mf_status status = mf_session_state_save(run->session, folder, false, state);
    json_decref(state);
    if (replaces && status == MF_STATUS_OK && mf_files_remove_tree(old) != MF_STATUS_OK) {
        mf_log_warn("%s", mf_status_text());
    } else if (replaces && status != MF_STATUS_OK && rename(old, folder) != 0) {
        mf_log_warn("the earlier checkpoint %s is now %s", folder, old);
    }
    return status;
}

enum mf_status mf_run_files_save(struct mf_run *run)
{
    if (run->saved_step == run->step) {
        return MF_STATUS_OK;
    }
    struct mf_arena arena;
    mf_arena_init(&arena);
    char *folder =
        mf_arena_format(&arena, "%s/checkpoint-%lld", run->config->output, (long long)run->step);
    enum mf_status status = save(run, folder, &arena);
    if (status == MF_STATUS_OK) {
        run->saved_step = run->step;
        rotate(run);
        Memferry__V1__RunResponse event = MEMFERRY__V1__RUN_RESPONSE__INIT;
        event.event_case = MEMFERRY__V1__RUN_RESPONSE__EVENT_CHECKPOINT;
        event.checkpoint = folder;
        mf_session_event_run(run->session, &event);
    }
    mf_arena_reset(&arena);
    return status;
}

/* Whether the folder was written by us: nothing else is replaced. */
static bool is_ours(const char *folder, struct mf_arena *arena)
{
    return access(mf_arena_format(arena, "%s/DONE", folder), F_OK) == 0 &&
           access(mf_arena_format(arena, "%s/state.json", folder), F_OK) == 0;
}

enum mf_status mf_run_files_export(struct mf_run *run)
{
    const struct mf_run_config *config = run->config;
    struct mf_arena arena;
    if (config->final_name[0] == '\0') {
        return MF_STATUS_OK;
    }
    mf_arena_init(&arena);
    char *folder = mf_arena_format(&arena, "%s/%s", config->output, config->final_name);
    enum mf_status status = is_ours(folder, &arena) ? mf_files_remove_tree(folder) : MF_STATUS_OK;
    if (status == MF_STATUS_OK) {
        status = mf_session_state_save(run->session, folder, true, NULL);
    }
    if (status == MF_STATUS_OK) {
        mf_log_info("session %.8s: the weights are in %s", run->session->id, folder);
    }
    mf_arena_reset(&arena);
    return status;
}

/* The folder to resume from, in `arena`; "latest" is the highest complete one. */
static enum mf_status find_checkpoint(const struct mf_run *run, struct mf_arena *arena,
                                      const char **out)
{
    const char *wanted = run->session->spec.resume;
    struct mf_files_checkpoint *list = NULL;
    int32_t count = 0;
    if (strcmp(wanted, "latest") != 0) {
        *out = wanted;
        return MF_STATUS_OK;
    }
    MF_TRY(mf_files_list_checkpoints(run->config->output, arena, &list, &count));
    if (count == 0) {
        return mf_status_set(MF_STATUS_NOT_FOUND,
                             "there is no complete checkpoint in %s: start without --resume",
                             run->config->output);
    }
    *out = list[count - 1].path;
    return MF_STATUS_OK;
}

static enum mf_status check_state(const struct mf_run *run, const char *folder, const json_t *state,
                                  bool optimizer)
{
    const char *fingerprint = json_string_value(json_object_get(state, "data_fingerprint"));
    int64_t per_step = json_integer_value(json_object_get(state, "sequences_per_step"));
    if (!optimizer || fingerprint == NULL) {
        return mf_status_set(MF_STATUS_INVALID,
                             "%s is not a checkpoint of a job: it has no %s; to start from its "
                             "weights, name it as the model",
                             folder, optimizer ? "place in the data" : "optimizer state");
    }
    if (strcmp(fingerprint, mf_tokens_describe(run->train)->fingerprint) != 0) {
        return mf_status_set(MF_STATUS_INVALID,
                             "the data has changed since %s was written: its order cannot be "
                             "continued",
                             folder);
    }
    if (per_step != run->sequences_per_step) {
        return mf_status_set(MF_STATUS_INVALID,
                             "%s was trained with %lld sequences a step, this run has %lld: keep "
                             "micro-batch times accumulation",
                             folder, (long long)per_step, (long long)run->sequences_per_step);
    }
    return MF_STATUS_OK;
}

enum mf_status mf_run_files_resume(struct mf_run *run)
{
    struct mf_arena arena;
    const char *folder = NULL;
    bool optimizer = false;
    json_t *state = NULL;
    if (run->session->spec.resume == NULL || run->session->spec.resume[0] == '\0') {
        return MF_STATUS_OK;
    }
    mf_arena_init(&arena);
    enum mf_status status = find_checkpoint(run, &arena, &folder);
    if (status == MF_STATUS_OK) {
        mf_session_event_progress(run->session, "loading checkpoint", 0);
        status = mf_session_state_load(run->session, folder, &optimizer, &state);
    }
    if (status == MF_STATUS_OK) {
        status = check_state(run, folder, state, optimizer);
    }
    if (status == MF_STATUS_OK) {
        run->step = json_integer_value(json_object_get(state, "run_step"));
        run->skipped_in_a_row =
            (int32_t)json_integer_value(json_object_get(state, "skipped_in_a_row"));
        run->saved_step = run->step;
        mf_log_info("session %.8s continues at step %lld from %s", run->session->id,
                    (long long)run->step, folder);
    }
    json_decref(state);
    mf_arena_reset(&arena);
    return status;
}
