/* The daemon's settings: see config.h. */
#include "server/config.h"

#include <argp.h>
#include <ctype.h>
#include <errno.h>
#include <ini.h>
#include <limits.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/format.h"
#include "core/log.h"

#define SYSTEM_FILE "/etc/memferry/memferryd.ini"
#define VALUE_MAX 2048
#define FLAGS_MAX 128 /* on one command line */

enum type { TYPE_TEXT, TYPE_PATHS, TYPE_INT, TYPE_MODE, TYPE_BYTES, TYPE_CHOICE };
enum origin { ORIGIN_DEFAULT, ORIGIN_FILE, ORIGIN_ENVIRONMENT, ORIGIN_FLAG };

struct setting {
    const char *section;
    const char *key;  /* in the file */
    const char *flag; /* --flag; MEMFERRYD_FLAG */
    const char *argument;
    enum type type;
    size_t offset;
    size_t size;         /* of a text */
    const char *initial; /* "" = found out at start */
    int64_t low, high;
    const char *const *choices; /* NULL at the end */
    const char *help;
};

static const char *const levels[] = {"error", "warn", "info", "debug", NULL};
static const char *const formats[] = {"plain", "json", NULL};
static const char *const devices[] = {"auto", "host", "cuda", NULL};

#define AT(field) offsetof(struct mf_config, field)
#define TEXT(field) TYPE_TEXT, AT(field), sizeof(((struct mf_config *)0)->field)
#define BYTES_MAX (1ll << 50)

static const struct setting settings[] = {
    {"service", "socket", "socket", "PATH", TEXT(socket), "", 0, 0, NULL,
     "unix socket; default: memferry/memferryd.sock in $XDG_RUNTIME_DIR, or in /run for root"},
    {"service", "socket_mode", "socket-mode", "MODE", TYPE_MODE, AT(socket_mode), 0, "0660", 0600,
     0777, NULL, "who may connect, as in chmod"},
    {"service", "tcp", "tcp", "HOST:PORT", TEXT(tcp), "", 0, 0, NULL,
     "listen on TCP too, on this machine's own addresses; default: off"},
    {"service", "home", "home", "FOLDER", TEXT(home), "", 0, 0, NULL,
     "store and runs; default: $MEMFERRY_HOME, else $XDG_STATE_HOME/memferry, else "
     "~/.local/state/memferry (root: /var/lib/memferry)"},
    {"service", "root", "root", "FOLDER", TYPE_PATHS, AT(roots), 0, "", 0, 0, NULL,
     "folder that clients may name, may be given several times; default: every folder, but only "
     "`home' with --tcp"},
    {"service", "log_level", "log-level", "LEVEL", TYPE_CHOICE, AT(log_level), 0, "info", 0, 0,
     levels, "error, warn, info or debug"},
    {"service", "log_format", "log-format", "FORMAT", TYPE_CHOICE, AT(log_json), 0, "plain", 0, 0,
     formats, "plain or json"},
    {"device", "kind", "device", "KIND", TYPE_CHOICE, AT(device), 0, "auto", 0, 0, devices,
     "host (CPU cores), cuda, or auto: cuda where there is one"},
    {"device", "index", "device-index", "N", TYPE_INT, AT(device_index), 0, "0", 0, 63, NULL,
     "which GPU"},
    {"device", "memory", "device-memory", "SIZE", TYPE_BYTES, AT(device_memory), 0, "0", 0,
     BYTES_MAX, NULL, "device memory for all sessions; 0 = all there is"},
    {"device", "threads", "threads", "N", TYPE_INT, AT(threads), 0, "0", 0, 1024, NULL,
     "compute threads of the host device; 0 = all cores"},
    {"device", "emulate_h2d", "emulate-h2d", "SIZE", TYPE_BYTES, AT(emulate_h2d), 0, "0", 0,
     BYTES_MAX, NULL,
     "host device: act as if the link to the device moved SIZE a second; 0 = as fast as memory"},
    {"device", "emulate_d2h", "emulate-d2h", "SIZE", TYPE_BYTES, AT(emulate_d2h), 0, "0", 0,
     BYTES_MAX, NULL, "the same from the device; one of the two stands for both"},
    {"host", "memory", "host-memory", "SIZE", TYPE_BYTES, AT(host_memory), 0, "0", 0, BYTES_MAX,
     NULL, "host memory for all sessions; 0 = what is available, less a reserve"},
    {"limits", "sessions", "sessions", "N", TYPE_INT, AT(sessions_max), 0, "8", 1, MF_SESSIONS_MAX,
     NULL, "sessions at the same time"},
    {"limits", "lease", "lease", "SECONDS", TYPE_INT, AT(lease_seconds), 0, "600", 10, 86400, NULL,
     "a session without a call ends after this"},
};
#define SETTINGS (sizeof(settings) / sizeof(settings[0]))
_Static_assert(SETTINGS <= MF_CONFIG_SETTINGS_MAX, "one origin for each row");

