"""memferry's rows: a daemon of its own for each, driven by the program as a user would."""
import json
import os
import subprocess
import time

import machine
from training_numbers import BETAS, DECAY, EPS, RATE


def programs(folder):
    """The folder with memferryd and memferry, of a bundle or of a build tree."""
    for place in (folder / "bin", folder):
        if (place / "memferryd").exists() and (place / "memferry").exists():
            return place
    raise SystemExit(f"run.py: no memferryd and memferry in {folder}: name a bundle "
                     "(scripts/bundle DIR) or a build tree with --bin")


class Daemon:
    """memferryd in a session of its own. The store, so measured costs, stays from row to row
    in `home`; the daemon is killed at the end, so a job writes no checkpoint of gigabytes."""

    def __init__(self, settings, log):
        self.settings, self.log = settings, log
        socket = settings.folder / "memferryd.sock"
        socket.unlink(missing_ok=True)
        self.address = f"unix:{socket}"
        bundle = programs(settings.bin)
        self.program = bundle / "memferry"
        libraries = [bundle.parent / "lib", *machine.cuda_folders()]
        self.variables = dict(settings.variables, MEMFERRY_HOST=self.address, NO_COLOR="1")
        self.variables["LD_LIBRARY_PATH"] = ":".join(
            [*map(str, libraries), os.environ.get("LD_LIBRARY_PATH", "")]).rstrip(":")
        self.variables["OPENBLAS_NUM_THREADS"] = "1"
        module = bundle.parent / "lib/memferry-cuda.so"
        if module.exists():
            self.variables["MEMFERRY_CUDA_MODULE"] = str(module)
        command = [bundle / "memferryd", "--device", settings.device, "--socket", self.address,
                   "--home", settings.folder / "home"]
        if settings.host_bytes:  # what the guard leaves, less the daemon's own memory
            left = settings.host_bytes - machine.memory_used()[0]
            command += ["--host-memory", str(max(1 << 20, left * 95 // 100))]
        self.process = machine.start(command, log, self.variables)
        self.watch = machine.Watch(self.process.pid, settings.host_bytes)
        if not machine.wait_for(socket, self.process, 60):
            self.close()
            raise RuntimeError(f"memferryd did not start: {machine.tail(log.name)}")

    def ask(self, *arguments, seconds=120):
        """The program's JSON; None and its error when it says no."""
        command = [str(self.program), *map(str, arguments), "--format", "json", "-q"]
        done = subprocess.run(command, env=self.variables, capture_output=True, text=True,
                              timeout=seconds, stdin=subprocess.DEVNULL)
        if done.returncode != 0:
            return None, " ".join(done.stderr.split())[-300:]
        return json.loads(done.stdout), ""

    def close(self):
        machine.kill_session(self.process.pid)
        self.process.wait()
        return self.watch.finish()


def memory_flags(point):
    flags = ["--seq-len", point.seq_len]
    if point.cap:
        flags += ["--device-memory", point.cap]
    return flags


def best_micro_batch(daemon, point, folder, strategy):
    """The micro-batch whose plan is predicted fastest (no device used): powers of two from the
    whole batch down to an eighth."""
    best, reason, micro = None, "", point.batch
    while micro >= max(1, point.batch // 8):
        answer, reason = daemon.ask("plan", folder, "--effort", "estimate", "--strategy", strategy,
                                    "--micro-batch", micro, "--accumulation", point.batch // micro,
                                    *memory_flags(point))
        if answer:
            step = answer["plan"]["prediction"]["step_ns"]
            if best is None or step < best[0]:
                best = (step, micro)
        if micro % 2:
            break
        micro //= 2
    return (best[1] if best else 0), reason


def write_run(settings, point, folder, strategy, micro, init):
    output = settings.folder / "run"
    subprocess.run(["rm", "-rf", output], check=True)
    config = {
        "train_micro_batch_size_per_gpu": micro,
        "gradient_accumulation_steps": point.batch // micro,
        "gradient_clipping": settings.clip, "bf16": {"enabled": True},
        "optimizer": {"type": "AdamW", "params": {
            "lr": RATE, "betas": list(BETAS), "eps": EPS, "weight_decay": DECAY}},
        "memferry": {
            "model": str(folder), "init": init, "seq_len": point.seq_len, "steps": 1000000,
            "data": {"paths": [str(settings.text)], "format": "bytes", "shuffle": False},
            "strategy": strategy, "output": str(output)},
    }
    if point.cap:
        config["memferry"]["device_memory"] = point.cap
    path = settings.folder / "run.json"
    path.write_text(json.dumps(config))
    return path, output


def read_metrics(output):
    try:
        lines = (output / "metrics.jsonl").read_text().split("\n")[:-1]
    except OSError:
        return []
    return [json.loads(line) for line in lines]


def follow(daemon, path, output, steps, seconds, log):
    """Trains until `steps` steps are in metrics.jsonl. Returns them and what went wrong."""
    job = machine.start([daemon.program, "train", "-c", path], log, daemon.variables)
    end = time.monotonic() + seconds
    reason = ""
    while len(read_metrics(output)) < steps:
        if daemon.watch.full:
            reason = f"killed at {daemon.watch.full / 2**30:.0f} GiB of host memory"
        elif daemon.process.poll() is not None:
            reason = f"memferryd ended with {daemon.process.returncode}: {machine.tail(log.name)}"
        elif job.poll() is not None:
            reason = f"train ended with {job.returncode}: {machine.tail(log.name)}"
        elif time.monotonic() > end:
            reason = f"killed after {seconds:.0f} s"
        if reason:
            break
        time.sleep(0.1)
    machine.kill_session(job.pid)
    job.wait()
    return read_metrics(output)[:steps], reason


def train(settings, point, folder, strategy, init="weights", micro=0):
    """One row. `point` has batch, seq_len, cap; `settings` the rest (run.py)."""
    start = time.monotonic()
    with open(settings.folder / f"ours-{strategy}.log", "wb") as log:
        daemon = Daemon(settings, log)
        try:
            reason = ""
            if not micro:
                micro, reason = best_micro_batch(daemon, point, folder, strategy)
            if not micro:
                return {"status": "oom", "error": reason, **daemon.close()}
            path, output = write_run(settings, point, folder, strategy, micro, init)
            left = settings.limit - (time.monotonic() - start)
            rows, reason = follow(daemon, path, output, point.steps, left, log)
        finally:
            memory = daemon.close()
    result = {"status": "error" if reason else "ok", "error": reason, "micro": micro, **memory}
    if rows:
        plan = machine.read_json(output / "plan.json")
        result.update(
            losses=[row["loss"] for row in rows], step_ms=[row["step_time_ms"] for row in rows],
            predicted_ms=rows[-1]["predicted_step_ms"], device_bytes=rows[-1]["hbm_peak_bytes"],
            pinned_bytes=rows[-1]["pinned_bytes"],
            bound_ms=plan["prediction"]["bound_ns"] / 1e6, plan=plan["id"][:12],
            checkpointing=any(kind == "recompute" for kind in plan["activations"]))
    return result
