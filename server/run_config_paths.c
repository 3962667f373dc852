/* Paths of a run config: from the client's folder, absolute. See run_config_internal.h. */
#include <ctype.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>

#include "server/run_config_internal.h"

enum mf_status mf_run_config_paths_one(struct mf_run_config *config, const char *base,
                                       const char *where, const char *path, const char **out)
{
    while (strncmp(path, "./", 2) == 0 && path[2] != '\0') {
        path += 2;
    }
    size_t length = strlen(path) + (path[0] == '/' ? 0 : strlen(base) + 1);
    if (path[0] == '\0' || length > MF_RUN_PATH_MAX) {
        return mf_status_set(MF_STATUS_INVALID,
                             "%s: a path must have 1 to %d bytes when made absolute, found "
                             "\"%.60s\" with %zu",
                             where, MF_RUN_PATH_MAX, path, path[0] == '\0' ? 0 : length);
    }
    char *whole = path[0] == '/' ? mf_arena_string(&config->arena, path)
                                 : mf_arena_format(&config->arena, "%s%s%s", base,
                                                   strcmp(base, "/") == 0 ? "" : "/", path);
    for (char *end = whole + strlen(whole) - 1; end > whole && *end == '/'; end--) {
        *end = '\0';
    }
    *out = whole;
    return MF_STATUS_OK;
}

enum mf_status mf_run_config_paths_list(struct mf_run_config *config, const json_t *value,
                                        const char *where, const char *key, const char *base,
                                        const char *const **out, int32_t *count)
{
    size_t total = json_is_array(value) ? json_array_size(value) : 1;
    if (total == 0 || total > MF_TOKENS_FILES_MAX) {
        return mf_status_set(MF_STATUS_INVALID, "%s: \"%s\" must name 1 to %d paths", where, key,
                             MF_TOKENS_FILES_MAX);
    }
    const char **list = mf_arena_alloc(&config->arena, total, sizeof(*list));
    for (size_t i = 0; i < total; i++) {
        const json_t *item = json_is_array(value) ? json_array_get(value, i) : value;
        if (!json_is_string(item)) {
            return mf_status_set(MF_STATUS_INVALID, "%s: \"%s\" must be a path or a list of paths",
                                 where, key);
        }
        MF_TRY(mf_run_config_paths_one(config, base, where, json_string_value(item), &list[i]));
    }
    *out = list;
    *count = (int32_t)total;
    return MF_STATUS_OK;
}

/* A folder, a config.json, or a preset's name when there is no such path. */
enum mf_status mf_run_config_paths_model(struct mf_run_config *config, const char *base,
                                         const char *name, bool *shapes)
{
    struct stat there;
    const char *path = NULL;
    MF_TRY(mf_run_config_paths_one(config, base, "memferry.model", name, &path));
    bool found = stat(path, &there) == 0;
    *shapes = false;
    config->model_kind = MF_RUN_MODEL_FOLDER;
    config->model = path;
    if (!found && strchr(name, '/') == NULL) {
        *shapes = true;
        config->model_kind = MF_RUN_MODEL_PRESET;
        config->model = mf_arena_string(&config->arena, name);
    } else if (found && !S_ISDIR(there.st_mode)) {
        const char *slash = strrchr(path, '/');
        if (strcmp(slash, "/config.json") != 0) {
            return mf_status_set(MF_STATUS_INVALID,
                                 "memferry: \"model\" must be a folder, a config.json or a "
                                 "preset's name, found the file %.200s",
                                 path);
        }
        *shapes = true;
        config->model =
            mf_arena_format(&config->arena, "%.*s", slash == path ? 1 : (int)(slash - path), path);
    }
    return MF_STATUS_OK;
}

/* Now, or a little later: jobs that start within one second get folders of their own. */
static time_t own_second(void)
{
    static atomic_llong last;
    long long before = atomic_load(&last);
    long long wanted = 0;
    do {
        long long now = (long long)time(NULL);
        wanted = now > before ? now : before + 1;
    } while (!atomic_compare_exchange_weak(&last, &before, wanted));
    return (time_t)wanted;
}

const char *mf_run_config_paths_output(struct mf_run_config *config, const char *home)
{
    time_t now = own_second();
    struct tm utc;
    char when[32];
    gmtime_r(&now, &utc);
    strftime(when, sizeof(when), "%Y%m%d-%H%M%S", &utc);
    const char *slash = strrchr(config->model, '/');
    char *path = mf_arena_format(&config->arena, "%s/runs/%s-%.64s", home, when,
                                 slash != NULL && slash[1] != '\0' ? slash + 1 : config->model);
    for (char *c = strrchr(path, '/') + 1; *c != '\0'; c++) {
        *c = isalnum((unsigned char)*c) || strchr("-._", *c) != NULL ? *c : '-';
    }
    return path;
}
