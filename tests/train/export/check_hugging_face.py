#!/usr/bin/env python3
"""Loads an export with transformers and compares its logits with those of the model it was made from.

    python3 tests/train/export/check_hugging_face.py EXPORT FOLDER

The tokenizers of both must give the same ids, too. In fp32 the logits must have the same bits; weights that were
rounded may move them by as much as their rounding explains, which is checked against the rounded source.
"""
import sys

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig, PreTrainedTokenizerFast

export, folder = sys.argv[1], sys.argv[2]


def load(path, dtype):
    model, report = AutoModelForCausalLM.from_pretrained(path, output_loading_info=True, dtype=dtype,
                                                         attn_implementation="eager")
    for problem in ("missing_keys", "unexpected_keys", "mismatched_keys"):
        assert not report[problem], f"{problem}: {report[problem]}"
    return model.eval()


exported = load(export, "auto")
dtype = next(exported.parameters()).dtype
source = load(folder, dtype)  # rounded by PyTorch
text = "The tokenizer of a model, and what it says: 1234 <think>\n"
theirs, ours = PreTrainedTokenizerFast(tokenizer_file=f"{folder}/tokenizer.json"), AutoTokenizer.from_pretrained(export)
ids = theirs(text)["input_ids"]
assert ours(text)["input_ids"] == ids, "the tokenizer of the export gives other ids"
with torch.no_grad():
    a, b = exported(torch.tensor([ids])).logits, source(torch.tensor([ids])).logits
assert a.dtype == b.dtype and torch.equal(a, b), f"the logits differ by {(a - b).abs().max()}"
generation = GenerationConfig.from_pretrained(export)
assert generation.eos_token_id == exported.config.eos_token_id == 0, generation.eos_token_id
assert ours.eos_token == "<|endoftext|>", ours.eos_token
chat = ours.apply_chat_template([{"role": "user", "content": "Hi"}], tokenize=False, add_generation_prompt=True)
assert chat == "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n", repr(chat)
print(f"the same logits in {dtype}")
