#!/usr/bin/env python3
"""The largest model that trains under a cap of device memory and this machine's host memory: a
Llama-type model of fixed width, as deep as completes three steps.

    bench/peers/capacity.py --bin BUNDLE [--wheels DIR] [--caps 8GiB,16GiB,24GiB] [--width 4096]
                            [--rows auto,ds_zero2,ds_zero3] [--tries N] [--json FILE]

memferry's depth is searched by plans that touch no device, then run; DeepSpeed's starts from what
its states need and is bisected by runs. A run that needs too much memory, of either kind, or more
time than --limit counts as failed; the first failure above the answer is printed with it."""
import argparse
import json
import pathlib
import sys
import time

import machine
import ours
import run
import shapes

STEPS = 3
DEPTH_MAX = 480  # MF_BLOCKS_MAX leaves a few for input and output
# Bytes a parameter, to start the search near its end: bf16 weights on the device for ZeRO-2; on the
# host fp32 master, two moments and gradient, for ZeRO-3 also bf16 weights and gradients.
DEVICE_BYTES = {"ds_zero2": 2.2, "ds_super": 2.2}
HOST_BYTES = {"ds_zero2": 18, "ds_zero3": 20, "ds_super": 20}


class Contest:
    """One row under one cap."""

    def __init__(self, settings, row, cap):
        self.settings, self.row, self.cap = settings, row, cap
        self.point = argparse.Namespace(
            text=f"{settings.width}", batch=settings.batch, seq_len=settings.seq_len, cap=cap,
            steps=STEPS)
        self.best, self.failure, self.runs = None, "", 0

    def config(self, depth):
        return shapes.by_depth(self.settings.width, depth)

    def folder(self, depth):
        name = f"width-{self.settings.width}-depth-{depth}"
        return shapes.write_config(self.config(depth), self.settings.folder / "models" / name)

    def train(self, depth):
        """Whether three steps completed; keeps the deepest and the reason of the last failure."""
        if time.monotonic() > self.settings.end:
            self.failure = "--total is used up"
            return False
        self.runs += 1
        if self.row in run.OURS:
            result = ours.train(self.settings, self.point, self.folder(depth), self.row,
                                init="random", micro=self.point.batch)
        else:
            result = run.train_peer(
                self.settings, self.point, self.row, self.folder(depth),
                ["--micro", self.point.batch, "--checkpointing", 1])
        good = result["status"] == "ok" and len(result["losses"]) == STEPS
        print(f"  {self.row}, {self.cap / 2**30:.0f} GiB, depth {depth}: "
              + ("ok, {:.0f} ms a step".format(result["step_ms"][-1]) if good else
                 f"{result['status']}: {result.get('error', '')[:200]}"), flush=True)
        if good and (self.best is None or depth > self.best["depth"]):
            self.best = dict(result, depth=depth, parameters=shapes.parameters(self.config(depth)))
        if not good:
            self.failure = f"depth {depth}: {result.get('error', '')[:200]}"
        return good

    def planned_depth(self):
        """The deepest model for which memferry has a plan, by bisection; no device is used."""
        with open(self.settings.folder / "plans.log", "wb") as log:
            daemon = ours.Daemon(self.settings, log)
            try:
                low, high = 0, DEPTH_MAX + 1
                while high - low > 1:
                    depth = (low + high) // 2
                    answer, reason = daemon.ask(
                        "plan", self.folder(depth), "--effort", "estimate", "--strategy", self.row,
                        "--micro-batch", self.point.batch, *ours.memory_flags(self.point))
                    low, high = (depth, high) if answer else (low, depth)
                    self.failure = self.failure if answer else f"depth {depth}: {reason}"
            finally:
                daemon.close()
        return low

    def first_depth(self):
        """Where DeepSpeed's search begins: what its states need, less some room to compute."""
        layer = shapes.parameters(self.config(2)) - shapes.parameters(self.config(1))
        fixed = shapes.parameters(self.config(1)) - layer
        host = self.settings.host_bytes or machine.memory_used()[1]
        room = 0.9 * host / HOST_BYTES[self.row]
        if self.row in DEVICE_BYTES:
            room = min(room, (self.cap - (1 << 30)) / DEVICE_BYTES[self.row])
        return max(1, min(DEPTH_MAX, int((room - fixed) / layer)))

    def search(self):
        planned = self.row in run.OURS
        depth = self.planned_depth() if planned else self.first_depth()
        low, high = 0, depth + 1 if planned else DEPTH_MAX + 1
        for _ in range(self.settings.tries):
            if depth <= low or depth >= high:
                break
            if self.train(depth):
                low = depth
                depth = min((low + high) // 2, low + max(1, low // 6))
            else:
                high = depth
                depth = (low + high) // 2 if low else max(1, high * 5 // 6)
        return self

    def result(self):
        return dict(self.best or {}, row=self.row, cap_bytes=self.cap, runs=self.runs,
                    failure=self.failure, width=self.settings.width)


def print_table(results):
    print(f"\n{'cap':>6}  {'row':<10}{'depth':>6}{'G params':>10}{'x ds_zero2':>11}{'device':>8}"
          f"{'host':>8}{'B/param':>9}{'step ms':>9}{'runs':>6}  what stopped it")
    for result in results:
        head = f"{result['cap_bytes'] / 2**30:>5.0f}G  {result['row']:<10}"
        if "depth" not in result:
            print(f"{head}  none in {result['runs']} runs: {result['failure']}")
            continue
        base = next((other["parameters"] for other in results if "depth" in other and
                     other["cap_bytes"] == result["cap_bytes"] and other["row"] == "ds_zero2"), 0)
        host = result.get("pinned_bytes", 0) or result["host_used_bytes"]
        ratio = f"{result['parameters'] / base:.2f}" if base else "-"
        print(f"{head}{result['depth']:>6}{result['parameters'] / 1e9:>10.2f}{ratio:>11}"
              f"{result.get('device_bytes', 0) / 2**30:>8.2f}{host / 2**30:>8.1f}"
              f"{host / result['parameters']:>9.1f}{result['step_ms'][-1]:>9.0f}"
              f"{result['runs']:>6}  {result['failure'][:120]}")
    print("host: pinned for memferry, more in use than before the run for the others, GiB")


def read_settings():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--bin", type=pathlib.Path, default=pathlib.Path("build"))
    parser.add_argument("--device", default="cuda", choices=["cuda", "host"])
    parser.add_argument("--wheels", action="append", default=[], metavar="DIR")
    parser.add_argument("--caps", default="8GiB,16GiB,24GiB")
    parser.add_argument("--rows", default="auto,ds_zero2,ds_zero3")
    parser.add_argument("--width", type=int, default=4096, help="a multiple of 512")
    parser.add_argument("--batch", type=int, default=1, help="sequences in a step")
    parser.add_argument("--seq-len", type=int, default=1024)
    parser.add_argument("--clip", type=float, default=1.0)
    parser.add_argument("--tries", type=int, default=4, help="runs of one row under one cap")
    parser.add_argument("--limit", type=float, default=240, help="seconds for one run")
    parser.add_argument("--total", type=float, default=3600, help="seconds for everything")
    parser.add_argument("--host-memory", default="0", help="runs above it count as failed")
    parser.add_argument("--work", type=pathlib.Path, help="folder to keep, as run.py's")
    parser.add_argument("--json", type=pathlib.Path)
    settings = parser.parse_args()
    settings.rows = settings.rows.split(",")
    unknown = [row for row in settings.rows if row not in (*run.OURS, *HOST_BYTES)]
    if unknown or settings.width % 512 or settings.width < 512:
        parser.error(f"no row {unknown[0]}" if unknown else "--width is a multiple of 512")
    settings.host_bytes = run.read_size(settings.host_memory)
    settings.warm = 1
    settings.end = time.monotonic() + settings.total
    return settings


def main():
    settings = read_settings()
    run.prepare(settings)
    results = []
    for cap in map(run.read_size, settings.caps.split(",")):
        for row in settings.rows:
            if row.startswith("ds_") and settings.adam_error:
                print(f"  {row}: {settings.adam_error}")
                continue
            results.append(Contest(settings, row, cap).search().result())
            if settings.json:
                settings.json.write_text(json.dumps(results, indent=1))
    print_table(results)
    return 0 if any("depth" in result for result in results) else 1


if __name__ == "__main__":
    sys.exit(main())
