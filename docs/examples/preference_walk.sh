#!/usr/bin/env bash
# From questions to a model in llama.cpp that answers them briefly: pairs of a short answer and the model's own one,
# DPO with adapters. One GPU, a minute or two with SmolLM2-135M-Instruct.
#   docs/examples/preference_walk.sh BUILD MODEL [OUTPUT]
# BUILD: the folder with the programs. MODEL: a folder of an instruct model, or what smollm2_folder.py writes.
# OUTPUT, by default preference_walk, gets the pairs, the run and the GGUF file.
# STEPS=60; SETTINGS="--set key=value ..." for the training.
set -euo pipefail

[[ $# -ge 2 ]] || { sed -n '2,/^set/{/^set/d;s/^# \?//;p}' "$0" && exit 2; }
build=$(realpath "$1") model=$(realpath "$2") out=$(realpath "${3:-preference_walk}") steps=${STEPS:-60}
mkdir -p "$out" && cd "$build"

# The prompts are "Q: How many legs has a bee?\nA:", the chosen answers " Six!".
python3 - configs/preference_quickstart.jsonl >"$out/questions.jsonl" <<'END'
import json, sys
for line in open(sys.argv[1]):
    pair = json.loads(line)
    print(json.dumps({"prompt": pair["prompt"][3:-3], "answer": pair["chosen"].strip()}))
END
./generate "$model" --chat --prompts "$out/questions.jsonl" --temperature 0 --tokens 100 --json >"$out/own.jsonl"
python3 - "$out/questions.jsonl" "$out/own.jsonl" >"$out/pairs.jsonl" <<'END'
import json, sys
questions, own = ([json.loads(line) for line in open(path)] for path in sys.argv[1:])
for question, its in zip(questions, own):
    says = lambda role, text: [{"role": role, "content": text}]
    print(json.dumps({"prompt": says("user", question["prompt"]), "chosen": says("assistant", question["answer"]),
                      "rejected": says("assistant", its["text"].strip())}))
END
./prepare "$out/pairs.jsonl" --tokenizer "$model" --output "$out/data"
ask() { ./generate "$1" --chat --prompt "How many legs has a spider?" --prompt "What is the capital of Spain?" --temperature 0; }
ask "$model"
# shellcheck disable=SC2086
./train --config preference.yaml --overwrite "--set=train.folder=$out/run" "--set=train.init_from=$model" \
  "--set=data.train=$out/data" --set=train.lora.rank=16 --set=train.sequence_length=1024 \
  --set=train.tokens_per_step=8192 "--set=train.steps=$steps" --set=optimizer.learning_rate=1e-4 \
  --set=optimizer.min_learning_rate=1e-5 --set=train.preference.cross_entropy=1 --set=train.log_every=20 \
  --set=evaluation.every=20 --set=checkpoint.every=0 ${SETTINGS:-}
ask "$out/run"
./export "$out/run" --format gguf --dtype q8_0 --force --output "$out/short.gguf"
echo "llama-cli -m $out/short.gguf -p 'How many legs has a spider?'"
