"""What job files of strangers had and explain did not report: mistakes in the forms in which people write them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from test_planted_mistakes import codes

from frog.cli import main

HEAD = "#!/bin/bash\n#SBATCH --job-name=x\n#SBATCH --time=01:00:00\n"
FOUR = HEAD + "#SBATCH --nodes=1\n#SBATCH --gres=gpu:4\n"
TWO_NODES = HEAD + "#SBATCH --nodes=2\n#SBATCH --ntasks-per-node=4\n"
MASTER = (
    'export MASTER_ADDR=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)\n'
    "export MASTER_PORT=$((10000 + SLURM_JOB_ID % 20000))\n"
)
TRAIN = "srun --kill-on-bad-exit=1 python train.py\n"

WRONG = {
    "a folder for the output that nothing makes": (FOUR + "#SBATCH --output=logs/%j.out\n./x\n", "no-output-folder"),
    "torchrun python": (FOUR + "torchrun --standalone --nproc_per_node=4 python -u train.py\n", "python-twice"),
    "accelerate launch python": (FOUR + "accelerate launch --num_processes 4 python3 train.py\n", "python-twice"),
    "deepspeed bash": (FOUR + "deepspeed bash run.sh\n", "python-twice"),
    "a fixed host in an endpoint": (
        TWO_NODES.replace("node=4", "node=1")
        + "#SBATCH --gres=gpu:4\nsrun torchrun --nnodes=2 --nproc_per_node=4 --rdzv_backend=c10d"
        + " --rdzv_endpoint=10.1.2.3:29511 train.py\n",
        "head-fixed",
    ),
    "a fixed host on one node": (
        FOUR + "export MASTER_ADDR=gpu-07.cluster.edu\nsrun -n4 -K1 python train.py\n",
        "head-fixed",
    ),
    "tasks that use half of the GPUs": (TWO_NODES + "#SBATCH --gres=gpu:8\n" + MASTER + TRAIN, "total-gpus"),
    "GPUs of the whole job for each node": (
        HEAD + "#SBATCH --nodes=3\n#SBATCH --gpus=8\nsrun torchrun --nnodes=3 --nproc_per_node=8 train.py\n",
        "uneven-gpus",
    ),
    "a module after the program": (FOUR + "python train.py\nmodule load cuda\n", "prepared-too-late"),
    "a module after the environment": (
        FOUR + "source env/bin/activate\nmodule load python/3.11\npython train.py\n",
        "python-replaced",
    ),
    "no GPUs in a partition": (
        HEAD + "#SBATCH -p gpu\ntorchrun --standalone --nproc_per_node=4 train.py\n",
        "no-gpus",
    ),
    "no GPUs for a job with CPUs": (
        HEAD + "#SBATCH -c 16\ntorchrun --standalone --nproc_per_node=4 train.py\n",
        "no-gpus",
    ),
    "no GPUs for nccl": (TWO_NODES + MASTER + TRAIN.replace("train.py", "train.py --backend nccl"), "no-gpus"),
    "two steps that take all GPUs": (
        FOUR + "#SBATCH -n 2\nsrun --exact -n1 python a.py &\nsrun --exact -n1 python b.py &\nwait\n",
        "steps-queue",
    ),
    "two steps with CPUs that take all GPUs": (
        FOUR + "#SBATCH -n 2\nsrun -n1 -c4 python a.py &\nsrun -n1 -c4 python b.py &\nwait\n",
        "steps-queue",
    ),
    "two steps that ask for more GPUs": (
        FOUR + "#SBATCH -n 2\nsrun --exact -n1 -G3 python a.py &\nsrun --exact -n1 -G2 python b.py &\nwait\n",
        "steps-queue",
    ),
    "two worlds at the default port": (
        FOUR + "torchrun --nproc_per_node=2 a.py &\ntorchrun --nproc_per_node=2 b.py &\nwait\n",
        "port-shared",
    ),
    "two steps with one MASTER_PORT": (
        FOUR + "#SBATCH --ntasks-per-node=4\n" + MASTER
        + "srun --overlap -n2 python train.py a &\nsrun --overlap -n2 python train.py b &\nwait\n",
        "port-shared",
    ),
    "an array that runs backwards": (HEAD + "#SBATCH --array=5-2\n./x\n", "refused"),
    "an open mode": (HEAD + "#SBATCH --open-mode=add\n./x\n", "refused"),
    "a signal that does not exist": (HEAD + "#SBATCH --signal=B:USR3@60\n./x\n", "refused"),
    "a dependency on a name": (HEAD + "#SBATCH --dependency=after-all\n./x\n", "refused"),
    "GPUs per task without tasks": (HEAD + "#SBATCH --gpus-per-task=1\n./x\n", "refused"),
    "a step with GPUs in a job without": (HEAD + "#SBATCH -n 2\nsrun -n1 --gpus=1 ./x\n", "step-beyond-job"),
    "an item without braces, and zsh elsewhere": (
        HEAD + "names=(a b)\n./x $names[1]\nzsh other.zsh\n",
        "no-braces",
    ),
    "a step with more tasks than CPUs": (HEAD + "#SBATCH -n 2\nsrun -n8 ./x\n", "step-beyond-job"),
}  # fmt: skip

RIGHT = {
    "python behind --no-python": (FOUR + "torchrun --standalone --nproc_per_node=4 --no-python python x.py\n"),
    "a module": FOUR + "torchrun --standalone --nproc_per_node=4 -m python.train\n",
    "a fixed host that the job asks for": (
        FOUR + "#SBATCH --nodelist=node01\nexport MASTER_ADDR=node01\nsrun -n4 -K1 python train.py\n"
    ),
    "a host from Slurm": TWO_NODES + "#SBATCH --gres=gpu:4\n" + MASTER + TRAIN,
    "a module before the environment": (
        FOUR + "module load python/3.11\nsource env/bin/activate\nmodule load cuda/12\npython train.py\n"
    ),
    "ranks on CPUs": HEAD + "#SBATCH -c 16\ntorchrun --standalone --nproc_per_node=4 train.py --backend gloo\n",
    "an item without braces in zsh": "#!/bin/zsh\n#SBATCH --time=01:00:00\nnames=(a b)\n./x $names[1]\n",
    "two steps that share the GPUs": (
        FOUR + "#SBATCH -n 2\nsrun --exact -n1 -G2 python a.py &\nsrun --exact -n1 -G2 python b.py &\nwait\n"
    ),
    "two steps that overlap": (
        FOUR + "#SBATCH -n 2\nsrun --overlap -n1 python a.py &\nsrun --overlap -n1 python b.py &\nwait\n"
    ),
    "two worlds at two ports": (
        FOUR + "torchrun --master_port=29501 --nproc_per_node=2 a.py &\n"
        "torchrun --master_port=29502 --nproc_per_node=2 b.py &\nwait\n"
    ),
    "two worlds that choose ports": (
        FOUR
        + "torchrun --standalone --nproc_per_node=2 a.py &\ntorchrun --standalone --nproc_per_node=2 b.py &\nwait\n"
    ),
}


EMULATOR = {
    "an option": ("#SBATCH --mail-type=END\n#SBATCH --ntasks-per-socket=2\n./x\n", "--ntasks-per-socket in line 5"),
    "an option of srun": ("srun --mpi=pmix -n2 ./x\n", "srun --mpi=pmix in line 4"),
    "a range of nodes": ("#SBATCH --nodes=2-4\n./x\n", "--nodes=2-4 in line 4"),
    "a file name": ("#SBATCH --output=%q.out\n./x\n", "--output=%q.out in line 4"),
    "a variable": ("export SLURM_CPU_BIND=cores SLURM_MPI_TYPE=pmix\nsrun -n2 ./x\n", "SLURM_MPI_TYPE in line 4"),
}


@pytest.mark.parametrize("case", WRONG)
def test_mistake_is_reported(case: str, tmp_path: Path) -> None:
    text, code = WRONG[case]
    assert code in codes(text, tmp_path)


@pytest.mark.parametrize("case", RIGHT)
def test_right_form_is_not_reported(case: str, tmp_path: Path) -> None:
    assert codes(RIGHT[case], tmp_path) - {"port-fixed"} == set()


@pytest.mark.parametrize("case", EMULATOR)
def test_explanation_ends_with_what_the_emulator_refuses(
    case: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text, limit = EMULATOR[case]
    (tmp_path / "job.sbatch").write_text(HEAD + text)
    assert main(["slurm", "explain", str(tmp_path / "job.sbatch"), "--traps"]) == 0
    last = " ".join(capsys.readouterr().out.partition("job.sbatch: no traps")[2].split())
    assert last.endswith(f"Frog's emulator of Slurm would refuse it (a real one may not): {limit}")
    main(["slurm", "explain", str(tmp_path / "job.sbatch"), "--json"])
    assert json.loads(capsys.readouterr().out)["emulator_refuses"] == [limit]
