"""What the end-to-end tests share: the Python client with stubs that protoc makes, a daemon on a
private socket and home, a training session over gRPC, the command line, and small models.

Each test program calls main(); its folder goes when it ends, unless MF_TEST_KEEP is set. A test
that fails shows the log of every daemon it started."""
import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import unittest

import grpc

SOURCE = os.environ.get("MEMFERRY_SOURCE_DIR",
                        os.path.realpath(os.path.join(os.path.dirname(__file__), "..", "..")))
BIN = os.environ.get("MEMFERRY_BIN_DIR", os.path.join(SOURCE, "build", "bin"))
MEMFERRYD = os.environ.get("MEMFERRYD", os.path.join(BIN, "memferryd"))
MEMFERRY = os.environ.get("MEMFERRY", os.path.join(BIN, "memferry"))
FIXTURES = os.path.join(SOURCE, "tests", "oracle", "fixtures")
FOLDER = tempfile.mkdtemp(prefix="memferry-e2e-")
SKIPPED = 77


def make_stubs():
    out = os.path.join(FOLDER, "stubs")
    # The stubs are a part of the Python client, memferry/v1: here as in its package.
    shutil.copytree(os.path.join(SOURCE, "client", "python", "src"), out)
    proto = os.path.join(SOURCE, "proto")
    names = ["memferry/v1/" + n + ".proto" for n in ("hardware", "plan", "profile", "training")]
    names += ["google/rpc/status.proto", "google/rpc/error_details.proto",
              "google/protobuf/any.proto", "grpc/health/v1/health.proto",
              "grpc/reflection/v1/reflection.proto", "grpc/reflection/v1alpha/reflection.proto"]
    plugin = shutil.which("grpc_python_plugin")
    subprocess.run(["protoc", "-I" + proto, "--python_out=" + out, "--pyi_out=" + out,
                    "--grpc_out=" + out, "--plugin=protoc-gen-grpc=" + plugin, *names], check=True)
    shutil.rmtree(os.path.join(out, "google", "protobuf"))  # the library has its own
    sys.path.insert(0, out)
    import google
    google.__path__.append(os.path.join(out, "google"))
    grpc.__path__.append(os.path.join(out, "grpc"))


make_stubs()
from google.rpc import error_details_pb2, status_pb2  # noqa: E402
from memferry.v1 import hardware_pb2, hardware_pb2_grpc  # noqa: E402,F401
from memferry.v1 import plan_pb2, plan_pb2_grpc, profile_pb2_grpc  # noqa: E402
from memferry.v1 import training_pb2, training_pb2_grpc  # noqa: E402


