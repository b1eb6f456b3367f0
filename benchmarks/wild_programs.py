"""Run public programs for CUDA and NCCL with simulated GPUs, or plan them, from a folder of clones.

    python benchmarks/wild_programs.py CLONES [--only WORD] [--python PYTHON] [--json results.json]
    python benchmarks/wild_programs.py CLONES --plan

With `--plan` each program that torchrun starts and that trains is planned instead, with the same arguments, on as many
H100s: it counts if `frog plan -- PROGRAM` prints a plan.

CLONES holds one clone per repository, named OWNER_NAME. Nothing is downloaded: programs that read a data set or a model
find small ones that this script makes in CLONES/.data. The table is in benchmarks/results/wild_programs.md.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import re
import signal
import struct
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path

from frog.observe.environment import simulated_gpus

TORCHRUN = "{python} -m torch.distributed.run --standalone --nproc-per-node"
NANO = (
    "--max_iters=6 --eval_interval=3 --eval_iters=2 --log_interval=1 --n_layer=2 --n_embd=64 --n_head=2 --block_size=64"
)
LLM = (
    "train_llm.py -d {data}/words -m {data}/llama --num-epochs 1 -b 2 -s 64 --log-freq 1 --ckpt-freq 4"
    " --save-dir {data}/out -e "
)
HF_TRAINER = (
    "--num_train_epochs 1 --max_steps 3 --per_device_train_batch_size 2 --logging_steps 1 --save_strategy no"
    " --report_to none"
)
TRL = (
    "trl/scripts/sft.py --model_name_or_path {data}/llama --dataset_name {data}/words --output_dir {data}/out-trl"
    f" --max_length 64 --bf16 True {HF_TRAINER}"
)
CLM = (
    "run_clm.py --config_name {data}/llama --tokenizer_name {data}/llama --train_file {data}/words/train.txt --do_train"
    " --block_size 64 --bf16 --output_dir {data}/out-clm --overwrite_output_dir --max_steps 6 --save_steps 3"
    " --per_device_train_batch_size 2 --logging_steps 1 --report_to none"
)


@dataclass(frozen=True)
class Program:
    """A public program, its command, and what it needs."""

    repository: str
    folder: str
    command: str
    gpus: int = 2
    needs: tuple[str, ...] = ()
    """Packages beyond torch: a program is left out if the Python lacks one."""
    prepare: Callable[[Path, Path], None] | None = None
    environment: dict[str, str] = field(default_factory=dict)
    timeout_s: int = 300


def link(name: str, *, to: str) -> Callable[[Path, Path], None]:
    """Return a preparation that links a path in the program's folder to data."""

    def prepare(folder: Path, data: Path) -> None:
        path = folder / to
        path.parent.mkdir(parents=True, exist_ok=True)
        path.unlink(missing_ok=True)
        path.symlink_to(data / name)

    return prepare


def characters(folder: Path, data: Path) -> None:
    """Encode the text as nanoGPT's data set of characters."""
    target = folder / "data" / "shakespeare_char"
    (target / "input.txt").write_text((data / "words" / "train.txt").read_text())
    subprocess.run([sys.executable, "prepare.py"], cwd=target, check=True, capture_output=True)


def torchrun(count: int, program: str) -> str:
    """Return a torchrun command."""
    return f"{TORCHRUN} {count} {program}"


