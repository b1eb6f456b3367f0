"""Real runs on the site: a report of each strategy, a fault and its diagnosis, a class.

They run on request, in a separate folder; existing results are reused.
"""

from __future__ import annotations

import shlex
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from frog.core.config.strategies import AXES, DATA_STRATEGIES
from frog.core.errors import FrogError
from tools.site.markdown import fence

_SHOW = "frog learn dev show"
_SHORT = "--set train.steps=30 --set train.global_batch_size=16 --set eval.every=30 --set eval.tokens=4096"


@dataclass(frozen=True)
class Example:
    """Commands as typed, and the page that they create. Some commands fail as intended; only the page must exist."""

    name: str
    title: str
    about: str
    commands: tuple[str, ...]
    shows: str


@dataclass
class Examples:
    """Pages by path, paths by title, and files shown on the pages, by name."""

    pages: dict[str, str] = field(default_factory=dict)
    titles: dict[str, str] = field(default_factory=dict)
    files: dict[str, Path] = field(default_factory=dict)


_FURTHER = {
    "diloco": "strategy.inner_steps=10",
    "pp": "train.grad_accum=4",
    "ep": "model.model_type=mixtral model.num_local_experts=4",
}
"""Settings that a strategy needs, or that make its report more interesting, in a short run on two ranks."""


def _strategy(name: str, about: str, setting: str) -> Example:
    sets = " ".join(f"--set {each}" for each in (setting, *_FURTHER.get(name, "").split()))
    train = f"frog run --nproc 2 -- train config/demo.toml --set name={name} {_SHORT} {sets}"
    return Example(name, name, about, (train, f"frog report {name}"), f"runs/{name}/report.html")


EXAMPLES = (
    *(_strategy(name, entry.summary, f"strategy.name={name}") for name, entry in DATA_STRATEGIES.items()),
    *(_strategy(name, entry.summary, f"strategy.{name}=2") for name, entry in AXES.items()),
    Example(
        "chaos",
        "A fault and its diagnosis",
        "A fault kills rank 1 in the reduce phase of step 12. Below: the output of `frog diagnose`, and the report.",
        (
            'frog chaos --fault "kill rank=1 step=12 phase=reduce" --nproc 2 -- train config/demo.toml '
            f"--set name=chaos {_SHORT}",
            "frog diagnose chaos",
            "frog report chaos",
        ),
        "runs/chaos/report.html",
    ),
    Example(
        "class",
        "A class",
        "The exports of three learners on one page: Ada has passed two exercises, Ben one, Eve none yet.",
        (
            "frog learn init ada; frog learn init ben; frog learn init eve; mkdir -p exports",
            "for who in Ada Ben Eve; do git -C ${who,,} config user.name $who; done",
            f"{_SHOW} 0.1 right/optimizer --into ada/exercises/lab0/01_one_formula",
            f"{_SHOW} 0.1 right/optimizer --into ben/exercises/lab0/01_one_formula",
            f"{_SHOW} 0.1 wrong/uphill --into eve/exercises/lab0/01_one_formula",
            f"{_SHOW} 0.2 right/zero_first --into ada/exercises/lab0/02_six_lines",
            "for who in ada ben eve; do (cd $who && frog learn check 0.1); done; (cd ada && frog learn check 0.2)",
            "for who in ada ben eve; do (cd $who && frog learn export ../exports/$who.json); done",
            "frog class exports --out class.html",
        ),
        "class.html",
    ),
)


def make_examples(root: Path, folder: Path, say: Callable[[str], None] = print) -> None:
    """Run the examples that have no results yet.

    Raises:  FrogError with the output of the commands if they did not create their page.
    """
    if not (folder / "src").exists():  # like a clone, with separate runs and data
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "config").symlink_to(root / "config")
        (folder / "src").symlink_to(root / "src")
    for example in EXAMPLES:
        if not (folder / example.shows).exists():
            say(f"{example.title}: {example.commands[0]}")
            _run(folder, example)


def _run(folder: Path, example: Example) -> None:
    path = f"{shlex.quote(str(Path(sys.executable).parent))}:$PATH"
    said = ""
    for command in ("frog data prepare", *example.commands):
        if command == "frog data prepare" and (folder / "data").exists():
            continue
        line = ["bash", "-c", f"export PATH={path} && {command}"]
        done = subprocess.run(
            line, cwd=folder, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=600
        )
        said += f"$ {command}\n{done.stdout.decode(errors='replace')}"
    if not (folder / example.shows).exists():
        raise FrogError(f"the example {example.name} did not create {example.shows}\n{said[-3000:]}")
    (folder / f"{example.name}.txt").write_text(said)


def example_pages(folder: Path) -> Examples:
    """Return a page for each example with results, and a page that lists them; no pages without results."""
    found = Examples()
    made = [example for example in EXAMPLES if (folder / example.shows).exists()]
    if not made:
        return found
    rows = [f"- [{example.title}]({example.name}.md): {example.about}" for example in made]
    about = "Runs on this machine, shown by `frog report` and `frog class`. Each page also opens alone and offline."
    found.pages["examples/README.md"] = f"# Real runs\n\n{about}\n\n" + "\n".join(rows) + "\n"
    found.titles["All real runs"] = "examples/README.md"
    for example in made:
        shown = f"shown-{example.name}.html"
        found.pages[f"examples/{example.name}.md"] = _page(example, shown, _said(folder, example, "frog diagnose"))
        found.titles[example.title] = f"examples/{example.name}.md"
        found.files[shown] = folder / example.shows
    return found


def _said(folder: Path, example: Example, command: str) -> str:
    """Return the output of a command of the example."""
    kept = folder / f"{example.name}.txt"
    parts = ("\n" + kept.read_text()).split("\n$ ") if kept.exists() else []
    return "".join(fence(f"$ {part}", "console") + "\n" for part in parts if part.startswith(command))


def _page(example: Example, shown: str, said: str) -> str:
    typed = fence("".join(f"$ {command}\n" for command in example.commands), "console")
    frame = f'<iframe class="example" src="{shown}" title="Page of {example.title}" loading="lazy"></iframe>'
    alone = f'<p><a href="{shown}">Open this page alone</a></p>'
    return f"# {example.title}\n\n{example.about}\n\n{typed}\n{said}{alone}\n\n{frame}\n"
