"""What is trained, and on which text. The sizes are small: a training takes seconds on a CPU."""

import json
import shutil
import subprocess
from dataclasses import dataclass, field

STEPS = 50

COMMON = """
train:
  steps: {steps}
  micro_batch: 2
  log_every: 10
  seed: 20240607
optimizer:
  learning_rate: 3e-3
  min_learning_rate: 3e-4
  warmup_steps: 5
evaluation:
  every: 25
  sequences: 8
sampling:
  every: 25
  tokens: 16
checkpoint:
  every: 25
  keep: 0
"""

# Together they take every branch of the configuration that computes something else.
CONFIGURATIONS = {
    # heads of 64 channels, tied, gelu by tanh, a step of several micro-batches
    "flash": {
        "model": dict(vocab_size=257, context=96, layers=3, heads=2, channels=128, attention="flash"),
        "train": dict(tokens_per_step=768),
    },
    # heads of 32 channels, untied, relu, scaled by layer, bf16 moments, part of the logits at a time
    "naive": {
        "model": dict(vocab_size=257, context=64, layers=2, heads=3, channels=96, attention="naive",
                      tied=False, mlp="relu", mlp_width=256, scale_attention_by_layer=True),
        "train": dict(tokens_per_step=512, recompute="mlp", classifier_chunk=48),
        "optimizer": dict(moments="bf16", max_grad_norm=0.5, schedule="linear"),
    },
    # heads of 128 channels, sequences shorter than the context, whole blocks again, gelu by erf
    "recompute": {
        "model": dict(vocab_size=300, context=160, layers=2, heads=1, channels=128, attention="flash",
                      mlp="gelu_exact", norm_epsilon=1e-6),
        "train": dict(tokens_per_step=560, sequence_length=140, micro_batch=1, recompute="block",
                      classifier_chunk=100, zero=0, reduce="fp32"),
        "optimizer": dict(schedule="wsd", decay_fraction=0.4, weight_decay=0.2),
    },
    # a Qwen3: RMSNorm, rotary positions, grouped heads with norms, SwiGLU
    "qwen3": {
        "model": dict(vocab_size=257, context=96, layers=3, heads=4, kv_heads=2, channels=128, head_dim=64,
                      mlp="swiglu", mlp_width=320, norm="rmsnorm", positions="rope", bias="none", qk_norm=True,
                      tied=False, attention="flash"),
        "train": dict(tokens_per_step=768, recompute="norms+activation"),
    },
    # documents of many lengths in a sequence, which do not see each other
    "documents": {
        "model": dict(vocab_size=257, context=160, layers=2, heads=2, channels=128, attention="flash"),
        "train": dict(tokens_per_step=640),
        "data": dict(documents="mask"),
    },
    # adapters beside the weights of another training, which the model is taken from
    "lora": {
        "train": dict(tokens_per_step=768, lora="{rank: 4}"),
        "optimizer": dict(moments="bf16"),
    },
}
# What a configuration trains on in place of the text, or starts from: see run.
DOCUMENTS, WEIGHTS = "documents", "weights"
NEEDS = {"documents": DOCUMENTS, "lora": WEIGHTS}
WEIGHTS_ARE_OF = "flash"
# On CUDA, beside those in bf16: the fp32 kernels, and the vendor's attention.
CUDA_CONFIGURATIONS = {
    "fp32": {
        "model": dict(vocab_size=257, context=96, layers=2, heads=2, channels=128, attention="flash"),
        "train": dict(tokens_per_step=768, precision="fp32"),
    },
    "naive_fp32": {
        "model": dict(vocab_size=257, context=96, layers=2, heads=2, channels=128, attention="naive"),
        "train": dict(tokens_per_step=768, precision="fp32", recompute="mlp"),
    },
    "fp8": {  # the names of the keys are those of both sides: earlier ones are read
        "model": dict(vocab_size=257, context=128, layers=4, heads=4, channels=256, attention="flash"),
        "train": dict(tokens_per_step=1024, matmul="fp8"),
    },
    "long": {  # several tiles of queries and keys, the last one in part
        "model": dict(vocab_size=257, context=1000, layers=2, heads=2, channels=256, attention="flash"),
        "train": dict(tokens_per_step=4000),
    },
}


@dataclass
class Training:
    name: str
    yaml: str
    arguments: list[str] = field(default_factory=list)
    resumed: bool = False
    skipped: str = ""  # why it cannot be done here
    needs: str = ""  # DOCUMENTS or WEIGHTS
    steps: int = STEPS
    compared_steps: tuple[int, ...] = (STEPS // 2, STEPS)


def word(value) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def as_yaml(sections: dict, device: str) -> str:
    text = f"device: {device}\n" + COMMON.format(steps=STEPS)
    for section, values in sections.items():
        lines = "".join(f"  {key}: {word(value)}\n" for key, value in values.items())
        keys = {f"  {key}:" for key in values}
        if f"\n{section}:\n" in text:  # what is given here counts, and a key is given once
            kept = [line for line in text.split("\n") if not any(line.startswith(key) for key in keys)]
            text = "\n".join(kept).replace(f"\n{section}:\n", f"\n{section}:\n{lines}")
        else:
            text += f"{section}:\n{lines}"
    return text


def visible_gpus() -> int:
    if not shutil.which("nvidia-smi"):
        return 0
    result = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True)
    return sum(line.startswith("GPU ") for line in result.stdout.splitlines())


def trainings(device: str) -> list[Training]:
    """All, those that cannot be done here too."""
    configurations = CONFIGURATIONS | (CUDA_CONFIGURATIONS if device == "cuda" else {})
    two_ranks = ["--ranks", "2"] if device == "cpu" else ["--gpus", "2"]
    too_few = "" if device == "cpu" or visible_gpus() >= 2 else "2 ranks need 2 GPUs"
    found = []
    for name, sections in configurations.items():
        yaml = as_yaml(sections, device)
        one_rank = [] if device == "cpu" else ["--gpus", "1"]
        needs = NEEDS.get(name, "")
        found.append(Training(f"{name}-1rank", yaml, one_rank, needs=needs))
        found.append(Training(f"{name}-resumed", yaml, one_rank, resumed=True, needs=needs))
        found.append(Training(f"{name}-2ranks", yaml, two_ranks, skipped=too_few, needs=needs))
    return found


def documents(words: str) -> str:
    """A document a line, as JSON: lengths of 20 to 400 letters."""
    lines, at = [], 0
    while at < len(words):
        length = 20 + (len(lines) * 97) % 381
        lines.append(json.dumps({"text": words[at : at + length]}))
        at += length
    return "\n".join(lines) + "\n"


def text(size: int = 220_000) -> str:
    """The same words in the same order on every machine; frequent ones are short, as in a language.

    95% of it, the training part, is more than the 200,000 tokens of the longest training: versions without
    data.shift see the same windows in the first epoch alone.
    """
    state = 20240607

    def draw(below: int) -> int:
        nonlocal state
        state = (state * 6364136223846793005 + 1442695040888963407) % 2**64
        return (state >> 33) * below >> 31

    syllables = [a + b for a in "bdfglmnprstvz" for b in "aeiou"]
    words = ["".join(syllables[draw(len(syllables))] for _ in range(1 + i // 60)) for i in range(240)]
    lines, length = [], 0
    while length < size:
        line = " ".join(words[draw(1 + draw(len(words)))] for _ in range(4 + draw(9))) + ".\n"
        lines.append(line)
        length += len(line)
    return "".join(lines)
