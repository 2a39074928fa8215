"""Folders of models that a stranger wrote to take all memory or time: each is refused at once, by name."""

import json
import resource
import struct
import subprocess
import time

MEMORY = 4 << 30  # bytes of addresses
SECONDS = 60

LLAMA = {
    "model_type": "llama",
    "vocab_size": 257,
    "hidden_size": 32,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "intermediate_size": 64,
    "max_position_embeddings": 64,
}
GPT2 = {"model_type": "gpt2", "vocab_size": 257, "n_embd": 32, "n_layer": 1, "n_head": 2, "n_positions": 64}
GEMMA = {**LLAMA, "model_type": "gemma3_text", "head_dim": 16}


def configs():
    for size in 100_000, 1_000_000, 999_999_999:
        yield {**GPT2, "n_layer": size}
        yield {**LLAMA, "num_hidden_layers": size}
        yield {**GEMMA, "num_hidden_layers": size}
        yield {**LLAMA, "max_position_embeddings": 10_000 * size}
    for field in "hidden_size", "intermediate_size", "head_dim", "num_attention_heads", "num_key_value_heads":
        yield {**LLAMA, field: 999_999_936}
    yield {**LLAMA, "vocab_size": 2**40}
    yield {**GEMMA, "sliding_window_pattern": 999_999_999}


def headers():
    for count in 30_000, 1_000_000:
        yield {"a": {"dtype": "F32", "shape": [1] * count, "data_offsets": [0, 4]}}
    yield {"a": {"dtype": "F32", "shape": [2**62, 2**62], "data_offsets": [0, 4]}}
    yield {"a": {"dtype": "F32", "shape": [1], "data_offsets": [0, 2**63 - 1]}}
    yield {f"t{i}": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]} for i in range(100_000)}


def normalizers():
    for growth in 100, 1000:
        for kind in "String", "Regex":
            one = {"type": "Replace", "pattern": {kind: "a"}, "content": "aa" * growth}
            yield {"type": "Sequence", "normalizers": [one] * 8}
    yield {"type": "Sequence", "normalizers": [{"type": "Prepend", "prepend": "a" * 1000}] * 100_000}
    deep = {"type": "Replace", "pattern": {"String": "a"}, "content": "b"}
    for _ in range(200):
        deep = {"type": "Sequence", "normalizers": [deep]}
    yield deep


def tokenizer(normalizer):
    vocabulary = {"<unk>": 0, "a": 1, "b": 2}
    model = {"type": "BPE", "vocab": vocabulary, "merges": [], "unk_token": "<unk>", "fuse_unk": True}
    return {"version": "1.0", "normalizer": normalizer, "pre_tokenizer": None, "added_tokens": [], "model": model,
            "decoder": {"type": "Fuse"}, "post_processor": None}


def limited():
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))


def attack(run, tally):
    folder = run.folder / "model"
    folder.mkdir()

    def refuses(case, *words):
        tally.tried += 1
        start = time.monotonic()
        try:
            done = subprocess.run([run.build / words[0], *words[1:]], cwd=run.folder, capture_output=True, text=True,
                                  errors="replace", timeout=SECONDS, preexec_fn=limited)
        except subprocess.TimeoutExpired:
            tally.expect(False, case, f"it did not end within {SECONDS} s")
            return
        refused = done.returncode == 1 and "error:" in done.stderr and "bad_alloc" not in done.stderr
        tally.expect(refused, case, f"exit code {done.returncode}, {time.monotonic() - start:.0f} s; {done.stderr[-300:]}")

    generate = ("generate", "model", "--tokenizer", "bytes", "--prompt", "a", "--device", "cpu")
    for fields in configs():
        (folder / "config.json").write_text(json.dumps(fields))
        refuses(f"config.json {fields}", *generate)
    (folder / "config.json").write_text(json.dumps(LLAMA))
    for header in headers():
        text = json.dumps(header).encode()
        (folder / "model.safetensors").write_bytes(struct.pack("<Q", len(text)) + text + b"\0\0\0\0")
        refuses(f"model.safetensors {text[:80]}", *generate)
    (run.folder / "as.txt").write_text("a" * 1000)
    for normalizer in normalizers():
        (folder / "tokenizer.json").write_text(json.dumps(tokenizer(normalizer)))
        refuses(f"tokenizer.json {json.dumps(normalizer)[:80]}", "prepare", "as.txt", "--tokenizer", "model",
                "--output", f"data_{tally.tried}")
