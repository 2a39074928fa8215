#!/usr/bin/env python3
"""Compares a GGUF file with the folder of gpt-oss in MXFP4 that it was exported from, by llama.cpp's own reader.

    python3 tests/train/export/check_mxfp4_gguf.py FILE FOLDER

FOLDER also has dequantised.safetensors: the experts' matrices as transformers widens them (tests/fixtures/mxfp4). Needs
gguf, numpy and safetensors. Exits with 1 at the first difference.
"""
import sys
from pathlib import Path

import gguf
import numpy as np
from gguf.quants import dequantize, quantize
from safetensors.numpy import load_file

file, folder = sys.argv[1], Path(sys.argv[2])
MXFP4, BF16, F32 = (gguf.GGMLQuantizationType[name] for name in ("MXFP4", "BF16", "F32"))
tensors = {tensor.name: tensor for tensor in gguf.GGUFReader(file).tensors}
widened = load_file(folder / "dequantised.safetensors")

compared = set()
for name, value in widened.items():
    block = name.split("layers.")[1].split(".")[0]
    value = value.swapaxes(1, 2)  # [E, out, in]
    parts = {"down": value} if "down_proj" in name else {"gate": value[:, ::2], "up": value[:, 1::2]}
    for part, wanted in parts.items():
        found = tensors[f"blk.{block}.ffn_{part}_exps.weight"]
        compared.add(found.name)
        assert found.tensor_type == MXFP4, f"{found.name} is in {found.tensor_type}"
        assert [int(n) for n in found.shape] == list(wanted.shape[::-1]), f"{found.name} has the shape {found.shape}"
        wanted = np.ascontiguousarray(wanted)
        assert np.array_equal(dequantize(found.data, MXFP4).reshape(wanted.shape), wanted), f"{found.name}: other values"
        plain = wanted + 0.0  # without -0, which gguf does not keep
        again = quantize(np.where(plain == 0, np.float32(0), plain), MXFP4).reshape(-1, 17)
        assert np.array_equal(np.asarray(found.data).reshape(-1, 17)[:, 0], again[:, 0]), f"{found.name}: other scales"
for name, tensor in tensors.items():
    small = tensor.data.ndim == 1 or name.endswith(".bias") or "ffn_gate_inp" in name
    if name not in compared:
        assert tensor.tensor_type == (F32 if small else BF16), f"{name} is in {tensor.tensor_type}"
assert len(compared) == 3 * len(widened) / 2
print(f"{len(compared)} tensors of experts are right")
