#!/usr/bin/python3
"""Disks that fill up and daemons that die while they write: what was saved stays, and the job goes
on from it."""
import glob
import json
import os
import resource
import signal
import subprocess
import time

import harness
from harness import Daemon, Session, read_bytes, text_tokens, wait_for, write_run
from memferry.v1 import hardware_pb2

STEPS = 30
NAMES = ("config.json", "model.safetensors", "optimizer.safetensors", "state.json", "DONE")
FILE_BYTES_MAX = 1 << 20  # less than the optimizer's state of tiny-llama
# One checkpoint of tiny-llama, 1.75 MB, fits with the room that saving wants; two do not.
DISK_BYTES = 6 << 20


def checkpoints(output):
    """Complete ones by name, with what is in them."""
    found = {}
    for folder in glob.glob(os.path.join(output, "checkpoint-*")):
        if not folder.endswith(".partial"):
            found[os.path.basename(folder)] = [read_bytes(folder, name) for name in NAMES]
    return found


def limit_files():
    resource.setrlimit(resource.RLIMIT_FSIZE, (FILE_BYTES_MAX, FILE_BYTES_MAX))


class FaultFiles(harness.TestCase):
    @classmethod
    def setUpClass(cls):
        """The same job on a good disk."""
        cls.daemon = Daemon(name="good")
        folder = os.path.join(harness.FOLDER, "good-run")
        cls.daemon.cli("train", "-c", write_run(folder, steps=STEPS, save_steps=10,
                                                save_total_limit=0))
        cls.good = checkpoints(os.path.join(folder, "out"))
        assert sorted(cls.good) == ["checkpoint-10", "checkpoint-20", "checkpoint-30"]

    @classmethod
    def tearDownClass(cls):
        assert cls.daemon.stop() == 0, cls.daemon.text()

    def same(self, output, *names):
        """Just these are there, complete, and with the bits of the good disk."""
        found = checkpoints(output)
        self.assertEqual(sorted(found), sorted(names))
        for name in names:
            self.assertEqual(found[name], self.good[name], name)

    def test_file_size_limit(self):
        folder = os.path.join(harness.FOLDER, "limited-run")
        output = os.path.join(folder, "out")
        self.daemon.cli("train", "-c", write_run(folder, steps=10, save_steps=10))
        config = write_run(folder, steps=STEPS, save_steps=10)
        daemon = Daemon(name="limited", before=limit_files)
        result = daemon.cli("train", "-c", config, "--resume", "latest", code=1)
        self.assertIn("training goes on", result.stdout + result.stderr)
        self.assertIn("step 30/30", result.stdout)
        self.assertIn("optimizer.safetensors", result.stderr)
        self.same(output, "checkpoint-10")
        self.assertEqual(glob.glob(output + "/*.partial"), [])
        # The daemon serves, and the job goes on once there is room.
        session = Session(daemon)
        self.fails("INTERNAL", session.save, os.path.join(harness.FOLDER, "too-large"))
        session.step(text_tokens(session.tokens_per_batch))
        self.assertEqual(daemon.stop(), 0)
        self.daemon.cli("train", "-c", config, "--resume", "latest")
        self.same(output, "checkpoint-20", "checkpoint-30")

    def test_earlier_checkpoint_stays_until_it_is_replaced(self):
        folder = os.path.join(harness.FOLDER, "again")
        output = os.path.join(folder, "out")
        config = write_run(folder, steps=STEPS, save_steps=10, save_total_limit=0)
        self.daemon.cli("train", "-c", config)
        first = os.path.join(output, "checkpoint-10")
        daemon = Daemon(name="again-limited", before=limit_files)
        daemon.cli("train", "-c", config, "--resume", first, code=1)
        self.same(output, *self.good)
        self.assertEqual(daemon.stop(), 0)
        inode = os.stat(os.path.join(output, "checkpoint-20")).st_ino
        self.daemon.cli("train", "-c", config, "--resume", first)
        self.same(output, *self.good)
        self.assertNotEqual(os.stat(os.path.join(output, "checkpoint-20")).st_ino, inode)

    def test_full_disk(self):
        disk = os.path.join(harness.FOLDER, "disk")
        os.makedirs(disk)
        options = f"size={DISK_BYTES}"
        mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", disk],
                                 capture_output=True, check=False)
        if mounted.returncode != 0:
            self.skipTest("no file system can be mounted here")
        self.addCleanup(subprocess.run, ["umount", "-l", disk], check=True)
        config = write_run(disk, steps=STEPS, save_steps=10)
        output = os.path.join(disk, "out")
        result = self.daemon.cli("train", "-c", config, code=1)
        self.assertIn("training goes on", result.stdout + result.stderr)
        self.assertIn("step 30/30", result.stdout)
        self.assertRegex(result.stderr, "needs .* are free there")
        self.same(output, "checkpoint-10")
        session = Session(self.daemon)
        self.addCleanup(session.close)
        with self.assertRaises(Exception):
            session.save(os.path.join(disk, "no-room"))
        session.step(text_tokens(session.tokens_per_batch))
        subprocess.run(["mount", "-o", "remount,size=16m", disk], check=True)
        self.daemon.cli("train", "-c", config, "--resume", "latest")
        self.same(output, "checkpoint-20", "checkpoint-30")

    def test_killed_while_a_checkpoint_is_written(self):
        for attempt, delay in enumerate((0, 0.002, 0.005)):
            with self.subTest(delay=delay):
                folder = os.path.join(harness.FOLDER, f"cut-{attempt}")
                output = os.path.join(folder, "out")
                config = write_run(folder, steps=STEPS, save_steps=10, save_total_limit=0)
                daemon = Daemon(name=f"cut-daemon-{attempt}")
                client = daemon.start_cli("train", "-c", config)
                wait_for(lambda: glob.glob(output + "/checkpoint-20*"), every=0)
                time.sleep(delay)
                daemon.stop(signal.SIGKILL)
                client.communicate(timeout=30)
                self.assertEqual(client.returncode, 3)
                found = sorted(checkpoints(output))
                self.assertEqual(found[0], "checkpoint-10")
                self.same(output, *found)
                daemon = Daemon(name=f"cut-daemon-{attempt}")
                daemon.cli("train", "-c", config, "--resume", "latest")
                self.same(output, *self.good)
                self.assertEqual(daemon.stop(), 0)
                self.assertEqual(glob.glob(output + "/*.partial"), [])

    def test_metrics_go_on_after_a_cut_line(self):
        folder = os.path.join(harness.FOLDER, "metrics")
        config = write_run(folder, steps=20, save_steps=10)
        self.daemon.cli("train", "-c", config)
        path = os.path.join(folder, "out", "metrics.jsonl")
        with open(path, "a", encoding="utf-8") as file:
            file.write('{"step": 21, "loss"')
        config = write_run(folder, steps=STEPS, save_steps=10)
        self.daemon.cli("train", "-c", config, "--resume", "latest")
        with open(path, encoding="utf-8") as file:
            steps = [json.loads(line)["step"] for line in file]
        self.assertEqual(steps, list(range(1, STEPS + 1)))

    def test_checkpoint_without_done_is_not_taken(self):
        folder = os.path.join(harness.FOLDER, "undone")
        output = os.path.join(folder, "out")
        config = write_run(folder, steps=STEPS, save_steps=10, save_total_limit=0)
        self.daemon.cli("train", "-c", config)
        os.remove(os.path.join(output, "checkpoint-30", "DONE"))
        result = self.daemon.cli("train", "-c", config, "--resume", "latest")
        self.assertIn("step 21/30", result.stdout)
        self.same(output, *self.good)

    def test_garbage_store(self):
        daemon = Daemon(name="garbage")
        self.assertEqual(daemon.stop(), 0)
        path = os.path.join(daemon.home, "memferry.db")
        for old in glob.glob(path + "*"):
            os.remove(old)
        with open(path, "wb") as file:
            file.write(os.urandom(50000))
        garbage = read_bytes(path)
        daemon = Daemon(name="garbage")
        aside = [name for name in glob.glob(path + "*") if read_bytes(name) == garbage]
        self.assertEqual(len(aside), 1, os.listdir(daemon.home))
        self.assertIn(os.path.basename(aside[0]), daemon.text())
        self.assertEqual(daemon.json("plan", "tiny-llama", "--effort", "estimate")["how"],
                         "estimated")
        self.assertEqual(daemon.stop(), 0)

    def test_home_that_cannot_be_written(self):
        blocked = os.path.join(harness.FOLDER, "blocked")
        with open(blocked, "w", encoding="ascii"):
            pass
        daemon = Daemon(name="blocked", wait=False)
        self.assertEqual(daemon.ended(), 1)
        self.assertIn(blocked, daemon.text())

    def test_store_that_is_removed_while_it_serves(self):
        daemon = Daemon(name="removed")
        for name in glob.glob(os.path.join(daemon.home, "memferry.db*")):
            os.remove(name)
        session = Session(daemon)
        session.step(text_tokens(session.tokens_per_batch))
        self.assertEqual(
            daemon.hardware.GetStatus(hardware_pb2.GetStatusRequest()).session_count, 1)
        self.assertEqual(daemon.stop(), 0)


if __name__ == "__main__":
    harness.main()
