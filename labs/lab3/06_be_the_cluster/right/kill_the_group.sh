#!/bin/bash
# Start NNODES simulated nodes with NPROC ranks each, on this machine, and end as a launcher does.
#
#   bash launch.sh NNODES NPROC PORT

NNODES=$1 NPROC=$2 PORT=$3

trap 'exit 1' TERM
start() { # NODE LOCAL
  WORLD_SIZE=$((NNODES * NPROC)) MASTER_ADDR=localhost MASTER_PORT=$PORT \
    NODE_RANK=$1 LOCAL_RANK=$2 RANK=$(($1 * NPROC + $2)) python3 worker.py || kill 0
}
for node in $(seq 0 $((NNODES - 1))); do
  for local in $(seq 0 $((NPROC - 1))); do
    start "$node" "$local" &
  done
done
wait
