#!/usr/bin/env python3
"""Trains a model whose training state is several times the device's cap, with every strategy.

    strategies.py --bin DIR [--device cuda|host] [--model llama-3.2-3b] [--device-memory 8GiB]
                  [--host-memory 64GiB] [--micro-batch 4] [--seq-len 1024] [--steps 4]
                  [--effort estimate|measure] [--state 4] [--seconds 170] [--json FILE]
                  [STRATEGY...]

One memferryd under the cap, one `memferry train` for each strategy of DESIGN's plan space; the job
is ended after --steps steps without a checkpoint. Prints a row each: the plan's peak of device
memory, what the daemon reserved meanwhile, what the GPU's driver says the process took more than
before (with the module's own code and the allocator's rounding), host memory, and the step as
predicted and measured. A strategy that does not fit says so; those not begun within --seconds are
named. Exits with 1 when a job fails or its memory is not the plan's, or when the model's state
(14 bytes a parameter) is not --state times the cap.
"""
import argparse
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import time

STRATEGIES = ["auto", "memferry", "stream", "zero_offload", "resident"]
NO_FIT = 5  # the exit code of memferry


def find_text(folder):
    sources = [p for p in sorted(pathlib.Path("/usr/share/common-licenses").glob("*"))
               if p.is_file() and not p.is_symlink()]
    if sum(path.stat().st_size for path in sources) < 100_000:
        sources = sorted(pathlib.Path(os.__file__).parent.glob("*.py"))
    text = folder / "text"
    text.write_bytes(b"".join(path.read_bytes() for path in sources))
    return text


def driver_bytes(pid):
    """What the GPU's driver says the process holds; None where it does not."""
    query = ["nvidia-smi", "--query-compute-apps=pid,used_memory", "--format=csv,noheader,nounits"]
    all_used = ["nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits"]
    try:
        rows = subprocess.run(query, capture_output=True, text=True, check=True).stdout.split("\n")
        own = [row.split(",")[1] for row in rows if row.split(",")[0].strip() == str(pid)]
        if own and own[0].strip().isdigit():
            return int(own[0]) << 20
        # In a container the driver knows no pids: all that is used, on the first GPU.
        return int(subprocess.run(all_used, capture_output=True, text=True,
                                  check=True).stdout.split()[0]) << 20
    except (OSError, ValueError, IndexError, subprocess.CalledProcessError):
        return None


class Daemon:
    def __init__(self, options, folder):
        self.options = options
        self.address = f"unix:{folder}/memferryd.sock"
        self.environment = dict(os.environ, MEMFERRY_HOST=self.address)
        self.process = subprocess.Popen(
            [f"{options.bin}/memferryd", "--device", options.device, "--device-memory",
             options.device_memory, "--socket", self.address, "--home", str(folder / "home")])
        for _ in range(600):
            if os.path.exists(self.address[5:]) or self.process.poll() is not None:
                break
            time.sleep(0.1)
        self.idle_bytes = driver_bytes(self.process.pid)

    def command(self, *words):
        return [f"{self.options.bin}/memferry", *words]

    def json(self, *words):
        result = subprocess.run(self.command(*words, "--format", "json"), env=self.environment,
                                capture_output=True, text=True, check=True)
        return json.loads(result.stdout)

    def stop(self):
        self.process.terminate()
        self.process.wait()


def write_config(options, folder, text, strategy):
    config = {
        "train_micro_batch_size_per_gpu": options.micro_batch, "gradient_accumulation_steps": 1,
        "gradient_clipping": 1.0,
        "optimizer": {"type": "AdamW", "params": {"lr": 1e-4, "weight_decay": 0.1}},
        "memferry": {
            "model": options.model, "data": {"paths": [str(text)], "format": "bytes"},
            "seq_len": options.seq_len, "steps": 100000, "save_steps": 0, "final": "",
            "strategy": strategy, "effort": options.effort, "host_memory": options.host_memory,
            "output": str(folder / f"run-{strategy}")}}
    path = folder / f"{strategy}.json"
    path.write_text(json.dumps(config))
    return path


def watch(options, daemon, job, row):
    """Reads the job's events until enough steps are done, then ends it."""
    for line in job.stdout:
        event = json.loads(line)
        if "session" in event:
            row["id"], row["params"] = event["session"]["id"], event["session"]["params"]
            row["host_bytes"] = event["session"]["host_bytes"]
        elif "plan" in event:
            row["plan_bytes"] = event["plan"]["prediction"]["device_peak_bytes"]
            row["bound_ms"] = event["plan"]["prediction"].get("bound_ns", 0) / 1e6
        elif "warning" in event:
            print("warning:", event["warning"], file=sys.stderr)
        elif "step" in event:
            if len(row["losses"]) == options.steps:
                continue  # on its way to its end
            row["losses"].append(event["step"]["loss"])
            row["steps_ms"].append(event["step"]["step_ms"])
            row["predicted_ms"] = event["step"]["predicted_step_ms"]
            if len(row["losses"]) == options.steps:
                row["reserved_bytes"] = daemon.json("status")["device_reserved_bytes"]
                now = driver_bytes(daemon.process.pid)
                if now is not None and daemon.idle_bytes is not None:
                    row["driver_bytes"] = now - daemon.idle_bytes
                subprocess.run(daemon.command("rm", "session", row["id"], "--discard"), check=True,
                               env=daemon.environment, stdout=subprocess.DEVNULL)


