/*
 * This machine as hardware: CPU, memory, NUMA, and what of it makes measurements comparable.
 *
 * Who calls it: memferryd.c, tune, doctor. Owner: plain data. Thread: any; reads /proc, /sys.
 * Fails: no; what cannot be read is "unknown" or 0.
 */
#ifndef MF_SERVER_MACHINE_H
#define MF_SERVER_MACHINE_H

#include <stddef.h>
#include <stdint.h>

#include "core/hardware.h"

/* Fills all of *out but rates; `host_memory` as configured, 0 = what the machine has less a
 * reserve, and on the host device less the device's share. */
void mf_machine_describe(const struct mf_hardware_device *device, int64_t host_memory,
                         struct mf_hardware *out);
/* What decides how long kernels take: sizes of memory and measured rates left out. Profiles are
 * kept by its fingerprint, so that another budget is no other machine. */
void mf_machine_identity(const struct mf_hardware *hardware, struct mf_hardware *out);

int64_t mf_machine_memory_bytes(void);
int64_t mf_machine_available_bytes(void);
/* Of the cgroup, version 2 or 1; 0 = no limit. */
int64_t mf_machine_cgroup_bytes(void);
/* Cores this process may run on. */
int32_t mf_machine_cores(void);
void mf_machine_cpu_name(char *out, size_t size);
int32_t mf_machine_numa_nodes(void);
/* What the kernel tells about a PCIe slot ("0000:3b:00.0", case as it comes). */
struct mf_machine_slot {
    double bytes_per_s_max; /* at the device's best speed and the width in use; 0 = not told */
    int32_t generation;     /* of that link */
    int32_t width;          /* lanes in use */
    int32_t width_max;
    int32_t numa_node; /* -1 = not told */
};
void mf_machine_slot(const char *address, struct mf_machine_slot *out);
/* First line of a file into `out`; "" when it cannot be read. */
void mf_machine_read_line(const char *path, char *out, size_t size);

#endif
