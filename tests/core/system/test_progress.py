"""What runs, as a display sees it."""

import pytest

from rlzoo.core.system.progress import SILENT, operation, reach, running, track


def seen():
    return [(x.name, x.done, x.total) for x in running]


def test_operations_are_listed_from_the_outermost_to_the_innermost():
    with operation("update") as update:
        states = [(item, seen()) for item in track("minibatch", "ab")]
        assert running == [update]
    assert states == [
        ("a", [("update", 0, None), ("minibatch", 0, 2)]),
        ("b", [("update", 0, None), ("minibatch", 1, 2)]),
    ]
    assert running == []


def test_single_item_is_no_operation():
    assert [seen() for _ in track("part", ["all"])] == [[]]


def test_loop_that_is_left_runs_no_more():
    for item in track("minibatch", range(5)):
        if item == 2:
            break
    assert running == []


@operation("update")
def fail():
    for _ in track("minibatch", range(2)):
        raise ZeroDivisionError


def test_error_ends_everything_inside_of_an_operation():
    with operation("run"):
        with pytest.raises(ZeroDivisionError):
            fail()
        assert seen() == [("run", 0, None)]
    assert running == []


def test_innermost_operation_may_learn_its_size():
    reach(1, 2, "tokens")
    with operation("evaluation", 3), operation("sampling") as sampling:
        reach(5, 12, "tokens")
        assert seen() == [("evaluation", 0, 3), ("sampling", 5, 12)]
        assert sampling.unit == "tokens"


def test_function_may_be_an_operation():
    @operation("scoring")
    def score():
        return seen()

    assert score() == score() == [("scoring", 0, None)]
    assert running == []


def test_silent_progress_shows_nothing(capsys):
    SILENT.say("a line")
    assert capsys.readouterr().out == ""
