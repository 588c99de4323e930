"""The site: updates stand beside their equations, and a browser without a network draws equations and finds words."""

import http.server
import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
import threading
import time
from functools import partial
from pathlib import Path

import pytest

pytest.importorskip("mkdocs", reason="the site needs the extra docs")
pytest.importorskip("latex2mathml", reason="the site needs the extra docs")

ROOT = Path(__file__).parents[2]
PAGES = sorted((ROOT / "docs").rglob("*.md"))
BESIDE = re.compile(r"<!-- beside: (\S+) (\S+) -->\n\n\| equation \| code \|\n\|---\|---\|\n((?:\|.*\n)+)")
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")

spec = importlib.util.spec_from_file_location("site_hooks", ROOT / "docs/hooks.py")
hooks = importlib.util.module_from_spec(spec)
spec.loader.exec_module(hooks)

LISTINGS = [(page.stem, *listing) for page in PAGES for listing in BESIDE.findall(page.read_text())]


@pytest.mark.parametrize(("page", "path", "name", "table"), LISTINGS, ids=[" ".join(x[:3]) for x in LISTINGS])
def test_each_line_beside_an_equation_is_in_its_function_in_order(page, path, name, table):
    source, _ = hooks.function(path, name)
    starts = hooks.places(source.splitlines(), re.findall(r"`([^`]+)` \|$", table, re.MULTILINE), name)
    assert len(starts) == table.count("\n")
    assert starts == sorted(set(starts))


def test_each_algorithm_has_its_update_beside_its_equations():
    updates = {page: (path, name) for page, path, name, _ in LISTINGS if name.endswith(".update")}
    assert sorted(updates) == ["npg", "ppo-clip", "ppo-penalty", "reinforce", "trpo"]
    for page, (path, _) in updates.items():
        assert path == f"rlzoo/algorithms/{page.replace('-', '_')}.py"


def test_a_line_that_is_not_in_the_source_stops_the_build():
    with pytest.raises(hooks.PluginError, match="has no line 'theta = 0'"):
        hooks.beside("rlzoo/algorithms/npg.py", "NPG.update", [("", "<code>theta = 0</code>")])
    with pytest.raises(hooks.PluginError, match=r"has no NPG\.step"):
        hooks.function("rlzoo/algorithms/npg.py", "NPG.step")


def test_source_and_equation_stand_in_one_row():
    content = hooks.beside(
        "rlzoo/optim/natural_gradient.py", "line_search", [("<math/>", "<code>if accept(candidate):</code>")]
    )
    rows = re.findall(
        r'<div class="equation">(.*?)</div><pre class="highlight"><code>(.*?)</code></pre>', content, re.DOTALL
    )
    assert [equation for equation, _ in rows] == ["", "<math/>"]
    assert "accept" in rows[1][1]
    assert "return" in rows[1][1]


def test_unknown_tex_stops_the_build():
    assert "<math" in hooks.mathml(r"\frac{1}{2}", "inline")
    with pytest.raises(hooks.PluginError, match=r"\\nosuch"):
        hooks.mathml(r"\nosuch{x}", "inline")


def test_notebook_as_markdown():
    cells = [
        {"cell_type": "markdown", "source": ["# Title\n", "[other](other.ipynb)"]},
        {"cell_type": "code", "source": ["print(1)"], "outputs": [{"output_type": "stream", "text": ["1\n"]}]},
    ]
    text = hooks.notebook({"cells": cells}, "some.ipynb")
    assert "[other](other.md)" in text
    assert "``` { .python }\nprint(1)\n```" in text
    assert "``` { .text .no-copy .output }\n1\n" in text


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """The built site."""
    out = tmp_path_factory.mktemp("site")
    environment = os.environ | {"NO_MKDOCS_2_WARNING": "1"}
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(out)]
    subprocess.run(command, cwd=ROOT, env=environment, check=True, timeout=240)
    return out


@pytest.mark.slow
def test_pages_load_nothing_from_elsewhere(site):
    for page in site.rglob("*.html"):
        text = page.read_text()
        loaded = re.findall(r'<(?:script|img|iframe|source)\b[^>]*\bsrc="(https?:[^"]*)"', text)
        loaded += re.findall(r'<link\b[^>]*\brel="(?:stylesheet|preconnect|preload)"[^>]*href="(https?:[^"]*)"', text)
        assert not loaded, page
    assert not re.search(r"url\([\"']?https?:", (site / "assets/extra.css").read_text())


@pytest.mark.slow
def test_no_equation_is_left_as_text(site):
    for page in site.rglob("*.html"):
        text = re.sub(r"<(pre|code|script|annotation)\b.*?</\1>", "", page.read_text(), flags=re.DOTALL)
        assert not re.search(r"\$\$|\\\(|\\\[|\\mathrm|\\frac", text), page
    for name in ("npg", "trpo", "ppo-clip", "ppo-penalty", "reinforce"):
        assert (site / f"algorithms/{name}.html").read_text().count('display="block"') >= 1


