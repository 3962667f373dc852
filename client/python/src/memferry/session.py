"""A training session, driven step by step in Tinker's verbs.

Every verb returns a future at once; the daemon carries the calls out in the order in which they
were made. 16 may be in flight: a verb waits for room. A call that fails because the daemon cannot
be reached is sent again with its number, so that it is never carried out twice. A call that was
made cannot be taken back (Future.cancel() is False); close() ends those in flight.

A session may be used by many threads."""
from __future__ import annotations

import threading
from collections.abc import Iterable
from concurrent.futures import Future
from types import TracebackType
from typing import Any, Generic, Protocol, TypeVar

from . import data, errors
from ._channel import MESSAGE_BYTES_MAX, Channel
from ._convert import fill, read

CALLS_MAX = 16  # core/limits.h
_ATTEMPTS = 5
_FIRST_PAUSE_SECONDS = 0.1  # doubled with every attempt

T = TypeVar("T")


class Array(Protocol):
    """A numpy array or a torch tensor."""

    def tolist(self) -> Any: ...


Tokens = Iterable[int] | Iterable[Iterable[int]] | Array
"""micro_batch * seq_len ids, flat or a row a sequence."""


def flat(tokens: Tokens) -> list[int]:
    """The ids one after another."""
    items: Any = tokens.tolist() if hasattr(tokens, "tolist") else tokens
    out: list[Any] = []
    for item in items:
        if hasattr(item, "tolist"):
            item = item.tolist()
        if isinstance(item, Iterable) and not isinstance(item, str):
            out.extend(flat(item))
        else:
            out.append(item)
    return out


class _Call(Generic[T]):
    """One call from when it has a number until its future has a result."""

    def __init__(self, session: Session, method: str, request: Any, kind: type[T]) -> None:
        self.session = session
        self.method = method
        self.request = request
        self.kind = kind
        self.attempt = 0
        self.future: Future[T] = Future()
        self.future.set_running_or_notify_cancel()

    def send(self) -> None:
        self.attempt += 1
        self.session._channel.start(self.method, self.request).add_done_callback(self.ended)

    def send_again(self) -> None:
        try:
            self.send()
        except errors.MemferryError as error:
            self.finish(error, None)

    def ended(self, call: Any) -> None:
        try:
            if call.cancelled() or call.exception() is not None:
                self.failed(self.session._channel.error_of(call))
            else:
                self.finish(None, read(self.kind, call.result()))
        except Exception as error:  # whatever it is, nobody may wait for ever
            self.finish(error, None)

    def failed(self, error: errors.MemferryError) -> None:
        if isinstance(error, errors.UnavailableError) and self.attempt < _ATTEMPTS:
            again = threading.Timer(_FIRST_PAUSE_SECONDS * 2 ** (self.attempt - 1),
                                    self.send_again)
            again.daemon = True
            again.start()
        else:
            self.finish(error, None)

    def finish(self, error: Exception | None, result: T | None) -> None:
        self.session._ended(error is not None)
        if error is not None:
            self.future.set_exception(error)
        else:
            self.future.set_result(result)  # type: ignore[arg-type]


