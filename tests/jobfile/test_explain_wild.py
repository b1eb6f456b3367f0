"""What published job files taught: each text, what must be told of it, and what must not."""

from __future__ import annotations

from pathlib import Path

import pytest

from frog.jobfile.explain import explain

HEAD = "#!/bin/bash\n#SBATCH --time=01:00:00\n"
GPUS = HEAD + "#SBATCH --nodes=1\n#SBATCH --gres=gpu:2\n"
SIGNAL = GPUS + "#SBATCH --signal=B:TERM@120\n"

TOLD: dict[str, tuple[str, str]] = {
    "an if without fi": (HEAD + "if [ -d x ]\nthen\n  python train.py\n", "quote-not-closed"),
    "a loop without done": (HEAD + "for x in 1 2; do\n  python train.py\n", "quote-not-closed"),
    "python fails, echo ends well": (HEAD + "python train.py\necho done\n", "goes-on-after-errors"),
    "torchrun in a loop": (GPUS + "for x in 1 2; do\n  torchrun train.py $x\ndone\necho all\n", "goes-on-after-errors"),
    "exit 0 at the end": (HEAD + "python -m train x\nexit 0\n", "goes-on-after-errors"),
    "purge brings no conda": (GPUS + "module purge\nconda activate x\n./run\n", "conda-not-ready"),
    "torchrun on a part of a node": (GPUS + "torchrun --nproc-per-node=2 train.py\n", "port-fixed"),
}
NOT_TOLD: dict[str, tuple[str, str]] = {
    "mail types add up": (HEAD + "#SBATCH --mail-type=END\n#SBATCH --mail-type=FAIL\nx\n", "said-twice"),
    "--cluster is --clusters": (HEAD + "#SBATCH --cluster genius\nx\n", "not-an-option"),
    "a torchrun that hears nothing": (SIGNAL + "torchrun train.py\n", "short-grace"),
    "a signal that nobody awaits": (SIGNAL + "python train.py\n", "no-requeue"),
    "asked for its code": (HEAD + "python train.py\ncode=$?\necho $code\n", "goes-on-after-errors"),
    "if as a word": (HEAD + "echo if then do case\nx=(\n", "quote-not-closed"),
    "standalone": (GPUS + "torchrun --standalone --nproc-per-node=2 train.py\n", "port-fixed"),
    "a here-document in quotes": ("#!/bin/bash\nsbatch <<'E'\n" + HEAD + "echo $SLURM_JOB_ID\nE\n", "read-at-hand-in"),
    "a job that hands in the next": (HEAD + "sbatch <<E\n" + HEAD + "echo $SLURM_JOB_ID\nE\n", "read-at-hand-in"),
}


def codes(text: str, folder: Path) -> set[str]:
    return {finding.code for finding in explain(text, Path("job.sbatch"), None, (folder,)).findings}


@pytest.mark.parametrize("name", TOLD)
def test_it_is_told(name: str, tmp_path: Path) -> None:
    text, code = TOLD[name]
    assert code in codes(text, tmp_path)


@pytest.mark.parametrize("name", NOT_TOLD)
def test_it_is_not_told(name: str, tmp_path: Path) -> None:
    text, code = NOT_TOLD[name]
    assert code not in codes(text, tmp_path)
