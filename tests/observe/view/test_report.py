"""The report: its contents for every kind of run, and its robustness against a run's data."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from synthetic_run import Synthetic, make_run, mean_loss

from frog.core.config import TrainConfig
from frog.core.errors import RunError
from frog.core.files import write_json
from frog.core.runs import read_run
from frog.core.runs.folder import RunFolder
from frog.core.runs.history import Collectives, History, RankHistory, Segment, Spans, read_history
from frog.core.runs.record import FORMAT
from frog.observe.view.charts import MAX_POINTS, charts, pick_steps
from frog.observe.view.report import json_for_script, render_report, write_report


class Page(HTMLParser):
    """The text of a page by element, and the resources that it would load."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.words: list[str] = []
        self.loads: list[str] = []
        self.num_scripts = 0
        self.data: dict[str, Any] = {}
        self._inside: list[str] = []
        self._is_data = False
        self.feed(html)
        self.text = re.sub(r"\s+", " ", " ".join(self.words))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = dict(attrs)
        self.num_scripts += tag == "script"
        self.loads += [found[key] or "" for key in ("src", "href") if key in found]
        self._is_data = found.get("id") == "data"
        if tag not in ("meta", "link", "br"):
            self._inside.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self._inside.pop() == tag

    def handle_data(self, data: str) -> None:
        if self._is_data:
            self.data = json.loads(data)
            self._is_data = False
        elif not {"script", "style"} & set(self._inside):
            self.words.append(data)


def page_of(folder: RunFolder) -> Page:
    return Page(render_report(folder))


def test_report_shows_results_of_completed_run(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "pond")
    path = write_report(folder)
    assert path == folder.report_html
    page = Page(path.read_text())
    record = folder.read_record()
    assert record is not None
    assert record.eval is not None
    for words in ("pond", "completed", f"{record.loss:.3f}", f"{record.eval.perplexity:.2f}", "56.00 k"):
        assert words in page.text
    assert [chart["name"] for chart in page.data["charts"]] == [
        "loss",
        "learning_rate",
        "grad_norm",
        "tokens_per_s",
        "memory_bytes",
    ]
    assert [line["label"] for line in page.data["charts"][0]["lines"]] == [
        *(f"rank {rank}" for rank in range(4)),
        "mean",
        "held-out",
    ]
    for words in ("layers.1.mlp.down_proj", "frog jumps 40 times", "learning_rate", "python-docs", "rank 3", "40-60"):
        assert words in page.text.replace("\N{EN DASH}", "-")


def test_report_explains_effective_batch(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "r", Synthetic(train=TrainConfig(global_batch_size=32, grad_accum=2)))
    words = "Global batch 32 sequences = dp 4 x grad_accum 2 x micro-batch 4; 2,048 tokens a step"
    assert words in page_of(folder).text
    run = json.loads(folder.run_json.read_text())
    run["segments"][-1]["world_size"] = 3  # a world that does not divide this batch
    write_json(folder.run_json, run)
    assert "Global batch" not in page_of(folder).text


def test_fp16_report_shows_loss_scale_and_skipped_steps(tmp_path: Path) -> None:
    fp16 = TrainConfig(precision="fp16", initial_loss_scale=2.0**20)
    page = page_of(make_run(tmp_path / "r", Synthetic(train=fp16, overflows=(1, 2, 40))))
    chart = page.data["charts"][-1]
    assert (chart["name"], chart["style"]) == ("loss_scale", "power")
    scale, left_out = chart["lines"]
    assert scale["values"] == pytest.approx([2.0**20, 2.0**19, *[2.0**18] * 38, *[2.0**17] * 20], rel=1e-5)
    assert [step for step, value in zip(chart["steps"], left_out["values"], strict=True) if value] == [1, 2, 40]
    assert "3 of 60 steps overflowed and were skipped; each halved the scale: 1, 2, 40" in page.text
    calm = page_of(make_run(tmp_path / "calm", Synthetic(train=fp16)))
    assert [line["label"] for line in calm.data["charts"][-1]["lines"]] == ["loss scale"]
    assert "No gradient overflowed" in calm.text
    assert "Loss scale" not in page_of(make_run(tmp_path / "plain")).text


