/*
 * The daemon's settings: flags, environment, an INI file and defaults through one table.
 *
 * What: every setting is one row (section, key, flag, type, default, range, help). A flag beats the
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
#include "core/status.h"

#define MF_CONFIG_PATH_MAX 1024

enum mf_config_device { MF_CONFIG_DEVICE_AUTO, MF_CONFIG_DEVICE_HOST, MF_CONFIG_DEVICE_CUDA };

struct mf_config {
    /* [service] */
    char socket[MF_ADDRESS_TEXT_MAX]; /* address of the unix socket */
    int32_t socket_mode;              /* as in chmod */
    char tcp[MF_ADDRESS_TEXT_MAX];    /* "host:port" of this machine; "" = off */
    char home[MF_CONFIG_PATH_MAX];    /* store and runs; absolute */
    /* Folders that clients may name, resolved. Not said: every folder for who may connect to the
     * unix socket; only `home` when TCP is on. */
    int32_t root_count;
    char roots[MF_ROOTS_MAX][MF_CONFIG_PATH_MAX];
    int32_t log_level; /* enum mf_log_level */
    int32_t log_json;
    /* [device] */
    int32_t device;        /* enum mf_config_device */
    int32_t device_index;  /* which GPU */
    int64_t device_memory; /* bytes; 0 = all there is */
    int32_t threads;       /* host device; 0 = all cores */
    int64_t emulate_h2d;   /* host device: bytes per second; 0 = no emulation */
    int64_t emulate_d2h;
    /* [host] */
    int64_t host_memory; /* bytes for all sessions; 0 = what is available */
    /* [limits] */
    int32_t sessions_max;
    int32_t lease_seconds; /* without a call a session ends after this */

    char file[MF_CONFIG_PATH_MAX];           /* that was read; "" = none */
    bool print;                              /* --print-config */
    uint8_t origins[MF_CONFIG_SETTINGS_MAX]; /* by row: who set it */
};

/* Reads flags (--help, --version and wrong flags end the process), environment and file. */
enum mf_status mf_config_read(int argc, char **argv, struct mf_config *out) MF_MUST_USE;
/* File and environment only; `path` NULL = no file. */
enum mf_status mf_config_read_file(const char *path, struct mf_config *out) MF_MUST_USE;
/* All settings as an INI file, each with where its value came from. */
void mf_config_print(const struct mf_config *config, FILE *file);
/* `path`, resolved (its last parts need not exist), when it lies under an allowed folder; else
 * MF_STATUS_DENIED, reason PATH_NOT_ALLOWED. MF_STATUS_INVALID for one that is not absolute. */
enum mf_status mf_config_allow(const struct mf_config *config, const char *path,
                               char out[static MF_CONFIG_PATH_MAX]) MF_MUST_USE;

#endif
