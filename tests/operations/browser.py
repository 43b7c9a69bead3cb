"""The real Chromium, steered by chromedriver's HTTP protocol (W3C WebDriver)."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import unittest
import urllib.error
import urllib.request
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "support"))
from waiting import until  # noqa: E402

ELEMENT = "element-6066-11e4-a52e-4f735466cecf"
KEYS = {"Tab": "\ue004", "Enter": "\ue007", "Control": "\ue009", "Escape": "\ue00c", "PageUp": "\ue00e",
        "PageDown": "\ue00f", "End": "\ue010", "Home": "\ue011", "ArrowLeft": "\ue012", "ArrowUp": "\ue013",
        "ArrowRight": "\ue014", "ArrowDown": "\ue015", "Shift": "\ue008"}

# For every text that is seen: its colour against what is painted behind it.
CONTRAST = """
const parse = (text) => {
  const [r, g, b, a = 1] = text.match(/[\\d.]+/g).map(Number);
  return {r, g, b, a};
};
const over = (top, ground) => ({r: top.r * top.a + ground.r * (1 - top.a), g: top.g * top.a + ground.g * (1 - top.a),
  b: top.b * top.a + ground.b * (1 - top.a), a: 1});
const luminance = ({r, g, b}) => {
  const linear = (v) => (v /= 255) <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4;
  return 0.2126 * linear(r) + 0.7152 * linear(g) + 0.0722 * linear(b);
};
const ground_of = (element) => {
  const chain = [];
  for (let at = element; at; at = at.parentElement) chain.unshift(parse(getComputedStyle(at).backgroundColor));
  return chain.reduce((ground, colour) => over(colour, ground), {r: 255, g: 255, b: 255, a: 1});
};
const found = [];
const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
for (let text = walker.nextNode(); text; text = walker.nextNode()) {
  const element = text.parentElement;
  if (!text.data.trim() || !element.checkVisibility()) continue;
  if (["SCRIPT", "STYLE", "NOSCRIPT"].includes(element.tagName)) continue;
  const ground = ground_of(element);
  const ink = over(parse(getComputedStyle(element).color), ground);
  const [light, dark] = [luminance(ink), luminance(ground)].sort((a, b) => b - a);
  found.push([(light + 0.05) / (dark + 0.05), element.tagName + " " + text.data.trim().slice(0, 40)]);
}
return found;
"""


def needed():
    """The programs; a test that lacks them skips."""
    driver = shutil.which("chromedriver")
    chromium = shutil.which("chromium") or shutil.which("google-chrome")
    if not driver or not chromium:
        raise unittest.SkipTest("chromedriver or chromium is not installed (Debian: chromium chromium-driver)")
    return driver, chromium


class Refused(Exception):
    """An error of the driver's."""


