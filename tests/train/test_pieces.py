from __future__ import annotations

import copy
import json
import math
import os
import signal
import time
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from harness import MODEL, Harness, set_words

from frog.core.config import ModelConfig, OptimizerConfig, RunConfig
from frog.core.env import WorldEnv, world_env
from frog.core.errors import NonFiniteError, UsageError
from frog.core.runs.event_schema import EvalEvent
from frog.train.comm import World
from frog.train.comm.world import pick_device
from frog.train.data import Windows, load_tokenizer, open_prepared
from frog.train.evaluate import evaluate, spread
from frog.train.finite import update_scale
from frog.train.model import TinyTransformer
from frog.train.optim.build_optimizer import build_optimizer
from frog.train.order_proof import OrderProof
from frog.train.parallel.build_strategy import build_strategy
from frog.train.parallel.mesh import Mesh
from frog.train.sample import sample_text
from frog.train.stop import StopRequest

CPU = torch.device("cpu")


def alone() -> World:
    return World(world_env(), CPU, timeout_s=10)


@pytest.fixture
def model() -> TinyTransformer:
    torch.manual_seed(0)
    return TinyTransformer(ModelConfig(**MODEL))


def test_evaluation_loss_is_the_mean_over_all_tokens(harness: Harness, model: TinyTransformer) -> None:
    data = open_prepared("rhymes", harness.root / "data")
    windows = Windows(data.split("heldout"), 16)
    num_windows = 7  # not a multiple of the batch size: the last batch is smaller
    strategy = build_strategy(
        RunConfig(ModelConfig(**MODEL)),
        Mesh(alone()),
        model,
        partial(build_optimizer, OptimizerConfig()),
    )
    score = evaluate(strategy, windows, data.token_bytes, max_tokens=16 * 7 + 5, batch_size=3)
    ids = spread(len(windows), num_windows)
    assert len(ids) == num_windows
    assert (ids[0], ids[-1]) == (0, len(windows) - 1)
    assert np.ptp(np.diff(ids)) <= 1
    nats, num_bytes = 0.0, 0
    for index in ids:
        tokens = torch.from_numpy(windows.gather(np.array([index])))
        logits = model(tokens[:, :-1])[0].double()
        nats -= torch.log_softmax(logits, -1)[torch.arange(16), tokens[0, 1:]].sum().item()
        tokenizer = load_tokenizer(data.tokenizer_json)
        num_bytes += sum(
            0
            if token == 0
            else len(tokenizer.decode([token]).encode())
            if token < 128
            else int(data.token_bytes[token])
            for token in tokens[0, 1:].tolist()
        )
    assert score.tokens == num_windows * 16
    assert score.loss == pytest.approx(nats / score.tokens, rel=1e-5)
    assert score.perplexity == pytest.approx(math.exp(score.loss))
    assert score.bits_per_byte == pytest.approx(nats / math.log(2) / num_bytes, rel=1e-5)
    assert model.training


def test_token_bytes_add_up_to_the_text(harness: Harness) -> None:
    data = open_prepared("rhymes", harness.root / "data")
    tokenizer = load_tokenizer(data.tokenizer_json)
    text = "7 frogs sat on a log — ça va? 蛙"
    assert data.token_bytes[tokenizer.encode(text).ids].sum() == len(text.encode())


def test_seed_determines_the_sample_without_changing_the_global_generator(
    harness: Harness, model: TinyTransformer
) -> None:
    tokenizer = load_tokenizer(harness.root / "data" / "rhymes" / "tokenizer.json")
    before = torch.get_rng_state()
    one, same, other = (sample_text(model, tokenizer, "12 frogs", 40, seed=seed) for seed in (1, 1, 2))
    assert one == same != other
    assert one.startswith("12 frogs")
    assert torch.equal(before, torch.get_rng_state())
    assert sample_text(model, tokenizer, "a", 5, seed=1, temperature=0) == sample_text(
        model, tokenizer, "a", 5, seed=2, temperature=0
    )


