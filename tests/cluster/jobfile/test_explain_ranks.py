"""Resources of steps and variables of their ranks: findings that explain must and must not report for each text."""

from __future__ import annotations

from pathlib import Path

import pytest

from frog.cluster.jobfile.explain import explain

HEAD = "#!/bin/bash\n#SBATCH --time=01:00:00\n"
TWO = HEAD + "#SBATCH --nodes=2\n#SBATCH --ntasks-per-node=4\n#SBATCH --gpus-per-node=4\n"
ONE = HEAD + "#SBATCH --nodes=1\n#SBATCH --gpus-per-node=4\n"
CPUS = HEAD + "#SBATCH --nodes=2\n#SBATCH --ntasks-per-node=8\n"
LIST = HEAD + "#SBATCH --array=1-4\nnames=(a b c d)\n"
SERVED = ONE + "vllm serve m --port 80 &\npython ask.py\n"
WRITTEN = "cat > run.sh <<{}\ntorchrun --node_rank {}SLURM_NODEID x.py\nEOF\nsrun bash run.sh\n"

REPORTED: dict[str, tuple[str, str, str]] = {
    "the job's GPUs, twice": (ONE + "srun --gpus-per-node=8 python x.py\n", "step-beyond-job", "will fail"),
    "a script for tasks": (TWO + WRITTEN.format("EOF", "$"), "written-too-early", "may hang or waste"),
    "a script for tasks, in braces": (
        TWO + WRITTEN.format("EOF", "$").replace("SLURM_NODEID", "{SLURM_NODEID}"),
        "written-too-early",
        "may hang or waste",
    ),
    "a manually set count": (
        TWO + "srun bash -c 'RANK=$SLURM_PROCID WORLD_SIZE=4 python x.py'\n",
        "world-size",
        "may hang or waste",
    ),
    "mpirun beyond its slots": (CPUS + "module load openmpi\nmpirun -np 32 ./x\n", "slots", "may hang or waste"),
    "a program alone on two nodes": (CPUS + "./solver in.txt\n", "first-node-only", "advice"),
    "the list ends before": (LIST + "./x ${names[$SLURM_ARRAY_TASK_ID]}\n", "beyond-list", "may hang or waste"),
    "the list, by a variable": (
        LIST + "n=$SLURM_ARRAY_TASK_ID\nname=${names[n]}\n./x $name\n",
        "beyond-list",
        "may hang or waste",
    ),
    "hosts, by a variable": (
        TWO + "hosts=$(scontrol show hostnames $SLURM_JOB_NODELIST)\nexport MASTER_ADDR=$hosts\nsrun python x.py\n",
        "many-hosts",
        "will fail",
    ),
    "a list for dash": (
        ONE.replace("#!/bin/bash", "#!/bin/dash") + "x=(1 2)\n./x ${x[0]}\n",
        "bash-in-sh",
        "will fail",
    ),
    "optional settings next to the file": (
        ONE + 'if [ -f "$(dirname "$0")/.env" ]; then source "$(dirname "$0")/.env"; fi\n./x\n',
        "not-its-folder",
        "advice",
    ),
    "source in sh": (ONE.replace("#!/bin/bash", "#!/bin/sh") + "source env\n./x\n", "bash-in-sh", "advice"),
    "eight copies": (
        HEAD + "#SBATCH --nodes=1\n#SBATCH -n 8\n#SBATCH --gres=gpu:1\nsrun python x.py\n",
        "same-work",
        "advice",
    ),
    "processes below GPUs": (ONE + "accelerate launch --num_processes 2 x.py\n", "gpus-idle", "may hang or waste"),
    "deepspeed in each task": (
        ONE + "#SBATCH --ntasks-per-node=4\nsrun deepspeed --num_gpus 4 x.py\n",
        "ranks-doubled",
        "may hang or waste",
    ),
    "nvidia-smi, and no GPU": (
        HEAD + "#SBATCH --cpus-per-task=4\nnvidia-smi\npython x.py\n",
        "no-gpus",
        "may hang or waste",
    ),
    "a pipe under set -e": (ONE + "set -e\npython x.py | tee log\n./next\n", "hidden-by-tee", "advice"),
    "a pipe at the end": (ONE + "srun -K python x.py 2>&1 | tee log\n", "hidden-by-tee", "advice"),
    "an array that is not requested": (HEAD + "./x $SLURM_ARRAY_TASK_ID\n", "slurm-sets-none", "advice"),
    "an id that each task's shell chooses": (
        TWO + "L='torchrun --nnodes 2 --rdzv_id $RANDOM --rdzv_backend c10d x.py'\nsrun bash -c \"$L\"\n",
        "meeting-per-task",
        "will fail",
    ),
    "no hash": (HEAD + "SBATCH --mem=4G\n./x\n", "no-directive", "may hang or waste"),
}
NOT_REPORTED: dict[str, tuple[str, str]] = {
    "a type of GPU alone": (HEAD + "#SBATCH --gpus-per-node=a100\n./x\n", "not-a-number"),
    "a step for one node of two, in a loop": (
        TWO + "for i in 1 2; do\n  srun -N1 ./x $i &\ndone\nwait\n",
        "steps-queue",
    ),
    "a step inside of a job that another file has": (
        "#!/bin/bash\nsrun -N1 -n1 -w $1 ray start --num-cpus $SLURM_CPUS_PER_TASK --block &\n",
        "slurm-sets-none",
    ),
    "a step on fewer nodes": (TWO + "srun --nodes=1 --gres=gpu:2 python x.py\n", "step-beyond-job"),
    "nodes from to": (HEAD + "#SBATCH --nodes=2-4\nsrun --nodes=3 ./x\n", "step-beyond-job"),
    "a script for tasks, quoted": (TWO + WRITTEN.format("'EOF'", "$"), "written-too-early"),
    "a script for tasks, behind a backslash": (TWO + WRITTEN.format("EOF", "\\$"), "written-too-early"),
    "a world of its own processes": (
        HEAD + "#SBATCH --nodes=2\n#SBATCH --gres=gpu:4\nexport WORLD_SIZE=8\nsrun python spawn.py\n",
        "world-size",
    ),
    "a local rank on one node": (
        ONE + "#SBATCH --ntasks=4\nsrun bash -c 'LOCAL_RANK=$SLURM_PROCID python x.py'\n",
        "local-rank",
    ),
    "mpirun over cores": (CPUS + "mpirun --oversubscribe -np 32 ./x\n", "slots"),
    "lightning that counts itself": (TWO + "srun python x.py trainer.devices=-1\n", "lightning-tasks"),
    "lightning on one device": (
        ONE + "#SBATCH --ntasks-per-node=4\npython x.py trainer.devices=1\n",
        "lightning-tasks",
    ),
    "a program that is a script": (CPUS + "./run.sh\n", "first-node-only"),
    "a list from 1": (LIST + "./x ${names[$((SLURM_ARRAY_TASK_ID - 1))]}\n", "beyond-list"),
    "a list of a pattern": (LIST.replace("a b c d", "*.txt") + "./x ${names[$SLURM_ARRAY_TASK_ID]}\n", "beyond-list"),
    "a list that grows": (LIST + "names+=(e)\n./x ${names[$SLURM_ARRAY_TASK_ID]}\n", "beyond-list"),
    "the first of the hosts": (
        TWO + "hosts=($(scontrol show hostnames $SLURM_JOB_NODELIST))\nexport MASTER_ADDR=$hosts\nsrun python x.py\n",
        "many-hosts",
    ),
    "an array by sbatch": (HEAD + "# sbatch --array=1-9 x\n./x $SLURM_ARRAY_TASK_ID\n", "slurm-sets-none"),
    "a server that the script ends": (SERVED + "kill $!\nwait\n", "waits-for-server"),
    "a server alone": (ONE + "vllm serve m --port 80 &\nwait\n", "waits-for-server"),
    "work in the background, and more": (ONE + "python a.py &\npython b.py\n", "no-wait"),
    "a pipe under pipefail": (ONE + "set -o pipefail\npython x.py | tee log\n", "hidden-by-tee"),
    "a pipe, and its code": (ONE + "python x.py | tee log\nexit ${PIPESTATUS[0]}\n", "hidden-by-tee"),
    "all of it, and more": (TWO + "srun --export=ALL,A=1 python x.py\n", "export-without-all"),
    "a variable as the program": (TWO + 'srun "$PROGRAM --x"\n', "no-shell"),
    "marks within quotes": (ONE + "python x.py --text '\u201chello\u201d'\necho \u201cdone\u201d\n", "typographic"),
    "copies that know their number": (
        HEAD + "#SBATCH --nodes=1\n#SBATCH -n 8\n#SBATCH --gres=gpu:1\nsrun bash -c 'python x.py $SLURM_PROCID'\n",
        "same-work",
    ),
    "a trap before the work": (
        ONE + "#SBATCH --signal=B:USR1@90\ntrap f USR1\npython x.py &\nwait\n",
        "trap-set-too-late",
    ),
    "GPUs of a job that a terminal has": (
        '#!/bin/bash\nexport CUDA_X=1\nsrun "$@" torchrun --nproc-per-node gpu x.py\n',
        "no-gpus",
    ),
    "an address by the caller": ("srun torchrun --rdzv_endpoint=$MASTER_ADDR:29500 x.py\n", "never-set"),
    "Pyxis": ("srun -p a --no-container-entrypoint --container-writable bash\n", "site-option"),
    "a template of at signs": (HEAD + "#SBATCH --array=1-@N@%10\n./x\n", "not-a-number"),
    "an array's log, and sbatch's --array": (
        HEAD + "#SBATCH --output=%a.out\n./x $SLURM_ARRAY_TASK_ID\n",
        "slurm-sets-none",
    ),
    "an id that the batch script's shell chooses": (
        TWO + 'L="torchrun --nnodes 2 --rdzv_id $RANDOM --rdzv_backend c10d x.py"\nsrun bash -c "$L"\n',
        "meeting-per-task",
    ),
    "a port that the batch script's shell chooses": (
        TWO + 'L="torchrun --nnodes 2 --master_port $RANDOM x.py"\nsrun bash -c "$L"\n',
        "port-per-task",
    ),
    "memory in gigabytes": (HEAD + "#SBATCH --mem=8GB\n#SBATCH -n 2\n./x\n", "not-a-number"),
    "ifs of another language": (
        ONE + "python - <<EOF\nif a:\n    b = {\n}\nEOF\npython -c '\nif a:\n    b()\n'\nx=(\n./y )) z\n",
        "quote-not-closed",
    ),
    "what the site sets": (ONE + "cp a $SLURM_TMPDIR/a\n./x $SLURM_JOB_QOS $SLURM_CLUSTER_NAME\n", "never-set"),
    "variables of two schedulers": (ONE + "#PBS -N x\ncd $PBS_O_WORKDIR\n./x\n", "never-set"),
    "an array's spans": (HEAD + "#SBATCH --array=1,3-9:2,12%4\n./x\n", "not-a-number"),
    "an array's log by job": (HEAD + "#SBATCH --array=1-2\n#SBATCH --output=%j.out\n./x\n", "output-overwritten"),
    "an item, and a glob": (HEAD + "x=(1 2)\nls $x[ab]\n", "no-braces"),
    "dollars for another reader": (ONE + "envsubst '$HOME' < a\ntorchrun --standalone x.py '$A'\n", "dollar-kept"),
    "one wait, and nothing sent": (
        ONE + "#SBATCH --signal=B:USR1@90\ntrap 'touch stop' USR1\npython x.py &\nwait\n",
        "wait-once",
    ),
    "a wait in a loop": (
        ONE + "#SBATCH --signal=B:USR1@90\ntrap 'kill -USR1 $p' USR1\npython x.py &\np=$!\n"
        "while kill -0 $p; do\n  wait $p\ndone\n",
        "wait-once",
    ),
    "a wait in the handler": (
        ONE + "#SBATCH --signal=B:USR1@90\ntrap 'kill -USR1 $p; wait $p' USR1\npython x.py &\np=$!\nwait $p\n",
        "wait-once",
    ),
    "ifs of one line, and comments": (
        ONE + "if [ -f a ]; then ./x; fi\n# if so\nx=(\n",
        "quote-not-closed",
    ),
    "a local rank where each node has one task": (
        TWO.replace("per-node=4", "per-node=1") + "export LOCAL_RANK=$SLURM_LOCALID\nsrun python x.py\n",
        "read-too-early",
    ),
    "a local rank of one task on each node, on the line": (
        TWO.replace("per-node=4", "per-node=1") + "srun python x.py --local_rank $SLURM_LOCALID\n",
        "read-too-early",
    ),
    "a dollar kept for bash -c, over several lines": (
        TWO + 'export run="torchrun \\\n --node_rank=\\$SLURM_NODEID \\\n"\nsrun bash -c "$run x.py"\n',
        "dollar-kept",
    ),
    "a container for AMD's GPUs": (
        TWO + "srun singularity exec /images/torch-rocm.sif python train.py\n",
        "container-without-gpus",
    ),
    "a list for some of the tasks": (
        LIST + "if [ $SLURM_ARRAY_TASK_ID -lt 4 ]; then\n  ./x ${names[$SLURM_ARRAY_TASK_ID]}\nelse\n  ./y\nfi\n",
        "beyond-list",
    ),
    "a list whose length is checked": (
        LIST + "n=$SLURM_ARRAY_TASK_ID\n(( n < ${#names[@]} )) || exit 0\n./x ${names[n]}\n",
        "beyond-list",
    ),
    "trainer.devices, and a step with its own tasks": (
        TWO.replace("per-node=4", "per-node=1") + "srun --ntasks-per-node=4 python x.py trainer.devices=4\n",
        "lightning-tasks",
    ),
    "trainer.devices in a session": (
        TWO + "#SBATCH --job-name=interactive\nsrun python x.py trainer.devices=2\n",
        "lightning-tasks",
    ),
    "a step that prepares, and the work behind": (
        ONE + "#SBATCH --signal=B:USR1@90\ntrap 'kill -USR1 $p; wait $p' USR1\nsrun python prepare.py\n"
        "python x.py &\np=$!\nwait $p\n",
        "trap-comes-too-late",
    ),
    "a handler that leaves": (
        ONE + "#SBATCH --signal=B:USR1@90\nset -e\ntrap 'kill $!; exit 1' USR1\npython x.py &\nwait $!\n./next\n",
        "wait-ends-script",
    ),
}


def found(text: str, folder: Path) -> dict[str, str]:
    return {item.code: item.kind for item in explain(text, Path("job.sbatch"), None, (folder,)).findings}


@pytest.mark.parametrize("name", REPORTED)
def test_rank_trap_is_reported_with_its_severity(name: str, tmp_path: Path) -> None:
    text, code, kind = REPORTED[name]
    assert found(text, tmp_path).get(code) == kind


@pytest.mark.parametrize("name", NOT_REPORTED)
def test_correct_rank_text_is_not_reported(name: str, tmp_path: Path) -> None:
    text, code = NOT_REPORTED[name]
    assert code not in found(text, tmp_path)
