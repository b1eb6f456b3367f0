"""The table of known errors agrees with the pages, and no entry hides another."""

from __future__ import annotations

import re
import tomllib
from collections import Counter
from pathlib import Path

import pytest

from frog.core.errors import RunError
from frog.observe.diagnose.known_errors import table
from frog.observe.diagnose.known_errors.explain import explain_log
from frog.observe.diagnose.known_errors.page import page
from frog.observe.diagnose.known_errors.table import SUBJECTS, known_errors, read_subject
from frog.observe.diagnose.known_errors.table.known import GAP, KnownError, Level

VERDICTS = ("right", "partly", "no answer", "wrong")
DOCS = Path(__file__).parents[4] / "docs"
KNOWN = known_errors()
TABLE = KNOWN.errors
SECTIONS = {
    int(number): message
    for number, message in re.findall(r"^### (\d+)\. `(.*)`$", (DOCS / "troubleshooting.md").read_text(), re.MULTILINE)
}


def test_headings_of_the_troubleshooting_page_lead_to_their_entries() -> None:
    found = {number: KNOWN.find(message.replace(GAP, "17")) for number, message in SECTIONS.items()}
    assert {number: known and known.section for number, known in found.items()} == {number: number for number in found}


def test_sections_of_entries_exist() -> None:
    assert len(SECTIONS) >= 40
    assert {error.section for error in TABLE if error.section} == set(SECTIONS)


def test_ids_are_unique() -> None:
    ids = [error.id for error in TABLE]
    assert sorted(set(ids)) == sorted(ids)


def test_each_message_leads_to_its_own_entry() -> None:
    found = [
        (error, message, KNOWN.find(message.replace(GAP, " 17 "), "\n".join(error.code)))
        for error in TABLE
        for message in error.looks_like
    ]
    assert len(found) > 700
    assert [
        f"{error.id}: {message!r} leads to {known and known.id}"
        for error, message, known in found
        if known is not error
    ] == []


@pytest.mark.parametrize(
    ("text", "id"),
    [
        ("Input type (torch.FloatTensor) and weight type (torch.cuda.HalfTensor)", "different-devices"),
        ("Input type (torch.cuda.FloatTensor) and weight type (torch.FloatTensor)", "different-devices"),
        ("Input type (torch.cuda.FloatTensor) and weight type (torch.cuda.HalfTensor)", None),
        ("Input type (torch.FloatTensor) and weight type (torch.HalfTensor)", None),
        ("_pickle.UnpicklingError: Weights only load failed. In PyTorch 2.6, we changed", "checkpoint-weights-only"),
        ("_pickle.UnpicklingError: invalid load key, 'v'.", "checkpoint-damaged"),
        ("Timed out waiting 4000ms for recv operation to complete", "collective-timeout"),
        ("node1:7:8 [0] transport.cc:1 NCCL WARN Cuda failure 'out of memory'", "gpu-out-of-memory"),
        ("bash: ./run.sh: /bin/bash^M: bad interpreter: No such file or directory", "job-file-line-ends"),
        ("zsh: ./run.sh: bad interpreter: /bin/bash^M: no such file or directory", "job-file-line-ends"),
        ("train.sh: line 9: syntax error near unexpected token `$'do\\r''", "job-file-line-ends"),
        ("./tools/fit.sh: 7: ./tools/fit.sh: Bad substitution", "script-needs-bash"),
        ("fit.sh: 3: [[: not found", "script-needs-bash"),
        ('fit.sh: 12: Syntax error: "(" unexpected', "script-needs-bash"),
        ("NCCL WARN Call to ibv_create_cq failed with error Cannot allocate memory", "infiniband-failed"),
        ("NET/IB : mlx5_0:1 async fatal event: port error", "infiniband-failed"),
        ("NCCL INFO NET/OFI Couldn't register the buffer. Error: Invalid argument", None),
        ("RuntimeError: NCCL error in: ProcessGroup.cpp:4, invalid argument, NCCL version 2.4", "nccl-invalid-usage"),
        ("HTTPSConnectionPool(host='h', port=443): Temporary failure in name resolution", "hub-unreachable"),
        ("EOFError: ", "peer-closed-connection"),
        ("EOFError: Ran out of input", "checkpoint-damaged"),
        ("unable to open shared memory object </torch_1> in read-write mode", "too-many-open-files"),
        ("unable to open shared memory object </t_1>: No space left on device (28)", "shared-memory-too-small"),
        ("Preempted by pod 0a1b on node worker-3", "slurm-preempted"),
        ("Sequence group 0 is preempted by PreemptionMode.SWAP mode because there is not enough KV cache space", None),
    ],
)  # fmt: skip
def test_similar_messages_lead_to_their_own_entries(text: str, id: str | None) -> None:
    known = KNOWN.find(f"{text} should be the same" if text.startswith("Input") else text)
    assert (known and known.id) == id


