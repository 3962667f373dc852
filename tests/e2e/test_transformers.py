#!/usr/bin/python3
"""Folders that are saved here load in Transformers and give the same loss there.

Runs tests/oracle/check_saved.py with $MF_REFERENCE_PYTHON, or the python3 in PATH; skipped where
that has no Transformers."""
import json
import os
import shutil
import struct
import subprocess
import unittest

import harness
import test_saved_folder
from harness import Session, text_tokens
from memferry.v1 import plan_pb2
from test_saved_folder import LOSS_TOLERANCE

CHECK = os.path.join(harness.SOURCE, "tests", "oracle", "check_saved.py")
PYTHON = os.environ.get("MF_REFERENCE_PYTHON") or shutil.which("python3") or "python3"


def has_transformers():
    code = "import torch, transformers, safetensors"
    return subprocess.run([PYTHON, "-c", code], capture_output=True, check=False).returncode == 0


def write_tokens(path, tokens, labels, rows):
    """A file for check_saved.py --tokens."""
    shape = [rows, len(tokens) // rows]
    half = 4 * len(tokens)
    header = json.dumps({
        "input_ids": {"dtype": "I32", "shape": shape, "data_offsets": [0, half]},
        "labels": {"dtype": "I32", "shape": shape, "data_offsets": [half, 2 * half]}}).encode()
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(header)) + header)
        file.write(struct.pack(f"<{2 * len(tokens)}i", *tokens, *labels))


@unittest.skipUnless(has_transformers(), f"{PYTHON} has no Transformers")
class Transformers(test_saved_folder.FolderTest):
    def check(self, folder, *options):
        result = subprocess.run([PYTHON, CHECK, folder, *options], capture_output=True, text=True,
                                check=False, timeout=240)
        self.assertEqual(result.returncode, 0, result.stdout + result.stderr)
        self.assertIn("same", result.stdout)

    def test_loaded_and_saved_is_the_same_model(self):
        for family in ("llama", "gpt2", "qwen3"):
            with self.subTest(family=family):
                session, reference = self.open(family)
                folder = os.path.join(harness.FOLDER, "same-" + family)
                session.save(folder, weights_only=True)
                again, _ = self.open(family, folder)
                batch = self.batches(reference)[0]
                self.assertEqual(session.forward(*batch).loss_sum, again.forward(*batch).loss_sum)
                self.check(folder, "--logits", os.path.join(harness.FIXTURES, family,
                                                            "reference.safetensors"))

    def test_trained_model_has_the_same_loss_in_transformers(self):
        session, reference = self.open("llama", budget=1 << 20)
        batches = self.batches(reference)
        for _ in range(5):
            calls = [session.forward_backward(*batch) for batch in batches]
            calls.append(session.optim_step(rate=1e-3))
            for call in calls:
                call.result()
        folder = os.path.join(harness.FOLDER, "trained")
        tokens, labels = batches[0]
        answer = session.forward(tokens, labels)
        session.save(folder)
        write_tokens(folder + ".tokens", tokens, labels, 2)
        self.check(folder, "--tokens", folder + ".tokens", "--expect-loss", repr(answer.loss),
                   "--tolerance", str(LOSS_TOLERANCE))

    def test_random_preset_loads_in_transformers(self):
        for preset in ("tiny-llama", "tiny-gpt2", "tiny-qwen3"):
            with self.subTest(preset=preset):
                session = Session(self.daemon, model=plan_pb2.Model(preset=preset))
                self.addCleanup(session.close)
                tokens = text_tokens(session.tokens_per_batch)
                session.step(tokens)
                answer = session.forward(tokens)
                folder = os.path.join(harness.FOLDER, "preset-" + preset)
                session.save(folder)
                write_tokens(folder + ".tokens", tokens, tokens[1:] + tokens[:1], 2)
                self.check(folder, "--tokens", folder + ".tokens", "--expect-loss",
                           repr(answer.loss), "--tolerance", str(LOSS_TOLERANCE))


if __name__ == "__main__":
    harness.main()
