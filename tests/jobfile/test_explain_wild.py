"""What published job files taught: each text, what must be told of it, and what must not."""

from __future__ import annotations

from pathlib import Path

import pytest

from frog.jobfile.explain import explain

HEAD = "#!/bin/bash\n#SBATCH --time=01:00:00\n"
GPUS = HEAD + "#SBATCH --nodes=1\n#SBATCH --gres=gpu:2\n"
TWO = HEAD + "#SBATCH --nodes=2\n#SBATCH --gpus-per-node=4\n"
SIGNAL = GPUS + "#SBATCH --signal=B:TERM@120\n"

TOLD: dict[str, tuple[str, str]] = {
    "an if without fi": (HEAD + "if [ -d x ]\nthen\n  python train.py\n", "quote-not-closed"),
    "a loop without done": (HEAD + "for x in 1 2; do\n  python train.py\n", "quote-not-closed"),
    "python fails, echo ends well": (HEAD + "python train.py\necho done\n", "goes-on-after-errors"),
    "torchrun in a loop": (GPUS + "for x in 1 2; do\n  torchrun train.py $x\ndone\necho all\n", "goes-on-after-errors"),
    "exit 0 at the end": (HEAD + "python -m train x\nexit 0\n", "goes-on-after-errors"),
    "purge brings no conda": (GPUS + "module purge\nconda activate x\n./run\n", "conda-not-ready"),
    "cuda brings no conda": (GPUS + "module load cuda/11.4 gcc\nconda activate x\n./run\n", "conda-not-ready"),
    "a server in the background, and the end": (GPUS + "vllm serve model &\n", "no-wait"),
    "80 megabytes": (GPUS + "#SBATCH --mem=80\npython train.py\n", "memory-in-megabytes"),
    "your_account": (HEAD + "#SBATCH --account=your_account\nx\n", "template"),
    "idle GPUs behind a path with a launcher's name": (
        GPUS + "export HOME_OF=/envs/deepspeed\nsrun torchrun --nproc-per-node=1 train.py\n",
        "gpus-idle",
    ),
}
NOT_TOLD: dict[str, tuple[str, str]] = {
    "mail types add up": (HEAD + "#SBATCH --mail-type=END\n#SBATCH --mail-type=FAIL\nx\n", "said-twice"),
    "--cluster is --clusters": (HEAD + "#SBATCH --cluster genius\nx\n", "not-an-option"),
    "a torchrun that hears nothing": (SIGNAL + "torchrun train.py\n", "short-grace"),
    "a signal that nobody awaits": (SIGNAL + "python train.py\n", "no-requeue"),
    "asked for its code": (HEAD + "python train.py\ncode=$?\necho $code\n", "goes-on-after-errors"),
    "if as a word": (HEAD + "echo if then do case\nx=(\n", "quote-not-closed"),
    "called from a terminal": ("srun -p gpu -N1 --time=12:00 python train.py &\n", "no-shebang"),
    "called from a terminal, a limit": ("#!/bin/bash\nsrun -p gpu -t 9 python train.py\n", "no-time-limit"),
    "called from a terminal, background": ("#!/bin/bash\nsrun -p gpu python train.py &\n", "no-wait"),
    "a folder with a launcher's name": (TWO + "export HOME_OF=/envs/deepspeed\nsrun x\n", "no-hostfile"),
    "c10d numbers the nodes": (
        TWO + "srun torchrun --nnodes=2 --rdzv-backend=c10d --node-rank=$SLURM_NODEID train.py\n",
        "read-too-early",
    ),
    "ray that ends at once": (TWO + "srun ray start --block\nsrun python x.py\n", "never-returns"),
    "a partition of whole nodes": (
        HEAD + "#SBATCH -p gpu\nexport CUDA_VISIBLE_DEVICES=0,1\ntorchrun --nproc-per-node=2 x.py\n",
        "no-gpus",
    ),
    "some megabytes without GPUs": (HEAD + "#SBATCH --mem=100\nhostname\n", "memory-in-megabytes"),
    "a module that may bring conda": (GPUS + "module load cuda anaconda3\nconda activate x\n./x\n", "conda-not-ready"),
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