def test_entries_say_cause_and_advice_in_sentences() -> None:
    assert [error.id for error in TABLE if not error.cause.endswith((".", "?"))] == []
    assert [error.id for error in TABLE if not error.advice or error.advice.endswith(".")] == []


def test_entries_explain_only_errors_of_the_table() -> None:
    ids = {error.id for error in TABLE}
    assert [f"{error.id}: {id}" for error in TABLE for id in error.explains if id not in ids] == []


def test_every_file_of_the_table_is_read() -> None:
    folder = Path(table.__file__).parent
    assert sorted(path.stem for path in folder.glob("*.toml")) == sorted(SUBJECTS)


def test_page_of_known_errors_has_every_entry_in_order() -> None:
    found = re.findall(r"^### (.+) \{#([\w-]+?)(?:-troubleshooting-\d+)?\}$", page(), re.MULTILINE)
    assert [anchor for _, anchor in found] == [error.id for error in TABLE]
    titles = [title for title, _ in found]
    assert [title for title in titles if len(title) > 95 or title.endswith(".") or titles.count(title) > 1] == []
    first = "### torch, or a library next to it, was built for a newer CUDA than the GPU's driver supports"
    assert f"\n## GPUs and their libraries\n\n{first} {{#driver-too-old-troubleshooting-3}}\n" in page()
    assert [line for line in page().splitlines() if len(line) > 120 and not line.startswith(("- `", "###"))] == []


ENTRY = r"""
title = "A subject"
[[error]]
id = "one"
looks_like = ['C:\new']
cause = "A cause."
advice = "do this"
alone = "hint"
"""


def test_entry_is_read_from_toml(tmp_path: Path) -> None:
    (tmp_path / "a.toml").write_text(ENTRY)
    [error] = read_subject(tmp_path / "a.toml").error
    assert error == KnownError(id="one", looks_like=("C:\\new",), cause="A cause.", advice="do this", alone=Level.HINT)
    assert error.level is Level.CAUSE


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (("cause =", "couse ="), "one: object contains unknown field couse"),
        (('"hint"', '"hunt"'), "one: $.alone: invalid enum value 'hunt'"),
        (("advice =", "sure = 1\nadvice ="), "one: $.sure: found 1, expected bool"),
        (("advice =", "yield = true\nadvice ="), "one: object contains unknown field yield"),
        (("['C:\\new']", "[]"), "one: $.looks_like: found a list, expected array of length >= 1"),
        (('id = "one"', ""), "number 1: object missing required field id"),
        (("title", "titel"), "object contains unknown field titel"),
        (("[[error]]", "[[error]"), "not valid TOML"),
    ],
)
def test_wrong_entry_is_named(tmp_path: Path, change: tuple[str, str], said: str) -> None:
    (tmp_path / "a.toml").write_text(ENTRY.replace(*change))
    with pytest.raises(RunError) as caught:
        read_subject(tmp_path / "a.toml")
    assert str(caught.value).startswith(str(tmp_path / "a.toml"))
    assert said in str(caught.value)


def test_ordinary_output_matches_no_entry() -> None:
    lines = [
        "step 12 loss 3.21 tok/s 10234",
        " 45%|████▌     | 900/2000 [12:03<14:44,  1.24it/s]",
        "Setting OMP_NUM_THREADS environment variable for each process to be 1 in default",
        "NCCL INFO Channel 00/08 : 0 1 2 3",
        "saved checkpoint to /scratch/run/step_100",
    ]
    found = explain_log(lines)
    assert found.cause is None
    assert found.unknown == []


