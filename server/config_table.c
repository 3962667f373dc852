/* The table of all settings, and one value into its place. */
#include "server/config_table.h"

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "core/format.h"

static const char *const levels[] = {"error", "warn", "info", "debug", NULL};
static const char *const formats[] = {"plain", "json", NULL};
static const char *const devices[] = {"auto", "host", "cuda", NULL};

#define AT(field) offsetof(struct mf_config, field)
#define TEXT(field) MF_CONFIG_TABLE_TEXT, AT(field), sizeof(((struct mf_config *)0)->field)
#define BYTES_MAX (1ll << 50)

const struct mf_config_table_row mf_config_table[MF_CONFIG_TABLE_ROWS] = {
    {"service", "socket", "socket", "PATH", TEXT(socket), "", 0, 0, NULL,
     "unix socket; default: memferry/memferryd.sock in $XDG_RUNTIME_DIR, or in /run for root"},
    {"service", "socket_mode", "socket-mode", "MODE", MF_CONFIG_TABLE_MODE, AT(socket_mode), 0,
     "0660", 0600, 0777, NULL, "who may connect, as in chmod"},
    {"service", "tcp", "tcp", "HOST:PORT", TEXT(tcp), "", 0, 0, NULL,
     "listen on TCP too, on this machine's own addresses; default: off"},
    {"service", "home", "home", "FOLDER", TEXT(home), "", 0, 0, NULL,
     "store and runs; default: $MEMFERRY_HOME, else $XDG_STATE_HOME/memferry, else "
     "~/.local/state/memferry (root: /var/lib/memferry)"},
    {"service", "root", "root", "FOLDER", MF_CONFIG_TABLE_PATHS, AT(roots), 0, "", 0, 0, NULL,
     "folder that clients may name, may be given several times; default: every folder, but only "
     "`home' with --tcp"},
    {"service", "log_level", "log-level", "LEVEL", MF_CONFIG_TABLE_CHOICE, AT(log_level), 0, "info",
     0, 0, levels, "error, warn, info or debug"},
    {"service", "log_format", "log-format", "FORMAT", MF_CONFIG_TABLE_CHOICE, AT(log_json), 0,
     "plain", 0, 0, formats, "plain or json"},
    {"device", "kind", "device", "KIND", MF_CONFIG_TABLE_CHOICE, AT(device), 0, "auto", 0, 0,
     devices, "host (CPU cores), cuda, or auto: cuda where there is one"},
    {"device", "index", "device-index", "N", MF_CONFIG_TABLE_INT, AT(device_index), 0, "0", 0, 63,
     NULL, "which GPU"},
    {"device", "memory", "device-memory", "SIZE", MF_CONFIG_TABLE_BYTES, AT(device_memory), 0, "0",
     0, BYTES_MAX, NULL, "device memory for all sessions; 0 = all there is"},
    {"device", "threads", "threads", "N", MF_CONFIG_TABLE_INT, AT(threads), 0, "0", 0, 1024, NULL,
     "compute threads of the host device; 0 = all cores"},
    {"device", "emulate_h2d", "emulate-h2d", "SIZE", MF_CONFIG_TABLE_BYTES, AT(emulate_h2d), 0, "0",
     0, BYTES_MAX, NULL,
     "host device: act as if the link to the device moved SIZE a second; 0 = as fast as memory"},
    {"device", "emulate_d2h", "emulate-d2h", "SIZE", MF_CONFIG_TABLE_BYTES, AT(emulate_d2h), 0, "0",
     0, BYTES_MAX, NULL, "the same from the device; one of the two stands for both"},
    {"host", "memory", "host-memory", "SIZE", MF_CONFIG_TABLE_BYTES, AT(host_memory), 0, "0", 0,
     BYTES_MAX, NULL, "host memory for all sessions; 0 = what is available, less a reserve"},
    {"limits", "sessions", "sessions", "N", MF_CONFIG_TABLE_INT, AT(sessions_max), 0, "8", 1,
     MF_SESSIONS_MAX, NULL, "sessions at the same time"},
    {"limits", "lease", "lease", "SECONDS", MF_CONFIG_TABLE_INT, AT(lease_seconds), 0, "600", 10,
     86400, NULL, "a session without a call ends after this"},
};
_Static_assert(MF_CONFIG_TABLE_ROWS <= MF_CONFIG_SETTINGS_MAX, "one origin for each row");

