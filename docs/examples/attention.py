#!/usr/bin/env python3
"""Calls libtessera_attention.so (kernels/attention/attention.h) on PyTorch tensors, without copying them.

    from attention import Library, attend
    library = Library("build/libtessera_attention.so")
    out = attend(library, q, k, v, causal=True)                    # q [B, N, H, D], k and v [B, M, K, D], bf16 or fp32
    out.backward(dout)                                             # like any function of PyTorch's

    documents = library.documents(cumulative, B, N)                # of the B N tokens: 0, the end of each document
    out = attend(library, q, k, v, causal=True, documents=documents)   # each query sees its own document
    out = attend(library, q, k, v, causal=True, window=1024)       # the last 1,024 of those keys
    out = attend(library, q, k, v, causal=True, choice=Choice(512, 8))  # each query chooses 8 blocks of 512 keys
    out = attend(library, q, k, v, causal=True, offset=M - N)      # query 0 stands at key M - N: a chunk of a sequence

    out = library.decode(q, k, v, starts)                          # q [B, 1, H, D]: a new token over caches [B, M, K, D],
                                                                   # of which sequence b sees the keys 0 to starts[b]

    python3 attention.py build/libtessera_attention.so             # compares it with PyTorch, on the first GPU
    python3 attention.py build/libtessera_attention.so --dropout 0.1  # what dropout costs, beside PyTorch's kernels
"""

import argparse
import ctypes
import itertools
import math

import torch


DTYPES = {torch.bfloat16: 0, torch.float32: 1}


class Tensor(ctypes.Structure):  # the structures of attention.h, field by field
    _fields_ = [("data", ctypes.c_void_p), *((name, ctypes.c_int64) for name in ("batch", "row", "head"))]


class Blocks(ctypes.Structure):  # sparse blocks; of size 0: none
    _fields_ = [*((name, ctypes.c_int) for name in ("size", "lists", "query_blocks", "key_blocks")),
                *((name, ctypes.c_void_p) for name in ("begins", "keys", "seen_begins", "queries", "places"))]


class Choice(ctypes.Structure):  # each query sees `count` blocks of `size` tokens, its own among them; size 0: every block
    _fields_ = [("size", ctypes.c_int), ("count", ctypes.c_int)]


class Mask(ctypes.Structure):
    _fields_ = [("causal", ctypes.c_int), ("offset", ctypes.c_int64), ("window", ctypes.c_int64),
                ("documents", ctypes.c_void_p), ("seen_by", ctypes.c_void_p),
                ("query_tokens", ctypes.c_void_p), ("blocks", Blocks), ("choice", Choice)]


class Dropout(ctypes.Structure):
    """Of the probabilities: threshold / 256 of them are dropped. `key` is another for each step, `place` (a multiple of
    65536, plus what head 0 counts as) for each layer; batch 0 counts as sequence `first_sequence`. The backward wants the
    forward's."""
    _fields_ = [("threshold", ctypes.c_int), ("place", ctypes.c_uint32), ("first_sequence", ctypes.c_uint32),
                ("key", ctypes.c_uint64)]


class Problem(ctypes.Structure):
    _fields_ = [("struct_size", ctypes.c_size_t), ("dtype", ctypes.c_int),
                *((name, ctypes.c_int64) for name in ("batch", "tokens", "kv_tokens", "heads", "kv_heads")),
                ("head_dim", ctypes.c_int), ("mask", Mask), ("scale", ctypes.c_float), ("dropout", Dropout),
                ("sinks", ctypes.c_int), ("alibi_heads", ctypes.c_int), ("first_head", ctypes.c_int),
                ("score_cap", ctypes.c_float), ("fp8", ctypes.c_int)]


class Forward(ctypes.Structure):
    _fields_ = [*((name, Tensor) for name in ("q", "k", "v", "out")), ("lse", ctypes.c_void_p),
                ("workspace", ctypes.c_void_p), ("workspace_bytes", ctypes.c_size_t), ("sinks", ctypes.c_void_p),
                ("problem", Problem)]


