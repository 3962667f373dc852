#!/usr/bin/python3
"""Requests that cannot be right, and files that are not what they should be: each gets a code, a
reason and the numbers, and harms no other session."""
import json
import os
import shutil
import struct

import harness
from harness import Daemon, Session, error_info, text_tokens, write_run
from memferry.v1 import plan_pb2, training_pb2

FIXTURE = os.path.join(harness.FIXTURES, "llama")


class Faults(harness.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.daemon = Daemon()
        cls.other = Session(cls.daemon, seed=4)
        cls.losses = []

    @classmethod
    def tearDownClass(cls):
        assert cls.daemon.process.poll() is None, cls.daemon.text()
        assert cls.daemon.stop() == 0, cls.daemon.text()

    def tearDown(self):
        """A session of somebody else goes on, its loss falling."""
        self.losses.append(self.other.step(text_tokens(self.other.tokens_per_batch)).loss)
        self.assertTrue(len(self.losses) < 2 or self.losses[-1] < self.losses[-2], self.losses)

    def open(self, **more):
        session = Session(self.daemon, **more)
        self.addCleanup(session.close)
        return session

    def refused(self, call, reason, **numbers):
        """A call that ends with INVALID_ARGUMENT and these numbers."""
        error = self.fails("INVALID_ARGUMENT", call.result, reason=reason)
        metadata = error_info(error).metadata
        for name, value in numbers.items():
            self.assertEqual(metadata[name], str(value), name)

    def folder(self, name, **config):
        """A copy of a good model folder, its config changed."""
        folder = os.path.join(harness.FOLDER, name)
        shutil.copytree(FIXTURE, folder)
        path = os.path.join(folder, "config.json")
        with open(path, encoding="utf-8") as file:
            content = json.load(file)
        content.update(config)
        with open(path, "w", encoding="utf-8") as file:
            json.dump(content, file)
        return folder

    def not_opened(self, code, model, fragment, **more):
        return self.fails(code, Session, self.daemon, fragment=fragment,
                          model=plan_pb2.Model(folder=model), **more)

    def test_token_out_of_range(self):
        session = self.open()
        tokens = text_tokens(session.tokens_per_batch)
        before = session.forward(tokens).loss_sum
        bad = list(tokens)
        bad[32 + 7] = 256
        self.refused(session.forward_backward(bad, tokens), "TOKEN_OUT_OF_RANGE", token=256,
                     sequence=1, position=7, vocab=256)
        bad[32 + 7] = -1
        self.refused(session.forward_backward(bad, tokens), "TOKEN_OUT_OF_RANGE", token=-1)
        labels = list(tokens)
        labels[3] = 100000
        self.refused(session.forward_backward(tokens, labels), "TOKEN_OUT_OF_RANGE", token=100000,
                     sequence=0, position=3)
        self.refused(session.send("Forward", batch=harness.batch(bad, tokens)),
                     "TOKEN_OUT_OF_RANGE")
        self.refused(session.send("Sample", prompt=[1, 999], max_tokens=2), "TOKEN_OUT_OF_RANGE",
                     token=999)
        # Nothing was changed and nothing was added up.
        self.refused(session.optim_step(), "NO_GRADIENTS")
        self.assertEqual(session.forward(tokens).loss_sum, before)

    def test_batch_of_another_size(self):
        session = self.open()
        tokens = text_tokens(session.tokens_per_batch - 1)
        self.refused(session.forward_backward(tokens), "BATCH_SIZE")
        self.refused(session.forward_backward([]), "BATCH_SIZE")
        self.refused(session.forward_backward(tokens + [1], tokens), "BATCH_SIZE")
        self.refused(session.send("ForwardBackward"), "BATCH_SIZE")
        session.step(tokens + [1])

    def test_accumulation_and_seq_ids(self):
        session = self.open(accumulation=2)
        tokens = text_tokens(session.tokens_per_batch)
        for _ in range(2):
            session.forward_backward(tokens).result()
        self.refused(session.forward_backward(tokens), "ACCUMULATION_EXCEEDED")
        for _ in range(20):
            session.forward(tokens)
        self.refused(session.send("Forward", seq_id=2, batch=harness.batch(tokens)),
                     "SEQ_ID_TOO_OLD", next_seq_id=24)
        self.fails("INVALID_ARGUMENT", session.send(
            "Forward", seq_id=0, batch=harness.batch(tokens)).result)
        self.fails("RESOURCE_EXHAUSTED", session.send(
            "Forward", seq_id=24 + 16, batch=harness.batch(tokens)).result, reason="CALLS_FULL")
        gap = session.send("Forward", seq_id=30, batch=harness.batch(tokens), timeout=0.3)
        self.fails("DEADLINE_EXCEEDED", gap.result)
        session.forward(tokens)

    def test_optimizer_parameters(self):
        session = self.open()
        tokens = text_tokens(session.tokens_per_batch)
        before = session.forward(tokens).loss_sum
        session.forward_backward(tokens).result()
        for wrong in ({"learning_rate": -1}, {"learning_rate": float("nan")}, {"beta1": 1.5},
                      {"eps": -1}, {"weight_decay": -1}):
            adam = training_pb2.AdamParams(**{"learning_rate": 1e-3, **wrong})
            self.fails("INVALID_ARGUMENT", session.send("OptimStep", adam=adam).result)
        self.fails("INVALID_ARGUMENT", session.send("OptimStep").result, fragment="learning_rate")
        self.assertEqual(session.forward(tokens).loss_sum, before)
        # The gradients are still there.
        self.assertEqual(session.optim_step().result().token_count, len(tokens))

    def test_update_that_is_wrong_behind_a_forward(self):
        session = self.open()
        tokens = text_tokens(session.tokens_per_batch)
        forward = session.forward_backward(tokens)
        update = session.send("OptimStep", adam=training_pb2.AdamParams(learning_rate=-1))
        forward.result()
        self.fails("INVALID_ARGUMENT", update.result)
        self.assertEqual(session.optim_step().result().step, 1)

    def test_truncated_weights(self):
        folder = self.folder("truncated")
        path = os.path.join(folder, "model.safetensors")
        os.truncate(path, os.path.getsize(path) - 1000)
        self.not_opened("DATA_LOSS", folder, "model.safetensors")
        os.truncate(path, 5)
        self.not_opened("DATA_LOSS", folder, "model.safetensors")
        os.remove(path)
        self.not_opened("NOT_FOUND", folder, "safetensors")
        # Without weights it can still be planned.
        self.open(model=plan_pb2.Model(folder=folder), random_init=True)

    def test_weights_of_another_model(self):
        self.not_opened("INVALID_ARGUMENT", self.folder("wider", intermediate_size=80),
                        "gate_proj")
        self.not_opened("NOT_FOUND", self.folder("deeper", num_hidden_layers=3), "layers.2.")

    def test_damaged_header(self):
        folder = self.folder("header")
        path = os.path.join(folder, "model.safetensors")
        with open(path, "r+b") as file:
            (length,) = struct.unpack("<Q", file.read(8))
            file.seek(8 + length // 2)
            file.write(b"\x00\xff{{{{")
        self.not_opened("DATA_LOSS", folder, "model.safetensors")

    def test_missing_folder(self):
        missing = os.path.join(harness.FOLDER, "missing")
        self.not_opened("NOT_FOUND", missing, "missing")
        self.not_opened("PERMISSION_DENIED", "/etc", "")
        os.makedirs(missing)
        self.not_opened("NOT_FOUND", missing, "config.json")
        session = self.open()
        self.fails("NOT_FOUND", session.send("LoadState", path=missing + "/nothing").result)
        self.fails("PERMISSION_DENIED", session.send("LoadState", path="/etc").result)
        self.fails("PERMISSION_DENIED", session.send("SaveState", path="/etc/model").result)
        self.fails("INVALID_ARGUMENT", session.send("SaveState", path="model").result)
        session.forward(text_tokens(session.tokens_per_batch))

    def test_bad_config(self):
        self.not_opened("INVALID_ARGUMENT", self.folder("heads", num_attention_heads=5), "heads")
        self.not_opened("UNIMPLEMENTED", self.folder("family", model_type="mamba"), "mamba")
        self.not_opened("UNIMPLEMENTED", self.folder("act", hidden_act="relu6"), "relu6")
        folder = self.folder("broken")
        with open(os.path.join(folder, "config.json"), "a", encoding="utf-8") as file:
            file.write("}")
        self.not_opened("INVALID_ARGUMENT", folder, "config.json")

    def test_failed_load_keeps_the_session(self):
        session = self.open()
        tokens = text_tokens(session.tokens_per_batch)
        session.step(tokens)
        good = os.path.join(harness.FOLDER, "good")
        session.save(good)
        before = session.forward(tokens).loss_sum
        bad = os.path.join(harness.FOLDER, "bad")
        shutil.copytree(good, bad)
        path = os.path.join(bad, "optimizer.safetensors")
        os.truncate(path, os.path.getsize(path) // 2)
        self.fails("DATA_LOSS", session.send("LoadState", path=bad).result,
                   fragment="optimizer.safetensors")
        self.assertEqual(session.forward(tokens).loss_sum, before)
        session.send("LoadState", path=good).result()
        self.assertEqual(session.forward(tokens).loss_sum, before)

    def test_does_not_fit(self):
        error = self.fails("RESOURCE_EXHAUSTED", Session, self.daemon, budget=100 << 10,
                           reason="DEVICE_MEMORY_TOO_SMALL")
        metadata = error_info(error).metadata
        numbers = {key: int(metadata[key]) for key in metadata if key.endswith("_bytes")}
        self.assertEqual(numbers["available_bytes"], 100 << 10)
        self.assertGreater(numbers["needed_bytes"], numbers["available_bytes"])
        self.open(budget=numbers["smallest_bytes"])
        folder = os.path.join(harness.FOLDER, "no-fit")
        result = self.daemon.cli("train", "-c", write_run(folder), "--device-memory", "100KiB",
                                 code=5)
        self.assertIn("--device-memory", result.stderr)
        self.assertFalse(os.path.exists(os.path.join(folder, "out")))
        self.daemon.cli("plan", "llama-3-8b", "--device-memory", "1MiB", "--effort", "estimate",
                        code=5)

    def test_bad_run_config(self):
        folder = os.path.join(harness.FOLDER, "bad-run")
        for keys, text in (({"strateggy": "auto"}, "strategy"), ({"steps": -1}, "steps"),
                           ({"data": {"text": "none.txt"}}, "none.txt"),
                           ({"seq_len": 1024}, "512"), ({"output": "/etc/run"}, "/etc/run"),
                           ({"model": "tiny-lama"}, "tiny-lama")):
            with self.subTest(keys=keys):
                result = self.daemon.cli("train", "-c", write_run(folder, **keys), code=None)
                self.assertIn(result.returncode, (1, 4), result.stderr)
                self.assertIn(text, result.stderr)
        self.assertFalse(self.daemon.cli("train", "-c", folder + "/absent", code=4).stdout)

    def test_short_data(self):
        folder = os.path.join(harness.FOLDER, "short")
        result = self.daemon.cli("train", "-c", write_run(folder, text=b"too little"), code=1)
        self.assertIn("data.txt", result.stderr + self.daemon.text())


if __name__ == "__main__":
    harness.main()
