/* Contention of lanes as data: see contention.h. */
#include "core/contention.h"

#include <stdio.h>

#include "core/json.h"

#define WHERE "contention"
/* A task that hardly moves beside another still moves; beyond these a file is damaged. */
#define SLOWDOWN_MAX 1000
#define NS_MAX 1e12

/* In-place access adds no bandwidth to a link: beside a copy, whichever way it goes, each has half
 * of it (measured on an H200 machine: 51 to 56 GB/s together). */
#define ASSUMED_LINK_SHARED 2
/* The same machine, bytes a second alone over beside: copies 55.2 over 51.6 and 50.1 GB/s, the
 * CPU's update 4.1 over 3.4 (beside copies in) and 2.95 G parameters/s (beside copies out). Kernels
 * that use host memory are taken for copies; what the update costs copies is told for copies in
 * only (40 of 51.6 GB/s) and taken for all. */
#define ASSUMED_H2D_BY_D2H 1.07
#define ASSUMED_D2H_BY_H2D 1.10
#define ASSUMED_CPU_BY_READ 1.21
#define ASSUMED_CPU_BY_WRITE 1.39
#define ASSUMED_LINK_BY_CPU 1.29

static const struct {
    const char *name;
    enum mf_lane lane;
} loads[MF_LOAD_COUNT] = {
    [MF_LOAD_COMPUTE] = {"compute", MF_LANE_COMPUTE},
    [MF_LOAD_GPU_UPDATE] = {"gpu_update", MF_LANE_COMPUTE},
    [MF_LOAD_DIRECT_READ] = {"direct_read", MF_LANE_COMPUTE},
    [MF_LOAD_DIRECT_WRITE] = {"direct_write", MF_LANE_COMPUTE},
    [MF_LOAD_H2D] = {"h2d", MF_LANE_H2D},
    [MF_LOAD_D2H] = {"d2h", MF_LANE_D2H},
    [MF_LOAD_CPU] = {"cpu", MF_LANE_CPU},
};

enum mf_load mf_contention_load(enum mf_lane lane, enum mf_kernel kernel, uint32_t shape_flags)
{
    switch (lane) {
    case MF_LANE_H2D:
        return MF_LOAD_H2D;
    case MF_LANE_D2H:
        return MF_LOAD_D2H;
    case MF_LANE_CPU:
        return MF_LOAD_CPU;
    default:
        break;
    }
    if ((shape_flags & MF_SHAPE_OUTPUT_HOST) != 0) {
        return MF_LOAD_DIRECT_WRITE;
    }
    if ((shape_flags & MF_SHAPE_WEIGHT_HOST) != 0) {
        return MF_LOAD_DIRECT_READ;
    }
    bool update = kernel == MF_KERNEL_ADAMW || kernel == MF_KERNEL_GRADIENT_ACCUMULATE ||
                  kernel == MF_KERNEL_GRADIENT_NORM;
    return update ? MF_LOAD_GPU_UPDATE : MF_LOAD_COMPUTE;
}

enum mf_lane mf_contention_lane(enum mf_load load)
{
    return loads[load].lane;
}

const char *mf_contention_load_name(enum mf_load load)
{
    return load < MF_LOAD_COUNT ? loads[load].name : "?";
}