class Browser:
    """Chromium without a network, driven by its DevTools protocol over a pipe."""

    def __init__(self, profile):
        to_browser, self.commands = os.pipe()
        self.answers, from_browser = os.pipe()
        arguments = [
            CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", "--remote-debugging-pipe",
            f"--user-data-dir={profile}", "--host-resolver-rules=MAP * ~NOTFOUND , EXCLUDE 127.0.0.1",
        ]  # fmt: skip
        shell = f'exec "$0" "$@" 3<&{to_browser} 4>&{from_browser}'
        self.process = subprocess.Popen(
            ["bash", "-c", shell, *arguments], pass_fds=(to_browser, from_browser), stderr=subprocess.DEVNULL
        )
        os.close(to_browser)
        os.close(from_browser)
        self.count, self.buffer, self.events, self.session = 0, b"", [], None
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self.session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def call(self, method, **params):
        self.count += 1
        message = {"id": self.count, "method": method, "params": params}
        if self.session:
            message["sessionId"] = self.session
        os.write(self.commands, json.dumps(message).encode() + b"\0")
        while (answer := self.read()).get("id") != self.count:
            self.events.append(answer)
        assert "error" not in answer, answer
        return answer["result"]

    def read(self):
        while b"\0" not in self.buffer:
            part = os.read(self.answers, 1 << 16)
            assert part, "the browser ended"
            self.buffer += part
        message, _, self.buffer = self.buffer.partition(b"\0")
        return json.loads(message)

    def open(self, url):
        self.navigate("about:blank")
        self.navigate(url)

    def navigate(self, url):
        self.events.clear()
        self.call("Page.navigate", url=url)
        while not any(event.get("method") == "Page.loadEventFired" for event in self.events):
            self.events.append(self.read())

    def run(self, expression):
        """The value of a JavaScript expression."""
        result = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in result, result
        return result["result"].get("value")

    def until(self, expression, seconds=30):
        end = time.monotonic() + seconds
        while not (value := self.run(expression)):
            assert time.monotonic() < end, expression
            time.sleep(0.2)
        return value

    def complaints(self):
        """Errors of the page since it was opened, and addresses outside of this machine that it asked for."""
        complaints = []
        for event in self.events:
            method, params = event.get("method"), event.get("params", {})
            if method == "Runtime.exceptionThrown" or (
                method == "Runtime.consoleAPICalled" and params["type"] in ("error", "assert")
            ):
                complaints.append(params)
            if method == "Log.entryAdded" and params["entry"]["level"] == "error":
                complaints.append(params["entry"])
            if method == "Network.requestWillBeSent":
                url = params["request"]["url"]
                if not url.startswith(("http://127.0.0.1:", "file:", "data:", "blob:", "about:")):
                    complaints.append(url)
        return complaints

    def close(self):
        self.process.terminate()
        self.process.wait(20)
        os.close(self.commands)
        os.close(self.answers)


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    if CHROMIUM is None:
        pytest.skip("there is no Chromium on this machine")
    browser = Browser(tmp_path_factory.mktemp("profile"))
    yield browser
    browser.close()


class Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *arguments):
        pass


@pytest.fixture(scope="module", params=["server", "files"])
def address(request, site):
    """Where the site is: on a local server, and as files."""
    if request.param == "files":
        yield site.as_uri()
        return
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(site))) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


@pytest.mark.slow
def test_equations_are_drawn_without_a_network(browser, address):
    browser.open(f"{address}/algorithms/trpo.html")
    assert browser.until("document.fonts.ready.then(() => document.fonts.check('16px RlzooMath'))")
    sizes = browser.run(
        "[...document.querySelectorAll('math')].map(x => x.getBoundingClientRect()).map(x => [x.width, x.height])"
    )
    assert len(sizes) > 25
    assert all(width > 3 and height > 3 for width, height in sizes)
    fraction = browser.run("document.querySelector('math mfrac').getBoundingClientRect().height")
    assert fraction > 25  # a numerator over a denominator
    row = "document.querySelector('.beside > .equation:not(:empty)')"
    same_height = f"Math.abs({row}.getBoundingClientRect().top - {row}.nextElementSibling.getBoundingClientRect().top)"
    browser.call("Emulation.setDeviceMetricsOverride", width=1400, height=900, deviceScaleFactor=1, mobile=False)
    assert browser.run(same_height) < 2  # two columns
    browser.call("Emulation.setDeviceMetricsOverride", width=500, height=900, deviceScaleFactor=1, mobile=False)
    assert browser.run(same_height) > 10  # one above the other
    browser.call("Emulation.clearDeviceMetricsOverride")
    assert browser.complaints() == []


@pytest.mark.slow
def test_search_finds_a_word_without_a_network(browser, address):
    browser.open(f"{address}/index.html")
    browser.call("Emulation.setDeviceMetricsOverride", width=1400, height=900, deviceScaleFactor=1, mobile=False)
    browser.run("document.querySelector('[data-md-component=search-query]').focus()")
    browser.call("Input.insertText", text="conjugate gradien")
    browser.call("Input.dispatchKeyEvent", type="keyDown", text="t", key="t")
    browser.call("Input.dispatchKeyEvent", type="keyUp", key="t")
    links = browser.until("[...document.querySelectorAll('.md-search-result__link')].map(x => x.href).join(' ')")
    assert "algorithms/npg.html" in links
    assert browser.complaints() == []


@pytest.mark.slow
@pytest.mark.parametrize(
    "page", ["introduction", "from-trl", "notebooks/comparison", "benchmarks/results/classic/report"]
)
def test_pages_have_no_errors_and_their_pictures(browser, address, page):
    browser.open(f"{address}/{page}.html")
    assert browser.run("[...document.images].filter(x => !x.complete || !x.naturalWidth).map(x => x.src)") == []
    assert browser.complaints() == []
