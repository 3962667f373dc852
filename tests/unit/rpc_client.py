"""A foreign gRPC client for test_rpc_tools.c: health and reflection, without generated stubs.

Usage: rpc_client.py ADDRESS WHAT. Exits 0 when all is as it must be, 77 without Debian's grpc.
"""
import sys

try:
    import grpc
    from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
except ImportError as error:
    print(error)
    sys.exit(77)

TIMEOUT_S = 20


def method(channel, kind, path):
    return getattr(channel, kind)(path, request_serializer=lambda b: b,
                                  response_deserializer=lambda b: b)


def field(number, data):
    """A short length-prefixed field."""
    assert len(data) < 128
    return bytes([number << 3 | 2, len(data)]) + data


def check(channel, service):
    call = method(channel, "unary_unary", "/grpc.health.v1.Health/Check")
    return call(field(1, service) if service else b"", timeout=TIMEOUT_S)


def health(channel):
    serving, unknown = b"\x08\x01", b"\x08\x03"
    assert check(channel, b"") == serving
    assert check(channel, b"grpc.health.v1.Health") == serving
    try:
        check(channel, b"no.Such")
        raise AssertionError("an unknown service has health")
    except grpc.RpcError as error:
        assert error.code() == grpc.StatusCode.NOT_FOUND, error
        keys = [pair.key for pair in error.trailing_metadata()]
        assert "grpc-status-details-bin" in keys, keys
    watch = method(channel, "unary_stream", "/grpc.health.v1.Health/Watch")
    for service, answer in ((b"", serving), (b"no.Such", unknown)):
        stream = watch(field(1, service), timeout=TIMEOUT_S)
        assert next(stream) == answer
        stream.cancel()


def responses(channel, version, requests):
    """Answers as messages, built from the descriptors that the server itself serves."""
    path = f"/grpc.reflection.{version}.ServerReflection/ServerReflectionInfo"
    return [bytes(r) for r in method(channel, "stream_stream", path)(iter(requests),
                                                                     timeout=TIMEOUT_S)]


def response_class(channel, version):
    """Fetches reflection.proto by reflection: file_by_filename is field 3 of the request, the
    answer's field 4 holds repeated field 1."""
    name = f"grpc/reflection/{version}/reflection.proto".encode()
    (raw,) = responses(channel, version, [field(3, name)])
    start = raw.index(name) + len(name)  # Past the echo of the request.
    at = raw.index(b"\x0a", raw.index(b"\x22", start) + 1)
    length, shift, at = 0, 0, at + 1
    while True:
        length |= (raw[at] & 0x7f) << shift
        shift += 7
        at += 1
        if raw[at - 1] < 0x80:
            break
    file = descriptor_pb2.FileDescriptorProto.FromString(raw[at:at + length])
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    found = pool.FindMessageTypeByName(f"grpc.reflection.{version}.ServerReflectionResponse")
    if hasattr(message_factory, "GetMessageClass"):
        return message_factory.GetMessageClass(found)
    return message_factory.MessageFactory(pool).GetPrototype(found)


def reflection(channel):
    for version in ("v1", "v1alpha"):
        kind = response_class(channel, version)
        symbols = [b"grpc.health.v1.Health", b"grpc.health.v1.Health.Watch",
                   b"grpc.health.v1.HealthCheckResponse.ServingStatus", b"google.rpc.Status.code",
                   b"google.rpc.Statu", b"grpc.health.v1"]
        got = [kind.FromString(raw) for raw in
               responses(channel, version, [field(7, b"*")] + [field(4, s) for s in symbols])]
        names = [s.name for s in got[0].list_services_response.service]
        assert names == ["grpc.health.v1.Health", "grpc.reflection.v1.ServerReflection",
                         "grpc.reflection.v1alpha.ServerReflection", "t.T"], names
        for symbol, answer in zip(symbols, got[1:]):
            files = [descriptor_pb2.FileDescriptorProto.FromString(raw).name for raw in
                     answer.file_descriptor_response.file_descriptor_proto]
            wanted = {b"grpc.heal": ["grpc/health/v1/health.proto"],
                      b"google.rp": ["google/rpc/status.proto", "google/protobuf/any.proto"]}
            if symbol in (b"google.rpc.Statu", b"grpc.health.v1"):
                assert answer.error_response.error_code == 5, answer
            else:
                assert files == wanted[symbol[:9]], (symbol, files)
        assert got[1].original_request.file_containing_symbol == symbols[0].decode()


def compressed(channel):
    call = method(channel, "unary_unary", "/grpc.health.v1.Health/Check")
    try:
        call(field(1, b"x" * 100), timeout=TIMEOUT_S, compression=grpc.Compression.Gzip)
        raise AssertionError("a compressed request was taken")
    except grpc.RpcError as error:
        assert error.code() == grpc.StatusCode.UNIMPLEMENTED, error


def drain(channel):
    """Says when it watches; then the server drains."""
    watch = method(channel, "unary_stream", "/grpc.health.v1.Health/Watch")
    stream = watch(b"", timeout=TIMEOUT_S)
    assert next(stream) == b"\x08\x01"
    print("watching", flush=True)
    assert next(stream) == b"\x08\x02"
    try:
        next(stream)
        raise AssertionError("the watch did not end")
    except grpc.RpcError as error:
        assert error.code() == grpc.StatusCode.UNAVAILABLE, error


def pings(channel):
    """A silent call outlives many pings of an eager client."""
    hold = method(channel, "unary_unary", "/t.T/Sleep")
    assert hold(b"", timeout=TIMEOUT_S) == b"awake"


if __name__ == "__main__":
    OPTIONS = [("grpc.keepalive_time_ms", 100), ("grpc.http2.max_pings_without_data", 0),
               ("grpc.keepalive_permit_without_calls", 1)]
    with grpc.insecure_channel(sys.argv[1], options=OPTIONS) as opened:
        globals()[sys.argv[2]](opened)
