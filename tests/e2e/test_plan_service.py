#!/usr/bin/python3
"""The daemon from outside: hardware, profiles and plans over gRPC, with stubs that protoc makes.

Starts build/bin/memferryd (or $MEMFERRYD) on the host device in a folder of its own, several times
where a restart is the point."""
import os
import shutil
import signal
import sqlite3
import stat
import subprocess
import sys
import tempfile
import threading
import time
import unittest

import grpc

SOURCE = os.environ.get("MEMFERRY_SOURCE_DIR",
                        os.path.realpath(os.path.join(os.path.dirname(__file__), "..", "..")))
BIN = os.environ.get("MEMFERRY_BIN_DIR", os.path.join(SOURCE, "build", "bin"))
MEMFERRYD = os.environ.get("MEMFERRYD", os.path.join(BIN, "memferryd"))
MODEL = os.path.join(SOURCE, "scripts", "quickstart-model")

FOLDER = tempfile.mkdtemp(prefix="memferry-e2e-")


def make_stubs():
    out = os.path.join(FOLDER, "stubs")
    os.makedirs(out)
    proto = os.path.join(SOURCE, "proto")
    names = ["memferry/v1/" + n + ".proto" for n in ("hardware", "plan", "profile", "training")]
    names += ["google/rpc/status.proto", "google/rpc/error_details.proto",
              "google/protobuf/any.proto"]
    plugin = shutil.which("grpc_python_plugin")
    subprocess.run(["protoc", "-I" + proto, "--python_out=" + out, "--grpc_out=" + out,
                    "--plugin=protoc-gen-grpc=" + plugin, *names], check=True)
    shutil.rmtree(os.path.join(out, "google", "protobuf"))  # the library has its own
    sys.path.insert(0, out)
    import google
    google.__path__.append(os.path.join(out, "google"))


make_stubs()
from memferry.v1 import hardware_pb2, hardware_pb2_grpc  # noqa: E402
from memferry.v1 import plan_pb2, plan_pb2_grpc, profile_pb2, profile_pb2_grpc  # noqa: E402
from google.rpc import error_details_pb2, status_pb2  # noqa: E402


class Daemon:
    def __init__(self, *flags, name="home", wait=True, environment=None):
        self.home = os.path.join(FOLDER, name)
        self.socket = os.path.join(FOLDER, name + ".sock")
        command = [MEMFERRYD, "--device", "host", "--device-memory", "512MiB", "--home", self.home,
                   "--socket", self.socket, "--root", SOURCE, "--root", FOLDER, *flags]
        self.log = open(os.path.join(FOLDER, name + ".log"), "a+", encoding="utf-8")
        self.process = subprocess.Popen(command, stderr=self.log,
                                        env={**os.environ, **(environment or {})})
        self.channel = grpc.insecure_channel("unix:" + self.socket)
        self.hardware = hardware_pb2_grpc.HardwareServiceStub(self.channel)
        self.plans = plan_pb2_grpc.PlanServiceStub(self.channel)
        self.profiles = profile_pb2_grpc.ProfileServiceStub(self.channel)
        if wait:
            grpc.channel_ready_future(self.channel).result(timeout=60)

    def text(self):
        self.log.flush()
        with open(self.log.name, encoding="utf-8") as file:
            return file.read()

    def stop(self, how=signal.SIGTERM):
        self.channel.close()
        self.process.send_signal(how)
        code = self.process.wait(timeout=60)
        self.log.close()
        return code


def error_info(error):
    for key, value in error.trailing_metadata() or ():
        if key == "grpc-status-details-bin":
            status = status_pb2.Status.FromString(value)
            info = error_details_pb2.ErrorInfo()
            status.details[0].Unpack(info)
            return info
    return None


def request(model=None, budget=0, effort=plan_pb2.EFFORT_ESTIMATE, strategy=0, **workload):
    workload = {"micro_batch": 2, "seq_len": 64, **workload}
    return plan_pb2.GetPlanRequest(
        model=model or plan_pb2.Model(folder=MODEL),
        workload=plan_pb2.Workload(**workload),
        constraints=plan_pb2.Constraints(device_memory_bytes=budget, strategy=strategy),
        effort=effort)


