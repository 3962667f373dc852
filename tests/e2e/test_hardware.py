#!/usr/bin/python3
"""Plans for machines that are not here: descriptions that came along, machines exported from one
daemon and imported by another, and that no session ever runs such a plan."""
import json
import os

import grpc

import harness
from harness import Daemon, Session
from memferry.v1 import hardware_pb2, plan_pb2, profile_pb2, training_pb2

SMALL = ["--seq-len", "32"]
EXIT_USAGE, EXIT_NOT_FOUND, EXIT_NO_FIT = 2, 4, 5


class Hardware(harness.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.daemon = Daemon()
        cls.card = cls.daemon.json("plan", "llama-3-8b", "--hardware", "rtx-4090",
                                   *SMALL)["plan"]

    @classmethod
    def tearDownClass(cls):
        assert cls.daemon.stop() == 0, cls.daemon.text()

    def path(self, name):
        return os.path.join(harness.FOLDER, name)

    # ---- what is known ----

    def test_list_has_this_machine_first_and_every_file(self):
        machines = self.daemon.json("ls", "hardware")["machines"]
        self.assertEqual(machines[0]["source"], "here")
        files = {name[:-5] for name in os.listdir(os.path.join(harness.SOURCE, "hardware"))
                 if name.endswith(".json")}
        shipped = [machine for machine in machines if machine["source"] == "shipped"]
        self.assertEqual({machine["name"] for machine in shipped}, files)
        self.assertFalse(any(machine["measured"] for machine in shipped))
        self.assertTrue(machines[0]["measured"])
        table = self.daemon.cli("ls", "hardware").stdout
        self.assertRegex(table, r"rtx-4090 .* estimate .* description")
        self.assertIn("this machine", table)

    def test_description_is_the_file(self):
        with open(os.path.join(harness.SOURCE, "hardware", "h200.json"),
                  encoding="utf-8") as file:
            wanted = json.load(file)
        shown = self.daemon.json("show", "hardware", "h200")
        self.assertEqual({key: shown[key] for key in wanted}, wanted)
        self.assertIn("NVIDIA H200", self.daemon.cli("show", "hardware", "h200").stdout)
        here = self.daemon.json("show", "hardware")
        self.assertEqual(here["devices"][0]["kind"], "host")

    # ---- plans ----

    def test_plan_is_marked(self):
        self.assertFalse(self.card["measured"])
        self.assertFalse(self.card["here"])
        self.assertEqual(self.card["hardware_name"], "NVIDIA GeForce RTX 4090")
        self.assertGreater(int(self.card["prediction"]["device_peak_bytes"]), 1 << 30)
        shown = self.daemon.cli("show", "plan", self.card["id"]).stdout
        self.assertIn("which is not this machine", shown)
        self.assertRegex(self.daemon.cli("ls", "plans").stdout,
                         self.card["id"][:12] + r".* for NVIDIA GeForce RTX 4090")

    def test_second_time_from_the_store(self):
        again = self.daemon.json("plan", "llama-3-8b", "--hardware", "rtx-4090", *SMALL)
        self.assertEqual((again["how"], again["plan"]["id"]), ("cached", self.card["id"]))

    def test_name_and_file_are_the_same_machine(self):
        path = self.path("card.json")
        with open(path, "w", encoding="utf-8") as file:
            file.write(self.daemon.cli("show", "hardware", "rtx-4090", "--format",
                                       "json").stdout)
        again = self.daemon.json("plan", "llama-3-8b", "--hardware", path, *SMALL)
        self.assertEqual((again["how"], again["plan"]["id"]), ("cached", self.card["id"]))

    def test_costs_shown_are_those_of_that_machine(self):
        timeline = self.daemon.plans.GetTimeline(
            plan_pb2.GetTimelineRequest(id=self.card["id"]))
        self.assertAlmostEqual(timeline.step_ns, self.card["prediction"]["step_ns"],
                               delta=1e-6 * timeline.step_ns)
        units = sum(unit["compute_ns"] for unit in self.card["units"])
        self.assertLess(units, self.card["prediction"]["compute_busy_ns"] * 1.01)
        name = self.card["units"][4]["name"]
        chosen = [row for row in self.daemon.json("explain", self.card["id"], name)[
            "alternatives"] if row["chosen"]]
        self.assertAlmostEqual(chosen[0]["step_ns"], self.card["prediction"]["step_ns"],
                               delta=1e-6 * timeline.step_ns)

    def test_compare_and_estimate(self):
        rows = self.daemon.json("compare", "gpt2", "--hardware", "l40s", *SMALL)["strategies"]
        self.assertTrue(all(row["plan"]["hardware_name"] == "NVIDIA L40S" for row in rows))
        more = self.daemon.json("estimate", "gpt2", "--hardware", "l40s", *SMALL)
        self.assertGreater(more["smallest_device_memory_bytes"], 0)

    def test_budget_is_that_of_the_machine(self):
        result = self.daemon.cli("plan", "llama-3-8b", "--hardware", "rtx-3090", "--strategy",
                                 "resident", *SMALL, code=EXIT_NO_FIT)
        self.assertIn("23.04 GiB are available", result.stderr)

    # ---- refusals ----

    def test_no_session_runs_it(self):
        plan = self.daemon.json("plan", "tiny-llama", "--hardware", "rtx-4090", *SMALL)["plan"]
        request = training_pb2.CreateSessionRequest(
            model=plan_pb2.Model(preset="tiny-llama"), plan_id=plan["id"],
            workload=plan_pb2.Workload(seq_len=32))
        with self.assertRaises(grpc.RpcError) as caught:
            list(self.daemon.training.CreateSession(request, timeout=60))
        self.assertEqual(caught.exception.code(), grpc.StatusCode.UNIMPLEMENTED)
        here = self.daemon.json("show", "hardware")["devices"][0]["name"]
        self.assertIn("NVIDIA GeForce RTX 4090", caught.exception.details())
        self.assertIn(here, caught.exception.details())
        own = self.daemon.json("plan", "tiny-llama", *SMALL, "--effort", "estimate")["plan"]
        self.assertTrue(own["here"])
        Session(self.daemon, micro_batch=1, plan_id=own["id"]).close()

    def test_nothing_is_measured_there(self):
        result = self.daemon.cli("plan", "gpt2", "--hardware", "rtx-4090", "--effort", "measure",
                                 code=1)
        self.assertIn("NVIDIA GeForce RTX 4090 is not this machine", result.stderr)
        result = self.daemon.cli("profile", "gpt2", "--hardware", "rtx-4090", code=EXIT_USAGE)
        self.assertIn("cannot be measured from here", result.stderr)

    def test_unknown_machine(self):
        result = self.daemon.cli("plan", "gpt2", "--hardware", "rtx-4091", code=EXIT_NOT_FOUND)
        self.assertIn('the nearest is "rtx-4090"', result.stderr)
        result = self.daemon.cli("plan", "gpt2", "--hardware", "nowhere.json", code=EXIT_USAGE)
        self.assertIn("there is no file nowhere.json", result.stderr)

    def test_rates_may_be_left_away(self):
        plan = self.daemon.plans.GetPlan(plan_pb2.GetPlanRequest(
            model=plan_pb2.Model(preset="gpt2"), hardware=json.dumps(
                {"host_bytes": 1 << 36, "devices": [
                    {"kind": "cuda", "name": "a <card>", "memory_bytes": 1 << 34}]}))).plan
        self.assertGreater(plan.prediction.step_ns, 0)
        page = self.daemon.cli("show", "plan", plan.id, "--html", "-").stdout
        self.assertIn("a &lt;card&gt;", page)

    def test_descriptions_that_are_wrong(self):
        for text in ("{", "{}", '{"devices": []}', '{"devices": [{"kind": "cuda"}]}',
                     '{"devices": [{"kind": "cuda", "memory_bytes": -1}]}',
                     '{"host_bytes": 1, "devices": [{"kind": "cuda", "memory_bytes": 1}]}',
                     '{"devices": [{"kind": "cuda", "name": "x", "memory_bytes": 1}]}',
                     '{"host_bytes": 1, "devices": '
                     '[{"kind": "tpu", "name": "x", "memory_bytes": 1}]}'):
            with self.subTest(text=text), self.assertRaises(grpc.RpcError) as caught:
                self.daemon.plans.GetPlan(plan_pb2.GetPlanRequest(
                    model=plan_pb2.Model(preset="gpt2"), hardware=text))
            self.assertEqual(caught.exception.code(), grpc.StatusCode.INVALID_ARGUMENT)

    # ---- a machine on its way ----

    def test_export_and_import(self):
        """A plan made elsewhere from what was measured here has the same prediction."""
        self.daemon.cli("profile", "tiny-llama", *SMALL, timeout=300)
        own = self.daemon.json("plan", "tiny-llama", *SMALL)["plan"]
        self.assertTrue(own["measured"])
        path = self.path("machine.json")
        self.daemon.cli("profile", "--export", path)
        with open(path, encoding="utf-8") as file:
            text = file.read()
        other = Daemon("--emulate-h2d", "2GB", "--emulate-d2h", "2GB", memory="48MiB")
        before = other.json("plan", "tiny-llama", *SMALL, "--effort", "estimate")["plan"]
        answer = other.json("profile", "--import", path)
        self.assertEqual(answer["hardware"]["source"], "store")
        name = answer["hardware"]["name"]
        plan = other.json("plan", "tiny-llama", "--hardware", name, *SMALL)["plan"]
        self.assertTrue(plan["measured"], plan["prediction"])
        self.assertEqual(plan["prediction"]["step_ns"], own["prediction"]["step_ns"])
        self.assertEqual(plan["hardware_fingerprint"], own["hardware_fingerprint"])
        again = other.json("plan", "tiny-llama", *SMALL, "--effort", "estimate")
        self.assertEqual(again["plan"]["id"], before["id"])
        # The same text again changes nothing, and comes back out.
        other.json("profile", "--import", path)
        back = json.loads(other.cli("profile", "--export", "-", "--hardware", name).stdout)
        self.assertEqual(back["hardware"], json.loads(text)["hardware"])
        self.assertEqual(len(back["profile"]["entries"]),
                         len(json.loads(text)["profile"]["entries"]))
        self.assertEqual(other.stop(), 0)

    def test_imports_that_are_wrong(self):
        good = json.loads(self.daemon.profiles.ExportProfile(
            profile_pb2.ExportProfileRequest()).json)
        for change in ({"format": "another"}, {"hardware": None}, {"profile": None},
                       {"profile": {"entries": 3}}, {"more": 1}):
            with self.subTest(change=change), self.assertRaises(grpc.RpcError) as caught:
                self.daemon.profiles.ImportProfile(
                    profile_pb2.ImportProfileRequest(json=json.dumps({**good, **change})))
            self.assertEqual(caught.exception.code(), grpc.StatusCode.INVALID_ARGUMENT)
        result = self.daemon.cli("plan", "gpt2", "--hardware", self.write(good), code=1)
        self.assertIn("import it first", result.stderr)

    def write(self, value):
        path = self.path("wrong.json")
        with open(path, "w", encoding="utf-8") as file:
            json.dump(value, file)
        return path


if __name__ == "__main__":
    harness.main()
