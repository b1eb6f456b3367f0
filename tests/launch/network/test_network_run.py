"""`frog run --nodes … --network …` as a user types it: the same weights, a slower run, and a report of the reason."""

from __future__ import annotations

import json
import re

import pytest
from harness import Harness

from frog.core.runs.event_schema import CollectiveEvent

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def slow(harness: Harness, may_make_networks: None) -> str:
    """A run on two nodes with a link of 10 Mbit/s and 5 ms."""
    words = ["--set", "name=slow-link", "--set", "train.steps=4"]
    link = ("--network", "rate=10mbit delay=5ms")
    done = harness.run("frog", "run", "--nodes", "2x1", *link, "--", "train", "run.toml", *words)
    assert "10.77.0.1" in done.stdout
    assert "cannot be retrieved" not in done.stdout + done.stderr
    return "slow-link"


def test_slow_network_does_not_change_the_weights(harness: Harness, slow: str) -> None:
    harness.train(2, "fast-link", "train.steps=4")
    for key in ("weights_sha256", "order_sha256", "loss"):
        assert harness.record(slow)[key] == harness.record("fast-link")[key]


def test_collectives_take_at_least_the_time_of_their_messages(harness: Harness, slow: str) -> None:
    """An all-reduce waits for two consecutive messages of half the gradient, however fast the machine is."""
    told = [event for event in harness.events(slow).ranks[0].of(CollectiveEvent) if event.op == "all_reduce"]
    gradients = [event for event in told if event.payload_bytes > 10_000]
    assert len(gradients) >= 4
    for event in gradients:
        least_s = 0.01 + event.payload_bytes / 2 * 8 / 10e6
        assert (event.end_ns - event.start_ns) / 1e9 > least_s


def test_report_compares_collectives_with_the_formula(harness: Harness, slow: str) -> None:
    harness.run("frog", "report", slow)
    html = harness.folder(slow).report_html.read_text()
    section = re.search(r'<section id="network">.*?</section>', html, re.DOTALL)
    assert section is not None
    text = re.sub(r"\s+", " ", re.sub(r"<[^>]+>", " ", section[0]))
    assert "2 nodes, each on a link of 10.0 Mbit/s with a delay of 5.00 ms" in text
    assert re.search(r"all_reduce dp 11\d\.\d KiB 4 11\d\.\d KiB 4 11\d ms \d+", text), text
    harness.run("frog", "report", "fast-link")
    assert 'id="network"' not in harness.folder("fast-link").report_html.read_text()


def test_run_folder_contains_the_network_settings(harness: Harness, slow: str) -> None:
    lines = harness.folder(slow).launcher_events.read_text().splitlines()
    network = json.loads(lines[0])["network"]
    assert (network["rate_bits_per_s"], network["delay_s"]) == (1e7, 0.005)
