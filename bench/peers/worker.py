#!/usr/bin/env python3
"""One peer, one point, in a process of its own: run.py and capacity.py start it.

    worker.py PEER --folder DIR --text FILE --result FILE --batch N --seq-len N --cap BYTES ...

With --fit it first finds the largest micro-batch that the cap allows with and without activation
checkpointing and takes the faster: trial steps at rate 0, whose moments are cleared again, of 1
and 2 sequences, then of the largest power of two that a straight line through their peaks allows.
Where the answer needs accumulation the result says `again` and the caller starts a worker with it
(DeepSpeed wants to know the accumulation when its engine is made). The result is JSON: status ok,
again, oom (with what to try instead) or error."""
import argparse
import os
import pathlib
import sys
import time
import traceback

FIT_SHARE = 0.93  # of the cap, for a fit by extrapolation; the rest is fragmentation


def read_options():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("peer")
    parser.add_argument("--folder", type=pathlib.Path, required=True)
    parser.add_argument("--text", required=True)
    parser.add_argument("--result", required=True)
    parser.add_argument("--batch", type=int, required=True, help="sequences in one step")
    parser.add_argument("--seq-len", type=int, required=True)
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--warm", type=int, default=3)
    parser.add_argument("--cap", type=int, default=0, help="bytes of device memory; 0 = none")
    parser.add_argument("--clip", type=float, default=1.0)
    parser.add_argument("--micro", type=int, default=0, help="0 = the whole batch")
    parser.add_argument("--checkpointing", type=int, default=1)
    parser.add_argument("--fit", action="store_true")
    parser.add_argument("--limit", type=int, nargs=2, default=[1 << 20, 1 << 20],
                        help="largest micro-batches to try without and with checkpointing")
    options = parser.parse_args()
    options.micro = options.micro or options.batch
    return options


def prepare(options):
    import torch
    os.environ.update(RANK="0", LOCAL_RANK="0", WORLD_SIZE="1", MASTER_ADDR="127.0.0.1")
    os.environ.setdefault("MASTER_PORT", str(20000 + os.getpid() % 20000))
    for name in ("NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME"):
        os.environ.setdefault(name, "lo")  # a machine need not have a network
    torch.manual_seed(17)
    if not torch.cuda.is_available():
        return "cpu"
    torch.cuda.set_device(0)
    if options.cap:
        torch.cuda.set_per_process_memory_fraction(
            min(1.0, options.cap / torch.cuda.get_device_properties(0).total_memory))
    return "cuda"


class Row:
    def __init__(self, options, device):
        import torch
        import training
        self.torch, self.training, self.options, self.device = torch, training, options, device
        with open(options.text, "rb") as file:
            data = bytearray(file.read())
        self.data = torch.frombuffer(data, dtype=torch.uint8).long().to(device)
        self.peer = training.PEERS[options.peer](options, device)
        self.trying = None
        self.memory = options.cap or (
            torch.cuda.get_device_properties(0).total_memory if device == "cuda" else 1 << 40)

    def sync(self):
        if self.device == "cuda":
            self.torch.cuda.synchronize()

    def timed(self, batches):
        self.sync()
        start = time.perf_counter()
        loss = self.peer.step(batches)
        self.sync()
        return loss.item(), time.perf_counter() - start

    def trial(self, micro, checkpointing):
        """Peak bytes and seconds of a step of `micro` sequences."""
        self.trying = (micro, checkpointing)
        self.peer.set_checkpointing(checkpointing)
        if self.device == "cuda":
            self.torch.cuda.empty_cache()
            self.torch.cuda.reset_peak_memory_stats()
        tokens = self.training.read_batches(self.options, self.data, 0)[0][:1]
        _, seconds = self.timed([tokens.expand(micro, -1).contiguous()])
        peak = self.torch.cuda.max_memory_allocated() if self.device == "cuda" else 0
        return peak, seconds

    def largest(self, checkpointing):
        """The largest micro-batch that fits, and the seconds of a step with it."""
        options = self.options
        limit = min(options.limit[checkpointing], options.batch)
        if limit == 0:
            return 0, 0.0
        one, seconds = self.trial(1, checkpointing)
        if limit == 1:
            return 1, seconds
        micro, (two, seconds) = 2, self.trial(2, checkpointing)
        while micro * 2 <= limit and options.batch % (micro * 2) == 0 and (
                one + (two - one) * (micro * 2 - 1) <= FIT_SHARE * self.memory):
            micro *= 2
        if micro > 2:
            self.trial(micro, checkpointing)
        return micro, self.trial(micro, checkpointing)[1]

    def fit(self):
        """Sets micro and checkpointing to what is faster; the trials are returned."""
        options, peer = self.options, self.peer
        peer.set_rate(0.0)
        trials = {}
        for checkpointing in (1, 0):
            micro, seconds = self.largest(checkpointing)
            if micro:
                trials[checkpointing] = (seconds / micro * options.batch, micro)
        best = min(trials, key=lambda key: trials[key])
        options.checkpointing, options.micro = best, trials[best][1]
        peer.set_rate(self.training.RATE)
        if peer.resettable:
            peer.clear()
        return {("with" if key else "without") + " checkpointing":
                {"micro": micro, "seconds": seconds} for key, (seconds, micro) in trials.items()}

    def run(self):
        options = self.options
        self.trying = (options.micro, options.checkpointing)
        self.peer.set_checkpointing(bool(options.checkpointing))
        if self.device == "cuda":
            self.torch.cuda.empty_cache()
            self.torch.cuda.reset_peak_memory_stats()
        losses, seconds = [], []
        for step in range(options.steps):
            loss, elapsed = self.timed(
                self.training.read_batches(options, self.data, step))
            losses.append(loss)
            seconds.append(elapsed)
            print(f"step {step + 1}: loss {loss:.4f}, {elapsed * 1e3:.1f} ms", flush=True)
        result = {"status": "ok", "losses": losses, "step_ms": [s * 1e3 for s in seconds],
                  "micro": options.micro, "checkpointing": bool(options.checkpointing)}
        if self.device == "cuda":
            result["device_bytes"] = self.torch.cuda.max_memory_reserved()
        return result


def train(options, device):
    row = None
    try:
        row = Row(options, device)
        fitted = None
        if options.fit:
            whole = options.micro
            fitted = row.fit()
            if options.micro != whole or not row.peer.resettable:
                return {"status": "again", "micro": options.micro, "fitted": fitted,
                        "checkpointing": options.checkpointing}
        result = row.run()
        if fitted:
            result["fitted"] = fitted
        return result
    except Exception as error:  # whatever a peer raises is this row's result, not the end of all
        import torch
        text = f"{type(error).__name__}: {error}"
        if isinstance(error, torch.OutOfMemoryError) or "out of memory" in text.lower():
            return {"status": "oom", "error": text[:300], "trying": row.trying if row else None}
        traceback.print_exc()
        return {"status": "error", "error": text[:500]}


def main():
    options = read_options()
    sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
    device = prepare(options)
    result = train(options, device)
    import training
    training.print_json(options.result, result)
    sys.stdout.flush()
    os._exit(0)  # some peers' threads and processes would wait for ever


if __name__ == "__main__":
    main()
