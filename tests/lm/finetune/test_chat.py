"""Message lists through chat templates: the text of a prompt and reply, and the tokens that train."""

import resource
import signal
import sys
import time

import pytest
from tiny import CHARACTERS, EOS, make_tokenizer
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers
from tokenizers.processors import TemplateProcessing
from transformers import PreTrainedTokenizerFast

from rlzoo.core.system.errors import ConfigError
from rlzoo.lm.finetune import chat
from rlzoo.lm.finetune.chat import completion_row, conversation_row, prompt_text, reply_text
from rlzoo.lm.finetune.data import Pair, read_examples, read_pairs, read_prompts
from rlzoo.lm.model.pretrained import encode

TALK = [
    {"role": "system", "content": "be"},
    {"role": "user", "content": "hi"},
    {"role": "assistant", "content": "yo"},
    {"role": "user", "content": "so"},
    {"role": "assistant", "content": "ok"},
]
TURNS = "{% for m in messages %}{{ m.role[0] + m.content + '<eos> ' }}{% endfor %}"
PLAIN = TURNS + "{% if add_generation_prompt %}a{% endif %}"
MARKED = (
    "{% for m in messages %}{{ m.role[0] }}{% if m.role == 'assistant' %}{% generation %}{{ m.content + '<eos>' }}"
    "{% endgeneration %}{% else %}{{ m.content + '<eos>' }}{% endif %} {% endfor %}"
    "{% if add_generation_prompt %}a{% endif %}"
)
NO_END = "{% for m in messages %}{{ m.role[0] + m.content }}{% endfor %}{% if add_generation_prompt %}a{% endif %}"


def tokenizer(template=PLAIN):
    made = make_tokenizer()
    made.chat_template = template
    return made


def text_of(row):
    """The tokens that train, as text, with "|" for the end and "_" for those that do not."""
    letters = [*CHARACTERS, "|", "#"]
    return "".join(letters[i] if trains else "_" for i, trains in zip(*row, strict=True))


@pytest.mark.parametrize("template", [PLAIN, MARKED])
def test_assistant_turns_train_with_their_end(template):
    row = conversation_row(TALK, tokenizer(template))
    assert text_of(row) == "__________" + "_yo|_" + "_____" + "_ok|_"
    assert row.ids == tokenizer()("sbe<eos> uhi<eos> ayo<eos> uso<eos> aok<eos> ")["input_ids"]


@pytest.mark.parametrize("template", [PLAIN, MARKED])
def test_header_of_an_assistant_that_begins_does_not_train(template):
    assert text_of(conversation_row(TALK[2:], tokenizer(template))) == "_yo|_" + "_____" + "_ok|_"


@pytest.mark.parametrize("template", [PLAIN, MARKED])
def test_turns_before_the_completion_do_not_train(template):
    (example,) = read_examples([{"prompt": TALK[:4], "completion": TALK[4:]}])
    assert text_of(example.row(tokenizer(template))) == "_" * 20 + "_ok|_"


def test_conversation_without_end_of_sequence_gets_one_after_the_last_turn():
    assert text_of(conversation_row(TALK, tokenizer(NO_END))) == "______" + "_yo" + "___" + "_ok|"
    assert text_of(conversation_row(TALK[:4], tokenizer(NO_END))) == "______" + "_yo" + "___"


