#!/usr/bin/env python3
"""Compares llama.cpp's ids of 1 to 299 blanks with those of Hugging Face's tokenizers.

    python3 tests/train/export/check_runs_of_blanks.py FILE IDS NAME

FILE is in GGUF; IDS is tests/fixtures/tokenizers/tied_ids.json, of which NAME is compared. llama.cpp puts a blank before
a text where the file says so. Needs xllamacpp.
"""
import json
import sys
import urllib.request

import xllamacpp

params = xllamacpp.CommonParams()
params.model.path = sys.argv[1]
params.n_ctx = 64
params.n_parallel = 1
params.warmup = False
params.cpuparams.n_threads = 1
server = xllamacpp.Server(params)


def ids_of(text):
    question = json.dumps({"content": text, "add_special": False}).encode()
    request = urllib.request.Request(server.listening_address + "/tokenize", question, {"Content-Type": "application/json"})
    return json.loads(urllib.request.urlopen(request).read())["tokens"]


wanted = json.load(open(sys.argv[2]))[sys.argv[3]]
before = 1 if ids_of(" ") == wanted[1] else 0
bad = 0
for count in range(1 + before, 300):
    found = ids_of(" " * (count - before))
    if found != wanted[count - 1]:
        bad += 1
        print(f"{count} blanks: llama.cpp gives {found}, transformers {wanted[count - 1]}")
sys.exit(bad > 0)