/* ---- one value ---- */

static enum mf_status refuse(const char *where, const char *value, const char *wanted)
{
    return mf_status_set(MF_STATUS_INVALID, "%s: \"%s\" is not %s", where, value, wanted);
}

static enum mf_status set_number(const struct setting *setting, const char *where,
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
        return refuse(where, value, wanted);
    }
    *out = (int32_t)number;
    return MF_STATUS_OK;
}

static enum mf_status set_bytes(const struct setting *setting, const char *where, const char *value,
                                int64_t *out)
{
    if (mf_format_parse_bytes(value, out) != MF_STATUS_OK) {
        return mf_status_context(MF_STATUS_INVALID, "%s", where);
    }
    return *out >= setting->low && *out <= setting->high
               ? MF_STATUS_OK
               : refuse(where, value, "a size from 0 to 1 PiB");
}

static enum mf_status set_choice(const struct setting *setting, const char *where,
                                 const char *value, int32_t *out)
{
    for (int32_t i = 0; setting->choices[i] != NULL; i++) {
        if (strcmp(value, setting->choices[i]) == 0) {
            *out = i;
            return MF_STATUS_OK;
        }
    }
    return refuse(where, value, setting->help);
}

static enum mf_status set_text(const struct setting *setting, const char *where, const char *value,
                               char *out)
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
        return refuse(where, value, "a folder");
    }
    memcpy(config->roots[config->root_count++], resolved, strlen(resolved) + 1);
    return MF_STATUS_OK;
}

static enum mf_status set(struct mf_config *config, size_t row, enum origin origin,
                          const char *where, const char *value)
{
    const struct setting *setting = &settings[row];
    void *field = (char *)config + setting->offset;
    bool again = config->origins[row] == origin;
    config->origins[row] = (uint8_t)origin;
    switch (setting->type) {
    case TYPE_TEXT:
        return set_text(setting, where, value, field);
    case TYPE_INT:
        return set_number(setting, where, value, 10, field);
    case TYPE_MODE:
        return set_number(setting, where, value, 8, field);
    case TYPE_BYTES:
        return set_bytes(setting, where, value, field);
    case TYPE_CHOICE:
        return set_choice(setting, where, value, field);
    case TYPE_PATHS:
        break;
    }
    config->root_count = again ? config->root_count : 0; /* a stronger source replaces the list */
    return value[0] == 0 ? MF_STATUS_OK : add_root(config, where, value);
}

/* ---- sources ---- */

static enum mf_status set_defaults(struct mf_config *config)
{
    *config = (struct mf_config){0};
    for (size_t row = 0; row < SETTINGS; row++) {
        MF_TRY(set(config, row, ORIGIN_DEFAULT, settings[row].flag, settings[row].initial));
    }
    return MF_STATUS_OK;
}

struct reading {
    struct mf_config *config;
    const char *path;
    enum mf_status status; /* of the first line that was wrong */
    struct mf_error error;
};

