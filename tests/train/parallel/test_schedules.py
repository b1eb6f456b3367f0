"""Schedules are valid, take the textbook's time, and their programs run without deadlock."""

from __future__ import annotations

import subprocess
import sys
from collections import defaultdict, deque
from collections.abc import Iterator
from dataclasses import replace

import pytest
from harness import LIMIT_S

from frog.cli import main
from frog.core.errors import ConfigError, FrogError
from frog.train.parallel.schedules.drawing import draw, table
from frog.train.parallel.schedules.programs import Instruction, messages, program
from frog.train.parallel.schedules.schedule import NAMES, Action, Schedule, make_schedule, problems, stage_layers
from frog.train.parallel.schedules.simulation import bubble_formula, simulate


def schedules() -> Iterator[Schedule]:
    for name in NAMES:
        for virtual in (1, 2, 3) if name == "interleaved" else (1,):
            for ranks in (1, 2, 3, 4, 7):
                for micros in (ranks, ranks + 1, 2 * ranks, 12):
                    if micros >= ranks and not (name == "interleaved" and micros % ranks):
                        yield make_schedule(name, ranks, micros, virtual)


ALL = list(schedules())


def swapped(schedule: Schedule, rank: int, first: int, second: int) -> Schedule:
    """Return the schedule with two actions of a rank swapped."""
    actions = list(schedule.ranks[rank])
    actions[first], actions[second] = actions[second], actions[first]
    ranks = [tuple(actions) if number == rank else own for number, own in enumerate(schedule.ranks)]
    return replace(schedule, ranks=tuple(ranks))


def test_every_schedule_is_valid() -> None:
    for schedule in ALL:
        assert problems(schedule) == [], schedule.name


def test_micro_batches_run_in_ascending_order() -> None:
    """The order makes every gradient the same sum as in one process."""
    for schedule in ALL:
        for actions in schedule.ranks:
            seen = defaultdict(list)
            for action in actions:
                seen[action.kind, action.stage].append(action.micro)
            assert all(micros == list(range(schedule.num_micro)) for micros in seen.values())


def test_invalid_schedules_are_reported() -> None:
    good = make_schedule("1f1b", 2, 2)  # rank 0: F0 F1 B0 B1; rank 1: F0 B0 F1 B1
    assert "F0@0 occurs twice" in problems(replace(good, ranks=((Action("F", 0, 0), *good.ranks[0]), good.ranks[1])))
    assert problems(replace(good, ranks=(good.ranks[0][:-1], good.ranks[1]))) == ["B1@0 is missing"]
    assert "B0@1 is on rank 0, but its stage on rank 1" in problems(
        replace(good, ranks=((*good.ranks[0], Action("B", 1, 0)), good.ranks[1]))
    )
    assert problems(replace(good, num_micro=1))[0] == "B1@0 belongs to no stage or micro-batch"
    backward_first = swapped(good, 1, 0, 1)
    assert problems(backward_first) == [
        "rank 0 waits for B0@1 before B0@0, which never runs",
        "rank 1 waits for F0@1 before B0@1, which never runs",
    ]
    with pytest.raises(FrogError, match=r"1f1b cannot run to completion\n  - rank 0 waits for B0@1 before B0@0"):
        simulate(backward_first)
    assert problems(swapped(good, 0, 0, 2))  # B0 before any F
    split = make_schedule("zero_bubble", 2, 2)
    assert problems(swapped(split, 0, 2, 3))  # W0 before B0


@pytest.mark.parametrize("times", [(1.0, 1.0, 1.0), (1.0, 1.3, 0.7), (2.0, 2.5, 2.0), (1.0, 1.0, 0.0)])
def test_simulated_bubble_equals_textbook_formula(times: tuple[float, float, float]) -> None:
    for schedule in ALL:
        sizes = (len(schedule.ranks), schedule.num_micro, schedule.virtual_stages)
        expected = bubble_formula(schedule.name, *sizes, *times)
        assert simulate(schedule, *times).bubble == pytest.approx(expected, abs=1e-9), (schedule.name, sizes)


def test_bubble_formulas_match_hand_computed_values() -> None:
    assert bubble_formula("gpipe", 4, 8) == bubble_formula("1f1b", 4, 8) == pytest.approx(3 / 11)
    assert bubble_formula("interleaved", 4, 8, 2) == pytest.approx(3 / 19)
    assert bubble_formula("zero_bubble", 4, 8) == pytest.approx(3 / 27)
    assert all(bubble_formula(name, 1, 4) == 0 for name in NAMES)


