#!/usr/bin/env bash
# A race: GPT-2 124M by llm.c and by Tessera, from the same weights, on the same tokens in the same order, in
# the same batches, by the same schedule. Each has one of two GPUs of a machine; some 12 minutes on H200.
#   docs/examples/race_llmc.sh BUILD LLMC TOKENIZER TEXT OUTPUT
# BUILD: the folder with the programs. LLMC: llm.c, as `git clone https://github.com/karpathy/llm.c` makes it.
# This builds it, with cuDNN if its headers and those of cudnn-frontend are found (`tools/install --cudnn`).
# CUDNN_HOME: where cuDNN is, if not in a usual place. TOKENIZER: a folder with GPT-2's.
# TEXT: what docs/examples/debian_text.sh writes.
# OUTPUT gets shards, weights, logs, race.svg, race.md and samples.txt. What is there already is not made
# again, so the same command resumes a race that was stopped, from the last checkpoints.
# STEPS=1150 of TOKENS=262144, in micro-batches of BATCH=64 sequences of LENGTH=1024; WARMUP=100;
# LEARNING_RATE=6e-4; a validation loss every EVERY=50 steps, on VALIDATION=8 micro-batches;
# GPUS="0 1": llm.c's and Tessera's.
# llm.c recomputes nothing (-r 0), and runs with the fastest value of -ge: all are timed first.
set -euo pipefail
[[ $# -eq 5 ]] || { sed -n '2,/^set/{/^set/d;s/^# \?//;p}' "$0" && exit 2; }
here=$(cd "$(dirname "$0")" && pwd)
build=$(realpath "$1") llmc=$(realpath "$2") tokenizer=$(realpath "$3") text=$(realpath "$4")
mkdir -p "$5"
out=$(realpath "$5")
steps=${STEPS:-1150} tokens=${TOKENS:-262144} batch=${BATCH:-64} length=${LENGTH:-1024} warmup=${WARMUP:-100}
every=${EVERY:-50} validation=${VALIDATION:-8} rate=${LEARNING_RATE:-6e-4} config=${CONFIG:-gpt2_small.yaml}
read -r gpu_llmc gpu_tessera <<<"${GPUS:-0 1}"
keep_every=$((steps * 2 / 5)) # steps between checkpoints

say() { echo "$(date +%T) $*"; }
# once NAME COMMAND...: unless it was done before
once() {
  [[ ! -f $out/$1.done ]] || return 0
  say "$1"
  "${@:2}"
  touch "$out/$1.done"
}
# train KEY=VALUE...: Tessera, on its GPU
train() {
  local settings=("$@")
  (cd "$build" && CUDA_VISIBLE_DEVICES=$gpu_tessera ./train --config "$config" --resume auto "${settings[@]/#/--set=}")
}
# run_llmc FOLDER ARGUMENT...: its lines come as they are printed, not when a buffer is full
run_llmc() {
  (cd "$1" && CUDA_VISIBLE_DEVICES=$gpu_llmc stdbuf -oL "${LLMC_PROGRAM:-$llmc/train_gpt2cu}" "${@:2}")
}

make_shards() { # make_shards train | validation
  "$build/prepare" "$text/$1.jsonl" --tokenizer "$tokenizer" --shard-tokens 1G --output "$out/$1" --force
}

build_llmc() {
  local cuda include='' library='' folder nvml libraries flags=(train_gpt2cu NO_MULTI_GPU=1 NO_USE_MPI=1)
  cuda=$(dirname "$(dirname "$(readlink -f "$(command -v nvcc)")")")
  flags+=(GPU_COMPUTE_CAPABILITY="$(nvidia-smi --query-gpu=compute_cap --format=csv,noheader | head -n 1 | tr -d .)")
  for folder in "${CUDNN_HOME:-}/include" /usr/include /usr/include/*-linux-gnu /usr/local/include "$cuda/include"; do
    [[ ! -f $folder/cudnn.h ]] || include=$folder
  done
  for folder in "${CUDNN_HOME:-}/lib" /usr/lib/*-linux-gnu /usr/local/lib "$cuda"/lib64 "$cuda"/lib; do
    [[ ! -f $folder/libcudnn.so.9 ]] || library=$folder
  done
  nvml=$(compgen -G "$cuda/lib*/stubs/libnvidia-ml.so" || ldconfig -p | awk '/libnvidia-ml.so/ { print $NF }')
  libraries="-lcublas -lcublasLt -L$cuda/lib64 -L$cuda/lib ${nvml:+-Xlinker ${nvml%%$'\n'*}}"
  if [[ $(nvcc --version) =~ release\ (1[3-9]|[2-9][0-9])\. ]]; then # CUDA 13 has another type here
    sed -i 's/, cudaCpuDeviceId)/, (cudaMemLocation{cudaMemLocationTypeHost, 0}))/' "$llmc/llmc/cuda_utils.cuh"
  fi
  mkdir -p "$llmc/cudnn-frontend"
  ln -sfn "$here/../../build-tools/cudnn-frontend/include" "$llmc/cudnn-frontend/include"
  if [[ -n $library && -n $include ]] && make -C "$llmc" -B "${flags[@]}" USE_CUDNN=1 \
    NVCC_INCLUDES="-Icudnn-frontend/include -I$include" \
    NVCC_LDFLAGS="$libraries -L$library -l:libcudnn.so.9 -lnvrtc -Xlinker -rpath -Xlinker $library" \
    >"$out/llmc_build.txt" 2>&1; then
    say "llm.c: attention by cuDNN in $library"
  else
    say "llm.c: attention by its own kernels: no cuDNN found, or a build that fails: $out/llmc_build.txt"
    make -C "$llmc" -B "${flags[@]}" USE_CUDNN=0 NVCC_LDFLAGS="$libraries" >"$out/llmc_build_plain.txt" 2>&1
  fi
}

# llm.c shuffles blocks of a micro-batch. Its own reader writes what it reads, epoch after epoch.
make_order() {
  cc -O2 -Wno-unused-result -I "$llmc" "$here/race_llmc_order.c" -lm -o "$out/order"
  mkdir -p "$out/in_order"
  "$out/order" "$out/train/train_*.bin" "$batch" "$length" $((steps * tokens / batch / length)) \
    "$out/in_order/train.bin"
}

# Random weights, rounded to bf16, for both. The one update has a learning rate that rounds away.
make_weights() {
  train "train.folder=$out/random" "data.train=$out/validation" train.steps=1 "train.tokens_per_step=$length" \
    train.micro_batch=1 optimizer.learning_rate=1e-30 optimizer.min_learning_rate=0 optimizer.warmup=0 \
    evaluation.every=0 sampling.every=0 checkpoint.every=0 >"$out/random.txt" 2>&1
  "$build/export" "$out/random" --format hf --dtype bf16 --output "$out/weights" --force
  "$build/export" "$out/weights" --format llm.c --dtype bf16 --output "$out/weights.bin" --force
}

# GELU in a kernel of its own, in the forward's GEMM, or in the backward's as well
find_fastest() {
  local fused ms
  mkdir -p "$out/probe"
  for fused in 0 1 2; do
    run_llmc "$out/probe" -i "$out/validation/train_*.bin" -j "$out/validation/train_*.bin" -e "$out/weights.bin" \
      -b "$batch" -t "$length" -x 12 -v 100 -m 1 -s 0 -r 0 -ge $fused >"$out/probe/$fused.txt" 2>&1 || continue
    ms=$(awk '/^total average iteration time/ { print $5 }' "$out/probe/$fused.txt")
    say "llm.c -r 0 -ge $fused: $ms ms for $((batch * length)) tokens" >&2
    echo "$ms -r 0 -ge $fused"
  done | sort -n | head -n 1 | cut -d ' ' -f 2- >"$out/fastest.txt"
  [[ -s $out/fastest.txt ]] || { tail -n 3 "$out/probe/0.txt" >&2 && return 1; }
}

race_llmc() {
  local fastest
  read -ra fastest <"$out/fastest.txt"
  mkdir -p "$out/llmc"
  run_llmc "$out/llmc" -i "$out/train/train_*.bin" -j "$out/validation/train_*.bin" -e "$out/weights.bin" \
    -o "$out/llmc" -y 1 -b "$batch" -t "$length" -d "$tokens" -x "$steps" -k cosine -l "$rate" -u "$warmup" -q 0.1 \
    -c 0.1 -v "$every" -m "$validation" -s "$steps" -g 200 -n "$keep_every" -nk 1 "${fastest[@]}" \
    >>"$out/llmc.txt" 2>&1
}

race_tessera() {
  train "train.folder=$out/tessera" "train.init_from=$out/weights" "data.train=$out/in_order/train.bin" \
    "data.validation=$(echo "$out"/validation/train_*.bin)" data.shuffle=false "train.steps=$steps" \
    "train.tokens_per_step=$tokens" "train.micro_batch=$batch" "train.sequence_length=$length" \
    "optimizer.learning_rate=$rate" "optimizer.min_learning_rate=$(awk "BEGIN { print $rate / 10 }")" \
    "optimizer.warmup=$warmup" "evaluation.every=$every" "evaluation.sequences=$((validation * batch))" \
    sampling.every=0 "checkpoint.every=$keep_every" checkpoint.keep=1 >>"$out/tessera.txt" 2>&1
}

race() {
  local llmc_job tessera_job failed=0
  once race_llmc race_llmc &
  llmc_job=$!
  once race_tessera race_tessera &
  tessera_job=$!
  wait $llmc_job || { tail -n 5 "$out/llmc.txt" >&2 && failed=1; }
  wait $tessera_job || { tail -n 5 "$out/tessera.txt" >&2 && failed=1; }
  return $failed
}

# A new text of 200 tokens from each. llm.c prints ids, as no file has its tokenizer.
write_samples() {
  echo "llm.c:"
  sed -n '/^generating:/,$p' "$out/llmc.txt" | sed -n 3p | "$build/tokenize" decode --tokenizer "$tokenizer" --file -
  printf '\n\nTessera:\n'
  (cd "$build" && CUDA_VISIBLE_DEVICES=$gpu_tessera ./generate "$out/tessera" --tokenizer "$tokenizer" \
    --prompt "" --tokens 200)
}

once validation_shards make_shards validation
once train_shards make_shards train &
shards=$!
[[ -n ${LLMC_PROGRAM:-} ]] || once build_llmc build_llmc
once weights make_weights
once fastest find_fastest
wait $shards
once order make_order
once race race
write_samples >"$out/samples.txt" || say "no samples"
python3 "$here/race_llmc.py" "$out" "$tokens" | tee "$out/race.md"