class Browser:
    """One window, without a screen. Ends with `close`."""

    def __init__(self):
        driver, chromium = needed()
        self.folder = tempfile.TemporaryDirectory(prefix="torchup_browser_", ignore_cleanup_errors=True)
        environment = os.environ | {"TMPDIR": self.folder.name, "HOME": self.folder.name}
        self.process = subprocess.Popen([driver, "--port=0"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
                                        text=True, env=environment, start_new_session=True)
        try:
            self.port = next(int(found[1]) for line in self.process.stdout
                             if (found := re.search(r"started successfully on port (\d+)", line)))
            options = {"binary": chromium, "args": ["--headless=new", "--no-sandbox", "--disable-gpu", "--no-first-run",
                                                    "--disable-dev-shm-usage", "--window-size=1400,1000"]}
            answer = self.call("POST", "/session", {"capabilities": {"alwaysMatch": {
                "goog:chromeOptions": options, "goog:loggingPrefs": {"browser": "ALL", "performance": "ALL"}}}})
            self.session = f"/session/{answer['sessionId']}"
        except BaseException:
            self.end()
            raise

    def call(self, method, path, body=None, limit_s=100):
        request = urllib.request.Request(f"http://127.0.0.1:{self.port}{path}", method=method,
                                         data=None if body is None else json.dumps(body).encode(),
                                         headers={"Content-Type": "application/json"})
        try:
            with urllib.request.urlopen(request, timeout=limit_s) as answer:
                return json.load(answer)["value"]
        except urllib.error.HTTPError as error:
            raise Refused(json.load(error)["value"]["message"]) from None

    def ask(self, method, path, body=None):
        return self.call(method, self.session + path, body)

    def open(self, url):
        self.ask("POST", "/url", {"url": url})

    def run(self, script, *arguments):
        return self.ask("POST", "/execute/sync", {"script": script, "args": list(arguments)})

    def find(self, selector):
        return self.ask("POST", "/element", {"using": "css selector", "value": selector})[ELEMENT]

    def count(self, selector):
        return self.run("return document.querySelectorAll(arguments[0]).length", selector)

    def text(self, selector):
        return self.run("return document.querySelector(arguments[0])?.textContent ?? null", selector)

    def texts(self, selector):
        return self.run("return [...document.querySelectorAll(arguments[0])].map((each) => each.textContent)", selector)

    def attribute(self, selector, name):
        script = "return document.querySelector(arguments[0])?.getAttribute(arguments[1]) ?? null"
        return self.run(script, selector, name)

    def attributes(self, selector, name):
        script = "return [...document.querySelectorAll(arguments[0])].map((each) => each.getAttribute(arguments[1]))"
        return self.run(script, selector, name)

    def shown(self, selector):
        return self.run("return Boolean(document.querySelector(arguments[0])?.checkVisibility())", selector)

    def click(self, selector):
        self.ask("POST", f"/element/{self.find(selector)}/click", {})

    def role(self, selector):
        return self.ask("GET", f"/element/{self.find(selector)}/computedrole")

    def label(self, selector):
        return self.ask("GET", f"/element/{self.find(selector)}/computedlabel")

    def press(self, *names):
        """Keys down in this order, up in the other, by the browser's own input."""
        keys = [KEYS.get(name, name) for name in names]
        actions = [{"type": "keyDown", "value": key} for key in keys]
        actions += [{"type": "keyUp", "value": key} for key in keys[::-1]]
        self.ask("POST", "/actions", {"actions": [{"type": "key", "id": "keyboard", "actions": actions}]})

    def write(self, selector, text):
        self.ask("POST", f"/element/{self.find(selector)}/value", {"text": text})

    def focused(self, name):
        return self.run("return document.activeElement?.getAttribute(arguments[0]) ?? null", name)

    def colours(self, scheme):
        self.command("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])

    def command(self, name, **parameters):
        """One of the browser's own commands (Chrome DevTools Protocol)."""
        return self.ask("POST", "/goog/cdp/execute", {"cmd": name, "params": parameters})

    def contrasts(self):
        """(ratio, element and text) of every text that is seen."""
        return [tuple(each) for each in self.run(CONTRAST)]

    def complaints(self):
        """What the console has said since it was last asked: errors, refused by policy, thrown."""
        return [each["message"] for each in self.ask("POST", "/se/log", {"type": "browser"})
                if each["level"] in ("SEVERE", "WARNING")]

    def requested(self):
        """The addresses that were asked for since this was last asked."""
        urls = []
        for entry in self.ask("POST", "/se/log", {"type": "performance"}):
            message = json.loads(entry["message"])["message"]
            if message["method"] == "Network.requestWillBeSent":
                urls.append(message["params"]["request"]["url"])
        return urls

    def until(self, script, *arguments):
        """The first true value of the script's."""
        return until(lambda: self.run(script, *arguments), script)

    def until_text(self, selector, part):
        return until(lambda: part in (self.text(selector) or ""), f"'{part}' in {selector}")

    def close(self):
        try:
            self.ask("DELETE", "")
        except (OSError, Refused):
            pass
        self.end()

    def end(self):
        try:
            os.killpg(self.process.pid, signal.SIGTERM)
            self.process.wait(10)
        except (ProcessLookupError, subprocess.TimeoutExpired):
            pass
        try:
            os.killpg(self.process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        self.process.wait()
        self.process.stdout.close()
        end = time.monotonic() + 5  # its children, which write there until they are gone
        while time.monotonic() < end:
            try:
                os.killpg(self.process.pid, 0)
            except ProcessLookupError:
                break
            time.sleep(0.02)
        self.folder.cleanup()
