#!/usr/bin/python3
"""A job that was killed and resumed ends with the bits of one that ran straight through, also under
another plan; so does one that was stopped."""
import json
import os
import re
import signal

import harness
from harness import Daemon, read_bytes, wait_for, write_run

STEPS = 240
NAMES = ("model.safetensors", "optimizer.safetensors")


class Resume(harness.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.daemon = Daemon(name="straight")
        folder = os.path.join(harness.FOLDER, "straight-run")
        cls.daemon.cli("train", "-c", write_run(folder, steps=STEPS, save_steps=40))
        cls.straight = os.path.join(folder, "out")

    @classmethod
    def tearDownClass(cls):
        assert cls.daemon.stop() == 0, cls.daemon.text()

    def final(self, output):
        folder = os.path.join(output, f"checkpoint-{STEPS}")
        self.assertTrue(os.path.exists(os.path.join(folder, "DONE")))
        return [read_bytes(folder, name) for name in NAMES]

    def metrics(self, output):
        with open(os.path.join(output, "metrics.jsonl"), encoding="utf-8") as file:
            lines = [json.loads(line) for line in file]
        return [(line["step"], line["loss"], line["grad_norm"], line["learning_rate"])
                for line in lines]

    def same_as_straight(self, output):
        self.assertEqual(self.final(output), self.final(self.straight))
        self.assertEqual(self.metrics(output), self.metrics(self.straight))

    def until_step(self, process, step):
        for line in process.stdout:
            match = re.match(r"step (\d+)/", line)
            if match and int(match[1]) >= step:
                return
        self.fail("the job ended early: " + process.stderr.read())

    def test_two_strategies_give_the_same_bits(self):
        # The straight run had all memory: another strategy and a tenth of it.
        folder = os.path.join(harness.FOLDER, "other")
        plans = set()
        for strategy, memory in (("stream", "1MiB"), ("zero_offload", "2MiB"),
                                 ("memferry", "800KiB")):
            with self.subTest(strategy=strategy):
                config = write_run(folder, steps=STEPS, save_steps=0, output=strategy)
                self.daemon.cli("train", "-c", config, "--strategy", strategy,
                                "--device-memory", memory)
                plans.add(read_bytes(folder, strategy, "plan.json"))
                self.same_as_straight(os.path.join(folder, strategy))
        self.assertEqual(len(plans), 3)

    def test_killed_daemon(self):
        folder = os.path.join(harness.FOLDER, "killed-run")
        output = os.path.join(folder, "out")
        config = write_run(folder, steps=STEPS, save_steps=40)
        daemon = Daemon(name="killed")
        client = daemon.start_cli("train", "-c", config)
        self.until_step(client, 100)
        self.assertEqual(daemon.stop(signal.SIGKILL), -signal.SIGKILL)
        self.assertEqual(client.wait(timeout=30), 3, client.stderr.read())
        client.communicate()
        self.assertFalse(os.path.exists(os.path.join(output, f"checkpoint-{STEPS}")))
        daemon = Daemon(name="killed")
        sessions = daemon.json("ls", "sessions")["sessions"]
        self.assertEqual([s["state"] for s in sessions], ["lost"])
        self.assertIn("--resume latest", sessions[0]["error"])
        result = daemon.cli("train", "-c", config, "--resume", "latest", "--strategy", "stream",
                            "--device-memory", "1MiB")
        first = int(re.search(r"^step (\d+)/", result.stdout, re.M)[1])
        self.assertIn(first - 1, (80, 120, 160, 200))
        self.same_as_straight(output)
        self.assertEqual(daemon.stop(), 0)

    def test_resume_from_a_named_checkpoint(self):
        folder = os.path.join(harness.FOLDER, "named-run")
        config = write_run(folder, steps=STEPS, save_steps=40)
        newest = os.path.join(self.straight, f"checkpoint-{STEPS - 40}")
        self.daemon.cli("train", "-c", config, "--resume", newest)
        self.assertEqual(self.final(os.path.join(folder, "out")), self.final(self.straight))

    def test_interrupt_saves_and_resume_goes_on(self):
        folder = os.path.join(harness.FOLDER, "interrupted")
        output = os.path.join(folder, "out")
        config = write_run(folder, steps=STEPS, save_steps=0)
        client = self.daemon.start_cli("train", "-c", config)
        self.until_step(client, 10)
        client.send_signal(signal.SIGINT)
        stdout, stderr = client.communicate(timeout=60)
        self.assertEqual(client.returncode, 1, stderr)
        self.assertIn("saves a checkpoint", stderr)
        stopped = re.search(r"stopped at step (\d+) of", stdout)
        self.assertTrue(stopped, stdout)
        self.assertTrue(os.path.exists(os.path.join(output, f"checkpoint-{stopped[1]}", "DONE")))
        self.daemon.cli("train", "-c", config, "--resume", "latest")
        self.same_as_straight(output)

    def test_sigterm_of_the_daemon_saves(self):
        folder = os.path.join(harness.FOLDER, "terminated")
        output = os.path.join(folder, "out")
        config = write_run(folder, steps=STEPS, save_steps=0)
        daemon = Daemon(name="terminated-daemon")
        client = daemon.start_cli("train", "-c", config)
        self.until_step(client, 10)
        self.assertEqual(daemon.stop(), 0)
        stdout, stderr = client.communicate(timeout=30)
        self.assertEqual(client.returncode, 1, stderr)
        step = re.search(r"stopped at step (\d+) of", stdout)[1]
        self.assertTrue(os.path.exists(os.path.join(output, f"checkpoint-{step}", "DONE")))
        self.daemon.cli("train", "-c", config, "--resume", "latest")
        self.same_as_straight(output)

    def test_a_detached_job_goes_on_without_its_client(self):
        folder = os.path.join(harness.FOLDER, "detached")
        result = self.daemon.cli("train", "-c", write_run(folder, steps=STEPS), "--detach")
        session = result.stdout.strip()
        self.assertRegex(session, "^[0-9a-f]{32}$")
        watched = self.daemon.cli("watch", session[:8], code=None)
        self.assertIn(watched.returncode, (0, 4), watched.stderr)  # 4: it has ended already
        wait_for(lambda: not self.daemon.json("ps")["sessions"])
        self.same_as_straight(os.path.join(folder, "out"))

    def test_other_data_is_refused(self):
        folder = os.path.join(harness.FOLDER, "changed")
        config = write_run(folder, steps=10, save_steps=5)
        self.daemon.cli("train", "-c", config)
        config = write_run(folder, steps=20, text=b"something else entirely " * 4000)
        result = self.daemon.cli("train", "-c", config, "--resume", "latest", code=1)
        self.assertIn("data has changed", result.stderr)

    def test_nothing_to_resume(self):
        config = write_run(os.path.join(harness.FOLDER, "empty"))
        result = self.daemon.cli("train", "-c", config, "--resume", "latest", code=4)
        self.assertIn("no complete checkpoint", result.stderr)


if __name__ == "__main__":
    harness.main()