static enum mf_status unknown_key(const char *path, const char *section, const char *key)
{
    const char *names[SETTINGS];
    char full[VALUE_MAX];
    char known[SETTINGS][64];
    for (size_t row = 0; row < SETTINGS; row++) {
        (void)snprintf(known[row], sizeof(known[row]), "%s.%s", settings[row].section,
                       settings[row].key);
        names[row] = known[row];
    }
    (void)snprintf(full, sizeof(full), "%s.%s", section, key);
    const char *nearest = mf_format_nearest(full, names, SETTINGS);
    return mf_status_set(MF_STATUS_INVALID, "%s: there is no setting \"%s\" in [%s]%s%s%s", path,
                         key, section, nearest != NULL ? "; do you mean \"" : "",
                         nearest != NULL ? nearest : "", nearest != NULL ? "\"?" : "");
}

static int on_line(void *context, const char *section, const char *key, const char *value)
{
    struct reading *reading = context;
    enum mf_status status = MF_STATUS_OK;
    size_t row = 0;
    while (row < SETTINGS &&
           (strcmp(settings[row].section, section) != 0 || strcmp(settings[row].key, key) != 0)) {
        row++;
    }
    if (row == SETTINGS) {
        status = unknown_key(reading->path, section, key);
    } else {
        char where[VALUE_MAX];
        (void)snprintf(where, sizeof(where), "%s: [%s] %s", reading->path, section, key);
        status = set(reading->config, row, ORIGIN_FILE, where, value);
    }
    if (status != MF_STATUS_OK && reading->status == MF_STATUS_OK) {
        reading->status = status;
        reading->error = *mf_status_error();
    }
    return status == MF_STATUS_OK;
}

static enum mf_status read_file(struct mf_config *config, const char *path)
{
    struct reading reading = {.config = config, .path = path};
    int line = ini_parse(path, on_line, &reading);
    if (line < 0) {
        return mf_status_set(MF_STATUS_NOT_FOUND, "config file %s cannot be read: %s", path,
                             strerror(errno));
    }
    if (reading.status != MF_STATUS_OK) {
        return mf_status_restore(&reading.error);
    }
    if (line > 0) {
        return mf_status_set(MF_STATUS_INVALID, "%s: line %d is no [section] and no key = value",
                             path, line);
    }
    (void)snprintf(config->file, sizeof(config->file), "%s", path);
    return MF_STATUS_OK;
}

static enum mf_status read_environment(struct mf_config *config)
{
    for (size_t row = 0; row < SETTINGS; row++) {
        char name[64] = "MEMFERRYD_";
        size_t length = strlen(name);
        for (const char *c = settings[row].flag; *c != 0; c++) {
            name[length++] = *c == '-' ? '_' : (char)toupper((unsigned char)*c);
        }
        char *value = getenv(name);
        if (value == NULL) {
            continue;
        }
        if (settings[row].type != TYPE_PATHS) {
            MF_TRY(set(config, row, ORIGIN_ENVIRONMENT, name, value));
            continue;
        }
        char paths[VALUE_MAX];
        char *rest = NULL;
        (void)snprintf(paths, sizeof(paths), "%s", value);
        for (char *one = strtok_r(paths, ":", &rest); one != NULL;
             one = strtok_r(NULL, ":", &rest)) {
            MF_TRY(set(config, row, ORIGIN_ENVIRONMENT, name, one));
        }
    }
    return MF_STATUS_OK;
}

/* The user's file, else the system's, where they are. */
static enum mf_status read_usual_file(struct mf_config *config)
{
    char path[VALUE_MAX] = "";
    const char *base = getenv("XDG_CONFIG_HOME");
    const char *home = getenv("HOME");
    if (base != NULL && base[0] == '/') {
        (void)snprintf(path, sizeof(path), "%s/memferry/memferryd.ini", base);
    } else if (home != NULL && home[0] == '/') {
        (void)snprintf(path, sizeof(path), "%s/.config/memferry/memferryd.ini", home);
    }
    if (path[0] != 0 && access(path, F_OK) == 0) {
        return read_file(config, path);
    }
    return access(SYSTEM_FILE, F_OK) == 0 ? read_file(config, SYSTEM_FILE) : MF_STATUS_OK;
}