class DecodeProblem(ctypes.Structure):
    _fields_ = [("struct_size", ctypes.c_size_t), ("dtype", ctypes.c_int),
                *((name, ctypes.c_int64) for name in ("batch", "capacity", "heads", "kv_heads")),
                ("head_dim", ctypes.c_int), ("scale", ctypes.c_float), ("sinks", ctypes.c_int),
                ("alibi_heads", ctypes.c_int), ("first_head", ctypes.c_int),
                ("score_cap", ctypes.c_float), ("blocks", Blocks)]


class Decode(ctypes.Structure):
    _fields_ = [*((name, Tensor) for name in ("q", "k", "v", "out")), ("starts", ctypes.c_void_p),
                ("workspace", ctypes.c_void_p), ("workspace_bytes", ctypes.c_size_t), ("sinks", ctypes.c_void_p),
                ("problem", DecodeProblem)]


class Backward(ctypes.Structure):
    _fields_ = [*((name, Tensor) for name in ("q", "k", "v", "out", "dout")), ("lse", ctypes.c_void_p),
                *((name, Tensor) for name in ("dq", "dk", "dv")), ("workspace", ctypes.c_void_p),
                ("workspace_bytes", ctypes.c_size_t), ("deterministic", ctypes.c_int), ("sinks", ctypes.c_void_p),
                ("dsinks", ctypes.c_void_p), ("add_dsinks", ctypes.c_int), ("problem", Problem)]


def tensor(x):
    """A view of [batch, tokens, heads, head_dim] with any strides, as long as head_dim is contiguous."""
    assert x.is_cuda and x.dim() == 4 and x.stride(3) == 1, "wanted: [batch, tokens, heads, head_dim] on a GPU"
    return Tensor(x.data_ptr(), *x.stride()[:3])


class Library:
    """What a query sees is said by `causal`, and with it `window` (the last so many keys; 0: all) and `offset` (where
    query 0 stands among the keys), and by `documents`, which documents() makes."""

    def __init__(self, path, arch=None):
        """arch: a compute capability times ten, to choose another family of kernels than the device's own."""
        self.functions = ctypes.CDLL(path)
        self.functions.attn_status_text.restype = ctypes.c_char_p
        for workspace in (self.functions.attn_forward_workspace, self.functions.attn_backward_workspace,
                          self.functions.attn_decode_workspace):
            workspace.restype = ctypes.c_size_t
        major, minor = torch.cuda.get_device_capability()
        self.arch = arch or 10 * major + minor

    def forward(self, q, k, v, causal, window=0, offset=0, documents=None, scale=None, dropout=Dropout(),
                choice=Choice()):
        problem = self._problem(q, k, causal, window, offset, documents, scale, dropout, choice)
        out, lse = torch.empty_like(q), q.new_empty(q.shape[0], q.shape[2], q.shape[1], dtype=torch.float32)
        workspace = self._workspace(self.functions.attn_forward_workspace(ctypes.byref(problem), self.arch), q)
        args = Forward(*map(tensor, (q, k, v, out)), lse.data_ptr(), workspace.data_ptr(), len(workspace), None,
                       problem)
        self._check(self.functions.attn_forward(ctypes.byref(args), self.arch, self._stream()))
        return out, lse

    def backward(self, q, k, v, out, lse, dout, causal, window=0, offset=0, documents=None, scale=None,
                 deterministic=True, dropout=Dropout(), choice=Choice()):
        problem = self._problem(q, k, causal, window, offset, documents, scale, dropout, choice)
        dq, dk, dv = map(torch.empty_like, (q, k, v))
        size = self.functions.attn_backward_workspace(ctypes.byref(problem), self.arch)
        workspace = self._workspace(size, q)
        args = Backward(*map(tensor, (q, k, v, out, dout)), lse.data_ptr(), *map(tensor, (dq, dk, dv)),
                        workspace.data_ptr(), len(workspace), int(deterministic), None, None, 0, problem)
        self._check(self.functions.attn_backward(ctypes.byref(args), self.arch, self._stream()))
        return dq, dk, dv

    def decode(self, q, k, v, starts, scale=None):
        """One new query of each sequence, [B, 1, H, D], over caches [B, capacity, K, D]: that of sequence b sees the keys 0
        to starts[b] (int32 on the GPU); a sequence with a negative start is idle, and its row is 0."""
        batch, _, heads, head_dim = q.shape
        assert starts.dtype == torch.int32 and starts.is_cuda and starts.is_contiguous() and starts.shape == (batch,)
        problem = DecodeProblem(ctypes.sizeof(DecodeProblem), DTYPES[q.dtype], batch, k.shape[1], heads, k.shape[2], head_dim,
                                1 / math.sqrt(head_dim) if scale is None else scale)
        out = torch.empty_like(q)
        workspace = self._workspace(self.functions.attn_decode_workspace(ctypes.byref(problem), self.arch), q)
        args = Decode(*map(tensor, (q, k, v, out)), starts.data_ptr(), workspace.data_ptr(), len(workspace), None,
                      problem)
        self._check(self.functions.attn_decode(ctypes.byref(args), self.arch, self._stream()))
        return out

    def documents(self, cumulative, batch, tokens):
        """[batch, tokens, 2]: where the document of each token begins and ends. Document d is the tokens cumulative[d] to
        cumulative[d + 1] - 1 of all batch x tokens, as for the variable lengths of other libraries."""
        cumulative = torch.as_tensor(cumulative, dtype=torch.int32, device="cuda").contiguous()
        documents = torch.empty(batch, tokens, 2, dtype=torch.int32, device="cuda")
        size = ctypes.c_int64
        self._check(self.functions.attn_documents(
            ctypes.c_void_p(cumulative.data_ptr()), size(len(cumulative) - 1), size(batch), size(tokens),
            ctypes.c_void_p(documents.data_ptr()), self._stream()))
        return documents

    @staticmethod
    def _problem(q, k, causal, window, offset, documents, scale, dropout, choice):
        dtype = DTYPES[q.dtype]
        batch, tokens, heads, head_dim = q.shape
        if documents is not None:
            found = tuple(documents.shape), documents.dtype, documents.is_cuda and documents.is_contiguous()
            assert found == ((batch, tokens, 2), torch.int32, True), f"documents: {found}; Library.documents() makes them"
        mask = Mask(int(causal), offset, window, None if documents is None else documents.data_ptr(), choice=choice)
        scale = 1 / math.sqrt(head_dim) if scale is None else scale
        return Problem(ctypes.sizeof(Problem), dtype, batch, tokens, k.shape[1], heads, k.shape[2], head_dim, mask, scale,
                       dropout)

    @staticmethod
    def _workspace(size, q):
        return torch.empty(size, dtype=torch.uint8, device=q.device)  # PyTorch aligns to 512 bytes

    @staticmethod
    def _stream():  # calls are enqueued on PyTorch's, and do not wait
        return ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)

    def _check(self, status):
        if status:
            raise RuntimeError(self.functions.attn_status_text(status).decode())


