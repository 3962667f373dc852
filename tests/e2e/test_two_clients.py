#!/usr/bin/python3
"""Several clients on one daemon: they share the device by admitted memory, train as if alone, do
not see each other, and lose nothing when one of them dies."""
import os
import shutil
import subprocess
import sys
import threading
import time
import unittest

import grpc
import harness
from harness import Daemon, Session, error_info, text_tokens, wait_for
from memferry.v1 import hardware_pb2, plan_pb2, training_pb2

MEMORY_BYTES = 4 << 20
# Its plans of 1 MiB take most of that; those of `auto` may be small.
STRATEGY = plan_pb2.STRATEGY_ZERO_OFFLOAD
NOBODY = 65534
LEASE_S = 10  # the shortest
STEPS = 30

# A client that sends requests as they are and prints each answer; it is killed.
CLIENT = """
import sys, grpc
channel = grpc.insecure_channel("unix:" + sys.argv[1])
for line in open(sys.argv[2]):
    method, request = line.split()
    call = channel.unary_unary("/memferry.v1.TrainingService/" + method)
    print(call(bytes.fromhex(request)).hex(), flush=True)
"""


class TwoClients(harness.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.daemon = Daemon("--socket-mode", "0666", memory=str(MEMORY_BYTES))
        cls.leased = Session(cls.daemon, budget=1 << 20, lease=LEASE_S)

    @classmethod
    def tearDownClass(cls):
        assert cls.daemon.stop() == 0, cls.daemon.text()

    def open(self, **more):
        session = Session(self.daemon, budget=1 << 20, **more)
        self.addCleanup(session.close)
        return session

    def train(self, session, shift):
        """Losses and norms of some steps, all bits."""
        results = []
        for step in range(STEPS):
            tokens = text_tokens(session.tokens_per_batch, shift + 11 * step)
            answer = session.step(tokens)
            results.append((answer.step, answer.loss, answer.grad_norm))
        return results

    def test_together_as_alone(self):
        alone = []
        for seed in (1, 2):
            session = Session(self.daemon, seed=seed, budget=1 << 20)
            alone.append(self.train(session, seed))
            session.close()
        sessions = [self.open(seed=seed) for seed in (1, 2)]
        together = [None, None]

        def work(index):
            together[index] = self.train(sessions[index], index + 1)

        threads = [threading.Thread(target=work, args=(index,)) for index in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual(together, alone)
        self.assertNotEqual(alone[0], alone[1])

    def test_admission_by_memory(self):
        status = self.daemon.hardware.GetStatus(hardware_pb2.GetStatusRequest())
        reserved = status.device_reserved_bytes
        sessions = []
        self.addCleanup(lambda: [session.close() for session in sessions])
        with self.assertRaises(grpc.RpcError) as caught:
            for _ in range(8):
                sessions.append(Session(self.daemon, budget=1 << 20, strategy=STRATEGY))
                reserved += sessions[-1].session.device_bytes
        self.assertGreaterEqual(len(sessions), 2)
        error = caught.exception
        self.assertEqual(error.code(), grpc.StatusCode.RESOURCE_EXHAUSTED, error.details())
        info = error_info(error)
        self.assertEqual(info.reason, "DEVICE_MEMORY_TOO_SMALL")
        self.assertEqual(int(info.metadata["needed_bytes"]), sessions[0].session.device_bytes)
        self.assertEqual(int(info.metadata["available_bytes"]), MEMORY_BYTES - reserved)
        status = self.daemon.hardware.GetStatus(hardware_pb2.GetStatusRequest())
        self.assertEqual(status.device_reserved_bytes, reserved)
        self.assertLessEqual(status.device_reserved_bytes, MEMORY_BYTES)
        # Memory that one gives back is there for the next.
        sessions.pop().close()
        sessions.append(Session(self.daemon, budget=1 << 20, strategy=STRATEGY))
        sessions[0].step(text_tokens(sessions[0].tokens_per_batch))

    @unittest.skipUnless(os.geteuid() == 0, "only root can be another user")
    def test_other_users_sessions_are_not_there(self):
        session = self.open()
        session.step(text_tokens(session.tokens_per_batch))
        os.chmod(harness.FOLDER, 0o755)
        program = os.path.join(harness.FOLDER, "memferry")
        shutil.copy(harness.MEMFERRY, program)

        def other(*words):
            return subprocess.run(
                [program, "--host", "unix:" + self.daemon.socket, *words], capture_output=True,
                text=True, check=False, user=NOBODY, group=NOBODY, extra_groups=[], timeout=60,
                cwd="/")

        result = other("ps", "--format", "json")
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertNotIn(session.id, result.stdout)
        self.assertNotIn(session.id, other("ls", "sessions", "--format", "json").stdout)
        for words in (("show", "session", session.id), ("rm", "session", session.id),
                      ("watch", session.id)):
            result = other(*words)
            self.assertEqual(result.returncode, 4, result.stdout + result.stderr)
            self.assertIn("no session", result.stderr)
        self.assertEqual(session.get().step, 1)

    def test_killed_client(self):
        bystander = self.open(seed=5)
        alone = self.open(seed=7)
        expected = self.train(alone, 3)
        victim = self.open(seed=7)
        calls = []
        for step in range(STEPS):
            tokens = text_tokens(victim.tokens_per_batch, 3 + 11 * step)
            calls.append(("ForwardBackward", training_pb2.ForwardBackwardRequest(
                session_id=victim.id, seq_id=2 * step + 1, batch=harness.batch(tokens))))
            calls.append(("OptimStep", training_pb2.OptimStepRequest(
                session_id=victim.id, seq_id=2 * step + 2, adam=training_pb2.AdamParams(
                    learning_rate=1e-2, clip_norm=1.0, weight_decay=0.1))))
        path = os.path.join(harness.FOLDER, "calls")
        with open(path, "w", encoding="ascii") as file:
            for method, request in calls:
                file.write(f"{method} {request.SerializeToString().hex()}\n")
        client = subprocess.Popen([sys.executable, "-c", CLIENT, self.daemon.socket, path],
                                  stdout=subprocess.PIPE, text=True)
        answers = [bytes.fromhex(client.stdout.readline()) for _ in range(9)]
        client.kill()
        client.wait()
        bystander.step(text_tokens(bystander.tokens_per_batch))
        # Another client takes over: nothing is carried out twice, nothing is left out.
        self.daemon.connect()
        first = victim.get().next_seq_id
        self.assertGreaterEqual(first, 10)
        for number in (8, 9):
            method, request = calls[number - 1]
            again = getattr(self.daemon.training, method)(request)
            self.assertEqual(again.SerializeToString(), answers[number - 1])
        for method, request in calls[first - 1:]:
            last = getattr(self.daemon.training, method)(request)
        self.assertEqual((last.step, last.loss, last.grad_norm), expected[-1])
        client.stdout.close()

    def test_calls_in_any_order(self):
        session = self.open(accumulation=3)
        tokens = [text_tokens(session.tokens_per_batch, i) for i in range(3)]
        forwards = {number: session.forward_backward(tokens[number - 1], seq_id=number)
                    for number in (3, 2)}
        update = session.optim_step(seq_id=4)
        with self.assertRaises(grpc.FutureTimeoutError):
            update.result(timeout=0.2)
        forwards[1] = session.forward_backward(tokens[0], seq_id=1)
        sums = [forwards[number].result().loss_sum for number in (1, 2, 3)]
        count = 3 * session.tokens_per_batch
        self.assertEqual(update.result().token_count, count)
        self.assertAlmostEqual(update.result().loss, sum(sums) / count, places=12)

    def test_cancelled_call_is_still_expected(self):
        session = self.open()
        waiting = session.forward_backward(text_tokens(session.tokens_per_batch), seq_id=2)
        time.sleep(0.1)
        waiting.cancel()
        tokens = text_tokens(session.tokens_per_batch)
        session.forward_backward(tokens, seq_id=1).result()
        self.assertEqual(session.get().next_seq_id, 2)
        self.assertEqual(session.optim_step(seq_id=2).result().step, 1)

    def test_z_lease_ends(self):
        """Last by its name, so there is little left to wait."""

        def sessions(past):
            return {s.id: s for s in self.daemon.training.ListSessions(
                training_pb2.ListSessionsRequest(past=past)).sessions}

        wait_for(lambda: self.leased.id not in sessions(False), timeout=LEASE_S + 30, every=0.1)
        ended = sessions(True)[self.leased.id]
        self.assertGreaterEqual(ended.ended_unix_seconds - ended.started_unix_seconds, LEASE_S - 1)
        self.fails("NOT_FOUND", self.leased.get, reason="SESSION_NOT_FOUND")
        self.assertIn("its lease of 10 s ran out", self.daemon.text())


if __name__ == "__main__":
    harness.main()
