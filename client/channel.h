/*
 * The client's side of an RPC: bytes to a method of the daemon, bytes or an error back.
 *
 * Who calls it: the typed calls of libmemferry and the CLI. Owner: channel and stream are
 * open/close; replies are malloc'ed and the caller's. Thread: a channel may be used from many
 * threads at once; a stream by one, but mf_channel_stream_cancel() from any.
 * Fails: with what the daemon answered (status, reason and numbers included: mf_status_error()), or
 * MF_STATUS_UNAVAILABLE when it cannot be reached, MF_STATUS_DEADLINE, MF_STATUS_CANCELLED.
 *
 * Do not fork() and use a channel on both sides. gRPC is started with the first channel and stopped
 * with the last.
 */
#ifndef MF_CLIENT_CHANNEL_H
#define MF_CLIENT_CHANNEL_H

#include <signal.h>
#include <stddef.h>
#include <stdint.h>

#include "core/status.h"

struct mf_channel;
struct mf_channel_stream;

/* `address` as in core/address.h; NULL = mf_address_default(). Does not connect: the first call
 * does. */
enum mf_status mf_channel_open(const char *address, struct mf_channel **out) MF_MUST_USE;
/* Streams must be closed first. NULL is nothing. */
void mf_channel_close(struct mf_channel *channel);
/* As text; borrowed, as long as the channel. */
const char *mf_channel_address(const struct mf_channel *channel);

/* While `*flag` is not 0, calls and streams end with MF_STATUS_CANCELLED (within 50 ms). A signal
 * handler may set it. Borrowed; set before the first call. */
void mf_channel_set_cancel(struct mf_channel *channel, const volatile sig_atomic_t *flag);

/* One request, one reply. `path` = "/memferry.v1.PlanService/GetPlan"; `deadline_ms` <= 0: none.
 * `*reply` is malloc'ed, never NULL on success. */
enum mf_status mf_channel_call(struct mf_channel *channel, const char *path, const uint8_t *request,
                               size_t bytes, int64_t deadline_ms, uint8_t **reply,
                               size_t *reply_bytes) MF_MUST_USE;

/* One request, many replies. */
enum mf_status mf_channel_stream_open(struct mf_channel *channel, const char *path,
                                      const uint8_t *request, size_t bytes, int64_t deadline_ms,
                                      struct mf_channel_stream **out) MF_MUST_USE;
/* Waits for the next reply (malloc'ed). At the end *reply is NULL and the status is how the call
 * ended; from then on it stays so. */
enum mf_status mf_channel_stream_next(struct mf_channel_stream *stream, uint8_t **reply,
                                      size_t *reply_bytes) MF_MUST_USE;
/* Makes the running or next mf_channel_stream_next() end with MF_STATUS_CANCELLED. */
void mf_channel_stream_cancel(struct mf_channel_stream *stream);
/* Cancels what still runs, frees. NULL is nothing. */
void mf_channel_stream_close(struct mf_channel_stream *stream);

#endif
