"""Headless Chromium for tests of pages, driven by the DevTools protocol.

>>> with Browser(folder) as browser:
...     page = browser.open(path, width=390, dark=True)
...     page.evaluate("document.title")
"""

from __future__ import annotations

import asyncio
import base64
import json
import shutil
import subprocess
import time
from pathlib import Path
from typing import Any

import aiohttp

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "chrome"))), None)

_FLAGS = (
    "--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--no-first-run",
    "--disable-dev-shm-usage", "--disable-extensions", "--disable-background-networking",
    "--disable-component-update", "--disable-sync", "--remote-debugging-port=0",
    "--remote-allow-origins=*",
)  # fmt: skip
_START_SECONDS, _CALL_SECONDS = 60, 60


class Browser:
    """A Chromium process; `open` loads a page. Close it with `close`, or a `with` block."""

    def __init__(self, folder: Path) -> None:
        assert CHROMIUM is not None
        self._loop = asyncio.new_event_loop()
        port_file = folder / "DevToolsActivePort"
        self._process = subprocess.Popen(
            [CHROMIUM, *_FLAGS, f"--user-data-dir={folder}", "about:blank"],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        stop = time.monotonic() + _START_SECONDS
        while not (port_file.exists() and port_file.read_text().count("\n")):
            assert self._process.poll() is None, "Chromium ended"
            assert time.monotonic() < stop, "Chromium did not start"
            time.sleep(0.02)
        self._port = int(port_file.read_text().split()[0])
        self._session = self._run(_session())
        self._pages: list[Page] = []

    def open(
        self, path: Path, fragment: str = "", *, width: int = 1280, dark: bool = False
    ) -> Page:
        """Load a local page in a new tab, and wait until it is complete."""
        url = f"http://127.0.0.1:{self._port}/json/new?about:blank"
        target = self._run(_json(self._session, url))
        socket = self._run(self._session.ws_connect(target["webSocketDebuggerUrl"], max_msg_size=0))
        page = Page(self, socket)
        self._pages.append(page)
        for domain in ("Page", "Runtime", "Network", "Log", "Audits"):
            page.call(f"{domain}.enable")
        page.call(
            "Emulation.setDeviceMetricsOverride",
            width=width, height=900, deviceScaleFactor=1, mobile=width < 700,
        )  # fmt: skip
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        page.call("Emulation.setEmulatedMedia", features=[scheme])
        page.call("Page.navigate", url=path.absolute().as_uri() + fragment)
        page.wait("document.readyState === 'complete'")
        return page

    def close(self) -> None:
        """End the process."""
        for page in self._pages:
            self._run(page.socket.close())
        self._run(self._session.close())
        self._process.terminate()
        self._process.wait(30)
        self._loop.close()

    def __enter__(self) -> Browser:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _run(self, awaitable: Any) -> Any:
        return self._loop.run_until_complete(asyncio.wait_for(awaitable, _CALL_SECONDS))

    def receive(self, socket: aiohttp.ClientWebSocketResponse) -> dict[str, Any]:
        """The next message of a tab."""
        found: dict[str, Any] = self._run(socket.receive_json())
        return found

    def send(self, socket: aiohttp.ClientWebSocketResponse, message: dict[str, Any]) -> None:
        """Send a message to a tab."""
        self._run(socket.send_json(message))


class Page:
    """A tab. `requests` are URLs that it asked for, `problems` errors and warnings of its log."""

    def __init__(self, browser: Browser, socket: aiohttp.ClientWebSocketResponse) -> None:
        self._browser, self.socket = browser, socket
        self._number = 0
        self.requests: list[str] = []
        self.problems: list[str] = []

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Call a method of the DevTools protocol; collects events that arrive before its result."""
        self._number += 1
        message = {"id": self._number, "method": method, "params": parameters}
        self._browser.send(self.socket, message)
        while True:
            found = self._browser.receive(self.socket)
            if found.get("id") == self._number:
                assert "error" not in found, found
                result: dict[str, Any] = found["result"]
                return result
            self._collect(found["method"], found["params"])

    def _collect(self, method: str, values: dict[str, Any]) -> None:
        if method == "Network.requestWillBeSent":
            self.requests.append(values["request"]["url"])
        elif method == "Runtime.exceptionThrown":
            self.problems.append(json.dumps(values["exceptionDetails"])[:1000])
        elif method == "Log.entryAdded":
            self.problems.append(values["entry"]["text"])
        elif method == "Runtime.consoleAPICalled" and values["type"] in ("error", "warning"):
            self.problems.append(json.dumps(values["args"])[:1000])
        elif method == "Audits.issueAdded":
            self.problems.append(json.dumps(values["issue"])[:1000])

    def evaluate(self, expression: str) -> Any:
        """The value of an expression, also of a promise."""
        found = self.call(
            "Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True
        )
        assert "exceptionDetails" not in found, found["exceptionDetails"]
        return found["result"].get("value")

    def wait(self, condition: str, seconds: float = 30) -> None:
        """Wait until an expression is true."""
        stop = time.monotonic() + seconds
        while not self.evaluate(condition):
            assert time.monotonic() < stop, condition
            time.sleep(0.02)

    def text(self, selector: str) -> str:
        """Visible text of the first element."""
        found: str = self.evaluate(f"document.querySelector({json.dumps(selector)}).innerText")
        return found

    def press(self, key: str, *, shift: bool = False) -> None:
        """Press a key and release it."""
        text = {"text": key} if len(key) == 1 else {}
        for kind in ("keyDown", "keyUp"):
            values = {"type": kind, "key": key, "modifiers": 8 if shift else 0}
            self.call("Input.dispatchKeyEvent", **values, **(text if kind == "keyDown" else {}))

    def screenshot(self, path: Path, *, whole: bool = False) -> None:
        """Save the visible part of the page, or the whole of it, as PNG."""
        found = self.call("Page.captureScreenshot", captureBeyondViewport=whole, format="png")
        path.write_bytes(base64.b64decode(found["data"]))


async def _session() -> aiohttp.ClientSession:
    return aiohttp.ClientSession()


async def _json(session: aiohttp.ClientSession, url: str) -> Any:
    async with session.put(url) as response:
        return await response.json()
