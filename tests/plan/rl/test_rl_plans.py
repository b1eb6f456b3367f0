"""RL post-training: lengths of responses, a rollout step by step, who waits for whom, and what the command prints."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from frog.cli import main
from frog.core.errors import ConfigError
from frog.plan.estimate.hardware import clusters
from frog.plan.estimate.packing import Packing
from frog.plan.estimate.requests import request_run
from frog.plan.estimate.sources import read_named_model
from frog.plan.links import Group
from frog.plan.rl.post_training import HOST_BYTES_PER_S, PostTraining, quantile_lengths
from frog.plan.rl.rollout import HOST_S, Rollout, spread_lengths
from frog.plan.rl_command import packed_options
from frog.plan.serve.server import Server

LLAMA_8B = Path(__file__).parents[3] / "config" / "llama3_8b.json"


def a_server(tp: int = 1) -> Server:
    return Server(read_named_model(str(LLAMA_8B)).model, clusters()["h100x8"], tp)


def a_plan(num_gpus: int = 16, generating: int = 0, tp: int = 1, **given: Any) -> PostTraining:
    options = {"seq_len": "1024", "global_batch": "256", "software": "megatron", "zero": "1", "recompute": "full"}
    run = request_run(
        read_named_model(str(LLAMA_8B)), {**options, "tp": "2"}, clusters()["h100x8"], num_gpus - generating
    )
    values = {"prompts": 64, "samples": 8, "prompt": 256, "lengths": quantile_lengths(768, 3000), **given}
    return PostTraining(run, a_server(tp), generating, **values)


@pytest.mark.parametrize(("mean", "longest"), [(100, 101), (500, 800), (900, 4000), (50, 30_000), (2000, 2100)])
def test_lengths_have_the_mean_and_end_at_the_longest(mean: int, longest: int) -> None:
    lengths = spread_lengths(mean, longest, 2000)
    assert sum(lengths) / len(lengths) == pytest.approx(mean, rel=0.03)
    assert max(lengths) <= longest
    assert lengths == sorted(lengths)


def test_equal_lengths_have_no_spread() -> None:
    assert spread_lengths(700, 700, 3) == [700, 700, 700]
    assert quantile_lengths(700, 700)[-1] == 700
    assert quantile_lengths(700, 900)[-1] == 900


def test_rollout_takes_as_long_as_its_steps_one_by_one() -> None:
    """Count every step: who is active, and how many tokens each has."""
    server, lengths = a_server(), (640, 64, 320, 128, 512, 64)
    rollout = Rollout(server, 128, lengths, 2, 3)
    waiting, seconds = rollout._represented()[0], 0.0
    running: list[list[int]] = []
    while waiting or running:
        while waiting and len(running) < 3:
            running.append([0, waiting.pop(0)])
        context = 128 + sum(age for age, _ in running) / len(running)
        seconds += HOST_S + server.decode(len(running), context).total
        running = [[age + 1, length] for age, length in running if age + 1 < length]
    assert rollout.decode_s == pytest.approx(seconds, rel=0.01)


def test_longest_response_and_free_slots_decide_how_long_a_rollout_takes() -> None:
    server = a_server()
    even, tail = Rollout(server, 128, (500,) * 64, 8, 64), Rollout(server, 128, (441,) * 63 + (4217,), 8, 64)
    assert even.num_tokens == tail.num_tokens
    assert tail.decode_s > 3 * even.decode_s
    assert Rollout(server, 128, (500,) * 64, 8, 16).decode_s > 2 * even.decode_s


def test_many_responses_are_represented_by_few() -> None:
    server, lengths = a_server(), tuple(spread_lengths(400, 1500, 1024))
    half = Rollout(server, 128, lengths[::2], 8, 256)
    whole = Rollout(server, 128, lengths, 8, 512)
    assert whole._represented()[1] == 2
    assert max(whole._represented()[0]) == max(lengths)
    assert half.decode_s < whole.decode_s < 2 * half.decode_s


def test_a_prompt_is_computed_once_for_its_samples() -> None:
    server = a_server()
    one, eight = Rollout(server, 512, (10,) * 64, 1, 64), Rollout(server, 512, (10,) * 64, 8, 64)
    assert one.prefill_s == pytest.approx(8 * eight.prefill_s, rel=0.05)


def test_a_step_is_the_sum_of_its_parts_on_shared_gpus() -> None:
    plan = a_plan()
    step = plan.step
    assert plan.total_s == pytest.approx(sum(vars(step).values()))
    assert plan.updates == 2
    assert step.training == pytest.approx(2 * plan.run.step.step.total)
    assert plan.idle_share == 0
    moved = 2 * (plan.run.step.memory.states + plan.reference_bytes)
    assert step.offloading == pytest.approx(moved / HOST_BYTES_PER_S)


def test_log_probabilities_take_a_forward_pass_for_each_model() -> None:
    with_reference, without = a_plan(), a_plan(reference=False)
    assert with_reference.step.log_probabilities == pytest.approx(2 * without.step.log_probabilities)
    passes, whole = without.run.step.stages[0], without.run.step.step
    share = passes.forward.total / passes.total.total
    assert without.step.log_probabilities == pytest.approx(2 * share * (whole.total - whole.optimizer - whole.other))
    assert with_reference.reference_bytes == 2 * without.run.model.num_parameters() / 2
    assert without.reference_bytes == 0


def test_off_policy_overlaps_both_roles_and_the_faster_one_waits() -> None:
    apart, ahead = a_plan(16, 8), a_plan(16, 8, off_policy=True)
    step = apart.step
    assert apart.total_s == pytest.approx(step.generation + apart.trainer_s + step.synchronization)
    assert ahead.total_s == pytest.approx(max(step.generation, apart.trainer_s) + step.synchronization)
    assert step.offloading == 0
    assert 0 < ahead.idle_share < apart.idle_share < 1
    slower, faster = sorted((step.generation, apart.trainer_s))
    assert ahead.idle_share == pytest.approx((faster - slower) / 2 / ahead.total_s)


def test_new_weights_reach_every_gpu() -> None:
    plan = a_plan(16, 8)
    expected = plan.run.step.links.gather(2.0 * plan.run.model.num_parameters(), Group(16, 1))
    assert plan.synchronization == pytest.approx(expected)


def test_states_that_stay_leave_less_room_for_the_cache() -> None:
    moved, stays = a_plan(prompts=4096), a_plan(prompts=4096, offloads=False)
    assert stays.kept_bytes == pytest.approx(stays.run.step.memory.states + stays.reference_bytes)
    assert stays.slots < moved.slots
    assert stays.generating_bytes <= 0.9 * stays.run.cluster.gpu.memory
    assert stays.training_bytes > moved.training_bytes
    assert stays.step.offloading == 0


def test_a_generator_without_room_is_refused_with_both_numbers() -> None:
    plan = a_plan(offloads=False)
    big = replace(plan, server=replace(plan.server, model=replace(plan.server.model, layers=160)))
    with pytest.raises(ConfigError, match=r"no sequence fits .* GiB with CUDA, of .* GiB"):
        _ = big.slots


def rl(*words: str) -> int:
    return main(["plan", "rl", str(LLAMA_8B), "--cluster", "h100x8", *words])


WORDS = ("--nodes", "2", "--prompts", "64", "--samples", "8", "--response", "1000", "--tp", "2")


def test_command_prints_the_share_of_generation(capsys: pytest.CaptureFixture[str]) -> None:
    assert rl(*WORDS, "--longest", "4000", "--price", "2 USD/h") == 0
    out = capsys.readouterr().out
    for words in ("generation     ", "log-probabilities", "weights to the generator", "USD for a step", "no critic"):
        assert words in out
    assert rl(*WORDS, "--longest", "4000", "--json") == 0
    plan = json.loads(capsys.readouterr().out)
    assert plan["generation_share"] == pytest.approx(plan["step_s"]["generation"] / plan["step_s"]["total"])
    assert f"{100 * plan['generation_share']:.1f} %" in out


@pytest.mark.parametrize(
    ("length", "pp", "packs", "tokens"),
    [(1024, 1, 64, 4096), (1024, 2, 64, 4096), (3000, 1, 256, 3000), (3000, 2, 256, 4096), (1300, 4, 86, 4096)],
)
def test_a_pipeline_pads_its_packs_to_the_longest(length: int, pp: int, packs: int, tokens: int) -> None:
    """256 sequences in packs of 4,096 tokens, as many for each of the data-parallel ranks."""
    options = packed_options(Packing((length,) * 256, 4096), 256, 2, 1, pp)
    assert options == {"seq_len": str(tokens), "global_batch": str(packs), "micro_batch": "1"}
    assert packed_options(Packing((3000,) * 256, 4096), 257, 8, 1, pp)["global_batch"] == "264"


def test_packs_are_fewer_micro_batches_of_the_same_sequences(capsys: pytest.CaptureFixture[str]) -> None:
    words = ("--gpus", "16", "--pp", "2", "--prompts", "64", "--samples", "8", "--response", "512", "--longest", "512")
    assert rl(*words, "--prompt", "512", "--global-batch", "256", "--pack-to", "4096") == 0
    out = capsys.readouterr().out
    assert "2 optimizer steps of 256 sequences" in out
    assert rl(*words, "--prompt", "512", "--pack-to", "1000") != 0
    assert "the longest sequence has 1024 tokens" in capsys.readouterr().err


def test_a_run_file_has_no_rl(capsys: pytest.CaptureFixture[str]) -> None:
    run_file = LLAMA_8B.with_name("demo.toml")
    assert main(["plan", "rl", str(run_file), "--cluster", "h100x8", "--prompts", "8", "--response", "10"]) != 0
    assert "frog train has no RL" in capsys.readouterr().err


def test_lengths_of_responses_may_be_in_a_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "lengths.txt"
    path.write_text("\n".join(map(str, (200, 400, 4000))))
    assert rl("--gpus", "8", "--prompts", "4", "--samples", "4", "--response", str(path)) == 0
    assert "512 + 1,533 tokens on average, responses of at most 4,000" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("--gpus 8 --generator-gpus 8", "none is left to train"),
        ("--gpus 8 --off-policy", "share their GPUs"),
        ("--gpus 8 --generator-tp 3", "does not divide 8 GPUs"),
        ("--gpus 8 --generator-gpus 4 --generator-tp 8", "does not divide 4 GPUs"),
        ("--gpus 8 --longest 900", "below the mean of 1000"),
        ("--gpus 8 --longest 8000", "8192 positions"),
        ("--gpus 8 --seq-len 100", "follow from"),
        ("--gpus 8 --samples 100000", "6,400,000 responses in a step"),
        ("--gpus 8 --global-batch 100", "does not divide 64 prompts x 8 samples"),
    ],
)
def test_impossible_plans_are_refused(words: str, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert rl("--prompts", "64", "--response", "1000", *words.split()) != 0
    assert said in capsys.readouterr().err
