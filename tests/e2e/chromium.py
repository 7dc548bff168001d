"""A headless Chromium, driven over its debugging protocol: opens a page, reads it, clicks, and sees its errors."""

from __future__ import annotations

import asyncio
import base64
import json
import shutil
from contextlib import asynccontextmanager

import aiohttp

PROGRAM = next(
    (found for name in ("chromium", "chromium-browser", "google-chrome") if (found := shutil.which(name))), None
)
PATIENCE_S = 60
OPTIONS = ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run")


class Page:
    """One page.

    Attributes:
        errors: What the browser complained about: exceptions, refused resources, violations of the page's policy.
    """

    def __init__(self, socket):
        self._socket, self._number, self._answers = socket, 0, {}
        self.errors = []
        self._reader = asyncio.create_task(self._read())

    async def _read(self):
        async for message in self._socket:
            event = json.loads(message.data)
            if "id" in event:
                self._answers.pop(event["id"]).set_result(event)
            elif event["method"] == "Runtime.exceptionThrown":
                self.errors.append(event["params"]["exceptionDetails"].get("exception", {}).get("description"))
            elif event["method"] == "Log.entryAdded" and event["params"]["entry"]["level"] == "error":
                self.errors.append(event["params"]["entry"]["text"])

    async def do(self, method, **params):
        self._number += 1
        answer = self._answers[self._number] = asyncio.get_running_loop().create_future()
        await self._socket.send_json({"id": self._number, "method": method, "params": params})
        event = await answer
        assert "error" not in event, event
        return event["result"]

    async def value(self, expression):
        """The value of an expression of JavaScript in the page."""
        answer = await self.do("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    async def until(self, expression):
        """Wait until it is true, and say what was waited for where it never is."""
        try:
            async with asyncio.timeout(PATIENCE_S):
                while not await self.value(expression):
                    await asyncio.sleep(0.05)
        except TimeoutError:
            shown = await self.value("document.body.innerText")
            raise AssertionError(f"never true: {expression}; the page shows {shown}") from None

    async def text(self, selector):
        return await self.value(f"document.querySelector({selector!r})?.textContent ?? ''")

    async def click(self, selector):
        await self.value(f"document.querySelector({selector!r}).click()")

    async def open(self, url):
        await self.do("Page.navigate", url=url)
        await self.until(f"location.href.startsWith({url!r}) && document.readyState === 'complete'")

    async def picture(self, path, width, height, scheme="light"):
        await self.do("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
        await self.do("Emulation.setDeviceMetricsOverride", **size)
        await asyncio.sleep(0.3)  # a frame in the new size
        path.write_bytes(base64.b64decode((await self.do("Page.captureScreenshot"))["data"]))

    async def close(self):
        await self._socket.close()
        await self._reader


@asynccontextmanager
async def chromium(folder):
    """Run it with a profile in `folder`; yields a page."""
    options = (*OPTIONS, "--remote-debugging-port=0", f"--user-data-dir={folder}", "about:blank")
    quiet = {"stdout": asyncio.subprocess.DEVNULL, "stderr": asyncio.subprocess.DEVNULL}
    child = await asyncio.create_subprocess_exec(PROGRAM, *options, **quiet)
    try:
        told = folder / "DevToolsActivePort"
        while not (told.exists() and told.read_text().count("\n")):
            assert child.returncode is None, "the browser ended"
            await asyncio.sleep(0.02)
        port = told.read_text().split()[0]
        async with aiohttp.ClientSession() as session:
            while True:
                async with session.get(f"http://127.0.0.1:{port}/json/list") as answer:
                    pages = [each for each in await answer.json() if each["type"] == "page"]
                if pages:
                    break
                await asyncio.sleep(0.02)
            async with session.ws_connect(pages[0]["webSocketDebuggerUrl"], max_msg_size=0) as socket:
                page = Page(socket)
                for domain in ("Page", "Runtime", "Log"):
                    await page.do(f"{domain}.enable")
                yield page
                await page.close()
    finally:
        if child.returncode is None:
            child.terminate()
        await child.wait()
