#!/usr/bin/env python3
"""Calls libtessera_attention.so (kernels/attention/attention.h) on PyTorch tensors, without copying them.

    from attention import Library
    attention = Library("build/libtessera_attention.so")
    out, lse = attention.forward(q, k, v, causal=True)             # q [B, N, H, D], k and v [B, N, K, D], bf16 or fp32
    dq, dk, dv = attention.backward(q, k, v, out, lse, dout, causal=True)

    python3 attention.py build/libtessera_attention.so             # compares it with PyTorch, on the first GPU
    python3 attention.py build/libtessera_attention.so --dropout 0.1  # what dropout costs, beside PyTorch's kernels
"""

import argparse
import ctypes
import itertools
import math

import torch


class Tensor(ctypes.Structure):  # the structures of attention.h, field by field
    _fields_ = [("data", ctypes.c_void_p), *((name, ctypes.c_int64) for name in ("batch", "row", "head"))]


class Dropout(ctypes.Structure):
    """Of the probabilities: threshold / 256 of them are dropped. `key` is another for each step, `place` (a multiple of
    65536) for each layer; batch 0 counts as sequence `first_sequence`. The backward wants the forward's."""
    _fields_ = [("threshold", ctypes.c_int), ("place", ctypes.c_uint32), ("first_sequence", ctypes.c_uint32),
                ("key", ctypes.c_uint64)]


class Problem(ctypes.Structure):
    _fields_ = [("dtype", ctypes.c_int),
                *((name, ctypes.c_int64) for name in ("batch", "tokens", "heads", "kv_heads")),
                ("head_dim", ctypes.c_int), ("causal", ctypes.c_int), ("scale", ctypes.c_float), ("dropout", Dropout)]


class Forward(ctypes.Structure):
    _fields_ = [("problem", Problem), *((name, Tensor) for name in ("q", "k", "v", "out")),
                ("lse", ctypes.c_void_p)]


class Backward(ctypes.Structure):
    _fields_ = [("problem", Problem), *((name, Tensor) for name in ("q", "k", "v", "out", "dout")),
                ("lse", ctypes.c_void_p), *((name, Tensor) for name in ("dq", "dk", "dv")),
                ("workspace", ctypes.c_void_p), ("workspace_bytes", ctypes.c_size_t), ("deterministic", ctypes.c_int)]


def tensor(x):
    """A view of [batch, tokens, heads, head_dim] with any strides, as long as head_dim is contiguous."""
    assert x.is_cuda and x.dim() == 4 and x.stride(3) == 1, "wanted: [batch, tokens, heads, head_dim] on a GPU"
    return Tensor(x.data_ptr(), *x.stride()[:3])


class Library:
    def __init__(self, path, arch=None):
        """arch: a compute capability times ten, to choose another family of kernels than the device's own."""
        self.functions = ctypes.CDLL(path)
        self.functions.attn_status_text.restype = ctypes.c_char_p
        self.functions.attn_backward_workspace.restype = ctypes.c_size_t
        major, minor = torch.cuda.get_device_capability()
        self.arch = arch or 10 * major + minor

    def forward(self, q, k, v, causal, scale=None, dropout=Dropout()):
        out, lse = torch.empty_like(q), q.new_empty(q.shape[0], q.shape[2], q.shape[1], dtype=torch.float32)
        args = Forward(self._problem(q, k, causal, scale, dropout), *map(tensor, (q, k, v, out)), lse.data_ptr())
        self._call(self.functions.attn_forward, args)
        return out, lse

    def backward(self, q, k, v, out, lse, dout, causal, scale=None, deterministic=True, dropout=Dropout()):
        problem, (dq, dk, dv) = self._problem(q, k, causal, scale, dropout), map(torch.empty_like, (q, k, v))
        size = self.functions.attn_backward_workspace(ctypes.byref(problem), self.arch, int(deterministic))
        workspace = torch.empty(size, dtype=torch.uint8, device=q.device)  # PyTorch aligns to 512 bytes
        args = Backward(problem, *map(tensor, (q, k, v, out, dout)), lse.data_ptr(), *map(tensor, (dq, dk, dv)),
                        workspace.data_ptr(), size, int(deterministic))
        self._call(self.functions.attn_backward, args)
        return dq, dk, dv

    @staticmethod
    def _problem(q, k, causal, scale, dropout):
        dtype = {torch.bfloat16: 0, torch.float32: 1}[q.dtype]
        batch, tokens, heads, head_dim = q.shape
        scale = 1 / math.sqrt(head_dim) if scale is None else scale
        return Problem(dtype, batch, tokens, heads, k.shape[2], head_dim, int(causal), scale, dropout)

    def _call(self, function, args):  # enqueues on PyTorch's stream, and does not wait
        status = function(ctypes.byref(args), self.arch, ctypes.c_void_p(torch.cuda.current_stream().cuda_stream))
        if status:
            raise RuntimeError(self.functions.attn_status_text(status).decode())


