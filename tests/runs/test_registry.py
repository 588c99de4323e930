"""Tasks by their names."""

import sys

import gymnasium
import pytest

from rlzoo.control.task import ControlTask
from rlzoo.core.system.errors import ConfigError, UnknownEnv
from rlzoo.core.task import Task
from rlzoo.runs.registry import CONTROL, TASKS, task_class


class OwnTask(ControlTask):
    """A task of a user."""


@pytest.mark.parametrize("name", TASKS)
def test_registered_names_are_tasks(name):
    module, _, cls = TASKS[name].path.partition(":")
    found = task_class(name)
    assert (found.__module__, found.__qualname__) == (module, cls)
    assert issubclass(found, Task)


def test_environments_are_control_tasks():
    assert task_class("CartPole-v1") is task_class("Acrobot-v1") is ControlTask
    assert f"{ControlTask.__module__}:{ControlTask.__qualname__}" == CONTROL


def test_class_in_a_module_is_a_task():
    assert task_class("test_registry:OwnTask") is OwnTask


def test_environment_of_a_module(tmp_path, monkeypatch):
    text = "import gymnasium\ngymnasium.register('Mine-v0', 'gymnasium.envs.classic_control:CartPoleEnv')\n"
    (tmp_path / "own_environments.py").write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    try:
        assert task_class("own_environments:Mine-v0") is ControlTask
        with pytest.raises(ConfigError) as error:
            task_class("own_environments:Other-v0")
        assert str(error.value) == (
            "'own_environments:Other-v0': module 'own_environments' has no Task or function of this name "
            "and registers no such environment"
        )
    finally:
        gymnasium.registry.pop("Mine-v0", None)
        sys.modules.pop("own_environments", None)


@pytest.mark.parametrize("name", ["test_registry:CONTROL", "test_registry:NoTask", "test_registry:gymnasium"])
def test_module_without_such_a_task(name):
    with pytest.raises(ConfigError, match="has no Task or function of this name and registers no such environment"):
        task_class(name)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("CartPol-v1", "no environment 'CartPol-v1'; did you mean 'CartPole-v1'?"),
        ("RandomWalk", "no environment 'RandomWalk'; did you mean 'RandomWalks'?"),
        ("Xyzzy-v9", "no environment 'Xyzzy-v9'"),
        ("nowhere:X", "environment 'nowhere:X': cannot import module 'nowhere': no module 'nowhere'"),
    ],
)
def test_unknown_names_suggest_the_nearest_environment_or_task(name, message):
    with pytest.raises(UnknownEnv) as error:
        task_class(name)
    assert str(error.value) == message


def test_module_that_fails_when_it_is_imported(tmp_path, monkeypatch):
    (tmp_path / "broken_module.py").write_text("1 / 0\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(UnknownEnv, match="importing broken_module raised ZeroDivisionError: division by zero"):
        task_class("broken_module:Task")
