#!/usr/bin/env python3
"""A training loop of your own: text as bytes, a session of memferry, a Hugging Face folder at last.

    fine_tune.py --model FOLDER --text notes.txt --save /absolute/folder
    fine_tune.py --steps 30            # a tiny Llama with random weights, on a licence text
"""
import argparse
import random

import memferry


def options():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="tiny-llama", help="Hugging Face folder or preset")
    parser.add_argument("--text", default="/usr/share/common-licenses/GPL-3", help="file to learn")
    parser.add_argument("--save", help="folder to make, under a root of the daemon")
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--micro-batch", type=int, default=4)
    parser.add_argument("--accumulation", type=int, default=2)
    parser.add_argument("--seq-len", type=int, default=64)
    parser.add_argument("--learning-rate", type=float, default=3e-3)
    parser.add_argument("--device-memory", default="0", help="budget, for example 8GiB")
    parser.add_argument("--seed", type=int, default=1)
    return parser.parse_args()


def micro_batches(text, args):
    """Without end: sequences from random places, and the byte that follows each position."""
    chance = random.Random(args.seed)
    while True:
        starts = [chance.randrange(len(text) - args.seq_len) for _ in range(args.micro_batch)]
        yield ([list(text[start:start + args.seq_len]) for start in starts],
               [list(text[start + 1:start + args.seq_len + 1]) for start in starts])


def show(step):
    print(f"step {step.step:4} | loss {step.loss:.4f} | norm {step.grad_norm:.3f} | "
          f"{step.elapsed_ms:.1f} ms", flush=True)


def train(session, text, args):
    """Keeps the next step on its way while one is carried out, so that the device never waits."""
    source = micro_batches(text, args)
    adam = memferry.Adam(args.learning_rate, weight_decay=0.1, clip_norm=1.0)
    waiting = []
    for _ in range(args.steps):
        for _ in range(args.accumulation):
            session.forward_backward(*next(source))
        waiting.append(session.optim_step(adam))
        if len(waiting) > 1:
            show(waiting.pop(0).result())
    for step in waiting:
        show(step.result())


def main():
    args = options()
    with open(args.text, "rb") as file:
        text = file.read()
    if len(text) <= args.seq_len:
        raise SystemExit(f"{args.text} has {len(text)} bytes, fewer than one sequence")
    with memferry.Client() as client, client.create_session(
            args.model, micro_batch=args.micro_batch, seq_len=args.seq_len,
            accumulation=args.accumulation, device_memory=args.device_memory,
            seed=args.seed) as session:
        print(f"{session.info.model_name}: {session.info.params} parameters, "
              f"{session.info.device_bytes / 2**20:.1f} MiB of device memory")
        train(session, text, args)
        prompt = text[:args.seq_len // 2]
        sample = session.sample(prompt, 32, temperature=0.8, seed=args.seed).result().tokens
        print("sample:", repr(bytes(token for token in sample if token < 256)))
        if args.save:
            saved = session.save_state(args.save).result()
            print(f"saved {saved.bytes} bytes in {saved.path}")


if __name__ == "__main__":
    try:
        main()
    except memferry.MemferryError as error:
        raise SystemExit(f"{type(error).__name__}: {error}")
    except KeyboardInterrupt:
        raise SystemExit("interrupted; the session was closed")
