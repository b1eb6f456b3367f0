"""Cases from published job files: findings that explain must and must not report for each text."""

from __future__ import annotations

from pathlib import Path

import pytest
from test_planted_mistakes import codes

from frog.cluster.jobfile.explain import explain

HEAD = "#!/bin/bash\n#SBATCH --time=01:00:00\n"
GPUS = HEAD + "#SBATCH --nodes=1\n#SBATCH --gres=gpu:2\n"
TWO = HEAD + "#SBATCH --nodes=2\n#SBATCH --gpus-per-node=4\n"
SIGNAL = GPUS + "#SBATCH --signal=B:TERM@120\n"

REPORTED: dict[str, tuple[str, str]] = {
    "an if without fi": (HEAD + "if [ -d x ]\nthen\n  python train.py\n", "quote-not-closed"),
    "a loop without done": (HEAD + "for x in 1 2; do\n  python train.py\n", "quote-not-closed"),
    "python fails, echo ends well": (HEAD + "python train.py\necho done\n", "goes-on-after-errors"),
    "torchrun in a loop": (GPUS + "for x in 1 2; do\n  torchrun train.py $x\ndone\necho all\n", "goes-on-after-errors"),
    "exit 0 at the end": (HEAD + "python -m train x\nexit 0\n", "goes-on-after-errors"),
    "module purge does not define conda": (GPUS + "module purge\nconda activate x\n./run\n", "conda-not-ready"),
    "module purge --force does not define conda": (
        GPUS + "module --force purge\nconda activate x\n./run\n",
        "conda-not-ready",
    ),
    "module cuda does not define conda": (
        GPUS + "module load cuda/11.4 gcc\nconda activate x\n./run\n",
        "conda-not-ready",
    ),
    "a server in the background, and the end": (GPUS + "vllm serve model &\n", "no-wait"),
    "80 megabytes": (GPUS + "#SBATCH --mem=80\npython train.py\n", "memory-in-megabytes"),
    "your_account": (HEAD + "#SBATCH --account=your_account\nx\n", "template"),
    "idle GPUs behind a path with a launcher's name": (
        GPUS + "export HOME_OF=/envs/deepspeed\nsrun torchrun --nproc-per-node=1 train.py\n",
        "gpus-idle",
    ),
    "a list that is never set": (GPUS + "MY_ARGS=(-x)\npython x.py ${MY_ARG[@]}\n", "never-set"),
    "a trap before uv run": (SIGNAL + "trap 'touch stop' TERM\nuv run torchrun x.py\n", "trap-comes-too-late"),
    "a task's script in a variable": (
        HEAD + "#SBATCH --ntasks-per-node=8\n#SBATCH --gres=gpu:8\nCMD='cd x;\npython x.py'\nsrun bash -c \"$CMD\"\n",
        "goes-on-without-one",
    ),
    "nodes on the command line": (
        HEAD + 'srun bash -c "torchrun --nnodes=$SLURM_NNODES --node-rank=$SLURM_NODEID x.py"\n',
        "read-too-early",
    ),
    "a short sleep does not wait": (TWO + "for x in 1 2; do\n  srun -N1 --exact x &\n  sleep 2\ndone\n", "no-wait"),
    "another trap, and a sourced file": (
        GPUS + "#SBATCH --signal=B:USR1@90\n. ./own.sh\ntrap f USR2\npython x.py &\nwait\n",
        "signal-not-trapped",
    ),
    "a head cut off": (TWO + "HEAD=${SLURM_JOB_NODELIST%%,*}\nsrun x $HEAD\n", "nodelist-folded"),
    "an option without a value behind a command": (HEAD + "x\n#SBATCH --exclusive\n", "after-a-command"),
    "a wait for a server that never ends": (
        GPUS + "ray start --head --block &\nSERVER=$!\npython x.py\nwait $SERVER || true\nray stop\n",
        "never-returns",
    ),
    "a trap that kills torchrun": (
        GPUS + "#SBATCH --signal=B:USR1@90\nf() { kill -USR1 $P; }\ntrap f USR1\ntorchrun x.py &\nP=$!\nwait $P\n",
        "signal-kills-torchrun",
    ),
    "counts that the caller sets": (
        GPUS + "srun torchrun --nproc-per-node=$GPU_PER_NODE --nnodes=$NUM_NODES $TRAIN_SCRIPT\n",
        "from-caller",
    ),
    "a count that is never set": ("srun -p gpu torchrun --nproc-per-node=$GPU_NUM x.py\n", "never-set"),
    "work that is timed": (GPUS + "time python x.py\ndate\n", "goes-on-after-errors"),
    "work in a counted loop": (
        GPUS + "for ((i=0; i<3; i++)); do srun -n2 python x.py; done\ndate\n",
        "goes-on-after-errors",
    ),
    "one GPU of two": (GPUS + "export CUDA_VISIBLE_DEVICES=0\npython x.py\n", "gpus-idle"),
    "a GPU that the job has not, after an unknown one": (
        GPUS + "export CUDA_VISIBLE_DEVICES=$1\nexport CUDA_VISIBLE_DEVICES=2\npython x.py\n",
        "gpu-not-there",
    ),
    "a GPU that the job has not": (GPUS + "export CUDA_VISIBLE_DEVICES=2\npython x.py\n", "gpu-not-there"),
    "a directive with a small letter": ("#!/bin/bash\n#sBATCH -t 3\n#SBATCH -n 1\n./x\n", "not-a-directive"),
    "an at and braces": (HEAD + "python x.py --style @{style}\n", "template"),
    "crosses": (HEAD + "#SBATCH --partition=XXXXX\n./x\n", "template"),
    "a folder of the job id": (HEAD + "#SBATCH --output=log/%j-%x/out.txt\n./x\n", "no-output-folder"),
    "one hyphen": (HEAD + "#SBATCH -nodes=3\n./x\n", "not-an-option"),
    "a tilde": (HEAD + "#SBATCH --output=~/x-%j.out\n./x\n", "variable-in-directive"),
    "one cross": (HEAD + "#SBATCH -p X\n./x\n", "template"),
    "a path to be filled in": (HEAD + "#SBATCH --output=OUTPUT_PATH\n./x\n", "template"),
    "a list behind blanks": (HEAD + "nodes =( $(hostname) )\n./x $nodes\n", "blank-behind-equals"),
    "a step on one node of two": (TWO + "SCRIPT=train.sh\nsrun --nodes=1 --ntasks=1 bash $SCRIPT\n", "gpus-idle"),
    "python without srun, and a host name query": (
        TWO + "IP=$(srun -N1 -n1 hostname -i)\npython x.py run=pretrain rdzv=$IP\n",
        "first-node-only",
    ),
    "an elseif": (HEAD + "if [ $1 == a ]; then\n  ./x\nelseif [ $1 == b ]; then\n  ./y\nfi\n", "no-such-word"),
    "a condition without its last blank": (HEAD + "if [ $1 == a]; then\n  ./x\nfi\n", "no-such-word"),
    "a comment behind an assignment": (
        HEAD + "PYTHONPATH=src:$PYTHONPATH \\\n# srun -p a \\\nsrun -p b python x.py\n",
        "broken-line",
    ),
    "comments among an option's lines": (
        HEAD + "python x.py \\\n  --a 1 \\\n  # --b 2 \\\n  # --c 3\n  --d 4\n",
        "broken-line",
    ),
    "a comment among settings": (HEAD + "python x.py \\\n  a=1 \\\n  # b=2 \\\n  c=3\n", "broken-line"),
    "a job that echo writes": (
        "#!/bin/bash\nF=x.sh\necho '#!/bin/bash' > $F\necho \"#SBATCH -t 48\" >> $F\necho ./x >> $F\nsbatch $F\n",
        "time-in-minutes",
    ),
    "a job in one echo": (
        '#!/bin/bash\necho "#!/bin/bash\n#SBATCH --ntask-per-node=2\nsrun ./x $1" >x.job\nsbatch x.job\n',
        "not-an-option",
    ),
    "a virtual environment of the first node": (
        TWO + "virtualenv $SLURM_TMPDIR/env\nsource $SLURM_TMPDIR/env/bin/activate\nsrun -K python x.py\n",
        "on-first-node-only",
    ),
    "a file for tcsh": ("#!/bin/tcsh\n#SBATCH -t 3\nif ( $A == 1 ) then\n  ./x\nendif\n", "not-understood"),
    "two memories, one for GPUs": (HEAD + "#SBATCH --mem=9G\n#SBATCH --mem-per-gpu=9G\n./x\n", "two-memories"),
    "a name in brackets": (HEAD + "#SBATCH --account=[account]\n./x\n", "template"),
    "deepspeed on each node, alone": (TWO + "#SBATCH --ntasks-per-node=1\nsrun deepspeed x.py\n", "no-hostfile"),
    "a dollar before a name": (HEAD + "$FILE=$1\n./x $FILE\n", "dollar-before-name"),
    "an answer for a number": (
        "#!/bin/bash\nA=$(sbatch a.sh)\nsbatch --dependency=afterok:$A b.sh\n",
        "answer-for-number",
    ),
    "an empty line before the shell": ("#!/bin/bash\nsbatch <<E\n\n" + HEAD + "./x\nE\n", "no-shebang"),
}
NOT_REPORTED: dict[str, tuple[str, str]] = {
    "deepspeed in a step of one node": (TWO + "srun -N1 -n1 deepspeed x.py\n", "no-hostfile"),
    "deepspeed with a hostfile": (TWO + "srun deepspeed --hostfile h x.py\n", "no-hostfile"),
    "an array of one task": (HEAD + "#SBATCH --array=1-1\n#SBATCH -o x_%A\n./x\n", "output-overwritten"),
    "an image for shifter": (HEAD + "#SBATCH --image=a/b:c\nsrun shifter ./x\n", "site-option"),
    "a time that one dash makes of another option": (HEAD + "#SBATCH -tasks-per-node=5\n./x\n", "said-twice"),
    "an option that would be refused, behind a command": (HEAD + "./x\n#SBATCH -i\n", "after-a-command"),
    "a number cut out of an answer": (
        "#!/bin/bash\nA=$(sbatch a.sh)\nsbatch --dependency=afterok:${A##* } b.sh\n",
        "answer-for-number",
    ),
    "a number cut out of an answer and stored": (
        "#!/bin/bash\nA=$(sbatch a.sh)\nA=${A##* }\nsbatch --dependency=afterok:$A b.sh\n",
        "answer-for-number",
    ),
    "a script that writes a job file": (
        '# usage: sbatch-make NAME\necho "#!/bin/bash" > $1.sh\necho "#SBATCH -J $1" >> $1.sh\n',
        "no-shebang",
    ),
    "an output file that a program names": (
        HEAD + "#SBATCH -p {Q}\n#SBATCH -o JOB{run}_{NAME}.out\n./x\n",
        "output-overwritten",
    ),
    "mail types add up": (HEAD + "#SBATCH --mail-type=END\n#SBATCH --mail-type=FAIL\nx\n", "said-twice"),
    "--cluster is --clusters": (HEAD + "#SBATCH --cluster genius\nx\n", "not-an-option"),
    "a torchrun without the signal": (SIGNAL + "torchrun train.py\n", "short-grace"),
    "a signal without a handler": (SIGNAL + "python train.py\n", "no-requeue"),
    "the exit code is checked": (HEAD + "python train.py\ncode=$?\necho $code\n", "goes-on-after-errors"),
    "if as a word": (HEAD + "echo if then do case\nx=(\n", "quote-not-closed"),
    "called from a terminal": ("srun -p gpu -N1 --time=12:00 python train.py &\n", "no-shebang"),
    "called from a terminal, a limit": ("#!/bin/bash\nsrun -p gpu -t 9 python train.py\n", "no-time-limit"),
    "called from a terminal, background": ("#!/bin/bash\nsrun -p gpu python train.py &\n", "no-wait"),
    "a folder with a launcher's name": (TWO + "export HOME_OF=/envs/deepspeed\nsrun x\n", "no-hostfile"),
    "c10d numbers the nodes": (
        TWO + "srun torchrun --nnodes=2 --rdzv-backend=c10d --node-rank=$SLURM_NODEID train.py\n",
        "read-too-early",
    ),
    "ray that ends immediately": (TWO + "srun ray start --block\nsrun python x.py\n", "never-returns"),
    "a partition of whole nodes": (
        HEAD + "#SBATCH -p gpu\nexport CUDA_VISIBLE_DEVICES=0,1\ntorchrun --nproc-per-node=2 x.py\n",
        "no-gpus",
    ),
    "an empty number of CPUs": (TWO + "#SBATCH --cpus-per-task=\nsrun python x.py\n", "cpus-not-passed-on"),
    "a wait for a server, at the end": (GPUS + "vllm serve m &\nPID=$!\ncurl x\nwait $PID\n", "never-returns"),
    "a wait for a server that was ended": (
        GPUS + "vllm serve m &\nPID=$!\npython x.py\nkill $PID\nwait $PID\npython y.py\n",
        "never-returns",
    ),
    "one task in all": ("srun -n1 --ntasks-per-node=4 torchrun --nproc-per-node=4 x.py\n", "ranks-doubled"),
    "another job continues": (
        SIGNAL + "trap 'echo' TERM\nf() { sbatch x; }\npython x.py &\nwait $!\nf\n",
        "no-requeue",
    ),
    "a trap that does not end torchrun": (
        GPUS + "#SBATCH --signal=B:USR1@90\ntrap 'touch stop' USR1\ntorchrun x.py &\nwait $!\n",
        "short-grace",
    ),
    "tested before it is read": (
        GPUS + '[[ -n "${SLURM_CPUS_PER_TASK:-}" ]] && A+=("n=$SLURM_CPUS_PER_TASK")\npython x.py ${A[@]}\n',
        "slurm-sets-none",
    ),
    "all options come from the command line": (
        "#!/bin/bash\n#SBATCH -J x -n 1\npython x.py\n",
        "no-time-limit",
    ),
    "both of its GPUs": (GPUS + "export CUDA_VISIBLE_DEVICES=0,1\npython x.py\n", "gpu-not-there"),
    "local wheels": (GPUS + "pip install wheels/*\npython x.py\n", "network"),
    "given by its caller": ("torchrun --nnodes=$NNODES --nproc-per-node=$NGPU x.py\n", "never-set"),
    "one GPU for each": (
        GPUS + "CUDA_VISIBLE_DEVICES=0 python x.py &\nCUDA_VISIBLE_DEVICES=1 python y.py &\nwait\n",
        "gpus-idle",
    ),
    "directives put away behind the commands": (HEAD + "./x\n# SBATCH --mem=32G\n", "not-a-directive"),
    "a port that is not used": (
        GPUS + "export MASTER_PORT=12340\ntorchrun --nproc_per_node=1 --master_port=0 x.py\n",
        "port-fixed",
    ),
    "counts that the caller sets": (
        GPUS + "srun torchrun --nproc-per-node=$GPU_PER_NODE --nnodes=$NUM_NODES $TRAIN_SCRIPT\n",
        "never-set",
    ),
    "some megabytes without GPUs": (HEAD + "#SBATCH --mem=100\nhostname\n", "memory-in-megabytes"),
    "a path that is exported": (HEAD + "#SBATCH --export=LD_LIBRARY_PATH\n./x\n", "template"),
    "counts of many forms": (
        HEAD + "#SBATCH -N 2-4 -n 2k --gpus=a100:2 --gpus-per-node=gpu:h100:8\n./x\n",
        "not-a-number",
    ),
    "a driver on one node": (
        TWO + "srun ray start --block &\nsrun --overlap -N1 -n1 python x.py\nwait\n",
        "gpus-idle",
    ),
    "a dollar for another reader": (
        HEAD + 'echo \\$X\nsrun bash -c ./x\\ \\$SLURM_PROCID\nY="a \\$X"\n./x "\\$X" \'\\$X\'\n',
        "dollar-kept",
    ),
    "fewer tasks than fit": (HEAD + "#SBATCH -N 2 -n 4 --ntasks-per-node=4\n./x\n", "tasks-beyond-nodes"),
    "a node that one task leaves to others": (
        HEAD + "#SBATCH -N 2 -n 1\ntorchrun --nproc-per-node=2 x.py\n",
        "nodes-apart",
    ),
    "a list's items, and git's upstream": (HEAD + 'git reset --hard @{u}\n./x "${A[@]}" $@\n', "template"),
    "a folder of the job's name": (HEAD + "#SBATCH --output=log/%x/%j.txt\n./x\n", "no-output-folder"),
    "a condition like any": (HEAD + "if [ -d x ]; then ./x; fi\n[[ $1 == [0-9] ]] && ./y\n", "no-such-word"),
    "a last option put away": (HEAD + "python x.py \\\n  --a 1 \\\n  # --b 2 \\\n\n./y\n", "broken-line"),
    "a last option put away, no blank line": (
        HEAD + "python x.py \\\n  --a 1 \\\n  # --b 2 \\\npython y.py\n",
        "broken-line",
    ),
    "a job that echo may write": (
        "#!/bin/bash\nif true; then\n  echo '#SBATCH -t 48' >> x\nfi\nsbatch x\n",
        "time-in-minutes",
    ),
    "a directive that echo writes": (
        HEAD + 'echo "#!/bin/bash\n#SBATCH --mem=1G\n./x" > next.sh\nsbatch next.sh\n',
        "after-a-command",
    ),
    "a file for tcsh": ("#!/bin/tcsh\n#SBATCH -t 3\nif ( $A == 1 ) then\n  ./x\nendif\n", "quote-not-closed"),
    "an image that is pushed": (
        TWO + "docker build --push -t r/x .\nsrun docker run r/x torchrun --nnodes=2 x.py\n",
        "on-first-node-only",
    ),
    "files for the first node": (TWO + "cp a /tmp/a\n./x /tmp/a\nsrun -N1 -n1 ./y /tmp/a\n", "on-first-node-only"),
    "files that srun copies": (TWO + "srun -K cp a /tmp/a\nsrun -K python x.py /tmp/a\n", "on-first-node-only"),
    "a module that may define conda": (GPUS + "module load cuda anaconda3\nconda activate x\n./x\n", "conda-not-ready"),
    "a here-document in quotes": ("#!/bin/bash\nsbatch <<'E'\n" + HEAD + "echo $SLURM_JOB_ID\nE\n", "read-at-hand-in"),
    "a job that submits the next": (HEAD + "sbatch <<E\n" + HEAD + "echo $SLURM_JOB_ID\nE\n", "read-at-hand-in"),
}