@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_sampling_from_nan_weights_is_a_clear_error(
    harness: Harness, model: TinyTransformer, temperature: float
) -> None:
    tokenizer = load_tokenizer(harness.root / "data" / "rhymes" / "tokenizer.json")
    broken = copy.deepcopy(model)
    next(broken.parameters()).data.fill_(math.nan)
    with pytest.raises(NonFiniteError, match="its weights have diverged"):
        sample_text(broken, tokenizer, "a", 5, seed=1, temperature=temperature)


def test_run_that_diverges_before_a_sample_ends_with_its_ranks_and_values(harness: Harness) -> None:
    settings = set_words("name=diverged", "optimizer.learning_rate=1e300", "optimizer.warmup_steps=0", "eval.every=1")
    done = harness.run("frog", "train", "run.toml", *settings, code=1)
    assert "Traceback" not in done.stderr
    assert "the loss or the gradient is not finite" in done.stderr
    assert "no sample: the model's logits are NaN or infinite" in done.stdout + done.stderr


def test_order_proof_depends_on_order_and_step_and_survives_a_restart() -> None:
    rows = [np.array([3, 1]), np.array([2, 0])]

    def chain(steps: list[tuple[int, np.ndarray]], start: str = "") -> str:
        proof = OrderProof(start)
        for step, row in steps:
            proof.add(step, row)
        return proof.link(alone(), [0])

    whole = chain([(1, rows[0]), (2, rows[1])])
    assert whole == chain([(2, rows[1])], start=chain([(1, rows[0])]))
    assert whole != chain([(1, rows[1]), (2, rows[0])])
    assert whole != chain([(1, rows[0][::-1]), (2, rows[1])])
    assert whole != chain([(2, rows[0]), (3, rows[1])])


def test_skipped_step_updates_the_scaler_like_a_local_overflow() -> None:
    """The oracle is a scaler that sees the overflow itself when it unscales the gradient."""
    weight = torch.nn.Parameter(torch.ones(2))
    optimizer = torch.optim.SGD([weight], lr=0.1)
    ours, theirs = (torch.amp.GradScaler("cpu", 64.0, growth_interval=3) for _ in range(2))
    for scaler in (ours, theirs):
        scaler.scale(torch.ones(()))
    for overflows in (False, False, True, False, False, False, False, True, True, False):
        weight.grad = torch.full((2,), 1.0)
        ours.unscale_(optimizer)  # this rank's part of the gradient is finite
        if not overflows:
            ours.step(optimizer)
        update_scale(ours, skipped=overflows)
        weight.grad = torch.full((2,), math.inf if overflows else 1.0)
        theirs.step(optimizer)
        theirs.update()
        assert ours.state_dict() == theirs.state_dict()
    assert ours.get_scale() == 64.0 / 2 * 2 / 2 / 2


def test_immediate_second_ctrl_c_is_the_same_stop_request(monkeypatch: pytest.MonkeyPatch) -> None:
    ended: list[int] = []
    monkeypatch.setattr(os, "_exit", ended.append)
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        stop = StopRequest()
        stop.install()
        os.kill(os.getpid(), signal.SIGINT)
        os.kill(os.getpid(), signal.SIGINT)
        assert (stop.wanted, stop.exit_code, ended) == (True, 130, [])
        late = time.monotonic() + 60
        monkeypatch.setattr(time, "monotonic", lambda: late)
        os.kill(os.getpid(), signal.SIGINT)
        assert ended == [130]
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def test_unavailable_device_is_rejected() -> None:
    one = WorldEnv(0, 1, 0, 1, 0, 1, "127.0.0.1", None, False)
    assert pick_device("cpu", one).type == "cpu"
    if not torch.cuda.is_available():
        with pytest.raises(UsageError, match="cuda"):
            pick_device("cuda", one)
    with pytest.raises(UsageError, match="mps"):
        pick_device("mps", WorldEnv(0, 2, 0, 2, 0, 1, "127.0.0.1", None, True))


def test_all_ranks_of_a_node_with_too_few_gpus_use_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)

    def devices(num_ranks: int, requested: str = "auto") -> list[str]:
        envs = [WorldEnv(rank, num_ranks, rank, num_ranks, 0, 1, "127.0.0.1", None, True) for rank in range(num_ranks)]
        return [str(pick_device(requested, env)) for env in envs]

    assert devices(2) == ["cuda:0", "cuda:1"]
    assert devices(3) == ["cpu", "cpu", "cpu"]
    with pytest.raises(UsageError, match="this node has 2 GPUs for 3 ranks"):
        devices(3, "cuda")


