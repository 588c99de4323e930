"""Message lists through a tokenizer's chat template: as text, and as tokens with the ones to train on."""

from __future__ import annotations

import contextlib
import functools
import itertools
import re
import signal
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import jinja2

from rlzoo.core.system.errors import ConfigError, require
from rlzoo.lm.finetune.records import Messages

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

ROLES = ("system", "developer", "user", "assistant", "tool")
_EXAMPLE = '[{"role": "user", "content": "Hello"}]'
_SECONDS = 10
_BYTES = 2**30
"""Time and memory that a template may take, which needs milliseconds."""


class Row(NamedTuple):
    """A row of tokens for training."""

    ids: list[int]
    trains: list[bool]
    """Whether each token is to be predicted. The first one never is."""


def check_messages(name: str, value: Any) -> Messages:
    """`value`, if it is a list of messages; otherwise `ConfigError` says what is wrong with it."""
    require(isinstance(value, list) and len(value) > 0, f'"{name}" must be a string or messages, such as {_EXAMPLE}')
    value = [_with_content(message) for message in value]
    for number, message in enumerate(value, 1):
        at = f'"{name}", message {number}'
        fields = isinstance(message, dict) and {"role", "content"} <= message.keys()
        require(fields, f'{at}: not a message with "role" and "content", such as {_EXAMPLE[1:-1]}')
        role, content = message["role"], message["content"]
        require(role in ROLES, f"{at}: unknown role {role!r} (one of {', '.join(ROLES)})")
        require(isinstance(content, str), f'{at}: "content" must be a string')
        unicode(f"{at}: content", content)
    return [{key: x for key, x in message.items() if x is not None} for message in value]


def _with_content(message: Any) -> Any:
    """The message; a call of tools, whose content may be missing or None in the format of OpenAI, with an empty one."""
    if isinstance(message, dict) and message.get("tool_calls") and message.get("content") is None:
        return message | {"content": ""}
    return message


def unicode(name: str, text: str) -> None:
    """Raises `ConfigError` if a text cannot be encoded."""
    try:
        text.encode()
    except UnicodeEncodeError:
        raise ConfigError(f"{name} is not Unicode: half of a surrogate pair") from None


def prompt_text(messages: Messages, tokenizer: PreTrainedTokenizerBase) -> str:
    """Messages as the text of a prompt, to which the assistant replies.

    It has no beginning of sequence if the tokenizer adds one to every text.
    """
    text = _render(tokenizer, messages, add_generation_prompt=True)
    begin = tokenizer.bos_token
    added = begin is not None and tokenizer("a")["input_ids"][:1] == [tokenizer.bos_token_id]
    return text.removeprefix(str(begin)) if added else text


def asked(question: str, tokenizer: PreTrainedTokenizerBase) -> str:
    """The prompt of a user's message; of a tokenizer without a chat template, the question and a line feed."""
    if tokenizer.chat_template is None:
        return f"{question}\n"
    return prompt_text([{"role": "user", "content": question}], tokenizer)


def is_rendered(text: str, tokenizer: PreTrainedTokenizerBase) -> bool:
    """Whether the chat template has made the text of this prompt, told by its end."""
    if tokenizer.chat_template is None:
        return False
    for system in ([], [{"role": "system", "content": "-"}]):  # some templates require a system message
        with contextlib.suppress(ConfigError):
            whole = prompt_text([*system, {"role": "user", "content": "message"}], tokenizer)
            end = whole.rpartition("message")[2]
            return bool(end) and text.endswith(end)
    return False


def reply_text(prompt: Messages, reply: Messages, tokenizer: PreTrainedTokenizerBase) -> str:
    """The text that follows `prompt_text(prompt)` if the reply is `reply`, without the special token at its end."""
    before = _render(tokenizer, prompt, add_generation_prompt=True)
    whole = _render(tokenizer, prompt + reply)
    require(whole.startswith(before), "the chat template changes the prompt when a reply follows")
    text = whole[len(before) :]
    special = (str(x) for x in tokenizer.added_tokens_decoder.values() if x.special)  # such as Phi-3's <|end|>
    end = next((x for x in special if text.rstrip().endswith(x)), None)
    return text if end is None else text.rstrip().removesuffix(end)


