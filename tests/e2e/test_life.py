#!/usr/bin/python3
"""How the daemon begins and ends, and what the program says when it is not there."""
import os
import re
import signal
import socket
import subprocess
import threading
import time

import grpc
import harness
from harness import Daemon, Session, text_tokens, wait_for, write_run
from memferry.v1 import training_pb2

LONG = 1000000  # steps: more than any test waits for


def environment(address):
    return {**os.environ, "MEMFERRY_HOST": "unix:" + address}


class Life(harness.TestCase):
    def long_job(self, daemon, name):
        """A job that is running, and its client."""
        config = write_run(os.path.join(harness.FOLDER, name), steps=LONG)
        client = daemon.start_cli("train", "-c", config)
        self.addCleanup(client.stdout.close)
        self.addCleanup(client.stderr.close)
        self.addCleanup(client.kill)
        for line in client.stdout:
            if line.startswith("step 3/"):
                return client
        self.fail("the job ended: " + client.stderr.read())

    def test_no_daemon(self):
        missing = os.path.join(harness.FOLDER, "nobody.sock")
        for verb in (["status"], ["plan", "tiny-llama"], ["ps"], ["stop"]):
            result = subprocess.run([harness.MEMFERRY, *verb], env=environment(missing), timeout=30,
                                    capture_output=True, text=True, check=False)
            self.assertEqual(result.returncode, 3, result.stderr)
            self.assertEqual(result.stdout, "")
            self.assertIn(missing, result.stderr)
            self.assertIn("memferry serve", result.stderr)

    def test_socket_that_nobody_serves(self):
        path = os.path.join(harness.FOLDER, "stale.sock")
        listener = socket.socket(socket.AF_UNIX)
        listener.bind(path)
        listener.close()
        result = subprocess.run([harness.MEMFERRY, "status"], env=environment(path), timeout=30,
                                capture_output=True, text=True, check=False)
        self.assertEqual(result.returncode, 3, result.stderr)
        # A daemon takes it over, also after one that was killed.
        for _ in range(2):
            daemon = Daemon(name="stale")
            daemon.cli("status")
            self.assertEqual(daemon.stop(signal.SIGKILL), -signal.SIGKILL)
            self.assertTrue(os.path.exists(path))
        daemon = Daemon(name="stale")
        self.assertEqual(daemon.stop(), 0)
        self.assertFalse(os.path.exists(path))

    def test_file_in_place_of_the_socket(self):
        path = os.path.join(harness.FOLDER, "taken.sock")
        with open(path, "w", encoding="ascii") as file:
            file.write("mine")
        daemon = Daemon(name="taken", wait=False)
        self.assertEqual(daemon.ended(), 1)
        self.assertIn("left alone", daemon.text())
        self.assertEqual(harness.read_bytes(path), b"mine")

    def test_two_daemons_on_one_socket(self):
        daemon = Daemon(name="one")
        second = Daemon("--home", os.path.join(harness.FOLDER, "two"), name="one", wait=False)
        self.assertEqual(second.ended(), 1)
        self.assertIn(f"another daemon serves on {daemon.socket} (process {daemon.process.pid})",
                      daemon.text())
        daemon.cli("status")
        self.assertEqual(daemon.stop(), 0)

    def test_two_daemons_on_one_home(self):
        first = Daemon(name="home1")
        second = Daemon("--home", first.home, name="home2")
        plan = first.json("plan", "tiny-llama", "--effort", "estimate")["plan"]
        other = second.json("plan", "tiny-llama", "--effort", "cached")
        self.assertEqual((other["how"], other["plan"]["id"]), ("cached", plan["id"]))
        self.assertEqual((first.stop(), second.stop()), (0, 0))

    def test_sigterm_with_calls_in_flight(self):
        daemon = Daemon()
        session = Session(daemon)
        answers = []

        def train():
            try:
                while True:
                    answers.append(session.step(text_tokens(session.tokens_per_batch)).step)
            except grpc.RpcError as error:
                answers.append(error)

        thread = threading.Thread(target=train)
        thread.start()
        wait_for(lambda: len(answers) > 5)
        began = time.monotonic()
        self.assertEqual(daemon.stop(), 0)
        self.assertLess(time.monotonic() - began, 10)
        thread.join()
        self.assertIn(answers[-1].code(),
                      (grpc.StatusCode.CANCELLED, grpc.StatusCode.UNAVAILABLE))
        daemon = Daemon(name=daemon.name)
        past = daemon.json("ls", "sessions")["sessions"]
        self.assertEqual([s["state"] for s in past], ["closed"])
        self.assertEqual(daemon.stop(), 0)

    def test_second_signal_ends_at_once(self):
        daemon = Daemon()
        self.long_job(daemon, "second-signal")
        stuck = Session(daemon)
        gap = stuck.forward_backward(text_tokens(stuck.tokens_per_batch), seq_id=2)
        daemon.process.send_signal(signal.SIGTERM)
        daemon.process.send_signal(signal.SIGTERM)
        self.assertIn(daemon.ended(timeout=20), (0, 1))
        self.assertFalse(os.path.exists(daemon.socket))
        with self.assertRaises(grpc.RpcError):
            gap.result()

    def test_stop_verb_saves_jobs(self):
        daemon = Daemon()
        client = self.long_job(daemon, "stop-verb")
        result = daemon.cli("stop")
        self.assertEqual(result.stdout, "")
        self.assertEqual(daemon.ended(), 0)
        self.assertEqual(client.wait(timeout=30), 1)
        output = client.stdout.read()
        step = re.search(r"stopped at step (\d+) of", output)[1]
        self.assertIn(f"checkpoint-{step}", output)

    def test_second_interrupt_leaves_the_job(self):
        daemon = Daemon()
        client = self.long_job(daemon, "left-alone")
        session = daemon.json("ps")["sessions"][0]["id"]
        # SIGTERM is for the program, not for the job.
        client.send_signal(signal.SIGTERM)
        self.assertEqual(client.wait(timeout=30), 0)
        self.assertIn(f"memferry watch {session}", client.stderr.read())
        watcher = daemon.start_cli("watch", session)
        for line in watcher.stdout:
            if line.startswith("step "):
                break
        watcher.send_signal(signal.SIGINT)
        watcher.communicate(timeout=30)
        running = daemon.json("ps")["sessions"]
        self.assertEqual([(s["id"], s["state"]) for s in running], [(session, "running")])
        daemon.cli("rm", "session", session, "--discard")
        wait_for(lambda: not daemon.json("ps")["sessions"])
        folder = os.path.join(harness.FOLDER, "left-alone", "out")
        self.assertFalse([name for name in os.listdir(folder) if name.startswith("checkpoint-")])
        self.assertEqual(daemon.stop(), 0)

    def test_job_beside_a_session(self):
        daemon = Daemon()
        self.long_job(daemon, "beside")
        session = Session(daemon, budget=1 << 20)
        job = [s for s in daemon.json("ps")["sessions"] if s["id"] != session.id][0]
        session.step(text_tokens(session.tokens_per_batch))
        error = self.fails("INVALID_ARGUMENT", daemon.training.ForwardBackward,
                           training_pb2.ForwardBackwardRequest(session_id=job["id"], seq_id=1),
                           reason="SESSION_IS_RUN")
        self.assertIn(job["id"][:8], error.details())
        before = daemon.training.GetSession(
            training_pb2.GetSessionRequest(session_id=job["id"])).session.step
        wait_for(lambda: daemon.training.GetSession(
            training_pb2.GetSessionRequest(session_id=job["id"])).session.step > before + 3)
        self.assertEqual(daemon.stop(), 0)

    def test_sessions_full(self):
        daemon = Daemon("--sessions", "2")
        sessions = [Session(daemon, budget=1 << 20) for _ in range(2)]
        self.fails("RESOURCE_EXHAUSTED", Session, daemon, budget=1 << 20, reason="SESSIONS_FULL")
        config = write_run(os.path.join(harness.FOLDER, "full"))
        daemon.cli("train", "-c", config, code=6)
        sessions[0].close()
        daemon.cli("train", "-c", config)
        self.assertEqual(daemon.stop(), 0)


if __name__ == "__main__":
    harness.main()