EXAMPLES, DDP = "pytorch/examples", "distributed/ddp-tutorial-series"
LAMBDA = "LambdaLabsML/distributed-training-guide"
TRANSFORMERS, CLM_FOLDER = "apt-team-018/transformers-usf", "examples/pytorch/language-modeling"
VISION = ("torchvision",)
HF = ("transformers", "datasets")
PROGRAMS = [
    Program(EXAMPLES, DDP, "{python} single_gpu.py 2 1", 1),
    Program(EXAMPLES, DDP, "{python} multigpu.py 2 1"),
    Program(EXAMPLES, DDP, torchrun(2, "multigpu_torchrun.py 4 2")),
    Program(EXAMPLES, DDP, torchrun(2, "multinode.py 4 2")),
    Program(EXAMPLES, "distributed/ddp", torchrun(2, "example.py")),
    Program(EXAMPLES, "distributed/FSDP2", torchrun(2, "example.py --mixed-precision --explicit-prefetching")),
    Program(EXAMPLES, "distributed/FSDP2", torchrun(2, "example.py --dcp-api")),
    Program(EXAMPLES, "distributed/tensor_parallelism", torchrun(4, "tensor_parallel_example.py"), 4),
    Program(EXAMPLES, "distributed/tensor_parallelism", torchrun(4, "sequence_parallel_example.py"), 4),
    Program(EXAMPLES, "distributed/tensor_parallelism", torchrun(4, "fsdp_tp_example.py"), 4),
    Program(
        EXAMPLES,
        "distributed/minGPT-ddp/mingpt",
        torchrun(
            2,
            "main.py data_config.path={data}/words/train.txt data_config.block_size=32 data_config.truncate=0.02"
            " gpt_config.n_layer=2 gpt_config.n_head=2 gpt_config.n_embd=32 trainer_config.max_epochs=1"
            " trainer_config.batch_size=16 trainer_config.data_loader_workers=0",
        ),
        needs=("hydra", "fsspec", "boto3"),
    ),
    Program(EXAMPLES, "distributed/rpc/ddp_rpc", "{python} main.py"),
    Program(EXAMPLES, "distributed/rpc/pipeline", "{python} main.py", needs=VISION),
    Program(
        EXAMPLES,
        "imagenet",
        "{python} main.py {data}/imagenet -a resnet18 -b 4 --epochs 1 -j 0 -p 1 --multiprocessing-distributed"
        " --world-size 1 --rank 0 --dist-url tcp://127.0.0.1:23456",
        needs=VISION,
    ),
    Program(
        EXAMPLES, "mnist", "{python} main.py --epochs 1 --dry-run", 1, VISION, link("mnist", to="../data/MNIST")
    ),
    Program("karpathy/nanoGPT", "", torchrun(2, f"train.py config/train_shakespeare_char.py {NANO} --compile=False"
            " --gradient_accumulation_steps=2"), needs=("requests",), prepare=characters),
    Program("karpathy/nanoGPT", "", f"{{python}} train.py config/train_shakespeare_char.py {NANO} --compile=True",
            needs=("requests",), prepare=characters),
    Program("karpathy/minGPT", "",
            "{python} projects/adder/adder.py --trainer.max_iters=20 --model.model_type=gpt-nano", 1,
            environment={"PYTHONPATH": "."}),
    Program("huggingface/picotron", "", torchrun(4, "train.py --config {data}/picotron.json"), 4,
            (*HF, "wandb"), link("llama", to="hf_model_safetensors")),
    Program("huggingface/picotron_tutorial", "step5_data_parallel_naive", torchrun(2, "train.py --dp_size 2"
            " --model_name {data}/llama --dataset_name {data}/words --num_hidden_layers 2 --num_attention_heads 4"
            " --num_key_value_heads 4 --num_proc 1 --num_workers 0 --max_tokens 1000"), 2,
            (*HF, "wandb", "lovely_tensors")),
    Program("PrincetonUniversity/multi_gpu_training", "02_pytorch_ddp",
            torchrun(2, "--no-python bash -c 'SLURM_PROCID=$RANK SLURM_GPUS_ON_NODE=2 {python} simple_dpp.py'")),
    Program("PrincetonUniversity/multi_gpu_training", "02_pytorch_ddp",
            torchrun(2, "--no-python bash -c 'SLURM_PROCID=$RANK SLURM_GPUS_ON_NODE=2 SLURM_CPUS_PER_TASK=1 {python}"
            " mnist_classify_ddp.py --epochs 1 --dry-run'"), 2, VISION, link("mnist", to="data/MNIST")),
    Program("CSCfi/pytorch-ddp-examples", "", torchrun(2, "mnist_ddp.py --epochs 1"), 2, VISION,
            link("mnist", to="data/MNIST")),
    Program("CSCfi/pytorch-ddp-examples", "", torchrun(2, "mnist_accelerate.py --epochs 1"), 2, (*VISION, "accelerate"),
            link("mnist", to="data/MNIST")),
    Program("CSCfi/pytorch-ddp-examples", "", torchrun(2, "mnist_lightning_ddp.py --epochs 1 --gpus 2"), 2,
            (*VISION, "pytorch_lightning", "mlflow"), link("mnist", to="data/MNIST")),
    Program("NERSC/sc24-dl-tutorial", "", torchrun(2, "--no-python bash -c 'SLURM_PROCID=$RANK"
            " SLURM_LOCALID=$LOCAL_RANK {python} train.py --yaml_config {data}/nersc.yaml --config small"
            " --amp_mode bf16 --enable_fused'"), 2, ("h5py", "tensorboard", "ruamel.yaml")),
    Program(LAMBDA, "02-distributed-data-parallel", torchrun(2, LLM + "ddp"), 2, HF),
    Program(LAMBDA, "04-fully-sharded-data-parallel", torchrun(2, LLM + "fsdp"), 2, HF),
    Program(LAMBDA, "06-tensor-parallel", torchrun(2, LLM + "tp"), 2, HF),
    Program(LAMBDA, "07-2d-parallel", torchrun(4, LLM + "2d -tp 2"), 4, HF),
    Program(LAMBDA, "alternative-frameworks/deepspeed", torchrun(2, LLM.replace(" -b 2", "")
            + "ds --deepspeed_config ds_config.json"), 2, (*HF, "deepspeed")),
    Program("stas00/ml-engineering", "debug", torchrun(2, "torch-distributed-gpu-test.py")),
    Program("stas00/ml-engineering", "network/benchmarks", torchrun(2, "all_gather_object_vs_all_reduce.py")),
    Program("pytorch/PiPPy", "examples/basic", torchrun(4, "example.py"), 4, environment={"PYTHONPATH": "../.."}),
    Program("pytorch/PiPPy", "examples/basic", torchrun(4, "example_train.py"), 4, environment={"PYTHONPATH": "../.."}),
    Program("pytorch/PiPPy", "examples/huggingface", torchrun(2, "pippy_gpt2.py --n_embd 64 --n_layer 4 --n_head 4"),
            2, HF, environment={"PYTHONPATH": "../.."}),
    Program("pytorch/torchtitan", "", torchrun(2, "-m torchtitan.train --module llama3 --config llama3_debugmodel"
            " --training.steps 4 --training.num-tokens-per-microbatch-per-dp-rank 512"
            " --training.max-context-length 256"), 2, ("grain", "tyro", "spmd_types", "triton"),
            link("c4.json", to="tests/assets/c4_test/data.json"), timeout_s=500),
    Program("huggingface/accelerate", "src/accelerate/test_utils/scripts", torchrun(2, "test_script.py"), 2,
            ("accelerate",), timeout_s=500),
    Program("huggingface/accelerate", "src/accelerate/test_utils/scripts", torchrun(2, "test_sync.py"), 2,
            ("accelerate",), timeout_s=500),
    Program("huggingface/accelerate", "src/accelerate/test_utils/scripts", torchrun(2, "test_ops.py"), 2,
            ("accelerate",)),
    Program("deepspeedai/DeepSpeedExamples", "training/bf16_master_weight", torchrun(2,
            "train.py --hidden_dim 64 --num_layers 2 --num_heads 2 --vocab_size 100 --batch_size 2 --seq_length 16"
            " --num_steps 4 --warmup_steps 1 --deepspeed_config configs/baseline.json"), 2, ("deepspeed",),
            timeout_s=900),
    Program("deepspeedai/DeepSpeedExamples", "training/offload_states", torchrun(2,
            "offload_states.py --hidden_dim 64 --iteration 2 --warmup 1 --dtype torch.bfloat16"), 2, ("deepspeed",)),
    Program("deepspeedai/DeepSpeedExamples", "training/tensor_parallel/basic_example", torchrun(2,
            "autotp_example.py --model_name {data}/llama --tp_size 2 --dp_size 1 --zero_stage 2 --batch_size 1"
            " --seq_length 64 --num_steps 2"), 2, (*HF, "deepspeed")),
    Program("deepspeedai/DeepSpeedExamples", "training/tensor_parallel/hf_integration", torchrun(2,
            "train.py --model_name_or_path {data}/llama --data_path {data}/alpaca.json --output_dir {data}/out-zero"
            " --deepspeed {data}/zero2.json --bf16 True --tf32 True " + HF_TRAINER), 2, (*HF, "deepspeed")),
    Program("huggingface/trl", "", torchrun(2, TRL), 2, (*HF, "trl")),
    Program("huggingface/trl", "", torchrun(2, f"{TRL} --fsdp full_shard --fsdp_config {{data}}/fsdp1.json"), 2,
            (*HF, "trl")),
    Program("tatsu-lab/stanford_alpaca", "", torchrun(2, "train.py --model_name_or_path {data}/llama --data_path"
            " {data}/alpaca.json --output_dir {data}/out-alpaca --bf16 True " + HF_TRAINER), 2,
            (*HF, "accelerate")),
    Program(TRANSFORMERS, CLM_FOLDER, torchrun(2, CLM), 2, (*HF, "evaluate")),
    Program(TRANSFORMERS, CLM_FOLDER, torchrun(2, f"{CLM} --fsdp 'full_shard auto_wrap'"), 2, (*HF, "evaluate")),
]  # fmt: skip

