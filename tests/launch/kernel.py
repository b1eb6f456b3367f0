"""A real Jupyter kernel: tests type cells and read what a notebook would show."""

from __future__ import annotations

import queue
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from harness import LIMIT_S
from jupyter_client.manager import KernelManager
from traitlets.config import Config


@dataclass
class Shown:
    """What one cell showed."""

    displays: list[dict[str, str]] = field(default_factory=list)
    """The displays in order, each in its last state."""
    printed: str = ""
    result: str = ""
    error: str = ""
    number: int = 0
    """The number that the notebook shows next to the cell."""
    _places: dict[str, int] = field(default_factory=dict)

    @property
    def text(self) -> str:
        """The displays as text."""
        return "\n".join(each["text/plain"] for each in self.displays)

    def take(self, kind: str, content: dict[str, Any]) -> None:
        if kind in ("display_data", "update_display_data"):
            name = content.get("transient", {}).get("display_id", "")
            if kind == "update_display_data" and name in self._places:
                self.displays[self._places[name]] = content["data"]
                return
            self._places[name] = len(self.displays)
            self.displays.append(content["data"])
        elif kind == "stream":
            self.printed += content["text"]
        elif kind == "execute_result":
            self.result = content["data"]["text/plain"]
        elif kind == "error":
            self.error = "\n".join(content["traceback"])
        elif kind == "execute_input":
            self.number = content["execution_count"]


class Kernel:
    """A kernel of this Python, in a folder."""

    def __init__(self, folder: Path) -> None:
        self._sockets = tempfile.TemporaryDirectory(dir="/tmp")  # instead of ports; a socket's path must be short
        config = Config(KernelManager={"transport": "ipc", "ip": f"{self._sockets.name}/kernel"})
        self.manager = KernelManager(kernel_name="python3", config=config)
        self.manager.start_kernel(cwd=str(folder))
        self.client = self.manager.client()
        self.client.start_channels()
        self.client.wait_for_ready(timeout=LIMIT_S)
        self.run("%load_ext frog")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.client.stop_channels()
        self.manager.shutdown_kernel(now=kind is not None)
        self._sockets.cleanup()

    @property
    def pid(self) -> int:
        return int(self.manager.provisioner.pid)  # type: ignore[union-attr,attr-defined]

    def interrupt(self) -> None:
        self.manager.interrupt_kernel()

    def run(self, code: str, *, then: Callable[[], None] | None = None, once: str = "") -> Shown:
        """Run a cell until the kernel is idle. then: called when the cell has shown `once`."""
        asked = self.client.execute(code)
        shown, until_s = Shown(), time.monotonic() + LIMIT_S
        while True:
            try:
                message = self.client.get_iopub_msg(timeout=1.0)
            except queue.Empty:
                assert time.monotonic() < until_s, f"the cell did not end; it showed {shown}"
                continue
            if message["parent_header"].get("msg_id") != asked:
                continue
            if message["msg_type"] == "status" and message["content"]["execution_state"] == "idle":
                return shown
            shown.take(message["msg_type"], message["content"])
            if then is not None and once in shown.text + shown.printed:
                then()
                then = None
