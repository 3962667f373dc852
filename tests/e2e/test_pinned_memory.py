#!/usr/bin/python3
"""Less host memory can be pinned than a plan needs: the session is planned again for what there is
and says so, or is refused with the numbers and harms nobody. MEMFERRY_PIN_LIMIT stands for the
limits of a driver or a container."""
import os

import harness
from harness import Daemon, Session, error_info, text_tokens, write_run
from memferry.v1 import plan_pb2, training_pb2

LIMIT = 1500 << 10


class PinnedMemory(harness.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.free = Daemon("--emulate-h2d", str(2 << 30), "--emulate-d2h", str(2 << 30))
        cls.daemon = Daemon("--emulate-h2d", str(2 << 30), "--emulate-d2h", str(2 << 30),
                            environment={"MEMFERRY_PIN_LIMIT": str(LIMIT)})

    @classmethod
    def tearDownClass(cls):
        for daemon in (cls.free, cls.daemon):
            assert daemon.stop() == 0, daemon.text()

    def losses(self, session):
        tokens = text_tokens(session.tokens_per_batch)
        return [session.step(tokens).loss for _ in range(3)]

    def test_planned_again(self):
        roomy = Session(self.free)
        self.assertEqual(roomy.session.note, "")
        self.assertGreater(roomy.session.host_bytes, LIMIT)
        tight = Session(self.daemon)
        self.addCleanup(tight.close)
        self.addCleanup(roomy.close)
        self.assertLessEqual(tight.session.host_bytes, LIMIT)
        self.assertGreater(tight.session.host_bytes, 0)
        for text in ("pinned", "1.46 MiB could be", "planned again", "a step instead of"):
            self.assertIn(text, tight.session.note)
        self.assertIn("pinned", tight.get().note)
        self.assertIn("planned again", self.daemon.text())
        self.assertIn("planned again", self.daemon.cli("show", "session", tight.id).stdout)
        plan = self.daemon.plans.ShowPlan(
            plan_pb2.ShowPlanRequest(id=tight.session.plan_id)).plan
        self.assertEqual(plan.prediction.host_peak_bytes, tight.session.host_bytes)
        # Another plan, the same sums.
        self.assertEqual(self.losses(tight), self.losses(roomy))

    def test_a_job_says_so(self):
        folder = os.path.join(harness.FOLDER, "job")
        result = self.daemon.cli("train", "-c", write_run(folder, steps=2))
        self.assertIn("warning: ", result.stderr)
        self.assertIn("planned again", result.stderr)
        self.assertIn("finished at step 2", result.stdout)

    def test_a_given_plan_stays(self):
        plan = self.daemon.plans.GetPlan(plan_pb2.GetPlanRequest(
            model=plan_pb2.Model(preset="tiny-llama"), effort=plan_pb2.EFFORT_ESTIMATE,
            workload=plan_pb2.Workload(micro_batch=2, seq_len=32, accumulation=1))).plan
        self.fails("RESOURCE_EXHAUSTED", Session, self.daemon, plan_id=plan.id,
                   reason="PINNED_MEMORY_LIMIT", fragment="was given")

    def test_refused(self):
        Session(self.free, budget=300 << 10).close()  # as long as memory can be pinned
        error = self.fails("RESOURCE_EXHAUSTED", Session, self.daemon, budget=300 << 10,
                           reason="PINNED_MEMORY_LIMIT", fragment="no plan fits into that")
        numbers = error_info(error).metadata
        self.assertEqual(int(numbers["available_bytes"]), LIMIT)
        self.assertGreater(int(numbers["needed_bytes"]), LIMIT)
        self.assertIn("ulimit -l", error.details())
        self.assertEqual(len(self.daemon.training.ListSessions(
            training_pb2.ListSessionsRequest()).sessions), 0)
        session = Session(self.daemon)  # nothing is left behind
        session.step(text_tokens(session.tokens_per_batch))
        session.close()


if __name__ == "__main__":
    harness.main()