def test_peak_in_flight_matches_schedule() -> None:
    """GPipe holds every micro-batch; 1F1B those that fill the pipeline; ZB-H1 no more than 1F1B's first rank."""
    assert simulate(make_schedule("gpipe", 4, 8)).peak_in_flight == (8, 8, 8, 8)
    assert simulate(make_schedule("1f1b", 4, 8)).peak_in_flight == (4, 3, 2, 1)
    assert simulate(make_schedule("1f1b", 4, 64)).peak_in_flight == (4, 3, 2, 1)
    assert simulate(make_schedule("zero_bubble", 4, 64)).peak_in_flight == (4, 4, 4, 4)
    assert simulate(make_schedule("interleaved", 4, 64, 2)).peak_in_flight == (11, 9, 7, 5)


def test_send_time_is_added_at_each_stage_border() -> None:
    """A single micro-batch goes through all stages and back, with a message at each border."""
    alone = make_schedule("gpipe", 1, 1)
    assert simulate(alone, send_time=5).makespan == 3
    two = make_schedule("gpipe", 2, 2)
    assert simulate(two, send_time=5).makespan == simulate(two).makespan + 10


def test_layers_are_divided_among_stages() -> None:
    assert stage_layers(5, 2) == [range(3), range(3, 5)]
    assert stage_layers(4, 4) == [range(n, n + 1) for n in range(4)]
    with pytest.raises(ConfigError, match="3 layers for 4 stages"):
        stage_layers(3, 4)


