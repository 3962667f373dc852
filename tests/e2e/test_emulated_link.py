#!/usr/bin/python3
"""A daemon with an emulated link says so wherever a rate shows, and obeys the rate."""
import harness
from harness import Daemon, Session, text_tokens
from memferry.v1 import hardware_pb2, plan_pb2, profile_pb2

H2D, D2H = 200 << 20, 100 << 20  # bytes a second: far below memory's


class EmulatedLink(harness.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.daemon = Daemon("--emulate-h2d", str(H2D), "--emulate-d2h", str(D2H))

    @classmethod
    def tearDownClass(cls):
        assert cls.daemon.stop() == 0, cls.daemon.text()

    def test_hardware_says_so(self):
        device = self.daemon.hardware.GetHardware(
            hardware_pb2.GetHardwareRequest()).hardware.devices[0]
        self.assertTrue(device.link_emulated)
        self.assertLess(abs(device.h2d_bytes_per_second / H2D - 1), 0.1)
        self.assertLess(abs(device.d2h_bytes_per_second / D2H - 1), 0.1)
        self.assertRegex(self.daemon.cli("status").stdout, r"link .*\(emulated\)")

    def test_doctor_says_so(self):
        checks = {check.name: check for check in self.daemon.hardware.Doctor(
            hardware_pb2.DoctorRequest()).checks}
        self.assertIn("emulated", checks["link"].value)
        self.assertEqual(checks["link"].verdict, hardware_pb2.DoctorCheck.VERDICT_NOTE)

    def test_plan_says_so(self):
        words = ["tiny-llama", "--seq-len", "32", "--device-memory", "1MiB", "--effort", "estimate"]
        answer = self.daemon.json("plan", *words)
        self.assertTrue(answer["plan"]["link_emulated"])
        self.assertIn("emulated", self.daemon.cli("plan", *words).stdout)
        self.assertIn("emulated", self.daemon.cli("show", "plan", answer["plan"]["id"]).stdout)

    def test_profile_says_so(self):
        model = plan_pb2.Model(preset="tiny-llama")
        workload = plan_pb2.Workload(micro_batch=1, seq_len=32)
        events = list(self.daemon.profiles.Measure(
            profile_pb2.MeasureRequest(model=model, workload=workload, counters=True), timeout=120))
        profile = events[-1].profile
        self.assertTrue(profile.link_emulated)
        # Such a link has no counters: the reason, and no numbers.
        self.assertIn("host device has no link", profile.counters_note)
        self.assertEqual({m.link_needed_bytes for m in profile.measurements}, {0})
        self.assertIn("host device has no link", self.daemon.cli(
            "profile", "tiny-llama", "--seq-len", "32", "--counters").stdout)
        copies = [m for m in profile.measurements if m.kernel == "copy" and m.lane == "h2d"]
        for copy in copies:
            self.assertGreater(copy.median_ns, 0.8 * copy.n * 1e9 / H2D)
        self.assertIn("emulated", self.daemon.cli("show", "profile", "tiny-llama",
                                                  "--seq-len", "32").stdout)

    def test_steps_are_as_slow_as_the_link(self):
        session = Session(self.daemon, strategy=plan_pb2.STRATEGY_STREAM)
        self.addCleanup(session.close)
        plan = self.daemon.plans.ShowPlan(
            plan_pb2.ShowPlanRequest(id=session.session.plan_id)).plan
        least_ms = max(1e3 * plan.prediction.h2d_bytes / H2D, 1e3 * plan.prediction.d2h_bytes / D2H)
        self.assertGreater(least_ms, 1)
        for _ in range(3):
            session.step(text_tokens(session.tokens_per_batch))
            self.assertGreater(session.get().step_ms, 0.9 * least_ms)

    def test_a_real_link_is_another_hardware(self):
        plan = self.daemon.plans.GetPlan(plan_pb2.GetPlanRequest(
            model=plan_pb2.Model(preset="tiny-llama"), workload=plan_pb2.Workload(seq_len=32),
            effort=plan_pb2.EFFORT_ESTIMATE)).plan
        real = Daemon("--home", self.daemon.home, name="real")
        answer = real.json("plan", "tiny-llama", "--seq-len", "32", "--effort", "estimate")
        self.assertNotEqual(answer["how"], "cached")
        self.assertNotEqual(answer["plan"]["hardware_fingerprint"], plan.hardware_fingerprint)
        self.assertFalse(answer["plan"]["link_emulated"])
        self.assertNotIn("emulated", real.cli("status").stdout + real.cli("doctor").stdout)
        self.assertEqual(real.stop(), 0)


if __name__ == "__main__":
    harness.main()
