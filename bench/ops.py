#!/usr/bin/env python3
"""PyTorch's times for the shapes of bench-ops: products, SDPA attention, one Llama-3-8B block in
bf16 with transformers' layer and its best attention. Medians of CUDA events. Needs torch and
transformers."""
import statistics

import torch
import torch.nn.functional as functional

REPEATS = 16
WARM = 8


def median_ms(function):
    for _ in range(WARM):
        function()
    times = []
    for _ in range(REPEATS):
        start = torch.cuda.Event(enable_timing=True)
        end = torch.cuda.Event(enable_timing=True)
        start.record()
        function()
        end.record()
        torch.cuda.synchronize()
        times.append(start.elapsed_time(end))
    return statistics.median(times)


def report(what, milliseconds, flops):
    print(f"torch {what:<38} {milliseconds:9.4f} ms {flops / milliseconds / 1e9:8.1f} TFLOP/s")


def random(*shape):
    return torch.rand(*shape, device="cuda", dtype=torch.float32).sub(0.5).to(torch.bfloat16)


def products(rows, n, k):
    x, w, dy = random(rows, k), random(n, k), random(rows, n)
    flops = 2.0 * rows * n * k
    report(f"x W^T {rows}x{n}x{k}", median_ms(lambda: x @ w.t()), flops)
    report(f"dy W {rows}x{n}x{k}", median_ms(lambda: dy @ w), flops)
    report(f"dy^T x {rows}x{n}x{k}", median_ms(lambda: dy.t() @ x), flops)


def attention(batch, length):
    q = random(batch, 32, length, 128).requires_grad_()
    k = random(batch, 8, length, 128).requires_grad_()
    v = random(batch, 8, length, 128).requires_grad_()
    out = random(batch, 32, length, 128)

    def forward():
        return functional.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)

    flops = 4.0 * batch * length * length / 2 * 4096
    alone = median_ms(forward)
    both = median_ms(lambda: torch.autograd.grad(forward(), (q, k, v), out))
    report(f"attention forward {batch} x {length}", alone, flops)
    report(f"attention backward {batch} x {length}", both - alone, 2.5 * flops)


def block(batch, length):
    from transformers import LlamaConfig
    from transformers.models.llama.modeling_llama import LlamaDecoderLayer, LlamaRotaryEmbedding
    config = LlamaConfig(hidden_size=4096, intermediate_size=14336, num_hidden_layers=1,
                         num_attention_heads=32, num_key_value_heads=8, vocab_size=1024,
                         max_position_embeddings=8192, rope_parameters={
                             "rope_type": "default", "rope_theta": 500000.0})
    config._attn_implementation = "sdpa"
    layer = LlamaDecoderLayer(config, 0).to("cuda", torch.bfloat16)
    x = random(batch, length, 4096).requires_grad_()
    dy = random(batch, length, 4096)
    positions = torch.arange(length, device="cuda")[None]
    angles = LlamaRotaryEmbedding(config).to("cuda")(x, positions)

    def forward():
        out = layer(x, position_ids=positions, position_embeddings=angles)
        return out[0] if isinstance(out, tuple) else out

    def both():
        forward().backward(dy)
        for parameter in layer.parameters():
            parameter.grad = None
        x.grad = None

    with torch.no_grad():
        quiet = median_ms(forward)
    alone = median_ms(forward)
    total = median_ms(both)
    print(f"torch block {batch} x {length}: forward {quiet:.2f} ms (kept for backward {alone:.2f}),"
          f" both {total:.2f} ms")


def main():
    torch.manual_seed(0)
    products(8192, 4096, 4096)
    products(8192, 1024, 4096)
    attention(8, 1024)
    attention(2, 4096)
    block(8, 1024)
    block(2, 4096)


if __name__ == "__main__":
    main()
