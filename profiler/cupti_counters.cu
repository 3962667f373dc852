// Counters of the link, read with CUPTI's range profiler: see cupti_counters.h. C++ because one of
// CUPTI's headers asks for <string>.
#define _Noreturn [[noreturn]] // in core/status.h, which is C
#include "profiler/cupti_counters.h"

#include <cuda.h>
#include <cuda_runtime_api.h>
#include <cupti_profiler_host.h>
#include <cupti_profiler_target.h>
#include <cupti_range_profiler.h>
#include <cupti_result.h>
#include <cupti_target.h>
#include <stdlib.h>
#include <string.h>

extern "C" {
#include "profiler/cupti_library.h"
}

#define METRICS 2    /* of a group */
#define PASSES_MAX 8 /* a group of ours takes one; more than this is a fault */
#define SECTOR_BYTES 32

#define FUNCTIONS(X)                                                                               \
    X(cuptiGetResultString)                                                                        \
    X(cuptiDeviceGetChipName)                                                                      \
    X(cuptiProfilerInitialize)                                                                     \
    X(cuptiProfilerDeInitialize)                                                                   \
    X(cuptiProfilerGetCounterAvailability)                                                         \
    X(cuptiProfilerHostInitialize)                                                                 \
    X(cuptiProfilerHostDeinitialize)                                                               \
    X(cuptiProfilerHostConfigAddMetrics)                                                           \
    X(cuptiProfilerHostGetConfigImageSize)                                                         \
    X(cuptiProfilerHostGetConfigImage)                                                             \
    X(cuptiProfilerHostEvaluateToGpuValues)                                                        \
    X(cuptiRangeProfilerEnable)                                                                    \
    X(cuptiRangeProfilerDisable)                                                                   \
    X(cuptiRangeProfilerSetConfig)                                                                 \
    X(cuptiRangeProfilerStart)                                                                     \
    X(cuptiRangeProfilerStop)                                                                      \
    X(cuptiRangeProfilerPushRange)                                                                 \
    X(cuptiRangeProfilerPopRange)                                                                  \
    X(cuptiRangeProfilerDecodeData)                                                                \
    X(cuptiRangeProfilerGetCounterDataSize)                                                        \
    X(cuptiRangeProfilerCounterDataImageInitialize)

static struct {
#define X(name) decltype(&(::name)) name;
    FUNCTIONS(X)
#undef X
} cupti;

/* Counters of the bus and of the L2 cache do not go into one configuration (H100, H200, A100 and
 * RTX 4090 alike, says CUPTI). `unit` makes bytes of them. */
static const struct group {
    const char *metrics[METRICS];
    int64_t unit;
} groups[] = {
    {{"pcie__read_bytes.sum", "pcie__write_bytes.sum"}, 1},
    {{"lts__d_sectors_fill_sysmem.sum", "lts__t_sectors_aperture_sysmem_op_write.sum"},
     SECTOR_BYTES},
};
#define GROUPS ((int)(sizeof(groups) / sizeof(groups[0])))

/* One group's counting; what is not null is undone in the end. */
struct counting {
    const struct group *group;
    CUpti_Profiler_Host_Object *host;
    CUpti_RangeProfiler_Object *ranges;
    uint8_t *availability;
    uint8_t *config;
    size_t config_bytes;
    uint8_t *data;
    size_t data_bytes;
};

static enum mf_status check(CUptiResult result, const char *what)
{
    const char *text = "unknown";
    if (result == CUPTI_SUCCESS) {
        return MF_STATUS_OK;
    }
    if (result == CUPTI_ERROR_INSUFFICIENT_PRIVILEGES) {
        return mf_status_set(MF_STATUS_UNSUPPORTED,
                             "the GPU's counters are for administrators here: run memferryd as "
                             "root, or load the nvidia module with "
                             "NVreg_RestrictProfilingToAdminUsers=0");
    }
    (void)cupti.cuptiGetResultString(result, &text);
    return mf_status_set(MF_STATUS_UNSUPPORTED, "the GPU's counters cannot be read: %s: %s", what,
                         text);
}

