#!/bin/bash
# Start NNODES simulated nodes with NPROC ranks each, on this machine, and end as a launcher does.
#
#   bash launch.sh NNODES NPROC PORT

NNODES=$1 NPROC=$2 PORT=$3

export WORLD_SIZE=$((NNODES * NPROC)) MASTER_ADDR=127.0.0.1 MASTER_PORT=$PORT
workers=()
for ((node = 0; node < NNODES; node++)); do
  for ((local = 0; local < NPROC; local++)); do
    NODE_RANK=$node LOCAL_RANK=$((node * NPROC + local)) RANK=$((node * NPROC + local)) python3 worker.py &
    workers+=($!)
  done
done

for _ in "${workers[@]}"; do
  if ! wait -n; then
    kill "${workers[@]}" 2> /dev/null
    wait
    exit 1
  fi
done
