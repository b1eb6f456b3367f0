"""Tutorial script 1: its model equals the library's, its runs resume exactly, and it reports usage errors."""

from __future__ import annotations

import csv
import dataclasses
import importlib.util
import json
import re
import signal
from pathlib import Path
from types import ModuleType

import pytest
import torch
from harness import Harness, wait_until
from page_harness import SCRIPTS, TINY, PageHarness, finish, make_page_harness
from safetensors.torch import load_file

from frog.core.config import ModelConfig
from frog.core.errors import UsageError
from frog.train.model import TinyTransformer

PAGE = "train_tiny_transformer.py"
PLAIN = ModelConfig(300, 48, 80, 2, 4, 4, 32)
CONFIGS = {
    "tied": PLAIN,
    "untied": dataclasses.replace(PLAIN, tie_word_embeddings=False),
    "grouped": dataclasses.replace(PLAIN, num_key_value_heads=2, rope_theta=500.0, rms_norm_eps=1e-6),
    "one for all, untied": dataclasses.replace(PLAIN, num_key_value_heads=1, tie_word_embeddings=False),
}


@pytest.fixture
def pages(harness: Harness, tmp_path: Path) -> PageHarness:
    return make_page_harness(harness, tmp_path)


@pytest.fixture(scope="module")
def page() -> ModuleType:
    spec = importlib.util.spec_from_file_location("train_tiny_transformer", SCRIPTS / PAGE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def checkpoints(pages: PageHarness, run: str = "train_tiny_transformer") -> list[Path]:
    return sorted((pages.root / "runs" / run / "checkpoints").glob("*.safetensors"))


@pytest.mark.slow
@pytest.mark.parametrize("name", CONFIGS)
def test_model_class_equals_transformers(page: ModuleType, name: str) -> None:
    torch.manual_seed(1)
    ours, theirs = page.TinyTransformer(CONFIGS[name]), TinyTransformer(CONFIGS[name])
    shapes = {key: value.shape for key, value in ours.state_dict().items()}
    assert shapes == {key: value.shape for key, value in theirs.state_dict().items()}
    assert {key for key, _ in ours.named_parameters()} == {key for key, _ in theirs.named_parameters()}
    for weight in ours.parameters():  # the initial weights are so small that an error would not show
        torch.nn.init.normal_(weight, std=0.3)
    theirs.load_state_dict(ours.state_dict())
    tokens = torch.randint(300, (3, 32))
    torch.testing.assert_close(ours(tokens), theirs(tokens), rtol=1e-5, atol=1e-4)
    loss, labels = page.loss_of(ours, tokens[:, :-1], tokens[:, 1:]), tokens[:, 1:].contiguous()
    torch.testing.assert_close(loss, theirs(tokens[:, :-1].contiguous(), labels), rtol=1e-5, atol=0)


def test_train_script_learns_and_writes_a_run_folder(pages: PageHarness) -> None:
    out, _ = pages.page(PAGE, "--epochs", "2", "--steps-per-epoch", "60", "--checkpoint-every", "50", *TINY)
    first, second = (float(loss) for loss in re.findall(r"mean loss ([\d.]+)", out))
    assert second < first
    before, *after = (float(loss) for loss in re.findall(r"held-out loss ([\d.]+)", out))
    assert before > after[0] > after[1]
    assert "sample: The" in out
    with (pages.root / "runs" / "train_tiny_transformer" / "loss.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [int(row["step"]) for row in rows] == list(range(1, 121))
    assert [path.stem for path in checkpoints(pages)] == ["step_00000050", "step_00000100", "step_00000120"]
    assert (pages.root / "logs" / "rank_0" / "train.log").read_text() in out
    assert (pages.root / "logs").is_symlink()


@pytest.mark.slow
@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGKILL], ids=lambda how: how.name)
def test_train_script_resumes_exactly(pages: PageHarness, how: signal.Signals) -> None:
    steps = ("--epochs", "3", "--steps-per-epoch", "250", "--checkpoint-every", "20", "--log-every", "10", *TINY)
    pages.page(PAGE, *steps)
    process = pages.start_page(PAGE, *steps)
    other = "train_tiny_transformer-2"
    wait_until(lambda: len(checkpoints(pages, other)) > 2, "three checkpoints", process)
    process.send_signal(how)
    out, _ = finish(process, -9 if how == signal.SIGKILL else 130)
    assert len(checkpoints(pages, other)) < len(checkpoints(pages)), "the run completed before it was interrupted"
    assert ("--resume runs/train_tiny_transformer-2" in out) == (how != signal.SIGKILL)
    pages.page(PAGE, "--resume", "train_tiny_transformer-2")
    whole, resumed = (load_file(checkpoints(pages, run)[-1]) for run in ("train_tiny_transformer", other))
    assert whole.keys() == resumed.keys()
    assert any(name.endswith("exp_avg_sq") for name in whole)
    for name, value in whole.items():
        assert torch.equal(value, resumed[name]), name
    curves = [(pages.root / "runs" / run / "loss.csv").read_text() for run in ("train_tiny_transformer", other)]
    assert curves[0] == curves[1]