# ---- the comparison with PyTorch ----

NAMES = ("out", "dq", "dk", "dv")
LENGTHS = (1, 2, 15, 63, 64, 65, 113, 127, 128, 129, 203, 256, 511, 1000, 1023, 1024, 2047, 4096, 8192)
MOST_ERROR_RATIO = 2  # of ours to that of PyTorch's bf16 attention, on the same inputs
MOST_LSE_ERROR = 1e-5
FP32_FLOOR = 1e-5  # relative to the largest gradient: errors of fp32 sums. At N = 1, PyTorch's dQ and dK are exact


def reference(q, k, v, dout, causal):
    """As the formulas stand, head by head: fp64, or fp32 where N is large. Returns out, dq, dk, dv, lse."""
    batch, tokens, heads, head_dim = q.shape
    group = heads // k.shape[2]
    q, k, v, dout = (x.to(torch.float64 if tokens <= 2048 else torch.float32) for x in (q, k, v, dout))
    out, dq, dk, dv = (torch.zeros_like(x) for x in (q, q, k, v))
    lse = q.new_empty(batch, heads, tokens)
    hidden = torch.ones(tokens, tokens, dtype=torch.bool, device=q.device).triu(1) if causal else None
    scale = 1 / math.sqrt(head_dim)
    for b, h in itertools.product(range(batch), range(heads)):
        qi, ki, vi, doi = q[b, :, h], k[b, :, h // group], v[b, :, h // group], dout[b, :, h]
        scores = qi @ ki.T * scale
        if causal:
            scores.masked_fill_(hidden, -math.inf)
        lse[b, h] = scores.logsumexp(1)
        p = scores.sub_(lse[b, h, :, None]).exp_()
        out[b, :, h] = p @ vi
        dv[b, :, h // group] += p.T @ doi
        ds = p.mul_(doi @ vi.T - (doi * out[b, :, h]).sum(1, keepdim=True)).mul_(scale)
        dq[b, :, h] = ds @ ki
        dk[b, :, h // group] += ds.T @ qi
    return out, dq, dk, dv, lse


def pytorch(q, k, v, dout, causal):
    """PyTorch's own attention in bf16, products, softmax and sums of gradients alike: the yardstick of accuracy."""
    inputs = [x.detach().clone().requires_grad_() for x in (q, k, v)]
    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
        out = torch.nn.functional.scaled_dot_product_attention(
            *(x.transpose(1, 2) for x in inputs), is_causal=causal, enable_gqa=q.shape[2] != k.shape[2]).transpose(1, 2)
    return out, *torch.autograd.grad(out, inputs, dout)


def largest(x):
    return x.abs().max().item()


def compare(attention, tokens, head_dim, causal, group):
    """Returns by name: our error relative to what is allowed. Anything above 1 is wrong."""
    kv_heads = 2 if tokens <= 1024 else 1
    heads, batch = kv_heads * group, 2 if tokens <= 256 else 1
    packed = torch.randn(batch, tokens, heads + 2 * kv_heads, head_dim, device="cuda", dtype=torch.bfloat16)
    q, k, v = packed.split((heads, kv_heads, kv_heads), dim=2)  # views: no copies
    dout = torch.randn_like(q)
    *want, want_lse = reference(q, k, v, dout, causal)
    theirs = [largest(x.double() - y) for x, y in zip(pytorch(q, k, v, dout, causal), want)]
    floors = [FP32_FLOOR * largest(want[0]), *[FP32_FLOOR * max(map(largest, want[1:]))] * 3]
    out, lse = attention.forward(q, k, v, causal)
    worst = {"lse": largest(lse - want_lse) / max(1, largest(want_lse)) / MOST_LSE_ERROR}
    for deterministic in (True, False):
        ours = out, *attention.backward(q, k, v, out, lse, dout, causal, deterministic=deterministic)
        for name, x, y, their_error, floor in zip(NAMES, ours, want, theirs, floors):
            error, allowed = largest(x.double() - y), max(MOST_ERROR_RATIO * their_error, floor)
            share = error / allowed if error == error else math.inf  # NaN is the worst
            worst[name] = max(worst.get(name, 0), share)
    return worst


# ---- what dropout costs ----

def milliseconds(calls, rounds=15):
    """The median of each of several calls, which take turns."""
    times = [[] for _ in calls]
    for _ in range(rounds):
        for call, of_call in zip(calls, times):
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            begin.record()
            call()
            end.record()
            end.synchronize()
            of_call.append(begin.elapsed_time(end))
    return [sorted(of_call)[rounds // 2] for of_call in times]


def pytorch_calls(backend, q, k, v, dout, causal, probability):
    """Forward and backward of one of PyTorch's kernels for attention, on tensors [batch, heads, tokens, head_dim]."""
    def forward():
        with torch.nn.attention.sdpa_kernel(backend):
            return torch.nn.functional.scaled_dot_product_attention(q, k, v, dropout_p=probability, is_causal=causal)
    out = forward()
    return forward, lambda: torch.autograd.grad(out, (q, k, v), dout, retain_graph=True)


def our_calls(attention, q, k, v, dout, causal, probability):
    dropout = Dropout(threshold=round(256 * probability), key=1)
    out, lse = attention.forward(q, k, v, causal, dropout=dropout)
    return (lambda: attention.forward(q, k, v, causal, dropout=dropout),
            lambda: attention.backward(q, k, v, out, lse, dout, causal, dropout=dropout))


def price(attention, probability):
    backends = {"FlashAttention-2": torch.nn.attention.SDPBackend.FLASH_ATTENTION,
                "cuDNN": torch.nn.attention.SDPBackend.CUDNN_ATTENTION}
    print(f"Dropout {probability} on {torch.cuda.get_device_name()}, PyTorch {torch.__version__}, cuDNN "
          f"{torch.backends.cudnn.version()}; milliseconds without, and what dropout adds\n"
          "    N, head dim, mask                         forward           backward               both")
    for tokens, head_dim, causal in itertools.product((1024, 4096), (64, 128), (True, False)):
        shape = 32768 // tokens, tokens, 2048 // head_dim, head_dim
        q, k, v, dout = (torch.randn(shape, device="cuda", dtype=torch.bfloat16) for _ in range(4))
        contenders = {"ours": lambda p: our_calls(attention, q, k, v, dout, causal, p)}
        heads_first = [x.transpose(1, 2).detach().requires_grad_() for x in (q, k, v)]
        for name, backend in backends.items():
            contenders[name] = lambda p, backend=backend: pytorch_calls(backend, *heads_first, dout.transpose(1, 2), causal, p)
        for name, calls_of in contenders.items():
            try:
                without, dropped = calls_of(0.0), calls_of(probability)
            except RuntimeError as error:  # a kernel that this PyTorch does not have
                print(f"{tokens:5} {head_dim:8}   {'causal' if causal else 'full  '}  {name:18} {str(error).splitlines()[0]}")
                continue
            f, b, fd, bd = milliseconds([*without, *dropped])
            print(f"{tokens:5} {head_dim:8}   {'causal' if causal else 'full  '}  {name:18} {f:7.3f} {fd / f - 1:+7.0%}    "
                  f"{b:7.3f} {bd / b - 1:+7.0%}    {f + b:7.3f} {(fd + bd) / (f + b) - 1:+7.0%}", flush=True)


def main():
    parser = argparse.ArgumentParser(description="Compares libtessera_attention.so with PyTorch.")
    parser.add_argument("library")
    parser.add_argument("--arch", type=int, help="compute capability times ten, to choose other kernels than the device's own")
    parser.add_argument("--most-tokens", type=int, default=LENGTHS[-1])
    parser.add_argument("--dropout", type=float, help="instead: time it with and without this share dropped")
    options = parser.parse_args()
    torch.manual_seed(1)
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.backends.cuda.allow_fp16_bf16_reduction_math_sdp(True)  # else "math" computes in fp32, whatever its inputs are
    attention = Library(options.library, options.arch)
    if options.dropout:
        return price(attention, options.dropout)
    print(f"Kernels for arch {attention.arch} on {torch.cuda.get_device_name()}. Errors as a share of what is allowed:\n"
          f"out, dq, dk, dv of {MOST_ERROR_RATIO} times the error of PyTorch's bf16 attention, lse of {MOST_LSE_ERROR}; "
          "the worst over H / K = 1, 2, 4, 8 and both modes.\n"
          "head dim, mask        N     " + "   ".join(f"{name:>5}" for name in (*NAMES, "lse")))
    failed = 0
    for head_dim, causal, tokens in itertools.product((64, 128), (True, False), LENGTHS):
        if tokens > options.most_tokens:
            continue
        cases = [compare(attention, tokens, head_dim, causal, group) for group in (1, 2, 4, 8)]
        worst = {name: max(case[name] for case in cases) for name in (*NAMES, "lse")}
        wrong = max(worst.values()) > 1
        failed += wrong
        print(f"{head_dim:8} {'causal' if causal else 'full  '} {tokens:8}     " +
              "   ".join(f"{x:5.2f}" for x in worst.values()) + ("   WRONG" if wrong else ""), flush=True)
    print("All agree." if not failed else f"{failed} lines are wrong.")
    return 1 if failed else 0


if __name__ == "__main__":
    raise SystemExit(main())
