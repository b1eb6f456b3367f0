"""Real worlds under torchrun, compared with one process and with the undisturbed run."""

from __future__ import annotations

import importlib.util
import json
import re
import shutil
import signal
from collections.abc import Sequence

import psutil
import pytest
import torch
from harness import Harness, all_gone, kill_tree, run_to_end, set_words, tree, wait_until

from frog.core.runs.event_schema import CollectiveEvent, SpanEvent, StartEvent, StepEvent
from frog.train.checkpoint import find_good


@pytest.fixture(scope="module")
def calm(harness: Harness) -> Harness:
    """Return the harness with undisturbed runs of worlds 1, 2 and 4."""
    for world_size in (1, 2, 4):
        harness.train(world_size, f"calm-{world_size}")
    return harness


def losses(harness: Harness, name: str) -> list[float]:
    return [event.loss_mean for event in harness.events(name).main.by_step(StepEvent).values()]


def weights(harness: Harness, name: str) -> dict[str, torch.Tensor]:
    checkpoint, _ = find_good(harness.folder(name))
    assert checkpoint is not None
    tensors = {key: torch.empty(entry.shape) for key, entry in checkpoint.manifest.tensors.items()}
    checkpoint.load_into(tensors)
    return {key: tensor for key, tensor in tensors.items() if key.startswith("model/")}


def same_run(harness: Harness, name: str, other: str) -> None:
    """Check that both have the same samples in each step, and the same losses and weights, except for rounding."""
    assert harness.record(name)["order_sha256"] == harness.record(other)["order_sha256"]
    torch.testing.assert_close(losses(harness, name), losses(harness, other), rtol=1e-5, atol=0)
    mine, theirs = weights(harness, name), weights(harness, other)
    for key in theirs:
        # Adam divides by the root of tiny second moments, which magnifies rounding in a gradient near zero.
        torch.testing.assert_close(
            mine[key], theirs[key], rtol=1e-4, atol=2e-5, msg=lambda text, key=key: f"{key}: {text}"
        )


@pytest.mark.slow
def test_worlds_of_all_sizes_agree_with_one_process(calm: Harness) -> None:
    for world_size in (2, 4):
        same_run(calm, f"calm-{world_size}", "calm-1")
    assert calm.record("calm-1")["status"] == "completed"
    first, last = losses(calm, "calm-4")[0], losses(calm, "calm-4")[-1]
    assert last < first


def test_gradient_accumulation_matches_a_larger_world(calm: Harness) -> None:
    calm.train(1, "turns", "train.grad_accum=4")
    same_run(calm, "turns", "calm-4")


@pytest.mark.slow
def test_repeated_run_is_bitwise_equal(calm: Harness) -> None:
    calm.train(2, "again")
    assert calm.record("again")["weights_sha256"] == calm.record("calm-2")["weights_sha256"]


def test_ranks_divide_the_batch(calm: Harness) -> None:
    events = calm.events("calm-4")
    for step in range(1, 9):
        ids = [events.ranks[rank].by_step(StepEvent)[step].sample_ids for rank in range(4)]
        taken = [i for share in ids for i in share]
        assert len(set(taken)) == 8
        assert taken == calm.events("calm-1").main.by_step(StepEvent)[step].sample_ids


def test_every_rank_records_every_phase_and_collective(calm: Harness) -> None:
    events = calm.events("calm-4")
    num_elements = 0
    for rank in range(4):
        spans = events.ranks[rank].of(SpanEvent)
        for step in range(1, 9):
            phases = [span.phase for span in spans if span.step == step]
            assert phases[:6] == ["data", "forward", "backward", "reduce", "optimize", "zero"]
        reduces = [event for event in events.ranks[rank].of(CollectiveEvent) if event.op == "all_reduce"]
        num_elements = max(event.payload_bytes for event in reduces) // 4
        assert (calm.folder("calm-4").rank_log(rank)).read_text().count("gradient norm") == 1
    parameters = calm.folder("calm-4").read_run_json().num_parameters
    assert parameters <= num_elements <= 1.01 * parameters + 64 * 8


def test_checkpoint_has_one_file_per_rank(calm: Harness) -> None:
    names = sorted(entry.name for entry in calm.folder("calm-4").checkpoint(8).iterdir())
    assert names == ["manifest.json", *(f"rank_{rank}.safetensors" for rank in range(4))]