@pytest.mark.slow
def test_train_script_skips_damaged_checkpoints(pages: PageHarness) -> None:
    pages.page(PAGE, "--epochs", "1", "--steps-per-epoch", "6", "--checkpoint-every", "2", *TINY)
    good, flipped, torn = checkpoints(pages)
    torn.write_bytes(torn.read_bytes()[:-100])
    data = bytearray(flipped.read_bytes())
    data[-50] ^= 1
    flipped.write_bytes(data)
    out, _ = pages.page(PAGE, "--resume")
    assert re.findall(r"skipped checkpoint: .*?(step_\d+).*: (damaged|its content)", out) == [
        (torn.stem, "damaged"),
        (flipped.stem, "its content"),
    ]
    assert "step     2 | held-out" in out
    assert checkpoints(pages)[-1].stem == "step_00000006"
    for path in checkpoints(pages):
        path.write_bytes(b"\x80\x04 not this")
    _, err = pages.page(PAGE, "--resume", code=1)
    assert "no checkpoint to resume from" in err
    assert "Traceback" not in err
    assert good.exists()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--hidden-size", "33"], ["hidden_size=33", "num_attention_heads=4", "multiple"]),
        (["--num-attention-heads", "5"], ["hidden_size=32", "num_attention_heads=5"]),
        (["--num-key-value-heads", "3"], ["num_attention_heads=4", "num_key_value_heads=3"]),
        (["--sequence-length", "64"], ["sequence_length=64", "max_position_embeddings=32"]),
        (["--epochs", "0", "--batch-size", "-1"], ["epochs=0", "batch_size=-1"]),
        (["--steps-per-epoch", "9999999"], ["159999984", "the text has"]),
        (["--config", "absent.json"], ["absent.json"]),
        (["--resume", "absent"], ["--resume with"]),
    ],
)
def test_train_script_reports_usage_errors_before_anything_starts(
    pages: PageHarness, page: ModuleType, monkeypatch: pytest.MonkeyPatch, words: list[str], told: list[str]
) -> None:
    monkeypatch.chdir(pages.root)
    monkeypatch.setattr("sys.argv", [PAGE, *TINY, *words])
    with pytest.raises(UsageError) as caught:
        page.main()
    assert all(text in str(caught.value) for text in told), caught.value
    assert not (pages.root / "runs").exists()


@pytest.mark.slow
def test_train_script_reads_the_model_file(pages: PageHarness) -> None:
    path = pages.root / "config.json"
    sizes = json.loads(path.read_text())
    path.write_text(json.dumps({**sizes, "num_hidden_layers": 4}))
    out, _ = pages.page(PAGE, "--epochs", "1", "--steps-per-epoch", "2", *TINY)
    assert "4 layers" in out
    path.write_text(json.dumps({**sizes, "vocab_size": 200}))
    _, err = pages.page(PAGE, *TINY, code=2)
    assert "300 tokens" in err
    assert "200 rows" in err
    assert "Traceback" not in err
