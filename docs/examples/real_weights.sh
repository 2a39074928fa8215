#!/usr/bin/env bash
# What a teacher is worth, and what adapters lose over a base of fewer bits, with the weights of
# SmolLM2-135M-Instruct. One GPU, some minutes.
#   docs/examples/real_weights.sh BUILD MODEL DATA [OUTPUT]
# BUILD: the folder with the programs. MODEL: what smollm2_folder.py writes. DATA: the documentation of Debian packages:
#   apt-get install python3-doc linux-doc perl-doc git-doc
#   BUILD/prepare $(docs/examples/real_weights.sh --texts) --tokenizer MODEL --output DATA
# OUTPUT, by default real_weights, gets a folder for each run, tables of validation losses and their plots:
#   distillation: a model of MODEL's sizes from random weights, by the tokens of DATA and by MODEL's probabilities
#   lora: adapters on MODEL, whose matrices are stored in bf16, FP8, NF4 (with scales in fp32 and in 8 bits) and
#     MXFP4. Step 0 of bf16 is MODEL itself.
# STEPS=1000; SEQUENCES=128 of held-out text; JOBS=3 runs share the GPU; SETTINGS="--set key=value ..." for all runs.
set -euo pipefail

if [[ ${1:-} == --texts ]]; then # in an order that mixes the packages: the end of the data is held out
  find /usr/share/doc/ /usr/share/perl/ -type f -not -path '*/translations/*' \( -path '*/_sources/*' -name '*.rst.txt' \
    -o -path '*/git-doc/*' -name '*.txt' -o -path '*/pod/*' -name '*.pod' \) | LC_ALL=C sort |
    shuf --random-source=<(yes)
  exit
fi
[[ $# -ge 3 ]] || { sed -n '2,/^set/{/^set/d;s/^# \?//;p}' "$0" && exit 2; }
build=$(realpath "$1") model=$(realpath "$2") data=$(realpath "$3") out=$(realpath "${4:-real_weights}")
steps=${STEPS:-1000} sequences=${SEQUENCES:-128} jobs=${JOBS:-3}
mkdir -p "$out"

# train NAME CONFIG KEY=VALUE...: all runs see the same text in the same order, and the same held-out text
train() {
  local name=$1 config=$2 settings=("${@:3}") every=$((steps < 10 ? 1 : steps / 10))
  settings=("${settings[@]/#/--set=}")
  # shellcheck disable=SC2086
  if (cd "$build" && ./train --config "$config" --overwrite "--set=train.folder=$out/$name" "--set=data.train=$data" \
    --set=train.sequence_length=1024 "--set=train.steps=$steps" --set=optimizer.warmup=10% \
    "--set=evaluation.every=$every" "--set=evaluation.sequences=$sequences" --set=sampling.every=0 --set=checkpoint.every=0 \
    "${settings[@]}" ${SETTINGS:-}) >"$out/$name.txt" 2>&1; then
    echo "$name: $(grep '^step .*validation loss' "$out/$name.txt" | tail -n 1)"
  else
    echo "$name failed: $(tail -n 3 "$out/$name.txt")" >&2
  fi
}
start() { # when fewer than $jobs run
  while (($(jobs -rp | wc -l) >= jobs)); do wait -n; done
  "$@" &
}
student() {
  start train "$1" smollm2_135m.yaml train.tokens_per_step=16384 train.micro_batch=16 optimizer.learning_rate=1e-3 \
    optimizer.min_learning_rate=1e-4 "${@:2}"
}
adapters() {
  start train "$1" lora_finetune.yaml "train.init_from=$model" train.tokens_per_step=8192 train.micro_batch=8 "${@:2}"
}

# compare TITLE NAME...: validation losses beside one another, and their plot
compare() {
  local title=$1 names=("${@:2}") name losses=()
  for name in "${names[@]}"; do
    losses+=("$out/$name.losses")
    awk -F '[:,]' '{ for (i = 1; i < NF; ++i) value[$i] = $(i + 1) }
      /"type":"evaluation"/ { print value["\"step\""], value["\"validation_loss\""] }' \
      "$out/$name/metrics.jsonl" >"$out/$name.losses"
  done
  {
    printf '| Step |' && printf ' %s |' "${names[@]}"
    printf '\n| --- |' && printf ' --- |%.0s' "${names[@]}"
    paste -d ' ' "${losses[@]}" |
      awk '{ printf "\n| %d |", $1; for (i = 2; i <= NF; i += 2) printf " %.4f |", $i } END { print "" }'
  } | tee "$out/$title.md"
  (cd "$build" && ./report "${names[@]/#/$out/}" --output "$out/$title.html" --validation-svg "$out/$title.svg")
}

student tokens
student teacher "train.teacher=$model"
student half "train.teacher=$model" train.distillation.cross_entropy=0.5
adapters bf16
adapters fp8 train.gemm_dtype=fp8 train.fp8.edges=true
adapters nf4 train.lora.base=nf4
adapters nf4_double train.lora.base=nf4_double
adapters mxfp4 train.lora.base=mxfp4
wait
compare distillation tokens teacher half
compare lora bf16 fp8 nf4 nf4_double mxfp4