def test_report_loads_no_external_resources(tmp_path: Path) -> None:
    assert page_of(make_run(tmp_path / "r")).loads == ["data:,"]


def test_run_text_is_escaped(tmp_path: Path) -> None:
    evil = "{prompt}</script></pre><script>alert(1)</script><img src=x onerror=alert(2)>"
    plain = page_of(make_run(tmp_path / "plain"))
    error = {"type": "CommError", "message": "<script>alert(3)</script> & more", "rank": 1, "step": 60}
    page = page_of(make_run(tmp_path / "evil", Synthetic(sample_text=evil, status="failed", error=error)))
    assert page.num_scripts == plain.num_scripts == 4
    assert page.loads == ["data:,"]
    assert "<script>alert(1)</script><img src=x onerror=alert(2)>" in page.text
    assert "<script>alert(3)</script> & more" in page.text


def test_embedded_json_cannot_close_script_element() -> None:
    value = {"label": "</script><!-- & <b>"}
    text = json_for_script(value)
    assert not set("<>&") & set(text)
    assert json.loads(text) == value


def test_failed_run_shows_error_at_top(tmp_path: Path) -> None:
    error = {"type": "NonFiniteError", "message": "loss is NaN\n  try: a lower rate", "rank": 1, "step": 37}
    folder = make_run(tmp_path / "r", Synthetic(segments=[(2, 0, 37)], status="failed", error=error))
    # A failed run's record has fewer fields than that of a completed run.
    write_json(folder.record_json, {"format": FORMAT, "status": "failed", "step": 37, "error": error, "ended": ""})
    text = page_of(folder).text
    assert "NonFiniteError on rank 1 at step 37" in text
    assert text.index("loss is NaN") < text.index("Train loss") < text.index("Learning")
    assert "logs/rank_1/train.log" in text
    assert f"{mean_loss(37, Synthetic()):.3f}" in text


def test_killed_run_without_record_is_distinguished_from_running_one(tmp_path: Path, monkeypatch: Any) -> None:
    text = page_of(make_run(tmp_path / "r", Synthetic(status=None))).text
    assert "died" in text
    assert "The run ended without a record" in text
    monkeypatch.setattr("frog.observe.view.runs.is_active", lambda folder, problems: True)
    text = page_of(make_run(tmp_path / "s", Synthetic(status=None))).text
    assert "running" in text
    assert "without a record" not in text


def test_minimal_run_has_a_report(tmp_path: Path) -> None:
    kind = Synthetic(segments=[(1, 0, 1)], eval_every=None, checkpoint_every=None)
    page = page_of(make_run(tmp_path / "r", kind))
    assert [line["label"] for line in page.data["charts"][0]["lines"]] == ["mean"]
    assert "The run has no checkpoint: its last step was" in page.text
    assert "The run sampled no text" in page.text
    assert "Held-out" not in page.text


def test_run_without_steps_has_a_report(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "r", Synthetic(segments=[(1, 0, 0)]))
    error = {"type": "DataError", "message": "no data", "rank": 0, "step": 0}
    write_json(folder.record_json, {"format": FORMAT, "status": "failed", "step": 0, "error": error, "ended": ""})
    assert "The run finished no step" in page_of(folder).text
    for path in folder.events.iterdir():
        path.unlink()
    folder.events.rmdir()
    assert "The run finished no step" in page_of(folder).text


def test_imported_model_has_a_report(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "r", Synthetic(segments=[(1, 0, 20)], status=None))
    run = {**json.loads(folder.run_json.read_text()), "data": None, "segments": []}
    write_json(folder.run_json, run)
    folder.rank_events(0).unlink()
    text = page_of(folder).text
    assert "imported" in text
    assert "without a record" not in text


