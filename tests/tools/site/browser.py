"""A real Chromium, controlled through a pipe, without a port or another package."""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import queue
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from harness import LIMIT_S

ROOT = Path(__file__).parents[3]


def find_browser() -> str | None:
    """Return Chromium's path, found as by the slides' build."""
    sys.path.insert(0, str(ROOT / "tools" / "slides"))
    try:
        slides = importlib.import_module("build")
    finally:
        sys.path.remove(str(ROOT / "tools" / "slides"))
    found: str | None = slides.find_browser()
    return found


class Tab:
    """A tab of the browser, and its messages."""

    def __init__(self, browser: Browser, session: str) -> None:
        self._browser, self._session = browser, session
        browser.hear_for(session, self)
        self.faults: list[str] = []
        """Console errors and exceptions."""
        self.requests: list[str] = []
        """Requested addresses."""
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **params: Any) -> Any:
        return self._browser.call(method, self._session, **params)

    def show(self, width: int, height: int, scheme: str) -> None:
        """Set the size of the screen and the system's preferred theme."""
        self.call(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 600
        )
        self.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])

    def open(self, url: str) -> None:
        """Open a page and wait until it is loaded."""
        self._browser.forget(self)
        self.call("Page.navigate", url=url)
        self._browser.wait(self, "Page.loadEventFired")

    def run(self, script: str, gesture: bool = False) -> Any:
        """Evaluate an expression, and await it if it is a promise. `gesture` acts like a click by the user."""
        done = self.call(
            "Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True, userGesture=gesture
        )
        assert "exceptionDetails" not in done, done
        return done["result"].get("value")

    def press(self, key: str, code: int, text: str = "") -> None:
        said = {"key": key, "code": key, "windowsVirtualKeyCode": code}
        self.call("Input.dispatchKeyEvent", type="keyDown", **said, **({"text": text} if text else {}))
        self.call("Input.dispatchKeyEvent", type="keyUp", **said)

    def hear(self, method: str, params: dict[str, Any]) -> None:
        if method == "Network.requestWillBeSent":
            self.requests.append(params["request"]["url"])
        elif method == "Runtime.exceptionThrown":
            details = params["exceptionDetails"]
            self.faults.append(str(details.get("exception", {}).get("description", details["text"])))
        elif method == "Log.entryAdded" and params["entry"]["level"] == "error":
            self.faults.append(f"{params['entry']['text']} {params['entry'].get('url', '')}")
        elif method == "Runtime.consoleAPICalled" and params["type"] in ("error", "assert"):
            self.faults.append(" ".join(str(part.get("value", part.get("description"))) for part in params["args"]))


class Browser:
    """Messages to and from Chromium."""

    def __init__(self, write: int, read: int) -> None:
        self._write, self._next = write, 0
        self._tabs: dict[str, Tab] = {}
        self._events: list[tuple[Tab, str]] = []
        self._heard: queue.Queue[dict[str, Any]] = queue.Queue()
        threading.Thread(target=self._listen, args=(read,), daemon=True).start()

    def _listen(self, read: int) -> None:
        with open(read, "rb") as pipe:
            left = b""
            while chunk := os.read(pipe.fileno(), 1 << 16):
                *whole, left = (left + chunk).split(b"\0")
                for message in whole:
                    self._heard.put(json.loads(message))

    def call(self, method: str, session: str | None = None, **params: Any) -> Any:
        self._next += 1
        number = self._next
        message = {"id": number, "method": method, "params": params} | ({"sessionId": session} if session else {})
        os.write(self._write, json.dumps(message).encode() + b"\0")
        while True:
            heard = self._hear()
            if heard.get("id") == number:
                assert "error" not in heard, f"{method}: {heard['error']}"
                return heard["result"]

    def _hear(self) -> dict[str, Any]:
        heard = self._heard.get(timeout=LIMIT_S)
        if "method" in heard and (tab := self._tabs.get(heard.get("sessionId", ""))):
            tab.hear(heard["method"], heard["params"])
            self._events.append((tab, heard["method"]))
        return heard

    def forget(self, tab: Tab) -> None:
        """Discard the events of a tab."""
        self._events = [event for event in self._events if event[0] is not tab]

    def wait(self, tab: Tab, method: str) -> None:
        while (tab, method) not in self._events:
            self._hear()

    def new_tab(self) -> Tab:
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        return Tab(self, session)

    def hear_for(self, session: str, tab: Tab) -> None:
        self._tabs[session] = tab


@contextlib.contextmanager
def chromium(program: str, profile: Path) -> Iterator[Browser]:
    """Run a browser during a block. It resolves no other host than this one."""
    to_read, to_write = os.pipe()
    from_read, from_write = os.pipe()
    line = [program, "--headless", "--disable-gpu", "--remote-debugging-pipe", f"--user-data-dir={profile}"]
    line += ["--no-first-run", "--disable-background-networking", "--disable-dev-shm-usage", "--hide-scrollbars"]
    line += ["--host-resolver-rules=MAP * ~NOTFOUND , EXCLUDE 127.0.0.1"]
    line += ["--no-sandbox"] if os.geteuid() == 0 else []
    shell = f'exec 3<&{to_read} 4>&{from_write}; exec "$@"'
    child = subprocess.Popen(
        ["bash", "-c", shell, "bash", *line], pass_fds=(to_read, from_write), stderr=subprocess.DEVNULL
    )
    os.close(to_read)
    os.close(from_write)
    try:
        yield Browser(to_write, from_read)
    finally:
        child.kill()
        child.wait(timeout=LIMIT_S)
        os.close(to_write)