class Attention(torch.autograd.Function):
    @staticmethod
    def forward(ctx, q, k, v, library, options):
        out, lse = library.forward(q, k, v, **options)
        ctx.save_for_backward(q, k, v, out, lse)
        ctx.library, ctx.options = library, options
        return out

    @staticmethod
    def backward(ctx, dout):
        # Its strides are PyTorch's choice: those of a gradient that was expanded are 0.
        return *ctx.library.backward(*ctx.saved_tensors, dout.contiguous(), **ctx.options), None, None


def attend(library, q, k, v, **options):
    """Attention with gradients; `options` are those of Library.forward()."""
    return Attention.apply(q, k, v, library, options)


# ---- the comparison with PyTorch ----

NAMES = ("out", "dq", "dk", "dv")
LENGTHS = (1, 2, 15, 63, 64, 65, 113, 127, 128, 129, 203, 256, 511, 1000, 1023, 1024, 2047, 4096, 8192)
MASKED_LENGTHS = (1, 2, 65, 129, 203, 511, 1024, 4096)  # for masks other than causal and full
MOST_ERROR_RATIO = 2  # of ours to that of PyTorch's bf16 attention, on the same inputs; see also lost_by_rounding_out()
MOST_LSE_ERROR = 1e-5
FP32_FLOOR = 1e-5  # relative to the largest gradient: errors of fp32 sums. At N = 1, PyTorch's dQ and dK are exact


def lengths_to(total, longest):
    """Cumulative lengths of documents of 1 to `longest` tokens, `total` in all"""
    ends = [0]
    while ends[-1] < total:
        ends.append(min(total, ends[-1] + int(torch.randint(1, longest + 1, ()))))
    return ends