def test_resumed_run_shows_both_worlds(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "r", Synthetic(segments=[(4, 0, 75), (2, 50, 120)]))
    with open(folder.rank_events(2), "a") as file:
        file.write('{"event":"step","step":76,"lo')
    page = page_of(folder)
    assert page.data["marks"] == [{"step": 50, "label": "resumed, world 2"}]
    loss = page.data["charts"][0]
    lines = {line["label"]: line["values"] for line in loss["lines"]}
    assert loss["steps"] == list(range(1, 121))
    assert sum(value is not None for value in lines["rank 3"]) == 50
    assert sum(value is not None for value in lines["rank 1"]) == 120
    assert "rank_2.jsonl: 1 damaged or torn line skipped" in page.text
    assert " 50 2 1 pond cpu 1 25 " in page.text


def test_damaged_checkpoints_are_named(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "r")
    (folder.checkpoint(40) / "rank_2.safetensors").write_bytes(b"")
    text = page_of(folder).text
    assert "Passed over:" in text
    assert "rank_2.safetensors: 0 bytes" in text
    assert "20\N{EN DASH}60" in text


def test_nan_loss_is_a_gap_in_valid_json(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "r", Synthetic(segments=[(1, 0, 5)], loss_noise=float("nan"), noise_from_step=4))
    mean = page_of(folder).data["charts"][0]["lines"][0]["values"]
    assert [value is None for value in mean] == [False, False, False, True, True]


def test_missing_run_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(RunError, match=r"run\.json is missing"):
        render_report(RunFolder(tmp_path))


def test_downsampling_keeps_ends_and_spikes() -> None:
    values = np.sin(np.arange(50_000) / 1000)
    values[31_234] = 40.0
    values[100:200] = np.nan
    picked = pick_steps(values)
    assert len(picked) <= MAX_POINTS
    assert {0, 31_234, 49_999} <= set(picked.tolist())
    assert (np.diff(picked) > 0).all()
    assert pick_steps(values[:300]).tolist() == list(range(300))


def _long_history(num_steps: int, num_ranks: int) -> History:
    """Return the history of 50,000 steps without writing gigabytes of events."""
    steps = np.arange(1, num_steps + 1)
    none = [np.zeros(0, np.int64) for _ in range(8)]
    names = ("loss", "loss_mean", "grad_norm", "learning_rate", "tokens_per_s", "memory_bytes")
    history = History(read_run(RunFolder(Path("absent"))), [Segment(0, None, num_ranks, ["pond"], "cpu", 0)])
    for rank in range(num_ranks):
        draw = np.random.default_rng(rank)
        scalars = {name: draw.normal(3, 1, num_steps) for name in names}
        ids: list[list[int]] = [[] for _ in steps]
        zeros = np.zeros(num_steps, np.int64)
        history.ranks[rank] = RankHistory(
            rank, {}, steps, scalars, ids, zeros, zeros, Spans(*none[:6]), Collectives(*none), [], []
        )
    return history


@pytest.mark.slow
def test_report_of_50000_steps_and_64_ranks_is_below_5_mb() -> None:
    drawn = charts(_long_history(50_000, 64))
    assert len(json.dumps(drawn)) < 4_500_000
    assert all(len(chart["steps"]) <= MAX_POINTS for chart in drawn)
    assert "50,000 steps" in drawn[0]["note"]
    assert len(drawn[0]["lines"]) == 17


def test_chart_rank_losses_match_events(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "r")
    history = read_history(folder)
    chart = charts(history)[0]
    for line in chart["lines"][:4]:
        expected = history.ranks[line["rank"]].scalars["loss"]
        assert line["values"] == pytest.approx(expected.tolist(), rel=1e-5)


def test_report_without_the_plan_omits_its_sections(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = make_run(tmp_path / "r")
    assert '<section id="strategy">' in render_report(folder)
    monkeypatch.setattr("frog.observe.view.report.report_sections", lambda run, history: {})
    html = render_report(folder)
    assert '<section id="strategy">' not in html
    assert '<section id="config">' in html
