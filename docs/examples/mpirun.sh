#!/usr/bin/env bash
# Trains on two nodes of eight GPUs, of which node0 is the first. Started once, on any of them.
#   ./mpirun.sh
set -euo pipefail
exec mpirun -np 16 --map-by ppr:8:node --host node0:8,node1:8 --bind-to none -x MASTER_ADDR=node0 \
  -x MASTER_PORT=29500 ./train --config gpt2_xl.yaml --resume auto
