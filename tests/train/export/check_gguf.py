#!/usr/bin/env python3
"""Compares a GGUF file with the folder of Hugging Face that it was exported from, by llama.cpp's own reader.

    python3 tests/train/export/check_gguf.py FILE FOLDER f32|f16|bf16|q8_0 PRE_TOKENIZER

PRE_TOKENIZER is the wanted tokenizer.ggml.pre. Needs gguf, numpy and safetensors. Exits with 1 at the first difference.
"""
import json
import sys
from pathlib import Path

import gguf
import numpy as np
from gguf.quants import dequantize, quantize
from safetensors.numpy import load_file

file, folder, dtype, pre = sys.argv[1], Path(sys.argv[2]), sys.argv[3], sys.argv[4]
reader = gguf.GGUFReader(file)
config = json.loads((folder / "config.json").read_text())
arch = {"gpt_oss": "gpt-oss", "mixtral": "llama", "qwen2_moe": "qwen2moe",
        "qwen3_moe": "qwen3moe"}.get(config["model_type"], config["model_type"])
theirs = load_file(folder / "model.safetensors")
fields = {name: field.contents() for name, field in reader.fields.items() if not name.startswith("GGUF.")}


def expect(name, found, wanted):
    if found != wanted:
        sys.exit(f"{name} is {found!r}, wanted {wanted!r}")


def near(name, found, wanted):
    if abs(found - wanted) > 1e-6 * abs(wanted):
        sys.exit(f"{name} is {found!r}, wanted {wanted!r}")


def take(name):
    if name == "intermediate_size" and "moe_intermediate_size" in config:
        return config["moe_intermediate_size"]
    if name == "head_dim" and name not in config:
        return config["hidden_size"] // config["num_attention_heads"]
    return config.get(name)


# The fields of the model
expect("architecture", fields["general.architecture"], arch)
expect("alignment", reader.alignment, 32)
expect("file_type", fields["general.file_type"], {"f32": 0, "f16": 1, "q8_0": 7, "bf16": 32}[dtype])
gpt2 = arch == "gpt2"
names = (
    {"block_count": "n_layer", "context_length": "n_positions", "embedding_length": "n_embd",
     "feed_forward_length": "n_inner", "attention.head_count": "n_head"}
    if gpt2 else
    {"block_count": "num_hidden_layers", "context_length": "max_position_embeddings",
     "embedding_length": "hidden_size", "feed_forward_length": "intermediate_size",
     "attention.head_count": "num_attention_heads", "attention.head_count_kv": "num_key_value_heads",
     "attention.key_length": "head_dim", "attention.value_length": "head_dim", "rope.dimension_count": "head_dim"}
)
for key, name in names.items():
    wanted = take(name)
    if key == "rope.dimension_count" and config.get("partial_rotary_factor"):
        wanted = int(wanted * config["partial_rotary_factor"])
    expect(key, fields[f"{arch}.{key}"], wanted)
experts = config.get("num_experts", config.get("num_local_experts"))
if experts:
    expect("expert_count", fields[f"{arch}.expert_count"], experts)
    expect("expert_used_count", fields[f"{arch}.expert_used_count"], config["num_experts_per_tok"])
if arch == "qwen2moe":
    expect("shared", fields["qwen2moe.expert_shared_feed_forward_length"], config["shared_expert_intermediate_size"])
if arch == "granitemoe":
    for key, name in (("attention.scale", "attention_multiplier"), ("embedding_scale", "embedding_multiplier"),
                      ("residual_scale", "residual_multiplier"), ("logit_scale", "logits_scaling")):
        near(key, fields[f"granitemoe.{key}"], config[name])
if arch == "gpt-oss":
    expect("sliding_window", fields["gpt-oss.attention.sliding_window"], config["sliding_window"])
    expect("width of experts", fields["gpt-oss.expert_feed_forward_length"], config["intermediate_size"])
if arch == "phi3":  # 0: none
    expect("sliding_window", fields["phi3.attention.sliding_window"], config["sliding_window"] or 0)
epsilon = ("layer_norm_epsilon", "attention.layer_norm_epsilon") if gpt2 else (
    "rms_norm_eps", "attention.layer_norm_rms_epsilon")
near(epsilon[1], fields[f"{arch}.{epsilon[1]}"], config[epsilon[0]])
if not gpt2:
    near("freq_base", fields[f"{arch}.rope.freq_base"], config["rope_theta"])

# The tensors: llama.cpp's own map of names says which is which
blocks = config["n_layer" if gpt2 else "num_hidden_layers"]
architecture = next(a for a, name in gguf.MODEL_ARCH_NAMES.items() if name == arch)
name_map = gguf.get_tensor_name_map(architecture, blocks)
tensors = {t.name: t for t in reader.tensors}
kinds = {"f32": gguf.GGMLQuantizationType.F32, "f16": gguf.GGMLQuantizationType.F16,
         "bf16": gguf.GGMLQuantizationType.BF16, "q8_0": gguf.GGMLQuantizationType.Q8_0}


def neighbours(matrix, heads):  # of llama's q and k
    return matrix.reshape(heads, 2, -1, *matrix.shape[1:]).swapaxes(1, 2).reshape(matrix.shape)


seen = set()
for name in [name for name in theirs if ".experts.0." in name]:  # one tensor for all experts of a block
    merged = name.replace(".experts.0.", ".experts.")
    theirs[merged] = np.stack([theirs.pop(name.replace(".experts.0.", f".experts.{e}.")) for e in range(experts)])