NOT_TRAINING = ("gpu-test", "all_reduce.py", "pippy_gpt2", "test_script", "test_ops", "test_sync", "offload_states")
"""Words in the commands of programs without a training loop."""


def make_data(data: Path) -> None:
    """Make a small text, a tokenizer and model, and a data set in the form of MNIST."""
    words = ["the", "king", "and", "my", "lord", "shall", "love", "to", "be", "not", "of", "in", "night", "day"]
    draw = random.Random(1)
    (data / "words").mkdir(parents=True, exist_ok=True)
    lines = [" ".join(draw.choice(words) for _ in range(12)) for _ in range(2000)]
    (data / "words" / "train.txt").write_text("\n".join(lines))
    (data / "tokens.bin").write_bytes(
        struct.pack("<256i", 20240520, 1, 20000, *[0] * 253)
        + struct.pack("<20000H", *[draw.randrange(50257) for _ in range(20000)])
    )
    examples = [{"instruction": line, "input": "", "output": line} for line in lines[:64]]
    (data / "c4.json").write_text("\n".join(json.dumps({"text": line}) for line in lines))
    (data / "alpaca.json").write_text(json.dumps(examples))
    (data / "fsdp1.json").write_text(json.dumps({"version": 1}))
    (data / "zero2.json").write_text(json.dumps(ZERO2))
    (data / "nersc.yaml").write_text(NERSC.replace("DATA", str(data)))
    (data / "picotron.json").write_text(json.dumps(_picotron(data)))
    _make_mnist(data / "mnist" / "raw", draw)


