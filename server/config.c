/* The daemon's settings: see config.h. */
#include "server/config.h"

#include <argp.h>
#include <ctype.h>
#include <errno.h>
#include <ini.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "core/format.h"
#include "server/config_table.h"

#define SYSTEM_FILE "/etc/memferry/memferryd.ini"
#define VALUE_MAX 2048
#define FLAGS_MAX 128 /* on one command line */

/* ---- sources ---- */

static enum mf_status set_defaults(struct mf_config *config)
{
    *config = (struct mf_config){0};
    for (size_t row = 0; row < MF_CONFIG_TABLE_ROWS; row++) {
        MF_TRY(mf_config_table_set(config, row, MF_CONFIG_TABLE_DEFAULT, mf_config_table[row].flag,
                                   mf_config_table[row].initial));
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
    const char *names[MF_CONFIG_TABLE_ROWS];
    char full[VALUE_MAX];
    char known[MF_CONFIG_TABLE_ROWS][64];
    for (size_t row = 0; row < MF_CONFIG_TABLE_ROWS; row++) {
        (void)snprintf(known[row], sizeof(known[row]), "%s.%s", mf_config_table[row].section,
                       mf_config_table[row].key);
        names[row] = known[row];
    }
    (void)snprintf(full, sizeof(full), "%s.%s", section, key);
    const char *nearest = mf_format_nearest(full, names, MF_CONFIG_TABLE_ROWS);
    return mf_status_set(MF_STATUS_INVALID, "%s: there is no setting \"%s\" in [%s]%s%s%s", path,
                         key, section, nearest != NULL ? "; do you mean \"" : "",
                         nearest != NULL ? nearest : "", nearest != NULL ? "\"?" : "");
}

static int on_line(void *context, const char *section, const char *key, const char *value)
{
    struct reading *reading = context;
    enum mf_status status = MF_STATUS_OK;
    size_t row = 0;
    while (row < MF_CONFIG_TABLE_ROWS && (strcmp(mf_config_table[row].section, section) != 0 ||
                                          strcmp(mf_config_table[row].key, key) != 0)) {
        row++;
    }
    if (row == MF_CONFIG_TABLE_ROWS) {
        status = unknown_key(reading->path, section, key);
    } else {
        char where[VALUE_MAX];
        (void)snprintf(where, sizeof(where), "%s: [%s] %s", reading->path, section, key);
        status = mf_config_table_set(reading->config, row, MF_CONFIG_TABLE_FILE, where, value);
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
    for (size_t row = 0; row < MF_CONFIG_TABLE_ROWS; row++) {
        char name[64] = "MEMFERRYD_";
        size_t length = strlen(name);
        for (const char *c = mf_config_table[row].flag; *c != 0; c++) {
            name[length++] = *c == '-' ? '_' : (char)toupper((unsigned char)*c);
        }
        char *value = getenv(name);
        if (value == NULL) {
            continue;
        }
        if (mf_config_table[row].type != MF_CONFIG_TABLE_PATHS) {
            MF_TRY(mf_config_table_set(config, row, MF_CONFIG_TABLE_ENVIRONMENT, name, value));
            continue;
        }
        char paths[VALUE_MAX];
        char *rest = NULL;
        (void)snprintf(paths, sizeof(paths), "%s", value);
        for (char *one = strtok_r(paths, ":", &rest); one != NULL;
             one = strtok_r(NULL, ":", &rest)) {
            MF_TRY(mf_config_table_set(config, row, MF_CONFIG_TABLE_ENVIRONMENT, name, one));
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
            return mf_config_table_refuse("tcp", config->tcp, "host:port");
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
    } else if (key >= OPTION_FIRST && key < OPTION_FIRST + (int)MF_CONFIG_TABLE_ROWS) {
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
    struct argp_option options[MF_CONFIG_TABLE_ROWS + 3] = {
        {"config", OPTION_CONFIG, "FILE", 0,
         "settings; default: $MEMFERRY_CONFIG, ~/.config/memferry/memferryd.ini, " SYSTEM_FILE, 0},
        {"print-config", OPTION_PRINT, NULL, 0,
         "print all settings as such a file, with where each came from, and end", 0},
    };
    for (size_t row = 0; row < MF_CONFIG_TABLE_ROWS; row++) {
        options[row + 2] = (struct argp_option){
            .name = mf_config_table[row].flag,
            .key = OPTION_FIRST + (int)row,
            .arg = mf_config_table[row].argument,
            .doc = mf_config_table[row].help,
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
        (void)snprintf(where, sizeof(where), "--%s", mf_config_table[flags.said[i].row].flag);
        MF_TRY(mf_config_table_set(out, flags.said[i].row, MF_CONFIG_TABLE_FLAG, where,
                                   flags.said[i].value));
    }
    out->print = flags.print;
    return finish(out);
}

/* ---- what readers ask ---- */

static void print_value(const struct mf_config *config, const struct mf_config_table_row *setting,
                        FILE *file, const char *origin)
{
    const char *field = (const char *)config + setting->offset;
    char text[MF_CONFIG_PATH_MAX] = "";
    switch (setting->type) {
    case MF_CONFIG_TABLE_TEXT:
        (void)snprintf(text, sizeof(text), "%s", field);
        break;
    case MF_CONFIG_TABLE_INT:
        (void)snprintf(text, sizeof(text), "%d", *(const int32_t *)field);
        break;
    case MF_CONFIG_TABLE_MODE:
        (void)snprintf(text, sizeof(text), "0%o", (unsigned)*(const int32_t *)field);
        break;
    case MF_CONFIG_TABLE_BYTES:
        (void)snprintf(text, sizeof(text), "%lld", (long long)*(const int64_t *)field);
        break;
    case MF_CONFIG_TABLE_CHOICE:
        (void)snprintf(text, sizeof(text), "%s", setting->choices[*(const int32_t *)field]);
        break;
    case MF_CONFIG_TABLE_PATHS:
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
    for (size_t row = 0; row < MF_CONFIG_TABLE_ROWS; row++) {
        if (strcmp(section, mf_config_table[row].section) != 0) {
            section = mf_config_table[row].section;
            (void)fprintf(file, "\n[%s]\n", section);
        }
        print_value(config, &mf_config_table[row], file, origins[config->origins[row]]);
    }
}
