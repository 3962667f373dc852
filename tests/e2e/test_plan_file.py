#!/usr/bin/python3
"""Plans that travel as files, and the micro-batch as a decision."""
import json
import os

import grpc

import harness
from harness import Daemon, Session, text_tokens
from memferry.v1 import plan_pb2

SMALL = ["--seq-len", "32", "--effort", "estimate"]
EXIT_FAILED, EXIT_USAGE, EXIT_NOT_FOUND, EXIT_NO_FIT = 1, 2, 4, 5


class Files(harness.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.daemon = Daemon(memory="32MiB")
        cls.path = os.path.join(harness.FOLDER, "plan.json")
        result = cls.daemon.cli("plan", "tiny-llama", "--device-memory", "1MiB", "--export",
                                cls.path, *SMALL)
        assert "memferry plan --import reads it" in result.stderr
        with open(cls.path, encoding="utf-8") as file:
            cls.text = file.read()
        cls.value = json.loads(cls.text)

    @classmethod
    def tearDownClass(cls):
        assert cls.daemon.stop() == 0, cls.daemon.text()

    def take(self, value, **more):
        return self.daemon.plans.ImportPlan(
            plan_pb2.ImportPlanRequest(json=json.dumps(value), **more))

    def refused(self, value, code=grpc.StatusCode.INVALID_ARGUMENT, **more):
        with self.assertRaises(grpc.RpcError) as caught:
            self.take(value, **more)
        self.assertEqual(caught.exception.code(), code, caught.exception.details())
        return caught.exception.details()

    def changed(self, forward, backward):
        """The plan with unit 1 held otherwise, as a person would write it."""
        value = json.loads(self.text)
        value["plan"]["id"] = ""
        value["plan"]["units"][1][:2] = [forward, backward]
        return value

    def test_same_plan_comes_back(self):
        answer = self.take(self.value)
        self.assertEqual(answer.plan.id, self.value["plan"]["id"])
        self.assertEqual(answer.step_ns_before, self.value["plan"]["prediction"]["step_ns"])
        ids = [plan["id"] for plan in self.daemon.json("ls", "plans")["plans"]]
        self.assertEqual(ids.count(answer.plan.id), 1)

    def test_plan_for_another_machine(self):
        other = Daemon("--emulate-h2d", "1GB", "--emulate-d2h", "1GB", memory="32MiB")
        answer = other.json("plan", "--import", self.path)
        plan = answer["plan"]
        self.assertNotEqual(plan["id"], self.value["plan"]["id"])
        self.assertTrue(plan["here"])
        self.assertEqual(answer["step_ns_before"], self.value["plan"]["prediction"]["step_ns"])
        self.assertEqual([unit["forward"] for unit in plan["units"]],
                         [unit[0] for unit in self.value["plan"]["units"]])
        # Found by its id, run by its id, and never an answer to a request.
        self.assertEqual(other.json("show", "plan", plan["id"])["plan"]["id"], plan["id"])
        session = Session(other, micro_batch=1, seq_len=32, budget=1 << 20, plan_id=plan["id"])
        self.assertGreater(session.step(text_tokens(32)).step, 0)
        session.close()
        asked = other.json("plan", "tiny-llama", "--device-memory", "1MiB", *SMALL)
        self.assertNotEqual(asked["how"], "cached")
        # And out again.
        back = json.loads(other.cli("plan", "tiny-llama", "--export", "-", *SMALL).stdout)
        self.assertEqual(back["model"], self.value["model"])
        self.assertEqual(other.stop(), 0)

    def test_decision_changed_by_hand(self):
        was = self.value["plan"]["units"][1][0]
        other = "stream" if was == "direct" else "direct"
        value = self.changed(other, other)
        value["plan"]["ring_slots"] = max(2, value["plan"]["ring_slots"])
        plan = self.take(value).plan
        self.assertNotEqual(plan.id, self.value["plan"]["id"])
        self.assertEqual(plan_pb2.WeightForward.Name(plan.units[1].forward),
                         "WEIGHT_FORWARD_" + other.upper())

    def test_what_is_refused(self):
        self.assertIn("resident", self.refused(self.changed("resident", "late")))
        self.assertIn("its id is", self.refused(
            {**self.value, "plan": {**self.value["plan"], "ring_slots": 7}}))
        self.refused({**self.value, "format": "another"})
        self.refused({**self.value, "more": 1})
        self.refused({**self.value, "plan": None})
        self.refused({**self.value, "model": {"name": "x", "family": "units", "config": {}}},
                     grpc.StatusCode.DATA_LOSS)
        self.assertIn("for a model", self.refused(
            {**self.value, "model": {**self.value["model"],
                                     "config": {**self.value["model"]["config"],
                                                "num_hidden_layers": 3}}}))
        self.assertIn("another model",
                      self.refused(self.value, model=plan_pb2.Model(preset="gpt2")))
        self.take(self.value, model=plan_pb2.Model(preset="tiny-llama"))

    def test_lists_of_units_travel_too(self):
        model = plan_pb2.Model(units=plan_pb2.UnitList(units=[
            plan_pb2.UnitShape(name=f"fc{i}", block=i, rows=64, columns=64, bias=i == 1)
            for i in range(3)]))
        plan = self.daemon.plans.GetPlan(plan_pb2.GetPlanRequest(
            model=model, workload=plan_pb2.Workload(seq_len=32),
            effort=plan_pb2.EFFORT_ESTIMATE)).plan
        text = self.daemon.plans.ExportPlan(plan_pb2.ExportPlanRequest(id=plan.id[:12])).json
        self.assertEqual(self.take(json.loads(text), model=model).plan.id, plan.id)

    def test_plan_that_does_not_fit_here(self):
        text = self.daemon.json("plan", "gpt2-xl", "--hardware", "h200", "--seq-len", "512")
        plan = self.daemon.plans.ExportPlan(plan_pb2.ExportPlanRequest(id=text["plan"]["id"]))
        path = os.path.join(harness.FOLDER, "large.json")
        with open(path, "w", encoding="utf-8") as file:
            file.write(plan.json)
        result = self.daemon.cli("plan", "--import", path, code=EXIT_NO_FIT)
        self.assertIn("of device memory", result.stderr)
        self.assertEqual(self.daemon.json("plan", "--import", path, "--hardware", "h200")["plan"][
            "id"], plan.id)

    def test_command_line(self):
        self.daemon.cli("plan", code=EXIT_USAGE)
        self.daemon.cli("plan", "--import", self.path, "--export", "-", code=EXIT_USAGE)
        self.daemon.cli("plan", "--import", "/nowhere/plan.json", code=EXIT_NOT_FOUND)
        result = self.daemon.cli("plan", "gpt2", "--import", self.path, code=EXIT_FAILED)
        self.assertIn("for another model", result.stderr)
        self.assertIn("where it came from", self.daemon.cli("plan", "--import",
                                                            self.path).stdout)


class MicroBatch(harness.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.daemon = Daemon(memory="32MiB")

    @classmethod
    def tearDownClass(cls):
        assert cls.daemon.stop() == 0, cls.daemon.text()

    def check(self, answer):
        """The chosen trial is the best of those with its kind of costs, and is the plan."""
        trials = answer["trials"]
        chosen = [trial for trial in trials if trial["chosen"]]
        self.assertEqual(len(chosen), 1)
        self.assertEqual(chosen[0]["plan_id"], answer["plan"]["id"])
        self.assertEqual(chosen[0]["micro_batch"], answer["plan"]["workload"]["micro_batch"])
        self.assertEqual(max(trial["tokens_per_second"] for trial in trials
                             if trial["measured"] == chosen[0]["measured"]),
                         chosen[0]["tokens_per_second"])
        return trials

    def test_divisors_of_the_batch(self):
        answer = self.daemon.json("plan", "tiny-llama", "--micro-batch", "auto", "--batch", "12",
                                  *SMALL)
        trials = self.check(answer)
        self.assertEqual([(trial["micro_batch"], trial["accumulation"]) for trial in trials],
                         [(1, 12), (2, 6), (3, 4), (4, 3), (6, 2), (12, 1)])
        work = answer["plan"]["workload"]
        self.assertEqual(work["micro_batch"] * work["accumulation"], 12)
        for trial in trials:
            self.assertAlmostEqual(trial["tokens_per_second"], 12 * 32 / trial["step_ns"] * 1e9,
                                   delta=1e-6 * trial["tokens_per_second"])
            plan = self.daemon.json("show", "plan", trial["plan_id"])["plan"]
            self.assertEqual(plan["prediction"]["step_ns"], trial["step_ns"])
        again = self.daemon.json("plan", "tiny-llama", "--micro-batch", "auto", "--batch", "12",
                                 *SMALL)
        self.assertEqual((again["how"], again["trials"]), ("cached", trials))

    def test_powers_of_two_until_it_does_not_fit(self):
        trials = self.check(self.daemon.json(
            "plan", "tiny-llama", "--micro-batch", "auto", "--device-memory", "1MiB",
            "--strategy", "stream", *SMALL))
        sizes = [trial["micro_batch"] for trial in trials]
        self.assertEqual(sizes, [1 << i for i in range(len(sizes))])
        self.assertLess(sizes[-1], 64)
        self.assertEqual(trials[-1]["step_ns"], 0)
        self.assertIn("device memory", trials[-1]["why"])
        self.assertTrue(all(trial["step_ns"] > 0 for trial in trials[:-1]))

    def test_measured(self):
        answer = self.daemon.json("plan", "tiny-llama", "--micro-batch", "auto", "--batch", "8",
                                  "--seq-len", "32")
        trials = self.check(answer)
        self.assertEqual(sum(trial["measured"] for trial in trials), 3)
        self.assertTrue(answer["plan"]["measured"])
        text = self.daemon.cli("plan", "tiny-llama", "--micro-batch", "auto", "--batch", "8",
                               "--seq-len", "32").stdout
        self.assertRegex(text, r"micro-batch +accumulation +step")
        self.assertRegex(text, answer["plan"]["id"][:12] + r" \(chosen\)")

    def test_nothing_fits(self):
        result = self.daemon.cli("plan", "tiny-llama", "--micro-batch", "auto",
                                 "--device-memory", "1KiB", *SMALL, code=EXIT_NO_FIT)
        self.assertIn("smallest device budget", result.stderr)

    def test_only_from_the_store(self):
        self.daemon.cli("plan", "tiny-qwen3", "--micro-batch", "auto", "--effort", "cached",
                        code=None)
        result = self.daemon.cli("plan", "gpt2", "--micro-batch", "auto", "--effort", "cached",
                                 code=EXIT_NOT_FOUND)
        self.assertIn("no plan in the store", result.stderr)

    def test_batch_with_a_micro_batch(self):
        plan = self.daemon.json("plan", "tiny-llama", "--micro-batch", "2", "--batch", "6",
                                *SMALL)["plan"]
        self.assertEqual(plan["workload"]["accumulation"], 3)
        self.daemon.cli("plan", "tiny-llama", "--micro-batch", "4", "--batch", "6", code=EXIT_USAGE)
        self.daemon.cli("plan", "tiny-llama", "--accumulation", "4", "--batch", "8",
                        code=EXIT_USAGE)
        result = self.daemon.cli("profile", "tiny-llama", "--micro-batch", "auto", code=None)
        self.assertIn("give a number", result.stderr)

    def test_contradictions_over_the_wire(self):
        model = plan_pb2.Model(preset="tiny-llama")
        for fields in ({"tune_micro_batch": True, "workload": {"micro_batch": 2}},
                       {"tune_micro_batch": True, "workload": {"accumulation": 2}},
                       {"batch": 7, "workload": {"micro_batch": 2}},
                       {"batch": 8, "workload": {"accumulation": 2}},
                       {"batch": -1}, {"batch": 65537}):
            with self.subTest(fields=fields), self.assertRaises(grpc.RpcError) as caught:
                self.daemon.plans.GetPlan(plan_pb2.GetPlanRequest(
                    model=model, effort=plan_pb2.EFFORT_ESTIMATE, **fields))
            self.assertEqual(caught.exception.code(), grpc.StatusCode.INVALID_ARGUMENT)


if __name__ == "__main__":
    harness.main()
