#!/usr/bin/python3
"""The Python client (client/python) against a daemon: plans, sessions with futures in flight,
errors as exceptions, a connection that breaks."""
import array
import os
import shutil
import socket
import subprocess
import sys
import threading

import harness
from harness import FOLDER, Daemon, text_tokens
import memferry

STUBS = os.path.join(FOLDER, "stubs")
SHAPE = {"micro_batch": 2, "seq_len": 32, "effort": "estimate"}
ADAM = memferry.Adam(1e-2, weight_decay=0.1, clip_norm=1.0)


class Proxy:
    """A socket in front of the daemon's whose connections can be cut."""

    def __init__(self, path, daemon):
        self.address, self.target, self.open, self.cuts = "unix:" + path, daemon.socket, [], 0
        self.listener = socket.socket(socket.AF_UNIX)
        self.listener.bind(path)
        self.listener.listen()
        threading.Thread(target=self.accept, daemon=True).start()

    def accept(self):
        while True:
            try:
                near = self.listener.accept()[0]
            except OSError:
                return
            far = socket.socket(socket.AF_UNIX)
            far.connect(self.target)
            self.open += [near, far]
            for pair in ((near, far), (far, near)):
                threading.Thread(target=self.copy, args=pair, daemon=True).start()

    def copy(self, source, sink):
        try:
            while piece := source.recv(65536):
                sink.sendall(piece)
        except OSError:
            pass
        for end in (source, sink):
            try:
                end.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass

    def cut(self):
        self.cuts += len(self.open) // 2
        while self.open:
            try:
                self.open.pop().shutdown(socket.SHUT_RDWR)
            except OSError:
                pass

    def close(self):
        self.listener.shutdown(socket.SHUT_RDWR)
        self.listener.close()
        self.cut()


