"""Damaged data and models of language models: prompts, texts, conversations, pairs, configurations and tokenizers."""

from __future__ import annotations

import contextlib
import json
import shutil
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

from tests.faults.campaign import tasks
from tests.faults.campaign.directories import change_json, other_kind
from tests.faults.campaign.sandbox import Sandbox, attack
from tests.faults.campaign.values import MOST, WORDS, damaged, scalar

FIT = ("--model", "model", "--out", "new", "--epochs", "1", "--quiet", "--max-tokens", "24", "--held-out", "0")
RUN = (
    "train", "ppo-clip", "Prompts", "--model", "model", "--reward", "score.py:vowels", "--out", "new", "--quiet",
    "--total-steps", "6", "--responses-per-batch", "2", "--responses-per-prompt", "2",
    "--minibatch-responses", "2", "--max-new-tokens", "2",
    "--epochs", "1", "--eval-episodes", "1", "--final-eval-episodes", "1",
)  # fmt: skip
SCORE = "def vowels(prompts, responses):\n    return [sum(c in 'aeiou' for c in text) for text in responses]\n"
TEMPLATE = (
    "{% for m in messages %}{{ m.role }} {{ m.content }}{{ eos_token }}{% endfor %}"
    "{% if add_generation_prompt %}assistant {% endif %}"
)
MESSAGES = [{"role": "user", "content": "hello"}, {"role": "assistant", "content": "an idea"}]
RECORDS: dict[str, list[dict[str, Any]]] = {
    "prompts": [{"prompt": "ab"}, {"question": "hello"}, {"prompt": MESSAGES[:1]}],
    "texts": [{"text": "an aeon"}, {"messages": MESSAGES}, {"prompt": "a", "completion": " b"}],
    "pairs": [
        {"prompt": "a", "chosen": " one", "rejected": " x", "margin": 0.5},
        {"chosen": MESSAGES, "rejected": [MESSAGES[0], {"role": "assistant", "content": "xyz"}]},
        {"prompt": MESSAGES[:1], "chosen": MESSAGES[1:], "rejected": [{"role": "assistant", "content": "q"}]},
    ],
}
LINES = (
    b"", b"\n", b"\xff\xfe", b"\x00\n", b"null\n", b"[]\n", b"{}\n", b"1e999\n", b'{"a":' * 3000, b"[" * 100_000,
    b'{"text": "\\ud800"}\n', b'{"prompt": "a", "prompt": 3}\n', b'{"text": NaN}\n', b'"text"\n', b"a\r\rb\n",
    b"\xef\xbb\xbf",
    b'{"text": "' + b"a" * 200_000 + b'"}\n', b'{"' + b"k" * 5000 + b'": 1}\n', b'{"text": ' + b"9" * 5000 + b"}\n",
)  # fmt: skip
TEMPLATES = (
    "{{ messages", "{% for m in messages %}", "{{ 1 / 0 }}", "{{ messages[99].content }}",
    "{{ raise_exception('no') }}", "", " ",
    "{{ ''.__class__.__mro__[1].__subclasses__() }}", "{{ cycler.__init__.__globals__.os.system('touch CANARY') }}",
    "{{ messages.append(1) }}", "{% include '/etc/passwd' %}", "{{ range(10**9) | list }}",
    "{{ 'a' * 10**10 }}", "\ud800",
    "{% macro a() %}{{ a() }}{% endmacro %}{{ a() }}", "{{ messages }}", "same", "{{ 10 ** 10 ** 10 }}",
    "{% for m in messages %}{% generation %}{{ m.content }}{% endgeneration %}{% endfor %}",
)  # fmt: skip


