#!/usr/bin/env python3
"""The CPU's AdamW: memferry's, DeepSpeed's and PyTorch's, at the same sizes and threads, against
the memory's rate measured in the same run.

    bench/peers/adam.py --bin BUNDLE [--wheels DIR] [--device host|cuda] [--json FILE]

All three update fp32 masters and moments. Ours reads a bf16 gradient and keeps the master as bf16
weight and a 16-bit rest, 26 bytes an element; DeepSpeedCPUAdam and torch.optim.AdamW(fused=True)
read an fp32 gradient, as ZeRO-Offload gives it, 28 bytes, and leave the bf16 weight to another
pass. The memory's rate is bench-adam's: STREAM's triad in place or scaling, whichever is faster."""
import argparse
import json
import pathlib
import subprocess
import sys
import tempfile

import machine

MOVED_BYTES = {"memferry": 26, "deepspeed": 28, "torch": 28}

PEER = """
import json, statistics, sys, time, torch
kind, elements, repeats, threads = sys.argv[1], *map(int, sys.argv[2:5])
torch.set_num_threads(threads)
parameter = torch.nn.Parameter(torch.empty(elements).uniform_(-0.02, 0.02))
parameter.grad = torch.empty(elements).uniform_(-1e-3, 1e-3)
settings = dict(lr=1e-4, betas=(0.9, 0.999), eps=1e-8, weight_decay=0.1)
if kind == "deepspeed":
    from deepspeed.ops.adam import DeepSpeedCPUAdam
    optimizer = DeepSpeedCPUAdam([parameter], adamw_mode=True, **settings)
else:
    optimizer = torch.optim.AdamW([parameter], fused=True, **settings)
times = []
for repeat in range(repeats + 2):
    start = time.perf_counter()
    optimizer.step()
    times.append(time.perf_counter() - start)
print("SECONDS", statistics.median(times[2:]))
"""


def find_bench(folder):
    for place in (folder / "tests", folder / "bin", folder):
        if (place / "bench-adam").exists():
            return place / "bench-adam"
    raise SystemExit(f"adam.py: no bench-adam in {folder}; name a build tree, or a bundle made "
                     "with scripts/bundle DIR --tests")


def run_ours(options, folder, variables):
    path = folder / "adam.json"
    command = [find_bench(options.bin), "--device", options.device, "--json", path,
               "--repeats", options.repeats, "--elements", options.elements]
    if options.threads:
        command += ["--threads", options.threads]
    libraries = ":".join(map(str, [options.bin / "lib", *machine.cuda_folders()]))
    ours = dict(variables, LD_LIBRARY_PATH=libraries, OPENBLAS_NUM_THREADS="1")
    module = options.bin / "lib/memferry-cuda.so"
    if module.exists():
        ours["MEMFERRY_CUDA_MODULE"] = str(module.resolve())
    subprocess.run([str(part) for part in command], env=ours, check=True, timeout=options.limit)
    return machine.read_json(path)


def run_peer(options, folder, variables, kind, elements, threads):
    """(seconds, "") or (None, why there is no number)."""
    log = folder / f"adam-{kind}.log"
    log.unlink(missing_ok=True)
    reason, _ = machine.run([sys.executable, "-W", "ignore", "-c", PEER, kind, elements,
                             options.repeats, threads], log,
                            dict(variables, OMP_NUM_THREADS=str(threads)), options.limit, 0)
    found = [line.split()[1] for line in log.read_text().splitlines() if "SECONDS" in line]
    return (float(found[0]), "") if found else (None, f"{reason}: {machine.tail(log)}")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--bin", type=pathlib.Path, default=pathlib.Path("build"))
    parser.add_argument("--device", default="host", choices=["host", "cuda"],
                        help="whose CPU lane: the host device's, or the one beside the GPU")
    parser.add_argument("--wheels", action="append", default=[], metavar="DIR")
    parser.add_argument("--work", type=pathlib.Path, help="as run.py's: one build for both")
    parser.add_argument("--threads", type=int, default=0)
    parser.add_argument("--elements", type=int, default=256 << 20)
    parser.add_argument("--repeats", type=int, default=12)
    parser.add_argument("--limit", type=float, default=120, help="seconds for one number")
    parser.add_argument("--json", type=pathlib.Path)
    options = parser.parse_args()
    folder = options.work or pathlib.Path(tempfile.mkdtemp(prefix="memferry-adam-"))
    folder.mkdir(parents=True, exist_ok=True)
    folder = folder.resolve()
    variables = machine.environment(folder, options.wheels)
    failed = machine.build_cpu_adam(folder, variables)
    if failed:
        print(failed)
    ours = run_ours(options, folder, variables)
    best = max(ours["triad_bytes_per_s"], ours["scale_bytes_per_s"])
    print(f"\n{ours['threads']} threads; memory {best / 1e9:.1f} GB/s; ours moves "
          f"{MOVED_BYTES['memferry']} bytes an "
          f"element, 28 for the others\n"
          f"{'elements':>12}  {'whose':<12}{'ms':>10}{'GB/s':>9}{'of memory':>11}{'x ours':>9}")
    for row in ours["rows"]:
        row["peers"] = {}
        for kind in ("memferry", "deepspeed", "torch"):
            seconds, reason = row["seconds"], ""
            if kind == "deepspeed" and failed:
                continue
            if kind != "memferry":
                seconds, reason = run_peer(options, folder, variables, kind, row["elements"],
                                           ours["threads"])
                row["peers"][kind] = seconds or reason
            if reason or not seconds:
                print(f"{row['elements']:>12}  {kind:<12} {reason}")
                continue
            rate = row["elements"] * MOVED_BYTES[kind] / seconds
            print(f"{row['elements']:>12}  {kind:<12}{seconds * 1e3:>10.3f}{rate / 1e9:>9.1f}"
                  f"{rate / best:>10.1%} {seconds / row['seconds']:>8.2f}", flush=True)
    if options.json:
        options.json.write_text(json.dumps(ours, indent=1))


if __name__ == "__main__":
    main()
