"""What `frog check` says: in words, as JSON, with its exit code; and what it says of damaged or missing records."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from check_records import LINE, step, table, two_ranks, write

from frog.cli import main
from frog.core.errors import LaunchError, RunError
from frog.launch import world
from frog.launch.node_agents import Options
from frog.observe.check.answers import RULES, answers_as_json, answers_of, broken_rules, page
from frog.observe.check.rank_records import Fingerprint, read_records
from frog.observe.check.rules_against_one import RULES_AGAINST_ONE
from frog.observe.diagnose.program.program_diagnosis import diagnose_folder


@pytest.mark.parametrize(
    ("other", "rule"),
    [
        (
            {
                "gradients": [[5, 2.0]],
                "weights": [[5, 3.0]],
                "backwards": [{"bits": {"0": [5]}}],
            },
            "gradients",
        ),
        ({"lr": [0.2]}, "learning-rates"),
        ({"before": [5]}, "weights-between"),
        ({"weights": [[5, 3.0]]}, "weights-after"),
        ({"stale": True}, "cleared"),
        ({"gradients": [[14, None]], "weights": [[5, None]]}, "finite"),
    ],
)
def test_rule_is_broken_by_one_difference(tmp_path: Path, other: dict[str, Any], rule: str) -> None:
    two_ranks(tmp_path, **other)
    answers = broken_rules(answers_of(read_records(tmp_path)))
    assert rule in [answer.rule.name for answer in answers]
    assert all(answer.broken is not None and answer.broken.step == 2 for answer in answers)


def test_equal_ranks_break_no_rule(tmp_path: Path) -> None:
    two_ranks(tmp_path)
    assert broken_rules(answers_of(read_records(tmp_path))) == []


def test_first_step_with_other_weights_breaks_the_start(tmp_path: Path) -> None:
    write(tmp_path, 0, [table(), step(1)])
    write(tmp_path, 1, [table(), step(1, before=[5])])
    assert [answer.rule.name for answer in broken_rules(answers_of(read_records(tmp_path)))] == ["weights-start"]


def test_replicated_placements_must_agree_and_shards_need_not(tmp_path: Path) -> None:
    other = {"gradients": [[5, 2.0]], "weights": [[5, 3.0]], "backwards": []}
    for placements, expected in ((["R"], ["gradients"]), (["S(0)"], []), (["P(sum)"], [])):
        for rank in (0, 1):
            mesh = {"placements": placements, "mesh": [0, 1], "ddp": None}
            write(tmp_path, rank, [table(**mesh), step(1, **(other if rank else {"backwards": []}))])
        found = [answer.rule.name for answer in broken_rules(answers_of(read_records(tmp_path)))]
        assert found == expected, placements


def test_a_mesh_of_two_dimensions_compares_the_ranks_along_the_replicated_one(tmp_path: Path) -> None:
    for rank in range(4):
        mesh = {"placements": ["R", "S(0)"], "mesh": [[0, 1], [2, 3]], "ddp": None}
        part = rank % 2 + (rank == 3)
        own = {"gradients": [[part, 2.0]], "weights": [[part, 2.0]], "backwards": []}
        write(tmp_path, rank, [table(**mesh), step(1, **own)])
    (answer,) = broken_rules(answers_of(read_records(tmp_path)))
    assert answer.broken is not None
    assert answer.broken.ranks == (1, 3)


def test_gradients_may_differ_where_the_step_leaves_weights_equal(tmp_path: Path) -> None:
    """A DTensor's gradient may be a partial sum, and an optimizer may reduce gradients in its step."""
    two_ranks(tmp_path, gradients=[[5, 2.0]], backwards=[{"bits": {"0": [5]}}])
    assert broken_rules(answers_of(read_records(tmp_path))) == []


def test_equal_gradients_of_equal_losses_prove_no_reduction(tmp_path: Path) -> None:
    """Ranks of a sweep begin with equal weights and batches, and need not stay equal."""
    for losses, expected in (((1.0, 1.0), "possible"), ((1.0, 2.0), "certain")):
        for rank, loss in enumerate(losses):
            backwards = [{"line": LINE, "loss": loss, "bits": {"0": [7]}}]
            own = table(ddp=None), step(1, backwards=backwards), step(2, backwards=backwards, lr=[0.1 + rank])
            write(tmp_path, rank, list(own))
        (answer,) = broken_rules(answers_of(read_records(tmp_path)))
        assert answer.broken is not None
        assert (answer.rule.name, answer.broken.sure) == ("learning-rates", expected)


