#!/bin/bash
# Start NNODES simulated nodes with NPROC ranks each, on this machine, and end as a launcher does.
#
#   bash launch.sh NNODES NPROC PORT

NNODES=$1 NPROC=$2 PORT=$3

export WORLD_SIZE=$((NNODES * NPROC)) MASTER_ADDR=127.0.0.1 MASTER_PORT=$PORT
workers=()
for ((node = 0; node < NNODES; node++)); do
  for ((local = 0; local < NPROC; local++)); do
    NODE_RANK=$node LOCAL_RANK=$local RANK=$((node * NPROC + local)) python3 worker.py &
    workers+=($!)
  done
done

left=${#workers[@]}
while ((left > 0)); do
  left=0
  for pid in "${workers[@]}"; do
    if kill -0 "$pid" 2> /dev/null; then
      left=$((left + 1))
    else
      wait "$pid" || { kill "${workers[@]}" 2> /dev/null; exit 1; }
    fi
  done
  sleep 0.05
done