def conversation_row(messages: Messages, tokenizer: PreTrainedTokenizerBase, first: int = 0) -> Row:
    """A conversation as tokens. The assistant's turns train: the `{% generation %}` blocks of the template if it has
    them; else all that follows the generation prompt of a turn, to the end of the turn.

    Turns before `first` do not train. A conversation that ends with an assistant's turn without end of sequence gets
    one.
    """
    turns = [k for k in range(first, len(messages)) if messages[k]["role"] == "assistant"]
    require(bool(turns), "no assistant turn to train on")
    template = str(tokenizer.get_chat_template()) if tokenizer.chat_template else ""
    marks = re.search(r"\{%-?\s*generation\b", template) is not None
    row = _marked_row(messages, tokenizer, first) if marks else _row_of_turns(messages, tokenizer, turns)
    require(any(row.trains), "the chat template marks no token of an assistant turn")
    return _ended(row, tokenizer) if turns[-1] == len(messages) - 1 else row


def completion_row(prompt: str, completion: str, tokenizer: PreTrainedTokenizerBase) -> Row:
    """Prompt and completion as tokens, with end of sequence. The completion and the end train."""
    from rlzoo.lm.model.pretrained import encode, encode_further  # imports PyTorch

    before, ids = encode(tokenizer, [prompt, prompt + completion])
    if ids[: len(before)] != before:  # a token spans the border, which it cannot in generation
        ids = before + encode_further(tokenizer, completion)
    require(len(ids) > len(before), "the completion has no tokens to this tokenizer")
    return _ended(Row(ids, [k >= len(before) for k in range(len(ids))]), tokenizer)


def _marked_row(messages: Messages, tokenizer: PreTrainedTokenizerBase, first: int) -> Row:
    tokens = _render(tokenizer, messages, {"return_dict": True, "return_assistant_tokens_mask": True})
    start = len(_tokens(tokenizer, _render(tokenizer, messages[:first]))) if first else 0
    return Row(tokens["input_ids"], [bool(x) and k >= start for k, x in enumerate(tokens["assistant_masks"])])


def _row_of_turns(messages: Messages, tokenizer: PreTrainedTokenizerBase, turns: Sequence[int]) -> Row:
    from rlzoo.lm.model.pretrained import encode_further  # imports PyTorch

    whole = _render(tokenizer, messages)
    texts = [x for k in turns for x in (_before(messages, k, tokenizer), _render(tokenizer, messages[: k + 1]))]
    ids, rows = _tokens(tokenizer, whole), [_tokens(tokenizer, text) for text in texts]
    counts = [len(row) for row in rows]
    if any(ids[: len(row)] != row for row in rows):
        for i, (text, longer) in enumerate(pairwise([*texts, whole])):
            fault = f"message {turns[i // 2] + 1}: the chat template does not show where this turn begins and ends"
            require(longer.startswith(text), f"{fault}; give it {{% generation %}} blocks")
        borders = [*map(len, texts), len(whole)]  # a token spans one of them, which it cannot in generation
        pieces = [rows[0], *(encode_further(tokenizer, whole[a:b]) for a, b in pairwise(borders))]
        ids = list(itertools.chain(*pieces))
        counts = list(itertools.accumulate(map(len, pieces)))
    trains = [False] * len(ids)
    for start, end in zip(counts[::2], counts[1::2], strict=False):
        while tokenizer.eos_token_id in ids[start:end] and ids[end - 1] != tokenizer.eos_token_id:
            end -= 1  # such as a line feed after the end of sequence
        trains[start:end] = [True] * (end - start)
    return Row(ids, trains)