def run(options, daemon, folder, text, strategy):
    row = {"strategy": strategy, "losses": [], "steps_ms": []}
    started = time.monotonic()
    job = subprocess.Popen(
        daemon.command("train", "-c", str(write_config(options, folder, text, strategy)),
                       "--format", "json", "--quiet"),
        env=daemon.environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    watch(options, daemon, job, row)
    row["error"] = job.stderr.read().strip()
    code = job.wait()
    row["seconds"] = time.monotonic() - started
    row["fits"] = code != NO_FIT
    enough = len(row["losses"]) >= options.steps
    row["right"] = not row["fits"] or (enough and row["reserved_bytes"] == row["plan_bytes"])
    return row


def gib(row, key):
    return f"{row[key] / 2**30:.3f}" if key in row else "-"


def show(row):
    if not row["fits"]:
        print(f"| {row['strategy']} | does not fit: {row['error'].splitlines()[0][:150]} |")
    elif "reserved_bytes" not in row:
        print(f"| {row['strategy']} | FAILED: {row['error'][:300]} |")
    else:
        measured = sorted(row["steps_ms"][1:] or row["steps_ms"])
        print("| {} | {} | {} | {} | {} | {:.1f} | {:.1f} | {:.1f} | {:.4f} -> {:.4f} | {:.0f} | "
              "{} |".format(
                  row["strategy"], gib(row, "plan_bytes"), gib(row, "reserved_bytes"),
                  gib(row, "driver_bytes"), gib(row, "host_bytes"), row["bound_ms"],
                  row["predicted_ms"], measured[len(measured) // 2], row["losses"][0],
                  row["losses"][-1], row["seconds"], "equal" if row["right"] else "NOT EQUAL"))
    sys.stdout.flush()


def parse_bytes(text):
    for suffix, factor in (("KiB", 1 << 10), ("MiB", 1 << 20), ("GiB", 1 << 30)):
        if text.endswith(suffix):
            return float(text[:-3]) * factor
    return float(text)


def run_all(options, folder):
    text = find_text(folder)
    daemon = Daemon(options, folder)
    started = time.monotonic()
    rows = []
    print("| strategy | plan GiB | reserved GiB | driver, beyond idle | host GiB | bound ms | "
          "predicted ms | measured ms | loss | seconds | peak |\n|" + " --- |" * 11)
    try:
        for strategy in options.strategies or STRATEGIES:
            if time.monotonic() - started > options.seconds:
                print(f"| {strategy} | not begun: {options.seconds} s were over |")
                continue
            rows.append(run(options, daemon, folder, text, strategy))
            show(rows[-1])
    finally:
        daemon.stop()
    return rows


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("strategies", nargs="*", choices=STRATEGIES + [[]], metavar="STRATEGY")
    parser.add_argument("--bin", required=True, help="folder of memferryd and memferry")
    parser.add_argument("--device", default="cuda", choices=["cuda", "host"])
    parser.add_argument("--model", default="llama-3.2-3b")
    parser.add_argument("--device-memory", default="8GiB")
    parser.add_argument("--host-memory", default="64GiB", help="pinning it takes time")
    parser.add_argument("--micro-batch", type=int, default=4)
    parser.add_argument("--seq-len", type=int, default=1024)
    parser.add_argument("--steps", type=int, default=4)
    parser.add_argument("--effort", default="estimate", choices=["estimate", "measure"])
    parser.add_argument("--state", type=float, default=4, help="times the cap, at least")
    parser.add_argument("--seconds", type=float, default=170)
    parser.add_argument("--json", type=pathlib.Path)
    options = parser.parse_args()
    folder = pathlib.Path(tempfile.mkdtemp(prefix="memferry-strategies-"))
    try:
        rows = run_all(options, folder)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    if options.json:
        options.json.write_text(json.dumps(rows, indent=1))
    trained = [row for row in rows if "params" in row]
    state = max((14 * row["params"] for row in trained), default=0)
    times = state / parse_bytes(options.device_memory)
    last = [row["losses"][-1] for row in trained if row["losses"]]
    spread = max(last, default=0) - min(last, default=0)
    print(f"\n{options.model}: training state {state / 1e9:.2f} GB at 14 bytes a parameter, "
          f"{times:.1f} times the cap of {options.device_memory}; {len(trained)} strategies "
          f"trained, their losses at most {spread:.2g} apart")
    return 0 if trained and times >= options.state and all(row["right"] for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
