/*
 * Where pinned memory lies on a machine of several memory nodes: at the GPU's own.
 *
 * What: a fresh mapping is given a policy before its pages are touched: the node that the GPU's
 * slot belongs to where it has room, else all nodes in turn, so that no part is far alone. Who
 * calls it: memory.c. Owner: nothing. Thread: any. Fails: no; memory that cannot be placed works,
 * and the text says what was done and why.
 */
#ifndef MF_RUNTIME_CUDA_NUMA_H
#define MF_RUNTIME_CUDA_NUMA_H

#include <stddef.h>
#include <stdint.h>

/* `pci_address` as CUDA tells it ("0000:3B:00.0"), "" = not known. `memory` is of whole pages and
 * untouched. `out` gets a few words: "node 1, the GPU's". */
void mf_cuda_numa_place(const char *pci_address, void *memory, int64_t bytes, char *out,
                        size_t size);

#endif