static enum mf_status allocate(size_t bytes, uint8_t **out)
{
    *out = (uint8_t *)calloc(1, bytes > 0 ? bytes : 1);
    return *out != NULL
               ? MF_STATUS_OK
               : mf_status_set(MF_STATUS_NO_MEMORY, "no memory for %zu bytes of counters", bytes);
}

static enum mf_status load(void)
{
    static const struct mf_cupti_library_function functions[] = {
#define X(name) {#name, (void *)&cupti.name},
        FUNCTIONS(X)
#undef X
    };
    return mf_cupti_library_load(functions, sizeof(functions) / sizeof(functions[0]));
}

static enum mf_status find_context(CUcontext *out)
{
    void *function = NULL;
    enum cudaDriverEntryPointQueryResult found = cudaDriverEntryPointSymbolNotFound;
    CUresult(CUDAAPI * get_current)(CUcontext *) = NULL;
    cudaError_t error = cudaGetDriverEntryPointByVersion("cuCtxGetCurrent", &function, 4000,
                                                         cudaEnableDefault, &found);
    if (error == cudaSuccess && found == cudaDriverEntryPointSuccess) {
        memcpy(&get_current, &function, sizeof(get_current));
    }
    if (get_current == NULL || get_current(out) != CUDA_SUCCESS || *out == NULL) {
        return mf_status_set(MF_STATUS_UNSUPPORTED, "the GPU's context was not found");
    }
    return MF_STATUS_OK;
}

/* ---- one group ---- */

static enum mf_status open_host(struct counting *counting, int index, CUcontext context)
{
    CUpti_Device_GetChipName_Params chip = {CUpti_Device_GetChipName_Params_STRUCT_SIZE};
    chip.deviceIndex = (size_t)index;
    MF_TRY(check(cupti.cuptiDeviceGetChipName(&chip), "chip"));
    CUpti_Profiler_GetCounterAvailability_Params available = {
        CUpti_Profiler_GetCounterAvailability_Params_STRUCT_SIZE};
    available.ctx = context;
    MF_TRY(check(cupti.cuptiProfilerGetCounterAvailability(&available), "availability"));
    MF_TRY(allocate(available.counterAvailabilityImageSize, &counting->availability));
    available.pCounterAvailabilityImage = counting->availability;
    MF_TRY(check(cupti.cuptiProfilerGetCounterAvailability(&available), "availability"));
    CUpti_Profiler_Host_Initialize_Params host = {
        CUpti_Profiler_Host_Initialize_Params_STRUCT_SIZE};
    host.profilerType = CUPTI_PROFILER_TYPE_RANGE_PROFILER;
    host.pChipName = chip.pChipName;
    host.pCounterAvailabilityImage = counting->availability;
    MF_TRY(check(cupti.cuptiProfilerHostInitialize(&host), chip.pChipName));
    counting->host = host.pHostObject;
    return MF_STATUS_OK;
}

static enum mf_status make_config(struct counting *counting)
{
    CUpti_Profiler_Host_ConfigAddMetrics_Params add = {
        CUpti_Profiler_Host_ConfigAddMetrics_Params_STRUCT_SIZE};
    add.pHostObject = counting->host;
    add.ppMetricNames = (const char **)counting->group->metrics;
    add.numMetrics = METRICS;
    MF_TRY(check(cupti.cuptiProfilerHostConfigAddMetrics(&add), counting->group->metrics[0]));
    CUpti_Profiler_Host_GetConfigImageSize_Params size = {
        CUpti_Profiler_Host_GetConfigImageSize_Params_STRUCT_SIZE};
    size.pHostObject = counting->host;
    MF_TRY(check(cupti.cuptiProfilerHostGetConfigImageSize(&size), "configuration"));
    counting->config_bytes = size.configImageSize;
    MF_TRY(allocate(counting->config_bytes, &counting->config));
    CUpti_Profiler_Host_GetConfigImage_Params image = {
        CUpti_Profiler_Host_GetConfigImage_Params_STRUCT_SIZE};
    image.pHostObject = counting->host;
    image.configImageSize = counting->config_bytes;
    image.pConfigImage = counting->config;
    return check(cupti.cuptiProfilerHostGetConfigImage(&image), "configuration");
}

