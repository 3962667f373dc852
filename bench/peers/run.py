#!/usr/bin/env python3
"""memferry beside DeepSpeed and PyTorch: the same shapes, weights, tokens, batch, precision and cap
of device memory, on this machine's GPU.

    bench/peers/run.py --bin BUNDLE [--wheels DIR] [--json FILE] [--quick | POINT...] [--rows LIST]

POINT is SHAPE:TOKENS:CAP, for example llama-1b:16k:8GiB (cap "none" for all there is). Tokens are
those of one optimizer step, in sequences of --seq-len. --list shows shapes, rows and point sets;
README.md beside this file says what is compared and how it is kept fair."""
import argparse
import concurrent.futures
import json
import pathlib
import statistics
import sys
import tempfile
import time

import machine
import ours
import shapes

OURS = ("auto", "memferry", "stream", "zero_offload")
PEERS = ("ds_zero2", "ds_zero3", "ds_super", "fsdp2", "torchao")
SETS = {
    "quick": ["llama-1b:16k:8GiB"],
    "standard": ["llama-1b:4k:8GiB", "llama-1b:16k:8GiB", "llama-1b:64k:8GiB",
                 "llama-3b:16k:16GiB", "gpt2-xl:16k:8GiB"],
    "all": [f"{shape}:{tokens}:{cap}" for shape in ("llama-1b", "llama-3b", "gpt2-xl")
            for tokens in ("4k", "16k", "64k") for cap in ("8GiB", "16GiB", "24GiB", "none")],
}
QUICK_ROWS = "auto,ds_zero2,zero_offload,ds_zero3,fsdp2"
TRIES = 5  # workers of one row: each after an out-of-memory error tries half the micro-batch


def read_size(text):
    if text in ("none", "all", "0"):
        return 0
    for unit, factor in (("GiB", 1 << 30), ("MiB", 1 << 20)):
        if text.endswith(unit):
            return int(float(text[:-3]) * factor)
    raise SystemExit(f"run.py: {text} is no size; write it as 8GiB or 512MiB")


class Point:
    def __init__(self, text, settings):
        try:
            self.shape, tokens, cap = text.split(":")
            count = int(tokens[:-1]) * 1024 if tokens.endswith("k") else int(tokens)
        except ValueError:
            raise SystemExit(f"run.py: {text} is no point; write SHAPE:TOKENS:CAP") from None
        if self.shape not in shapes.SHAPES:
            raise SystemExit(f"run.py: no shape {self.shape}; there are {', '.join(shapes.SHAPES)}")
        self.text, self.cap = text, read_size(cap)
        self.seq_len, self.steps = settings.seq_len, settings.warm + settings.steps
        self.batch = count // self.seq_len
        self.tokens = self.batch * self.seq_len
        if self.batch < 1:
            raise SystemExit(f"run.py: {text}: fewer tokens than one sequence of {self.seq_len}")


def worker_command(settings, point, peer, folder, extra):
    return [sys.executable, "-W", "ignore", machine.HERE / "worker.py", peer, "--folder", folder,
            "--text", settings.text, "--result", settings.folder / "result.json",
            "--batch", point.batch, "--seq-len", point.seq_len, "--steps", point.steps,
            "--warm", settings.warm, "--cap", point.cap, "--clip", settings.clip, *extra]


