#!/bin/bash
# Start NNODES simulated nodes with NPROC ranks each, on this machine, and end as a launcher does.
#
#   bash launch.sh NNODES NPROC PORT

NNODES=$1 NPROC=$2 PORT=$3

# Node 0 starts its first rank and waits for it. The rest is missing.
RANK=0 LOCAL_RANK=0 NODE_RANK=0 WORLD_SIZE=$((NNODES * NPROC)) MASTER_ADDR=127.0.0.1 MASTER_PORT=$PORT \
  python3 worker.py