static enum mf_status open_ranges(struct counting *counting, CUcontext context)
{
    CUpti_RangeProfiler_Enable_Params enable = {CUpti_RangeProfiler_Enable_Params_STRUCT_SIZE};
    enable.ctx = context;
    MF_TRY(check(cupti.cuptiRangeProfilerEnable(&enable), "range profiler"));
    counting->ranges = enable.pRangeProfilerObject;
    CUpti_RangeProfiler_GetCounterDataSize_Params size = {
        CUpti_RangeProfiler_GetCounterDataSize_Params_STRUCT_SIZE};
    size.pRangeProfilerObject = counting->ranges;
    size.pMetricNames = (const char **)counting->group->metrics;
    size.numMetrics = METRICS;
    size.maxNumOfRanges = 1;
    size.maxNumRangeTreeNodes = 1;
    MF_TRY(check(cupti.cuptiRangeProfilerGetCounterDataSize(&size), "counter data"));
    counting->data_bytes = size.counterDataSize;
    MF_TRY(allocate(counting->data_bytes, &counting->data));
    CUpti_RangeProfiler_CounterDataImage_Initialize_Params image = {
        CUpti_RangeProfiler_CounterDataImage_Initialize_Params_STRUCT_SIZE};
    image.pRangeProfilerObject = counting->ranges;
    image.counterDataSize = counting->data_bytes;
    image.pCounterData = counting->data;
    MF_TRY(check(cupti.cuptiRangeProfilerCounterDataImageInitialize(&image), "counter data"));
    CUpti_RangeProfiler_SetConfig_Params set = {CUpti_RangeProfiler_SetConfig_Params_STRUCT_SIZE};
    set.pRangeProfilerObject = counting->ranges;
    set.configSize = counting->config_bytes;
    set.pConfig = counting->config;
    set.counterDataImageSize = counting->data_bytes;
    set.pCounterDataImage = counting->data;
    set.range = CUPTI_UserRange;
    set.replayMode = CUPTI_UserReplay; /* a kernel's replay would not restore host memory */
    set.maxRangesPerPass = 1;
    set.numNestingLevels = 1;
    set.minNestingLevel = 1;
    set.passIndex = 0;
    set.targetNestingLevel = 1;
    return check(cupti.cuptiRangeProfilerSetConfig(&set), "configuration");
}

/* Runs the work in a range; *done when no further pass is needed. */
static enum mf_status run_pass(struct counting *counting, mf_cupti_work work, void *context,
                               bool *done)
{
    CUpti_RangeProfiler_Start_Params start = {CUpti_RangeProfiler_Start_Params_STRUCT_SIZE};
    CUpti_RangeProfiler_PushRange_Params push = {CUpti_RangeProfiler_PushRange_Params_STRUCT_SIZE};
    CUpti_RangeProfiler_PopRange_Params pop = {CUpti_RangeProfiler_PopRange_Params_STRUCT_SIZE};
    CUpti_RangeProfiler_Stop_Params stop = {CUpti_RangeProfiler_Stop_Params_STRUCT_SIZE};
    start.pRangeProfilerObject = counting->ranges;
    push.pRangeProfilerObject = counting->ranges;
    push.pRangeName = "work";
    pop.pRangeProfilerObject = counting->ranges;
    stop.pRangeProfilerObject = counting->ranges;
    MF_TRY(check(cupti.cuptiRangeProfilerStart(&start), "start"));
    enum mf_status status = check(cupti.cuptiRangeProfilerPushRange(&push), "range");
    if (status == MF_STATUS_OK) {
        status = work(context);
        struct mf_error error = *mf_status_error();
        enum mf_status popped = check(cupti.cuptiRangeProfilerPopRange(&pop), "range");
        status = status == MF_STATUS_OK ? popped : mf_status_restore(&error);
    }
    struct mf_error error = *mf_status_error();
    enum mf_status stopped = check(cupti.cuptiRangeProfilerStop(&stop), "stop");
    *done = stop.isAllPassSubmitted != 0;
    return status == MF_STATUS_OK ? stopped : mf_status_restore(&error);
}