ZERO2 = {
    "bf16": {"enabled": "auto"},
    "optimizer": {"type": "AdamW", "params": {"lr": "auto"}},
    "zero_optimization": {"stage": 2},
    "train_batch_size": "auto",
    "train_micro_batch_size_per_gpu": "auto",
}

NERSC = """small:
  embed_dim: 32
  depth: 2
  dropout: 0.0
  patch_size: 8
  num_heads: 4
  img_size: [32, 64]
  dt: 1
  global_batch_size: 4
  num_iters: 4
  amp_mode: none
  enable_fused: false
  enable_jit: false
  expdir: 'DATA/out-nersc'
  lr_schedule: 'cosine'
  lr: 5E-4
  warmup: 0
  optimizer: 'Adam'
  data_loader_config: 'pytorch'
  num_data_workers: 0
  n_in_channels: 20
  n_out_channels: 20
  train_data_path: 'DATA/nersc/train'
  valid_data_path: 'DATA/nersc/valid'
  inf_data_path: 'DATA/nersc/valid'
  time_means_path: 'DATA/nersc/stats/time_means.npy'
  global_means_path: 'DATA/nersc/stats/global_means.npy'
  global_stds_path: 'DATA/nersc/stats/global_stds.npy'
  limit_nsamples: 16
  limit_nsamples_val: 4
  wireup_info: env
  wireup_store: tcp
"""


