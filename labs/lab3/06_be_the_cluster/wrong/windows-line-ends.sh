#!/bin/bash
NNODES=$1 NPROC=$2 PORT=$3
export WORLD_SIZE=$((NNODES * NPROC)) MASTER_ADDR=127.0.0.1 MASTER_PORT=$PORT
pids=()
for ((node = 0; node < NNODES; node++)); do
  for ((local = 0; local < NPROC; local++)); do
    RANK=$((node * NPROC + local)) LOCAL_RANK=$local NODE_RANK=$node python3 worker.py &
    pids+=($!)
  done
done
code=0
for _ in "${pids[@]}"; do
  wait -n || { code=$?; kill "${pids[@]}" 2> /dev/null; break; }
done
wait
exit $code
