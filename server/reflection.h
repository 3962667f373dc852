/*
 * grpc.reflection v1 and v1alpha: lets generic clients (grpcurl and its like) list and call what
 * the daemon serves without having the .proto files.
 *
 * Who calls it: memferryd (open, close), gRPC clients. Memory: borrows the descriptor set, which
 * must outlive it. Owner: opaque, open/close; close after the server. Thread: handlers run on the
 * completion-queue thread. Fails: open gives MF_STATUS_CORRUPT for bytes that are no descriptor
 * set.
 */
#ifndef MF_SERVER_REFLECTION_H
#define MF_SERVER_REFLECTION_H

#include "server/rpc.h"

struct mf_reflection;

/* Adds its methods to `server`, which has not started. `set` is a google.protobuf.FileDescriptorSet
 * with imports; proto/descriptors.h has ours. */
enum mf_status mf_reflection_open(struct mf_rpc_server *server, const uint8_t *set, size_t bytes,
                                  struct mf_reflection **out) MF_MUST_USE;
void mf_reflection_close(struct mf_reflection *reflection);

#endif
