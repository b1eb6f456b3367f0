"""Simulates torchrun: starts the ranks of one node, and ends with the first code that is not 0. Do not change it.

python3 starter.py --nnodes=2 --nproc-per-node=2 --node-rank=0 --master-addr=node1 --master-port=29500 PROGRAM
"""

import argparse
import os
import subprocess
import sys

parser = argparse.ArgumentParser()
for name in ("--nnodes", "--nproc-per-node", "--node-rank"):
    parser.add_argument(name, type=int, required=True)
for name in ("--master-addr", "--master-port"):
    parser.add_argument(name, required=True)
parser.add_argument("program")
args = parser.parse_args()

ranks = []
for local_rank in range(args.nproc_per_node):
    variables = {
        "RANK": args.node_rank * args.nproc_per_node + local_rank,
        "WORLD_SIZE": args.nnodes * args.nproc_per_node,
        "LOCAL_RANK": local_rank,
        "NODE_RANK": args.node_rank,
        "MASTER_ADDR": args.master_addr,
        "MASTER_PORT": args.master_port,
    }
    env = {**os.environ, **{name: str(value) for name, value in variables.items()}}
    ranks.append(subprocess.Popen([sys.executable, args.program], env=env))
sys.exit(max(rank.wait() for rank in ranks))
