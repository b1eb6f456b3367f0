"""Questions without an error message are found by the words that people use, in `frog diagnose` and on the page."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from frog.observe.diagnose.known_errors.questions import asked, questions
from frog.observe.diagnose.program.program_diagnosis import diagnose_folder

ROOT = Path(__file__).parents[4]
PAGE = (ROOT / "docs/troubleshooting.md").read_text()
ENTRIES = dict(re.findall(r"^### (?!\d)(.+?)\n(.*?)(?=^##|\Z)", PAGE, re.MULTILINE | re.DOTALL))

ASKED = {
    "My first step takes 8 minutes, then each one takes 2 s. What is it doing?": "first-step-slow",
    "The first iteration is extremely slow with torch.compile (H100 x8)": "first-step-slow",
    "GPU utilisation drops to 0 for about a minute between epochs, then it continues": "stands-between-epochs",
    "At the beginning of each epoch training pauses until all dataloader workers are up": "stands-between-epochs",
    "CPU memory keeps growing, the more workers the faster. Is there a leak in my Dataset?": "host-memory-grows",
    "RAM increases every step until the machine is full, num_workers=16": "host-memory-grows",
    "Training is slower on 2 nodes than on one, same batch per GPU": "slower-with-more-nodes",
    "I get no speedup with DDP: 4 GPUs have the throughput of 1": "slower-with-more-nodes",
    "When one pod crashes, the other pods keep running and wait forever": "one-pod-fails-others-wait",
    "One worker died last night but the remaining ranks hang instead of exiting": "one-pod-fails-others-wait",
    "kubectl says my TrainJob is Suspended and no pod is created": "trainjob-suspended",
    "The PyTorchJob stays suspended with Kueue": "trainjob-suspended",
}
NOT_ASKED = (
    "fine",
    "hello world",
    "how do I install torch?",
    "the loss goes down nicely, thanks",
    "step 3/10 loss 2.1",
)


@pytest.mark.parametrize("text", ASKED)
def test_description_in_peoples_words_finds_its_entry(text: str, tmp_path: Path) -> None:
    question = asked(text)
    assert question is not None
    assert question.id == ASKED[text]
    (tmp_path / "question.txt").write_text(f"{text}\n")
    found = diagnose_folder(tmp_path / "question.txt")
    assert (found.fault, found.certain, found.outcome) == (question.id, False, "unknown")
    assert question.title in found.advice


@pytest.mark.parametrize("text", NOT_ASKED)
def test_other_text_asks_no_question(text: str) -> None:
    assert asked(text) is None


def test_log_of_a_failure_is_not_a_question(tmp_path: Path) -> None:
    text = "one pod fails and the others wait forever\nRuntimeError: Address already in use\n"
    (tmp_path / "job.log").write_text(text)
    assert diagnose_folder(tmp_path / "job.log").fault == "port-in-use"
    (tmp_path / "job.log").write_text("step 3/10: each epoch takes long\n")
    assert diagnose_folder(tmp_path / "job.log").fault == "unknown"
    (tmp_path / "job.log").write_text("each epoch waits\n" * 50)
    assert diagnose_folder(tmp_path / "job.log").fault == "unknown"


def test_each_question_is_an_entry_of_the_page_with_its_words() -> None:
    assert sorted(ENTRIES) == sorted(question.title for question in questions())
    for question in questions():
        text = f" {' '.join(f'{question.title} {ENTRIES[question.title]}'.lower().split())} "
        found = asked(text)
        assert found is not None
        assert found.id == question.id
        assert "**Do:**" in text.replace("**do:**", "**Do:**")


def test_hang_leads_to_the_observer() -> None:
    body = re.search(r"^### 24\..*?(?=^### 25\.)", PAGE, re.MULTILINE | re.DOTALL)
    assert body is not None
    assert "`frog observe latest`" in body[0]