def test_reply_that_begins_with_a_line_break_trains_as_it_is_generated():
    """Llama 3 splits a text so that line breaks are one token, which would span ChatML's header and the reply."""
    letters = {letter: i for i, letter in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    words = Tokenizer(models.BPE({**letters, "ĊĊ": len(letters)}, [("Ċ", "Ċ")]))
    split = pre_tokenizers.Split(Regex(r"\p{L}+| ?[^\s\p{L}]+[\r\n]*|\s*[\r\n]+|\s+"), "isolated")
    words.pre_tokenizer = pre_tokenizers.Sequence([split, pre_tokenizers.ByteLevel(False, use_regex=False)])
    words.decoder = decoders.ByteLevel()
    fast = PreTrainedTokenizerFast(
        tokenizer_object=words, eos_token="<|im_end|>", additional_special_tokens=["<|im_start|>"]
    )
    fast.chat_template = (
        "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>\n' }}{% endfor %}"
        "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
    )
    replies = ["\nyo", "ok", "\n\nso\n"]
    turns = [[{"role": "user", "content": "\nhi"}, {"role": "assistant", "content": reply}] for reply in replies]
    talk = [message for turn in turns for message in turn]
    row = conversation_row(talk, fast)
    assert fast.decode(row.ids) == fast.apply_chat_template(talk, tokenize=False)
    trained = [i for i, trains in zip(*row, strict=True) if trains]
    assert fast.decode(trained) == "".join(f"{reply}<|im_end|>" for reply in replies)
    (prompt,) = encode(fast, [prompt_text(talk[:1], fast)])
    assert row.ids[: len(prompt)] == prompt
    assert row.trains[: len(prompt) + 1] == [False] * len(prompt) + [True]


def test_template_that_does_not_show_where_a_turn_begins():
    backwards = "{% for m in messages|reverse %}{{ m.content }}{% endfor %}"
    with pytest.raises(ConfigError, match="message 3: the chat template does not show where this turn begins and ends"):
        conversation_row(TALK, tokenizer(backwards))


def test_faults_name_the_place():
    (example,) = read_examples([{"messages": TALK}])
    with pytest.raises(ConfigError, match="texts, entry 1: the tokenizer has no chat template, which message lists"):
        example.row(make_tokenizer())
    with pytest.raises(
        ConfigError, match="prompts, entry 1: the chat template refuses the messages: no system"
    ) as caught:
        read_prompts([TALK], tokenizer("{{ raise_exception('no\nsystem') }}"))
    assert "\n" not in str(caught.value)


def test_prompts_are_rendered_up_to_the_assistant():
    assert read_prompts([TALK[:2], "plain"], tokenizer()) == ["sbe<eos> uhi<eos> a", "plain"]


@pytest.mark.parametrize("call", [{"content": None}, {}, {"content": "wait"}])
def test_call_of_a_tool_may_have_no_content(call):
    """As in the format of OpenAI."""
    template = PLAIN.replace("m.content", "m.content + (m.tool_calls[0].name if m.tool_calls else '')")
    calls = {"role": "assistant", **call, "tool_calls": [{"name": "sum"}]}
    (example,) = read_examples([{"messages": [TALK[1], calls, {"role": "tool", "content": "five"}, TALK[4]]}])
    said = (call.get("content") or "") + "sum|"
    silent = "_" * len("uhi| a"), "_" * len(" tfive| a")
    assert text_of(example.row(tokenizer(template))) == silent[0] + said + silent[1] + "ok|_"
    with pytest.raises(ConfigError, match=r'message 1: "content" must be a string'):
        read_prompts([[{"role": "assistant", "content": None, "tool_calls": []}]], tokenizer(template))


def test_beginning_of_sequence_is_not_doubled():
    class Begins:
        bos_token, bos_token_id, chat_template = "<s>", 7, "x"

        def __init__(self, adds):
            self.adds = adds

        def __call__(self, text):
            return {"input_ids": [7, 1] if self.adds else [1]}

        def apply_chat_template(self, messages, **how):
            return "<s>hi"

    assert prompt_text(TALK[:1], Begins(True)) == "hi"
    assert prompt_text(TALK[:1], Begins(False)) == "<s>hi"


@pytest.mark.parametrize("begin", ["", "{{ bos_token }}"])
def test_prompts_begin_in_training_as_in_fine_tuning(begin):
    """As in `apply_chat_template`, which adds no beginning of sequence that the template does not write."""
    words = tokenizer(begin + PLAIN)
    words.bos_token = "!"
    special = [("!", words.bos_token_id)]
    words.backend_tokenizer.post_processor = TemplateProcessing(single="! $A", special_tokens=special)
    expected = words.apply_chat_template(TALK[:2], add_generation_prompt=True)["input_ids"]
    assert (expected[0] == words.bos_token_id) is bool(begin)
    prompt = prompt_text(TALK[:2], words)
    assert encode(words, [prompt]) == [expected]
    for row in (conversation_row(TALK, words), completion_row(prompt, "yo", words)):
        assert row.ids[: len(expected)] == expected


def test_reply_is_what_follows_the_prompt_without_its_end():
    assert reply_text(TALK[:2], TALK[2:3], tokenizer()) == "yo"
    assert reply_text(TALK[:2], TALK[2:3], tokenizer(NO_END)) == "yo"
    assert reply_text(TALK[:2], TALK[2:], tokenizer()) == "yo<eos> uso<eos> aok"
    unnamed = tokenizer(PLAIN.replace("<eos> ", "<|end|> "))
    assert reply_text(TALK[:2], TALK[2:3], unnamed) == "yo<|end|> "
    unnamed.backend_tokenizer.add_special_tokens([AddedToken("<|end|>", special=True)])
    assert reply_text(TALK[:2], TALK[2:3], unnamed) == "yo"
    assert reply_text(TALK[:2], [{"role": "assistant", "content": ""}], tokenizer()) == ""
    with pytest.raises(ConfigError, match="changes the prompt when a reply follows"):
        reply_text(TALK[:2], TALK[2:3], tokenizer("{{ messages|length }}"))


def test_pairs_of_messages():
    other = [{"role": "assistant", "content": "no"}]
    expected = [Pair("sbe<eos> uhi<eos> a", "yo", "no", 0.0)]
    explicit = {"prompt": TALK[:2], "chosen": TALK[2:3], "rejected": other}
    implicit = {"chosen": TALK[:3], "rejected": TALK[:2] + other}
    assert read_pairs([explicit], tokenizer()) == read_pairs([implicit], tokenizer()) == expected


def test_completion_trains_and_its_prompt_does_not():
    row = completion_row("ab", "cd", make_tokenizer())
    assert text_of(row) == "__cd|"
    assert row.ids == [0, 1, 2, 3, EOS]


def test_end_of_sequence_at_the_end_of_a_prompt_is_no_part_of_the_completion():
    row = completion_row("ab<eos>", "cd", make_tokenizer())
    assert text_of(row) == "___cd|"
    assert row.ids == [0, 1, EOS, 2, 3, EOS]


def test_completion_without_tokens_is_refused():
    tokenizer = make_tokenizer()
    tokenizer.backend_tokenizer.normalizer = normalizers.Replace("!", "")
    with pytest.raises(ConfigError, match="the completion has no tokens to this tokenizer"):
        completion_row("ab", "!", tokenizer)


def test_token_that_would_span_prompt_and_completion_is_cut():
    class Pairs:
        """Two letters a token, from the beginning."""

        eos_token_id, chat_template, bos_token = 99, None, None

        def __call__(self, texts, add_special_tokens=True):
            rows = [[x[k : k + 2] for k in range(0, len(x), 2)] for x in ([texts] if isinstance(texts, str) else texts)]
            return {"input_ids": rows[0] if isinstance(texts, str) else rows}

    assert completion_row("abc", "de", Pairs()) == (["ab", "c", "de", 99], [False, False, True, True])


ASKED = [{"role": "user", "content": "a"}]


def test_power_that_could_take_for_ever_is_refused():
    with pytest.raises(ConfigError, match=r"the chat template has a power, \*\*"):
        prompt_text(ASKED, tokenizer("{% set n = 9**9 %}{{ messages }}"))
    passed = "** {{ dict(**messages[0])['content'] }}{{ dict(a=1, **messages[0])['role'] }}"
    assert prompt_text(ASKED[:1], tokenizer(passed)) == f"** {ASKED[0]['content']}{ASKED[0]['role']}"


def test_template_may_multiply():
    assert prompt_text(ASKED, tokenizer("{{ '-' * 3 ~ 2 * messages|length }}")) == "---2"


LINUX = pytest.mark.skipif(sys.platform != "linux", reason="there is no limit of memory")
GREEDY = ["{{ 'a' * 99999999999 }}", "{{ '{:>99999999999}'.format(1) }}", "{{ '%99999999999d' % 1 }}"]


@LINUX
@pytest.mark.parametrize("template", [*GREEDY, "{{ 'a' | center(3000000000) }}"])
def test_template_that_takes_all_memory_is_stopped(template):
    before = resource.getrlimit(resource.RLIMIT_AS)
    with pytest.raises(ConfigError, match=r"^the chat template takes more than 1,073,741,824 bytes of memory$"):
        prompt_text(ASKED, tokenizer(template))
    assert resource.getrlimit(resource.RLIMIT_AS) == before


NESTED = "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}"


def test_template_that_takes_for_ever_is_stopped(monkeypatch):
    monkeypatch.setattr(chat, "_SECONDS", 0.2)
    handler, (left, _), start = signal.getsignal(signal.SIGALRM), signal.getitimer(signal.ITIMER_REAL), time.monotonic()
    with pytest.raises(ConfigError, match=r"the chat template refuses the messages: it takes longer than 0.2 seconds"):
        prompt_text(ASKED, tokenizer(NESTED))
    assert time.monotonic() - start < 2
    assert signal.getsignal(signal.SIGALRM) == handler
    assert signal.getitimer(signal.ITIMER_REAL)[0] == pytest.approx(left, abs=3)


def test_template_that_takes_for_ever_the_second_time_is_stopped(monkeypatch):
    monkeypatch.setattr(chat, "_SECONDS", 0.2)
    marked = tokenizer(MARKED)
    monkeypatch.setattr(marked, "apply_chat_template", lambda *_, tokenize=True, **how: tokenize and time.sleep(3))
    with pytest.raises(ConfigError, match=r"it takes longer than 0.2 seconds"):
        conversation_row(TALK, marked)
