#!/usr/bin/env python3
"""Compares two builds of libtessera_attention.so: the bits of every family of kernels, and their time in turn.

    python3 tests/same_bits/attention.py BASE/libtessera_attention.so build/libtessera_attention.so

Where the structures of attention.h have changed in between, the base is called by its own docs/examples/attention.py:
name it with --base-python. Needs a GPU and PyTorch. Exits with 1 if a bit differs; times are printed and decide nothing.
"""

import argparse
import importlib.util
import itertools
import pathlib
import statistics
import sys

import torch

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "docs/examples"))
from attention import Library  # noqa: E402

TOKENS = (1, 2, 63, 65, 129, 511, 1000, 2048)


def library_class(python):
    if python is None:
        return Library
    spec = importlib.util.spec_from_file_location("base_attention", python)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.Library


def inputs(dtype, batch, tokens, heads, kv_heads, head_dim):
    make = lambda count: torch.randn(batch, tokens, count, head_dim, device="cuda", dtype=dtype)  # noqa: E731
    return make(heads), make(kv_heads), make(kv_heads), make(heads)


def results(library, q, k, v, dout, causal):
    out, lse = library.forward(q, k, v, causal)
    return {"out": out, "lse": lse,
            **dict(zip(("dq", "dk", "dv"), library.backward(q, k, v, out, lse, dout, causal)))}


def milliseconds(call):
    start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    call()
    stop.record()
    stop.synchronize()
    return start.elapsed_time(stop)


def time_in_turn(libraries, q, k, v, dout, causal):
    saved = libraries[0].forward(q, k, v, causal)
    calls = [(lambda a=a: a.forward(q, k, v, causal), lambda a=a: a.backward(q, k, v, *saved, dout, causal))
             for a in libraries]
    times = [([], []) for _ in libraries]
    for turn in range(13):
        for library, direction in itertools.product(range(len(libraries)), range(2)):
            elapsed = milliseconds(calls[library][direction])
            if turn >= 3:
                times[library][direction].append(elapsed)
    return [[statistics.median(samples) for samples in both] for both in times]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("base")
    parser.add_argument("changed")
    parser.add_argument("--base-python", help="docs/examples/attention.py of the base")
    options = parser.parse_args()
    base_class = library_class(options.base_python)
    torch.manual_seed(1)
    major, minor = torch.cuda.get_device_capability()
    differing = compared = 0
    families = [(torch.bfloat16, 10 * major + minor, (64, 128)), (torch.bfloat16, 80, (64, 128)),
                (torch.float32, 10 * major + minor, (16, 32, 64, 128))]
    for dtype, arch, head_dims in families:
        base, changed = base_class(options.base, arch), Library(options.changed, arch)
        for head_dim, tokens, causal, group in itertools.product(head_dims, TOKENS, (True, False), (1, 4)):
            problem = inputs(dtype, 2, tokens, 2 * group, 2, head_dim)
            before, after = (results(library, *problem, causal) for library in (base, changed))
            for name in before:
                compared += 1
                bits = [x.view(torch.int16 if x.dtype == torch.bfloat16 else torch.int32) for x in (before[name], after[name])]
                if torch.equal(*bits):
                    continue
                differing += 1
                print(f"{name} differs: {dtype}, arch {arch}, head dim {head_dim}, N {tokens}, causal {causal}, group {group}")
    print(f"bits: {compared} results compared, {differing} differ")
    print("dtype     arch  head dim  causal   forward ms: base, changed, ratio   backward ms: base, changed, ratio")
    for dtype, arch, head_dims in families:
        base, changed = base_class(options.base, arch), Library(options.changed, arch)
        for head_dim, causal in itertools.product(head_dims[-2:], (True, False)):
            problem = inputs(dtype, 4, 4096 if dtype == torch.bfloat16 else 1024, 2048 // head_dim, 2048 // head_dim, head_dim)
            (f0, b0), (f1, b1) = time_in_turn((base, changed), *problem, causal)
            print(f"{str(dtype)[6:]:9} {arch:4} {head_dim:9} {causal!s:>7} {f0:13.4f} {f1:9.4f} {f1 / f0:8.4f}"
                  f" {b0:17.4f} {b1:9.4f} {b1 / b0:8.4f}", flush=True)
    return 1 if differing else 0


if __name__ == "__main__":
    raise SystemExit(main())
