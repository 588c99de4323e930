"""The number of threads: what the user says, what the process may use, and how large the model is."""

import pytest
import torch

from rlzoo.core.system import threads
from rlzoo.core.system.threads import PARAMETERS, ThreadCount


@pytest.fixture
def commanded(monkeypatch):
    """Gives the command line's choice; returns what was set and said."""
    monkeypatch.setattr(threads, "_chosen", None)
    monkeypatch.setattr("joblib.cpu_count", lambda: 4)
    counts, said = [], []
    monkeypatch.setattr(torch, "set_num_threads", counts.append)

    def command(count, source=""):
        threads.start(ThreadCount(count, source))
        return counts, said

    return command


@pytest.mark.parametrize(
    ("parameters", "expected"),
    [(1_000, 1), (PARAMETERS - 1, 1), (PARAMETERS, 2), (3 * PARAMETERS, 4), (124_000_000, 4)],
)
def test_more_threads_for_a_larger_model(commanded, parameters, expected):
    counts, said = commanded(None)
    threads.fit_to(parameters, said.append)
    assert counts == [1, expected]
    (line,) = said
    assert line.startswith(f"using {expected} thread{'s' if expected > 1 else ''} (for {parameters:,} parameters; ")


def test_what_the_user_says_wins(commanded):
    counts, said = commanded(1, "OMP_NUM_THREADS")
    threads.fit_to(124_000_000, said.append)
    assert (counts, said) == ([1], ["using 1 thread (OMP_NUM_THREADS)"])


def test_control_says_only_what_is_unusual(commanded):
    for count, lines in ((None, []), (1, []), (2, ["using 2 threads (--threads)"])):
        said = commanded(count, "--threads")[1]
        threads.announce(said.append)
        assert said == lines


def test_a_program_of_ones_own_keeps_its_threads(monkeypatch):
    monkeypatch.setattr(threads, "_chosen", None)
    before, said = torch.get_num_threads(), []
    threads.fit_to(124_000_000, said.append)
    threads.announce(said.append)
    assert (torch.get_num_threads(), said) == (before, [])


@pytest.mark.parametrize(("text", "expected"), [("3", 3), (" 4,2 ", 4), ("0", None), ("many", None), ("", None)])
def test_variable_of_the_user(monkeypatch, text, expected):
    monkeypatch.setenv("OMP_NUM_THREADS", text)
    assert threads.from_environment() == expected
