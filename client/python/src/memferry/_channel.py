"""Calls to the daemon: the only file that knows gRPC. Errors leave it as memferry's own.

One thread of the channel's own, "the loop", makes all unary calls and finishes their futures;
others only put work into its queue. So no lock is shared with the main thread, where Ctrl-C may
strike between any two bytecodes, also right after a lock was taken: threading.Condition and gRPC's
own calls then leave it locked for ever. queue.SimpleQueue and threading.Lock take and give in C, in
one piece."""
from __future__ import annotations

import os
import threading
import traceback
import urllib.parse
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from queue import SimpleQueue
from typing import Any, TypeVar

import grpc
from google.rpc import error_details_pb2, status_pb2

from . import errors
from .v1 import hardware_pb2, plan_pb2, profile_pb2, training_pb2

MESSAGE_BYTES_MAX = 4 << 20  # core/limits.h
_SYSTEM_SOCKET = "/run/memferry/memferryd.sock"
_DETAILS_KEY = "grpc-status-details-bin"
_FILES = {service: file for file in (hardware_pb2, plan_pb2, profile_pb2, training_pb2)
          for service in file.DESCRIPTOR.services_by_name}
# As the C library's channel: no proxy between the daemon and us, a daemon that comes back is found
# at once, and retries are the session's business, which knows seq_id.
_OPTIONS = [("grpc.max_receive_message_length", MESSAGE_BYTES_MAX),
            ("grpc.enable_http_proxy", 0), ("grpc.enable_retries", 0),
            ("grpc.service_config_disable_resolution", 1),
            ("grpc.use_local_subchannel_pool", 1),
            ("grpc.initial_reconnect_backoff_ms", 100), ("grpc.min_reconnect_backoff_ms", 100),
            ("grpc.max_reconnect_backoff_ms", 1000)]
# For errors that do not come from the daemon itself.
_BY_CODE = {grpc.StatusCode.CANCELLED: "CANCELLED", grpc.StatusCode.INVALID_ARGUMENT: "INVALID",
            grpc.StatusCode.OUT_OF_RANGE: "INVALID", grpc.StatusCode.NOT_FOUND: "NOT_FOUND",
            grpc.StatusCode.DEADLINE_EXCEEDED: "DEADLINE",
            grpc.StatusCode.ALREADY_EXISTS: "EXISTS", grpc.StatusCode.PERMISSION_DENIED: "DENIED",
            grpc.StatusCode.UNAUTHENTICATED: "DENIED", grpc.StatusCode.RESOURCE_EXHAUSTED: "BUSY",
            grpc.StatusCode.ABORTED: "BUSY", grpc.StatusCode.UNIMPLEMENTED: "UNSUPPORTED",
            grpc.StatusCode.FAILED_PRECONDITION: "UNSUPPORTED",
            grpc.StatusCode.UNAVAILABLE: "UNAVAILABLE", grpc.StatusCode.DATA_LOSS: "CORRUPT"}


T = TypeVar("T")
Done = Callable[["errors.MemferryError | None", Any], None]


class Reply(Future[T]):
    """The future of a call that was made: result() and done() take no lock that finish() needs."""

    def __init__(self) -> None:
        super().__init__()
        self._finished = False
        self._finisher = 0
        self._gate = threading.Lock()
        self._gate.acquire()
        self.set_running_or_notify_cancel()

    def finish(self, error: Exception | None, result: Any) -> None:
        self._finisher = threading.get_ident()
        try:
            if error is not None:
                self.set_exception(error)
            else:
                self.set_result(result)
        finally:
            self._finished = True
            self._gate.release()

    def done(self) -> bool:
        return self._finished or super().done()

    def _wait(self, timeout: float | None) -> float | None:
        """What is left to wait: nothing once it has finished."""
        if self._finisher == threading.get_ident():
            return 0  # in a callback
        if self._gate.acquire(True, -1 if timeout is None else max(timeout, 0)):
            self._gate.release()
        return 0

    def result(self, timeout: float | None = None) -> T:
        return super().result(self._wait(timeout))

    def exception(self, timeout: float | None = None) -> BaseException | None:
        return super().exception(self._wait(timeout))


def default_address() -> str:
    """$MEMFERRY_HOST, else the user's socket, else the system's: as core/address.c."""
    host = os.environ.get("MEMFERRY_HOST", "")
    if host:
        return host
    runtime = os.environ.get("XDG_RUNTIME_DIR", "")
    path = _SYSTEM_SOCKET
    if runtime.startswith("/"):
        path = f"{runtime}/memferry/memferryd.sock"
    elif os.geteuid() != 0:
        folder = f"/tmp/memferry-{os.geteuid()}"
        if os.path.lexists(folder) and (os.path.islink(folder) or not os.path.isdir(folder)
                                        or os.lstat(folder).st_uid != os.geteuid()):
            raise errors.DeniedError(f"{folder} is not a folder of yours; set MEMFERRY_HOST to the "
                                     "address to use")
        path = f"{folder}/memferryd.sock"
    if not os.path.exists(path) and os.path.exists(_SYSTEM_SOCKET):
        path = _SYSTEM_SOCKET
    return "unix:" + path


def _target(address: str) -> str:
    """gRPC's name for the address. InvalidError."""
    path = address.removeprefix("unix:")
    if path.startswith("//"):
        path = path[2:]  # the URI form unix:///path
    if path.startswith("/"):
        return "unix:" + urllib.parse.quote(path)
    port = address.rpartition(":")[2]
    if address.startswith("unix:") or not port.isdigit() or not address.rpartition(":")[0]:
        raise errors.InvalidError(f"address '{address}' is none of unix:/path, host:port, "
                                  "[IPv6 number]:port")
    return "dns:///" + address


