/* Placing pinned memory on the GPU's memory node; see numa.h. The two system calls are made without
 * libnuma, which the machines this runs on need not have. */
#include "runtime/cuda/numa.h"

#include <ctype.h>
#include <errno.h>
#include <linux/mempolicy.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#define NODES_MAX 1024 /* the kernel's own limit: CONFIG_NODES_SHIFT is at most 10 */
#define WORD_BITS (8 * (int)sizeof(unsigned long))

struct nodes {
    unsigned long bits[NODES_MAX / (8 * sizeof(unsigned long))];
};

static int count_nodes(const struct nodes *nodes)
{
    int count = 0;
    for (int word = 0; word < NODES_MAX / WORD_BITS; word++) {
        count += __builtin_popcountl(nodes->bits[word]);
    }
    return count;
}

/* The node of the slot, -1 when the machine does not tell. */
static int read_node(const char *pci_address)
{
    char path[96];
    int node = -1;
    int length = snprintf(path, sizeof(path), "/sys/bus/pci/devices/%.31s/numa_node", pci_address);
    for (int i = 0; i < length; i++) {
        path[i] = (char)tolower((unsigned char)path[i]);
    }
    FILE *file = fopen(path, "re");
    if (file != NULL) {
        if (fscanf(file, "%d", &node) != 1) {
            node = -1;
        }
        fclose(file);
    }
    return node < NODES_MAX ? node : -1;
}

/* Bytes that nobody uses on a node; 0 when it does not say. */
static int64_t read_free(int node)
{
    char path[64];
    char line[128];
    long long kibibytes = 0;
    snprintf(path, sizeof(path), "/sys/devices/system/node/node%d/meminfo", node);
    FILE *file = fopen(path, "re");
    while (file != NULL && kibibytes == 0 && fgets(line, sizeof(line), file) != NULL) {
        if (sscanf(line, "Node %*d MemFree: %lld kB", &kibibytes) != 1) {
            kibibytes = 0;
        }
    }
    if (file != NULL) {
        fclose(file);
    }
    return kibibytes * 1024;
}

static bool set_policy(void *memory, int64_t bytes, int policy, const struct nodes *nodes)
{
    return syscall(SYS_mbind, memory, (unsigned long)bytes, policy, nodes->bits,
                   (unsigned long)NODES_MAX + 1, 0ul) == 0;
}

void mf_cuda_numa_place(const char *pci_address, void *memory, int64_t bytes, char *out,
                        size_t size)
{
    struct nodes allowed = {{0}};
    struct nodes near = {{0}};
    int node = read_node(pci_address);
    if (syscall(SYS_get_mempolicy, NULL, allowed.bits, (unsigned long)NODES_MAX, NULL,
                (unsigned long)MPOL_F_MEMS_ALLOWED) != 0) {
        snprintf(out, size, "not placed: %s (in a container: --cap-add SYS_NICE)", strerror(errno));
        return;
    }
    int count = count_nodes(&allowed);
    if (count < 2 || node < 0) {
        snprintf(out, size, count < 2 ? "one node" : "not placed: the GPU's node is not told");
        return;
    }
    int64_t free_bytes = read_free(node);
    near.bits[node / WORD_BITS] = 1ul << node % WORD_BITS;
    bool fits = bytes <= free_bytes;
    /* Preferred, not bound: should others take the node's memory meanwhile, pages come from another
     * node instead of the out-of-memory killer. */
    bool placed =
        set_policy(memory, bytes, fits ? MPOL_PREFERRED : MPOL_INTERLEAVE, fits ? &near : &allowed);
    if (!placed) {
        snprintf(out, size, "not placed: %s (in a container: --cap-add SYS_NICE)", strerror(errno));
    } else if (fits) {
        snprintf(out, size, "node %d, the GPU's", node);
    } else {
        snprintf(out, size, "spread over %d nodes (the GPU's, %d, has %.1f GiB free)", count, node,
                 (double)free_bytes / 0x1p30);
    }
}
