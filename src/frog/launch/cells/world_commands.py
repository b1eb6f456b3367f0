"""`frog world`: a prompt whose lines run on every rank of a living world."""

from __future__ import annotations

import argparse
import ast
import codeop
import contextlib
import sys
from collections.abc import Iterator, Mapping

from frog.core.errors import FrogError, UsageError
from frog.core.startup import INTERRUPTED
from frog.launch.cells.cell_options import add_cell_world_arguments, parse_ranks, read_settings, split_ranks

_HELP = """\
code          runs on all ranks, or on those of :rank; an empty line ends a block
[0,2] code    runs on ranks 0 and 2
:rank 0,2     the ranks of the next lines; :rank all
:draw         the last cell's collectives: who came when, and who waited
:info         the world, its processes and variables
:quit         end the world; Ctrl-D too
Ctrl-C        interrupt a running cell on all ranks"""


def add_world_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add `frog world`."""
    parser = commands.add_parser(
        "world",
        help="a prompt whose lines run on every rank of a living world",
        description="Start ranks that stay alive, and run each line that you type on all of them. Reads the lines "
        "from standard input if that is not a terminal.",
    )
    add_cell_world_arguments(parser)
    parser.set_defaults(handler=_world)


def _world(args: argparse.Namespace) -> int:
    from frog.launch.cells.cell_options import DEFAULT_RANKS
    from frog.launch.cells.cell_world import CellWorld

    settings = read_settings(args, DEFAULT_RANKS)
    assert settings is not None
    is_terminal = sys.stdin.isatty()
    if is_terminal:
        print(f"starting a world of {settings} ...", flush=True)
    world = CellWorld(settings)
    try:
        world.start()
        prompt = Prompt(world)
        return prompt.talk() if is_terminal else prompt.read_all(sys.stdin.read())
    except KeyboardInterrupt:
        return INTERRUPTED
    finally:
        world.stop()


_FIRST_CELL = """\
import torch
import torch.distributed as dist

rank, world_size = dist.get_rank(), dist.get_world_size()
"""
"""What a prompt's ranks run before the first line."""


class Prompt:
    """Lines from a user, and the world that runs them."""

    def __init__(self, world: object) -> None:
        from frog.launch.cells.cell_world import CellWorld

        assert isinstance(world, CellWorld)
        self.world = world
        self.ranks: tuple[int, ...] | None = None
        self._is_terminal = sys.stdin.isatty()
        self.failed = False
        """True if a cell has failed."""

    # ---- a terminal --------------------------------------------------------------------------------------------------

    def talk(self) -> int:
        """Read lines until the user quits."""
        with contextlib.suppress(ImportError):
            import readline  # noqa: F401  (history and editing in input())
        print(f"world of {self.world.settings}: torch, dist, rank and world_size are defined; :help, :quit", flush=True)
        self._run(_FIRST_CELL, None)
        lines: list[str] = []
        while True:
            try:
                line = input("... " if lines else f"{self._name()} >>> ")
            except EOFError:
                print()
                return 0
            except KeyboardInterrupt:
                print("\nKeyboardInterrupt" if lines else "\n:quit ends the world")
                lines = []
                continue
            if not lines and line.strip().startswith(":"):
                if not self.command(line.strip()):
                    return 0
                continue
            lines.append(line)
            if not line.strip() and not any(each.strip() for each in lines):
                lines = []
            elif not _needs_more("\n".join(lines)):
                self.cell("\n".join(lines))
                lines = []

    def _name(self) -> str:
        size = self.world.settings.world_size
        ranks = self.ranks if self.ranks is not None else tuple(range(size))
        if len(ranks) > 2 and ranks == tuple(range(ranks[0], ranks[-1] + 1)):
            return f"[{ranks[0]}-{ranks[-1]}]"
        return f"[{','.join(map(str, ranks))}]"

    # ---- standard input ----------------------------------------------------------------------------------------------

    def read_all(self, text: str) -> int:
        """Run each statement of a text as a cell; return 1 if one failed."""
        self._run(_FIRST_CELL, None)
        for piece in _pieces(text):
            if piece.startswith(":"):
                if not self.command(piece):
                    break
            else:
                self.cell(piece)
        return int(self.failed)

    # ---- both --------------------------------------------------------------------------------------------------------

    def cell(self, text: str) -> None:
        """Run `code` or `[0,2] code`, and print what it did."""
        try:
            own, code = _ranks_and_code(text)
            self._run(code, own if own is not None else self.ranks)
        except FrogError as error:
            self.failed = True
            print(f"error: {error}", file=sys.stderr, flush=True)

    def _run(self, code: str, ranks: tuple[int, ...] | None) -> None:
        from frog.launch.cells.cell_text import as_text

        live = LiveLines()
        result = self.world.run(code, ranks, on_output=live.show if self._is_terminal else None)
        self.failed |= result.failed
        if live.printed:
            live.show({rank: f"{own.output}\n" for rank, own in result.ranks.items()})
            for own in result.ranks.values():
                own.output = ""
        if text := as_text(result, fold_name=True):
            print(text, flush=True)

    def command(self, line: str) -> bool:
        """Obey a line that begins with a colon; return False if the prompt shall end."""
        from frog.launch.cells import cell_drawing
        from frog.launch.cells.cell_text import world_text

        word, _, rest = line[1:].partition(" ")
        try:
            if word in ("quit", "q", "exit"):
                return False
            if word in ("rank", "ranks"):
                self._choose(rest.strip())
            elif word == "draw":
                last = self.world.last
                print(cell_drawing.as_text(last) if last is not None else "no cell has run", flush=True)
            elif word == "info":
                print(world_text(self.world), flush=True)
            elif word == "help":
                print(_HELP, flush=True)
            else:
                raise UsageError(f":{word} is not a command", ":help")
        except FrogError as error:
            self.failed = True
            print(f"error: {error}", file=sys.stderr, flush=True)
        return True

    def _choose(self, text: str) -> None:
        if text in ("", "all"):
            self.ranks = None
            return
        ranks = parse_ranks(text.strip("[]"))
        size = self.world.settings.world_size
        if wrong := [rank for rank in ranks if rank >= size]:
            raise UsageError(f"rank {wrong[0]}: the world has ranks 0 to {size - 1}", ":rank all")
        self.ranks = ranks


