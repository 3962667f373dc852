#!/usr/bin/python3
"""Every verb of the program memferry against a daemon: a table for people, one valid JSON document
with --format json, exit codes, progress on standard error only."""
import json
import os
import pty
import re
import subprocess

import harness
from harness import Daemon, Session, text_tokens, write_run
from memferry.v1 import plan_pb2

EXIT_USAGE, EXIT_NO_DAEMON, EXIT_NOT_FOUND, EXIT_NO_FIT = 2, 3, 4, 5
SMALL = ["--seq-len", "32", "--effort", "estimate"]
# glibc's argp does not free what it makes for --help.
NO_LEAKS = {"ASAN_OPTIONS": os.environ.get("ASAN_OPTIONS", "") + ":detect_leaks=0"}


class Cli(harness.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.daemon = Daemon()
        cls.plan = cls.daemon.json("plan", "tiny-llama", *SMALL)["plan"]
        cls.tight = cls.daemon.json("plan", "tiny-llama", "--device-memory", "1MiB", *SMALL)["plan"]

    @classmethod
    def tearDownClass(cls):
        assert cls.daemon.stop() == 0, cls.daemon.text()

    def table(self, *words):
        """What a reading verb prints for people; its other form must be one JSON document."""
        result = self.daemon.cli(*words)
        self.assertTrue(result.stdout.strip())
        self.assertNotIn("\x1b", result.stdout)
        self.assertNotRegex(result.stdout, r"\bnan\b|\(null\)|(?<!\w)-1\s")
        document = self.daemon.cli(*words, "--format", "json").stdout
        self.assertIsInstance(json.loads(document), dict)
        return result.stdout

    def verbs(self):
        text = self.daemon.cli("--help", environment=NO_LEAKS).stdout
        return re.findall(r"^  ([a-z]+) {2,}[a-z]", text, re.M)

    def test_help_of_every_verb(self):
        verbs = self.verbs()
        for verb in ("serve status doctor estimate profile plan train ps ls show explain diff "
                     "compare trace rm stop").split():
            self.assertIn(verb, verbs)
        for verb in verbs:
            with self.subTest(verb=verb):
                result = self.daemon.cli(verb, "--help", environment=NO_LEAKS)
                self.assertIn("Usage:", result.stdout)
                self.assertEqual(result.stderr, "")

    def test_help_shows_the_exit_codes(self):
        text = self.daemon.cli("--help", environment=NO_LEAKS).stdout
        for code in range(7):
            self.assertRegex(text, rf"(?m)^  {code}  \w")

    def test_version(self):
        lines = self.table("version").split()
        self.assertEqual(lines[0::2], ["memferry", "memferryd"])
        self.assertEqual(lines[1], lines[3])

    def test_status_and_doctor(self):
        self.assertIn(str(self.daemon.process.pid), self.table("status"))
        self.assertIn("64.00 MiB", self.table("status"))
        self.assertRegex(self.table("doctor"), "(?m)^good  link")

    def test_plan(self):
        text = self.table("plan", "tiny-llama", *SMALL)
        self.assertIn("plan " + self.plan["id"][:12], text)
        self.assertIn("from the store", text)
        self.assertRegex(text, r"(?m)^peak ")
        # Units that are held in the same way are one row, unless every one is asked for.
        words = ["plan", "tiny-llama", "--strategy", "stream", "--device-memory", "1MiB", *SMALL]
        self.assertRegex(self.table(*words), r"(?m)^layers 0-1: self_attn\.q_proj +2 ")
        every = self.daemon.cli(*words, "--all").stdout
        self.assertIn("model.layers.1.self_attn.q_proj", every)

    def test_plan_from_a_config(self):
        path = os.path.join(harness.FIXTURES, "llama", "config.json")
        for model in (path, os.path.dirname(path)):
            answer = self.daemon.json("plan", model, *SMALL)
            self.assertTrue(answer["plan"]["units"])

    def test_pins(self):
        answer = self.daemon.json("plan", "tiny-llama", *SMALL, "--pin",
                                  "*.mlp.*=forward:direct,backward:late")
        pinned = [unit for unit in answer["plan"]["units"] if ".mlp." in unit["name"]]
        self.assertEqual({(u["forward"], u["pinned"]) for u in pinned}, {("direct", True)})
        self.assertIn("forward", self.daemon.cli(
            "plan", "tiny-llama", "--pin", "*=forward:late", code=EXIT_USAGE).stderr)

    def test_profile_and_show_profile(self):
        result = self.daemon.cli("profile", "tiny-gpt2", "--seq-len", "16")
        self.assertRegex(result.stderr, r"measuring \d+/\d+")
        self.assertNotIn("measuring ", result.stdout)
        self.assertIn("linear_forward", result.stdout)
        quiet = self.daemon.cli("profile", "tiny-gpt2", "--seq-len", "24", "--quiet")
        self.assertEqual(quiet.stderr, "")
        text = self.table("show", "profile", "tiny-gpt2", "--seq-len", "16")
        self.assertIn("linear_forward", text)

    def test_estimate_and_compare(self):
        for verb in ("estimate", "compare"):
            text = self.table(verb, "tiny-llama", *SMALL)
            for strategy in ("auto", "resident", "stream", "zero_offload", "memferry"):
                self.assertRegex(text, rf"(?m)^{strategy} ")
        answer = self.daemon.json("estimate", "tiny-llama", *SMALL)
        for side in ("device", "host"):
            smallest = answer[f"smallest_{side}_memory_bytes"]
            plan = self.daemon.json("plan", "tiny-llama", f"--{side}-memory", str(smallest),
                                    *SMALL)["plan"]
            self.assertLessEqual(plan["prediction"][f"{side}_peak_bytes"], smallest)
        self.assertGreaterEqual(min(row["plan"]["prediction"]["device_peak_bytes"]
                                    for row in answer["strategies"] if row.get("plan")),
                                answer["smallest_device_memory_bytes"])

    def test_explain(self):
        text = self.table("explain", self.tight["id"], "model.layers.0.mlp.up_proj")
        self.assertRegex(text, r"direct|stream|resident")
        wrong = self.daemon.cli("explain", self.tight["id"], "model.layers.0.mlp.up_pro",
                                code=EXIT_NOT_FOUND)
        self.assertIn("up_proj", wrong.stderr)

    def test_diff(self):
        resident, stream = (self.daemon.json("plan", "tiny-llama", "--strategy", strategy,
                                             *SMALL)["plan"] for strategy in ("resident", "stream"))
        text = self.table("diff", resident["id"][:10], stream["id"][:10])
        self.assertIn(stream["id"][:8], text)
        self.assertRegex(text, "device")
        same = self.table("diff", stream["id"][:10], stream["id"][:10])
        self.assertIn("are equal", same)

    def test_lists(self):
        self.assertIn("tiny-llama", self.table("ls", "models"))
        self.assertIn(self.plan["id"][:12], self.table("ls", "plans"))
        self.assertIn("CPU", self.table("ls", "profiles"))
        self.table("ls", "sessions")
        bare = self.daemon.cli("ls", "plans", "--no-header").stdout
        self.assertNotIn("strategy", bare.splitlines()[0])

    def test_sessions(self):
        session = Session(self.daemon)
        session.step(text_tokens(session.tokens_per_batch))
        self.assertIn(session.id[:8], self.table("ps"))
        self.assertIn("tiny-llama", self.table("show", "session", session.id[:8]))
        path = os.path.join(harness.FOLDER, "trace.json")
        self.daemon.cli("trace", session.id, "-o", path)
        with open(path, encoding="utf-8") as file:
            self.assertTrue(json.load(file)["traceEvents"])
        self.daemon.cli("rm", "session", session.id[:8])
        self.assertNotIn(session.id, self.daemon.cli("ps", "--format", "json").stdout)
        self.assertIn(session.id[:8], self.table("ls", "sessions"))

    def test_train(self):
        folder = os.path.join(harness.FOLDER, "train")
        config = write_run(folder, steps=6, save_steps=3, sample={"tokens": 8, "prompt": "the "})
        result = self.daemon.cli("train", "-c", config)
        for step in range(1, 7):
            self.assertRegex(result.stdout, rf"(?m)^step {step}/6 \| loss \d+\.\d{{4}} \| norm ")
        self.assertIn("checkpoint-3", result.stdout)
        self.assertIn("finished at step 6 of 6", result.stdout)
        self.assertIn("the ", result.stdout)
        # A new job does not mix its checkpoints with those of an older one.
        used = self.daemon.cli("train", "-c", config, code=1)
        self.assertIn("--resume latest", used.stderr)
        again = write_run(folder, name="again.json", steps=6, save_steps=3, output="again",
                          sample={"tokens": 8, "prompt": "the "})
        result = self.daemon.cli("train", "-c", again, "--format", "json")
        events = [json.loads(line) for line in result.stdout.splitlines()]
        kinds = [next(iter(event)) for event in events]
        self.assertEqual(kinds[-1], "finished")
        self.assertEqual(kinds.count("step"), 6)
        for kind in ("session", "plan", "checkpoint", "sample"):
            self.assertIn(kind, kinds)

    def test_remove_plan_and_profile(self):
        plan = self.daemon.json("plan", "tiny-gpt2", "--seq-len", "40", "--effort", "estimate")
        self.daemon.cli("rm", "plan", plan["plan"]["id"][:8])
        self.daemon.cli("show", "plan", plan["plan"]["id"][:8], code=EXIT_NOT_FOUND)
        self.daemon.cli("rm", "profile", "000000000000", code=EXIT_NOT_FOUND)

    def test_exit_codes(self):
        usage = (["nothing"], ["--nothing"], ["plan"], ["plan", "a", "b"], ["ls", "nothing"],
                 ["plan", "tiny-llama", "--strategy", "fast"], ["train"], ["status", "--format=x"],
                 ["plan", "tiny-llama", "--device-memory", "much"], ["show", "plan"],
                 ["plan", "tiny-llama", "--micro-batch", "0x"])
        for words in usage:
            with self.subTest(words=words):
                result = self.daemon.cli(*words, code=EXIT_USAGE)
                self.assertEqual(result.stdout, "")
                self.assertIn("memferry", result.stderr)
        self.daemon.cli("plan", "no-such-model", code=EXIT_NOT_FOUND)
        self.daemon.cli("show", "plan", "abcdef", code=EXIT_NOT_FOUND)
        self.daemon.cli("show", "session", "abcdef", code=EXIT_NOT_FOUND)
        self.daemon.cli("plan", "tiny-llama", "--seq-len", "77", "--effort", "cached",
                        code=EXIT_NOT_FOUND)
        result = self.daemon.cli("plan", "tiny-llama", "--device-memory", "50KiB", *SMALL,
                                 code=EXIT_NO_FIT)
        self.assertIn("--device-memory", result.stderr)
        self.daemon.cli("--host", "unix:/nowhere/x.sock", "status", code=EXIT_NO_DAEMON)
        self.daemon.cli("plan", "tiny-llama", "--seq-len", "4096", code=1)

    def test_nearest_words(self):
        for words, wanted in ((["pln"], "plan"), (["plan", "tiny-lama"], "tiny-llama")):
            self.assertIn(f'"{wanted}"', self.daemon.cli(*words, code=None).stderr)

    def test_colour_only_on_a_terminal(self):
        def output(**environment):
            master, slave = pty.openpty()
            process = subprocess.Popen(
                [harness.MEMFERRY, "doctor"], stdout=slave, stderr=subprocess.DEVNULL,
                env={**{name: value for name, value in os.environ.items() if name != "NO_COLOR"},
                     "MEMFERRY_HOST": "unix:" + self.daemon.socket, "TERM": "xterm",
                     **environment})
            os.close(slave)
            data = b""
            while True:
                try:
                    piece = os.read(master, 65536)
                except OSError:  # the other end is closed
                    piece = b""
                if not piece:
                    break
                data += piece
            self.assertEqual(process.wait(), 0)
            os.close(master)
            return data

        self.assertIn(b"\x1b[", output())
        self.assertNotIn(b"\x1b[", output(NO_COLOR="1"))
        self.assertNotIn(b"\x1b[", output(TERM="dumb"))

    def test_foreign_text_cannot_reach_the_terminal(self):
        name = "evil\x1b[2J"
        units = [plan_pb2.UnitShape(name=name, rows=8, columns=8)]
        request = plan_pb2.GetPlanRequest(
            model=plan_pb2.Model(units=plan_pb2.UnitList(units=units)),
            workload=plan_pb2.Workload(seq_len=8), effort=plan_pb2.EFFORT_ESTIMATE)
        try:
            plan = self.daemon.plans.GetPlan(request).plan
        except Exception:  # refusing such a name is as good
            return
        self.assertNotIn("\x1b", self.daemon.cli("show", "plan", plan.id).stdout)


if __name__ == "__main__":
    harness.main()