void mf_contention_assume(bool has_link, struct mf_contention *out)
{
    static const struct {
        enum mf_load victim, actor;
        double slowdown;
    } assumed[] = {
        {MF_LOAD_DIRECT_READ, MF_LOAD_H2D, ASSUMED_LINK_SHARED},
        {MF_LOAD_DIRECT_READ, MF_LOAD_D2H, ASSUMED_LINK_SHARED},
        {MF_LOAD_DIRECT_WRITE, MF_LOAD_H2D, ASSUMED_LINK_SHARED},
        {MF_LOAD_DIRECT_WRITE, MF_LOAD_D2H, ASSUMED_LINK_SHARED},
        {MF_LOAD_H2D, MF_LOAD_DIRECT_READ, ASSUMED_LINK_SHARED},
        {MF_LOAD_H2D, MF_LOAD_DIRECT_WRITE, ASSUMED_LINK_SHARED},
        {MF_LOAD_D2H, MF_LOAD_DIRECT_READ, ASSUMED_LINK_SHARED},
        {MF_LOAD_D2H, MF_LOAD_DIRECT_WRITE, ASSUMED_LINK_SHARED},
        {MF_LOAD_H2D, MF_LOAD_D2H, ASSUMED_H2D_BY_D2H},
        {MF_LOAD_D2H, MF_LOAD_H2D, ASSUMED_D2H_BY_H2D},
        {MF_LOAD_CPU, MF_LOAD_H2D, ASSUMED_CPU_BY_READ},
        {MF_LOAD_CPU, MF_LOAD_DIRECT_READ, ASSUMED_CPU_BY_READ},
        {MF_LOAD_CPU, MF_LOAD_D2H, ASSUMED_CPU_BY_WRITE},
        {MF_LOAD_CPU, MF_LOAD_DIRECT_WRITE, ASSUMED_CPU_BY_WRITE},
        {MF_LOAD_H2D, MF_LOAD_CPU, ASSUMED_LINK_BY_CPU},
        {MF_LOAD_D2H, MF_LOAD_CPU, ASSUMED_LINK_BY_CPU},
        {MF_LOAD_DIRECT_READ, MF_LOAD_CPU, ASSUMED_LINK_BY_CPU},
        {MF_LOAD_DIRECT_WRITE, MF_LOAD_CPU, ASSUMED_LINK_BY_CPU},
    };
    *out = (struct mf_contention){0};
    for (int a = 0; a < MF_LOAD_COUNT; a++) {
        for (int b = 0; b < MF_LOAD_COUNT; b++) {
            out->slowdown[a][b] = 1;
        }
    }
    for (size_t i = 0; has_link && i < sizeof(assumed) / sizeof(assumed[0]); i++) {
        out->slowdown[assumed[i].victim][assumed[i].actor] = assumed[i].slowdown;
    }
}

/* Takes `json`. */
static void put(json_t *parent, const char *key, json_t *json)
{
    MF_ASSERT(json != NULL);
    (void)json_object_set_new(parent, key, json); /* a number that is not finite stays out */
}

static json_t *encode_lanes(const double ns[static MF_LANE_COUNT])
{
    json_t *json = json_object();
    for (int lane = 0; lane < MF_LANE_COUNT; lane++) {
        put(json, mf_kernel_lane_name((enum mf_lane)lane), json_real(ns[lane]));
    }
    return json;
}

json_t *mf_contention_encode(const struct mf_contention *contention)
{
    json_t *json = json_object();
    json_t *slowdown = json_object();
    json_t *handover = json_object();
    for (int a = 0; a < MF_LOAD_COUNT; a++) {
        json_t *row = json_object();
        for (int b = 0; b < MF_LOAD_COUNT; b++) {
            double slowdown_there = contention->slowdown[a][b];
            put(row, loads[b].name, json_real(slowdown_there > 1 ? slowdown_there : 1));
        }
        put(slowdown, loads[a].name, row);
    }
    for (int lane = 0; lane < MF_LANE_COUNT; lane++) {
        put(handover, mf_kernel_lane_name((enum mf_lane)lane),
            encode_lanes(contention->handover_ns[lane]));
    }
    put(json, "measured", json_boolean(contention->measured));
    put(json, "slowdown", slowdown);
    put(json, "handover_ns", handover);
    put(json, "gap_ns", encode_lanes(contention->gap_ns));
    put(json, "issue_ns", encode_lanes(contention->issue_ns));
    put(json, "graph_ns", json_real(contention->graph_ns));
    return json;
}

