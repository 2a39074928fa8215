#!/usr/bin/env python3
"""Times training steps of Llama in PyTorch: FSDP2, or FSDP2 with ring attention over the ranks.

    torchrun --nproc-per-node 2 docs/examples/pytorch_training.py --model 8b --sequence-length 8192
    torchrun --nproc-per-node 2 docs/examples/pytorch_training.py --model 1b --sequence-length 131072 --ring

Without --ring each rank has a sequence of its own; with it all ranks share one. Weights are fp32 and computed
with in bf16, AdamW is fused, blocks are compiled (with --ring all but their attention) and recomputed, and the
head goes through the tokens in parts, so that no logits of all tokens exist. Random weights and tokens: the time
does not depend on them.
"""
import argparse
import contextlib
import os
import statistics
import time

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.utils.checkpoint import checkpoint

MODELS = {  # channels, layers, heads, heads of keys, MLP, tied
    "8b": (4096, 32, 32, 8, 14336, False),
    "1b": (2048, 16, 32, 8, 8192, True),
    "tiny": (64, 2, 4, 2, 128, True),
}
VOCABULARY = 128256
HEAD_TOKENS = 4096  # of a part


def rotate(x, cos, sin):
    a, b = x.chunk(2, dim=-1)
    return torch.cat((a * cos - b * sin, b * cos + a * sin), dim=-1).to(x.dtype)


def attention(q, k, v):
    return F.scaled_dot_product_attention(q, k, v, is_causal=True)


class Block(nn.Module):
    def __init__(self, channels, heads, kv_heads, mlp, attend):
        super().__init__()
        self.attend = attend
        self.head_dim, self.heads, self.kv_heads = channels // heads, heads, kv_heads
        self.norm1, self.norm2 = nn.RMSNorm(channels), nn.RMSNorm(channels)
        self.qkv = nn.Linear(channels, (heads + 2 * kv_heads) * self.head_dim, bias=False)
        self.out = nn.Linear(channels, channels, bias=False)
        self.gate_up = nn.Linear(channels, 2 * mlp, bias=False)
        self.down = nn.Linear(mlp, channels, bias=False)

    def forward(self, x, cos, sin):
        batch, tokens, channels = x.shape
        qkv = self.qkv(self.norm1(x)).view(batch, tokens, -1, self.head_dim).transpose(1, 2)
        q, k, v = qkv.split((self.heads, self.kv_heads, self.kv_heads), dim=1)
        q, k = rotate(q, cos, sin), rotate(k, cos, sin)
        repeat = self.heads // self.kv_heads  # the ring takes as many heads of keys as of queries
        k, v = k.repeat_interleave(repeat, 1), v.repeat_interleave(repeat, 1)
        y = self.attend(q, k, v)
        x = x + self.out(y.transpose(1, 2).reshape(batch, tokens, channels))
        gate, up = self.gate_up(self.norm2(x)).chunk(2, dim=-1)
        return x + self.down(F.silu(gate) * up)


class Llama(nn.Module):
    def __init__(self, channels, layers, heads, kv_heads, mlp, tied, attend):
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, channels)
        self.blocks = nn.ModuleList(Block(channels, heads, kv_heads, mlp, attend) for _ in range(layers))
        self.norm = nn.RMSNorm(channels)
        self.head = None if tied else nn.Linear(channels, VOCABULARY, bias=False)
        self.head_dim = channels // heads

    def loss(self, x, targets):
        weight = (self.embedding if self.head is None else self.head).weight
        return F.cross_entropy(F.linear(x, weight).float(), targets, reduction="sum")

    def forward(self, tokens, targets, positions):
        rates = 500000.0 ** (-torch.arange(0, self.head_dim, 2, device=tokens.device) / self.head_dim)
        angles = positions[..., None].float() * rates
        cos, sin = angles.cos()[:, None], angles.sin()[:, None]
        x = self.embedding(tokens)
        for block in self.blocks:
            x = checkpoint(block, x, cos, sin, use_reentrant=False)
        x = self.norm(x).flatten(0, 1)
        losses = [checkpoint(self.loss, part, of, use_reentrant=False)
                  for part, of in zip(x.split(HEAD_TOKENS), targets.flatten().split(HEAD_TOKENS))]
        return sum(losses) / targets.numel()


def main():
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    arguments.add_argument("--model", choices=MODELS, required=True)
    arguments.add_argument("--sequence-length", type=int, required=True)
    arguments.add_argument("--ring", action="store_true", help="one sequence over all ranks")
    arguments.add_argument("--steps", type=int, default=5)
    arguments.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    options = arguments.parse_args()

    rank, device = int(os.environ["LOCAL_RANK"]), options.device
    on_gpu = device == "cuda"
    if on_gpu:
        torch.cuda.set_device(rank)
    dist.init_process_group("nccl" if on_gpu else "gloo")
    mesh = dist.device_mesh.init_device_mesh(device, (dist.get_world_size(),))
    torch.manual_seed(0)
    with torch.device("meta"):
        # the ring exchanges what F.scaled_dot_product_attention is: a compiled call would not notice
        model = Llama(*MODELS[options.model], torch.compiler.disable(attention) if options.ring else attention)
    # the recomputed forward gets its inputs as they are, so the first one must not cast them either
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.bfloat16, cast_forward_inputs=False)
    for block in model.blocks:
        if on_gpu:
            block.compile()
        fully_shard(block, mesh=mesh, mp_policy=policy)
    fully_shard(model, mesh=mesh, mp_policy=policy)
    model.to_empty(device=device)
    for parameter in model.parameters():
        nn.init.ones_(parameter) if parameter.ndim == 1 else nn.init.normal_(parameter, std=0.02)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5, fused=on_gpu)

    length = options.sequence_length
    whole = torch.randint(VOCABULARY, (1, length + 1), device=device)
    positions = torch.arange(length, device=device)[None]
    times = []
    for step in range(options.steps + 2):
        # the ring deals each buffer out to the ranks, in place
        buffers = [whole[:, :-1].clone(), whole[:, 1:].clone(), positions.clone()]
        begin = time.perf_counter()
        shared = contextlib.nullcontext()
        if options.ring:
            from torch.distributed.tensor.experimental import context_parallel
            shared = context_parallel(mesh, buffers=buffers, buffer_seq_dims=[1, 1, 1])
        with shared:
            loss = model(*buffers)
            loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        if on_gpu:
            torch.cuda.synchronize()
        dist.barrier()
        if step >= 2:
            times.append(time.perf_counter() - begin)
    if dist.get_rank() == 0:
        seconds, tokens = statistics.median(times), length * (1 if options.ring else dist.get_world_size())
        memory = f", {torch.cuda.max_memory_allocated() / 2**30:.1f} GiB" if on_gpu else ""
        print(f"PyTorch {torch.__version__}: {seconds * 1e3:.0f} ms a step, {tokens / seconds:,.0f} tokens/s{memory}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
