"""Sample verifiable statements of the course: `python tools/sample_statements.py 200 --seed 2311`."""

import argparse
import random
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGES = ("tools/slides/*.md", "docs/teach/*.md", "docs/labs/*.md", "docs/course.md")
CHECKABLE = re.compile(
    r"\d|`[^`]*--\w|\b[A-Z]+_[A-Z_]+\b"  # numbers, flags, variables
    r"|\b(more|less|fewer|faster|slower|larger|smaller|same|equal|twice|half|never|always|only|every|than)\b"
    r"|\b(because|so that|therefore|until|since|needs|takes|sends|waits|fails|means)\b"
)
NO_CLAIM = re.compile(  # questions, headings without a verb, times of run sheets, rows of exercises
    r"\?\W*$|^\W*(Ask|First question|Homework|Early|Late)\b|^## The |^\| [\d:]+ \|"
    r"|^\| `frog learn check|^\| \d+ .*\| \d+ \||^\| (from|step|minutes) \|"
)
SENTENCE = re.compile(r"(?<=[.!?)])\s+(?=[A-Z`(*])")
FENCE = re.compile(r"^```.*?^```$", re.S | re.M)


def paragraphs(text: str) -> Iterator[tuple[int, str]]:
    """Yield the line number and text of each paragraph, list item and table row outside code blocks."""
    text = FENCE.sub(lambda block: "\n" * block[0].count("\n"), text)
    start, lines = 0, list[str]()
    for number, line in enumerate([*text.splitlines(), ""], start=1):
        begins = (
            not line.strip() or line.startswith(("|", "#", "- ", "!", "<!--", "-->")) or re.match(r"\d\. |\w+: ", line)
        )
        if begins and lines:
            yield start, " ".join(lines)
            lines = []
        if line.strip() and not line.startswith(("!", "-->", "---", "<!--", "title:")):
            start = start if lines else number
            lines.append(line.strip())


def page_statements(path: Path) -> Iterator[tuple[str, str]]:
    for number, paragraph in paragraphs(path.read_text()):
        for sentence in SENTENCE.split(paragraph):
            yield f"{path.relative_to(ROOT)}:{number}", sentence


def quiz_statements(path: Path) -> Iterator[tuple[str, str]]:
    for question in tomllib.loads(path.read_text())["questions"]:
        where = f"{path.relative_to(ROOT)}:{question['id']}"
        right = [choice["text"] for choice in question.get("choices", ()) if choice.get("right")]
        yield where, f"{question['text']} {right or question.get('answer')}"
        for sentence in SENTENCE.split(question["why"]):
            yield where, sentence


def statements() -> list[tuple[str, str]]:
    pages = [path for pattern in PAGES for path in sorted(ROOT.glob(pattern))]
    found = [one for path in pages for one in page_statements(path)]
    found += [one for path in sorted(ROOT.glob("labs/*/quiz.toml")) for one in quiz_statements(path)]
    return [
        (where, text)
        for where, text in found
        if CHECKABLE.search(text) and not NO_CLAIM.search(text) and len(text.split()) > 4
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("count", type=int)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    found = statements()
    print(f"{args.count} of {len(found)} statements, seed {args.seed}")
    for number, (where, text) in enumerate(sorted(random.Random(args.seed).sample(found, args.count)), start=1):
        print(f"{number}. {where}: {text}")


if __name__ == "__main__":
    main()
