/* The process-wide half of rpc.h: gRPC's status codes, its log, and the process' limits. */
#include "server/rpc.h"

#include <errno.h>
#include <grpc/support/log.h>
#include <malloc.h>
#include <signal.h>
#include <string.h>
#include <sys/resource.h>

#include "core/log.h"
#include "server/rpc_internal.h"

/* Without these glibc returns memory to the system after each large message and faults it in again:
 * half of the CPU time of 4 MiB streams (measured). 32 MiB is glibc's maximum for the second. */
#define TRIM_THRESHOLD_BYTES (256 << 20)
#define MMAP_THRESHOLD_BYTES (32 << 20)

grpc_status_code mf_rpc_code(enum mf_status status)
{
    switch (status) {
    case MF_STATUS_OK:
        return GRPC_STATUS_OK;
    case MF_STATUS_INVALID:
        return GRPC_STATUS_INVALID_ARGUMENT;
    case MF_STATUS_NOT_FOUND:
        return GRPC_STATUS_NOT_FOUND;
    case MF_STATUS_EXISTS:
        return GRPC_STATUS_ALREADY_EXISTS;
    case MF_STATUS_UNSUPPORTED:
        return GRPC_STATUS_UNIMPLEMENTED;
    case MF_STATUS_NO_MEMORY:
    case MF_STATUS_NO_DEVICE_MEMORY:
    case MF_STATUS_BUSY:
        return GRPC_STATUS_RESOURCE_EXHAUSTED;
    case MF_STATUS_DEADLINE:
        return GRPC_STATUS_DEADLINE_EXCEEDED;
    case MF_STATUS_CANCELLED:
        return GRPC_STATUS_CANCELLED;
    case MF_STATUS_DENIED:
        return GRPC_STATUS_PERMISSION_DENIED;
    case MF_STATUS_UNAVAILABLE:
        return GRPC_STATUS_UNAVAILABLE;
    case MF_STATUS_CORRUPT:
        return GRPC_STATUS_DATA_LOSS;
    case MF_STATUS_DEVICE:
    case MF_STATUS_IO:
    case MF_STATUS_INTERNAL:
    case MF_STATUS_COUNT:
        return GRPC_STATUS_INTERNAL;
    }
    return GRPC_STATUS_INTERNAL;
}

/* gRPC's "errors" are mostly peers that went away: a warning at most. */
static void log_line(gpr_log_func_args *line)
{
    const char *slash = strrchr(line->file, '/');
    mf_log(line->severity == GPR_LOG_SEVERITY_ERROR ? MF_LOG_WARN : MF_LOG_DEBUG, "grpc %s:%d: %s",
           slash != NULL ? slash + 1 : line->file, line->line, line->message);
}

static void raise_descriptors(void)
{
    struct rlimit limit;
    if (getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur >= limit.rlim_max) {
        return;
    }
    limit.rlim_cur = limit.rlim_max;
    if (setrlimit(RLIMIT_NOFILE, &limit) != 0) {
        mf_log_warn("cannot raise the limit of file descriptors: %s", strerror(errno));
    }
}

static void init_once(void)
{
    signal(SIGPIPE, SIG_IGN);
    mallopt(M_TRIM_THRESHOLD, TRIM_THRESHOLD_BYTES);
    mallopt(M_MMAP_THRESHOLD, MMAP_THRESHOLD_BYTES);
    raise_descriptors();
    gpr_set_log_function(log_line);
}

void mf_rpc_init(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, init_once);
}
