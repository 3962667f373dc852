"""PyTorch's scaled_dot_product_attention on the shapes of bench/flash.cu, backend by backend."""

import statistics

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

SHAPES = [
    (8, 1024, 32, 32, 128),
    (8, 1024, 32, 8, 128),
    (2, 4096, 32, 32, 128),
    (2, 4096, 32, 8, 128),
    (1, 16384, 32, 8, 128),
    (8, 1024, 32, 32, 64),
    (8, 1024, 32, 8, 64),
    (2, 4096, 32, 8, 64),
    (16, 512, 32, 8, 128),
]


def median_ms(run, repeats=15):
    for _ in range(3):
        run()
    events = [torch.cuda.Event(enable_timing=True) for _ in range(repeats + 1)]
    events[0].record()
    for event in events[1:]:
        run()
        event.record()
    torch.cuda.synchronize()
    return statistics.median(a.elapsed_time(b) for a, b in zip(events, events[1:]))


def measure(backend, batch, seq_len, heads, kv_heads, head_dim):
    def matrix(count):
        data = torch.randn(batch, seq_len, count, head_dim, device="cuda", dtype=torch.bfloat16)
        return data.transpose(1, 2).requires_grad_()

    q, k, v = matrix(heads), matrix(kv_heads), matrix(kv_heads)
    flops = 2.0 * batch * heads * seq_len * seq_len * head_dim
    with sdpa_kernel(backend):
        def forward():
            return scaled_dot_product_attention(
                q, k, v, is_causal=True, enable_gqa=heads != kv_heads
            )

        out = forward()
        slope = torch.randn_like(out)
        with torch.no_grad():
            first = median_ms(forward)
        second = median_ms(lambda: torch.autograd.grad(out, (q, k, v), slope, retain_graph=True))
    return first, flops / first / 1e9, second, 2.5 * flops / second / 1e9


print(torch.__version__, torch.cuda.get_device_name())
for shape in SHAPES:
    for backend in (SDPBackend.FLASH_ATTENTION, SDPBackend.CUDNN_ATTENTION):
        try:
            row = "%8.3f %8.0f  %10.3f %8.0f" % measure(backend, *shape)
        except RuntimeError as error:
            row = "refused: " + str(error).splitlines()[0][:60]
        print("%3d x %5d, %2d/%-2d x %3d" % shape, "%-16s" % backend.name, row, flush=True)