@pytest.mark.slow
def test_trained_model_is_sampled_scored_exported_and_imported(harness: Harness, tmp_path: Path) -> None:
    """Run sample, eval, export, import, and training from an import, as a user types them."""
    transformers = pytest.importorskip("transformers")
    harness.train(1, "traveller", "train.steps=4")
    text = harness.run("frog", "sample", "traveller", "--prompt", "3 frogs", "--tokens", "8").stdout
    assert text.startswith("3 frogs")
    line = harness.run("frog", "eval", "traveller").stdout.splitlines()[1]
    assert "bits per byte" in line
    in_training = harness.events("traveller").main.by_step(EvalEvent)[4].loss
    assert line.startswith(f"loss {in_training:.4f} "), "by default the same windows as in training"
    other = harness.run("frog", "eval", "traveller", "--tokens", "64").stdout.splitlines()
    assert other[1].split()[1] != line.split()[1]
    assert "Training scored" in other[2]
    exported = tmp_path / "exported"
    harness.run("frog", "export", "traveller", "--to", "hf", str(exported))
    theirs = transformers.AutoModelForCausalLM.from_pretrained(exported)
    tokenizer = transformers.AutoTokenizer.from_pretrained(exported)
    ids = torch.tensor([tokenizer("3 frogs sat").input_ids])
    harness.run("frog", "import", str(exported), "--from", "hf", "--name", "returned")
    again = tmp_path / "again"
    harness.run("frog", "export", "returned", "--to", "hf", str(again))
    with torch.no_grad():
        assert torch.equal(theirs(ids).logits, transformers.AutoModelForCausalLM.from_pretrained(again)(ids).logits)
    assert harness.run("frog", "sample", "returned", "--prompt", "3 frogs", "--tokens", "8").stdout == text

    harness.train(1, "onward", "train.steps=1", "model.init_from=runs/returned", "optimizer.learning_rate=1e-9")
    first = harness.events("onward").main.by_step(EvalEvent)[0].loss
    assert first == pytest.approx(harness.events("traveller").main.by_step(EvalEvent)[4].loss, rel=1e-5)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("frog", "sample", "absent"), "absent: no run folder"),
        (("frog", "sample", "absent", "--seed", "9" * 30), "--seed 999"),
        (("frog", "eval", "absent"), "absent: no run folder"),
        (("frog", "eval", "absent", "--tokens", "0"), "expected a number of tokens, 1 or more, or all"),
        (("frog", "export", "absent", "--to", "hf", "x"), "absent: no run folder"),
        (("frog", "import", "absent", "--from", "hf", "--name", "x"), "no config.json"),
        (("frog", "train", "absent.toml"), "absent.toml: no such run file"),
        (("frog", "train", "run.toml", "--resume", "x"), "both a run file"),
        (("frog", "run", "--nproc", "2", "--"), "nothing to run"),
        (("frog", "run", "--nproc", "0", "--", "train"), "argument --nproc: 0: must be at least 1"),
        (("frog", "run", "--nproc", "1", "--", "trian"), "neither"),
        (("frog", "train", "run.toml", "--set", "train.device=cuda"), "train.device=cuda"),
    ],
)
def test_usage_errors_have_no_traceback(harness: Harness, words: tuple[str, ...], message: str) -> None:
    if "train.device=cuda" in words and torch.cuda.is_available():
        words = (*words[:-1], "train.precision=fp8")
        message = "fp8"
    done = harness.run(*words, code=2)
    assert message in done.stderr
    assert "Traceback" not in done.stderr


def test_existing_run_is_never_overwritten(harness: Harness) -> None:
    for _ in range(2):
        harness.train(1, "twice", "train.steps=1")
    assert harness.folder("twice").read_run_json().name == "twice"
    assert harness.folder("twice-2").read_run_json().name == "twice-2"
    assert json.loads((harness.root / "logs" / ".." / "run.json").read_text())["name"] == "twice-2"