enum mf_status mf_config_table_refuse(const char *where, const char *value, const char *wanted)
{
    return mf_status_set(MF_STATUS_INVALID, "%s: \"%s\" is not %s", where, value, wanted);
}

static enum mf_status set_number(const struct mf_config_table_row *setting, const char *where,
                                 const char *value, int base, int32_t *out)
{
    char wanted[80];
    char *end = NULL;
    errno = 0;
    long long number = strtoll(value, &end, base);
    if (errno != 0 || end == value || *end != 0 || number < setting->low ||
        number > setting->high) {
        (void)snprintf(wanted, sizeof(wanted),
                       base == 8 ? "a mode from %#llo to %#llo"
                                 : "a whole number from %lld to %lld",
                       (long long)setting->low, (long long)setting->high);
        return mf_config_table_refuse(where, value, wanted);
    }
    *out = (int32_t)number;
    return MF_STATUS_OK;
}

static enum mf_status set_bytes(const struct mf_config_table_row *setting, const char *where,
                                const char *value, int64_t *out)
{
    if (mf_format_parse_bytes(value, out) != MF_STATUS_OK) {
        return mf_status_context(MF_STATUS_INVALID, "%s", where);
    }
    return *out >= setting->low && *out <= setting->high
               ? MF_STATUS_OK
               : mf_config_table_refuse(where, value, "a size from 0 to 1 PiB");
}

static enum mf_status set_choice(const struct mf_config_table_row *setting, const char *where,
                                 const char *value, int32_t *out)
{
    for (int32_t i = 0; setting->choices[i] != NULL; i++) {
        if (strcmp(value, setting->choices[i]) == 0) {
            *out = i;
            return MF_STATUS_OK;
        }
    }
    return mf_config_table_refuse(where, value, setting->help);
}

static enum mf_status set_text(const struct mf_config_table_row *setting, const char *where,
                               const char *value, char *out)
{
    if (strlen(value) >= setting->size) {
        return mf_status_set(MF_STATUS_INVALID, "%s: longer than %zu bytes", where,
                             setting->size - 1);
    }
    memcpy(out, value, strlen(value) + 1);
    return MF_STATUS_OK;
}

static enum mf_status add_root(struct mf_config *config, const char *where, const char *value)
{
    char resolved[PATH_MAX];
    struct stat info;
    if (config->root_count == MF_ROOTS_MAX) {
        return mf_status_set(MF_STATUS_INVALID, "%s: more than %d folders", where, MF_ROOTS_MAX);
    }
    if (realpath(value, resolved) == NULL || stat(resolved, &info) != 0) {
        return mf_status_set(MF_STATUS_INVALID, "%s: \"%s\": %s", where, value, strerror(errno));
    }
    if (!S_ISDIR(info.st_mode) || strlen(resolved) >= MF_CONFIG_PATH_MAX) {
        return mf_config_table_refuse(where, value, "a folder");
    }
    memcpy(config->roots[config->root_count++], resolved, strlen(resolved) + 1);
    return MF_STATUS_OK;
}

enum mf_status mf_config_table_set(struct mf_config *config, size_t row,
                                   enum mf_config_table_origin origin, const char *where,
                                   const char *value)
{
    const struct mf_config_table_row *setting = &mf_config_table[row];
    void *field = (char *)config + setting->offset;
    bool again = config->origins[row] == origin;
    config->origins[row] = (uint8_t)origin;
    switch (setting->type) {
    case MF_CONFIG_TABLE_TEXT:
        return set_text(setting, where, value, field);
    case MF_CONFIG_TABLE_INT:
        return set_number(setting, where, value, 10, field);
    case MF_CONFIG_TABLE_MODE:
        return set_number(setting, where, value, 8, field);
    case MF_CONFIG_TABLE_BYTES:
        return set_bytes(setting, where, value, field);
    case MF_CONFIG_TABLE_CHOICE:
        return set_choice(setting, where, value, field);
    case MF_CONFIG_TABLE_PATHS:
        break;
    }
    config->root_count = again ? config->root_count : 0; /* a stronger source replaces the list */
    return value[0] == 0 ? MF_STATUS_OK : add_root(config, where, value);
}
