#!/bin/bash
NNODES=$1 NPROC=$2 PORT=$3
export WORLD_SIZE=$((NNODES * NPROC)) MASTER_ADDR=127.0.0.1 MASTER_PORT=$PORT
exec python3 - "$NNODES" "$NPROC" <<'PY'
import os, subprocess, sys, time
nodes, nproc = map(int, sys.argv[1:])
ps = [subprocess.Popen([sys.executable, "worker.py"], env=os.environ | dict(RANK=str(n * nproc + l), LOCAL_RANK=str(l), NODE_RANK=str(n))) for n in range(nodes) for l in range(nproc)]
while any(p.poll() is None for p in ps) and not any(p.poll() for p in ps): time.sleep(0.02)
bad = [p.returncode for p in ps if p.poll()]
for p in ps: p.poll() is None and p.kill()
for p in ps: p.wait()
sys.exit(bad[0] if bad else 0)
PY
