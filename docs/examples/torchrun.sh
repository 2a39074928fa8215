#!/usr/bin/env bash
# Trains on two nodes of eight GPUs. The same command on each; node0 is one of them. torchrun starts the ranks again
# when one fails, and they go on from the newest checkpoint.
#   ./torchrun.sh
set -euo pipefail
exec torchrun --nnodes=2 --nproc_per_node=8 --max_restarts=3 --rdzv_backend=c10d --rdzv_endpoint=node0:29400 \
  --rdzv_id=1 --no_python ./train --config gpt2_xl.yaml --resume auto