class PlanService(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.daemon = Daemon()

    @classmethod
    def tearDownClass(cls):
        assert cls.daemon.stop() == 0, cls.daemon.text()
        assert not os.path.exists(cls.daemon.socket)

    def fails(self, code, call, message, reason=None, fragment=""):
        with self.assertRaises(grpc.RpcError) as caught:
            call(message, timeout=60)
        self.assertEqual(caught.exception.code(), code, caught.exception.details())
        self.assertIn(fragment, caught.exception.details())
        if reason:
            self.assertEqual(error_info(caught.exception).reason, reason)
        return caught.exception

    def test_hardware(self):
        hardware = self.daemon.hardware.GetHardware(hardware_pb2.GetHardwareRequest()).hardware
        self.assertEqual(len(hardware.devices), 1)
        device = hardware.devices[0]
        self.assertEqual(device.kind, "host")
        self.assertEqual(device.memory_bytes, 512 << 20)
        self.assertGreater(device.matrix_flops, 0)
        self.assertGreater(device.h2d_bytes_per_second, 0)
        self.assertGreater(hardware.host_bytes_per_second, 0)
        self.assertEqual(hardware.cpu_cores, len(os.sched_getaffinity(0)))
        self.assertTrue(hardware.measured)
        self.assertEqual(len(hardware.fingerprint), 64)

    def test_status(self):
        status = self.daemon.hardware.GetStatus(hardware_pb2.GetStatusRequest())
        self.assertEqual(status.pid, self.daemon.process.pid)
        self.assertEqual(status.address, "unix:" + self.daemon.socket)
        self.assertEqual(status.sessions_max, 8)
        self.assertEqual(status.device_memory_bytes, 512 << 20)
        self.assertGreater(status.measurement_count, 0)
        self.assertTrue(os.path.exists(status.store_path))

    def test_doctor(self):
        checks = self.daemon.hardware.Doctor(hardware_pb2.DoctorRequest()).checks
        names = [check.name for check in checks]
        for name in ("device", "CPU", "link", "pinning limit", "cgroup limit", "store", "NUMA"):
            self.assertIn(name, names)
        for check in checks:
            self.assertTrue(check.value and check.meaning, check)
            self.assertNotEqual(check.verdict, hardware_pb2.DoctorCheck.VERDICT_UNSPECIFIED)

    def test_estimate_then_cached(self):
        first = self.daemon.plans.GetPlan(request(accumulation=3))
        self.assertEqual(first.how, "estimated")
        self.assertTrue(first.miss)
        plan = first.plan
        self.assertEqual(plan.model_name, "quickstart-model")
        self.assertEqual(plan.workload.accumulation, 3)
        self.assertGreaterEqual(plan.prediction.step_ns, plan.prediction.bound_ns * 0.999)
        self.assertGreater(plan.prediction.device_peak_bytes, 0)
        self.assertLessEqual(plan.prediction.device_peak_bytes, 512 << 20)
        # Lane times of the units are the busy times of the plan, less kernels of no unit.
        compute = sum(unit.compute_ns for unit in plan.units)
        self.assertGreater(compute, 0.3 * plan.prediction.compute_busy_ns)
        self.assertLess(compute, 1.001 * plan.prediction.compute_busy_ns)
        again = self.daemon.plans.GetPlan(request(accumulation=3))
        self.assertEqual((again.how, again.miss), ("cached", ""))
        self.assertEqual(again.plan, plan)
        cached = self.daemon.plans.GetPlan(request(accumulation=3, effort=plan_pb2.EFFORT_CACHED))
        self.assertEqual(cached.plan.id, plan.id)
        other = self.daemon.plans.GetPlan(request(accumulation=4))
        self.assertIn("another workload", other.miss)
        other = self.daemon.plans.GetPlan(
            request(accumulation=3, strategy=plan_pb2.STRATEGY_STREAM))
        self.assertIn("another strategy", other.miss)
        shown = self.daemon.plans.ShowPlan(plan_pb2.ShowPlanRequest(id=plan.id[:8]))
        self.assertEqual(shown.plan, plan)

    def test_cached_answers_follow_what_changes(self):
        folder = os.path.join(FOLDER, "model")
        shutil.copytree(MODEL, folder)
        message = request(plan_pb2.Model(folder=folder), seq_len=20)
        answers = [self.daemon.plans.GetPlan(message) for _ in range(5)]
        self.assertEqual([a.how for a in answers], ["estimated"] + ["cached"] * 4)
        self.assertEqual({a.plan.id for a in answers}, {answers[0].plan.id})
        uses = {p.id: p.use_count
                for p in self.daemon.plans.ListPlans(plan_pb2.ListPlansRequest()).plans}
        self.assertGreaterEqual(uses[answers[0].plan.id], 4)
        # Another file is another model, at once.
        path = os.path.join(folder, "config.json")
        with open(path, encoding="utf-8") as file:
            text = file.read()
        with open(path, "w", encoding="utf-8") as file:
            file.write(text.replace('"num_hidden_layers": 4', '"num_hidden_layers": 3'))
        other = self.daemon.plans.GetPlan(message)
        self.assertEqual(other.how, "estimated")
        self.assertLess(len(other.plan.units), len(answers[0].plan.units))
        # A plan that was removed is gone.
        self.daemon.plans.GetPlan(message)
        self.daemon.plans.GetPlan(message)
        self.daemon.plans.DeletePlan(plan_pb2.DeletePlanRequest(id=other.plan.id))
        self.assertEqual(self.daemon.plans.GetPlan(message).how, "estimated")

    def test_cached_miss(self):
        self.fails(grpc.StatusCode.NOT_FOUND, self.daemon.plans.GetPlan,
                   request(effort=plan_pb2.EFFORT_CACHED, seq_len=33), "PLAN_NOT_CACHED")

    def test_measure(self):
        plan = self.daemon.plans.GetPlan(request(seq_len=48))
        self.assertEqual(plan.how, "estimated")
        plan = self.daemon.plans.GetPlan(request(seq_len=48, effort=plan_pb2.EFFORT_MEASURE))
        self.assertEqual(plan.how, "measured", plan.plan.prediction)
        self.assertIn("estimate", plan.miss)
        self.assertGreater(plan.measure_seconds, 0)
        self.assertTrue(plan.plan.measured)
        self.assertEqual(plan.plan.prediction.estimated_tasks, 0)
        plan = self.daemon.plans.GetPlan(request(seq_len=48, effort=plan_pb2.EFFORT_MEASURE))
        self.assertEqual(plan.how, "cached")
        self.assertEqual(plan.measure_seconds, 0)
        # An estimate for the same kernels is a measured plan by now.
        plan = self.daemon.plans.GetPlan(request(seq_len=48, budget=60 << 20))
        self.assertEqual(plan.how, "measured")

    def test_profile_stream(self):
        model = plan_pb2.Model(folder=MODEL)
        workload = plan_pb2.Workload(micro_batch=1, seq_len=32)
        events = list(self.daemon.profiles.Measure(
            profile_pb2.MeasureRequest(model=model, workload=workload), timeout=120))
        profile = events[-1].profile
        self.assertTrue(profile.complete)
        self.assertEqual(profile.measured_count, profile.needed_count)
        self.assertEqual(profile.method, "host clock")
        progress = [event.progress for event in events[:-1]]
        self.assertTrue(progress)
        self.assertEqual([p.done for p in progress], sorted(p.done for p in progress))
        by_kernel = {}
        for measurement in profile.measurements:
            self.assertGreater(measurement.median_ns, 0)
            self.assertGreaterEqual(measurement.samples, 3)
            by_kernel.setdefault(measurement.kernel, []).append(measurement)
        units = " ".join(m.units for m in by_kernel["linear_forward"])
        self.assertIn("model.layers.*.mlp.", units)
        self.assertIn("weight in host memory", [m.placement for m in by_kernel["linear_forward"]])
        got = self.daemon.profiles.GetProfile(
            profile_pb2.GetProfileRequest(model=model, workload=workload)).profile
        self.assertEqual(got.measured_count, profile.measured_count)
        # Nothing is measured again, unless asked for.
        events = list(self.daemon.profiles.Measure(
            profile_pb2.MeasureRequest(model=model, workload=workload)))
        self.assertEqual(len(events), 1)
        listed = self.daemon.profiles.ListProfiles(profile_pb2.ListProfilesRequest()).profiles
        self.assertEqual([p.current for p in listed], [True])
        self.assertEqual(listed[0].hardware_fingerprint, profile.hardware_fingerprint)
        self.assertIn("CPU", listed[0].hardware_name)

    def test_measuring_can_be_cancelled(self):
        model = plan_pb2.Model(preset="gpt2")
        workload = plan_pb2.Workload(micro_batch=1, seq_len=128)
        call = self.daemon.profiles.Measure(
            profile_pb2.MeasureRequest(model=model, workload=workload))
        for index, _ in enumerate(call):
            if index == 5:
                call.cancel()
                break
        deadline = time.time() + 30
        while time.time() < deadline:
            status = self.daemon.hardware.GetStatus(hardware_pb2.GetStatusRequest())
            if not status.working_on.startswith("measuring"):
                break
            time.sleep(0.05)
        self.assertFalse(status.working_on.startswith("measuring"))
        got = self.daemon.profiles.GetProfile(
            profile_pb2.GetProfileRequest(model=model, workload=workload)).profile
        self.assertGreater(got.measured_count, 0)
        self.assertLess(got.measured_count, got.needed_count)
        self.assertFalse(got.complete)

    def test_does_not_fit(self):
        message = request(budget=1 << 20)
        for _ in range(2):  # solved, then remembered
            error = self.fails(grpc.StatusCode.RESOURCE_EXHAUSTED, self.daemon.plans.GetPlan,
                               message, "DEVICE_MEMORY_TOO_SMALL")
            metadata = error_info(error).metadata
            self.assertEqual(int(metadata["available_bytes"]), 1 << 20)
            self.assertGreater(int(metadata["needed_bytes"]), 1 << 20)
            self.assertGreater(int(metadata["smallest_bytes"]), 1 << 20)
        began = time.time()
        self.fails(grpc.StatusCode.RESOURCE_EXHAUSTED, self.daemon.plans.GetPlan,
                   request(budget=1 << 20, effort=plan_pb2.EFFORT_MEASURE))
        self.assertLess(time.time() - began, 1)

    def test_smallest_that_is_named_fits(self):
        error = self.fails(grpc.StatusCode.RESOURCE_EXHAUSTED, self.daemon.plans.GetPlan,
                           request(budget=1 << 20, seq_len=96))
        smallest = int(error_info(error).metadata["smallest_bytes"])
        plan = self.daemon.plans.GetPlan(request(budget=smallest, seq_len=96)).plan
        self.assertLessEqual(plan.prediction.device_peak_bytes, smallest)

    def test_pins(self):
        message = request()
        message.constraints.pins.add(pattern="model.layers.0.*",
                                     forward=plan_pb2.WEIGHT_FORWARD_DIRECT)
        plan = self.daemon.plans.GetPlan(message).plan
        for unit in plan.units:
            if unit.name.startswith("model.layers.0."):
                self.assertEqual(unit.forward, plan_pb2.WEIGHT_FORWARD_DIRECT)
                self.assertTrue(unit.pinned)

    def test_explain(self):
        plan = self.daemon.plans.GetPlan(request(budget=24 << 20)).plan
        name = "model.layers.1.mlp.down_proj"
        answer = self.daemon.plans.ExplainPlan(plan_pb2.ExplainPlanRequest(id=plan.id, unit=name))
        self.assertEqual(answer.unit.name, name)
        steps = [a.step_ns for a in answer.alternatives]
        self.assertEqual(steps, sorted(steps))
        self.assertGreater(len(steps), 20)
        chosen = [a for a in answer.alternatives if a.chosen]
        self.assertEqual(len(chosen), 1)
        self.assertEqual(chosen[0].step_ns, plan.prediction.step_ns)
        self.assertTrue(chosen[0].fits)
        self.fails(grpc.StatusCode.NOT_FOUND, self.daemon.plans.ExplainPlan,
                   plan_pb2.ExplainPlanRequest(id=plan.id, unit="model.layers.1.mlp.down_pro"),
                   fragment=name)

    def test_lists_and_delete(self):
        plan = self.daemon.plans.GetPlan(request(seq_len=40)).plan
        listed = {p.id: p for p in self.daemon.plans.ListPlans(plan_pb2.ListPlansRequest()).plans}
        self.assertIn(plan.id, listed)
        self.assertEqual(listed[plan.id].workload.seq_len, 40)
        self.assertTrue(listed[plan.id].current)
        models = self.daemon.plans.ListModels(plan_pb2.ListModelsRequest())
        self.assertIn("quickstart-model", [m.name for m in models.models])
        self.assertIn("gpt2", models.presets)
        self.daemon.plans.DeletePlan(plan_pb2.DeletePlanRequest(id=plan.id))
        self.fails(grpc.StatusCode.NOT_FOUND, self.daemon.plans.ShowPlan,
                   plan_pb2.ShowPlanRequest(id=plan.id))

    def test_sources_of_models(self):
        with open(os.path.join(MODEL, "config.json"), encoding="utf-8") as file:
            text = file.read()
        inline = self.daemon.plans.GetPlan(request(plan_pb2.Model(config_json=text), seq_len=56))
        folder = self.daemon.plans.GetPlan(request(seq_len=56))
        self.assertEqual(folder.plan.model_fingerprint, inline.plan.model_fingerprint)
        self.assertEqual(folder.how, "cached")
        units = [plan_pb2.UnitShape(name=f"layer{i}", block=i, rows=256, columns=256, bias=True)
                 for i in range(6)]
        listed = self.daemon.plans.GetPlan(
            request(plan_pb2.Model(units=plan_pb2.UnitList(units=units)), seq_len=16))
        self.assertEqual([u.name for u in listed.plan.units], [u.name for u in units])
        shown = self.daemon.plans.ShowPlan(plan_pb2.ShowPlanRequest(id=listed.plan.id))
        self.assertEqual(shown.plan.units, listed.plan.units)

    def test_refusals(self):
        invalid = grpc.StatusCode.INVALID_ARGUMENT
        get = self.daemon.plans.GetPlan
        self.fails(invalid, get, plan_pb2.GetPlanRequest(), fragment="folder, preset")
        self.fails(invalid, get, request(seq_len=513), fragment="at most 512")
        self.fails(invalid, get, request(micro_batch=-1), fragment="micro")
        self.fails(invalid, get, request(accumulation=5000), fragment="accumulation")
        self.fails(invalid, get, request(budget=-1), fragment="device_memory_bytes")
        self.fails(invalid, get, request(plan_pb2.Model(config_json="{")), fragment="config_json")
        self.fails(grpc.StatusCode.NOT_FOUND, get, request(plan_pb2.Model(preset="gpt3")))
        self.fails(grpc.StatusCode.PERMISSION_DENIED, get, request(plan_pb2.Model(folder="/etc")),
                   "PATH_NOT_ALLOWED")
        self.fails(grpc.StatusCode.PERMISSION_DENIED, get,
                   request(plan_pb2.Model(folder=SOURCE + "/../../etc")), "PATH_NOT_ALLOWED")
        message = request()
        message.effort = 17
        self.fails(invalid, get, message, fragment="effort")
        message = request()
        message.constraints.pins.add(pattern="*", forward=9)
        self.fails(invalid, get, message, fragment="pin.forward")
        message = request()
        message.workload.dtype = "fp16"
        self.fails(grpc.StatusCode.UNIMPLEMENTED, get, message, fragment="bf16")
        units = plan_pb2.UnitList(units=[plan_pb2.UnitShape(name="a", rows=0, columns=1)])
        self.fails(invalid, get, request(plan_pb2.Model(units=units)), fragment="rows")
        self.fails(invalid, self.daemon.plans.ShowPlan, plan_pb2.ShowPlanRequest(id="abc"),
                   fragment="6 to 64")

    def test_identical_requests_are_solved_once(self):
        answers = []

        def ask():
            answers.append(self.daemon.plans.GetPlan(request(seq_len=72)))

        threads = [threading.Thread(target=ask) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        hows = sorted(answer.how for answer in answers)
        self.assertEqual(hows, ["cached"] * 7 + ["estimated"])
        self.assertEqual(len({answer.plan.id for answer in answers}), 1)


    def test_identical_requests_are_measured_once(self):
        """Also plans for budgets of their own and ProfileService.Measure: the kernels are the same,
        so all but the first have nothing left to measure."""
        plans = []
        streams = []

        def ask(budget):
            plans.append(self.daemon.plans.GetPlan(
                request(seq_len=40, budget=budget, effort=plan_pb2.EFFORT_MEASURE)))

        def measure():
            events = list(self.daemon.profiles.Measure(profile_pb2.MeasureRequest(
                model=plan_pb2.Model(folder=MODEL),
                workload=plan_pb2.Workload(micro_batch=2, seq_len=44))))
            self.assertTrue(events[-1].profile.complete)
            streams.append([event.progress.total for event in events[:-1]])

        threads = [threading.Thread(target=ask, args=(budget,))
                   for budget in (0, 0, 0, 300 << 20)]
        threads += [threading.Thread(target=measure) for _ in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual(sorted(answer.how for answer in plans),
                         ["cached"] * 2 + ["measured"] * 2)
        self.assertEqual(sorted(map(bool, streams)), [False, False, True], streams)


class Life(unittest.TestCase):
    def test_restart_remembers(self):
        daemon = Daemon(name="restart")
        self.assertIn("ready: unix:" + daemon.socket, daemon.text())
        self.assertEqual(stat.S_IMODE(os.stat(daemon.socket).st_mode), 0o660)
        fingerprint = daemon.hardware.GetHardware(
            hardware_pb2.GetHardwareRequest()).hardware.fingerprint
        plan = daemon.plans.GetPlan(request()).plan
        self.assertEqual(daemon.stop(), 0)
        self.assertFalse(os.path.exists(daemon.socket))
        daemon = Daemon(name="restart")
        self.assertEqual(daemon.hardware.GetHardware(
            hardware_pb2.GetHardwareRequest()).hardware.fingerprint, fingerprint)
        again = daemon.plans.GetPlan(request(effort=plan_pb2.EFFORT_CACHED))
        self.assertEqual(again.plan.id, plan.id)
        self.assertEqual(daemon.text().count("measuring the machine"), 1)
        self.assertEqual(daemon.stop(), 0)
        # Another budget is another hardware to plans, not to measurements.
        daemon = Daemon("--device-memory", "256MiB", name="restart")
        other = daemon.plans.GetPlan(request())
        self.assertIn("other hardware (device memory: 512 then, 256 MiB now)", other.miss)
        self.assertEqual(daemon.text().count("measuring the machine"), 1)
        self.assertEqual(daemon.stop(), 0)

    def test_what_does_not_fit_is_remembered(self):
        """A proof that nothing fits outlives the daemon, and answers also where only the store may
        be asked; another budget is another question."""
        daemon = Daemon(name="infeasible")
        for effort in (plan_pb2.EFFORT_ESTIMATE, plan_pb2.EFFORT_CACHED):
            with self.assertRaises(grpc.RpcError) as caught:
                daemon.plans.GetPlan(request(budget=1 << 20, effort=effort))
            self.assertEqual(caught.exception.code(), grpc.StatusCode.RESOURCE_EXHAUSTED)
            daemon.stop()
            daemon = Daemon(name="infeasible")
        with self.assertRaises(grpc.RpcError) as caught:
            daemon.plans.GetPlan(request(budget=2 << 20, effort=plan_pb2.EFFORT_CACHED))
        self.assertEqual(caught.exception.code(), grpc.StatusCode.NOT_FOUND)
        self.assertEqual(len(daemon.plans.ListPlans(plan_pb2.ListPlansRequest()).plans), 0)
        self.assertEqual(daemon.stop(), 0)

    def test_why_a_plan_is_not_in_the_store(self):
        daemon = Daemon(name="miss")
        self.assertIn("no plan for this model", daemon.plans.GetPlan(request()).miss)
        self.assertEqual(daemon.stop(), 0)
        # As if an older planner had made it: it is part of the key.
        store = sqlite3.connect(os.path.join(daemon.home, "memferry.db"))
        with store:
            store.execute("UPDATE plan_documents SET key = 'older ' || key")
            store.execute("UPDATE plans SET key = 'older ' || key, planner_version = 1")
        store.close()
        daemon = Daemon(name="miss")
        answer = daemon.plans.GetPlan(request())
        self.assertEqual(answer.how, "estimated")
        self.assertIn("another planner version", answer.miss)
        with self.assertRaises(grpc.RpcError) as caught:
            daemon.plans.GetPlan(request(effort=plan_pb2.EFFORT_CACHED, seq_len=80))
        self.assertIn("another workload", caught.exception.details())
        self.assertIn("ESTIMATE or MEASURE", caught.exception.details())
        self.assertEqual(daemon.stop(), 0)

    def test_damaged_store_is_set_aside(self):
        daemon = Daemon(name="damaged")
        self.assertEqual(daemon.stop(), 0)
        path = os.path.join(daemon.home, "memferry.db")
        with open(path, "r+b") as file:
            file.write(b"no database " * 100)
        daemon = Daemon(name="damaged")
        checks = {c.name: c for c in daemon.hardware.Doctor(hardware_pb2.DoctorRequest()).checks}
        self.assertEqual(checks["store"].verdict, hardware_pb2.DoctorCheck.VERDICT_NOTE)
        self.assertEqual(daemon.plans.GetPlan(request()).how, "estimated")
        self.assertEqual(daemon.stop(), 0)

    def test_stop_while_measuring(self):
        daemon = Daemon(name="stopping")
        failures = []

        def measure():
            try:
                list(daemon.profiles.Measure(profile_pb2.MeasureRequest(
                    model=plan_pb2.Model(preset="gpt2"),
                    workload=plan_pb2.Workload(micro_batch=1, seq_len=128))))
            except grpc.RpcError as error:
                failures.append(error.code())

        thread = threading.Thread(target=measure)
        thread.start()
        time.sleep(0.5)
        began = time.time()
        daemon.process.send_signal(signal.SIGTERM)
        self.assertEqual(daemon.process.wait(timeout=60), 0)
        thread.join(timeout=30)
        self.assertLess(time.time() - began, 45)
        daemon.channel.close()
        daemon.log.close()

    def test_shutdown_call(self):
        daemon = Daemon(name="shutdown")
        daemon.hardware.Shutdown(hardware_pb2.ShutdownRequest())
        self.assertEqual(daemon.process.wait(timeout=30), 0)
        daemon.channel.close()
        daemon.log.close()

    def test_second_daemon_is_refused(self):
        daemon = Daemon(name="first")
        second = subprocess.run([MEMFERRYD, "--device", "host", "--home", daemon.home, "--socket",
                                 daemon.socket], capture_output=True, text=True, timeout=60,
                                check=False)
        self.assertEqual(second.returncode, 1)
        self.assertIn(daemon.socket, second.stderr)
        self.assertEqual(daemon.stop(), 0)

    def test_settings(self):
        path = os.path.join(FOLDER, "memferryd.ini")
        with open(path, "w", encoding="utf-8") as file:
            file.write("[device]\nkind = host\nmemory = 3GiB\n[limits]\nsessions = 5\n")
        environment = {**os.environ, "MEMFERRYD_SESSIONS": "6"}

        def show(*flags, code=0):
            result = subprocess.run([MEMFERRYD, "--config", path, "--print-config", *flags],
                                    capture_output=True, text=True, env=environment, check=False)
            self.assertEqual(result.returncode, code, result.stderr)
            return result.stdout + result.stderr

        text = show("--threads", "2")
        self.assertIn(f"memory = {3 << 30} ; file", text)
        self.assertIn("sessions = 6 ; environment", text)
        self.assertIn("threads = 2 ; flag", text)
        self.assertIn("lease = 600 ; default", text)
        self.assertIn("64", show("--sessions", "65", code=2))
        with open(path, "a", encoding="utf-8") as file:
            file.write("[device]\nmemmory = 3\n")
        self.assertIn("device.memory", show(code=2))


if __name__ == "__main__":
    try:
        unittest.main(verbosity=2)
    finally:
        if "MF_TEST_KEEP" in os.environ:
            print("kept:", FOLDER)
        else:
            shutil.rmtree(FOLDER, ignore_errors=True)
