"""Headless Chromium over its DevTools protocol, by a pipe: no package is needed, and no port is opened.

    with Browser(find_chromium()) as browser:
        page = browser.open(path)
        page.evaluate("document.title")
"""

from __future__ import annotations

import base64
import json
import os
import pathlib
import select
import shutil
import struct
import subprocess
import tempfile
import time
import typing
import zlib


def find_chromium() -> str | None:
    """Returns the path of a Chromium or Chrome; CACHALOT_CHROMIUM comes first. None without one."""
    names = [os.environ.get("CACHALOT_CHROMIUM", ""), "chromium", "chromium-browser", "google-chrome", "google-chrome-stable"]
    return next((found for name in names if name and (found := shutil.which(name))), None)


class Failure(Exception):
    """The browser does not do what it is asked for."""


class Picture(typing.NamedTuple):
    """Pixels, row by row."""

    width: int
    height: int
    channels: int
    pixels: bytes

    def summary(self, left: float, top: float, right: float, bottom: float) -> list[int]:
        """Returns the mean red, green and blue of a rectangle, and how many percent of it are neither white, grey nor black."""
        rows = range(max(0, round(top)), min(self.height, max(round(bottom), round(top) + 1)))
        begin, end = max(0, round(left)) * self.channels, min(self.width, max(round(right), round(left) + 1)) * self.channels
        inside = b"".join(self.pixels[row * self.width * self.channels + begin:row * self.width * self.channels + end] for row in rows)
        colors = [inside[color::self.channels] for color in range(3)]
        count = max(1, len(colors[0]))
        vivid = sum(max(pixel) - min(pixel) > 60 for pixel in zip(*colors))
        return [round(sum(each) / count) for each in colors] + [round(100 * vivid / count)]


def decode_png(png: bytes) -> Picture:
    """Returns the pixels of a PNG as Chromium writes it: eight bits a channel, not interlaced."""
    width, height, depth, kind, _, _, interlaced = struct.unpack(">IIBBBBB", png[16:29])
    if depth != 8 or kind not in (2, 6) or interlaced:
        raise Failure(f"a PNG of {depth} bits, kind {kind}")
    channels = 3 if kind == 2 else 4
    deflated, at = b"", 8
    while at < len(png):
        size, name = struct.unpack(">I4s", png[at:at + 8])
        deflated += png[at + 8:at + 8 + size] if name == b"IDAT" else b""
        at += size + 12
    data = zlib.decompress(deflated)
    stride = width * channels
    rows: list[bytearray] = []
    above = bytearray(stride)
    for begin in range(0, len(data), stride + 1):
        row = bytearray(data[begin + 1:begin + 1 + stride])
        unfilter(data[begin], row, above, channels)
        rows.append(row)
        above = row
    return Picture(width, height, channels, b"".join(rows))


