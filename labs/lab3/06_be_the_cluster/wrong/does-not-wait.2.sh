#!/bin/bash
NNODES=$1 NPROC=$2 PORT=$3
pids=()
for ((n = 0; n < NNODES; n++)); do for ((l = 0; l < NPROC; l++)); do
  RANK=$((n * NPROC + l)) LOCAL_RANK=$l NODE_RANK=$n WORLD_SIZE=$((NNODES * NPROC)) MASTER_ADDR=127.0.0.1 MASTER_PORT=$PORT python3 worker.py &
  pids+=($!)
done; done
wait -n || { kill "${pids[@]}"; exit 1; }
