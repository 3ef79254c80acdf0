"""A tab of headless Chromium, driven by its DevTools protocol."""

import base64
import itertools
import json
import shutil
import subprocess
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from websockets.sync.client import ClientConnection, connect

NAMES = ("chromium", "chromium-browser", "google-chrome")
TIMEOUT_S = 60
KEYS = {
    "Tab": {"windowsVirtualKeyCode": 9},
    "Enter": {"windowsVirtualKeyCode": 13, "text": "\r"},
    " ": {"windowsVirtualKeyCode": 32, "text": " "},
    "ArrowDown": {"windowsVirtualKeyCode": 40},
}


def executable() -> str | None:
    return next((path for name in NAMES if (path := shutil.which(name))), None)


class Tab:
    """One tab; `problems` are the console's errors and uncaught exceptions so far."""

    def __init__(self, socket: ClientConnection):
        self.socket, self.ids, self.events = socket, itertools.count(1), []
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **params: Any) -> dict:
        number = next(self.ids)
        self.socket.send(json.dumps({"id": number, "method": method, "params": params}))
        while True:
            message = json.loads(self.socket.recv(timeout=TIMEOUT_S))
            if "method" in message:
                self.events.append(message)
            elif message["id"] == number:
                assert "error" not in message, (method, message["error"])
                return message["result"]

    def wait(self, event: str) -> None:
        while not any(message["method"] == event for message in self.events):
            self.events.append(json.loads(self.socket.recv(timeout=TIMEOUT_S)))

    def open(self, page: Path, width: int = 1280, scripts: bool = True, dark: bool = False) -> None:
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[scheme])
        self.call("Emulation.setScriptExecutionDisabled", value=not scripts)
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width, height=900, deviceScaleFactor=1, mobile=width < 600,
        )  # fmt: skip
        self.events.clear()
        self.call("Page.navigate", url=page.as_uri())
        self.wait("Page.loadEventFired")

    @property
    def problems(self) -> list[dict]:
        return [event for event in self.events if _is_problem(event["method"], event["params"])]

    @property
    def requests(self) -> list[str]:
        """Addresses that were asked for, but for those inside the page."""
        urls = [
            event["params"]["request"]["url"]
            for event in self.events
            if event["method"] == "Network.requestWillBeSent"
        ]
        return [url for url in urls if not url.startswith("data:")]

    def js(self, expression: str) -> Any:
        """The value of an expression, which must be JSON."""
        result = self.call("Runtime.evaluate", expression=expression, returnByValue=True)
        assert "exceptionDetails" not in result, (expression, result["exceptionDetails"])
        return result["result"].get("value")

    def press(self, key: str) -> None:
        event = {"key": key, "code": "Space" if key == " " else key} | KEYS[key]
        self.call("Input.dispatchKeyEvent", type="keyDown", **event)
        self.call("Input.dispatchKeyEvent", type="keyUp", **event)

    def click(self, selector: str) -> None:
        """Move the pointer to the middle of an element, press and release."""
        x, y = self.js(
            "(element => { element.scrollIntoView({block: 'center'});"
            " const box = element.getBoundingClientRect();"
            " return [box.x + box.width / 2, box.y + box.height / 2]; })"
            f"(document.querySelector({json.dumps(selector)}))"
        )
        for kind in ("mousePressed", "mouseReleased"):
            self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1)

    def screenshot(self, path: Path) -> None:
        result = self.call("Page.captureScreenshot", captureBeyondViewport=True)
        path.write_bytes(base64.b64decode(result["data"]))

    def pdf(self) -> bytes:
        return base64.b64decode(self.call("Page.printToPDF", printBackground=True)["data"])


def _is_problem(method: str, params: dict) -> bool:
    return (
        method == "Runtime.exceptionThrown"
        or (method == "Log.entryAdded" and params["entry"]["level"] == "error")
        or (method == "Runtime.consoleAPICalled" and params["type"] == "error")
    )


@contextmanager
def chromium(command: str, profile: Path) -> Iterator[Tab]:
    """Start the browser with an empty profile, and end it."""
    process = subprocess.Popen(
        [
            command, "--headless", "--no-sandbox", "--disable-gpu", "--remote-debugging-port=0",
            "--disable-background-networking", "--disable-component-update", "--disable-sync",
            "--disable-dev-shm-usage", "--no-first-run", f"--user-data-dir={profile}",
            "about:blank",
        ],
        stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        address = next(line for line in process.stderr if "DevTools listening on" in line)
        port = address.rsplit(":", 1)[1].split("/")[0]
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/json/list") as answer:
            page = next(t for t in json.load(answer) if t["type"] == "page")
        with connect(page["webSocketDebuggerUrl"], max_size=None) as socket:
            yield Tab(socket)
    finally:
        process.terminate()
        process.communicate(timeout=TIMEOUT_S)
