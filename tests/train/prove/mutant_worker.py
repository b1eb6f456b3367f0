"""A rank that plants one mistake after another, runs the proof, and records whether the proof detected it.

Finally it proves a new strategy that consists only of an entry and a file.
"""

import json
import sys
from contextlib import nullcontext
from pathlib import Path

import torch
from mutants import MUTANTS, Mutant
from two_halves import ENTRY

from frog.core.config.strategies import DATA_STRATEGIES
from frog.core.env import world_env
from frog.core.processes import leave
from frog.train.comm import join_world
from frog.train.prove.matrix import DEFAULT_VARIANTS, SMALL_MODEL, Cell, Variant, cells
from frog.train.prove.prove_rank import TOLERANCE, Case, _oracle_key, compare, one_process, spread

env = world_env()
world = join_world(env, torch.device("cpu"), timeout_s=60)
found = {}
oracles = {}
DATA_STRATEGIES[ENTRY.name] = ENTRY
ADDED = Mutant("nothing planted", ENTRY.name, world.size, nullcontext, accumulate=True)
for mutant in (*(mutant for mutant in MUTANTS if mutant.world_size == world.size), ADDED):
    variant = Variant("accumulated", accumulate=True) if mutant.accumulate else DEFAULT_VARIANTS[0]
    (cell,) = cells(SMALL_MODEL, [world.size], ["frog"], [variant], [mutant.strategy])
    assert isinstance(cell, Cell), cell
    case = Case.of(cell.fields(0), Path("cases.json"))
    with mutant.plant():
        trace = spread(case, world)
    world.forget_axes()
    if world.is_main:
        key = _oracle_key(case, world.size)
        if key not in oracles:
            oracles[key] = one_process(case, case.config.strategy.dp_size(world.size))
        found[f"{mutant.strategy}: {mutant.name}, {world.size}"] = compare(trace, oracles[key], TOLERANCE["fp32"])
if world.is_main:
    Path(sys.argv[1]).write_text(json.dumps(found))
world.barrier()
world.leave()
leave(0)
