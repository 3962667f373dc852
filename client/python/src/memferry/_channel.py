"""Calls to the daemon: the only file that knows gRPC. Errors leave it as memferry's own.

A channel may be used by many threads at once."""
from __future__ import annotations

import os
import urllib.parse
from collections.abc import Iterator
from typing import Any

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


class Channel:
    def __init__(self, address: str | None) -> None:
        self.address = address if address is not None else default_address()
        self._core = grpc.insecure_channel(_target(self.address), options=_OPTIONS)

    def close(self) -> None:
        """Calls in flight end with CancelledError."""
        self._core.close()

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

    def _open(self, method: str, kind: str) -> Any:
        request, response = self._messages(method)
        try:
            return getattr(self._core, kind)("/memferry.v1." + method,
                                             request_serializer=request.SerializeToString,
                                             response_deserializer=response.FromString)
        except ValueError as error:  # how gRPC says that its channel was closed
            raise errors.CancelledError("the client was closed") from error

    def start(self, method: str, request: Any) -> Any:
        """gRPC's future of a unary call."""
        try:
            return self._open(method, "unary_unary").future(request)
        except ValueError as error:
            raise errors.CancelledError("the client was closed") from error

    def call(self, method: str, request: Any) -> Any:
        """The answer of a unary call; Ctrl-C cancels the call."""
        call = self.start(method, request)
        try:
            return call.result()
        except (grpc.RpcError, grpc.FutureCancelledError):
            raise self.error_of(call) from None
        except BaseException:
            call.cancel()
            raise

    def stream(self, method: str, request: Any) -> Iterator[Any]:
        """The answers of a streaming call; leaving the iteration cancels the call."""
        call = self._open(method, "unary_stream")(request)
        try:
            yield from call
        except grpc.RpcError:
            raise self.error_of(call) from None
        finally:
            call.cancel()

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
