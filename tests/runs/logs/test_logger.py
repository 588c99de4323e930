"""Metrics files, TensorBoard and displays."""

import errno
import html
import io
import itertools
import json
import math
import re
import shutil
import subprocess
import sys
import time

import numpy as np
import pytest
import short_runs
import torch
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.plugin_util import markdown_to_safe_html

from rlzoo.core.env import Episode
from rlzoo.core.evaluation import Evaluation
from rlzoo.core.system.errors import ConfigError
from rlzoo.runs.logs.display import Display, LineDisplay, LiveDisplay, make_display
from rlzoo.runs.logs.logger import Logger
from rlzoo.runs.loop import Iteration
from rlzoo.runs.train import resume

made = []


def make_logger(folder, total_steps=1000, display=None, **kwargs):
    made.append(Logger(folder, total_steps, {"gamma": 0.99, "env": "CartPole-v1"}, display or Display(), **kwargs))
    return made[-1]


@pytest.fixture(autouse=True)
def closed():
    yield
    while made:
        made.pop().close()


def record(logger, step, seconds, metrics, episodes, environment=()):
    return logger.iteration(Iteration(step, metrics, episodes, frozenset(environment), seconds))


def read(folder, name="metrics"):
    return [json.loads(line) for line in (folder / f"{name}.jsonl").read_text().splitlines()]


def tensorboard(folder):
    accumulator = EventAccumulator(str(folder))
    accumulator.Reload()
    return accumulator


def test_record_of_an_iteration(tmp_path):
    logger = make_logger(tmp_path)
    record(logger, 100, 0.5, {"kl": 0.123456789, "gradient_steps": 160}, [Episode(10.0, 10), Episode(20.0, 12)])
    record(logger, 250, 0.25, {"kl": math.nan, "explained_variance": -math.inf}, [])
    logger.flush()
    assert read(tmp_path) == [
        {
            "step": 100,
            "seconds": 0.5,
            "steps_per_second": 200.0,
            "mean_return": 15.0,
            "mean_length": 11.0,
            "kl": 0.123457,
            "gradient_steps": 160,
        },
        {
            "step": 250,
            "seconds": 0.75,
            "steps_per_second": 600.0,
            "mean_return": 15.0,
            "mean_length": 11.0,
            "kl": None,
            "explained_variance": None,
        },
    ]


def test_metric_of_few_iterations_has_its_points(tmp_path):
    logger = make_logger(tmp_path, total_steps=4000)
    for step in range(1, 2001):
        record(logger, step, 1.0, {"probe": step} if step % 250 == 1 else {}, [Episode(1.0, 1)])
    logger.flush()
    written = tensorboard(tmp_path)
    assert [x.step for x in written.Scalars("train/probe")] == [251, 501, 751, 1001, 1251, 1501, 1751]
    assert [x.step for x in written.Scalars("episode/return")] == [*range(4, 2001, 4)]


def test_whole_numbers_of_any_kind_are_kept(tmp_path):
    metrics = record(make_logger(tmp_path), 1, 1.0, {"a": 123456789, "b": np.int64(123456789), "c": True}, [])
    assert json.dumps([metrics["a"], metrics["b"], metrics["c"]]) == "[123456789, 123456789, 1]"


def test_mean_return_is_over_the_last_100_episodes(tmp_path):
    logger = make_logger(tmp_path)
    assert record(logger, 10, 1.0, {}, [])["mean_return"] is None
    assert record(logger, 20, 1.0, {}, [Episode(float(i), 1) for i in range(150)])["mean_return"] == 99.5


def test_state_goes_on_where_it_was(tmp_path):
    logger = make_logger(tmp_path)
    record(logger, 10, 1.5, {}, [Episode(float(i), i) for i in range(120)])
    other = make_logger(tmp_path, resumed_at=10)
    other.load_state_dict(json.loads(json.dumps(logger.state_dict())))
    more = 20, 0.5, {}, [Episode(7.0, 3)]
    assert record(other, *more) == record(logger, *more)


def test_evaluation_is_written(tmp_path):
    logger = make_logger(tmp_path)
    evaluation = Evaluation(np.array([1.0, 3.0]), np.array([5, 7]), deterministic=True, seed=4)
    logger.evaluation(100, 0.25, evaluation, final=True)
    logger.flush()
    (line,) = read(tmp_path, "evaluations")
    assert line["step"] == 100
    assert line["final"] is True
    assert (line["mean_return"], line["std_return"], line["seed"]) == (2.0, 1.0, 4)
    assert line["seconds"] == 0.25
    assert tensorboard(tmp_path).Scalars("eval/return_deterministic")[0].value == 2.0


SAMPLES = [
    {
        "prompt": "Say | <b>hi</b>",
        "response": "*hi*\n\n# there &amp; [you](x) `a` __b__",
        "score": 0.123456789,
        "ended": True,
    },
    {"prompt": "", "response": "<|end|>\\| \x00\ud800", "score": 2.0, "ended": False},
]


