"""Chromium without a window, driven by the DevTools protocol over two pipes.

https://chromedevtools.github.io/devtools-protocol/: messages are JSON, each ends with a NUL; Chromium reads from
descriptor 3 and writes to descriptor 4.
"""

import base64
import json
import os
import select
import shutil
import subprocess
import tempfile
import time

PATIENCE_S = 60


class Browser:
    """One browser with one page. Use it in a `with`."""

    def __init__(self):
        self.folder = tempfile.mkdtemp(prefix="bpfof-page-")
        to_read, self.to = os.pipe()
        self.from_, to_write = os.pipe()

        def place_pipes():
            # Move both away first: either may be 3 or 4 already.
            reads, writes = os.dup(to_read), os.dup(to_write)
            os.dup2(reads, 3)
            os.dup2(writes, 4)

        command = [
            "chromium", "--headless", "--remote-debugging-pipe", "--no-sandbox", "--disable-gpu",
            "--disable-dev-shm-usage", "--no-first-run", "--hide-scrollbars", "--force-device-scale-factor=1",
            f"--user-data-dir={self.folder}", "about:blank",
        ]
        self.process = subprocess.Popen(
            command, preexec_fn=place_pipes, close_fds=False,
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
            env={**os.environ, "HOME": self.folder},
        )
        os.close(to_read)
        os.close(to_write)
        self.last, self.read, self.events = 0, b"", []
        self.session = None
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self.session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log"):
            self.call(f"{domain}.enable")

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.kill()
        self.process.wait()
        shutil.rmtree(self.folder, ignore_errors=True)

    def message(self, deadline):
        while b"\0" not in self.read:
            left = deadline - time.monotonic()
            if left <= 0 or not select.select([self.from_], [], [], left)[0]:
                raise TimeoutError("Chromium does not answer")
            part = os.read(self.from_, 1 << 20)
            if not part:
                raise EOFError("Chromium has ended")
            self.read += part
        text, self.read = self.read.split(b"\0", 1)
        return json.loads(text)

    def call(self, method, **params):
        """Calls a method, and returns its result. Events that come meanwhile are kept."""
        self.last += 1
        request = {"id": self.last, "method": method, "params": params}
        if self.session:
            request["sessionId"] = self.session
        os.write(self.to, json.dumps(request).encode() + b"\0")
        deadline = time.monotonic() + PATIENCE_S
        while True:
            message = self.message(deadline)
            if message.get("id") != self.last:
                self.events.append(message)
                continue
            if "error" in message:
                raise RuntimeError(f"{method}: {message['error']}")
            return message["result"]

    def evaluate(self, expression):
        """The value of an expression of JavaScript; promises are awaited."""
        answer = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in answer:
            raise RuntimeError(f"{expression}: {answer['exceptionDetails']}")
        return answer["result"].get("value")

    def wait(self, expression):
        """Waits until an expression is true, and returns its value."""
        deadline = time.monotonic() + PATIENCE_S
        while time.monotonic() < deadline:
            value = self.evaluate(expression)
            if value:
                return value
            time.sleep(0.05)
        raise TimeoutError(f"never true: {expression}; the page has {self.evaluate('document.body.innerText')!r}")

    def open(self, url):
        self.call("Page.navigate", url=url)
        self.wait("document.readyState === 'complete'")

    def screen(self, width, height, scheme, is_phone=False):
        """The size of the window in pixels, and whether the user likes it light or dark."""
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1,
                  mobile=is_phone)
        self.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])

    def press(self, key, code=None, text=None):
        """Presses a key: Tab, Enter, or a letter."""
        known = {"Tab": 9, "Enter": 13}
        params = {"key": key, "code": code or key, "windowsVirtualKeyCode": known.get(key, ord(key[0].upper()))}
        text = text or {"Enter": "\r"}.get(key) or (key if len(key) == 1 else None)
        self.call("Input.dispatchKeyEvent", type="keyDown", **params, **({"text": text} if text else {}))
        self.call("Input.dispatchKeyEvent", type="keyUp", **params)

    def picture(self, path, whole=False):
        """Writes what can be seen, or the whole page, to a PNG file."""
        data = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=whole,
                         **({"clip": self.whole()} if whole else {}))["data"]
        with open(path, "wb") as file:
            file.write(base64.b64decode(data))

    def whole(self):
        size = self.call("Page.getLayoutMetrics")["cssContentSize"]
        return {"x": 0, "y": 0, "width": size["width"], "height": size["height"], "scale": 1}

    def problems(self):
        """Exceptions, errors of the console, and what the page's policy has kept from running."""
        bad = []
        for event in self.events:
            params = event.get("params", {})
            if event.get("method") == "Runtime.exceptionThrown":
                bad.append(params["exceptionDetails"])
            elif event.get("method") == "Log.entryAdded" and params["entry"]["level"] == "error":
                bad.append(params["entry"])
            elif event.get("method") == "Runtime.consoleAPICalled" and params["type"] == "error":
                bad.append(params)
        return bad