def test_a_loop_that_peeks_at_a_batch_does_not_train_on_it(tmp_path: Path) -> None:
    def iteration(rank: int, number: int, epoch: int, batches: int) -> list[dict[str, Any]]:
        loader = {"loader": 0, "iteration": number, "distributed": True, "shuffle": True, "epoch": epoch, "line": LINE}
        own = [
            {"loader": 0, "iteration": number, "batch": each, "rows": [100 * rank + each]} for each in range(batches)
        ]
        return [{"kind": "loader", **loader}, *({"kind": "batch", "step": each["batch"], **each} for each in own)]

    for batches, expected in ((1, []), (3, ["epochs"])):
        for rank in (0, 1):
            loops = [*iteration(rank, 0, 0, batches), *iteration(rank, 1, 0, batches), *iteration(rank, 2, 1, 3)]
            write(tmp_path, rank, [table(), *loops, step(1), step(2)])
        assert [answer.rule.name for answer in broken_rules(answers_of(read_records(tmp_path)))] == expected, batches


def test_ranks_with_fewer_batches_take_fewer_steps(tmp_path: Path) -> None:
    write(tmp_path, 0, [table(), step(1), step(2), {"kind": "end", "steps": 2}])
    for backwards, expected in ((0, []), (1, ["steps"])):
        write(tmp_path, 1, [table(), step(1), {"kind": "end", "steps": 1, "backwards": backwards}])
        assert [answer.rule.name for answer in broken_rules(answers_of(read_records(tmp_path)))] == expected


def test_ranks_that_skip_a_step_are_not_compared_after_it(tmp_path: Path) -> None:
    write(tmp_path, 0, [table(), step(1), step(2), step(3), {"kind": "end", "steps": 3}])
    twice = [{"line": LINE, "bits": {}}, {"line": LINE, "bits": {}}]
    later = step(2, gradients=[[5, 2.0]], backwards=twice)
    write(tmp_path, 1, [table(), step(1), later, {"kind": "end", "steps": 2}])
    assert [answer.rule.name for answer in broken_rules(answers_of(read_records(tmp_path)))] == ["steps"]


def test_page_says_what_is_wrong_what_held_and_what_was_not_checked(tmp_path: Path) -> None:
    two_ranks(tmp_path, lr=[0.2])
    records = read_records(tmp_path)
    text = page("run", records, answers_of(records))
    assert text.startswith("run: 1 rule is broken (2 ranks, 2 optimizer steps, 2 of them sampled)")
    assert "Certain: the learning rates differ since step 2: 0.1 on rank 0, 0.2 on rank 1" in text
    assert "/home/one/train.py:7" in text
    assert "Held: replicas begin with equal weights;" in text
    assert "one rank writes a file: torch.save was not called with a file name" in text


def test_page_without_a_broken_rule_claims_no_more_than_was_seen(tmp_path: Path) -> None:
    two_ranks(tmp_path)
    records = read_records(tmp_path)
    assert "no rule is broken as far as could be seen" in page("run", records, answers_of(records))
    assert "nothing was recorded" in page("run", {}, answers_of({}))


def test_page_of_a_run_without_steps_says_so_once(tmp_path: Path) -> None:
    for rank in (0, 1):
        write(tmp_path, rank, [{"kind": "end", "steps": 0}])
    text = page("run", records := read_records(tmp_path), answers_of(records))
    assert text.startswith("run: no rule could be checked (2 ranks, 0 optimizer steps, 0 of them sampled)")
    assert text.count("no optimizer of torch.optim took a step") == 1
    assert "only the optimizer changes replicas' weights, replicas use equal gradients in each step" in text


def test_json_has_every_rule_with_its_outcome(tmp_path: Path) -> None:
    two_ranks(tmp_path, lr=[0.2])
    found = {each["rule"]: each for each in answers_as_json(answers_of(read_records(tmp_path)))}
    assert found["learning-rates"]["outcome"] == "broken"
    assert found["learning-rates"]["line"] == "/home/one/train.py:7"
    assert found["gradients"]["outcome"] == "held"
    assert found["one-writer"]["why"] == "torch.save was not called with a file name"


def test_diagnose_uses_the_answers(tmp_path: Path) -> None:
    two_ranks(tmp_path, lr=[0.2])
    for rank in (0, 1):
        status = {
            "format": 1, "rank": rank, "local_rank": rank, "node_rank": 0, "world_size": 2, "attempt": 0, "host": "a",
            "pid": 5, "started_unix_ns": 1, "unix_ns": 2, "mono_ns": 2, "state": "ended", "cpu_s": 1.0, "rss_bytes": 1,
        }  # fmt: skip
        path = tmp_path / "observed" / "attempt_0" / f"rank_{rank}" / "status.json"
        path.write_text(json.dumps(status))
    found = diagnose_folder(tmp_path)
    assert (found.fault, found.step, found.certain, found.line) == ("learning-rates", 2, True, "train.py:7 (main)")


def test_a_last_line_that_was_cut_is_left_out(tmp_path: Path) -> None:
    two_ranks(tmp_path)
    write(tmp_path, 0, [table(), step(1)], end='{"kind":"step","opt')
    record = read_records(tmp_path)[0]
    assert [each.step for each in record.steps] == [1]
    assert record.end is None
    assert record.steps[0].gradients == [Fingerprint(7, 2.0)]


