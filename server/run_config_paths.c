/* Paths of a run config: from the client's folder, absolute. See run_config.h. */
#include "server/run_config_internal.h"

#include <ctype.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>

const char *mf_run_config_path(struct mf_run_config *config, const char *base, const char *path)
{
    return path[0] == '/' ? mf_arena_string(&config->arena, path)
                          : mf_arena_format(&config->arena, "%s/%s", base, path);
}

enum mf_status mf_run_config_path_list(struct mf_run_config *config, const json_t *value,
                                       const char *where, const char *key, const char *base,
                                       const char *const **out, int32_t *count)
{
    const json_t *single[1] = {value};
    size_t total = json_is_array(value) ? json_array_size(value) : 1;
    const char **list = mf_arena_alloc(&config->arena, total + 1, sizeof(*list));
    for (size_t i = 0; i < total; i++) {
        const json_t *item = json_is_array(value) ? json_array_get(value, i) : single[0];
        if (!json_is_string(item) || json_string_length(item) == 0) {
            return mf_status_set(MF_STATUS_INVALID, "%s: \"%s\" must be a path or a list of paths",
                                 where, key);
        }
        list[i] = mf_run_config_path(config, base, json_string_value(item));
    }
    if (total == 0 || total > MF_TOKENS_FILES_MAX) {
        return mf_status_set(MF_STATUS_INVALID, "%s: \"%s\" must name 1 to %d paths", where, key,
                             MF_TOKENS_FILES_MAX);
    }
    *out = list;
    *count = (int32_t)total;
    return MF_STATUS_OK;
}

/* A folder, the folder of a config.json, or a preset's name when there is no such path. */
void mf_run_config_model(struct mf_run_config *config, const char *base, const char *name)
{
    struct stat there;
    const char *path = mf_run_config_path(config, base, name);
    config->model_kind = MF_RUN_MODEL_FOLDER;
    if (stat(path, &there) != 0) {
        bool looks_like_path = strchr(name, '/') != NULL;
        config->model_kind = looks_like_path ? MF_RUN_MODEL_FOLDER : MF_RUN_MODEL_PRESET;
        config->model = looks_like_path ? path : mf_arena_string(&config->arena, name);
        return;
    }
    const char *slash = strrchr(path, '/');
    config->model = S_ISDIR(there.st_mode)
                        ? path
                        : mf_arena_format(&config->arena, "%.*s", (int)(slash - path), path);
}

const char *mf_run_config_default_output(struct mf_run_config *config, const char *home)
{
    time_t now = time(NULL);
    struct tm utc;
    char when[32];
    gmtime_r(&now, &utc);
    strftime(when, sizeof(when), "%Y%m%d-%H%M%S", &utc);
    const char *slash = strrchr(config->model, '/');
    char *path = mf_arena_format(&config->arena, "%s/runs/%s-%s", home, when,
                                 slash != NULL && slash[1] != '\0' ? slash + 1 : config->model);
    for (char *c = strrchr(path, '/') + 1; *c != '\0'; c++) {
        *c = isalnum((unsigned char)*c) || strchr("-._", *c) != NULL ? *c : '-';
    }
    return path;
}