/* ---- what follows from other settings ---- */

static void find_home(struct mf_config *config)
{
    const char *own = getenv("MEMFERRY_HOME");
    const char *state = getenv("XDG_STATE_HOME");
    const char *home = getenv("HOME");
    size_t size = sizeof(config->home);
    if (own != NULL && own[0] != 0) {
        (void)snprintf(config->home, size, "%s", own);
    } else if (geteuid() == 0) {
        (void)snprintf(config->home, size, "/var/lib/memferry");
    } else if (state != NULL && state[0] == '/') {
        (void)snprintf(config->home, size, "%s/memferry", state);
    } else {
        (void)snprintf(config->home, size, "%s/.local/state/memferry",
                       home != NULL && home[0] == '/' ? home : "/tmp");
    }
}

static enum mf_status make_absolute(char *path, size_t size)
{
    char folder[PATH_MAX];
    char relative[MF_CONFIG_PATH_MAX];
    if (path[0] == '/') {
        return MF_STATUS_OK;
    }
    (void)snprintf(relative, sizeof(relative), "%s", path);
    if (getcwd(folder, sizeof(folder)) == NULL ||
        (size_t)snprintf(path, size, "%s/%s", folder, relative) >= size) {
        return mf_status_set(MF_STATUS_INVALID, "\"%s\" has no absolute path of at most %zu bytes",
                             relative, size - 1);
    }
    return MF_STATUS_OK;
}

static enum mf_status finish(struct mf_config *config)
{
    struct mf_address address;
    if (config->emulate_h2d == 0 || config->emulate_d2h == 0) { /* half a link is none */
        int64_t rate = config->emulate_h2d + config->emulate_d2h;
        config->emulate_h2d = config->emulate_d2h = rate;
    }
    if (config->home[0] == 0) {
        find_home(config);
    }
    MF_TRY(make_absolute(config->home, sizeof(config->home)));
    if (config->socket[0] == 0) {
        MF_TRY(mf_address_default(false, config->socket));
    } else if (strncmp(config->socket, "unix:", 5) != 0 && strchr(config->socket, ':') == NULL) {
        MF_TRY(make_absolute(config->socket, sizeof(config->socket)));
    }
    MF_TRY(mf_address_parse(config->socket, &address));
    (void)mf_address_print(&address, config->socket);
    if (config->tcp[0] != 0) {
        MF_TRY(mf_address_parse(config->tcp, &address));
        if (address.kind != MF_ADDRESS_TCP) {
            return refuse("tcp", config->tcp, "host:port");
        }
    }
    return MF_STATUS_OK;
}

enum mf_status mf_config_read_file(const char *path, struct mf_config *out)
{
    MF_TRY(set_defaults(out));
    if (path != NULL) {
        MF_TRY(read_file(out, path));
    }
    MF_TRY(read_environment(out));
    return finish(out);
}

/* ---- flags ---- */

enum { OPTION_CONFIG = 0x1000, OPTION_PRINT, OPTION_FIRST };

struct flags {
    const char *file;
    bool print;
    int count;
    struct {
        size_t row;
        const char *value;
    } said[FLAGS_MAX];
};

static error_t on_flag(int key, char *argument, struct argp_state *state)
{
    struct flags *flags = state->input;
    if (key == OPTION_CONFIG) {
        flags->file = argument;
    } else if (key == OPTION_PRINT) {
        flags->print = true;
    } else if (key >= OPTION_FIRST && key < OPTION_FIRST + (int)SETTINGS) {
        if (flags->count == FLAGS_MAX) {
            argp_error(state, "more than %d flags", FLAGS_MAX);
            return EINVAL;
        }
        flags->said[flags->count].row = (size_t)(key - OPTION_FIRST);
        flags->said[flags->count++].value = argument;
    } else if (key == ARGP_KEY_ARG) {
        argp_error(state, "\"%s\" is no flag; settings are given as --name value", argument);
    } else {
        return ARGP_ERR_UNKNOWN;
    }
    return 0;
}