def next_try(result, extra, limits):
    """Arguments of the next worker of the row, or None when the result stands."""
    if result["status"] == "again":
        return ["--micro", result["micro"], "--checkpointing", int(result["checkpointing"])]
    if result["status"] != "oom" or not result.get("trying"):
        return None
    micro, checkpointing = result["trying"]
    if "--fit" in extra:
        if micro == 1 and checkpointing:
            return None
        limits[int(checkpointing)] = micro // 2
        return ["--fit", "--limit", *limits]
    if micro > 1:
        return ["--micro", micro // 2, "--checkpointing", int(checkpointing)]
    return None if checkpointing else ["--micro", 1, "--checkpointing", 1]


def train_peer(settings, point, peer, folder, extra=("--fit",)):
    """One row of a peer: a worker, and others while the answer is to try something smaller."""
    path, log = settings.folder / "result.json", settings.folder / f"peer-{peer}.log"
    log.unlink(missing_ok=True)
    end = time.monotonic() + settings.limit
    limits = [1 << 20, 1 << 20]
    fitted, highest, tried = None, {}, 0
    extra = list(extra)
    variables = dict(settings.variables)
    if peer == "ds_super":  # a second process gets the gradients and 80% of the cores
        variables.pop("PYTORCH_CUDA_ALLOC_CONF", None)  # expandable segments cannot be handed over
        variables.pop("PYTORCH_ALLOC_CONF", None)
        cores = int(variables["OMP_NUM_THREADS"])
        variables["OMP_NUM_THREADS"] = str(cores - int(0.2 * cores))
    while True:
        path.unlink(missing_ok=True)
        reason, memory = machine.run(worker_command(settings, point, peer, folder, extra), log,
                                     variables, end - time.monotonic(), settings.host_bytes)
        tried += 1
        highest = {key: max(value, highest.get(key, 0)) for key, value in memory.items()}
        result = machine.read_json(path) or {
            "status": "error", "error": f"{reason or 'no result'}: {machine.tail(log)}"}
        fitted = result.get("fitted", fitted)
        extra = next_try(result, extra, limits)
        if extra is None or tried == TRIES or time.monotonic() > end:
            break
    result.update(highest, fitted=fitted, workers=tried)
    if result["status"] == "again":
        result.update(status="error", error=f"no time left after {tried} workers")
    return result


def measure(settings, point, row, folder):
    start = time.monotonic()
    try:
        if row in OURS:
            result = ours.train(settings, point, folder, row, micro=settings.micro)
        elif row.startswith("ds_") and settings.adam_error:
            result = {"status": "error", "error": settings.adam_error}
        else:
            result = train_peer(settings, point, row, folder)
    except Exception as error:  # a row that breaks must not take the others with it
        result = {"status": "error", "error": f"{type(error).__name__}: {error}"}
    result.update(point=point.text, row=row, tokens=point.tokens, cap_bytes=point.cap,
                  wall_s=time.monotonic() - start)
    times = result.get("step_ms", [])[settings.warm:]
    if times:
        result["median_ms"] = statistics.median(times)
        result["spread_ms"] = [min(times), max(times)]
        result["tokens_per_s"] = point.tokens / result["median_ms"] * 1e3
        result["loss"] = result["losses"][-1]
    return result


def compare(results):
    """Ratios to our default row of the same point, and how far losses are from it."""
    for result in results:
        base = next((other for other in results
                     if other["point"] == result["point"] and other["row"] == "auto"), {})
        if "median_ms" in result and "median_ms" in base:
            result["to_auto"] = result["median_ms"] / base["median_ms"]
            result["loss_difference"] = max(
                abs(a - b) for a, b in zip(result["losses"], base["losses"]))


COLUMNS = (
    ("row", 13, lambda r: r["row"]),
    ("micro", 7, lambda r: f"{r['micro']}{'c' if r.get('checkpointing') else ''}"),
    ("step ms", 9, lambda r: f"{r['median_ms']:.1f}"),
    ("min-max", 15, lambda r: "{:.0f}-{:.0f}".format(*r["spread_ms"])),
    ("tok/s", 8, lambda r: f"{r['tokens_per_s']:.0f}"),
    ("x auto", 7, lambda r: f"{r['to_auto']:.2f}"),
    ("device", 7, lambda r: f"{r['device_bytes'] / 2**30:.2f}"),
    ("gpu", 7, lambda r: f"{r['gpu_used_bytes'] / 2**30:.2f}"),
    ("host", 7, lambda r: f"{r['host_used_bytes'] / 2**30:.1f}"),
    ("bound", 8, lambda r: f"{r['bound_ms']:.1f}"),
    ("plan", 8, lambda r: f"{r['predicted_ms']:.1f}"),
    ("loss", 8, lambda r: f"{r['loss']:.4f}"),
    ("dloss", 7, lambda r: f"{r['loss_difference']:.4f}"),
    ("wall s", 7, lambda r: f"{r['wall_s']:.0f}"),
)


def cell(function, result):
    try:
        return function(result)
    except (KeyError, TypeError):
        return "-"


def print_line(result):
    text = "  ".join(f"{cell(function, result):>{width}}" for _, width, function in COLUMNS)
    if result["status"] != "ok":
        text += f"  {result['status']}: {result.get('error', '')[:300]}"
    print(text, flush=True)


def print_table(results):
    point = None
    for result in results:
        if result["point"] != point:
            point = result["point"]
            print(f"\n{point}: {result['tokens']} tokens a step")
            print("  ".join(f"{name:>{width}}" for name, width, _ in COLUMNS))
        print_line(result)
    print("\nmicro: sequences in one forward and backward, c = activations computed again; device: "
          "GiB taken by the\nallocator (theirs: reserved), gpu: by all of the process as NVML sees "
          "it; host: GiB more in use than before\nthe row; x auto: step time over memferry's "
          "default; dloss: greatest difference of the losses from it")


def read_settings():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("points", nargs="*", metavar="POINT")
    parser.add_argument("--bin", type=pathlib.Path, default=pathlib.Path("build"),
                        help="bundle or build tree with memferryd and memferry")
    parser.add_argument("--device", default="cuda", choices=["cuda", "host"])
    parser.add_argument("--wheels", action="append", default=[], metavar="DIR",
                        help="folder of wheels to use in this run (DeepSpeed), may be repeated")
    parser.add_argument("--json", type=pathlib.Path)
    parser.add_argument("--set", choices=sorted(SETS), help="a set of points")
    parser.add_argument("--quick", action="store_true",
                        help=f"--set quick --rows {QUICK_ROWS} --steps 5 --limit 100 --total 290")
    parser.add_argument("--rows", help="comma-separated; all by default but torchao")
    parser.add_argument("--steps", type=int, default=8, help="steps that count")
    parser.add_argument("--warm", type=int, default=3, help="steps before them")
    parser.add_argument("--seq-len", type=int, default=1024)
    parser.add_argument("--clip", type=float, default=1.0)
    parser.add_argument("--micro", type=int, default=0, help="our micro-batch; 0 = the planner's")
    parser.add_argument("--limit", type=float, default=240, help="seconds for one row")
    parser.add_argument("--total", type=float, default=3600, help="seconds for everything")
    parser.add_argument("--host-memory", default="0", help="rows above it are killed: 118GiB")
    parser.add_argument("--work", type=pathlib.Path, help="folder to keep weights and logs in")
    parser.add_argument("--list", action="store_true")
    settings = parser.parse_args()
    if settings.list:
        print(f"shapes: {', '.join(shapes.SHAPES)}\nrows: {', '.join(OURS + PEERS)}")
        for name, points in SETS.items():
            print(f"{name}: {' '.join(points)}")
        sys.exit(0)
    if settings.quick:
        settings.set, settings.rows = settings.set or "quick", settings.rows or QUICK_ROWS
        settings.steps, settings.limit = 5, min(settings.limit, 100)
        settings.total = min(settings.total, 290)
    settings.points += SETS[settings.set] if settings.set else []
    settings.rows = (settings.rows or ",".join(OURS + PEERS[:-1])).split(",")
    unknown = [row for row in settings.rows if row not in OURS + PEERS]
    if unknown or not settings.points:
        parser.error(f"no row {unknown[0]}; see --list" if unknown else
                     "name points, --quick or --set; see --list")
    settings.points = [Point(text, settings) for text in settings.points]
    settings.host_bytes = read_size(settings.host_memory)
    return settings


def write_weights(settings, shape):
    """In a process of its own, whose memory is gone afterwards."""
    folder = settings.folder / "models" / shape
    log = settings.folder / "weights.log"
    command = ("import pathlib, shapes; "
               f"shapes.write_weights({shape!r}, pathlib.Path({str(folder)!r}))")
    path = f"{machine.HERE}:{settings.variables['PYTHONPATH']}"
    reason, _ = machine.run([sys.executable, "-W", "ignore", "-c", command], log,
                            dict(settings.variables, PYTHONPATH=path), 300, 0)
    if reason:
        raise SystemExit(f"run.py: weights of {shape}: {reason}: {machine.tail(log)}")
    return folder


def prepare(settings, needed=()):
    """Fills what rows need: folder, text, variables, weights of the shapes `needed`, DeepSpeed's
    compiled optimizer."""
    settings.folder = settings.work or pathlib.Path(tempfile.mkdtemp(prefix="memferry-peers-"))
    settings.folder.mkdir(parents=True, exist_ok=True)
    settings.folder = settings.folder.resolve()
    settings.text = settings.folder / "text"
    shapes.write_text(settings.text, 4 << 20)
    settings.variables = machine.environment(settings.folder, settings.wheels)
    start = time.monotonic()
    settings.adam_error = ""
    notes = []
    with concurrent.futures.ThreadPoolExecutor() as pool:  # nothing is timed yet
        waiting = [pool.submit(write_weights, settings, shape) for shape in needed]
        if any(row.startswith("ds_") for row in settings.rows):
            settings.adam_error = machine.build_cpu_adam(settings.folder, settings.variables)
            notes.append(settings.adam_error or "CPUAdam built")
        for future in waiting:
            future.result()
    notes.append(f"ready after {time.monotonic() - start:.0f} s")
    if settings.device == "cuda" and any(row in PEERS for row in settings.rows):
        notes.append(f"allocator {machine.allocator(settings.variables)}")
    print(f"work folder {settings.folder}; {'; '.join(notes)}", flush=True)


def main():
    settings = read_settings()
    end = time.monotonic() + settings.total
    limit = settings.limit
    prepare(settings, {point.shape for point in settings.points})
    results = []
    for point in settings.points:
        folder = settings.folder / "models" / point.shape
        for row in settings.rows:
            settings.limit = min(limit, end - time.monotonic())
            if settings.limit < 10:
                print(f"{point.text} {row}: left out, --total is used up", flush=True)
                continue
            results.append(measure(settings, point, row, folder))
            compare(results)
            print(f"[{point.text}] ", end="")
            print_line(results[-1])
            if settings.json:
                settings.json.write_text(json.dumps(results, indent=1))
    print_table(results)


if __name__ == "__main__":
    main()
