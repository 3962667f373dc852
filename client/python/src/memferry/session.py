"""A training session, driven step by step in Tinker's verbs.

Every verb returns a future at once; the daemon carries the calls out in the order in which they
were made. 16 may be in flight: a verb waits for room. A call that fails because the daemon cannot
be reached is sent again with its number, so that it is never carried out twice. A call that was
made cannot be taken back (Future.cancel() is False); close() ends those in flight.

A session may be used by many threads."""
from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from concurrent.futures import Future
from queue import SimpleQueue
from types import TracebackType
from typing import Any, Generic, Protocol, TypeVar

from . import data, errors
from ._channel import MESSAGE_BYTES_MAX, Channel, Reply
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
    """One call until its future has a result. All methods run in the channel's loop."""

    def __init__(self, session: Session, method: str, request: Any, kind: type[T]) -> None:
        self.session = session
        self.method = method
        self.request = request
        self.kind = kind
        self.attempt = 0
        self.counted = False  # it took one of the places that a verb waits for
        self.future: Reply[T] = Reply()

    def send(self) -> None:
        self.attempt += 1
        self.session._channel.start(self.method, self.request, self.ended)

    def ended(self, error: errors.MemferryError | None, answer: Any) -> None:
        if isinstance(error, errors.UnavailableError) and self.attempt < _ATTEMPTS:
            self.session._channel.later(_FIRST_PAUSE_SECONDS * 2 ** (self.attempt - 1), self.send)
            return
        self.session._in_flight -= 1
        # It may or may not have used its number up.
        self.session._stale = self.session._stale or error is not None
        self.finish(error, answer)

    def finish(self, error: errors.MemferryError | None, answer: Any) -> None:
        if self.counted:
            self.session._places.put(None)
        self.session._pump()
        try:
            self.future.finish(error, None if error is not None else read(self.kind, answer))
        except Exception as fault:  # whatever it is, nobody may wait for ever
            self.future.finish(fault, None)


class Session:
    """Made by Client.create_session() and Client.attach_session(). `with` closes it."""

    def __init__(self, channel: Channel, info: data.SessionInfo) -> None:
        self.info = info  # as it was when this object was made; get() asks
        self.id = info.id
        self._channel = channel
        self._places: SimpleQueue[None] = SimpleQueue()  # a verb takes one, its end gives it back
        for _ in range(CALLS_MAX):
            self._places.put(None)
        # What follows belongs to the channel's loop.
        self._waiting: deque[_Call[Any]] = deque()
        self._next_seq_id = max(info.next_seq_id, 1)
        self._in_flight = 0
        # After a failure the daemon is asked for the number to go on with, when no call is in
        # flight any more.
        self._stale = False
        self._asking = False

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
        if not self._channel.inside():  # the loop, which makes room, must not wait for it
            self._places.get()
            call.counted = True
        self._channel.post(lambda: self._add(call))
        return call.future

    def _add(self, call: _Call[Any]) -> None:
        self._waiting.append(call)
        self._pump()

    def _pump(self) -> None:
        """Sends what can be sent."""
        while self._waiting and self._in_flight < CALLS_MAX and not self._stale:
            call = self._waiting.popleft()
            call.request.seq_id = self._next_seq_id
            self._next_seq_id += 1
            self._in_flight += 1
            call.send()
        if self._waiting and self._stale and self._in_flight == 0 and not self._asking:
            self._asking = True
            request = fill(self._channel.request("TrainingService/GetSession"),
                           {"session_id": self.id})
            self._channel.start("TrainingService/GetSession", request, self._asked)

    def _asked(self, error: errors.MemferryError | None, answer: Any) -> None:
        self._asking = False
        if error is not None:
            self._waiting.popleft().finish(error, None)
            return
        self._next_seq_id = answer.session.next_seq_id
        self._stale = False
        self._pump()
