"""Exported event files, read back with TensorBoard's own reader."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
from synthetic_run import START_UNIX_NS, Synthetic, make_run

from frog.core.errors import UsageError
from frog.core.runs.history import read_history
from frog.observe.view.tensorboard import export_tensorboard


def read_back(folder: Path) -> Any:
    pytest.importorskip("tensorboard", reason="the extra `tensorboard` is not installed")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    accumulator = EventAccumulator(str(folder), size_guidance={"scalars": 0, "tensors": 0})
    accumulator.Reload()
    return accumulator


def test_exported_scalars_read_back(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "r", Synthetic(segments=[(4, 0, 45), (2, 40, 60)]))
    pytest.importorskip("tensorboard", reason="the extra `tensorboard` is not installed")
    target = export_tensorboard(folder)
    assert target == folder.path / "tensorboard"
    assert sorted(entry.name for entry in target.iterdir()) == ["all", "held_out", *(f"rank_{r}" for r in range(4))]
    history = read_history(folder)
    for rank in history.ranks.values():
        reported = read_back(target / f"rank_{rank.rank}").Scalars("loss")
        assert [event.step for event in reported] == rank.steps.tolist()
        assert [event.value for event in reported] == pytest.approx(rank.scalars["loss"].tolist(), rel=1e-6)
    everyone = read_back(target / "all")
    # No rank reported its MFU, so it is missing; memory is per rank.
    assert set(everyone.Tags()["scalars"]) == {"loss", "grad_norm", "learning_rate", "tokens_per_s"}
    assert everyone.Scalars("learning_rate")[-1].value == pytest.approx(3e-3)
    assert everyone.Scalars("loss")[0].wall_time == pytest.approx(START_UNIX_NS / 1e9 + 0.08, abs=0.01)
    assert "memory_bytes" in read_back(target / "rank_1").Tags()["scalars"]


def test_exported_scores_and_samples_read_back(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "r", Synthetic(sample_text="{prompt}# one\n<b>two</b>"))
    pytest.importorskip("tensorboard", reason="the extra `tensorboard` is not installed")
    reported = read_back(export_tensorboard(folder, tmp_path / "out") / "held_out")
    assert [event.step for event in reported.Scalars("perplexity")] == [20, 40, 60]
    (text,) = reported.Tensors("sample")[1].tensor_proto.string_val
    assert text.decode() == "    The # one\n    <b>two</b>"
    assert reported.SummaryMetadata("sample").plugin_data.plugin_name == "text"


def test_second_export_replaces_the_first(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "r", Synthetic(segments=[(1, 0, 10)]))
    pytest.importorskip("tensorboard", reason="the extra `tensorboard` is not installed")
    export_tensorboard(folder)
    target = export_tensorboard(folder)
    assert len(list((target / "rank_0").iterdir())) == 1
    assert len(read_back(target / "rank_0").Scalars("loss")) == 10


def test_missing_tensorboard_error_names_the_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tensorboard.summary.writer.event_file_writer", None)
    with pytest.raises(UsageError, match="not installed") as caught:
        export_tensorboard(make_run(tmp_path / "r", Synthetic(segments=[(1, 0, 1)])))
    assert caught.value.hint is not None
    assert "pip install 'frog[tensorboard]'" in caught.value.hint


def test_non_utf8_folder_is_rejected(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard", reason="the extra `tensorboard` is not installed")
    with pytest.raises(UsageError, match="accepts only names in UTF-8"):
        export_tensorboard(make_run(tmp_path / "r", Synthetic(segments=[(1, 0, 1)])), tmp_path / "\udcff")