class Session:
    """Made by Client.create_session() and Client.attach_session(). `with` closes it."""

    def __init__(self, channel: Channel, info: data.SessionInfo) -> None:
        self.info = info  # as it was when this object was made; get() asks
        self.id = info.id
        self._channel = channel
        self._changed = threading.Condition()  # guards what follows
        self._next_seq_id = max(info.next_seq_id, 1)
        self._in_flight = 0
        # A call that failed may or may not have used its number up: when no other is in flight any
        # more, the daemon is asked for the number to go on with.
        self._stale = False

    def __enter__(self) -> Session:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 trace: TracebackType | None) -> None:
        try:
            self.close()
        except errors.MemferryError:
            if error is None:
                raise

    def forward_backward(self, tokens: Tokens, labels: Tokens | None = None) -> Future[data.Loss]:
        """Forward and backward of one micro-batch; its gradients are added to those since the last
        optim_step(). `labels`: the target at each position, already shifted, IGNORED where it does
        not count; None = the next token of the same sequence."""
        return self._call("ForwardBackward", {"batch": self._batch(tokens, labels)}, data.Loss)

    def optim_step(self, adam: data.Adam) -> Future[data.Step]:
        """One AdamW update with the mean gradient over all counted tokens. Called before the last
        forward_backward() has ended, it starts during that backward where it can."""
        return self._call("OptimStep", {"adam": adam}, data.Step)

    def forward(self, tokens: Tokens, labels: Tokens | None = None) -> Future[data.ForwardResult]:
        """Forward only: loss and log-probabilities."""
        return self._call("Forward", {"batch": self._batch(tokens, labels)}, data.ForwardResult)

    def sample(self, prompt: Tokens, max_tokens: int, *, temperature: float = 0.0, top_k: int = 0,
               seed: int = 0) -> Future[data.Sample]:
        """Continues a prompt; temperature 0 = greedy, top_k 0 = all."""
        return self._call("Sample", {"prompt": flat(prompt), "max_tokens": max_tokens,
                                     "temperature": temperature, "top_k": top_k, "seed": seed},
                          data.Sample)

    def save_state(self, path: str, *, weights_only: bool = False) -> Future[data.Saved]:
        """Writes a Hugging Face folder, with the optimizer's state unless `weights_only`. `path`:
        absolute, on the daemon's machine, under one of its roots, not yet there."""
        return self._call("SaveState", {"path": path, "weights_only": weights_only}, data.Saved)

    def load_state(self, path: str) -> Future[data.Loaded]:
        """Replaces the weights, and the optimizer's state where the folder has it."""
        return self._call("LoadState", {"path": path}, data.Loaded)

    def get(self) -> data.SessionInfo:
        """State, step and memory now; renews the lease."""
        request = fill(self._channel.request("TrainingService/GetSession"), {"session_id": self.id})
        return read(data.SessionInfo,
                    self._channel.call("TrainingService/GetSession", request).session)

    def trace(self) -> bytes:
        """What the session last did, as a Chrome trace (JSON)."""
        request = fill(self._channel.request("TrainingService/GetTrace"), {"session_id": self.id})
        return b"".join(piece.json for piece in
                        self._channel.stream("TrainingService/GetTrace", request))

    def close(self) -> None:
        """Ends the session and frees its memory; calls in flight end with CancelledError. One that
        has ended already is closed."""
        request = fill(self._channel.request("TrainingService/CloseSession"),
                       {"session_id": self.id})
        try:
            self._channel.call("TrainingService/CloseSession", request)
        except errors.NotFoundError:
            pass

    def _batch(self, tokens: Tokens, labels: Tokens | None) -> dict[str, list[int]]:
        ids = flat(tokens)
        if labels is not None:
            return {"tokens": ids, "labels": flat(labels)}
        length = max(self.info.workload.seq_len, 1)
        return {"tokens": ids, "labels": [
            ids[i + 1] if (i + 1) % length != 0 and i + 1 < len(ids) else data.IGNORED
            for i in range(len(ids))]}

    def _call(self, verb: str, fields: dict[str, Any], kind: type[T]) -> Future[T]:
        """What can be refused here is refused before the call takes a number."""
        method = "TrainingService/" + verb
        request = fill(self._channel.request(method), {"session_id": self.id, **fields})
        if request.ByteSize() > MESSAGE_BYTES_MAX:
            raise errors.InvalidError(
                f"a message of {request.ByteSize()} bytes; at most {MESSAGE_BYTES_MAX}: use smaller"
                " micro-batches", "MESSAGE_TOO_LARGE",
                {"message_bytes": request.ByteSize(), "limit_bytes": MESSAGE_BYTES_MAX})
        call = _Call(self, method, request, kind)
        with self._changed:
            self._wait_for_room()
            request.seq_id = self._next_seq_id
            self._next_seq_id += 1
            self._in_flight += 1
            try:
                call.send()
            except BaseException:  # also Ctrl-C: the number may not have been used
                self._ended(True)
                raise
        return call.future

    def _wait_for_room(self) -> None:
        """With the lock held."""
        while self._in_flight >= CALLS_MAX or (self._stale and self._in_flight > 0):
            self._changed.wait()
        if self._stale:
            self._next_seq_id = self.get().next_seq_id
            self._stale = False

    def _ended(self, failed: bool) -> None:
        with self._changed:
            self._in_flight -= 1
            self._stale = self._stale or failed
            self._changed.notify_all()
