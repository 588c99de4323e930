"""Pushes to a stand-in for the Hugging Face hub, and what it holds evaluated: odd answers, names and files."""

from __future__ import annotations

import contextlib
import hashlib
import json
import shutil
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from random import Random
from typing import Any
from unittest import mock

import huggingface_hub

from tests.faults.campaign.again import contents
from tests.faults.campaign.directories import control_run, language_run
from tests.faults.campaign.sandbox import Sandbox, watched
from tests.faults.campaign.values import damaged, scalar

STATUS = (200, 201, 204, 301, 304, 400, 401, 403, 404, 409, 413, 416, 429, 500, 502, 503)
BODIES = (
    b"", b"{}", b"[]", b"null", b"3", b'"x"', b"<html>\x1b[2J</html>", b"\xff\xfe", b"[" * 50_000,
    b'{"error": "no\\nway\\u001b[2J"}',
    b'{"url": "\\u001b]0;x\\u0007"}', b'{"url": null}', b'{"files": [{"path": "../x"}]}', b'{"commitUrl": 1}',
)  # fmt: skip
NAMES = ("", "name", "/", "a/b/c", "../x/y", "user/\x1b[2J", "user/na me", "ü/ü", "u" * 200 + "/x", "-/x")
COMMIT = "0" * 40


def one(rng: Random, sandbox: Sandbox) -> list[str]:
    """Pushes a run, or evaluates one from the hub."""
    run, language = sandbox.work / "run", rng.random() < 0.3
    shutil.copytree(language_run() if language else control_run(), run)
    before, name = contents(run), rng.choice(NAMES) if rng.random() < 0.5 else "user/name"
    name = scalar(rng, "x").replace("\x00", "") if rng.random() < 0.05 else name
    words = ["push", "run", name] if rng.random() < 0.6 else ["eval", f"hf:{name}", "--episodes", "1"]
    if words[0] == "push" and name.startswith((".", "/")):
        words[2] = "./new"
    hub = _Hub(rng, run, rng.choice((0, 0.05, 0.2, 0.5)))
    faults = [
        f"{fault}: {words}"[:600] for fault in watched(sandbox, lambda: _with(hub, words, sandbox.root / "cache"))
    ]
    if contents(run) != before:
        faults.append("the run has changed")
    if not hub.odd and name == "user/name" and words[0] == "push" and not hub.commits:
        faults.append("nothing was uploaded")
    return faults


def _with(hub: _Hub, words: list[str], cache: Path) -> int:
    """Runs a command that knows no other hub."""
    from rlzoo.cli import main

    server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(hub))
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
    constants, address = huggingface_hub.constants, f"http://127.0.0.1:{server.server_port}"
    with contextlib.ExitStack() as stack:
        stack.callback(server.server_close)
        stack.callback(server.shutdown)
        template = address + "/{repo_id}/resolve/{revision}/{filename}"
        values = {"ENDPOINT": address, "HF_HUB_CACHE": str(cache), "HF_HUB_OFFLINE": False,
                  "HUGGINGFACE_CO_URL_TEMPLATE": template, "HF_HUB_DISABLE_XET": True}  # fmt: skip
        for name, value in values.items():
            stack.enter_context(mock.patch.object(constants, name, value))
        stack.enter_context(mock.patch.dict("os.environ", HF_TOKEN="hf_x"))
        huggingface_hub.utils.disable_progress_bars()
        stack.callback(huggingface_hub.utils.enable_progress_bars)
        stack.enter_context(mock.patch("time.sleep"))  # between the library's tries
        return main(words)


class _Hub:
    """What the stand-in holds and answers."""

    def __init__(self, rng: Random, run: Path, share: float) -> None:
        self.rng, self.share, self.odd, self.commits = rng, share, 0, 0
        self.asked: list[str] = []  # paths of the files that the client is about to upload
        files = {
            name: data for name, data in contents(run).items() if name.endswith((".json", ".jsonl", "safetensors"))
        }
        self.files = dict(files)
        for name in rng.sample(sorted(files), rng.choice((0, 1))):
            self.files[name] = damaged(rng, files[name])
        if rng.random() < 0.2:
            self.odd = 1
            self.files[
                rng.choice(("../../outside/precious.txt", "/tmp/precious.json", "checkpoints/../../../x.json"))
            ] = b"x"

    def answer(self, method: str, path: str) -> tuple[int, bytes]:
        """Status and body. Status 0 ends the connection."""
        if self.rng.random() < self.share:
            self.odd += 1
            return self.rng.choice((0, *STATUS)), self.rng.choice(BODIES)
        name = next((name for name in self.files if path.endswith(f"/resolve/{COMMIT}/{name}")), None)
        if name is not None:
            return 200, self.files[name]
        answer: Any = {}
        if "/preupload/" in path:
            answer = {"files": [{"path": x, "uploadMode": "regular", "shouldIgnore": False} for x in self.asked]}
        elif "/tree/" in path:
            answer = [{"type": "file", "path": x, "size": len(d), "oid": "0"} for x, d in self.files.items()]
        elif "/commit/" in path:
            self.commits += 1
            answer = {"commitUrl": "http://x", "commitOid": COMMIT, "success": True}
        elif path.endswith("/repos/create"):
            answer = {"url": "http://127.0.0.1/user/name", "id": "user/name"}
        elif "/api/models/" in path and method == "GET":
            answer = {"id": "user/name", "sha": COMMIT, "siblings": [{"rfilename": x} for x in self.files], "tags": []}
        elif "/resolve/" in path:
            return 404, b"{}"
        return 200, json.dumps(answer).encode()


def _handler(hub: _Hub) -> Callable[..., BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def _serve(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            if "/preupload/" in self.path:
                with contextlib.suppress(ValueError):
                    hub.asked = [x["path"] for x in json.loads(body)["files"]]
            status, content = hub.answer(self.command, self.path)
            if status == 0:
                self.close_connection = True
                return
            self.send_response(status)
            self.send_header("X-Repo-Commit", COMMIT)
            self.send_header("ETag", f'"{hashlib.sha1(content).hexdigest()}"')
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(content)))
            if status == 301:
                self.send_header("Location", self.path)
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(content)

        do_GET = do_POST = do_HEAD = do_PUT = do_DELETE = _serve  # noqa: N815

        def log_message(self, *_: object) -> None:
            """Prints nothing."""

    return Handler
