"""`%%ranks` and its companions in a notebook, over one `CellWorld`: `%load_ext frog` registers them.

%%ranks [0,2] --world 4       run the cell on ranks 0 and 2 of a world of four; without brackets on all ranks
%ranks x.shape                the same for one line
%ranks_get loss               a list of each rank's value, here in the notebook
%ranks_draw                   a picture of the last cell's collectives
%ranks_info, %ranks_stop      the world and its variables; end it
"""

from __future__ import annotations

import contextlib
import html
from typing import Any

from IPython.core.interactiveshell import InteractiveShell
from IPython.core.magic import Magics, line_cell_magic, line_magic, magics_class
from IPython.display import DisplayHandle, display

from frog.core.errors import FrogError, UsageError
from frog.launch.cells import cell_drawing, cell_text
from frog.launch.cells.cell_launcher import WorldSettings
from frog.launch.cells.cell_options import DEFAULT_RANKS, parse_line
from frog.launch.cells.cell_world import CellResult, CellWorld, Outputs


class CellFailed(Exception):
    """The cell failed on a rank: the notebook stops here, and the cell's output says why."""

    def _render_traceback_(self) -> list[str]:
        return [f"CellFailed: {self}"]


class CannotRun(Exception):
    """A mistake of the user's, shown without a traceback."""

    def _render_traceback_(self) -> list[str]:
        return [f"error: {self}"]


class Both:
    """Something with a form for notebooks and one for terminals."""

    def __init__(self, as_html: str, as_text: str) -> None:
        self._html, self._text = as_html, as_text

    def _repr_mimebundle_(self, **options: Any) -> dict[str, str]:
        return {"text/plain": self._text, "text/html": self._html}

    def __repr__(self) -> str:
        return self._text


class CellDisplay:
    """What a cell shows while it runs, then its result, in the same place."""

    def __init__(self) -> None:
        self._handle: DisplayHandle | None = None
        self._outputs: Outputs = {}
        self._status, self._world_size = "", 0

    def show_status(self, status: str) -> None:
        """Show below the output what the world does."""
        self._status = status
        self._show_live()

    def show_outputs(self, outputs: Outputs, world_size: int) -> None:
        """Show the output so far."""
        self._outputs, self._world_size = outputs, world_size
        self._show_live()

    def _show_live(self) -> None:
        outputs, status = self._outputs, self._status
        self.show(Both(cell_text.live_html(outputs, self._world_size, status), cell_text.live_text(outputs, status)))

    def show(self, shown: Both) -> None:
        """Show this instead of what was shown before."""
        if self._handle is None:
            self._handle = display(shown, display_id=True)  # type: ignore[no-untyped-call]
        else:
            self._handle.update(shown)  # type: ignore[no-untyped-call]