class Daemon:
    """memferryd on the host device. A name that is used again is the same home and socket."""

    started = []
    count = 0

    def __init__(self, *flags, name=None, memory="64MiB", wait=True, before=None,
                 environment=None):
        Daemon.count += 1
        self.name = name or f"daemon{Daemon.count}"
        self.home = os.path.join(FOLDER, self.name)
        self.socket = os.path.join(FOLDER, self.name + ".sock")
        command = [MEMFERRYD, "--device", "host", "--device-memory", memory, "--home", self.home,
                   "--socket", self.socket, "--root", SOURCE, "--root", FOLDER, *flags]
        self.log = open(os.path.join(FOLDER, self.name + ".log"), "a+", encoding="utf-8")
        self.process = subprocess.Popen(command, stderr=self.log, preexec_fn=before,
                                        env={**os.environ, **(environment or {})})
        Daemon.started.append(self)
        self.channel = None
        self.connect()
        if wait:
            self.wait()

    def connect(self):
        """New stubs on a new connection."""
        if self.channel is not None:
            self.channel.close()
        self.channel = grpc.insecure_channel("unix:" + self.socket,
                                             options=[
            ("grpc.use_local_subchannel_pool", 1), ("grpc.initial_reconnect_backoff_ms", 20),
            ("grpc.min_reconnect_backoff_ms", 20)])
        self.hardware = hardware_pb2_grpc.HardwareServiceStub(self.channel)
        self.plans = plan_pb2_grpc.PlanServiceStub(self.channel)
        self.profiles = profile_pb2_grpc.ProfileServiceStub(self.channel)
        self.training = training_pb2_grpc.TrainingServiceStub(self.channel)

    def wait(self):
        ready = grpc.channel_ready_future(self.channel)
        deadline = time.monotonic() + 120
        while True:
            with contextlib.suppress(grpc.FutureTimeoutError):
                ready.result(timeout=0.5)
                return
            if self.process.poll() is not None or time.monotonic() > deadline:
                raise AssertionError(f"the daemon does not serve:\n{self.text()}")

    def text(self):
        with open(os.path.join(FOLDER, self.name + ".log"), encoding="utf-8") as file:
            return file.read()

    def ended(self, timeout=60):
        """Waits for the end; the exit code."""
        code = self.process.wait(timeout=timeout)
        self.channel.close()
        self.log.close()
        if self in Daemon.started:
            Daemon.started.remove(self)
        return code

    def stop(self, how=signal.SIGTERM):
        self.process.send_signal(how)
        return self.ended()

    def cli(self, *words, code=0, environment=None, timeout=120):
        """The program memferry; the result has stdout and stderr as text."""
        result = subprocess.run([MEMFERRY, *words], capture_output=True, text=True, check=False,
                                timeout=timeout, stdin=subprocess.DEVNULL,
                                env={**os.environ, "MEMFERRY_HOST": "unix:" + self.socket,
                                     **(environment or {})})
        if code is not None and result.returncode != code:
            raise AssertionError(f"memferry {' '.join(words)}: exit code {result.returncode}, "
                                 f"expected {code}\n{result.stdout}\n{result.stderr}")
        return result

    def json(self, *words):
        return json.loads(self.cli(*words, "--format", "json").stdout)

    def start_cli(self, *words):
        return subprocess.Popen([MEMFERRY, *words], stdout=subprocess.PIPE, text=True,
                                stderr=subprocess.PIPE, stdin=subprocess.DEVNULL,
                                env={**os.environ, "MEMFERRY_HOST": "unix:" + self.socket})


class Session:
    """A training session, its calls numbered. Methods end in _future where they do not wait."""

    def __init__(self, daemon, model=None, budget=0, micro_batch=2, seq_len=32, accumulation=1,
                 strategy=0, seed=1, lease=0, effort=plan_pb2.EFFORT_ESTIMATE, **more):
        self.daemon = daemon
        self.tokens_per_batch = micro_batch * seq_len
        request = training_pb2.CreateSessionRequest(
            model=model or plan_pb2.Model(preset="tiny-llama"),
            workload=plan_pb2.Workload(micro_batch=micro_batch, seq_len=seq_len,
                                       accumulation=accumulation),
            constraints=plan_pb2.Constraints(device_memory_bytes=budget, strategy=strategy),
            effort=effort, seed=seed, lease_seconds=lease, **more)
        self.events = list(daemon.training.CreateSession(request, timeout=120))
        self.session = self.events[-1].session
        self.id = self.session.id
        self.next = self.session.next_seq_id

    def send(self, verb, timeout=60, seq_id=None, **fields):
        """The future of a call with the next seq_id (or this one, which is not counted)."""
        number = seq_id
        if seq_id is None:
            number = self.next
            self.next += 1
        message = getattr(training_pb2, verb + "Request")
        return getattr(self.daemon.training, verb).future(
            message(session_id=self.id, seq_id=number, **fields), timeout=timeout)

    def forward_backward(self, tokens, labels=None, **more):
        return self.send("ForwardBackward", batch=batch(tokens, labels), **more)

    def optim_step(self, rate=1e-2, **more):
        return self.send("OptimStep", adam=training_pb2.AdamParams(
            learning_rate=rate, clip_norm=1.0, weight_decay=0.1), **more)

    def step(self, tokens):
        """One step with one micro-batch, both calls in flight; the update's answer."""
        calls = [self.forward_backward(tokens), self.optim_step()]
        calls[0].result()
        return calls[1].result()

    def forward(self, tokens, labels=None):
        return self.send("Forward", batch=batch(tokens, labels)).result()

    def save(self, path, **more):
        return self.send("SaveState", path=path, **more).result()

    def get(self):
        return self.daemon.training.GetSession(
            training_pb2.GetSessionRequest(session_id=self.id)).session

    def close(self):
        self.daemon.training.CloseSession(
            training_pb2.CloseSessionRequest(session_id=self.id), timeout=60)