def unfilter(kind: int, row: bytearray, above: bytearray, channels: int) -> None:
    """Turns differences to the neighbours at the left and above into values, in place."""
    for i in range(len(row) if kind else 0):
        left = row[i - channels] if i >= channels else 0
        up = above[i]
        corner = above[i - channels] if i >= channels else 0
        if kind == 4:
            guess = left + up - corner
            near = min((abs(guess - left), 0, left), (abs(guess - up), 1, up), (abs(guess - corner), 2, corner))[2]
        else:
            near = {1: left, 2: up, 3: (left + up) // 2}[kind]
        row[i] = (row[i] + near) & 255


class Browser:
    """A browser of its own, with an empty profile that is deleted at the end."""

    def __init__(self, chromium: str, width: int = 1440, height: int = 1000) -> None:
        self._profile = tempfile.TemporaryDirectory(prefix="cachalot-chromium-", ignore_cleanup_errors=True)
        to_browser, self._writer = os.pipe()
        self._reader, from_browser = os.pipe()
        arguments = [
            chromium, "--headless=new", "--remote-debugging-pipe", "--no-sandbox", "--no-first-run", "--disable-extensions",
            "--disable-background-networking", "--disable-component-update", "--disable-sync", "--disable-dev-shm-usage",
            "--hide-scrollbars", "--mute-audio", f"--window-size={width},{height}", f"--user-data-dir={self._profile.name}",
            "about:blank",
        ]

        def give_pipes() -> None:  # Chromium reads from 3 and writes to 4
            held = os.dup(to_browser), os.dup(from_browser)
            os.dup2(held[0], 3)
            os.dup2(held[1], 4)

        # The pipes' own numbers must not be 3 and 4 in the child before they are copied there.
        self._process = subprocess.Popen(arguments, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, pass_fds=(3, 4, to_browser, from_browser),
                                         preexec_fn=give_pipes)
        os.close(to_browser)
        os.close(from_browser)
        self._buffer = b""
        self._number = 0
        self.events: list[dict[str, typing.Any]] = []

    def __enter__(self) -> Browser:
        return self

    def __exit__(self, *_: object) -> None:
        try:
            self.call("Browser.close", timeout=5)
        except (Failure, OSError):
            self._process.kill()
        self._process.wait()
        os.close(self._writer)
        os.close(self._reader)
        self._profile.cleanup()

    def call(self, method: str, parameters: dict[str, typing.Any] | None = None, session: str | None = None, timeout: float = 60) -> dict[str, typing.Any]:
        """Returns the result of a method of the protocol. Raises Failure for its error, and when it takes too long."""
        self._number += 1
        number = self._number
        message: dict[str, typing.Any] = {"id": number, "method": method, "params": parameters or {}}
        if session:
            message["sessionId"] = session
        os.write(self._writer, json.dumps(message).encode() + b"\0")
        deadline = time.monotonic() + timeout
        while True:
            answer = self._next(deadline, method)
            if answer.get("id") != number:
                self.events.append(answer)
            elif "error" in answer:
                raise Failure(f"{method}: {answer['error'].get('message')}")
            else:
                return typing.cast("dict[str, typing.Any]", answer["result"])

    def _next(self, deadline: float, what: str) -> dict[str, typing.Any]:
        while b"\0" not in self._buffer:
            left = deadline - time.monotonic()
            if left <= 0 or not select.select([self._reader], [], [], left)[0]:
                raise Failure(f"{what}: no answer in time")
            part = os.read(self._reader, 1 << 20)
            if not part:
                raise Failure(f"{what}: the browser has ended")
            self._buffer += part
        message, self._buffer = self._buffer.split(b"\0", 1)
        return typing.cast("dict[str, typing.Any]", json.loads(message))

    def open(self, path: pathlib.Path, dark: bool = False, width: int | None = None) -> Page:
        """Returns the page of a file, once its data is shown; `width` is that of its window."""
        target = self.call("Target.createTarget", {"url": "about:blank"})["targetId"]
        session = self.call("Target.attachToTarget", {"targetId": target, "flatten": True})["sessionId"]
        return Page(self, session, path, dark, width)


class Page:
    """A page that is open. Its requests and complaints are collected."""

    def __init__(self, browser: Browser, session: str, path: pathlib.Path, dark: bool, width: int | None = None) -> None:
        self._browser = browser
        self._session = session
        for domain in ("Page", "Runtime", "Network", "Log"):
            self.call(f"{domain}.enable")
        self.call("Emulation.setEmulatedMedia", {"features": [{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}]})
        if width is not None:
            self.resize(width, 1000)
        begin = time.monotonic()
        self.url = path.resolve().as_uri()
        self.call("Page.navigate", {"url": self.url})
        self.wait_for("document.documentElement?.dataset.ready !== undefined || document.getElementById('loading')?.textContent.includes('cannot')")
        self.load_seconds = time.monotonic() - begin
        if self.evaluate("document.documentElement.dataset.ready === undefined"):
            raise Failure("\n".join(self.complaints()) or "the page is not ready")

    def call(self, method: str, parameters: dict[str, typing.Any] | None = None) -> dict[str, typing.Any]:
        return self._browser.call(method, parameters, self._session)

    def evaluate(self, expression: str) -> typing.Any:
        """Returns the value of an expression of JavaScript, or of the promise that it is. Raises Failure for an exception."""
        answer = self.call("Runtime.evaluate", {"expression": expression, "returnByValue": True, "awaitPromise": True})
        if "exceptionDetails" in answer:
            raise Failure(f"{expression}: {answer['exceptionDetails'].get('exception', {}).get('description', answer['exceptionDetails'])}")
        return answer["result"].get("value")

    def wait_for(self, expression: str, timeout: float = 60) -> None:
        """Returns when the expression is true. Raises Failure when it does not become true."""
        deadline = time.monotonic() + timeout
        while not self.evaluate(expression):
            if time.monotonic() > deadline:
                raise Failure(f"never true: {expression}")
            time.sleep(0.03)

    def frames(self, count: int = 2) -> None:
        """Waits until as many frames are drawn."""
        self.evaluate("new Promise((done) => { let left = %d; const step = () => (left-- > 0 ? requestAnimationFrame(step) : done(true)); step(); })" % count)

    def mouse(self, kind: str, x: float, y: float, **more: typing.Any) -> None:
        self.call("Input.dispatchMouseEvent", {"type": kind, "x": x, "y": y, **more})

    def drag(self, begin: tuple[float, float], end: tuple[float, float], modifiers: int = 0) -> None:
        pressed: dict[str, typing.Any] = {"button": "left", "buttons": 1, "clickCount": 1, "modifiers": modifiers}
        self.mouse("mouseMoved", *begin, modifiers=modifiers)
        self.mouse("mousePressed", *begin, **pressed)
        for part in (0.3, 0.7, 1.0):
            self.mouse("mouseMoved", begin[0] + part * (end[0] - begin[0]), begin[1] + part * (end[1] - begin[1]), buttons=1, button="left", modifiers=modifiers)
        self.mouse("mouseReleased", *end, **{**pressed, "buttons": 0})
        self.frames()

    def click(self, x: float, y: float) -> None:
        self.drag((x, y), (x, y))

    def wheel(self, x: float, y: float, delta: float) -> None:
        self.mouse("mouseWheel", x, y, deltaX=0, deltaY=delta)
        self.frames()

    def key(self, key: str, shift: bool = False) -> None:
        text = {"text": key} if len(key) == 1 else {}
        for kind in ("keyDown", "keyUp"):
            self.call("Input.dispatchKeyEvent", {"type": kind, "key": key, "modifiers": 8 if shift else 0, **(text if kind == "keyDown" else {})})
        self.frames()

    def box(self, selector: str) -> dict[str, float]:
        """Returns x, y, width and height of an element in the window, which is scrolled to it."""
        place = f"document.querySelector({json.dumps(selector)})"
        self.evaluate(f"{place}.scrollIntoView({{block: 'center', behavior: 'instant'}})")
        self.frames()
        return typing.cast("dict[str, float]", self.evaluate(f"(() => {{ const b = {place}.getBoundingClientRect(); return {{x: b.x, y: b.y, width: b.width, height: b.height}}; }})()"))

    def press(self, selector: str) -> None:
        """Clicks at the middle of an element."""
        box = self.box(selector)
        self.click(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)

    def screenshot(self, path: pathlib.Path, whole: bool = False, clip: dict[str, float] | None = None) -> None:
        options: dict[str, typing.Any] = {"format": "png", "captureBeyondViewport": whole}
        if whole:
            size = self.call("Page.getLayoutMetrics")["cssContentSize"]
            options["clip"] = {"x": 0, "y": 0, "width": size["width"], "height": size["height"], "scale": 1}
        if clip:
            options["clip"] = {**clip, "scale": 1}
        path.write_bytes(base64.b64decode(self.call("Page.captureScreenshot", options)["data"]))

    def resize(self, width: int, height: int) -> None:
        """Gives the page a window of that size, in CSS pixels."""
        self.call("Emulation.setDeviceMetricsOverride", {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False})

    def picture(self, scale: float) -> Picture:
        """Returns the pixels of the window, scaled."""
        size = self.call("Page.getLayoutMetrics")["cssLayoutViewport"]
        clip = {"x": 0, "y": 0, "width": size["clientWidth"], "height": size["clientHeight"], "scale": scale}
        return decode_png(base64.b64decode(self.call("Page.captureScreenshot", {"format": "png", "clip": clip})["data"]))

    def pdf(self) -> bytes:
        return base64.b64decode(self.call("Page.printToPDF", {"printBackground": True})["data"])

    def _of(self, method: str) -> typing.Iterator[dict[str, typing.Any]]:
        self.evaluate("0")  # everything sent before has arrived
        return (event["params"] for event in self._browser.events if event.get("method") == method and event.get("sessionId") == self._session)

    def requests(self) -> list[str]:
        """Returns the addresses that were asked for, except the page's own."""
        return [event["request"]["url"] for event in self._of("Network.requestWillBeSent") if event["request"]["url"] != self.url]

    def complaints(self) -> list[str]:
        """Returns errors and warnings of the console, exceptions and refusals of the Content-Security-Policy."""
        thrown = [event["exceptionDetails"].get("exception", {}).get("description") or event["exceptionDetails"]["text"] for event in self._of("Runtime.exceptionThrown")]
        logged = [event["entry"]["text"] for event in self._of("Log.entryAdded") if event["entry"]["level"] in ("error", "warning")]
        said = [" ".join(str(argument.get("value", argument.get("description"))) for argument in event["args"])
                for event in self._of("Runtime.consoleAPICalled") if event["type"] in ("error", "warning", "assert")]
        return thrown + logged + said
