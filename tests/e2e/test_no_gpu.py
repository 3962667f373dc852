#!/usr/bin/python3
"""The same programs on a machine without a GPU, a driver or the CUDA module: they start, train on
the host device, and every place that is asked says why no GPU is used."""
import os
import subprocess
import unittest

import harness
from harness import Daemon, Session, text_tokens
from memferry.v1 import hardware_pb2

BUILT = os.path.join(os.environ.get("MEMFERRY_LIB_DIR", os.path.join(harness.BIN, "..", "lib")),
                     "memferry-cuda.so")


class NoGpu(harness.TestCase):
    def serves_and_says(self, module, reason):
        # With a GPU in the machine the driver is told to show none.
        environment = {"MEMFERRY_CUDA_MODULE": module, "CUDA_VISIBLE_DEVICES": ""}
        daemon = Daemon("--device", "auto", environment=environment)
        device = daemon.hardware.GetHardware(hardware_pb2.GetHardwareRequest())
        self.assertEqual(device.hardware.devices[0].kind, "host")
        self.assertIn(reason, device.no_gpu)
        status = daemon.hardware.GetStatus(hardware_pb2.GetStatusRequest())
        self.assertIn(reason, status.no_gpu)
        self.assertIn(reason, " ".join(daemon.cli("status").stdout.split()))
        checks = {check.name: check for check in daemon.hardware.Doctor(
            hardware_pb2.DoctorRequest()).checks}
        self.assertIn(reason, checks["device"].meaning)
        self.assertIn(reason, " ".join(daemon.cli("doctor").stdout.split()))
        self.assertIn(reason, daemon.text())
        session = Session(daemon)
        session.step(text_tokens(session.tokens_per_batch))
        session.close()
        self.assertEqual(daemon.stop(), 0, daemon.text())
        # Who wants a GPU and nothing else is told at once.
        result = subprocess.run(
            [harness.MEMFERRYD, "--device", "cuda", "--home", daemon.home, "--socket",
             daemon.socket], capture_output=True, text=True, check=False, timeout=60,
            env={**os.environ, **environment})
        self.assertNotEqual(result.returncode, 0)
        self.assertIn(reason, result.stderr)

    def test_no_module(self):
        path = os.path.join(harness.FOLDER, "nowhere", "memferry-cuda.so")
        self.serves_and_says(path, path + " is not there")

    def test_module_that_is_none(self):
        path = os.path.join(harness.FOLDER, "memferry-cuda.so")
        with open(path, "w", encoding="utf-8") as file:
            file.write("not a library\n")
        self.serves_and_says(path, "the module cannot be loaded")

    @unittest.skipUnless(os.path.exists(BUILT), "the CUDA module was not built")
    def test_module_without_gpu(self):
        self.serves_and_says(BUILT, "no CUDA device")

    def test_host_as_asked(self):
        daemon = Daemon()
        self.assertIn("setting", daemon.hardware.GetStatus(
            hardware_pb2.GetStatusRequest()).no_gpu)
        self.assertEqual(daemon.stop(), 0, daemon.text())


if __name__ == "__main__":
    harness.main()
