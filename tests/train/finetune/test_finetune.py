"""The commands `frog finetune` and `frog classify`, and the modules behind them."""

from __future__ import annotations

import argparse
import json
import shutil
import signal
from pathlib import Path
from typing import Any

import pytest
import torch
from harness import Harness, run_to_end
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, AutoModelForSequenceClassification, AutoTokenizer

from frog.core.errors import ConfigError, RunError, UsageError
from frog.core.runs.event_schema import EndEvent, EvalEvent, SpanEvent, StepEvent
from frog.core.runs.folder import RunFolder
from frog.train.data.labelled import read_labelled
from frog.train.data.labelled_batches import pad
from frog.train.finetune.arguments import add_finetune_arguments, with_defaults
from frog.train.finetune.classify import task_of
from frog.train.finetune.confusion import confusion, confusion_lines
from frog.train.finetune.finetune_setup import finetune_config, run_config, spread_problems
from frog.train.model.adapter import CONFIG_FILE, WEIGHTS_FILE
from frog.train.state import weights_sha256
from frog.train.trained import export_merged, load_finetuned, load_merged, load_trained

SINGERS = [f"{n} frogs sang of the 3th pond" for n in range(30)]
JUMPERS = [f"{n} frogs sat, and 3 jumped" for n in range(30)]