def test_evaluation_of_a_language_model_is_written(tmp_path):
    logger = make_logger(tmp_path)
    further = {"kl_reference": 1.5, "score": 2, "exact": True, "of": "x", "samples": SAMPLES}
    for deterministic in (False, True):
        evaluation = Evaluation(np.array([0.25]), np.array([5]), deterministic, 4, further)
        logger.evaluation(100, 0.25, evaluation)
    logger.flush()
    line, _ = read(tmp_path, "evaluations")
    assert line["samples"] == SAMPLES
    assert line["kl_reference"] == 1.5
    board = tensorboard(tmp_path)
    scalars = {tag: board.Scalars(tag)[0].value for tag in board.Tags()["scalars"]}
    sampled = {"eval/return": 0.25, "eval/length": 5, "eval/kl_reference": 1.5, "eval/score": 2}
    assert scalars == sampled | {f"{tag}_deterministic": x for tag, x in sampled.items()}
    (text,) = board.Tensors("eval/samples")[0].tensor_proto.string_val
    assert [board.Tensors("eval/samples_deterministic")[0].tensor_proto.string_val] == [[text]]
    assert cells(text) == [
        ["prompt", "response", "score", "ended"],
        ["Say | <b>hi</b>", "*hi*\n\n# there &amp; [you](x) `a` __b__", "0.123457", "True"],
        ["", "<|end|>\\| \\x00\\ud800", "2.0", "False"],
    ]


def cells(markdown):
    """The cells of a table as a browser shows TensorBoard's text page."""
    rows = re.findall(r"<tr>(.*?)</tr>", markdown_to_safe_html(markdown), re.DOTALL)
    assert "<em>" not in str(rows)
    found = [re.findall(r"<t[hd]>(.*?)</t[hd]>", row, re.DOTALL) for row in rows]
    return [[html.unescape(cell.replace("<br>", "\n")) for cell in row] for row in found]


def test_configuration_is_a_table_whatever_it_holds(tmp_path):
    make_events = Logger(tmp_path, 1, {"stop_tokens": ("<|end|>",), "reward": "a_b:c_d"}, Display())
    make_events.flush()
    (text,) = tensorboard(tmp_path).Tensors("config")[0].tensor_proto.string_val
    assert cells(text)[1:] == [["stop_tokens", "('<|end|>',)"], ["reward", "a_b:c_d"]]


@pytest.mark.parametrize("x", ["good", None, 1j, np.ones((2, 1)), torch.ones(2)], ids=repr)
def test_metric_of_a_hook_that_is_no_number_is_one_line(x, tmp_path):
    with pytest.raises(ConfigError, match=r"^metric 'note' of on_iteration, .* must be a number, got .*$") as error:
        short_runs.quick_run(tmp_path, on_iteration=lambda *_: {"note": x})
    assert "\n" not in str(error.value)


def test_metrics_of_the_environment_have_a_group_of_their_own(tmp_path):
    logger = make_logger(tmp_path, total_steps=1)
    metrics = ("score", "beta")
    record(logger, 1, 0.1, dict.fromkeys(metrics, 0.5) | {"kl": 0.1}, [], metrics)
    logger.flush()
    tags = {tag for tag in tensorboard(tmp_path).Tags()["scalars"] if tag.split("/")[0] in ("env", "train")}
    assert tags == {"train/kl", *(f"env/{name}" for name in metrics)}


def test_own_columns_are_not_replaced(tmp_path):
    logger = make_logger(tmp_path, total_steps=1)
    line = record(logger, 100, 0.5, {"step": 7, "mean_return": -1.0, "mine": 2.0}, [Episode(3.0, 1)], ["step"])
    assert (line["step"], line["mean_return"], line["mine"]) == (100, 3.0, 2.0)


def test_an_iteration_costs_little(tmp_path):
    logger = make_logger(tmp_path, total_steps=100_000)
    metrics = {f"metric_{i}": 0.1 * i for i in range(10)}
    costs = []
    for i in range(400):
        start = time.thread_time()
        record(logger, 256 * (i + 1), 0.01, metrics, [Episode(1.0, 1)] * 5)
        costs.append(time.thread_time() - start)
    assert np.median(costs) < 300e-6


def test_tensorboard_groups_and_thins(tmp_path):
    logger = make_logger(tmp_path, total_steps=10_000)
    for step in range(5, 10_001, 5):
        record(logger, step, 0.01, {"kl": 0.5}, [Episode(2.0, 4)])
    logger.flush()
    board = tensorboard(tmp_path)
    tags = ["train/kl", "episode/return", "episode/length", "time/steps_per_second", "time/seconds"]
    assert sorted(board.Tags()["scalars"]) == sorted(tags)
    kl = board.Scalars("train/kl")
    assert len(kl) == 1000
    assert (kl[0].step, kl[-1].step, kl[0].value) == (10, 10_000, 0.5)
    assert b"| gamma | 0.99 |" in board.Tensors("config")[0].tensor_proto.string_val[0]