def _picotron(data: Path) -> dict[str, object]:
    return {
        "distributed": {"tp_size": 2, "cp_size": 1, "pp_size": 1, "dp_size": 2, "pp_engine": "1f1b", "backend": "nccl",
                        "use_cpu": False},
        "model": {"name": str(data / "llama"), "num_hidden_layers": 2, "num_attention_heads": 4,
                  "num_key_value_heads": 4, "dtype": "bfloat16", "use_flash_attention": True, "use_fused_adam": True},
        "training": {"seed": 42, "learning_rate": 3e-4, "total_train_steps": 4, "seq_length": 32,
                     "micro_batch_size": 2, "gradient_accumulation_steps": 1, "num_samples": 400, "max_tokens": None},
        "dataset": {"name": str(data / "words"), "subset_name": None, "num_workers": 0, "num_proc": 1},
        "checkpoint": {"save_dir": str(data / "out-picotron"), "save_frequency": 300, "load_path": ""},
        "logging": {"use_wandb": False, "project_name": "", "run_name": None},
        "environment": {"OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false", "FLASH_ATTEN": "1",
                        "HF_TOKEN": "none"},
    }  # fmt: skip


def _make_mnist(raw: Path, draw: random.Random, count: int = 128) -> None:
    raw.mkdir(parents=True, exist_ok=True)
    for part in ("train", "t10k"):
        images = struct.pack(">4i", 2051, count, 28, 28) + draw.randbytes(count * 28 * 28)
        labels = struct.pack(">2i", 2049, count) + bytes(draw.randrange(10) for _ in range(count))
        for kind, content in (("images-idx3", images), ("labels-idx1", labels)):
            (raw / f"{part}-{kind}-ubyte").write_bytes(content)


MODEL = """
import sys, transformers as t, tokenizers as k
from pathlib import Path
data = Path(sys.argv[1]); lines = (data / "words" / "train.txt").read_text().splitlines()
tok = k.Tokenizer(k.models.BPE(unk_token="<unk>")); tok.pre_tokenizer = k.pre_tokenizers.Whitespace()
tok.train_from_iterator(lines, k.trainers.BpeTrainer(vocab_size=256, special_tokens=["<unk>", "<s>", "</s>"]))
fast = t.PreTrainedTokenizerFast(tokenizer_object=tok, unk_token="<unk>", bos_token="<s>", eos_token="</s>",
                                 pad_token="</s>", model_max_length=128)
config = t.LlamaConfig(vocab_size=256, hidden_size=64, intermediate_size=128, num_hidden_layers=2,
                       num_attention_heads=4, num_key_value_heads=4, max_position_embeddings=128)
try:
    from PIL import Image
    for part in ("train", "val"):
        for label in range(2):
            (data / "imagenet" / part / str(label)).mkdir(parents=True, exist_ok=True)
            for i in range(8):
                Image.effect_noise((256, 256), 50 + i).convert("RGB").save(data / f"imagenet/{part}/{label}/{i}.jpg")
except ImportError:
    pass
try:
    import h5py, numpy as np
    for part in ("train", "valid", "stats"):
        (data / "nersc" / part).mkdir(parents=True, exist_ok=True)
        if part != "stats":
            with h5py.File(data / f"nersc/{part}/2000.h5", "w") as file:
                file["fields"] = np.random.rand(16, 20, 32, 64).astype("float32")
    for name in ("time_means", "global_means", "global_stds"):
        np.save(data / f"nersc/stats/{name}.npy", np.ones((1, 20, 1, 1), "float32"))
except ImportError:
    pass
t.AutoModelForCausalLM.from_config(config).save_pretrained(data / "llama"); fast.save_pretrained(data / "llama")
"""


@dataclass(frozen=True)
class Outcome:
    """What a program did."""

    repository: str
    commit: str
    folder: str
    command: str
    code: int | None
    """Exit code; None: it ran past its time limit, or was left out."""
    wall_s: float
    said: str