@pytest.fixture(scope="module")
def tuned(harness: Harness) -> Harness:
    """Return the harness with a trained base, and one fine-tuned run of each kind."""
    steps = ("--set", "train.steps=120", "--set", "checkpoint.every=60", "--set", "optimizer.learning_rate=0.01")
    harness.run("frog", "train", "run.toml", "--set", "name=base", *steps)
    rows = [{"text": text, "label": "sang"} for text in SINGERS] + [{"text": t, "label": "jumped"} for t in JUMPERS]
    (harness.root / "who.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    rows = [{"prompt": f"{n} frogs", "completion": " sat on a log"} for n in range(40)]
    (harness.root / "go on.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    tune(harness, "who", "--data", "who.jsonl", "--epochs", "6")
    writes = ("--head", "completion", "--lora", "r=4,alpha=8", "--learning-rate", "0.02")
    tune(harness, "written", "--data", "who.jsonl", "--epochs", "12", *writes)
    tune(harness, "log", "--data", "go on.jsonl", "--epochs", "4", "--head", "completion")
    return harness


def tune(harness: Harness, name: str, *words: str, code: int = 0) -> str:
    done = harness.run("frog", "finetune", "base", "--name", name, *words, code=code)
    return done.stdout + done.stderr


@pytest.fixture
def here(tuned: Harness, monkeypatch: pytest.MonkeyPatch) -> Harness:
    """Change to the harness's folder: runs record their base as typed."""
    monkeypatch.chdir(tuned.root)
    return tuned


def test_finetuned_run_has_the_usual_folder(here: Harness) -> None:
    folder, record = here.folder("who"), here.record("who")
    assert record["status"] == "completed"
    assert record["step"] == here.folder("who").read_run_json().config["train"]["steps"]
    events = here.events("who").main
    assert len(events.by_step(StepEvent)) == record["step"]
    assert events.by_step(EvalEvent)[record["step"]].loss == record["eval"]["loss"]
    assert {event.phase for event in events.of(SpanEvent)} >= {"data", "forward", "backward", "optimize", "zero"}
    assert events.of(EndEvent) == [
        EndEvent(step=record["step"], status="completed", weights_sha256=record["weights_sha256"])
    ]
    assert sorted(entry.name for entry in (folder.path / "adapter").iterdir()) == [CONFIG_FILE, WEIGHTS_FILE]
    assert folder.checkpoint_steps()[-1] == record["step"]
    assert "who" in here.run("frog", "runs").stdout
    here.run("frog", "report", "who")


@pytest.mark.slow
def test_finetuning_on_two_ranks_breaks_no_rule_of_the_check(here: Harness) -> None:
    words = ("finetune", "base", "--name", "checked", "--data", "who.jsonl", "--epochs", "1")
    said = here.run("frog", "check", "--nproc", "2", "--threads", "1", "--", *words).stdout
    assert "no rule is broken as far as could be seen (2 ranks, 3 optimizer steps, 3 of them sampled)" in said
    assert "Possible" not in said


def test_finetuning_learns_a_class_from_one_word(here: Harness) -> None:
    for name in ("who", "written"):
        found = here.record(name)["classification"]
        assert found["accuracy"] > 0.95 > 0.8 > found["baseline"], name
    assert here.record("log")["classification"] is None
    # The end of document is one of five tokens, and rare in the base's training data.
    assert here.record("log")["token_accuracy"] >= 0.8
    assert here.record("log")["eval"]["bits_per_byte"] < 1


def test_finetuning_saves_only_the_adapter_and_keeps_the_base(here: Harness) -> None:
    base, _, _ = load_trained(here.folder("base"))
    told = here.folder("who").read_run_json().finetune
    assert weights_sha256(base.named_parameters()) == told["base_sha256"] == here.record("base")["weights_sha256"]
    tensors = load_file(here.folder("who").path / "adapter" / WEIGHTS_FILE)
    assert sum(tensor.numel() for tensor in tensors.values()) == here.record("who")["num_trained_parameters"]
    assert all("lora_" in name or name.endswith("score.weight") for name in tensors)


@pytest.mark.parametrize("name", ["who", "written"])
def test_saved_adapter_reproduces_the_recorded_accuracy(here: Harness, name: str) -> None:
    data = read_labelled("who.jsonl", 0.25)
    words = [word for example in data.heldout for word in ("--text", example.text)]
    told = [json.loads(line) for line in here.run("frog", "classify", name, "--json", *words).stdout.splitlines()]
    assert [row["text"] for row in told] == [example.text for example in data.heldout]
    right = sum(row["label"] == example.label for row, example in zip(told, data.heldout, strict=True))
    assert right / len(told) == here.record(name)["classification"]["accuracy"]
    for row in told:
        assert sum(row["probabilities"].values()) == pytest.approx(1.0)
        assert row["probabilities"][row["label"]] == max(row["probabilities"].values())


def test_classify_reads_lines_from_stdin(here: Harness) -> None:
    (here.root / "texts.txt").write_text(f"{SINGERS[0]}\n\n{JUMPERS[0]}\n")
    (here.root / "broken.txt").write_bytes(b"caf\xe9\n")
    told = here.run("bash", "-c", "frog classify who < texts.txt").stdout.splitlines()
    assert [line.split()[0] for line in told] == ["sang", "jumped"]
    assert told[0].endswith(SINGERS[0])
    assert "no text to classify" in here.run("bash", "-c", "frog classify who < /dev/null", code=2).stderr
    for words in ("< broken.txt", "--text $'caf\\xe9'"):
        error = here.run("bash", "-c", f"frog classify who {words}", code=2).stderr
        assert "not UTF-8: 'caf\\udce9', character 3" in error
    assert "is not a fine-tuned run" in here.run("frog", "classify", "base", "--text", "a", code=2).stderr
    assert "has no classes" in here.run("frog", "classify", "log", "--text", "a", code=2).stderr


def test_finetuning_prints_the_score_tables(here: Harness) -> None:
    log = here.folder("who").rank_log(0).read_text()
    for part in ("trainable parameters", "epoch 6 of 6", "precision  recall", "predicted sang", "actual sang"):
        assert part in log


def test_merged_model_exports_to_transformers(here: Harness, tmp_path: Path) -> None:
    data = read_labelled("who.jsonl", 0.25)
    tuned = load_finetuned(here.folder("who"))
    assert export_merged(here.folder("who"), tmp_path / "who") == "AutoModelForSequenceClassification"
    theirs = AutoModelForSequenceClassification.from_pretrained(tmp_path / "who").eval()
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "who")
    assert theirs.config.id2label == {0: "jumped", 1: "sang"}
    texts = [example.text for example in data.heldout]
    rows = [task_of(tuned).row(example) for example in data.heldout]
    assert tokenizer(texts[0])["input_ids"] == rows[0].tokens
    with torch.no_grad():
        expected = task_of(tuned).class_scores(tuned.model, texts)
        logits = theirs(input_ids=pad(rows)[0]).logits
    torch.testing.assert_close(logits.double().log_softmax(-1), expected, rtol=1e-4, atol=1e-5)

    model, config, step = load_merged(here.folder("log"))
    assert (config, step) == (model.config, here.record("log")["step"])
    assert export_merged(here.folder("log"), tmp_path / "log") == "AutoModelForCausalLM"
    tokens = torch.randint(0, 300, (2, 12))
    with torch.no_grad():
        writer = AutoModelForCausalLM.from_pretrained(tmp_path / "log").eval()
        expected = writer(tokens).logits
        atol = 1e-5 * expected.abs().max().item()
        torch.testing.assert_close(model(tokens), expected, rtol=1e-5, atol=atol)
        unmerged = load_finetuned(here.folder("log")).model
        torch.testing.assert_close(model(tokens), unmerged(tokens), rtol=1e-4, atol=1e-5)
    with pytest.raises(UsageError, match=r"classifies texts \(jumped, sang\)"):
        load_merged(here.folder("who"))


def test_finetuning_is_bitwise_reproducible(here: Harness) -> None:
    tune(here, "who-again", "--data", "who.jsonl", "--epochs", "6")
    for key in ("weights_sha256", "order_sha256", "classification"):
        assert here.record("who-again")[key] == here.record("who")[key]


@pytest.mark.slow
def test_stopped_finetuning_saves_a_complete_adapter(here: Harness) -> None:
    words = ("--data", "who.jsonl", "--epochs", "4000", "--name", "stopped")
    process = here.start("frog", "finetune", "base", *words)
    here.wait_for_step("stopped", 5, process)
    process.send_signal(signal.SIGINT)
    run_to_end(process)
    assert process.returncode == 128 + signal.SIGINT
    record = here.record("stopped")
    assert record["status"] == "interrupted"
    assert 5 <= record["step"] < 4000
    assert len(here.events("stopped").main.by_step(StepEvent)) == record["step"]
    load_finetuned(here.folder("stopped"))


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--lora", "targets=query"], "targets=query: no projection of the layers has that name; available: q_proj"),
        (["--lora", "rank=33"], "rank=33 is above the maximum of 16 for k_proj"),
        (["--data", "none.jsonl"], "none.jsonl: no such file"),
        (["--set", "strategy.tp=2"], "strategy.tp 2"),
    ],
)
def test_finetune_usage_error_has_no_traceback(here: Harness, words: list[str], message: str) -> None:
    told = tune(here, "mistake", *words, code=2)
    assert message in told
    assert "Traceback" not in told
    assert not here.folder("mistake").path.exists()