@pytest.mark.parametrize(
    ("name", "ranks", "micros", "virtual", "words"),
    [
        ("1f1b", 4, 3, 1, "3 micro-batches for 4 stages"),
        ("interleaved", 4, 6, 2, "6 micro-batches are not a multiple of 4 ranks"),
        ("interleaved", 4, 8, 0, "0 virtual stages"),
        ("gpipes", 2, 4, 1, "no schedule 'gpipes'"),
    ],
)
def test_invalid_schedule_settings_are_rejected(name: str, ranks: int, micros: int, virtual: int, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        make_schedule(name, ranks, micros, virtual)


# ---- programs --------------------------------------------------------------------------------------------------------


def run_programs(schedule: Schedule, programs: list[list[Instruction]]) -> list[int]:
    """Run all ranks' programs over queues that let only their heads meet; return the most sends each rank has kept.

    This is stricter than gloo, which matches messages by direction: NCCL puts both directions of a pair into one queue.
    """
    queues: dict[tuple[int, int], deque[tuple[str, Action]]] = defaultdict(deque)
    delivered: set[Action] = set()
    places, kept, most = [0] * len(programs), [0] * len(programs), [0] * len(programs)
    moved = True
    while moved:
        moved = False
        for rank, instructions in enumerate(programs):
            while places[rank] < len(instructions):
                instruction = instructions[places[rank]]
                needed = schedule.needs(instruction.action)
                if instruction.op == "run" and needed is not None and schedule.rank_of(needed.stage) != rank:
                    if needed not in delivered:
                        break
                elif instruction.op == "let_go" and instruction.action not in delivered:
                    break
                elif instruction.op in ("send", "receive"):
                    assert instruction.peer is not None
                    mine, theirs = queues[rank, instruction.peer], queues[instruction.peer, rank]
                    mine.append((instruction.op, instruction.action))
                    while mine and theirs:
                        (own_op, own), (their_op, their) = mine.popleft(), theirs.popleft()
                        assert own == their
                        assert {own_op, their_op} == {"send", "receive"}
                        delivered.add(own)
                kept[rank] += (instruction.op == "send") - (instruction.op == "let_go")
                most[rank] = max(most[rank], kept[rank])
                places[rank], moved = places[rank] + 1, True
    assert places == [len(instructions) for instructions in programs], "deadlock"
    assert kept == [0] * len(programs)
    return most


def test_programs_end_and_move_every_message() -> None:
    for schedule in ALL:
        programs = [program(schedule, rank) for rank in range(len(schedule.ranks))]
        run_programs(schedule, programs)
        moved = [
            instruction.action for instructions in programs for instruction in instructions if instruction.op == "send"
        ]
        assert sorted(map(str, moved)) == sorted(str(message.made_by) for message in messages(schedule))
        if len(schedule.ranks) > 1:
            assert len(moved) == 2 * schedule.num_micro * (schedule.num_stages - 1)
        for instructions, actions in zip(programs, schedule.ranks, strict=True):
            assert tuple(instruction.action for instruction in instructions if instruction.op == "run") == actions


def test_program_check_detects_early_send() -> None:
    """The check of the programs can fail: a rank that sends before it posts an earlier receive blocks the pair."""
    schedule = make_schedule("1f1b", 2, 4)
    programs = [program(schedule, rank) for rank in range(2)]
    place = next(n for n, instruction in enumerate(programs[1]) if instruction.op == "send")
    earlier = max(n for n in range(place) if programs[1][n].op == "receive")
    programs[1][earlier], programs[1][place] = programs[1][place], programs[1][earlier]
    with pytest.raises(AssertionError):
        run_programs(schedule, programs)


@pytest.mark.parametrize("name", ["1f1b", "interleaved", "zero_bubble"])
def test_sent_tensors_do_not_pile_up(name: str) -> None:
    def most(micros: int) -> int:
        schedule = make_schedule(name, 4, micros, 2)
        return max(run_programs(schedule, [program(schedule, rank) for rank in range(4)]))

    assert most(64) == most(16) <= 11


def test_receives_are_posted_ahead() -> None:
    """A message travels while the rank computes, in the steady state."""
    instructions = program(make_schedule("1f1b", 3, 8), 1)
    runs = [n for n, instruction in enumerate(instructions) if instruction.op == "run"]
    posted = {str(instruction.action): n for n, instruction in enumerate(instructions) if instruction.op == "receive"}
    assert posted["F3@0"] < runs[[str(instructions[n].action) for n in runs].index("B1@1")]


# ---- text ------------------------------------------------------------------------------------------------------------


def test_schedules_are_drawn_along_time() -> None:
    assert draw(simulate(make_schedule("1f1b", 2, 3))).splitlines() == [
        "rank  0  F0 F1 ......B0--- F2 B1--- ...B2---",
        "rank  1  ...F0 B0--- F1 B1--- F2 B2--- ......",
    ]
    assert table(make_schedule("zero_bubble", 2, 2)).splitlines() == [
        "rank  0  F0 F1 B0 W0 B1 W1",
        "rank  1  F0 B0 F1 B1 W0 W1",
    ]
    assert "F0b" in table(make_schedule("interleaved", 2, 2, 2))


def test_labels_are_complete_with_uneven_times() -> None:
    for schedule in ALL:
        text = draw(simulate(schedule, 1.0, 1.3, 0.7, 0.45)) if schedule.num_micro < 9 else ""
        assert "F " not in text.replace("rank", "")


def test_schedule_command_prints_schedule(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["schedule", "--schedule", "1f1b", "--stages", "2", "--micro-batches", "3"]) == 0
    out = capsys.readouterr().out
    assert "rank  0  F0 F1 ......B0--- F2 B1--- ...B2---" in out
    assert "1f1b      12    25.0%   25.0%    2 1" in out
    assert main(["schedule", "--schedule", "all"]) == 0
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()] == ["schedule", *NAMES]
    assert main(["schedule", "--schedule", "zero_bubble", "--list", "--stages", "2"]) == 0
    assert "F0 F1 B0 W0" in capsys.readouterr().out
    assert main(["schedule", "--stages", "2", "--micro-batches", "2", "--program", "1"]) == 0
    assert capsys.readouterr().out.splitlines()[0] == "receive F0@0 from 0"


@pytest.mark.parametrize(
    "words",
    [
        ["--stages", "4", "--micro-batches", "3"],
        ["--schedule", "interleaved", "--micro-batches", "9"],
        ["--schedule", "all", "--list"],
        ["--program", "4"],
        ["--stages", "8", "--micro-batches", "512"],
    ],
)
def test_schedule_command_rejects_invalid_arguments(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["schedule", *words]) == 2
    assert capsys.readouterr().err.startswith("error: ")


def test_schedule_command_does_not_import_torch() -> None:
    code = "import sys; from frog.cli import main; main(['schedule']); sys.exit('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, timeout=LIMIT_S)
    assert done.returncode == 0, done.stderr.decode()
