#!/usr/bin/env python3
"""Runs a GGUF file in llama.cpp and compares its probabilities with those of transformers.

    python3 tests/train/export/check_llama_cpp.py TOLERANCE FILE FOLDER [FILE FOLDER ...]

A FOLDER is what the FILE before it was exported from. The log-probabilities of the 20 likeliest next tokens may differ by
TOLERANCE. Needs xllamacpp, torch and transformers.
"""
import json
import sys
import urllib.request

import torch
import xllamacpp
from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast

TEXT = "The tokenizer of a model, and what it says: 1234 isn't\n\nsaid   twice, Äpfel"


def serve(file):
    params = xllamacpp.CommonParams()
    params.model.path = file
    params.n_ctx = 64
    params.n_parallel = 1
    params.warmup = False
    params.cpuparams.n_threads = 1
    params.flash_attn_type = xllamacpp.llama_flash_attn_type.LLAMA_FLASH_ATTN_TYPE_DISABLED
    params.cache_type_k = params.cache_type_v = xllamacpp.ggml_type.GGML_TYPE_F32
    return xllamacpp.Server(params)


def worst_difference(file, folder):
    server = serve(file)

    def ask(path, question):
        request = urllib.request.Request(server.listening_address + path, json.dumps(question).encode(),
                                         {"Content-Type": "application/json"})
        return json.loads(urllib.request.urlopen(request).read())

    ids = PreTrainedTokenizerFast(tokenizer_file=f"{folder}/tokenizer.json")(TEXT)["input_ids"]
    found = ask("/tokenize", {"content": TEXT, "add_special": True})["tokens"]
    assert found == ids, f"{folder}: llama.cpp gives the ids {found}, transformers {ids}"
    letter = ask("/tokenize", {"content": "e", "add_special": False})["tokens"][0]  # text, whatever is likely
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager")
    if hasattr(model.config, "num_experts_per_tok"):
        model.set_experts_implementation("eager")  # the only one in fp64
    model = model.double().eval()
    worst = 0.0
    for length in (1, 7, len(ids)):
        with torch.no_grad():
            wanted = model(torch.tensor([ids[:length]])).logits[0, -1].log_softmax(-1)
        answer = ask("/completion", {"prompt": ids[:length], "n_predict": 1, "n_probs": 20, "logit_bias": [[letter, 1000]],
                                     "cache_prompt": False})
        likeliest = answer["completion_probabilities"][0]["top_logprobs"]
        assert len(likeliest) == 20
        for one in likeliest:
            worst = max(worst, abs(one["logprob"] - wanted[one["id"]].item()))
    return worst


bad = 0
for file, folder in zip(sys.argv[2::2], sys.argv[3::2]):
    worst = worst_difference(file, folder)
    print(f"{folder}: llama.cpp's log-probabilities differ by {worst:.2e}", flush=True)
    bad += not worst <= float(sys.argv[1])
sys.exit(bad > 0)
