"""A real browser for tests: Chromium over its own debugging pipe, without a driver in between."""

import base64
import json
import os
import queue
import re
import shutil
import subprocess
import tempfile
import threading
import time
from pathlib import Path
from typing import Any, Self

CHROMIUM = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None
)
MISSING = "no chromium was found; install it with `apt-get install chromium`"
PATIENCE = 90.0  # seconds that a page may take for anything
# A test's server ends before its page does: what the page then still asks for, the icon of the tab
# or the state after an answer, is refused. While the server listens no connection is.
AFTER_THE_END = re.compile(
    r"net::ERR_CONNECTION_REFUSED http://127\.0\.0\.1:\d+/(\S*/)?(icon\.svg|playground/state)$"
)
KEYS = {
    "Enter": (13, "\r"),
    "Escape": (27, ""),
    "Tab": (9, ""),
    "Home": (36, ""),
    "End": (35, ""),
    "ArrowLeft": (37, ""),
    "ArrowUp": (38, ""),
    "ArrowRight": (39, ""),
    "ArrowDown": (40, ""),
}
FLAGS = [
    "--headless=new",
    "--remote-debugging-pipe",
    "--no-first-run",
    "--no-default-browser-check",
    "--disable-extensions",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--disable-background-networking",
    "--disable-component-update",
    "--hide-scrollbars",
    "--mute-audio",
    "--force-color-profile=srgb",
]


class Browser:
    """Chromium with one page."""

    def __init__(self) -> None:
        assert CHROMIUM is not None
        self._home = tempfile.mkdtemp(prefix="sapwood-browser-")
        given, self._out = os.pipe()
        self._in, taken = os.pipe()
        sandbox = ["--no-sandbox"] if os.geteuid() == 0 else []

        def connect() -> None:
            spare = [os.dup(given), os.dup(taken)]  # the pipe's own numbers may be 3 and 4 already
            os.dup2(spare[0], 3)
            os.dup2(spare[1], 4)

        command = [CHROMIUM, *FLAGS, *sandbox, f"--user-data-dir={self._home}", "about:blank"]
        quiet = subprocess.DEVNULL
        self._process = subprocess.Popen(
            command, preexec_fn=connect, pass_fds=(3, 4), stdout=quiet, stderr=quiet
        )
        os.close(given)
        os.close(taken)
        self._count = 0
        self._answers: dict[int, queue.Queue[dict[str, Any]]] = {}
        self.problems: list[str] = []  # errors on the console, exceptions, blocked or failed loads
        self.requests: list[str] = []  # addresses that the page asked for
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        self._session = ""
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)[
            "sessionId"
        ]
        for domain in ("Page", "Runtime", "Log", "Network", "Accessibility"):
            self.call(f"{domain}.enable")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.terminate()
        self._process.wait(10)
        os.close(self._out)
        self._reader.join(10)
        os.close(self._in)
        shutil.rmtree(self._home, ignore_errors=True)

    # ------------------------------------------------------------------------------- the pipe
    def _read(self) -> None:
        held = b""
        while data := os.read(self._in, 1 << 16):
            *messages, held = (held + data).split(b"\0")
            for message in messages:
                self._take(json.loads(message))

    def _take(self, message: dict[str, Any]) -> None:
        if "id" in message:
            self._answers[message["id"]].put(message)
            return
        name = message["method"]
        what = message.get("params", {})
        if name == "Runtime.exceptionThrown":
            details = what["exceptionDetails"]
            self.problems.append(details.get("exception", {}).get("description", details["text"]))
        elif name == "Runtime.consoleAPICalled" and what["type"] in ("error", "warning", "assert"):
            self.problems.append(" ".join(str(item.get("value", item)) for item in what["args"]))
        elif name == "Log.entryAdded" and what["entry"]["level"] in ("error", "warning"):
            problem = f"{what['entry']['text']} {what['entry'].get('url', '')}"
            if not AFTER_THE_END.search(problem):
                self.problems.append(problem)
        elif name == "Network.requestWillBeSent":
            self.requests.append(what["request"]["url"])

    def call(self, method: str, **params: Any) -> dict[str, Any]:
        """One command of the debugging protocol."""
        self._count += 1
        number = self._count
        answer = queue.Queue[dict[str, Any]]()
        self._answers[number] = answer
        record: dict[str, Any] = {"id": number, "method": method, "params": params}
        if self._session:
            record["sessionId"] = self._session
        os.write(self._out, json.dumps(record).encode() + b"\0")
        found = answer.get(timeout=PATIENCE)
        del self._answers[number]
        assert "error" not in found, f"{method}: {found.get('error')}"
        result: dict[str, Any] = found["result"]
        return result

    # ------------------------------------------------------------------------------- the page
    def open(self, address: str) -> None:
        """Load a page and wait until it is complete."""
        self.call("Page.navigate", url=address)
        self.wait(
            f"document.readyState === 'complete' && location.href.startsWith({json.dumps(address)})"
        )

    def reload(self) -> None:
        """Load the page again."""
        self.run("window.old = true")
        self.call("Page.reload")
        self.wait("document.readyState === 'complete' && !window.old")

    def run(self, script: str) -> Any:
        """The value of an expression, promises awaited."""
        done = self.call(
            "Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True
        )
        assert "exceptionDetails" not in done, done["exceptionDetails"]
        return done["result"].get("value")

    def wait(self, condition: str, seconds: float = PATIENCE) -> Any:
        """The expression's value as soon as it is true."""
        end = time.monotonic() + seconds
        while not (value := self.run(condition)):
            assert time.monotonic() < end, f"not within {seconds:g} s: {condition}"
            time.sleep(0.03)
        return value

    def click(self, selector: str) -> None:
        """Press the middle of an element, as a mouse would."""
        place = self.run(
            f"(() => {{ const box = document.querySelector({json.dumps(selector)}).getBoundingClientRect();"
            " return [box.x + box.width / 2, box.y + box.height / 2] })()"
        )
        for kind in ("mousePressed", "mouseReleased"):
            self.call(
                "Input.dispatchMouseEvent",
                type=kind,
                x=place[0],
                y=place[1],
                button="left",
                clickCount=1,
            )

    def type(self, text: str) -> None:
        """Write into what has the focus."""
        self.call("Input.insertText", text=text)

    def press(self, key: str) -> None:
        """Press and let go a named key."""
        code, text = KEYS[key]
        known: dict[str, Any] = {"key": key, "code": key, "windowsVirtualKeyCode": code}
        self.call("Input.dispatchKeyEvent", type="keyDown", text=text, **known)
        self.call("Input.dispatchKeyEvent", type="keyUp", **known)

    def resize(self, width: int, height: int, *, phone: bool = False, scale: float = 1) -> None:
        """Show the page at this size."""
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=scale,
            mobile=phone,
        )
        self.call("Emulation.setTouchEmulationEnabled", enabled=phone)

    def prefer(self, **features: str) -> None:
        """Set media features such as prefers_color_scheme."""
        named = [
            {"name": name.replace("_", "-"), "value": value} for name, value in features.items()
        ]
        self.call("Emulation.setEmulatedMedia", features=named)

    def picture(self, path: Path) -> None:
        """Save what the page looks like."""
        path.write_bytes(
            base64.b64decode(self.call("Page.captureScreenshot", format="png")["data"])
        )