static void parse_flags(int argc, char **argv, struct flags *out)
{
    struct argp_option options[SETTINGS + 3] = {
        {"config", OPTION_CONFIG, "FILE", 0,
         "settings; default: $MEMFERRY_CONFIG, ~/.config/memferry/memferryd.ini, " SYSTEM_FILE, 0},
        {"print-config", OPTION_PRINT, NULL, 0,
         "print all settings as such a file, with where each came from, and end", 0},
    };
    for (size_t row = 0; row < SETTINGS; row++) {
        options[row + 2] = (struct argp_option){
            .name = settings[row].flag,
            .key = OPTION_FIRST + (int)row,
            .arg = settings[row].argument,
            .doc = settings[row].help,
        };
    }
    const struct argp argp = {
        .options = options,
        .parser = on_flag,
        .doc = "The memferry daemon: owns a device, measures and plans offloaded training, serves "
               "plans and runs training for its clients.\v"
               "Sizes are like 8GiB, 512MiB or 24GB. Each setting can also be said in the "
               "environment, as MEMFERRYD_DEVICE_MEMORY for --device-memory, or in the file; a "
               "flag beats the environment, that beats the file.",
    };
    argp_program_version = "memferryd " MF_VERSION;
    argp_err_exit_status = 2;
    (void)argp_parse(&argp, argc, argv, 0, NULL, out);
}

enum mf_status mf_config_read(int argc, char **argv, struct mf_config *out)
{
    struct flags flags = {0};
    parse_flags(argc, argv, &flags);
    const char *file = flags.file != NULL ? flags.file : getenv("MEMFERRY_CONFIG");
    MF_TRY(set_defaults(out));
    MF_TRY(file != NULL && file[0] != 0 ? read_file(out, file) : read_usual_file(out));
    MF_TRY(read_environment(out));
    for (int i = 0; i < flags.count; i++) {
        char where[64];
        (void)snprintf(where, sizeof(where), "--%s", settings[flags.said[i].row].flag);
        MF_TRY(set(out, flags.said[i].row, ORIGIN_FLAG, where, flags.said[i].value));
    }
    out->print = flags.print;
    return finish(out);
}

/* ---- what readers ask ---- */

static void print_value(const struct mf_config *config, const struct setting *setting, FILE *file,
                        const char *origin)
{
    const char *field = (const char *)config + setting->offset;
    char text[MF_CONFIG_PATH_MAX] = "";
    switch (setting->type) {
    case TYPE_TEXT:
        (void)snprintf(text, sizeof(text), "%s", field);
        break;
    case TYPE_INT:
        (void)snprintf(text, sizeof(text), "%d", *(const int32_t *)field);
        break;
    case TYPE_MODE:
        (void)snprintf(text, sizeof(text), "0%o", (unsigned)*(const int32_t *)field);
        break;
    case TYPE_BYTES:
        (void)snprintf(text, sizeof(text), "%lld", (long long)*(const int64_t *)field);
        break;
    case TYPE_CHOICE:
        (void)snprintf(text, sizeof(text), "%s", setting->choices[*(const int32_t *)field]);
        break;
    case TYPE_PATHS:
        for (int32_t i = 0; i < config->root_count; i++) {
            (void)fprintf(file, "%s = %s ; %s\n", setting->key, config->roots[i], origin);
        }
        return;
    }
    if (text[0] != 0) {
        (void)fprintf(file, "%s = %s ; %s\n", setting->key, text, origin);
    }
}

void mf_config_print(const struct mf_config *config, FILE *file)
{
    static const char *const origins[] = {"default", "file", "environment", "flag"};
    const char *section = "";
    (void)fprintf(file, "; memferryd %s, %s%s\n", MF_VERSION,
                  config->file[0] != 0 ? "read from " : "no file read", config->file);
    for (size_t row = 0; row < SETTINGS; row++) {
        if (strcmp(section, settings[row].section) != 0) {
            section = settings[row].section;
            (void)fprintf(file, "\n[%s]\n", section);
        }
        print_value(config, &settings[row], file, origins[config->origins[row]]);
    }
}
