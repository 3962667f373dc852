/*
 * The daemon's settings: flags, environment, an INI file and defaults through one table.
 *
 * What: every setting is one row (section, key, flag, type, default, range, help); a flag beats the
 *   environment (MEMFERRYD_<FLAG>), that beats the file, that beats the default. Who calls it:
 *   memferryd.c; others read the struct. Owner: plain data. Thread: main; read-only afterwards.
 * Fails: MF_STATUS_INVALID naming the setting, where it was said, the value and the range, or the
 *   nearest known key; MF_STATUS_NOT_FOUND for a config file that was asked for and is not there.
 */
#ifndef MF_SERVER_CONFIG_H
#define MF_SERVER_CONFIG_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#include "core/address.h"
#include "core/limits.h"
#include "core/log.h"
#include "core/status.h"

#define MF_CONFIG_PATH_MAX 1024

enum mf_config_device { MF_CONFIG_DEVICE_AUTO, MF_CONFIG_DEVICE_HOST, MF_CONFIG_DEVICE_CUDA };

struct mf_config {
    /* [service] */
    char socket[MF_ADDRESS_TEXT_MAX]; /* "unix:/path"; "" = the default address */
    int64_t socket_mode;              /* 0600..0777 */
    char tcp[MF_ADDRESS_TEXT_MAX];    /* "host:port" on this machine; "" = off */
    char home[MF_CONFIG_PATH_MAX];    /* store, runs; absolute */
    /* Folders that clients may name, resolved. None: clients of the daemon's own user may name
     * every folder, others none. */
    int32_t root_count;
    char roots[MF_ROOTS_MAX][MF_CONFIG_PATH_MAX];
    int64_t log_level;                /* enum mf_log_level */
    bool log_json;
    /* [device] */
    int64_t device;                   /* enum mf_config_device */
    int64_t device_index;             /* which GPU */
    int64_t device_memory;            /* bytes; 0 = all there is */
    int64_t threads;                  /* host device; 0 = all cores */
    int64_t emulate_h2d;              /* host device: bytes per second; 0 = no emulation */
    int64_t emulate_d2h;
    /* [host] */
    int64_t host_memory;              /* bytes for all sessions; 0 = what is available */
    /* [limits] */
    int64_t sessions;                 /* 1..MF_SESSIONS_MAX */
    int64_t lease;                    /* seconds without a call before a session ends */

    char file[MF_CONFIG_PATH_MAX];    /* that was read; "" = none */
    bool print;                       /* --print-config */
    uint8_t origins[MF_CONFIG_SETTINGS_MAX]; /* by row: who set it */
};

/* Reads flags (--help and --version end the process), environment and file. */
enum mf_status mf_config_read(int argc, char **argv, struct mf_config *out) MF_MUST_USE;
/* The file and the environment only, with defaults; `path` NULL = none. For tests and tools. */
enum mf_status mf_config_read_file(const char *path, struct mf_config *out) MF_MUST_USE;
/* An INI file of all settings, each with where its value came from. */
void mf_config_print(const struct mf_config *config, FILE *file);
/* MF_STATUS_DENIED unless `path`, resolved, lies under an allowed root; `own_user` says that the
 * client runs as the daemon's user. `out` of MF_CONFIG_PATH_MAX bytes gets the resolved path. */
enum mf_status mf_config_allow(const struct mf_config *config, bool own_user, const char *path,
                               char out[static MF_CONFIG_PATH_MAX]) MF_MUST_USE;

#endif
