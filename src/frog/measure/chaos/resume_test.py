"""The resume test of any program: does a run that was killed and resumed end with the undisturbed run's checkpoint?

1. run the program undisturbed, and put its checkpoints aside
2. run it again with a fault
3. run it once more, as after a failure
4. compare the last checkpoints, tensor by tensor
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path

from frog.core.errors import UsageError
from frog.launch.node_agents import Options
from frog.launch.nodes import Nodes
from frog.measure.chaos.program import launch_with_faults
from frog.measure.chaos.program_faults import ProgramFault
from frog.train.checkpoint.foreign import Difference, checkpoint_files, compare

_MOST_SHOWN = 10
_FAILED = (
    "failed: the resumed run is not the undisturbed one. Perhaps the checkpoint lacks a state (optimizer, scheduler, "
    "random numbers, position in the data), or the program did not resume"
)


def resume_test(
    nodes: Nodes,
    program: Sequence[str],
    options: Options,
    faults: Sequence[ProgramFault],
    checkpoints: Path,
    resume_args: str,
) -> int:
    """Run the test and print its steps; return 0 if the checkpoints are equal, else 1.

    checkpoints: the file or folder that the program writes its checkpoints to. resume_args: arguments that the program
    needs to resume; it gets them in step 3.

    Raises:  UsageError if the folder exists before the test, or if the test cannot be completed.
    """
    aside = checkpoints.with_name(f"{checkpoints.name}.undisturbed")
    for path in (checkpoints, aside):
        if path.exists() or path.is_symlink():
            raise UsageError(f"{path} exists: the test would mix its checkpoints with those", f"move it: mv {path} ...")
    _step(1, "undisturbed", launch_with_faults(nodes, program, options, []).code, must_end_well=True)
    files = checkpoint_files(checkpoints)
    if not files:
        raise UsageError(
            f"{checkpoints}: the undisturbed run wrote no checkpoint there",
            "name the file or folder of its .safetensors, .pt, .pth, .bin or .ckpt files",
        )
    checkpoints.rename(aside)
    disturbed = launch_with_faults(nodes, program, options, faults)
    _step(2, "; ".join(map(str, faults)), disturbed.code)
    if len(disturbed.happened) < len(faults):
        raise UsageError("the fault never happened: the program had ended", "choose an earlier moment")
    again = [*program, *shlex.split(resume_args)]
    _step(
        3, f"resumed{f' with {resume_args}' if resume_args else ''}", launch_with_faults(nodes, again, options, []).code
    )
    moved = [aside if file == checkpoints else aside / file.relative_to(checkpoints) for file in files]
    comparison = compare(aside, checkpoints, moved)
    print("\n".join(comparison_lines(comparison, aside, checkpoints)))
    return int(not comparison.is_equal)


def _step(number: int, what: str, code: int, must_end_well: bool = False) -> None:
    print(f"resume test, run {number} of 3: {what}: exit code {code}", flush=True)
    if must_end_well and code:
        raise UsageError(f"the undisturbed run failed with exit code {code}", "frog diagnose latest")


def comparison_lines(difference: Difference, aside: Path, checkpoints: Path) -> list[str]:
    """Describe the comparison in lines."""
    total = difference.num_equal + len(difference.different) + len(difference.missing)
    lines = [f"{aside} and {checkpoints}: {difference.num_equal} of {total} tensors are equal"]
    largest = sorted(difference.different.items(), key=lambda item: -item[1])
    lines += [f"  {name} differs by up to {size:.3g}" for name, size in largest[:_MOST_SHOWN]]
    lines += [f"  {name} is in only one of them" for name in difference.missing[:_MOST_SHOWN]]
    hidden = max(0, len(largest) - _MOST_SHOWN) + max(0, len(difference.missing) - _MOST_SHOWN)
    lines += [f"  and {hidden} more"] if hidden else []
    if difference.other:
        lines.append(f"  other values that differ, not counted: {', '.join(difference.other[:_MOST_SHOWN])}")
    if difference.is_equal:
        return [*lines, "passed: the resumed run ends where the undisturbed one does"]
    return [*lines, _FAILED]