def test_tensorboard_forgets_what_a_resumed_run_does_again(tmp_path):
    first = make_logger(tmp_path)
    for step in (100, 200, 300):
        record(first, step, 0.1, {"kl": 1.0}, [])
    first.flush()
    second = make_logger(tmp_path, resumed_at=200)
    record(second, 250, 0.1, {"kl": 2.0}, [])
    second.flush()
    assert [(s.step, s.value) for s in tensorboard(tmp_path).Scalars("train/kl")] == [(100, 1), (200, 1), (250, 2)]


def test_tensorboard_takes_any_number(tmp_path):
    logger = make_logger(tmp_path, total_steps=1)
    record(logger, 2**40, 0.1, {"ä" * 200: 1e300, "b": -1e300, "c": math.nan, "d": 0.1}, [])
    logger.flush()
    record(logger, 2**40 + 1, 0.1, {"d": 2}, [])
    logger.flush()
    board = tensorboard(tmp_path)
    assert "train/c" not in board.Tags()["scalars"]
    assert board.Scalars("train/" + "ä" * 200)[0].value == math.inf
    assert [(s.step, s.value) for s in board.Scalars("train/d")] == [(2**40, np.float32(0.1)), (2**40 + 1, 2)]


def test_tensorboard_waits_for_the_first_flush(tmp_path):
    code = f"""
import sys
from pathlib import Path
from rlzoo.runs.logs.display import Display
from rlzoo.runs.logs.logger import Logger
from rlzoo.runs.loop import Iteration
logger = Logger(Path({str(tmp_path)!r}), 1, {{}}, Display())
logger.iteration(Iteration(1, {{"kl": 0.5}}, [], seconds=0.1))
assert "tensorboard" not in sys.modules
logger.flush()
"""
    subprocess.run([sys.executable, "-c", code], check=True)
    assert tensorboard(tmp_path).Scalars("train/kl")[0].value == 0.5


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_events_that_cannot_be_written(tmp_path):
    folder = tmp_path / "run"
    folder.mkdir()
    logger = make_logger(folder, total_steps=1)
    logger.flush()
    shutil.rmtree(folder)
    logger._scalars(1, {"train/kl": 0.5})
    with pytest.raises(FileNotFoundError, match="tfevents"):
        logger.flush()
    logger.close()


def test_an_event_file_from_a_clock_that_was_ahead_is_waited_for_a_moment(tmp_path):
    (tmp_path / f"events.out.tfevents.{time.time() + 1000:.0f}.there").touch()
    start = time.monotonic()
    make_logger(tmp_path).flush()
    assert 1 < time.monotonic() - start < 10


def test_records_of_a_run(tmp_path):
    run = short_runs.quick_run(tmp_path)
    metrics = run.metrics()
    assert metrics[-1]["step"] == run.steps()[-1]
    assert all(a["step"] < b["step"] and a["seconds"] < b["seconds"] for a, b in itertools.pairwise(metrics))
    resume(run, total_steps=800)
    assert [r["step"] for r in run.metrics()[: len(metrics)]] == [r["step"] for r in metrics]
    tags = tensorboard(tmp_path).Tags()["scalars"]
    assert {"train/kl_k3", "episode/return", "eval/return", "eval/return_deterministic", "time/seconds"} <= set(tags)


# Displays


def show(display, records=20):
    display.start(0, 1000)
    for i in range(1, records + 1):
        display.update({"step": 50 * i, "mean_return": 12.345 * i if i > 1 else None, "kl": 0.01})
    display.say("[bold]done[/bold]")
    display.close()


def test_lines_for_every_tenth():
    out = io.StringIO()
    show(LineDisplay(out))
    *lines, last = out.getvalue().splitlines()
    assert [line.split("/")[0].strip() for line in lines] == [f"{n:,}" for n in range(100, 1001, 100)]
    assert lines[0].startswith("  100/1,000 steps  return     24.7  kl 0.01 ")
    assert lines[0].endswith(" left")
    assert last == "[bold]done[/bold]"


@pytest.mark.parametrize("kind", [LineDisplay, LiveDisplay])
@pytest.mark.parametrize("fault", [errno.EPIPE, errno.EIO, errno.ENOSPC])
def test_a_stream_that_cannot_be_written_to_does_not_stop_the_run(kind, fault, monkeypatch):
    """A reader that went away, a terminal that was closed, a full disk."""

    class Closed(io.StringIO):
        def isatty(self):
            return kind is LiveDisplay

        def write(self, text):
            raise OSError(fault, "cannot")

        def flush(self):
            raise OSError(fault, "cannot")

    monkeypatch.setenv("TERM", "xterm")
    show(kind(Closed()))


def test_bar_on_a_terminal(monkeypatch):
    class Terminal(io.StringIO):
        def isatty(self):
            return True

    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "100")
    out = Terminal()
    display = make_display(out)
    assert isinstance(display, LiveDisplay)
    display.say("before")
    show(display)
    display.say("after")
    text = out.getvalue()
    assert "1,000/1,000" in text
    assert "[bold]done[/bold]" in text
    assert text.startswith("before\n")
    assert text.endswith("after\n")
    monkeypatch.setenv("TERM", "dumb")
    assert isinstance(make_display(out), LineDisplay)


def test_display_on_anything_else():
    assert isinstance(make_display(io.StringIO()), LineDisplay)
    show(Display())