class Case:
    """One of MASKS at a length: how many keys there are, what the library is told, and what a query sees, as a matrix."""

    def __init__(self, name, batch, tokens):
        self.causal = name not in ("full", "fewer keys", "documents, full")
        self.window = {"window": max(1, tokens // 5)}.get(name, 0)
        self.kv_tokens = {"chunk": 2 * tokens + 3, "late start": tokens, "fewer keys": tokens // 2 + 1}.get(name, tokens)
        self.offset = {"chunk": self.kv_tokens - tokens, "late start": -(tokens // 3)}.get(name, 0)
        self.cumulative = lengths_to(batch * tokens, max(1, tokens // 3)) if "documents" in name else None
        self.plain = name in ("causal", "full")
        self.batch, self.tokens = batch, tokens

    def options(self, library):
        documents = None if self.cumulative is None else library.documents(self.cumulative, self.batch, self.tokens)
        return {"causal": self.causal, "window": self.window, "offset": self.offset, "documents": documents}

    def seen(self):
        """[batch, queries, keys]: whether the query sees the key"""
        query = torch.arange(self.tokens, device="cuda")[:, None]
        key = torch.arange(self.kv_tokens, device="cuda")[None]
        seen = torch.ones(self.batch, self.tokens, self.kv_tokens, dtype=torch.bool, device="cuda")
        if self.causal:
            seen &= key <= query + self.offset
        if self.window:
            seen &= key > query + self.offset - self.window
        if self.cumulative is not None:
            token = torch.arange(self.batch * self.tokens, device="cuda")
            ends = torch.tensor(self.cumulative[1:], device="cuda")
            document = torch.searchsorted(ends, token, right=True).view(self.batch, self.tokens)
            seen &= document[:, :, None] == document[:, None]
        return seen


MASKS = ("causal", "full", "window", "chunk", "late start", "fewer keys", "documents", "documents, full")


def reference(q, k, v, dout, seen):
    """As the formulas stand, head by head: fp64, or fp32 where N is large. Returns out, dq, dk, dv, lse."""
    batch, tokens, heads, head_dim = q.shape
    group = heads // k.shape[2]
    q, k, v, dout = (x.to(torch.float64 if tokens <= 2048 else torch.float32) for x in (q, k, v, dout))
    out, dq, dk, dv = (torch.zeros_like(x) for x in (q, q, k, v))
    lse = q.new_empty(batch, heads, tokens)
    scale = 1 / math.sqrt(head_dim)
    for b, h in itertools.product(range(batch), range(heads)):
        qi, ki, vi, doi = q[b, :, h], k[b, :, h // group], v[b, :, h // group], dout[b, :, h]
        scores = (qi @ ki.T * scale).masked_fill_(~seen[b], -math.inf)
        lse[b, h] = scores.logsumexp(1)
        # A row that sees no key has LSE -inf; less 0, its scores stay -inf.
        p = scores.sub_(lse[b, h].masked_fill(lse[b, h] == -math.inf, 0)[:, None]).exp_()
        out[b, :, h] = p @ vi
        dv[b, :, h // group] += p.T @ doi
        ds = p.mul_(doi @ vi.T - (doi * out[b, :, h]).sum(1, keepdim=True)).mul_(scale)
        dq[b, :, h] = ds @ ki
        dk[b, :, h // group] += ds.T @ qi
    return out, dq, dk, dv, lse


def pytorch(q, k, v, dout, case, seen):
    """PyTorch's own attention in bf16, products, softmax and sums of gradients alike: the yardstick of accuracy."""
    inputs = [x.detach().clone().requires_grad_() for x in (q, k, v)]
    mask = {"is_causal": case.causal} if case.plain else {"attn_mask": seen[:, None]}
    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
        out = torch.nn.functional.scaled_dot_product_attention(
            *(x.transpose(1, 2) for x in inputs), **mask, enable_gqa=q.shape[2] != k.shape[2]).transpose(1, 2)
    return out, *torch.autograd.grad(out, inputs, dout)


def lost_by_rounding_out(q, k, out, dout, seen, want_out, want_lse):
    """What dQ and dK lose since the backward reads `out` in bf16, as FlashAttention's does: dS = P (dP - rowsum(dO o out)).
    The two terms of a query with two keys may be nearly equal, and PyTorch, which keeps P, loses nothing there."""
    lost = torch.zeros_like(q, dtype=torch.float64), torch.zeros_like(k, dtype=torch.float64)
    q, k, out, dout = (x.detach().double() for x in (q, k, out, dout))
    group, scale = q.shape[2] // k.shape[2], 1 / math.sqrt(q.shape[3])
    for b, h in itertools.product(range(q.shape[0]), range(q.shape[2])):
        ki = k[b, :, h // group]
        p = (q[b, :, h] @ ki.T * scale - want_lse[b, h][:, None]).masked_fill(~seen[b], -math.inf).exp()
        ds = p * (dout[b, :, h] * (want_out[b, :, h] - out[b, :, h])).sum(1, keepdim=True) * scale
        lost[0][b, :, h] = ds @ ki
        lost[1][b, :, h // group] += ds.T @ q[b, :, h]
    return map(largest, lost)


def pytorch_forward(q, k, v, seen):
    """The same of one query over a cache"""
    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
        return torch.nn.functional.scaled_dot_product_attention(
            *(x.transpose(1, 2) for x in (q, k, v)), attn_mask=seen, enable_gqa=q.shape[2] != k.shape[2]).transpose(1, 2)


def largest(x):
    return x.abs().max().item()


def log_sum_exp_error(lse, want):
    """Relative to the largest, or to 1. Rows that see no key have -inf in both."""
    empty = want == -math.inf
    if not torch.equal(empty, lse == -math.inf):
        return math.inf
    lse, want = (x.masked_fill(empty, 0) for x in (lse, want))
    return largest(lse - want) / max(1, largest(want))


def compare(library, tokens, head_dim, mask, group):
    """Returns by name: our error relative to what is allowed. Anything above 1 is wrong."""
    kv_heads = 2 if tokens <= 1024 else 1
    heads, batch = kv_heads * group, 2 if tokens <= 256 else 1
    case = Case(mask, batch, tokens)
    longest = max(tokens, case.kv_tokens)
    packed = torch.randn(batch, longest, heads + 2 * kv_heads, head_dim, device="cuda", dtype=torch.bfloat16)
    q, k, v = packed.split((heads, kv_heads, kv_heads), dim=2)  # views: no copies
    q, k, v = (x.detach().requires_grad_() for x in (q[:, :tokens], k[:, :case.kv_tokens], v[:, :case.kv_tokens]))
    dout, seen, options = torch.randn_like(q), case.seen(), case.options(library)
    with torch.no_grad():
        *want, want_lse = reference(q, k, v, dout, seen)
    theirs = [largest(x.double() - y) for x, y in zip(pytorch(q, k, v, dout, case, seen), want)]
    floors = [FP32_FLOOR * largest(want[0]), *[FP32_FLOOR * max(map(largest, want[1:]))] * 3]
    out, lse = library.forward(q, k, v, **options)
    if seen.sum(-1).max() <= 2:
        for i, lost in enumerate(lost_by_rounding_out(q, k, out, dout, seen, want[0], want_lse), 1):
            theirs[i] += lost
    worst = {"lse": log_sum_exp_error(lse, want_lse) / MOST_LSE_ERROR}
    through_pytorch = attend(library, q, k, v, **options)
    for ours in ((through_pytorch, *torch.autograd.grad(through_pytorch, (q, k, v), dout)),
                 (out, *library.backward(q, k, v, out, lse, dout, **options, deterministic=False))):
        for name, x, y, their_error, floor in zip(NAMES, ours, want, theirs, floors):
            share = largest(x.double() - y) / max(floor, MOST_ERROR_RATIO * their_error)
            worst[name] = max(worst.get(name, 0), share if share == share else math.inf)  # NaN is the worst
    return worst


DECODE_LENGTHS = (1, 2, 31, 33, 127, 1000, 8191)


def compare_decode(library, tokens, head_dim, group):
    """As compare(): a cache of which one sequence is full, one has a key, and one is idle."""
    kv_heads, capacity = 2, tokens + 5
    q = torch.randn(3, 1, kv_heads * group, head_dim, device="cuda", dtype=torch.bfloat16)
    cache = torch.randn(2, 3, capacity, kv_heads, head_dim, device="cuda", dtype=torch.bfloat16)
    starts = torch.tensor([tokens - 1, -1, 0], dtype=torch.int32, device="cuda")
    seen = torch.arange(capacity, device="cuda") <= starts[:, None]  # [3, capacity]
    k, v = cache
    with torch.no_grad():
        want = reference(q, k, v, torch.zeros_like(q), seen[:, None])[0]
        theirs = pytorch_forward(q, k, v, seen[:, None, None])
    theirs[1] = 0  # no key: PyTorch leaves it open
    hidden = ~seen[:, :, None, None]
    ours = library.decode(q, *(x.masked_fill(hidden, math.nan) for x in (k, v)), starts)
    allowed = max(FP32_FLOOR * largest(want), MOST_ERROR_RATIO * largest(theirs.double() - want))
    share = largest(ours.double() - want) / allowed
    return share if share == share else math.inf


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


def our_calls(library, q, k, v, dout, causal, probability):
    dropout = Dropout(threshold=round(256 * probability), key=1)
    out, lse = library.forward(q, k, v, causal, dropout=dropout)
    return (lambda: library.forward(q, k, v, causal, dropout=dropout),
            lambda: library.backward(q, k, v, out, lse, dout, causal, dropout=dropout))


def price(library, probability):
    backends = {"FlashAttention-2": torch.nn.attention.SDPBackend.FLASH_ATTENTION,
                "cuDNN": torch.nn.attention.SDPBackend.CUDNN_ATTENTION}
    print(f"Dropout {probability} on {torch.cuda.get_device_name()}, PyTorch {torch.__version__}, cuDNN "
          f"{torch.backends.cudnn.version()}; milliseconds without, and what dropout adds\n"
          "    N, head dim, mask                         forward           backward               both")
    for tokens, head_dim, causal in itertools.product((1024, 4096), (64, 128), (True, False)):
        shape = 32768 // tokens, tokens, 2048 // head_dim, head_dim
        q, k, v, dout = (torch.randn(shape, device="cuda", dtype=torch.bfloat16) for _ in range(4))
        contenders = {"ours": lambda p: our_calls(library, q, k, v, dout, causal, p)}
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
    library = Library(options.library, options.arch)
    if options.dropout:
        return price(library, options.dropout)
    print(f"Kernels for arch {library.arch} on {torch.cuda.get_device_name()}. Errors as a share of what is allowed:\n"
          f"out, dq, dk, dv of {MOST_ERROR_RATIO} times the error of PyTorch's bf16 attention, lse of {MOST_LSE_ERROR}; "
          "the worst over H / K = 1, 2, 4, 8 and both modes.\n"
          "head dim, mask                 N     " + "   ".join(f"{name:>5}" for name in (*NAMES, "lse")))
    failed = 0
    for head_dim, mask in itertools.product((64, 128), MASKS):
        for tokens in LENGTHS if mask in ("causal", "full") else MASKED_LENGTHS:
            if tokens > options.most_tokens:
                continue
            cases = [compare(library, tokens, head_dim, mask, group) for group in (1, 2, 4, 8)]
            worst = {name: max(case[name] for case in cases) for name in (*NAMES, "lse")}
            wrong = max(worst.values()) > 1
            failed += wrong
            print(f"{head_dim:8} {mask:15} {tokens:8}     " +
                  "   ".join(f"{x:5.2f}" for x in worst.values()) + ("   WRONG" if wrong else ""), flush=True)
    print("head dim, decoding          cached     " + "   ".join(f"H/K {group}" for group in (1, 2, 4, 8)))
    for head_dim, tokens in itertools.product((64, 128), DECODE_LENGTHS):
        if tokens > options.most_tokens:
            continue
        shares = [compare_decode(library, tokens, head_dim, group) for group in (1, 2, 4, 8)]
        wrong = max(shares) > 1
        failed += wrong
        print(f"{head_dim:8} {'':15} {tokens:8}     " + "   ".join(f"{x:5.2f}" for x in shares) +
              ("   WRONG" if wrong else ""), flush=True)
    print("All agree." if not failed else f"{failed} lines are wrong.")
    return 1 if failed else 0


if __name__ == "__main__":
    raise SystemExit(main())
