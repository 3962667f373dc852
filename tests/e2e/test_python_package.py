#!/usr/bin/python3
"""The Python client as a package: units of a module, jobs, Ctrl-C, its examples, its types, and an
install by pip."""
import importlib.util
import os
import shutil
import signal
import subprocess
import sys
import venv

import harness
from harness import FOLDER, SOURCE, Daemon, wait_for
import memferry

PACKAGE = os.path.join(SOURCE, "client", "python")
FINE_TUNE = os.path.join(PACKAGE, "examples", "fine_tune.py")
STUBS = os.path.join(FOLDER, "stubs")
SHAPE = {"micro_batch": 2, "seq_len": 32, "effort": "estimate"}


def environment(daemon):
    """For a program that uses the client, and what the harness made importable."""
    return {**os.environ, "MEMFERRY_HOST": "unix:" + daemon.socket, "PYTHONPATH": STUBS,
            "PYTHONDONTWRITEBYTECODE": "1"}


class Parameter:
    def __init__(self, *shape):
        self.shape = shape


class Module:
    """What module_units() looks at of a torch.nn.Module; test_module_of_torch has a real one."""

    def __init__(self, own=None, children=None, **attributes):
        self.own, self.children, self.hooks = own or {}, children or {}, {}
        self.order = list(self.children)
        self.__dict__.update(self.own, **attributes)

    def named_modules(self, prefix=""):
        yield prefix, self
        for name, child in self.children.items():
            yield from child.named_modules((prefix + "." if prefix else "") + name)

    def named_parameters(self, recurse):
        assert not recurse
        return self.own.items()

    def register_forward_pre_hook(self, hook):
        self.hooks[hook] = self
        return self

    def remove(self):
        self.hooks.clear()

    def __call__(self, *arguments):
        for hook in self.hooks:
            hook(self, arguments)
        for name in self.order:
            self.children[name](*arguments)