@pytest.mark.parametrize("name", REPORTED)
def test_published_trap_is_reported(name: str, tmp_path: Path) -> None:
    text, code = REPORTED[name]
    assert code in codes(text, tmp_path)


@pytest.mark.parametrize("name", NOT_REPORTED)
def test_correct_published_text_is_not_reported(name: str, tmp_path: Path) -> None:
    text, code = NOT_REPORTED[name]
    assert code not in codes(text, tmp_path)


def test_options_without_values_cause_one_finding(tmp_path: Path) -> None:
    text = HEAD + "#SBATCH --nodes=\n#SBATCH --gres=\nx\n"
    (finding,) = explain(text, Path("job.sbatch"), None, (tmp_path,)).findings
    assert (finding.code, finding.line, finding.what) == ("not-an-option", 3, "--nodes: has no value, as in line 4")


def test_line_with_a_wrong_option_causes_one_finding(tmp_path: Path) -> None:
    text = "#!/bin/bash\n#SBATCH -t 3 -n 4\n#SBATCH -n_tasks_per_node 4\n./x\n"
    (finding,) = explain(text, Path("job.sbatch"), None, (tmp_path,)).findings
    assert finding.code == "not-a-number"


@pytest.mark.parametrize(
    ("line", "code", "kind"),
    [
        ("# SBATCH --job-name=x", "not-a-directive", "advice"),
        ("# SBATCH --mail-type=END --mem=9G", "not-a-directive", "may hang or waste"),
        ("# SBATCH --nodes=1", "not-a-directive", "advice"),
        ("# SBATCH --nodes=2", "not-a-directive", "may hang or waste"),
        ("#SBATCH --gpus=1\n# SBATCH --gpus-per-task=1", "not-a-directive", "advice"),
        ("./x\n#SBATCH --output=x-%j.txt", "after-a-command", "advice"),
        ("#Sbatch -n 1", "not-a-directive", "advice"),
        ("#Sbatch -n 2", "not-a-directive", "may hang or waste"),
        ("#SBATCH --mail-user=$USER", "variable-in-directive", "advice"),
        ("#SBATCH --account=$USER", "variable-in-directive", "may hang or waste"),
        ("./x\n#SBATCH --mem=9G", "after-a-command", "may hang or waste"),
    ],
)
def test_severity_of_an_ignored_line_depends_on_its_request(line: str, code: str, kind: str, tmp_path: Path) -> None:
    (finding,) = explain(f"{HEAD}{line}\n./x\n", Path("job.sbatch"), None, (tmp_path,)).findings
    assert (finding.code, finding.kind) == (code, kind)


def test_finding_in_text_of_echo_has_its_line(tmp_path: Path) -> None:
    text = "#!/bin/bash\n\nF=x\necho '#!/bin/bash' > $F\n# why\necho \"#SBATCH -t 48\" >> $F\nsbatch $F\n"
    (finding,) = explain(text, Path("job.sbatch"), None, (tmp_path,)).findings
    assert (finding.code, finding.line) == ("time-in-minutes", 6)


@pytest.mark.parametrize(
    ("written", "instead"),
    [
        ("-tasks-per-node=5", "--tasks-per-node=5"),
        ("-gres=gpu:1", "--gres=gpu:1"),
        ("--cpus=16", "--cpus-per-task=16"),
    ],
)
def test_unknown_option_gets_a_suggestion(written: str, instead: str, tmp_path: Path) -> None:
    (finding,) = explain(f"{HEAD}#SBATCH {written}\n./x\n", Path("job.sbatch"), None, (tmp_path,)).findings
    assert (finding.code, finding.instead) == ("not-an-option", instead)
