/* The google.protobuf.FileDescriptorSet of every .proto of this folder, imports first: generated at
 * build time, read by server reflection. Static data; any thread; cannot fail. */
#ifndef MF_PROTO_DESCRIPTORS_H
#define MF_PROTO_DESCRIPTORS_H

#include <stddef.h>

extern const unsigned char mf_descriptors[];
extern const size_t mf_descriptors_bytes;

#endif