def test_unsuitable_base_raises_an_error(here: Harness) -> None:
    done = here.run("frog", "finetune", "who", code=2)
    assert "is itself fine-tuned" in done.stderr
    assert "no run folder here" in here.run("frog", "finetune", "nobody", code=2).stderr


# ---- in one process, without commands --------------------------------------------------------------------------------


def arguments(*words: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    add_finetune_arguments(parser)
    return with_defaults(parser.parse_args(["base", *words]))


def test_finetune_options_set_the_configuration(here: Harness) -> None:
    data = read_labelled("guard", 0.25)
    args = arguments("--epochs", "3", "--set", "train.global_batch_size=32", "--set", "strategy.name=zero3")
    config = run_config(args, here.folder("base"), data)
    assert config.name == "base-guard"
    assert config.train.steps == 3 * -(-len(data.train) // 32)
    assert config.strategy.name == "zero3"
    assert config.data.sequence_length == config.model.max_position_embeddings
    assert spread_problems(config) == []


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--max-length", "33"], "data.sequence_length=33 is more than max_position_embeddings=32"),
        (["--set", "train.steps=4"], "--epochs sets the steps"),
        (["--set", "model.hidden_size=8"], "fine-tuning accepts the fields of train, strategy, optimizer, checkpoint"),
        (["--set", "optimizer.no_such_field=1"], "optimizer.no_such_field: unknown key"),
        (["--learning-rate", "-1"], "optimizer.learning_rate=-1.0"),
        (["--name", "a b"], "name='a b'"),
    ],
)
def test_unsupported_finetune_settings_raise_config_error(here: Harness, words: list[str], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        run_config(arguments(*words), here.folder("base"), read_labelled("guard", 0.25))
    assert message in str(caught.value)


def test_unsupported_finetune_parallelism_is_reported(here: Harness) -> None:
    settings = ["strategy.tp=2", "strategy.implementation=deepspeed", "train.precision=fp16"]
    words = [word for setting in settings for word in ("--set", setting)]
    config = run_config(arguments(*words), here.folder("base"), read_labelled("guard", 0.25))
    found = spread_problems(config)
    assert [problem.split(":")[0] for problem in found] == [
        "strategy.tp=2",
        "strategy.implementation='deepspeed'",
        "train.precision='fp16'",
    ]
    apart = run_config(arguments("--set", "strategy.name=diloco"), here.folder("base"), read_labelled("guard", 0.25))
    assert [problem.split(":")[0] for problem in spread_problems(apart)] == ["strategy.name='diloco'"]


def test_classification_of_completions_raises_usage_error(here: Harness) -> None:
    data = read_labelled("go on.jsonl", 0.25)
    with pytest.raises(UsageError, match="has completions, but no labels for classification"):
        finetune_config(arguments(), here.folder("base"), 1, "", data)


def copied(here: Harness, name: str, tmp_path: Path) -> RunFolder:
    """Return a copy of a fine-tuned run and its base, which a test may damage."""
    for run in (name, "base"):
        shutil.copytree(here.folder(run).path, tmp_path / run)
    return RunFolder(tmp_path / name)


def rewrite_run(folder: RunFolder, **changes: Any) -> None:
    content = json.loads(folder.run_json.read_text())
    content["finetune"] |= changes
    folder.run_json.write_text(json.dumps(content))


def test_base_moved_with_the_run_is_found(here: Harness, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = copied(here, "who", tmp_path)
    monkeypatch.chdir(tmp_path)
    assert load_finetuned(folder).step == here.record("who")["step"]
    shutil.rmtree(tmp_path / "base")
    with pytest.raises(RunError, match="its base runs/base is missing"):
        load_finetuned(folder)


def test_changed_base_weights_raise_run_error(here: Harness, tmp_path: Path) -> None:
    folder = copied(here, "who", tmp_path)
    rewrite_run(folder, base_step=60)
    with pytest.raises(RunError, match="the adapter was trained on"):
        load_finetuned(folder)


def test_missing_adapter_raises_run_error(here: Harness, tmp_path: Path) -> None:
    folder = copied(here, "who", tmp_path)
    shutil.rmtree(folder.path / "adapter")
    with pytest.raises(RunError, match="its fine-tuning did not finish"):
        load_finetuned(folder)


def test_changed_adapter_changes_predictions(here: Harness, tmp_path: Path) -> None:
    """The predictions depend on the file: with a negated head, every answer is reversed."""
    folder = copied(here, "who", tmp_path)
    path = folder.path / "adapter" / WEIGHTS_FILE
    weights = load_file(path)
    weights["base_model.model.score.weight"] = weights["base_model.model.score.weight"].flip(0)
    save_file(weights, path)
    texts = [SINGERS[3], JUMPERS[3]]
    with torch.no_grad():
        for run, expected in ((here.folder("who"), [1, 0]), (folder, [0, 1])):
            tuned = load_finetuned(run)
            assert task_of(tuned).class_scores(tuned.model, texts).argmax(-1).tolist() == expected


# ---- numbers -----------------------------------------------------------------------------------------------------


def test_confusion_matches_hand_computed_precision_recall_and_f1() -> None:
    truth, called = [0, 0, 0, 0, 1, 1, 1, 2], [0, 0, 1, 2, 1, 1, 0, 0]
    result = confusion(["a", "b", "c"], truth, called, ["x", "x", "y", "y", "y", None, "x", "x"])
    assert result.counts == ((2, 1, 1), (1, 2, 0), (1, 0, 0))
    assert result.accuracy == 4 / 8
    assert result.baseline == 4 / 8
    a, b, c = result.scores()
    assert (a.precision, a.recall, a.count) == (2 / 4, 2 / 4, 4)
    assert (b.precision, b.recall) == pytest.approx((2 / 3, 2 / 3))
    assert b.f1 == pytest.approx(2 / 3)
    assert (c.precision, c.recall, c.f1) == (0, 0, 0)
    assert result.by_category == {"x": (2, 4), "y": (1, 3)}
    lines = "\n".join(confusion_lines(result))
    assert "actual a            2            1            1" in lines
    assert "1 of 3  y" in lines
    assert json.loads(json.dumps(result.as_dict()))["confusion"] == [[2, 1, 1], [1, 2, 0], [1, 0, 0]]
