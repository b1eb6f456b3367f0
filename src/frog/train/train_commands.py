"""Commands on trained runs: generate text, score the model, export it, import another."""

from __future__ import annotations

import argparse
import contextlib
import os
from collections.abc import Iterator, Sequence
from pathlib import Path

import torch

from frog.core.config import DataConfig, RunConfig, from_dict
from frog.core.env import world_env
from frog.core.errors import RunError, UsageError
from frog.core.files import put_in_place, scratch_folder, sync_folder, write_json
from frog.core.machine import check_memory
from frog.core.runs.folder import RunFolder, find_run
from frog.core.user_input import name_problem
from frog.train.checkpoint import Saver
from frog.train.comm import World
from frog.train.comm.local_shard import whole_copy
from frog.train.comm.world import pick_device
from frog.train.data import Windows, load_tokenizer, open_prepared, verify_once
from frog.train.data.tokenizer import check_text
from frog.train.evaluate import evaluate as score_windows
from frog.train.model import TinyTransformer
from frog.train.model.hf import load_hf, save_hf
from frog.train.optim.eager import EagerSGD
from frog.train.optim.tensors import UpdatedTensor
from frog.train.parallel.build_strategy import build_strategy
from frog.train.parallel.mesh import Mesh
from frog.train.record import new_run_json
from frog.train.sample import sample_text
from frog.train.trained import export_merged, load_trained, read_finetune

_BATCH_SIZE = 16


_MOST_TOKENS = 1_000_000


def sample(args: argparse.Namespace) -> int:
    """`frog sample RUN --prompt ...`"""
    check_text(args.prompt, "--prompt")
    _check_sampling(args)
    folder = find_run(args.run)
    model, _, _ = load_trained(folder, args.step)
    if not folder.tokenizer_json.exists():
        raise RunError(f"{folder.path}: no tokenizer.json to decode its tokens", "import the model with its tokenizer")
    text = sample_text(
        model,
        load_tokenizer(folder.tokenizer_json),
        args.prompt,
        args.tokens,
        seed=args.seed,
        temperature=args.temperature,
    )
    print(text)
    return 0


def _check_sampling(args: argparse.Namespace) -> None:
    """Raise UsageError if an option is out of range."""
    for name, value, least, most in (
        ("--tokens", args.tokens, 0, _MOST_TOKENS),
        ("--seed", args.seed, 0, 2**63 - 1),
        ("--temperature", args.temperature, 0, 1e6),
    ):
        if not least <= value <= most:
            raise UsageError(f"{name} {value}: expected a number between {least} and {most:g}")


def evaluate(args: argparse.Namespace) -> int:
    """`frog eval RUN`"""
    folder = find_run(args.run)
    config = from_dict(folder.read_run_json().config)
    model, _, step = load_trained(folder, args.step)
    data = verify_once(open_prepared(config.data.name))
    env = world_env()
    world = World(env, pick_device("auto", env), timeout_s=config.train.timeout_s)
    model = model.to(world.device)
    strategy = build_strategy(RunConfig(config.model), Mesh(world), model, _no_optimizer)
    windows = Windows(data.split("heldout"), config.data.sequence_length)
    in_all, in_training = len(windows) * windows.sequence_length, config.eval.tokens
    most = args.tokens
    if args.tokens is None:
        most = in_training
    elif args.tokens == "all":
        most = in_all
    score = score_windows(strategy, windows, data.token_bytes, max_tokens=most, batch_size=_BATCH_SIZE)
    print(f"{folder.path}, step {step}, {score.tokens} of {in_all} held-out tokens of {data.name}")
    print(f"loss {score.loss:.4f}  perplexity {score.perplexity:.2f}  bits per byte {score.bits_per_byte:.4f}")
    if min(most, in_all) != min(in_training, in_all):
        print(
            f"Training scored {min(in_training, in_all)} tokens (eval.tokens), so its loss differs slightly: "
            "it is the mean over other parts of the same text."
        )
    return 0


def _no_optimizer(tensors: Sequence[UpdatedTensor]) -> torch.optim.Optimizer:
    """Build an optimizer without state: this command does not train."""
    return EagerSGD([updated.tensor for updated in tensors], lr=0.0)