def test_expected_answers_of_the_threads_exist() -> None:
    threads = tomllib.loads((Path(__file__).parent / "wild.toml").read_text())["thread"]
    known = {error.id for error in TABLE} | {"none"}
    named = {answer for thread in threads for answer in thread["expected"] if not answer.startswith("exception:")}
    assert len(threads) >= 100
    assert named <= known
    assert len({(thread["repository"], thread["number"]) for thread in threads}) == len(threads)


def test_the_page_states_the_verdicts_on_unseen_threads() -> None:
    here = Path(__file__).parent
    unseen = tomllib.loads((here / "unseen.toml").read_text())
    threads = unseen["thread"]
    seen = {thread["repository"] for thread in tomllib.loads((here / "wild.toml").read_text())["thread"]}
    assert not seen & {thread["repository"] for thread in threads if thread["round"] <= 5}
    measured = [thread for thread in threads if thread["round"] == 5]
    repositories = {thread["repository"] for thread in measured}
    assert len(repositories) == len(measured)
    earlier = {thread["repository"] for thread in threads if thread["round"] < 5}
    assert not repositories & (earlier | set(unseen["read"]))
    verdicts = Counter(thread["first"] for thread in measured)
    shown = [thread["first"] for thread in measured if thread["expected"] != ["none"]]
    page = " ".join((DOCS / "observe" / "your-program.md").read_text().split())
    assert {thread["first"] for thread in threads} == set(VERDICTS)
    by_round = {number: [thread for thread in threads if thread["round"] == number] for number in range(6, 18)}
    later = [Counter(thread["first"] for thread in by_round[number]) for number in by_round]
    before, since, subjects, last = later[:4], later[4:7], later[7:10], later[10:]
    strangers = [thread for number in range(10, 18) for thread in by_round[number]]
    assert len({thread["repository"] for thread in strangers}) == len(strangers)
    others = {thread["repository"] for thread in threads if thread not in strangers}
    assert not {thread["repository"] for thread in strangers} & (others | seen | set(unseen["read"]))
    new = [thread for thread in strangers if thread["round"] < 16]
    causes = [thread["first"] for thread in new if thread["expected"] != ["none"]]
    halves = [thread for thread in strangers if thread["round"] >= 16]
    ends = [thread["first"] for thread in halves if thread["expected"] != ["none"]]
    for text in (
        *(f"| {each.total()} | " + " | ".join(str(each[verdict]) for verdict in VERDICTS) + " |" for each in later),
        f"{_first_right(before)} before ({_share(before)})",
        f"{_first_right(since)} since ({_share(since)})",
        f"{_first_right(subjects)} in the next three ({_share(subjects)})",
        f"{_first_right(last)} in the last two ({_share(last)})",
        f"only {len(halves) - len(ends)} of the {len(halves)} end before the cause; of the other {len(ends)}, "
        f"{ends.count('right')} were right ({_percent(ends.count('right'), len(ends))})",
        f"{sum(thread['round'] > 5 for thread in threads)} more threads were judged later",
        f"{len(new) - len(causes)} of those {len(new)} end before the cause; "
        f"of the {len(causes)} excerpts that show a cause, {causes.count('right')} were right "
        f"({_percent(causes.count('right'), len(causes))})",
        f"Measured on {len(measured)} excerpts",
        f"{verdicts['right']} answers were right ({_percent(verdicts['right'], len(measured))})",
        f"{verdicts['no answer']} gave no answer ({_percent(verdicts['no answer'], len(measured))})",
        f"{verdicts['wrong']} was wrong ({_percent(verdicts['wrong'], len(measured))})",
        f"{len(measured) - len(shown)} excerpts end before the cause",
        f"Of the other {len(shown)}, {shown.count('right')} were right ({_percent(shown.count('right'), len(shown))})",
        f"those of {sum(thread['round'] < 5 for thread in threads)} excerpts of four earlier rounds",
    ):
        assert text in page


def _first_right(rounds: list[Counter[str]]) -> str:
    return f"{sum(each['right'] for each in rounds)} of {sum(each.total() for each in rounds)}"


def _share(rounds: list[Counter[str]]) -> str:
    return _percent(sum(each["right"] for each in rounds), sum(each.total() for each in rounds))


def _percent(part: int, whole: int) -> str:
    return f"{100 * part / whole:.0f} %"
