/* Which folders clients may name: see config.h. */
#include <errno.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>

#include "server/config.h"

/* Resolves `path`; parts at its end that do not exist are kept as they are, without dots. */
static enum mf_status resolve(const char *path, char out[static MF_CONFIG_PATH_MAX])
{
    char head[MF_CONFIG_PATH_MAX];
    char resolved[PATH_MAX];
    size_t length = strlen(path);
    if (path[0] != '/' || length >= sizeof(head)) {
        return mf_status_set(MF_STATUS_INVALID,
                             "\"%.200s\" is no absolute path of at most %d bytes", path,
                             MF_CONFIG_PATH_MAX - 1);
    }
    memcpy(head, path, length + 1);
    while (realpath(head, resolved) == NULL) {
        char *slash = strrchr(head, '/');
        if (errno != ENOENT || strcmp(slash, "/.") == 0 || strcmp(slash, "/..") == 0) {
            return mf_status_set(errno == EACCES ? MF_STATUS_DENIED : MF_STATUS_NOT_FOUND, "%s: %s",
                                 path, strerror(errno));
        }
        slash[slash == head ? 1 : 0] = 0;
    }
    const char *rest = path + strlen(head);
    rest += *rest == '/' ? 1 : 0;
    bool root = strcmp(resolved, "/") == 0;
    int wrote = snprintf(out, MF_CONFIG_PATH_MAX, "%s%s%s", root ? "" : resolved,
                         *rest != 0 || root ? "/" : "", rest);
    return wrote >= 0 && wrote < MF_CONFIG_PATH_MAX
               ? MF_STATUS_OK
               : mf_status_set(MF_STATUS_INVALID, "%s: its real path is too long", path);
}

static bool lies_under(const char *path, const char *root)
{
    size_t length = strlen(root);
    return strcmp(root, "/") == 0 ||
           (strncmp(path, root, length) == 0 && (path[length] == '/' || path[length] == 0));
}

enum mf_status mf_config_allow(const struct mf_config *config, const char *path,
                               char out[static MF_CONFIG_PATH_MAX])
{
    char home[MF_CONFIG_PATH_MAX];
    MF_TRY(resolve(path, out));
    if (config->root_count == 0 && config->tcp[0] == 0) {
        return MF_STATUS_OK;
    }
    for (int32_t i = 0; i < config->root_count; i++) {
        if (lies_under(out, config->roots[i])) {
            return MF_STATUS_OK;
        }
    }
    /* Runs lie there. */
    if (resolve(config->home, home) == MF_STATUS_OK && lies_under(out, home)) {
        return MF_STATUS_OK;
    }
    return mf_status_set_reason(MF_STATUS_DENIED, "PATH_NOT_ALLOWED",
                                "%s lies under none of the folders that clients may name: start "
                                "memferryd with --root FOLDER",
                                path);
}
