"""Sentences of a report: what its numbers mean, for runs whose numbers are known."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from synthetic_run import Synthetic, make_run

from frog.core.runs.history import read_history
from frog.observe.view import report_sentences
from frog.observe.view.report import render_report
from frog.observe.view.report_sentences import time_sentences
from frog.observe.view.timeline import RankFractions, phase_fractions

FALLING = np.linspace(8.0, 2.0, 40)


@pytest.mark.parametrize(
    ("heldout", "end"),
    [
        ([], "(means of the first and last tenth of the steps)."),
        ([8.0, 2.2], "The held-out loss is close: no sign of overfitting."),
        ([8.0, 2.0, 3.0], "The held-out loss has risen from 2.000: the usual sign of overfitting."),
        ([8.0, 3.0], "The held-out loss is higher by 0.7692, perhaps by overfitting."),
    ],
)
def test_loss_is_compared_with_the_held_out_loss(heldout: list[float], end: str) -> None:
    said = report_sentences._loss(FALLING, heldout)
    assert said.startswith("The loss fell from 7.769 to 2.231 (means")
    assert said.endswith(end)
    assert report_sentences._loss(FALLING[::-1], []).startswith("The loss rose from 2.231 to 7.769")
    diverged = report_sentences._loss(FALLING[::-1], [2.0, 8.0])
    assert diverged.endswith("The held-out loss has risen from 2.000 to 8.000.")


def test_only_a_late_multiple_of_the_median_norm_is_a_spike() -> None:
    norms, steps = np.ones(40), list(range(1, 41))
    late, early = norms.copy(), norms.copy()
    late[29] = early[0] = 9.0
    assert report_sentences._norm(late, steps).endswith(
        "largest 9.000 in step 30: a spike. Look at the batch of that step and at the learning rate."
    )
    assert report_sentences._norm(early, steps).endswith("largest 9.000 in step 1: no spike after the first steps.")
    late[0] = 20.0
    assert report_sentences._norm(late, steps).endswith(
        "largest 9.000 after the first steps, in step 30: a spike. "
        "Look at the batch of that step and at the learning rate."
    )


def test_slow_step_and_growing_memory_are_named() -> None:
    speed = np.full(40, 1000.0)
    assert report_sentences._throughput(speed, list(range(40))).endswith(
        "no step took more than 1.0 times as long as the median step."
    )
    speed[7] = 250.0
    assert report_sentences._throughput(speed, list(range(40))).endswith(
        "step 7 took 4.0 times as long as the median step."
    )
    level = np.full(40, 2.0**28)
    leak = 2.0**28 * np.linspace(1, 3, 40)
    assert report_sentences._memory({0: level}) == "Highest: 256 MiB; it stayed level in the last half of the steps."
    assert report_sentences._memory({0: level, 1: leak}).startswith("Highest: 768 MiB on rank 1; it grew by 4")
    level[3] *= 2
    assert report_sentences._memory({0: level}) == "Highest: 512 MiB; it stayed level in the last half of the steps."


def test_time_names_the_dominating_phase_the_slow_rank_and_both_numbers_of_waiting(tmp_path: Path) -> None:
    even = phase_fractions(read_history(make_run(tmp_path / "r")))
    phases = dict.fromkeys(even[0].phase_ns, 0)
    fast = RankFractions(0, 1000, {**phases, "forward": 300, "backward": 300, "reduce": 400}, 500, 0, 10)
    slow = replace(fast, rank=1, phase_ns={**phases, "forward": 400, "backward": 380, "reduce": 220}, collective_ns=300)
    said = " ".join(time_sentences([fast, slow], 1))
    assert said.startswith(
        "forward dominates with 35 % of the time. reduce takes 31 %; a second node would put a network"
    )
    assert "Rank 1 computes 30 % longer than rank 0: wherever all meet in a collective, the others wait for it." in said
    assert "The column collectives has 40 % on average, and not reduce's 31 %" in said
    assert "a second node" not in " ".join(time_sentences([fast, slow], 2))
    assert time_sentences([fast], 1)[1:] == ["With a second rank, a step would have reduce, too."]
    assert "All ranks compute equally long" in " ".join(time_sentences([fast, replace(fast, rank=1)], 1))


def test_report_has_a_sentence_below_its_charts_and_marks_what_differs_from_the_defaults(tmp_path: Path) -> None:
    html = render_report(make_run(tmp_path / "r", Synthetic(segments=[(2, 0, 40)])))
    assert html.count('<p class="said">') == 4
    assert "The column collectives has" in html
    assert '<tr class="differs"><th>seed</th>' not in html
    assert '<tr class="differs"><th>steps</th><td>40</td></tr>' in html
