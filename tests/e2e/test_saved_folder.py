#!/usr/bin/python3
"""Folders that Transformers saved, read here: every family of tests/oracle/fixtures gives the loss
and the gradient's norm of its reference."""
import json
import os
import shutil
import struct

import harness
from harness import Daemon, Session
from memferry.v1 import plan_pb2

FAMILIES = sorted(name for name in os.listdir(harness.FIXTURES)
                  if os.path.isfile(os.path.join(harness.FIXTURES, name, "config.json")))
# Of bf16 activations against float32 ones: tests/oracle/README.md.
LOSS_TOLERANCE = 1e-3
NORM_TOLERANCE = 3e-3



def read_safetensors(path):
    """Of each I32 or F32 tensor its values, flat."""
    data = harness.read_bytes(path)
    (length,) = struct.unpack_from("<Q", data)
    header = json.loads(data[8:8 + length])
    tensors = {}
    for name, entry in header.items():
        if entry.get("dtype") in ("I32", "F32") and not name.startswith(("grad.", "weight")):
            begin, end = entry["data_offsets"]
            kind = "i" if entry["dtype"] == "I32" else "f"
            tensors[name] = list(struct.unpack_from(f"<{(end - begin) // 4}{kind}", data,
                                                    8 + length + begin))
    return tensors


class FolderTest(harness.TestCase):
    """A daemon and sessions on fixtures; test_transformers.py uses it too."""

    @classmethod
    def setUpClass(cls):
        cls.daemon = Daemon()

    @classmethod
    def tearDownClass(cls):
        assert cls.daemon.stop() == 0, cls.daemon.text()

    def open(self, family, folder=None, budget=0):
        reference = read_safetensors(
            os.path.join(harness.FIXTURES, family, "reference.safetensors"))
        session = Session(
            self.daemon, budget=budget, micro_batch=2, accumulation=2,
            model=plan_pb2.Model(folder=folder or os.path.join(harness.FIXTURES, family)),
            seq_len=len(reference["input_ids"]) // 4)
        self.addCleanup(session.close)
        return session, reference

    def batches(self, reference):
        """Tokens and labels of each micro-batch."""
        half = len(reference["input_ids"]) // 2
        return [(reference["input_ids"][i:i + half], reference["labels"][i:i + half])
                for i in (0, half)]


class SavedFolder(FolderTest):
    def test_reference_loss_of_every_family(self):
        self.assertGreaterEqual(len(FAMILIES), 6)
        for family in FAMILIES:
            with self.subTest(family=family):
                session, reference = self.open(family)
                for (tokens, labels), loss_sum in zip(self.batches(reference),
                                                      reference["loss_sum"]):
                    answer = session.forward_backward(tokens, labels).result()
                    self.assertEqual(answer.token_count, sum(label >= 0 for label in labels))
                    self.assertLess(abs(answer.loss - loss_sum / answer.token_count),
                                    LOSS_TOLERANCE)
                update = session.optim_step().result()
                self.assertLess(abs(update.loss - reference["loss"][0]), LOSS_TOLERANCE)
                self.assertLess(abs(update.grad_norm / reference["grad_norm"][0] - 1),
                                NORM_TOLERANCE)

    def test_old_form_of_the_config(self):
        folder = os.path.join(harness.FOLDER, "old")
        os.makedirs(folder)
        fixture = os.path.join(harness.FIXTURES, "llama3-rope")
        shutil.copy(os.path.join(fixture, "config.v4.json"), os.path.join(folder, "config.json"))
        shutil.copy(os.path.join(fixture, "model.safetensors"), folder)
        sums = []
        for where in (None, folder):
            session, reference = self.open("llama3-rope", where)
            sums.append(session.forward(*self.batches(reference)[0]).loss_sum)
        self.assertEqual(sums[0], sums[1])


if __name__ == "__main__":
    harness.main()