def run(program: Program, clones: Path, data: Path, python: str, plan: bool = False) -> Outcome:
    """Run a program in its clone, or plan it."""
    command = planned(program) if plan else program.command
    clone = clones / program.repository.replace("/", "_")
    folder = clone / program.folder
    commit = subprocess.run(["git", "-C", clone, "rev-parse", "HEAD"], capture_output=True, text=True).stdout.strip()
    shown = command.replace("{python} -m torch.distributed.run --standalone", "torchrun").format(
        python="python", data="DATA"
    )
    missing = [name for name in program.needs if not _has(python, name)]
    if missing or not folder.is_dir():
        return Outcome(
            program.repository,
            commit,
            program.folder,
            shown,
            None,
            0.0,
            f"left out: no {', '.join(missing) or 'clone'}",
        )
    if program.prepare is not None:
        program.prepare(folder, data)
    own = {**program.environment}
    path = os.pathsep.join(filter(None, (own.pop("PYTHONPATH", ""), os.environ.get("PYTHONPATH", ""))))
    env = {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "PYTHONWARNINGS": "ignore", **own}
    env |= {"TORCH_EXTENSIONS_DIR": str(data / "extensions"), "PYTHONPATH": path}
    if not plan:
        env |= simulated_gpus(program.gpus, {"PYTHONPATH": path})
    for lock in data.glob("extensions/*/lock"):  # left by an ended compilation; the next would wait
        lock.unlink()
    start = time.monotonic()
    log = data / "last.log"
    with log.open("w") as output:
        process = subprocess.Popen(
            ["bash", "-c", command.format(python=python, data=data)],
            cwd=folder,
            env=env,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            code: int | None = process.wait(program.timeout_s)
        except subprocess.TimeoutExpired:
            code = None
        finally:
            _end(process)
    return Outcome(
        program.repository, commit, program.folder, shown, code, time.monotonic() - start, _said(log.read_text(), code)
    )


def planned(program: Program) -> str:
    """Return the command that plans a program; empty for one that torchrun does not start, or that does not train."""
    started = re.fullmatch(re.escape(TORCHRUN) + r" (\d+) (?!--no-python)(.*)", program.command)
    if started is None or any(words in program.command for words in NOT_TRAINING):
        return ""
    return f"{{python}} -m frog plan --cluster h100x8 --gpus {started[1]} -- {started[2]}"


def _has(python: str, package: str) -> bool:
    return subprocess.run([python, "-c", f"import {package}"], capture_output=True).returncode == 0


def _end(process: subprocess.Popen[bytes]) -> None:
    """End a program, first with SIGTERM, at which torchrun ends its ranks: they have sessions of their own."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, number)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(30)


def _said(text: str, code: int | None) -> str:
    """Return the line that explains the outcome: the first error, or the last line."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    errors = [line for line in lines if "Error" in line and not line.startswith(("File", "torch.distributed.elastic"))]
    return (errors if code != 0 and errors else lines or [""])[0 if code != 0 and errors else -1][:160]


def main() -> None:
    """Run the programs and print one line for each."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("clones", type=Path)
    parser.add_argument("--only", nargs="+", default=[""], help="run programs with one of these words in their line")
    parser.add_argument("--data", type=Path, help="folder for what this script makes (default: CLONES/.data)")
    parser.add_argument("--python", default=sys.executable)
    parser.add_argument("--plan", action="store_true", help="plan each program that trains, instead of running it")
    parser.add_argument("--json", type=Path, help="also write the outcomes to a file")
    args = parser.parse_args()
    clones = args.clones.resolve()
    data = (args.data or clones / ".data").resolve()
    chosen = [
        one for one in PROGRAMS if any(word in f"{one.repository}/{one.folder}: {one.command}" for word in args.only)
    ]
    if args.plan:
        chosen = [program for program in chosen if planned(program)]
    if chosen:
        make_data(data)
        subprocess.run([args.python, "-c", MODEL, data], capture_output=True)
    outcomes = []
    for program in chosen:
        outcome = run(program, clones, data, args.python, args.plan)
        outcomes.append(outcome)
        print(
            f"{outcome.code}\t{outcome.wall_s:.0f} s\t{outcome.repository}\t{outcome.command[:90]}\t{outcome.said}",
            flush=True,
        )
        if args.json is not None:
            args.json.write_text(json.dumps([asdict(one) for one in outcomes], indent=1))
    good = sum(outcome.code == 0 for outcome in outcomes)
    print(f"{good} of {len(outcomes)} {'were planned' if args.plan else 'ran to the end'}")


if __name__ == "__main__":
    main()