class LiveLines:
    """Prints the output of a cell that runs for long, a line at a time, with its rank."""

    def __init__(self) -> None:
        self.printed: dict[int, int] = {}
        """Characters of each rank's output that were printed."""

    def show(self, outputs: Mapping[int, str]) -> None:
        """Print the complete lines that were not yet printed."""
        for rank, text in outputs.items():
            start, end = self.printed.get(rank, 0), text.rfind("\n") + 1
            for line in text[start:end].splitlines():
                if line.strip():
                    print(f"rank {rank} │ {line}", flush=True)
            if end > start:
                self.printed[rank] = end


def _ranks_and_code(text: str) -> tuple[tuple[int, ...] | None, str]:
    """Split `[0,2] code`. A list of Python's, such as `[1, 2]` alone or `[0][0]`, is code."""
    with contextlib.suppress(UsageError):
        ranks, code = split_ranks(text)
        if ranks is not None and code.strip() and text.lstrip().partition("]")[2][:1] == " " and not _is_code(text):
            return ranks, code
    return None, text


def _is_code(text: str) -> bool:
    try:
        ast.parse(text)
    except SyntaxError:
        return False
    return True


def _needs_more(text: str) -> bool:
    """True if a cell is not complete: an open bracket, or a block without an empty line at its end."""
    _, code = _ranks_and_code(text)
    try:
        return codeop.compile_command(code, symbol="single") is None
    except (SyntaxError, ValueError, OverflowError):
        lines = code.splitlines()
        if len(lines) > 1:  # several statements were pasted
            return lines[-1].startswith((" ", "\t"))
        return False


def _pieces(text: str) -> Iterator[str]:
    """Split a text into commands and statements. A `[0,2]` at the beginning of a line belongs to its statement."""
    lines: list[str] = []
    for line in text.splitlines():
        if line.startswith(":") or (line.startswith("[") and not _is_code(line)):
            yield from _statements("\n".join(lines))
            lines = []
            if line.startswith(":"):
                yield line.strip()
                continue
        lines.append(line)
    yield from _statements("\n".join(lines))


def _statements(text: str) -> Iterator[str]:
    """Yield the statements of a piece, with the ranks of its first line in front of each."""
    if not text.strip():
        return
    ranks, code = _ranks_and_code(text)
    if ranks is not None:
        lines = code.splitlines()
        is_block = lines[0].rstrip().endswith(":")
        inside = [is_block and (not line.strip() or line[0] in " \t") for line in lines[1:]]
        end = 1 + (inside.index(False) if False in inside else len(inside))
        yield f"[{','.join(map(str, ranks))}] " + "\n".join(lines[:end]).rstrip()
        yield from _statements("\n".join(lines[end:]))
        return
    try:
        tree = ast.parse(text)
    except SyntaxError:
        yield text
        return
    lines = text.splitlines()
    start = 0
    for statement in tree.body:
        assert statement.end_lineno is not None
        own = lines[start : statement.end_lineno]
        start = statement.end_lineno
        yield "\n".join(own).strip("\n")