def one(rng: Random, sandbox: Sandbox) -> list[str]:
    """Damages a file of data, or a saved model, and uses it."""
    work = sandbox.work
    shutil.copytree(model(), work / "model")
    (work / "score.py").write_text(SCORE)
    kind = rng.choice(tuple(RECORDS))
    suffix = "jsonl" if kind == "pairs" else rng.choice(("jsonl", "jsonl", "txt"))
    path = work / f"{kind}.{rng.choice((suffix, suffix, 'parquet'))}"
    records = rng.sample(RECORDS[kind], rng.randint(1, 3))
    write(path, records)
    if rng.random() < 0.6:
        _damage_data(rng, path, sandbox)
    else:
        for _ in range(rng.choice((1, 1, 2))):
            _damage_model(rng, work / "model", sandbox)
    return attack(sandbox, _command(rng, kind, path.name))


def _command(rng: Random, kind: str, name: str) -> list[str]:
    if kind == "prompts":
        return [*RUN, "--prompts", name]
    if kind == "texts" and rng.random() < 0.3:
        return [*RUN, "--prompts", name, "--ptx", name, "--ptx-rows", "1"]
    return ["sft" if kind == "texts" else "reward-model", name, *FIT]


def write(path: Path, records: list[dict[str, Any]]) -> None:
    """Writes records in the format of the file's name."""
    if path.suffix == ".txt":
        path.write_text("an aeon\nout of\nan idea, a one\n")
    elif path.suffix == ".jsonl":
        path.write_text("".join(json.dumps(record) + "\n" for record in records))
    else:
        import pyarrow
        from pyarrow import parquet

        parquet.write_table(pyarrow.Table.from_pylist(records[:1]), path)


@cache
def model() -> Path:
    """A tiny language model with a chat template."""
    from tests import tiny

    tokenizer = tiny.make_tokenizer()
    tokenizer.chat_template = TEMPLATE
    return Path(tiny.save_lm(tasks.scratch() / "chat-model", tokenizer=tokenizer))


def _damage_data(rng: Random, path: Path, sandbox: Sandbox) -> None:
    kind = rng.randrange(8)
    if kind <= 2:
        path.write_bytes(damaged(rng, path.read_bytes()))
    elif kind <= 4 and path.suffix == ".jsonl":
        change_json(rng, path, str(sandbox.canary))
    elif kind <= 4 and path.suffix == ".parquet":
        _odd_table(rng, path, str(sandbox.canary))
    elif kind == 5:
        path.unlink()
        other_kind(rng, path, sandbox)
    elif kind == 6 and path.suffix != ".parquet":
        data = path.read_bytes()
        i = rng.choice((0, len(data)))
        path.write_bytes(data[:i] + rng.choice(LINES) + data[i:])
    elif path.suffix == ".txt":
        path.write_text("\n".join(rng.choice(WORDS) for _ in range(3)), errors="replace")
    else:
        path.rename(path.with_suffix(rng.choice((".txt", ".jsonl", ".parquet"))))


def _odd_table(rng: Random, path: Path, canary: str) -> None:
    import pyarrow
    from pyarrow import parquet

    odd = (1, None, b"\xff", [], {}, 1e308, "\x00", scalar(rng, canary), ["a", None])
    columns = rng.sample(("text", "prompt", "chosen", "rejected", "messages", "margin", ""), rng.randint(0, 4))
    with contextlib.suppress(pyarrow.ArrowException, UnicodeError):  # some tables cannot be written
        parquet.write_table(pyarrow.table({name: pyarrow.array([rng.choice(odd)]) for name in columns}), path)


def _damage_model(rng: Random, folder: Path, sandbox: Sandbox) -> None:
    files = sorted(p for p in folder.iterdir() if p.is_file() and not p.is_symlink() and p.stat().st_size < MOST)
    path = rng.choice(files)
    kind = rng.randrange(9)
    if kind == 0:
        (folder / "chat_template.jinja").unlink(missing_ok=True)
        text = rng.choice(TEMPLATES).replace("CANARY", str(sandbox.canary))
        (folder / "chat_template.jinja").write_text(text, errors="replace")
    elif kind <= 3 and path.suffix == ".json":
        change_json(rng, path, str(sandbox.canary))
    elif kind <= 6:
        path.write_bytes(damaged(rng, path.read_bytes()))
    elif kind == 7:
        path.unlink()
    else:
        path.unlink()
        other_kind(rng, path, sandbox)