class PythonPackage(harness.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.daemon = Daemon()
        cls.client = memferry.Client("unix:" + cls.daemon.socket)

    @classmethod
    def tearDownClass(cls):
        cls.client.close()
        assert cls.daemon.stop() == 0, cls.daemon.text()

    def test_units_of_a_module(self):
        def linear(rows, columns, bias):
            return Module({"weight": Parameter(rows, columns),
                           "bias": Parameter(rows) if bias else None})

        def layer():
            return Module(children={"norm": Module({"weight": Parameter(16), "bias": None}),
                                    "up": linear(64, 16, True), "down": linear(16, 64, False)})
        head = linear(100, 16, False)
        table = Module({"weight": Parameter(100, 16)}, num_embeddings=100)
        root = Module(children={
            "table": table, "layers": Module(children={"0": layer(), "1": layer()}),
            "head": head})
        units = memferry.module_units(root)
        self.assertEqual([(unit.name, unit.block, unit.rows, unit.columns) for unit in units], [
            ("table", 0, 16, 100), ("layers.0.norm", 0, 16, 1), ("layers.0.up", 0, 64, 16),
            ("layers.0.down", 0, 16, 64), ("layers.1.norm", 1, 16, 1), ("layers.1.up", 1, 64, 16),
            ("layers.1.down", 1, 16, 64), ("head", 1, 100, 16)])
        self.assertEqual([unit.name for unit in units if unit.bias],
                         ["layers.0.up", "layers.1.up"])
        # In the order of a forward, which leaves no hook behind.
        for part in root.children["layers"].children.values():
            part.order = ["up", "norm"]  # "down" is not called: it stays behind "up"
        units = memferry.module_units(root, example=["ids"])
        self.assertEqual([unit.name for unit in units if unit.block == 0],
                         ["table", "layers.0.up", "layers.0.down", "layers.0.norm"])
        self.assertFalse(any(part.hooks for _, part in root.named_modules()))
        plan = self.client.plan(units, **SHAPE)
        self.assertEqual([unit.name for unit in plan.units], [unit.name for unit in units])
        self.assertEqual(plan.units[1].params, 64 * 16 + 64)
        # Parameters that are shared count once, with the product.
        table.weight = table.own["weight"] = head.own["weight"]
        self.assertEqual(len(memferry.module_units(root)), len(units) - 1)
        # Parameters of no known layer are not passed over in silence.
        root.own["token"] = Parameter(1, 1, 16)
        with self.assertRaises(memferry.InvalidError) as caught:
            memferry.module_units(root)
        self.assertIn("token", str(caught.exception))
        self.assertEqual(len(memferry.module_units(root, ignore=["tok*"])), len(units) - 1)

    def test_module_of_torch(self):
        if importlib.util.find_spec("torch") is None:
            self.skipTest("no PyTorch here")
        result = subprocess.run(
            [sys.executable, os.path.join(PACKAGE, "examples", "plan_module.py"),
             "--device-memory", "400MiB"], env=environment(self.daemon), check=True, timeout=120,
            capture_output=True, text=True)
        self.assertIn("layers.*.attention.in_proj", result.stdout)

    def test_job(self):
        config = harness.write_run(os.path.join(FOLDER, "job"), steps=6, final="model")
        events = list(self.client.run(config))
        steps = [event.step for event in events if event.step]
        self.assertEqual([step.step for step in steps], [1, 2, 3, 4, 5, 6])
        self.assertLess(steps[-1].loss, steps[0].loss)
        self.assertEqual(events[-1].finished.state, "finished")
        self.assertEqual([event.plan.model_name for event in events if event.plan], ["tiny-llama"])
        with self.assertRaises(memferry.InvalidError):
            next(self.client.run({"memferry": {"modell": "tiny-llama"}}, base_folder=FOLDER))

    def test_job_outlives_its_reader(self):
        config = harness.write_run(os.path.join(FOLDER, "long"), steps=100000)
        name = ""
        for event in self.client.run(config):
            if event.session:
                name = event.session.id
            if event.step and event.step.step == 3:
                break  # leaves the job running
        self.client.stop_run(name)
        last = list(self.client.watch(name))[-1]
        self.assertEqual(last.finished.state, "stopped")
        self.assertGreaterEqual(last.finished.step, 3)

    def test_fine_tune(self):
        folder = os.path.join(FOLDER, "tuned")
        result = subprocess.run([sys.executable, FINE_TUNE, "--steps", "30", "--save", folder,
                                 "--text", os.path.join(SOURCE, "docs", "PROTOCOL.md")],
                                env=environment(self.daemon), capture_output=True, text=True,
                                timeout=120)
        self.assertEqual(result.returncode, 0, result.stderr)
        losses = [float(line.split("loss ")[1].split()[0])
                  for line in result.stdout.splitlines() if line.startswith("step")]
        self.assertEqual(len(losses), 30)
        self.assertLess(losses[-1], losses[0] - 1, losses)
        self.assertTrue(os.path.exists(os.path.join(folder, "DONE")))

    def test_interrupt_closes_the_session(self):
        program = subprocess.Popen([sys.executable, FINE_TUNE, "--steps", "1000000"],
                                   env=environment(self.daemon), stdout=subprocess.PIPE,
                                   stderr=subprocess.PIPE, text=True,
                                   # Who runs the tests may ignore it, which is inherited.
                                   preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL))
        wait_for(lambda: program.stdout.readline().startswith("step"))
        program.send_signal(signal.SIGINT)
        _, errors = program.communicate(timeout=60)
        self.assertEqual(program.returncode, 1, errors)
        self.assertEqual(errors.strip(), "interrupted; the session was closed")
        self.assertEqual(self.client.list_sessions(), ())

    def test_error_of_an_example_is_one_line(self):
        result = subprocess.run([sys.executable, FINE_TUNE, "--device-memory", "64KiB"],
                                env=environment(self.daemon), capture_output=True, text=True,
                                timeout=120)
        self.assertEqual(result.returncode, 1)
        self.assertRegex(result.stderr, r'\ANoDeviceMemoryError: .*device_memory="\w+"\n\Z')

    def test_types(self):
        mypy = shutil.which("mypy")
        if mypy is None:
            self.skipTest("no mypy here")
        folder = os.path.join(FOLDER, "typed")  # without the stubs that are not the package's
        shutil.copytree(os.path.join(STUBS, "memferry"), os.path.join(folder, "memferry"))
        result = subprocess.run([mypy, "--config-file", os.path.join(PACKAGE, "pyproject.toml"),
                                 "--cache-dir", os.path.join(FOLDER, "mypy"), "-p", "memferry"],
                                cwd=folder, capture_output=True, text=True, timeout=300)
        self.assertEqual(result.returncode, 0, result.stdout + result.stderr)

    def test_package(self):
        """pip install from a checkout, into a fresh environment."""
        checkout = os.path.join(FOLDER, "checkout")
        shutil.copytree(PACKAGE, os.path.join(checkout, "client", "python"),
                        ignore=shutil.ignore_patterns("build", "dist", "*.egg-info", "v1"))
        shutil.copytree(os.path.join(SOURCE, "proto"), os.path.join(checkout, "proto"))
        home = os.path.join(FOLDER, "environment")
        venv.create(home, with_pip=True)
        python = os.path.join(home, "bin", "python")
        pip = subprocess.run([python, "-m", "pip", "install", "--retries", "1", "--timeout", "20",
                              "--disable-pip-version-check",
                              os.path.join(checkout, "client", "python")],
                             capture_output=True, text=True, timeout=400)
        if "No matching distribution" in pip.stderr or "ConnectionError" in pip.stderr:
            self.skipTest("pip reaches no package index here")
        self.assertEqual(pip.returncode, 0, pip.stdout + pip.stderr)
        settings = {**environment(self.daemon), "PYTHONPATH": ""}
        result = subprocess.run([python, FINE_TUNE, "--steps", "3"], env=settings, timeout=120,
                                capture_output=True, text=True)
        self.assertEqual((result.returncode, result.stdout.count("step ")), (0, 3), result.stderr)


if __name__ == "__main__":
    harness.main()
