#!/usr/bin/env bash
# Starts the ranks of one node, one for each GPU, with torchrun's variables but without torchrun. The same on each
# node, but for NODE_RANK; a Kubernetes job of completionMode Indexed sets JOB_COMPLETION_INDEX in its place.
#   NODES=2 NODE_RANK=0 RANKS_PER_NODE=8 MASTER_ADDR=node0 MASTER_PORT=29500 node_ranks.sh ./train --config ...
# It forwards SIGTERM and SIGINT, upon which the ranks write a checkpoint, and exits as the first rank that failed.
set -uo pipefail
node=${NODE_RANK:-${JOB_COMPLETION_INDEX:?set NODE_RANK, the number of this node from 0 on}}
: "${NODES:?}" "${RANKS_PER_NODE:?}" "${MASTER_ADDR:?}" "${MASTER_PORT:?}"
export MASTER_ADDR MASTER_PORT WORLD_SIZE=$((NODES * RANKS_PER_NODE)) LOCAL_WORLD_SIZE=$RANKS_PER_NODE

pids=()
trap 'kill -TERM "${pids[@]}" 2>/dev/null' TERM INT
for ((local = 0; local < RANKS_PER_NODE; ++local)); do
  RANK=$((node * RANKS_PER_NODE + local)) LOCAL_RANK=$local "$@" &
  pids+=($!)
done
status=0
for pid in "${pids[@]}"; do
  code=0
  wait "$pid" || code=$?
  while kill -0 "$pid" 2>/dev/null; do # a signal ended the wait
    code=0
    wait "$pid" || code=$?
  done
  # 3: another rank failed, and says why
  if ((status == 0 || (status == 3 && code != 0))); then status=$code; fi
done
exit "$status"