static enum mf_status read_values(struct counting *counting, int64_t *out)
{
    double values[METRICS] = {0, 0};
    CUpti_RangeProfiler_DecodeData_Params decode = {
        CUpti_RangeProfiler_DecodeData_Params_STRUCT_SIZE};
    decode.pRangeProfilerObject = counting->ranges;
    MF_TRY(check(cupti.cuptiRangeProfilerDecodeData(&decode), "decoding"));
    CUpti_Profiler_Host_EvaluateToGpuValues_Params evaluate = {
        CUpti_Profiler_Host_EvaluateToGpuValues_Params_STRUCT_SIZE};
    evaluate.pHostObject = counting->host;
    evaluate.pCounterDataImage = counting->data;
    evaluate.counterDataImageSize = counting->data_bytes;
    evaluate.rangeIndex = 0;
    evaluate.ppMetricNames = (const char **)counting->group->metrics;
    evaluate.numMetrics = METRICS;
    evaluate.pMetricValues = values;
    MF_TRY(check(cupti.cuptiProfilerHostEvaluateToGpuValues(&evaluate), "values"));
    for (int i = 0; i < METRICS; i++) {
        out[i] = (int64_t)values[i] * counting->group->unit;
    }
    return MF_STATUS_OK;
}

static enum mf_status count(struct counting *counting, int index, mf_cupti_work work, void *context,
                            int64_t *out)
{
    CUcontext current = NULL;
    bool done = false;
    MF_TRY(find_context(&current));
    MF_TRY(open_host(counting, index, current));
    if (make_config(counting) != MF_STATUS_OK) { /* this chip has no such counters */
        out[0] = out[1] = -1;
        return MF_STATUS_OK;
    }
    MF_TRY(open_ranges(counting, current));
    for (int pass = 0; pass < PASSES_MAX && !done; pass++) {
        MF_TRY(run_pass(counting, work, context, &done));
    }
    if (!done) {
        return mf_status_set(MF_STATUS_UNSUPPORTED, "%s needs more than %d passes",
                             counting->group->metrics[0], PASSES_MAX);
    }
    return read_values(counting, out);
}

static void close_counting(struct counting *counting)
{
    if (counting->ranges != NULL) {
        CUpti_RangeProfiler_Disable_Params disable = {
            CUpti_RangeProfiler_Disable_Params_STRUCT_SIZE};
        disable.pRangeProfilerObject = counting->ranges;
        (void)cupti.cuptiRangeProfilerDisable(&disable);
    }
    if (counting->host != NULL) {
        CUpti_Profiler_Host_Deinitialize_Params host = {
            CUpti_Profiler_Host_Deinitialize_Params_STRUCT_SIZE};
        host.pHostObject = counting->host;
        (void)cupti.cuptiProfilerHostDeinitialize(&host);
    }
    free(counting->availability);
    free(counting->config);
    free(counting->data);
}

enum mf_status mf_cupti_counters_count(int index, mf_cupti_work work, void *context,
                                       struct mf_cupti_counts *out)
{
    int64_t *const to[GROUPS] = {&out->pcie_bytes[0], &out->memory_bytes[0]};
    CUpti_Profiler_Initialize_Params initialize = {CUpti_Profiler_Initialize_Params_STRUCT_SIZE};
    CUpti_Profiler_DeInitialize_Params end = {CUpti_Profiler_DeInitialize_Params_STRUCT_SIZE};
    MF_TRY(load());
    mf_cupti_library_load_counters();
    MF_TRY(check(cupti.cuptiProfilerInitialize(&initialize), "profiler"));
    enum mf_status status = MF_STATUS_OK;
    for (int i = 0; i < GROUPS && status == MF_STATUS_OK; i++) {
        struct counting counting = {};
        counting.group = &groups[i];
        status = count(&counting, index, work, context, to[i]);
        close_counting(&counting);
    }
    (void)cupti.cuptiProfilerDeInitialize(&end);
    if (status == MF_STATUS_OK && out->pcie_bytes[0] < 0 && out->memory_bytes[0] < 0) {
        return mf_status_set(MF_STATUS_UNSUPPORTED, "this GPU has no counters of its link");
    }
    return status;
}
