#!/bin/bash
NNODES=$1 NPROC=$2 PORT=$3
export WORLD_SIZE=$((NNODES * NPROC)) MASTER_ADDR=127.0.0.1 MASTER_PORT=$PORT
for ((node = 0; node < NNODES; node++)); do
 (
  for ((local = 0; local < NPROC; local++)); do
    RANK=$((node * NPROC + local)) LOCAL_RANK=$local NODE_RANK=$node python3 worker.py &
  done
  for ((local = 0; local < NPROC; local++)); do wait -n || { c=$?; kill $(jobs -p); exit $c; }; done
 ) &
done
code=0
for ((node = 0; node < NNODES; node++)); do wait -n || code=$?; done
exit $code
