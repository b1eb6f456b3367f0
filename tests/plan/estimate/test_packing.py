"""Documents packed into sequences: how full they are, whom a token sees, and what padding costs."""

from __future__ import annotations

import itertools
import json
import random
from pathlib import Path

import pytest

from frog.cli import main
from frog.core.errors import ConfigError, UsageError
from frog.plan.estimate.hardware import clusters
from frog.plan.estimate.packing import Packing, read_lengths, refuse_packing, without_packing
from frog.plan.estimate.requests import request_run
from frog.plan.estimate.rows import PlannedRun
from frog.plan.estimate.sources import read_named_model
from frog.plan.model import PlannedModel

LLAMA_8B = Path(__file__).parents[3] / "config" / "llama3_8b.json"
LENGTHS = tuple(random.Random(1).choices(range(5, 900), k=400))


def planned(model: PlannedModel | None = None, **options: object) -> PlannedRun:
    from dataclasses import replace

    named = read_named_model(str(LLAMA_8B))
    named = named if model is None else replace(named, model=model)
    words = {name: str(value) for name, value in {"seq_len": 1024, "global_batch": 64, **options}.items()}
    return request_run(named, words, clusters()["h100x8"], 8)


def test_a_token_sees_as_many_others_as_a_mask_of_the_documents_allows() -> None:
    model = Packing((3, 3, 7), 13).model(PlannedModel(2, 8, 2, 2, 4, 16, 10))
    # Causal attention inside documents: a document of n tokens has n (n + 1) / 2 scores, of which n are of a token with
    # itself. `mean_keys` is the length of one causal sequence with as many scores for each token, without these.
    scores = sum(n * n for n in (3, 3, 7))
    assert model.mean_keys(13) == pytest.approx(scores / 13)
    assert model.attention_flops_per_token(13) == pytest.approx(scores / 13 * 2 * 2 * (8 + 8) * 0.5)


def test_windows_are_inside_of_documents() -> None:
    whole = PlannedModel(2, 8, 2, 2, 4, 16, 10, window=4, windowed_layers=1)
    model = Packing((3, 10), 13).model(whole)
    expected = (3 * whole.mean_keys(3) + 10 * whole.mean_keys(10)) / 13
    assert model.mean_keys(13) == pytest.approx(expected)
    assert expected < PlannedModel(2, 8, 2, 2, 4, 16, 10).mean_keys(10)


def test_packing_is_best_fit_longest_first() -> None:
    assert Packing((6, 5, 4, 3, 2), 10).documents_per_sequence == 5 / 2
    assert Packing((6, 6, 3, 3, 1, 1), 10).documents_per_sequence == 3
    assert Packing((7, 7, 7), 10).documents_per_sequence == 1
    assert Packing((300,), 1024).documents_per_sequence == 3
    packing = Packing(LENGTHS, 1024)
    least = -(-sum(LENGTHS) // 1024)
    assert least <= len(LENGTHS) / packing.documents_per_sequence <= 1.02 * least
    assert packing.fullness == pytest.approx(sum(LENGTHS) / 1024 / (len(LENGTHS) / packing.documents_per_sequence))


def test_no_packing_of_few_documents_needs_fewer_sequences() -> None:
    """All ways to assign five documents to sequences, one by one."""
    for lengths in ((5, 4, 3, 2, 2), (6, 5, 5, 2, 1), (9, 1, 1, 1, 1)):
        places = itertools.product(range(len(lengths)), repeat=len(lengths))
        fits = (
            len(set(place)) for place in places
            if all(sum(n for n, at in zip(lengths, place, strict=True) if at == one) <= 10 for one in set(place))
        )  # fmt: skip
        assert len(lengths) / Packing(lengths, 10).documents_per_sequence == min(fits)


def test_longer_documents_are_cut() -> None:
    packing = Packing((500, 2000, 3000), 1024)
    assert (packing.num_cut, packing.cut) == (2, (500, 1024, 1024))


def test_padding_is_to_the_longest_of_a_micro_batch() -> None:
    assert Packing((10, 20), 100).longest_of(1) == 15
    assert Packing((10, 20), 100).longest_of(2) == 20
    one, four = (Packing(LENGTHS, 1024).longest_of(size) for size in (1, 4))
    assert one == pytest.approx(sum(LENGTHS) / len(LENGTHS))
    assert one < four < max(LENGTHS)


def test_the_same_documents_take_longer_unpacked() -> None:
    packing = Packing(LENGTHS, 1024)
    model = read_named_model(str(LLAMA_8B)).model
    run = planned(packing.model(model), micro_batch=4)
    unpacked = without_packing(run, packing, model)
    assert unpacked.seq_len == round(packing.longest_of(4))
    assert unpacked.padding == pytest.approx(1 - packing.mean_length / packing.longest_of(4))
    alone = planned(seq_len=unpacked.seq_len, micro_batch=4).step.step.total / 64
    packed = run.step.step.total / (64 * packing.documents_per_sequence)
    assert unpacked.slowdown == pytest.approx(alone / packed)
    assert unpacked.slowdown > 1


def test_attention_inside_documents_is_faster_than_over_the_sequence() -> None:
    model = read_named_model(str(LLAMA_8B)).model
    whole, inside = planned(seq_len=8192), planned(Packing((512,), 8192).model(model), seq_len=8192)
    assert inside.step.step.attention < 0.15 * whole.step.step.attention
    assert inside.step.step.products == whole.step.step.products


def test_what_is_not_modelled_is_refused() -> None:
    with pytest.raises(ConfigError, match="--cp"):
        refuse_packing(planned(cp=2).layout)
    with pytest.raises(ConfigError, match="whole scores"):
        refuse_packing(planned(software="Megatron-DeepSpeed", year=2022, zero=1).layout)


@pytest.mark.parametrize(
    ("content", "said"), [("12\nx\n", "line 2 is 'x'"), ("", "no lengths"), ("5\n0\n", "line 2 is '0'")]
)
def test_wrong_files_of_lengths_are_refused(content: str, said: str, tmp_path: Path) -> None:
    (tmp_path / "lengths.txt").write_text(content)
    with pytest.raises(UsageError, match=said):
        read_lengths(str(tmp_path / "lengths.txt"), "--packing")


def test_command_prints_how_full_sequences_are(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "lengths.txt"
    path.write_text("\n".join(map(str, LENGTHS)))
    words = ["plan", str(LLAMA_8B), "--cluster", "h100x8", "--seq-len", "1024", "--global-batch", "64", "--packing"]
    assert main([*words, str(path), "--micro-batch", "4", "--tokens", "1e9", "--json"]) == 0
    plan = json.loads(capsys.readouterr().out)
    packing = Packing(LENGTHS, 1024)
    assert plan["packing"]["fullness"] == packing.fullness
    # The tokens are the documents': padding makes more steps.
    assert plan["training"]["steps"] == -(-1e9 / packing.fullness // (64 * 1024))
    assert main([*words, "300"]) == 0
    out = capsys.readouterr().out
    assert "packing: documents of 300 tokens, mean 300; 3.0 in a sequence, 87.9 % full" in out
    assert main([*words, str(tmp_path / "none.txt")]) != 0
    assert "no such file" in capsys.readouterr().err