@magics_class
class RankMagics(Magics):
    """The magics, and the world that they use."""

    world: CellWorld | None = None

    @line_cell_magic
    def ranks(self, line: str, cell: str | None = None) -> None:
        """Run a cell on the ranks of a world: `%%ranks [0,2] --world 4`. Options: those of `frog run`."""
        try:
            options = parse_line(line)
            if cell is not None and options.code:
                raise UsageError(f"%%ranks {line}: {options.code!r} is not an option", "put code below this line")
            code = f"\n{cell}" if cell is not None else options.code
            shown = CellDisplay()
            world = self._ready_world(options.settings, shown)
            if not code.strip():
                shown.show(self._info(world))
                return
            result = self._run(world, code, options.ranks, shown)
        except FrogError as error:
            raise CannotRun(str(error)) from None
        except KeyboardInterrupt:
            raise CannotRun("interrupted before the cell ran") from None
        if result.failed and not options.allow_errors:
            raise CellFailed(_what_failed(result))

    def _run(self, world: CellWorld, code: str, ranks: tuple[int, ...] | None, shown: CellDisplay) -> CellResult:
        """Run a cell, show output while it runs, and then its result."""
        size = world.settings.world_size
        world.on_status = shown.show_status
        try:
            result = world.run(
                code, ranks, number=self._cell_number(), on_output=lambda outputs: shown.show_outputs(outputs, size)
            )
        finally:
            world.on_status = None
        shown.show(Both(cell_text.as_html(result), cell_text.as_text(result)))
        return result

    def _cell_number(self) -> int | None:
        """Return the number of the running cell, as the notebook shows it; None if it shows none.

        The shell's `execution_count` is already the next one in some versions of IPython.
        """
        inputs = self.shell.user_ns.get("In") if self.shell is not None else None
        return len(inputs) - 1 if inputs and len(inputs) > 1 else None

    def _ready_world(self, settings: WorldSettings | None, shown: CellDisplay) -> CellWorld:
        """Return the running world; start one if there is none, or if it is another one that the user asks for."""
        world = self.world
        if world is not None and settings in (None, world.settings):
            return world
        if world is not None:
            print(f"a new world of {settings}; the one of {world.settings} and its variables have ended", flush=True)
            self._stop()
        wanted = settings or WorldSettings(nproc=DEFAULT_RANKS)
        world = CellWorld(wanted)
        world.on_status = shown.show_status
        try:
            world.start()
        except BaseException:
            world.stop()
            raise
        self.world = world
        return world

    @line_magic
    def ranks_get(self, line: str) -> list[Any]:
        """Return each rank's value of an expression as a list: `losses = %ranks_get loss`, `%ranks_get [0] loss`."""
        try:
            options = parse_line(line)
            if not options.code:
                raise UsageError("%ranks_get: names no variable", "losses = %ranks_get loss")
            if self.world is None:
                raise UsageError("no world is running", "%ranks --world 2")
            return list(self.world.get(options.code, options.ranks).values())
        except FrogError as error:
            raise CannotRun(str(error)) from None

    @line_magic
    def ranks_draw(self, line: str) -> None:
        """Draw the collectives of the last cell: a lane per rank, who came when and who waited."""
        if self.world is None or self.world.last is None:
            raise CannotRun("no cell has run on ranks\n  try: %%ranks above a cell")
        result = self.world.last
        display(Both(cell_drawing.as_svg(result), cell_drawing.as_text(result)))  # type: ignore[no-untyped-call]

    @line_magic
    def ranks_info(self, line: str) -> None:
        """Show the world: its size, processes and variables."""
        if self.world is None:
            print("no world is running; %%ranks --world 4 starts one")
            return
        display(self._info(self.world))  # type: ignore[no-untyped-call]

    @line_magic
    def ranks_stop(self, line: str) -> None:
        """End the world. Its variables are lost."""
        if self.world is None:
            print("no world is running")
            return
        words = str(self.world.settings)
        self._stop()
        print(f"the world of {words} has ended")

    def _stop(self) -> None:
        world, self.world = self.world, None
        if world is not None:
            world.stop()

    def _info(self, world: CellWorld) -> Both:
        text = cell_text.world_text(world)
        return Both(f'{cell_text.STYLE}<div class="frog-ranks"><pre>{html.escape(text)}</pre></div>', text)


def _what_failed(result: CellResult) -> str:
    by_state: dict[str, list[int]] = {}
    for rank, own in sorted(result.ranks.items()):
        if own.state != "done":
            by_state.setdefault(own.state, []).append(rank)
    words = {
        "failed": "failed on",
        "interrupted": "was interrupted on",
        "hung": "hung on",
        "died": "ended the process of",
    }
    return "; ".join(f"{words[state]} {cell_text.rank_names(ranks)}" for state, ranks in by_state.items())


def load_magics(shell: InteractiveShell) -> None:
    """Register the magics in a notebook or in IPython."""
    shell.register_magics(RankMagics(shell))


def unload_magics(shell: InteractiveShell) -> None:
    """End the world of a notebook."""
    magics = shell.magics_manager.registry.get("RankMagics")
    if isinstance(magics, RankMagics):
        with contextlib.suppress(FrogError):
            magics._stop()