for name in [name for name in theirs if "input_linear" in name]:  # of Granite, whose files have gate and up together
    lead, both = name.replace("block_sparse_moe.input_linear.weight", "mlp.experts."), theirs.pop(name)
    for part, rows in zip(("gate_proj", "up_proj"), np.split(both, 2, axis=1)):
        theirs[f"{lead}{part}.weight"] = rows
    theirs[f"{lead}down_proj.weight"] = theirs.pop(name.replace("input_linear", "output_linear"))
for name in [name for name in theirs if arch == "gpt-oss" and "mlp.experts." in name]:  # [E, in, out] there
    lead, value = name.split("experts.")[0] + "experts.", theirs.pop(name)
    part, kind = ("down_proj", "gate_up_proj")["gate_up" in name], ".bias" if name.endswith("_bias") else ".weight"
    value = value if kind == ".bias" else value.swapaxes(1, 2)
    if part == "down_proj":
        theirs[lead + part + kind] = value
    else:  # rows of gate and up in turn
        theirs[lead + "gate_proj" + kind], theirs[lead + "up_proj" + kind] = value[:, ::2], value[:, 1::2]
for name in [name for name in theirs if name.endswith("self_attn.sinks")]:
    theirs[name + ".weight"] = theirs.pop(name)
for name, value in theirs.items():
    mapped = name_map.get_name(name, try_suffixes=(".weight", ".bias"))
    if mapped is None:
        sys.exit(f"llama.cpp has no name for {name}")
    if gpt2 and value.ndim == 2 and ".h." in name:
        value = value.T
    if name.endswith("shared_expert_gate.weight"):
        value = value[0]
    if arch in ("llama", "granitemoe") and ".q_proj." in name:
        value = neighbours(value, config["num_attention_heads"])
    if arch in ("llama", "granitemoe") and ".k_proj." in name:
        value = neighbours(value, config["num_key_value_heads"])
    found = tensors[mapped]
    seen.add(mapped)
    value = np.ascontiguousarray(value.astype(np.float32))
    in_fp32 = (value.ndim == 1 or mapped.endswith(".bias") or "ffn_gate_inp" in mapped or
               mapped == "position_embd.weight")
    kind = kinds["f32"] if in_fp32 else kinds[dtype]
    expect(f"the type of {mapped}", found.tensor_type, kind)
    expect(f"the shape of {mapped}", [int(d) for d in found.shape], list(reversed(value.shape)))
    wanted = quantize(value, kind)
    if not np.array_equal(np.asarray(found.data).view(np.uint8).ravel(), wanted.view(np.uint8).ravel()):
        sys.exit(f"{mapped} has other bytes than gguf.quants makes")
    error = np.abs(dequantize(found.data, kind).reshape(value.shape) - value)
    if kind == kinds["q8_0"]:
        steps = np.abs(value.reshape(-1, 32)).max(axis=1, keepdims=True) / 127
        assert (error.reshape(-1, 32) <= steps * 0.57).all(), mapped  # half a step, and the scale's rounding
factors = tensors.get("rope_freqs.weight")
scaling = config.get("rope_scaling") or {}
if scaling.get("rope_type") == "llama3":
    head_dim, base = config["head_dim"], config["rope_theta"]
    original = scaling["original_max_position_embeddings"]
    low, high = original / scaling["low_freq_factor"], original / scaling["high_freq_factor"]
    for i, found in enumerate(factors.data):
        wave = 2 * np.pi * base ** (2 * i / head_dim)
        smooth = (original / wave - scaling["low_freq_factor"]) / (scaling["high_freq_factor"] - scaling["low_freq_factor"])
        wanted = 1 if wave < high else scaling["factor"] if wave > low else 1 / ((1 - smooth) / scaling["factor"] + smooth)
        near(f"rope_freqs {i}", float(found), wanted)
    seen.add("rope_freqs.weight")
if scaling.get("type") == "longrope":
    for name, of in (("rope_factors_long.weight", "long_factor"), ("rope_factors_short.weight", "short_factor")):
        expect(name, tensors[name].data.tolist(), np.float32(scaling[of]).tolist())
        seen.add(name)
    original, context = config["original_max_position_embeddings"], config["max_position_embeddings"]
    expect("original context", fields[f"{arch}.rope.scaling.original_context_length"], original)
    wanted = scaling.get("attention_factor", np.sqrt(1 + max(np.log(context / original), 0) / np.log(original)))
    near("attn_factor", fields[f"{arch}.rope.scaling.attn_factor"], wanted)
expect("the tensors", set(tensors), seen)

# The tokenizer
tokenizer = json.loads((folder / "tokenizer.json").read_text())
vocabulary, added = tokenizer["model"]["vocab"], {t["id"]: t for t in tokenizer["added_tokens"]}
expect("tokenizer model", fields["tokenizer.ggml.model"], "gpt2")
expect("pre-tokenizer", fields["tokenizer.ggml.pre"], pre)
expect("number of tokens", len(fields["tokenizer.ggml.tokens"]), config["vocab_size"])
by_id = {id: token for token, id in vocabulary.items()}
for id, (token, kind) in enumerate(zip(fields["tokenizer.ggml.tokens"], fields["tokenizer.ggml.token_type"])):
    if id in added:
        wanted = added[id]["content"], 3 if added[id]["special"] else 4
    elif id in by_id:
        wanted = by_id[id], 1
    else:
        wanted = f"[PAD{id}]", 5
    expect(f"token {id}", (token, kind), wanted)
merges = [m if isinstance(m, str) else " ".join(m) for m in tokenizer["model"]["merges"]]
expect("merges", fields["tokenizer.ggml.merges"], merges)
print(f"{len(seen)} tensors and {len(fields)} fields are right")