def _details(call: Any) -> Any:
    """The daemon's ErrorInfo, None when the error is not the daemon's."""
    for key, value in call.trailing_metadata() or ():
        if key == _DETAILS_KEY:
            info = error_details_pb2.ErrorInfo()
            for detail in status_pb2.Status.FromString(value).details:
                if detail.Unpack(info) and info.domain == "memferry":
                    return info
    return None


def _cancel(calls: list[Any]) -> None:
    for call in calls:
        if call is not None:
            call.cancel()


class Channel:
    def __init__(self, address: str | None) -> None:
        self.address = address if address is not None else default_address()
        self._core = grpc.insecure_channel(_target(self.address), options=_OPTIONS)
        self._work: SimpleQueue[Callable[[], None]] = SimpleQueue()
        self._closed = False
        self._ending = False  # of the loop alone, as what follows
        self._open = 0  # calls and pauses that have not ended
        self._thread = threading.Thread(target=self._loop, name="memferry", daemon=True)
        self._thread.start()

    def _loop(self) -> None:
        while not (self._ending and self._open == 0):
            try:
                self._work.get()()
            except Exception:  # a fault of ours; the other calls go on
                traceback.print_exc()

    def inside(self) -> bool:
        """True in the loop: in a callback of a future."""
        return threading.current_thread() is self._thread

    def post(self, work: Callable[[], None]) -> None:
        """Has the loop do it, in the order of the posts."""
        if self._closed:
            raise errors.CancelledError("the client was closed")
        self._work.put(work)

    def close(self) -> None:
        """Calls in flight end with CancelledError."""
        if self._closed:
            return
        self._closed = True
        closed: Reply[None] = Reply()

        def end() -> None:
            self._core.close()
            self._ending = True
            closed.finish(None, None)
        self._work.put(end)
        if not self.inside():
            closed.result()

    def request(self, method: str) -> Any:
        """An empty request of "Service/Method"."""
        return self._messages(method)[0]()

    def _messages(self, method: str) -> tuple[Any, Any]:
        service, _, name = method.partition("/")
        file = _FILES.get(service)
        found = file and file.DESCRIPTOR.services_by_name[service].methods_by_name.get(name)
        if not found:
            known = ", ".join(sorted(f"{each}/{method.name}" for each, file in _FILES.items()
                                     for method in file.DESCRIPTOR.services_by_name[each].methods))
            raise errors.InvalidError(f"there is no method {method}; there are {known}")
        return getattr(file, found.input_type.name), getattr(file, found.output_type.name)

    def _method(self, method: str, kind: str) -> Any:
        request, response = self._messages(method)
        return getattr(self._core, kind)("/memferry.v1." + method,
                                         request_serializer=request.SerializeToString,
                                         response_deserializer=response.FromString)

    def start(self, method: str, request: Any, done: Done) -> Any:
        """Starts a unary call, in the loop; `done` is called there with error or answer."""
        try:
            call = self._method(method, "unary_unary").future(request)
        except ValueError:  # how gRPC says that its channel was closed
            done(errors.CancelledError("the client was closed"), None)
            return None
        self._open += 1

        def ended() -> None:
            self._open -= 1
            good = not call.cancelled() and call.exception() is None
            done(None if good else self.error_of(call), call.result() if good else None)
        call.add_done_callback(lambda _: self._work.put(ended))
        return call

    def later(self, seconds: float, work: Callable[[], None]) -> None:
        """Has the loop do it after a pause; called in the loop."""
        self._open += 1

        def due() -> None:
            self._open -= 1
            work()
        timer = threading.Timer(seconds, self._work.put, [due])
        timer.daemon = True
        timer.start()

    def call(self, method: str, request: Any) -> Any:
        """The answer of a unary call; Ctrl-C cancels the call."""
        reply: Reply[Any] = Reply()
        calls: list[Any] = []
        self.post(lambda: calls.append(self.start(method, request, reply.finish)))
        try:
            return reply.result()
        except errors.MemferryError:
            raise
        except BaseException:
            self._work.put(lambda: _cancel(calls))
            raise

    def stream(self, method: str, request: Any) -> Iterator[Any]:
        """The answers of a streaming call; leaving the iteration cancels the call."""
        news: SimpleQueue[tuple[Any, errors.MemferryError | None]] = SimpleQueue()
        calls: list[Any] = []
        left: list[bool] = []

        def follow() -> None:
            try:
                calls.append(self._method(method, "unary_stream")(request))
                if left:
                    _cancel(calls)
                for answer in calls[0]:
                    news.put((answer, None))
                news.put((None, None))
            except grpc.RpcError:
                news.put((None, self.error_of(calls[0])))
            except ValueError:
                news.put((None, errors.CancelledError("the client was closed")))
        threading.Thread(target=follow, name="memferry stream", daemon=True).start()
        try:
            while True:
                answer, error = news.get()
                if error is not None:
                    raise error
                if answer is None:
                    return
                yield answer
        finally:
            left.append(True)
            self._work.put(lambda: _cancel(calls))

    def error_of(self, call: Any) -> errors.MemferryError:
        """Why a call failed that has ended."""
        info = _details(call)
        text = call.details() or ""
        if info is not None:
            numbers = {key: int(value) for key, value in info.metadata.items() if key != "status"}
            status = info.metadata["status"]
            reason = info.reason if info.reason != status else ""
            return errors.BY_STATUS.get(status, errors.InternalError)(text, reason, numbers)
        status = _BY_CODE.get(call.code(), "INTERNAL")
        if status == "UNAVAILABLE":
            return errors.UnavailableError(
                f"no memferry daemon answers at {self.address}; start one with `memferry serve` "
                f"({text})", "NO_DAEMON")
        return errors.BY_STATUS[status](text or status.lower())