@pytest.mark.parametrize("step", [pytest.param(1, marks=pytest.mark.slow), 3, pytest.param(6, marks=pytest.mark.slow)])
def test_killed_and_resumed_run_is_bitwise_equal_to_the_undisturbed_run(calm: Harness, step: int) -> None:
    name = f"killed-{step}"
    words = ("--set", f"name={name}")
    process = calm.start("frog", "run", "--nproc", "2", "--", "train", "run.toml", *words)
    calm.wait_for_step(name, step, process)
    family = kill_tree(process)
    process.communicate()
    wait_until(lambda: all_gone(family), "the killed world to end")
    calm.run("frog", "run", "--nproc", "2", "--", "train", "--resume", f"runs/{name}")
    for key in ("weights_sha256", "order_sha256", "step", "loss"):
        assert calm.record(name)[key] == calm.record("calm-2")[key]
    assert losses(calm, name) == losses(calm, "calm-2")
    assert not list(calm.folder(name).checkpoints.glob(".step_*"))


@pytest.mark.slow
def test_resume_after_the_last_checkpoint_writes_the_missing_record(calm: Harness) -> None:
    calm.train(2, "no-record")
    calm.folder("no-record").record_json.unlink()
    calm.run("frog", "run", "--nproc", "2", "--", "train", "--resume", "runs/no-record")
    same = ("status", "step", "loss", "eval", "weights_sha256", "order_sha256", "tokens")
    assert [calm.record("no-record")[key] for key in same] == [calm.record("calm-2")[key] for key in same]


@pytest.mark.slow
@pytest.mark.parametrize("world_size", [1, pytest.param(4, marks=pytest.mark.slow)])
def test_run_resumed_in_another_world_uses_the_same_samples(calm: Harness, world_size: int) -> None:
    name = f"moved-{world_size}"
    calm.train(2, name, "train.steps=8")
    for step in (6, 8):  # as if the run had ended after step 4
        folder = calm.folder(name).checkpoint(step)
        for entry in folder.iterdir():
            entry.unlink()
        folder.rmdir()
    calm.run("frog", "run", "--nproc", str(world_size), "--", "train", "--resume", f"runs/{name}")
    same_run(calm, name, "calm-2")
    segments = calm.folder(name).read_run_json().segments
    assert [(entry.world_size, entry.from_step) for entry in segments] == [(2, 0), (world_size, 4)]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGINT, 130), pytest.param(signal.SIGTERM, 143, marks=pytest.mark.slow)]
)
def test_signal_saves_a_checkpoint_and_ends_the_run(calm: Harness, number: signal.Signals, code: int) -> None:
    name = f"stopped-{code}"
    settings = [
        word for text in (f"name={name}", "train.steps=100000", "checkpoint.every=1000") for word in ("--set", text)
    ]
    process = calm.start("frog", "run", "--nproc", "2", "--", "train", "run.toml", *settings)
    calm.wait_for_step(name, 2, process)
    family = tree(process)
    process.send_signal(number)
    out, err = run_to_end(process)
    assert process.returncode == code, err
    assert all_gone(family)
    record = calm.record(name)
    assert record["status"] == "interrupted"
    assert calm.folder(name).checkpoint_steps() == [record["step"]]
    assert f"frog train --resume runs/{name}" in out
    assert "Traceback" not in out + err


@pytest.mark.slow
def test_killed_rank_is_named_and_the_world_ends(calm: Harness) -> None:
    settings = [
        word for text in ("name=lost", "train.steps=100000", "checkpoint.every=1000") for word in ("--set", text)
    ]
    process = calm.start("frog", "run", "--nproc", "2", "--", "train", "run.toml", *settings)
    calm.wait_for_step("lost", 2, process)
    family = tree(process)
    pid = calm.events("lost").ranks[1].of(StartEvent)[0].pid
    psutil.Process(pid).kill()
    _, err = run_to_end(process)
    assert process.returncode == 137
    assert f"rank 1 (pid {pid}) was killed by SIGKILL" in err[err.rindex("error:") :]
    wait_until(lambda: all_gone(family), "the world to end")


@pytest.mark.slow
def test_ranks_end_with_their_launcher(calm: Harness) -> None:
    settings = [
        word for text in ("name=orphan", "train.steps=100000", "checkpoint.every=1000") for word in ("--set", text)
    ]
    process = calm.start("frog", "run", "--nproc", "2", "--", "train", "run.toml", *settings)
    calm.wait_for_step("orphan", 2, process)
    family = tree(process)
    process.kill()
    process.communicate()
    wait_until(lambda: all_gone(family), "the ranks to end")


