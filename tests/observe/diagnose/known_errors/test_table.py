"""The table of known errors agrees with the pages, and no entry hides another."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

from frog.observe.diagnose.known_errors.explain import explain_log
from frog.observe.diagnose.known_errors.page import GROUPS, page
from frog.observe.diagnose.known_errors.table import KNOWN, TABLE
from frog.observe.diagnose.known_errors.table.known import GAP, KnownError

DOCS = Path(__file__).parents[4] / "docs"
SECTIONS = {
    int(number): message
    for number, message in re.findall(r"^### (\d+)\. `(.*)`$", (DOCS / "troubleshooting.md").read_text(), re.MULTILINE)
}


@pytest.mark.parametrize("number", SECTIONS)
def test_heading_of_the_troubleshooting_page_leads_to_its_entry(number: int) -> None:
    known = KNOWN.find(SECTIONS[number].replace(GAP, "17"))
    assert known is not None
    assert known.section == number


def test_sections_of_entries_exist() -> None:
    assert len(SECTIONS) >= 40
    assert {error.section for error in TABLE if error.section} == set(SECTIONS)


def test_ids_are_unique() -> None:
    ids = [error.id for error in TABLE]
    assert sorted(set(ids)) == sorted(ids)


@pytest.mark.parametrize("error", TABLE, ids=lambda error: error.id)
def test_each_message_leads_to_its_own_entry(error: KnownError) -> None:
    for message in error.looks_like:
        found = KNOWN.find(message.replace(GAP, " 17 "))
        assert found is error, f"{message!r} leads to {found and found.id}"


@pytest.mark.parametrize(
    ("text", "id"),
    [
        ("Input type (torch.FloatTensor) and weight type (torch.cuda.HalfTensor)", "different-devices"),
        ("Input type (torch.cuda.FloatTensor) and weight type (torch.FloatTensor)", "different-devices"),
        ("Input type (torch.cuda.FloatTensor) and weight type (torch.cuda.HalfTensor)", "different-dtypes"),
        ("Input type (torch.FloatTensor) and weight type (torch.HalfTensor)", "different-dtypes"),
        ("_pickle.UnpicklingError: Weights only load failed. In PyTorch 2.6, we changed", "checkpoint-weights-only"),
        ("_pickle.UnpicklingError: invalid load key, 'v'.", "checkpoint-damaged"),
        ("Timed out waiting 4000ms for recv operation to complete", "collective-timeout"),
        ("node1:7:8 [0] transport.cc:1 NCCL WARN Cuda failure 'out of memory'", "gpu-out-of-memory"),
        ("bash: ./run.sh: /bin/bash^M: bad interpreter: No such file or directory", "job-file-line-ends"),
        ("zsh: ./run.sh: bad interpreter: /bin/bash^M: no such file or directory", "job-file-line-ends"),
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


@pytest.mark.parametrize("error", TABLE, ids=lambda error: error.id)
def test_entry_says_cause_and_advice_in_sentences(error: KnownError) -> None:
    assert error.cause.endswith((".", "?"))
    assert error.advice
    assert not error.advice.endswith(".")


def test_page_of_known_errors_is_generated_from_the_table() -> None:
    assert page() == (DOCS / "known-errors.md").read_text(), "run python -m frog.observe.diagnose.known_errors.page"
    assert [error for group in GROUPS.values() for error in group] == list(TABLE)


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