class TestPlans(harness.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.daemon = Daemon(memory="512MiB")
        cls.client = memferry.Client("unix:" + cls.daemon.socket)

    @classmethod
    def tearDownClass(cls):
        cls.client.close()
        assert cls.daemon.stop() == 0, cls.daemon.text()

    def test_plan(self):
        pins = [memferry.Pin("*.mlp.*", gradient="copy")]
        plan = self.client.plan("tiny-llama", device_memory="1MiB", strategy="stream", pins=pins,
                                **SHAPE)
        self.assertEqual(plan.how, "estimated")
        self.assertNotEqual(plan.miss, "")
        self.assertEqual(plan.constraints.device_memory_bytes, 1 << 20)
        self.assertEqual((plan.constraints.strategy, plan.workload.seq_len), ("stream", 32))
        self.assertTrue(0 < plan.prediction.device_peak_bytes <= 1 << 20)
        self.assertGreaterEqual(plan.prediction.step_ns, plan.prediction.bound_ns)
        mlp = [unit for unit in plan.units if ".mlp." in unit.name]
        self.assertEqual({(unit.gradient, unit.pinned) for unit in mlp}, {("copy", True)})
        self.assertTrue(set(plan.activations) <= {"keep", "recompute", "offload"})
        again = self.client.plan("tiny-llama", device_memory=1 << 20, strategy="stream",
                                 pins=pins, micro_batch=2, seq_len=32, effort="cached")
        self.assertEqual((again.id, again.how, again.miss), (plan.id, "cached", ""))
        shown = self.client.show_plan(plan.id[:8])
        self.assertEqual((shown.units, shown.how), (plan.units, ""))
        self.assertIn(plan.id, [each.id for each in self.client.list_plans()])
        table = plan.table()
        self.assertIn("model.layers.0-1.mlp.up_proj", table)
        self.assertIn(plan.id[:12], table)

    def test_explain_export_import_delete(self):
        plan = self.client.plan("tiny-llama", device_memory="2MiB", **SHAPE)
        explained = self.client.explain_plan(plan.id, plan.units[1].name)
        self.assertEqual(explained.unit.name, plan.units[1].name)
        self.assertEqual([each.chosen for each in explained.alternatives].count(True), 1)
        text = self.client.export_plan(plan.id)
        self.client.delete_plan(plan.id)
        with self.assertRaises(memferry.NotFoundError):
            self.client.show_plan(plan.id)
        self.assertEqual(self.client.import_plan(text).units, plan.units)

    def test_tune_and_measure(self):
        seen = []
        profile = self.client.measure("tiny-llama", micro_batch=1, seq_len=16, seconds_max=20,
                                      progress=seen.append)
        self.assertTrue(profile.complete)
        self.assertEqual(profile.measured_count, profile.needed_count)
        self.assertTrue(seen and all(0 <= each.done <= 1 for each in seen), seen)
        plan = self.client.plan("tiny-llama", seq_len=32, batch=4, tune_micro_batch=True,
                                effort="estimate")
        self.assertEqual([trial.micro_batch for trial in plan.trials], [1, 2, 4])
        chosen = [trial for trial in plan.trials if trial.chosen]
        self.assertEqual([trial.plan_id for trial in chosen], [plan.id])

    def test_what_does_not_fit_says_what_would(self):
        with self.assertRaises(memferry.NoDeviceMemoryError) as caught:
            self.client.plan("tiny-llama", device_memory="32KiB", **SHAPE)
        error = caught.exception
        self.assertIsInstance(error, memferry.DoesNotFitError)
        self.assertEqual((error.status, error.reason),
                         ("NO_DEVICE_MEMORY", "DEVICE_MEMORY_TOO_SMALL"))
        self.assertEqual(error.numbers["available_bytes"], 32 << 10)
        # The way out is one: the size it names is enough.
        size = error.way_out.split('device_memory="')[1].rstrip('"')
        self.assertIn(error.way_out, str(error))
        plan = self.client.plan("tiny-llama", device_memory=size, **SHAPE)
        self.assertLessEqual(plan.prediction.device_peak_bytes, error.smallest_bytes + 1024)

    def test_mistakes(self):
        for kind, fragment, model, options in (
                (memferry.NotFoundError, "tiny-llama", "tiny-lama", {}),
                (memferry.NotFoundError, "", "tiny-llama", {"effort": "cached", "seq_len": 7}),
                (memferry.InvalidError, '"zero_offload"', "tiny-llama", {"strategy": "zero"}),
                (memferry.InvalidError, "8GiB", "tiny-llama", {"device_memory": "much"}),
                (memferry.InvalidError, "none", memferry.Model(), {}),
                (memferry.InvalidError, "block 0 comes after block 1",
                 [memferry.Unit("a", 1, 8, 8), memferry.Unit("b", 0, 8, 8)], {}),
                (memferry.InvalidError, "seq_len", "tiny-llama", {"seq_len": -1})):
            with self.subTest(model=model, **options), self.assertRaises(kind) as caught:
                self.client.plan(model, **{"effort": "estimate", **options})
            self.assertIn(fragment, str(caught.exception))

    def test_model_is_a_folder_a_config_or_a_preset(self):
        config = os.path.join(FOLDER, "config.json")
        with self.client.create_session("tiny-llama", **SHAPE) as session:
            saved = session.save_state(os.path.join(FOLDER, "folder")).result()
        shutil.copy(os.path.join(saved.path, "config.json"), config)
        plans = [self.client.plan(model, **SHAPE) for model in (saved.path, config, "tiny-llama")]
        self.assertEqual(len({plan.units for plan in plans}), 1)

    def test_address(self):
        runtime = os.path.join(FOLDER, "runtime")
        os.makedirs(os.path.join(runtime, "memferry"))
        os.symlink(self.daemon.socket, os.path.join(runtime, "memferry", "memferryd.sock"))
        for settings in ({"MEMFERRY_HOST": "unix:" + self.daemon.socket},
                         {"MEMFERRY_HOST": "unix://" + self.daemon.socket},
                         {"MEMFERRY_HOST": "", "XDG_RUNTIME_DIR": runtime}):
            code = "import memferry; print(memferry.Client().status().pid)"
            result = subprocess.run([sys.executable, "-c", code], check=True, timeout=60, text=True,
                                    stdout=subprocess.PIPE,
                                    env={**os.environ, "PYTHONPATH": STUBS, **settings})
            self.assertEqual(int(result.stdout), self.daemon.process.pid)
        with self.assertRaises(memferry.UnavailableError) as caught:
            memferry.Client("unix:" + os.path.join(FOLDER, "nobody.sock"))
        self.assertEqual(caught.exception.reason, "NO_DAEMON")
        self.assertIn("memferry serve", str(caught.exception))
        with self.assertRaises(memferry.InvalidError):
            memferry.Client("nonsense")

    def test_query(self):
        models = self.client.query("PlanService/ListModels")
        self.assertIn("tiny-llama", models["presets"])
        with self.assertRaises(memferry.InvalidError):
            self.client.query("PlanService/Nothing")
        with self.assertRaises(memferry.InvalidError):
            self.client.query("PlanService/ShowPlan", {"idd": "1"})


class TestSessions(harness.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.daemon = Daemon()
        cls.client = memferry.Client("unix:" + cls.daemon.socket)

    @classmethod
    def tearDownClass(cls):
        cls.client.close()
        assert cls.daemon.stop() == 0, cls.daemon.text()

    def open(self, client=None, **more):
        session = (client or self.client).create_session("tiny-llama", **{**SHAPE, **more})
        self.addCleanup(self.client.attach_session(session.id).close)
        return session

    def train(self, session, steps):
        """All calls at once, far more than may be in flight: the futures of loss and of step."""
        return [(session.forward_backward(text_tokens(64, 64 * i)),
                 session.forward_backward(text_tokens(64, 64 * i + 7)),
                 session.optim_step(ADAM)) for i in range(steps)]

    def test_loss_falls_and_futures_come_in_any_order(self):
        seen = []
        session = self.open(accumulation=2, device_memory="1MiB", progress=seen.append)
        self.assertTrue(seen)
        self.assertEqual(session.info.state, "ready")
        calls = self.train(session, 20)
        for first, second, step in reversed(calls):  # waited for from the last to the first
            done = step.result(timeout=60)
            parts = (first.result(), second.result())
            self.assertEqual(done.token_count, sum(part.token_count for part in parts))
            self.assertAlmostEqual(done.loss, sum(part.loss_sum for part in parts)
                                   / done.token_count, places=9)
        losses = [step.result().loss for _, _, step in calls]
        self.assertEqual([step.result().step for _, _, step in calls], list(range(1, 21)))
        self.assertLess(losses[-1], losses[0] - 1, losses)
        now = session.get()
        self.assertEqual((now.step, now.next_seq_id), (20, 61))
        self.assertIn(b'"traceEvents"', session.trace())

    def test_labels_and_shapes_of_tokens(self):
        session = self.open()
        tokens = text_tokens(64)
        shifted = [tokens[i + 1] if i % 32 != 31 else memferry.IGNORED for i in range(64)]
        expected = session.forward(tokens, shifted).result()
        self.assertEqual(expected.token_count, 62)
        self.assertEqual((expected.logprobs[31], expected.logprobs[63]), (0, 0))
        for same in (tokens, tuple(tokens), bytes(tokens), array.array("i", tokens),
                     [tokens[:32], tokens[32:]], [array.array("i", tokens[:32]), tokens[32:]]):
            self.assertEqual(session.forward(same).result(), expected)
        self.assertEqual(session.forward_backward(tokens).result().loss_sum, expected.loss_sum)
        self.assertNotEqual(session.forward(tokens, tokens).result(), expected)

    def test_errors_are_typed_and_the_session_goes_on(self):
        session = self.open()
        good = text_tokens(64)
        wrong = session.forward_backward([999] + good[1:])
        after = session.forward_backward(good)  # already on its way when the other one fails
        with self.assertRaises(memferry.InvalidError) as caught:
            wrong.result(timeout=60)
        error = caught.exception
        self.assertEqual(error.reason, "TOKEN_OUT_OF_RANGE")
        self.assertEqual((error.numbers["token"], error.numbers["vocab"]), (999, 256))
        self.assertEqual(after.result(timeout=60).token_count, 62)
        for mistake, reason in ((good[1:], "BATCH_SIZE"), (good * 2, "BATCH_SIZE")):
            with self.assertRaises(memferry.InvalidError) as caught:
                session.forward(mistake, mistake).result(timeout=60)
            self.assertEqual(caught.exception.reason, reason)
        self.assertEqual(session.optim_step(ADAM).result(timeout=60).step, 1)
        with self.assertRaises(memferry.InvalidError) as caught:
            session.optim_step(ADAM).result(timeout=60)
        self.assertEqual(caught.exception.reason, "NO_GRADIENTS")
        with self.assertRaises(memferry.InvalidError) as caught:
            session.forward([100000] * (2 << 20))  # refused before it has a number
        self.assertEqual(caught.exception.reason, "MESSAGE_TOO_LARGE")
        with self.assertRaises(TypeError):
            session.forward(["a"] * 64)
        self.assertEqual(session.forward(good).result(timeout=60).token_count, 62)

    def test_two_sessions_in_two_threads(self):
        alone = self.open(accumulation=2)
        expected = [step.result().loss for _, _, step in self.train(alone, 6)]
        found = {}

        def work(name):
            with self.client.create_session("tiny-llama", accumulation=2, **SHAPE) as session:
                found[name] = [step.result().loss for _, _, step in self.train(session, 6)]
        threads = [threading.Thread(target=work, args=(name,)) for name in "ab"]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(120)
        self.assertEqual(found, {"a": expected, "b": expected})

    def test_sample_save_load(self):
        first = self.open(seed=3, device_memory="1MiB", accumulation=2)
        self.train(first, 3)
        path = os.path.join(FOLDER, "saved")
        saved = first.save_state(path)  # queued behind the steps
        self.assertEqual(saved.result(timeout=60).path, path)
        self.assertGreater(saved.result().bytes, 0)
        with self.assertRaises(memferry.ExistsError):
            first.save_state(path).result(timeout=60)
        second = self.open(seed=9, strategy="resident", accumulation=2)
        loaded = second.load_state(path).result(timeout=60)
        self.assertEqual((loaded.step, loaded.optimizer_loaded), (3, True))
        for ours, theirs in zip(self.train(first, 2), self.train(second, 2)):
            ours, theirs = ours[2].result(timeout=60), theirs[2].result(timeout=60)
            self.assertEqual((ours.step, ours.loss, ours.grad_norm),
                             (theirs.step, theirs.loss, theirs.grad_norm))
        prompt = text_tokens(8)
        greedy = [each.sample(prompt, 12).result(timeout=60).tokens for each in (first, second)]
        self.assertEqual(len(greedy[0]), 12)
        self.assertEqual(greedy[0], greedy[1])

    def test_a_broken_connection_loses_nothing(self):
        steps = 12
        calm = self.open(accumulation=2)
        expected = [step.result().loss for _, _, step in self.train(calm, steps)]
        proxy = Proxy(os.path.join(FOLDER, "proxy.sock"), self.daemon)
        self.addCleanup(proxy.close)
        with memferry.Client(proxy.address) as client:
            session = self.open(client, accumulation=2)
            found = []
            for i in range(0, steps, 4):
                calls = self.train_part(session, i, 4)
                proxy.cut()
                found += [step.result(timeout=60).loss for step in calls]
            self.assertGreaterEqual(proxy.cuts, 3)
            self.assertEqual(found, expected)
            self.assertEqual(session.get().next_seq_id, 3 * steps + 1)

    def train_part(self, session, begin, count):
        steps = []
        for i in range(begin, begin + count):
            session.forward_backward(text_tokens(64, 64 * i))
            session.forward_backward(text_tokens(64, 64 * i + 7))
            steps.append(session.optim_step(ADAM))
        return steps

    def test_callbacks_may_go_on(self):
        session = self.open()
        ends = []
        all_done = threading.Event()

        def next_one(loss):
            ends.append(loss.result().loss)
            if len(ends) == 40:
                all_done.set()
            else:
                session.forward(text_tokens(64)).add_done_callback(next_one)
        session.forward(text_tokens(64)).add_done_callback(next_one)
        self.assertTrue(all_done.wait(60))
        self.assertEqual(len(set(ends)), 1)

    def test_attach(self):
        session = self.open()
        session.forward_backward(text_tokens(64)).result(timeout=60)
        with memferry.Client("unix:" + self.daemon.socket) as other:
            again = other.attach_session(session.id)
            self.assertEqual(again.optim_step(ADAM).result(timeout=60).step, 1)
            self.assertIn(session.id, [each.id for each in other.list_sessions()])

    def test_close_ends_what_is_in_flight(self):
        session = self.open(micro_batch=32, seq_len=128)
        calls = [session.forward(text_tokens(32 * 128)) for _ in range(12)]
        self.assertFalse(calls[-1].cancel())
        session.close()
        session.close()  # once more is nothing
        ends = [call.exception(timeout=60) for call in calls]
        self.assertIsInstance(ends[-1], (memferry.CancelledError, memferry.NotFoundError))
        with self.assertRaises(memferry.NotFoundError):
            session.forward(text_tokens(32 * 128)).result(timeout=60)
        self.assertNotIn(session.id, [each.id for each in self.client.list_sessions()])
        past = {each.id: each.state for each in self.client.list_sessions(past=True)}
        self.assertEqual(past[session.id], "closed")

    def test_closing_the_client_ends_its_calls_not_the_session(self):
        client = memferry.Client("unix:" + self.daemon.socket)
        session = client.create_session("tiny-llama", **{**SHAPE, "micro_batch": 16,
                                                         "seq_len": 128})
        self.addCleanup(self.client.attach_session(session.id).close)
        calls = [session.forward(text_tokens(32 * 128)) for _ in range(12)]
        client.close()
        self.assertIsInstance(calls[-1].exception(timeout=60), memferry.CancelledError)
        with self.assertRaises(memferry.CancelledError):
            session.forward(text_tokens(32 * 128))
        client.close()  # once more is nothing
        self.assertEqual(self.client.attach_session(session.id).info.state, "ready")


if __name__ == "__main__":
    harness.main()