@pytest.mark.parametrize("line", ["{}", '{"kind":"step"}', "[1", '{"kind":"start","rank":-1,"world_size":2,"every":1}'])
def test_damaged_line_is_an_error_with_its_place(tmp_path: Path, line: str) -> None:
    write(tmp_path, 0, [table()], end=line + "\n" + json.dumps(step(1)) + "\n")
    with pytest.raises(RunError, match=r"rank_0/checks\.jsonl: line 4: "):
        read_records(tmp_path)


def test_check_of_an_earlier_run_prints_its_answers(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    two_ranks(tmp_path, lr=[0.2])
    assert main(["check", "--run", str(tmp_path)]) == 1
    assert "learning rates differ" in capsys.readouterr().out
    two_ranks(tmp_path)
    assert main(["check", "--run", str(tmp_path), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["run"] == str(tmp_path)


@pytest.mark.parametrize(
    ("words", "error"),
    [
        (["check", "--nproc", "2"], "check needs a program"),
        (["check", "--nproc", "2", "--", "prove", "cases.json"], "prove does not train"),
        (["check", "--nproc", "2", "--", "-m", "frog.observe"], "frog.observe does not train"),
        (["check", "--run", "latest", "--", "my.py"], "no program is started"),
        (["check", "--", "my.py"], "no world size"),
        (["check", "--nproc", "2", "--against-one", "--after", "latest", "--", "my.py"], "--after compares with an"),
        (["run", "--nproc", "2", "--no-observe", "--check", "--", "my.py"], "--check needs the observer"),
    ],
)
def test_check_explains_what_it_needs(words: list[str], error: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(words) == 2
    assert error in capsys.readouterr().err


def not_checked(run: Path) -> set[str]:
    return {answer.rule.name for answer in answers_of(read_records(run)) if answer.why_not}


def test_rule_that_saw_nothing_is_not_said_to_hold(tmp_path: Path) -> None:
    for rank in (0, 1):
        write(tmp_path, rank, [table(), step(1), {"kind": "end", "steps": 1}])
    assert {"weights-between", "cleared", "training-mode", "unused", "changes", "tied"} <= not_checked(tmp_path)
    two_ranks(tmp_path)
    assert {"weights-between", "cleared", "changes"}.isdisjoint(not_checked(tmp_path))


def test_steps_are_counted_only_when_all_ranks_have_ended(tmp_path: Path) -> None:
    two_ranks(tmp_path)
    assert "steps" not in not_checked(tmp_path)
    write(tmp_path, 1, [table(), step(1), step(2)])
    assert "steps" in not_checked(tmp_path)


def test_weights_in_half_precision_are_not_said_to_be_in_float32(tmp_path: Path) -> None:
    for dtype, expected in (("float32", False), ("bfloat16", True)):
        for rank in (0, 1):
            write(tmp_path, rank, [table(dtype=dtype), step(1)])
        assert ("state-type" in not_checked(tmp_path)) is expected


def test_collectives_in_another_order_are_not_said_to_agree(tmp_path: Path) -> None:
    calls = [{"call": "all_reduce", "elements": 4, "dtype": "float32"}, {"call": "broadcast", "elements": 4}]
    write(tmp_path, 0, [table(), step(1, calls=calls)])
    write(tmp_path, 1, [table(), step(1, calls=calls)])
    assert "collectives" not in not_checked(tmp_path)
    write(tmp_path, 1, [table(), step(1, calls=calls[::-1])])
    assert "collectives" in not_checked(tmp_path)


def test_rounding_of_a_norm_is_no_difference(tmp_path: Path) -> None:
    two_ranks(tmp_path, weights=[[1002, 3.0 + 1e-15]], gradients=[[14, 2.0 + 1e-15]])
    assert broken_rules(answers_of(read_records(tmp_path))) == []


def test_page_names_the_ranks_that_recorded_nothing(tmp_path: Path) -> None:
    write(tmp_path, 0, [table(), step(1)])
    records = read_records(tmp_path)
    assert "(1 of 2 ranks, 1 optimizer steps" in page("run", records, answers_of(records))


def test_page_of_the_documentation_has_every_rule() -> None:
    text = (Path(__file__).parents[3] / "docs" / "observe" / "check.md").read_text()
    rows = re.findall(r"^\| `([a-z-]+)` \| ([^|]+) \|", text, re.MULTILINE)
    assert rows == [(rule.name, rule.says) for rule in (*RULES, *RULES_AGAINST_ONE)]


def test_check_without_a_run_folder_is_not_a_success(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a folder without permission to write: `frog run` still runs the program there."""
    monkeypatch.setattr(world, "run_world", lambda nodes, program, options: 0)
    with pytest.raises(LaunchError, match="nothing was recorded"):
        world.run_and_answer(2, ["my.py"], Options(), lambda folder: 0)