def batch(tokens, labels=None):
    """Labels: those given, else the next token, around the end."""
    return training_pb2.Batch(tokens=tokens, labels=labels or tokens[1:] + tokens[:1])


def text_tokens(count, start=0):
    """Bytes of a text that is easy to learn."""
    text = b"the ferry carries what the deck cannot hold, over and over again. "
    return [text[(start + i) % len(text)] for i in range(count)]


def write_run(folder, name="run.json", text=None, **keys):
    """A run config for the tiny Llama with data beside it; `keys` go into its own block."""
    os.makedirs(folder, exist_ok=True)
    with open(os.path.join(folder, "data.txt"), "wb") as file:
        file.write(text or bytes(text_tokens(60000)) + bytes(range(32, 127)) * 40)
    block = {"model": "tiny-llama", "data": {"text": "data.txt"}, "seq_len": 32, "steps": 20,
             "output": "out", "save_steps": 0, "effort": "estimate", "final": "", **keys}
    config = {"train_batch_size": 4, "train_micro_batch_size_per_gpu": 2, "gradient_clipping": 1.0,
              "optimizer": {"type": "AdamW", "params": {"lr": 3e-3, "weight_decay": 0.1}},
              "memferry": {key: value for key, value in block.items() if value is not None}}
    path = os.path.join(folder, name)
    with open(path, "w", encoding="utf-8") as file:
        json.dump(config, file)
    return path


def read_bytes(*parts):
    with open(os.path.join(*parts), "rb") as file:
        return file.read()


def wait_for(what, timeout=60, every=0.005):
    """What `what` returns, once it is true."""
    deadline = time.monotonic() + timeout
    while True:
        value = what()
        if value:
            return value
        if time.monotonic() > deadline:
            raise AssertionError(f"waited {timeout} s in vain")
        time.sleep(every)


def error_info(error):
    """The ErrorInfo of a failed call: reason and metadata (numbers as text)."""
    for key, value in error.trailing_metadata() or ():
        if key == "grpc-status-details-bin":
            status = status_pb2.Status.FromString(value)
            info = error_details_pb2.ErrorInfo()
            status.details[0].Unpack(info)
            return info
    return error_details_pb2.ErrorInfo()


class TestCase(unittest.TestCase):
    def fails(self, code, call, *arguments, reason=None, fragment="", **more):
        """`call` ends with this code; the error."""
        with self.assertRaises(grpc.RpcError) as caught:
            call(*arguments, **more)
        error = caught.exception
        self.assertEqual(error.code(), getattr(grpc.StatusCode, code), error.details())
        self.assertIn(fragment, error.details())
        if reason:
            self.assertEqual(error_info(error).reason, reason, error.details())
        return error


class Result(unittest.TextTestResult):
    """A failed test shows what its daemons said."""

    def show_logs(self):
        for daemon in Daemon.started:
            self.stream.writeln(f"\n-- {daemon.name}.log, process {daemon.process.pid}, "
                                f"exit code {daemon.process.poll()}")
            self.stream.writeln(daemon.text()[-6000:])

    def addError(self, test, err):
        super().addError(test, err)
        self.show_logs()

    def addFailure(self, test, err):
        super().addFailure(test, err)
        self.show_logs()


def main():
    program = None
    try:
        program = unittest.main(verbosity=2, exit=False,
                                testRunner=unittest.TextTestRunner(resultclass=Result, verbosity=2))
    finally:
        for daemon in list(Daemon.started):
            daemon.process.kill()
            daemon.process.wait()
        if "MF_TEST_KEEP" in os.environ:
            print("kept:", FOLDER)
        else:
            shutil.rmtree(FOLDER, ignore_errors=True)
    result = program.result
    everything_skipped = result.testsRun > 0 and len(result.skipped) == result.testsRun
    sys.exit(1 if not result.wasSuccessful() else SKIPPED if everything_skipped else 0)
