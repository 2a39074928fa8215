#!/usr/bin/env python3
"""Times PyTorch's attention, FlashAttention-2 and cuDNN, in the shapes that ./bench attention prints.

    python3 docs/examples/attention_yardsticks.py --head-dim 256 --seq-lens 1024,4096,16384 [--group 4] [--fp8]

bf16, causal and full, 32,768 tokens and 2,048 channels as ./bench attention has them. TFLOP/s count what is
computed: 4 D for each pair of a query and a key that it sees, forward, and 2.5 times that, backward.

--fp8 also times cuDNN's forward in e4m3 (pip install nvidia-cudnn-frontend). It takes Q, K and V in e4m3, with
a scale for each tensor: to find the scales and to round is not in its time.

--sparse WINDOW+GLOBAL or WINDOW+GLOBAL+RANDOM instead times PyTorch's FlexAttention, compiled, in the mask that
./bench attention has as blocks:WINDOW+GLOBAL+RANDOM: causal, one sequence, and a block of 128 queries sees its
own and the WINDOW - 1 blocks of keys before it, the first GLOBAL, and RANDOM others.
"""
import argparse
import math
import statistics

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention


def milliseconds(run, repeats):
    for _ in range(3):
        run()
    times = []
    for _ in range(repeats):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        run()
        end.record()
        end.synchronize()
        times.append(begin.elapsed_time(end))
    return statistics.median(times)


def measure(backend, batch, tokens, heads, kv_heads, head_dim, causal, repeats):
    def tensor(of):
        return torch.randn(batch, tokens, of, head_dim, device="cuda", dtype=torch.bfloat16,
                           requires_grad=True).transpose(1, 2)

    q, k, v = tensor(heads), tensor(kv_heads), tensor(kv_heads)
    with sdpa_kernel(backend):
        def forward():
            return scaled_dot_product_attention(q, k, v, is_causal=causal, enable_gqa=kv_heads != heads)

        out = forward()
        gradient = torch.randn_like(out)
        return (milliseconds(forward, repeats),
                milliseconds(lambda: torch.autograd.grad(out, (q, k, v), gradient, retain_graph=True), repeats))


def measure_fp8(batch, tokens, heads, kv_heads, head_dim, causal, repeats):
    import cudnn
    e4m3, fp32 = cudnn.data_type.FP8_E4M3, cudnn.data_type.FLOAT
    graph = cudnn.pygraph(io_data_type=e4m3, intermediate_data_type=fp32, compute_data_type=fp32)
    given = {}  # the graph's inputs and outputs, and their memory

    def attention_input(of):
        values = torch.randn(batch, tokens, of, head_dim, device="cuda").to(torch.float8_e4m3fn).transpose(1, 2)
        node = graph.tensor(dim=list(values.shape), stride=list(values.stride()), data_type=e4m3)
        given[node] = values
        return node

    def scale():
        node = graph.tensor(dim=[1, 1, 1, 1], stride=[1, 1, 1, 1], data_type=fp32)
        given[node] = torch.ones(1, 1, 1, 1, device="cuda")
        return node

    q, k, v = attention_input(heads), attention_input(kv_heads), attention_input(kv_heads)
    scales = {name: scale() for name in ("descale_q", "descale_k", "descale_v", "descale_s", "scale_s", "scale_o")}
    out, _, *largest = graph.sdpa_fp8(q=q, k=k, v=v, **scales, is_inference=True, use_causal_mask=causal,
                                      attn_scale=1 / math.sqrt(head_dim))
    given[out] = torch.empty_like(given[q])
    out.set_output(True).set_dim(list(given[out].shape)).set_stride(list(given[out].stride()))
    for node in largest:
        given[node] = torch.empty(1, 1, 1, 1, device="cuda")
        node.set_output(True).set_dim([1, 1, 1, 1]).set_stride([1, 1, 1, 1]).set_data_type(fp32)
    graph.validate()
    graph.build_operation_graph()
    graph.create_execution_plans([cudnn.heur_mode.A, cudnn.heur_mode.FALLBACK])
    graph.check_support()
    graph.build_plans()
    workspace = torch.empty(graph.get_workspace_size(), device="cuda", dtype=torch.uint8)
    return milliseconds(lambda: graph.execute(given, workspace), repeats)