/* The object under `key`; NULL when it is not there. Its keys must be of `known`. */
static enum mf_status open_object(const json_t *parent, const char *where, const char *key,
                                  const char *const *known, size_t known_count, const json_t **out)
{
    const json_t *json = json_object_get(parent, key);
    *out = json_is_null(json) ? NULL : json;
    return *out == NULL ? MF_STATUS_OK : mf_json_only(*out, where, known, known_count);
}

static enum mf_status decode_slowdown(const json_t *json, struct mf_contention *out)
{
    const char *names[MF_LOAD_COUNT];
    const json_t *matrix = NULL;
    for (int a = 0; a < MF_LOAD_COUNT; a++) {
        names[a] = loads[a].name;
    }
    MF_TRY(open_object(json, WHERE ".slowdown", "slowdown", names, MF_LOAD_COUNT, &matrix));
    for (int a = 0; a < MF_LOAD_COUNT; a++) {
        char where[64];
        const json_t *row = NULL;
        snprintf(where, sizeof(where), WHERE ".slowdown.%s", names[a]);
        MF_TRY(open_object(matrix, where, names[a], names, MF_LOAD_COUNT, &row));
        for (int b = 0; b < MF_LOAD_COUNT; b++) {
            double most = loads[a].lane == loads[b].lane ? 1 : SLOWDOWN_MAX;
            MF_TRY(mf_json_number(row, where, names[b], 1, most, &out->slowdown[a][b]));
        }
    }
    return MF_STATUS_OK;
}

/* `own` = the lane whose number must be 0, MF_LANE_COUNT = none. */
static enum mf_status decode_lanes(const json_t *parent, const char *where, const char *key,
                                   int own, double out[static MF_LANE_COUNT])
{
    const char *names[MF_LANE_COUNT];
    const json_t *json = NULL;
    for (int lane = 0; lane < MF_LANE_COUNT; lane++) {
        names[lane] = mf_kernel_lane_name((enum mf_lane)lane);
    }
    MF_TRY(open_object(parent, where, key, names, MF_LANE_COUNT, &json));
    for (int lane = 0; lane < MF_LANE_COUNT; lane++) {
        MF_TRY(mf_json_number(json, where, names[lane], 0, lane == own ? 0 : NS_MAX, &out[lane]));
    }
    return MF_STATUS_OK;
}

static enum mf_status decode_handover(const json_t *json, struct mf_contention *out)
{
    const char *names[MF_LANE_COUNT];
    const json_t *matrix = NULL;
    for (int lane = 0; lane < MF_LANE_COUNT; lane++) {
        names[lane] = mf_kernel_lane_name((enum mf_lane)lane);
    }
    MF_TRY(open_object(json, WHERE ".handover_ns", "handover_ns", names, MF_LANE_COUNT, &matrix));
    for (int lane = 0; lane < MF_LANE_COUNT; lane++) {
        char where[64];
        snprintf(where, sizeof(where), WHERE ".handover_ns.%s", names[lane]);
        MF_TRY(decode_lanes(matrix, where, names[lane], lane, out->handover_ns[lane]));
    }
    return MF_STATUS_OK;
}

enum mf_status mf_contention_decode(const json_t *json, struct mf_contention *out)
{
    static const char *const known[] = {"measured", "slowdown", "handover_ns",
                                        "gap_ns",   "issue_ns", "graph_ns"};
    mf_contention_assume(false, out);
    MF_TRY(mf_json_only(json, WHERE, known, sizeof(known) / sizeof(known[0])));
    MF_TRY(mf_json_bool(json, WHERE, "measured", &out->measured));
    MF_TRY(decode_slowdown(json, out));
    MF_TRY(decode_handover(json, out));
    MF_TRY(decode_lanes(json, WHERE ".gap_ns", "gap_ns", MF_LANE_COUNT, out->gap_ns));
    MF_TRY(decode_lanes(json, WHERE ".issue_ns", "issue_ns", MF_LANE_COUNT, out->issue_ns));
    return mf_json_number(json, WHERE, "graph_ns", 0, NS_MAX, &out->graph_ns);
}