@pytest.mark.slow
def test_diverging_run_is_reported_with_step_rank_and_samples(calm: Harness) -> None:
    done = calm.train(2, "nan", "optimizer.learning_rate=1e30", "optimizer.grad_clip=off", code=1)
    last = done.stderr[done.stderr.rindex("error:") :]
    assert "not finite" in last
    record = calm.record("nan")
    step = record["error"]["step"]
    assert record["status"] == "failed"
    assert f"step {step}: the loss or the gradient is not finite" in last
    ids = calm.events("calm-2").ranks[1].by_step(StepEvent)[step].sample_ids
    assert re.search(rf"rank 1: loss \S+, gradient norm (nan|inf), samples {re.escape(str(ids))}", last), last
    assert "Traceback" not in last


@pytest.mark.slow
def test_damaged_checkpoint_is_skipped(calm: Harness) -> None:
    calm.train(2, "damaged")
    path = calm.folder("damaged").checkpoint(8) / "rank_1.safetensors"
    data = bytearray(path.read_bytes())
    data[-5] ^= 4
    path.write_bytes(data)
    listing = calm.run("frog", "checkpoints", "damaged", code=1).stdout
    assert "BAD" in [line.split()[1] for line in listing.splitlines()][-1]
    done = calm.run("frog", "run", "--nproc", "2", "--", "train", "--resume", "damaged")
    assert "skipped checkpoint: runs/damaged/checkpoints/step_00000008/rank_1.safetensors: its SHA-256" in done.stdout
    assert calm.record("damaged")["weights_sha256"] == calm.record("calm-2")["weights_sha256"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("nproc", "settings", "words"),
    [
        (3, (), ("global_batch_size=8", "world size 3")),
        (2, ("model.vocab_size=200",), ("token ids up to 299", "vocab_size=200")),
        (2, ("train.stps=1",), ("did you mean train.steps?",)),
        (2, ("data.name=absent",), ("absent",)),
    ],
)
def test_invalid_input_gives_one_error_from_rank_0(
    calm: Harness, nproc: int, settings: Sequence[str], words: Sequence[str]
) -> None:
    done = calm.train(nproc, "bad", *settings, code=2)
    last = done.stderr[done.stderr.rindex("error:") :]
    assert all(word in last for word in words), done.stderr
    assert "Traceback" not in done.stderr
    assert not calm.folder("bad").path.exists()


@pytest.mark.slow
@pytest.mark.parametrize("settings", [("train.activation_checkpointing=true",), ("train.grad_accum=1",)])
def test_settings_that_must_not_change_the_numbers_do_not(calm: Harness, settings: Sequence[str]) -> None:
    name = "same-" + settings[0].split("=")[0].replace(".", "-")
    calm.train(1, name, *settings)
    assert calm.record(name)["weights_sha256"] == calm.record("calm-1")["weights_sha256"]


@pytest.mark.slow
@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_mixed_precision_trains(calm: Harness, precision: str) -> None:
    calm.train(2, precision, f"train.precision={precision}", "train.steps=12")
    values = losses(calm, precision)
    assert values[-1] < values[0]
    torch.testing.assert_close(values[0], losses(calm, "calm-2")[0], rtol=1e-2, atol=0)
    scales = [event.loss_scale for event in calm.events(precision).main.of(StepEvent)]
    assert all((scale is not None) == (precision == "fp16") for scale in scales)
    run = json.loads(calm.folder(precision).run_json.read_text())
    assert run["config"]["train"]["precision"] == precision


@pytest.mark.slow
@pytest.mark.timeout(1260)
@pytest.mark.skipif(shutil.which("g++") is None, reason="torch.compile on a CPU needs g++")
def test_compiled_model_trains_to_the_same_losses(calm: Harness) -> None:
    calm.train(1, "compiled", "train.compile=true", "train.steps=2", "eval.sample_tokens=0", limit_s=1200)
    torch.testing.assert_close(losses(calm, "compiled"), losses(calm, "calm-1")[:2], rtol=1e-5, atol=0)


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("deepspeed") is None, reason="needs pip install 'frog[deepspeed]'")
def test_file_that_deepspeed_rejects_is_reported(harness: Harness) -> None:
    (harness.root / "pond.json").write_text('{"zero_optimization": {"stage": 2, "puddles": 1}}')
    deepspeed = ("strategy.name=zero2", "strategy.implementation=deepspeed", "strategy.deepspeed_file=pond.json")
    done = harness.run("frog", "train", "run.toml", *set_words("name=refused", *deepspeed), code=2)
    assert "error: pond.json: DeepSpeed rejects it: 1 validation error" in done.stderr
    assert "Traceback" not in done.stderr