def measure_sparse(pattern, tokens, heads, kv_heads, head_dim, repeats):
    """Milliseconds of forward and backward, and the visible pairs of a head."""
    from torch.nn.attention.flex_attention import BlockMask, flex_attention

    window, others, *drawn = map(int, pattern.split("+"))
    size, blocks = 128, tokens // 128
    query, key = torch.arange(blocks)[:, None], torch.arange(blocks)[None, :]
    before = (key < query) & ((query - key < window) | (key < others))
    rest = torch.rand(blocks, blocks, generator=torch.Generator().manual_seed(1)).masked_fill_(
        before | (key >= query), -1)
    for count in drawn:
        values, places = rest.topk(count, dim=1)
        before.scatter_(1, places, before.gather(1, places) | (values >= 0))
    # Blocks before the own one are whole. The own one is first in the lists of those with a mask.
    def lists(seen):
        return (seen.sum(1, dtype=torch.int32).cuda()[None, None],
                seen.int().argsort(dim=1, descending=True, stable=True).int().cuda()[None, None])

    mask = BlockMask.from_kv_blocks(*lists(query == key), *lists(before), BLOCK_SIZE=size,
                                    mask_mod=lambda b, h, q, k: q >= k)
    compiled = torch.compile(flex_attention, dynamic=False)
    q, k, v = (torch.randn(1, of, tokens, head_dim, device="cuda", dtype=torch.bfloat16, requires_grad=True)
               for of in (heads, kv_heads, kv_heads))

    def forward():
        return compiled(q, k, v, block_mask=mask, enable_gqa=kv_heads != heads)

    out = forward()
    gradient = torch.randn_like(out)
    pairs = int(before.sum()) * size * size + blocks * size * (size + 1) // 2
    return (milliseconds(forward, repeats),
            milliseconds(lambda: torch.autograd.grad(out, (q, k, v), gradient, retain_graph=True), repeats)), pairs


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--head-dim", type=int, default=256)
    parser.add_argument("--seq-lens", default="1024,4096,16384")
    parser.add_argument("--group", type=int, default=1, help="query heads that share a head of keys")
    parser.add_argument("--tokens", type=int, default=32768)
    parser.add_argument("--channels", type=int, default=2048)
    parser.add_argument("--repeats", type=int, default=11)
    parser.add_argument("--fp8", action="store_true", help="also cuDNN's forward in e4m3")
    parser.add_argument("--sparse", help="FlexAttention over sparse blocks: WINDOW+GLOBAL[+RANDOM]")
    options = parser.parse_args()
    heads = options.channels // options.head_dim
    print(f"PyTorch {torch.__version__}, cuDNN {torch.backends.cudnn.version()}, "
          f"{torch.cuda.get_device_name()}")
    if options.sparse:
        for tokens in map(int, options.seq_lens.split(",")):
            both, pairs = measure_sparse(options.sparse, tokens, heads, heads // options.group, options.head_dim,
                                         options.repeats)
            line = f"1 x {tokens}, {heads} heads of {options.head_dim}, blocks:{options.sparse}, {pairs} visible pairs:"
            for what, ms, flop in zip(("forward", "backward"), both, (4, 10)):
                flops = flop * options.head_dim * heads * pairs
                line += f"  flex {what} {ms:.3f} ms {flops / ms / 1e9:.0f} TFLOP/s"
            print(line, flush=True)
        return
    for causal in (True, False):
        for tokens in map(int, options.seq_lens.split(",")):
            batch = options.tokens // tokens
            pairs = batch * heads * tokens * (tokens + 1 if causal else 2 * tokens) / 2
            line = f"{batch} x {tokens}, {heads} heads of {options.head_dim}, {'causal' if causal else 'full'}:"
            for name, backend in (("flash", SDPBackend.FLASH_ATTENTION), ("cudnn", SDPBackend.CUDNN_ATTENTION)):
                try:
                    both = measure(backend, batch, tokens, heads, heads // options.group, options.head_dim,
                                   causal, options.repeats)
                except RuntimeError as error:
                    line += f"  {name}: {str(error).splitlines()[0][:60]}"
                    continue
                flops = (4 * options.head_dim * pairs, 10 * options.head_dim * pairs)
                line += "".join(f"  {name} {what} {ms:.3f} ms {flop / ms / 1e9:.0f} TFLOP/s"
                                for what, ms, flop in zip(("forward", "backward"), both, flops))
            if options.fp8:
                ms = measure_fp8(batch, tokens, heads, heads // options.group, options.head_dim, causal,
                                 options.repeats)
                line += f"  cudnn fp8 forward {ms:.3f} ms {4 * options.head_dim * pairs / ms / 1e9:.0f} TFLOP/s"
            print(line, flush=True)


if __name__ == "__main__":
    main()