def _before(messages: Messages, k: int, tokenizer: PreTrainedTokenizerBase) -> str:
    """What the template writes before the words of turn k; of the first message, up to its generation prompt."""
    if k:
        return str(_render(tokenizer, messages[:k], add_generation_prompt=True))
    turn = str(_render(tokenizer, messages[:1]))
    prompt = str(_render(tokenizer, messages[:1], add_generation_prompt=True)).removeprefix(turn)
    return turn[: turn.find(prompt) + len(prompt)] if prompt and prompt in turn else ""


def _ended(row: Row, tokenizer: PreTrainedTokenizerBase) -> Row:
    """The row with end of sequence, unless there is one in or after the last run of tokens that train."""
    end, start = tokenizer.eos_token_id, len(row.trains) - row.trains[::-1].index(True)
    while start > 0 and row.trains[start - 1]:
        start -= 1
    if end is None or end in row.ids[start:]:
        return row
    return Row([*row.ids, int(end)], [*row.trains, True])


def _tokens(tokenizer: PreTrainedTokenizerBase, text: str) -> list[int]:
    return list(tokenizer(text, add_special_tokens=False)["input_ids"])


def _render(
    tokenizer: PreTrainedTokenizerBase, messages: Messages, in_tokens: Mapping[str, Any] | None = None, **options: Any
) -> Any:
    """Messages through the template, as text; or `in_tokens`, with these options."""
    template = tokenizer.chat_template
    remedy = "use the tokenizer of a chat model (tokenizer=NAME), set tokenizer.chat_template, or give texts"
    require(template is not None, f"the tokenizer has no chat template, which message lists need: {remedy}")
    fault = "the chat template has a power, **, which could take for ever to compute: write its result in its place"
    require(not _has_power(str(template)), fault)
    try:
        with _limited():
            text = tokenizer.apply_chat_template(messages, tokenize=False, **options)
            return tokenizer.apply_chat_template(messages, **in_tokens, **options) if in_tokens else text
    except MemoryError:
        raise ConfigError(f"the chat template takes more than {_BYTES:,} bytes of memory") from None
    except Exception as error:  # a template is a program, and may raise anything
        raise ConfigError(f"the chat template refuses the messages: {' '.join(str(error).split())}") from None


@contextlib.contextmanager
def _limited() -> Iterator[None]:
    """Context that limits time and further memory, for a template: a program of whoever made the tokenizer.

    There are signals in the main thread of POSIX systems only, and a limit of memory on Linux.
    """
    if threading.current_thread() is not threading.main_thread() or not hasattr(signal, "setitimer"):
        yield
        return

    def stop(*_: Any) -> None:
        raise TimeoutError(f"it takes longer than {_SECONDS} seconds")

    handler = signal.signal(signal.SIGALRM, stop)
    timer = signal.setitimer(signal.ITIMER_REAL, _SECONDS, 1)  # again, since Jinja catches errors of constants
    try:
        with _memory_limited() if sys.platform == "linux" else contextlib.nullcontext():
            yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, *timer)
        signal.signal(signal.SIGALRM, handler)


@contextlib.contextmanager
def _memory_limited() -> Iterator[None]:
    """Context in which the process gets `_BYTES` more memory, or up to its own limit."""
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    most = pages * resource.getpagesize() + _BYTES
    resource.setrlimit(resource.RLIMIT_AS, (min([most, *(x for x in (soft, hard) if x >= 0)]), hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


@functools.cache
def _has_power(template: str) -> bool:
    """Whether a template has a power, which no signal interrupts: 10**10**10 takes hours.

    After a bracket or a comma, `**` passes a dict as arguments.
    """
    try:
        tokens = [(kind, x) for _, kind, x in jinja2.Environment().lex(template) if kind != "whitespace"]
        return any(x == ("operator", "**") and before[1] not in ("(", ",") for before, x in pairwise(tokens))
    except jinja2.TemplateSyntaxError:  # rendering says what is wrong
        return False