def export(args: argparse.Namespace) -> int:
    """`frog export RUN --to hf DIR`"""
    folder, target = find_run(args.run), Path(args.folder)
    if os.path.lexists(target) and not target.is_dir():
        raise RunError(f"{target}: not a folder", "name a new folder")
    if target.exists() and any(target.iterdir()):
        raise RunError(f"{target}: exists and is not empty", "name a new folder")
    if read_finetune(folder) is not None:
        if not args.merge:
            raise UsageError(
                f"{folder.path}: a fine-tuned run; its adapter {folder.path / 'adapter'} is already in peft's format",
                "add --merge to export base and adapter as one model",
            )
        with _complete_or_absent(target) as staging:
            loader = export_merged(folder, staging)
        print(f"{target}: {folder.path} merged into its base, for {loader}.from_pretrained({args.folder!r})")
        return 0
    model, _, step = load_trained(folder, args.step)
    with _complete_or_absent(target) as staging:
        save_hf(model, staging, folder.tokenizer_json if folder.tokenizer_json.exists() else None)
    print(f"{target}: {folder.path} at step {step}, for AutoModelForCausalLM.from_pretrained({args.folder!r})")
    return 0


@contextlib.contextmanager
def _complete_or_absent(target: Path) -> Iterator[Path]:
    """Yield a staging folder, and rename it to `target` at the end of the block: `target` is complete or absent."""
    target = target.resolve()
    target.parent.mkdir(parents=True, exist_ok=True)
    with scratch_folder(".export-", target.parent) as scratch:
        yield scratch / target.name
        put_in_place(scratch / target.name, target)


def import_model(args: argparse.Namespace) -> int:
    """`frog import DIR --from hf --name NAME`: create a run with one checkpoint, of step 0, or nothing at all."""
    runs, source = Path("runs"), Path(args.folder)
    if problem := name_problem(args.name):
        raise UsageError(problem, "choose another --name")
    target = RunFolder(runs / args.name)
    if target.path.exists():
        raise RunError(f"{target.path}: already exists", "choose another --name")
    model_config, weights = load_hf(source)
    if os.path.lexists(source / "tokenizer.json"):
        # Reject an unreadable tokenizer before the run exists.
        load_tokenizer(
            source / "tokenizer.json", "copy it again, or remove it: the model then trains, but cannot generate text"
        )
    config = RunConfig(
        model=model_config,
        name=args.name,
        data=DataConfig(sequence_length=min(DataConfig.sequence_length, model_config.max_position_embeddings)),
    )
    check_memory(model_config.built_bytes(), f"{source}/config.json: the model", "correct its sizes")
    model = TinyTransformer(model_config)
    model.load_state_dict(weights)
    runs.mkdir(exist_ok=True)
    with scratch_folder(".import-", runs) as scratch:
        folder = RunFolder(scratch / args.name)
        folder.path.mkdir()
        _save_imported(folder, model, config, ["frog", "import", str(source), "--from", "hf", "--name", args.name])
        folder.path.rename(target.path)
        sync_folder(runs)
    print(f"{target.path}: {model_config.num_hidden_layers} layers, {target.checkpoint(0)}")
    print(f"start from it: frog train RUN.toml --set model.file=PATH/config.json --set model.init_from={target.path}")
    return 0


def _save_imported(folder: RunFolder, model: TinyTransformer, config: RunConfig, argv: Sequence[str]) -> None:
    """Write a model as a run at step 0."""
    num_parameters = sum(parameter.numel() for parameter in model.parameters())
    content = new_run_json(folder, config, argv, num_parameters, None, Path(argv[2]) / "tokenizer.json")
    write_json(folder.run_json, content)
    alone = World(world_env(), torch.device("cpu"), timeout_s=60).axis
    shards = [whole_copy(f"model/{name}", parameter.detach(), alone) for name, parameter in model.named_parameters()]
    saver = Saver(folder, 0, 1, shards, {}, attempt="import", keep_last=1, timeout_s=60)
    saver.save(0, {"step": 0, "tokens": 0, "order_sha256": "", "scaler": {}, "optimizer_steps": 0}, {})
    saver.wait()
