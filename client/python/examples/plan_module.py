#!/usr/bin/env python3
"""A plan for the layers of a PyTorch module that your own process trains.

    plan_module.py --device-memory 1GiB                  # a small transformer, defined below
    plan_module.py --transformers FOLDER                 # a model of Transformers, without weights
"""
import argparse

import torch

import memferry


class Layer(torch.nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm_1 = torch.nn.LayerNorm(width)
        self.attention = torch.nn.MultiheadAttention(width, width // 64, batch_first=True)
        self.norm_2 = torch.nn.LayerNorm(width)
        self.up = torch.nn.Linear(width, 4 * width)
        self.down = torch.nn.Linear(4 * width, width)

    def forward(self, x):
        normed = self.norm_1(x)
        x = x + self.attention(normed, normed, normed, need_weights=False)[0]
        return x + self.down(torch.nn.functional.gelu(self.up(self.norm_2(x))))


class Transformer(torch.nn.Module):
    def __init__(self, vocab=32000, width=1024, depth=12):
        super().__init__()
        self.embedding = torch.nn.Embedding(vocab, width)
        self.layers = torch.nn.ModuleList(Layer(width) for _ in range(depth))
        self.norm = torch.nn.LayerNorm(width)
        self.head = torch.nn.Linear(width, vocab, bias=False)

    def forward(self, ids):
        x = self.embedding(ids)
        for layer in self.layers:
            x = layer(x)
        return self.head(self.norm(x))


def load(folder):
    """On the meta device a module has shapes and no memory, so any size will do."""
    with torch.device("meta"):
        if folder is None:
            return Transformer()
        import transformers
        return transformers.AutoModelForCausalLM.from_config(
            transformers.AutoConfig.from_pretrained(folder))


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--transformers", metavar="FOLDER", help="its config.json is read")
    parser.add_argument("--micro-batch", type=int, default=4)
    parser.add_argument("--seq-len", type=int, default=512)
    parser.add_argument("--device-memory", default="0", help="budget, for example 8GiB")
    parser.add_argument("--effort", default="estimate", choices=("cached", "estimate", "measure"))
    args = parser.parse_args()
    model = load(args.transformers)
    ids = torch.zeros(1, 8, dtype=torch.long, device="meta")
    units = memferry.module_units(model, example=[ids])
    with memferry.Client() as client:
        plan = client.plan(units, micro_batch=args.micro_batch, seq_len=args.seq_len,
                           device_memory=args.device_memory, effort=args.effort)
    print(plan.table())


if __name__ == "__main__":
    try:
        main()
    except memferry.MemferryError as error:
        raise SystemExit(f"{type(error).__name__}: {error}")
