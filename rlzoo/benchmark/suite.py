"""Suites: algorithms, environments and seeds, read from a YAML file and checked before the first run."""

from __future__ import annotations

import dataclasses
import itertools
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from rlzoo.benchmark import known_peers, known_suites
from rlzoo.benchmark.job import Job, load_peer
from rlzoo.core.system.errors import (
    ConfigError,
    EnvError,
    UnknownEnv,
    UnsupportedSpace,
    describe_error,
    no_such,
    require,
)
from rlzoo.core.system.fields import Count, NonNegativeInt, check_fields
from rlzoo.core.system.files import read_bytes
from rlzoo.runs.configuration.config import check_schedules, make_config
from rlzoo.runs.configuration.defaults import starting_from
from rlzoo.runs.registry import ALGORITHMS, ALIASES, reward_threshold, task_class
from rlzoo.runs.train import check_device

_MOST_SEEDS = 100_000
_ELSEWHERE = {
    "algorithm": "it is a field of an entry of algorithms",
    "env": "name it in environments",
    "seed": "name it in seeds",
    "total_steps": "it is a field of the suite and of an environment",
    "eval_interval": "it is a field of the suite and of an environment",
    "eval_episodes": "it is a field of the suite",
    "final_eval_episodes": "it is the field final_episodes of the suite",
    "checkpoint_interval": "the runs of a suite have no checkpoints",
    "stop_return": "the runs of a suite train to their end",
}
"""Settings that are no overrides, and why."""
Place = tuple[str, ...]
"""Keys that lead to a value of the file."""


@dataclass(frozen=True)
class Entry:
    """An algorithm or a peer of a suite."""

    algorithm: str | None = None
    """A name or `module:Class`; the label by default."""
    preset: str | bool = True
    """The preset below the overrides: the algorithm's own, none, or that of the named algorithm."""
    peer: str | None = None
    """Instead of an algorithm, a `Peer`: `library:name`, or `file.py:name` relative to the suite's file."""
    counterpart: str | None = None
    """The label that a peer is compared with."""
    overrides: dict[str, Any] = field(default_factory=dict)
    """Settings that take precedence over those of the environment."""
    environments: dict[str, dict[str, Any]] = field(default_factory=dict)
    """Settings in single environments, which take precedence over all others."""


@dataclass(frozen=True)
class Environment:
    """An environment of a suite and its budget."""

    id: str
    total_steps: Count
    eval_interval: Count
    threshold: float | None = None
    """Mean return that counts as solved; Gymnasium's by default."""
    overrides: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Suite:
    """Runs of every algorithm in every environment with every seed."""

    name: str
    source: str
    """The name or file that it was loaded from."""
    algorithms: dict[str, Entry]
    environments: dict[str, Environment]
    seeds: tuple[NonNegativeInt, ...]
    jobs: tuple[Job, ...] = ()
    """In the order of seeds, so that an interrupted suite has every pair."""
    title: str = ""
    description: str = ""
    against: str | None = None
    """A metric of the task, in the final evaluation, that the report draws the score against: `kl_reference`."""
    measure_updates: bool = False
    """Whether results say what the updates of each run did, except those of peers."""
    overrides: dict[str, Any] = field(default_factory=dict)
    """Settings of all runs except those of peers, which take precedence over presets."""
    total_steps: Count = 100_000
    """Default budget of the environments."""
    eval_interval: Count | None = None
    """Default number of steps between evaluations; a twentieth of the budget if not given."""
    eval_episodes: Count = 20
    final_episodes: Count = 100


def load_suite(name: Path | str) -> Suite:
    """Loads a suite by its name or the path of its file.

    Raises:
        ConfigError: the suite does not exist or is invalid; the message has the line of the file.
    """
    document = _Document(_path_of(str(name)))
    content = dict(document.mapping(document.content, ()))
    for part in ("algorithms", "environments", "seeds"):
        if not content.get(part):
            raise document.error(f"{part}: at least one is required", ())
    algorithms, environments = (_by_label(document, part, content.pop(part)) for part in ("algorithms", "environments"))
    seeds = _seeds(document, content.pop("seeds"))
    content = {"title": document.path.stem} | content
    fixed = {"name": document.path.stem, "source": str(name), "algorithms": {}, "environments": {}, "seeds": seeds}
    suite: Suite = _make(document, (), Suite, content, **fixed)
    for label, entry in algorithms.items():
        suite.algorithms[label] = _make(document, ("algorithms", label), Entry, entry)
    for env, fields in environments.items():
        budget = fields.get("total_steps", suite.total_steps)
        interval = suite.eval_interval or (max(1, budget // 20) if isinstance(budget, int) else 1)
        fields = {"total_steps": budget, "eval_interval": interval, "threshold": reward_threshold(env)} | fields
        suite.environments[env] = _make(document, ("environments", env), Environment, fields, id=env)
    _check(document, suite)
    return dataclasses.replace(suite, jobs=tuple(_jobs(document, suite)))


def _path_of(name: str) -> Path:
    path = Path(name)
    if path.is_file():
        return path
    require(path.suffix not in (".yaml", ".yml"), f"{path}: there is no such file")
    suites = known_suites()
    require(name in suites, f"{no_such('suite', name, suites)} (rlzoo list shows them; a file ends in .yaml)")
    return suites[name]


def _by_label(document: _Document, part: str, content: Any) -> dict[str, dict[str, Any]]:
    """Fields by label, from a list of labels or a mapping of labels to fields."""
    if isinstance(content, list) and all(isinstance(label, str) for label in content):
        twice = next((label for label in content if content.count(label) > 1), None)
        if twice is not None:
            raise document.error(f"{part}: {twice} is given twice", (part,))
        content = dict.fromkeys(content)
    if not isinstance(content, dict):
        raise document.error(f"{part} must be a list of names, or a mapping of names to their fields", (part,))
    return {
        label: document.mapping({} if fields is None else fields, (part, label)) for label, fields in content.items()
    }


def _seeds(document: _Document, content: Any) -> tuple[Any, ...]:
    """Seeds from a list, or from `first-last`."""
    if isinstance(content, str) and (match := re.fullmatch(r"(\d{1,18})\s*-\s*(\d{1,18})", content)):
        first, last = int(match[1]), int(match[2])
        if last < first:
            raise document.error(f"seeds: {content} is an empty range", ("seeds",))
        if last - first >= _MOST_SEEDS:
            raise document.error(f"seeds: {content} are more than {_MOST_SEEDS:,}", ("seeds",))
        content = list(range(first, last + 1))
    if not isinstance(content, list) or not content or len(set(map(str, content))) < len(content):
        message = f"seeds must be a list of different integers, or first-last; got {content!r}"
        raise document.error(message, ("seeds",))
    return tuple(content)


def _make(document: _Document, place: Place, cls: Any, content: dict[str, Any], **fixed: Any) -> Any:
    """Instance of a dataclass from a mapping in the file."""
    names = [f.name for f in dataclasses.fields(cls) if f.name not in ("id", "name", "source", "jobs")]
    for name in content:
        if name not in names:
            raise document.error(no_such("field", name, names), (*place, name))
    document.mapping(content.get("overrides", {}), (*place, "overrides"))
    instance = cls(**fixed, **content)
    try:
        check_fields(instance)
    except ConfigError as error:
        raise document.error(str(error), place) from error
    return instance


def _check(document: _Document, suite: Suite) -> None:
    """Checks everything but the settings of the runs."""
    for label, entry in suite.algorithms.items():
        place = ("algorithms", label)
        for env, overrides in document.mapping(entry.environments, (*place, "environments")).items():
            document.mapping(overrides, (*place, "environments", env))
            if env not in suite.environments:
                raise document.error(no_such("environment", env, suite.environments), (*place, "environments", env))
        if entry.counterpart is not None and entry.peer is None:
            raise document.error("counterpart: only a peer has one", place)
        if entry.peer is not None and entry.algorithm is not None:
            raise document.error("an entry is an algorithm or a peer, not both", place)
        if isinstance(entry.preset, str) and ALIASES.get(entry.preset, entry.preset) not in ALGORITHMS:
            raise document.error(no_such("algorithm", entry.preset, ALGORITHMS), (*place, "preset"))
    for env in suite.environments:
        try:
            task_class(env).available(env)
        except (UnknownEnv, EnvError, UnsupportedSpace, ConfigError) as error:
            raise document.error(str(error), ("environments", env)) from error


def _jobs(document: _Document, suite: Suite) -> Iterator[Job]:
    """All runs of the suite, with complete settings."""
    settings: dict[tuple[str, str], dict[str, Any]] = {}
    for label, env in itertools.product(suite.algorithms, suite.environments):
        try:
            settings[label, env] = _settings(document, suite, label, env)
        except ConfigError as error:
            of_label = [("algorithms", label, *place) for place in (("overrides",), ("environments", env), ())]
            places = [("environments", env), ("overrides",), ("environments", env, "overrides"), *of_label]
            raise document.error(f"{label} on {env}: {error}", *places) from error
    episodes = suite.eval_episodes, suite.final_episodes
    for seed, (env, environment), (label, entry) in itertools.product(
        suite.seeds, suite.environments.items(), suite.algorithms.items()
    ):
        peer = None if entry.peer is None else _peer(document, entry.peer)
        measure = suite.measure_updates and peer is None
        yield Job(label, env, seed, settings[label, env], environment.eval_interval, *episodes, peer, measure)


def _peer(document: _Document, peer: str) -> str:
    """The absolute `file.py:name` of a peer."""
    source, _, name = peer.rpartition(":")
    file = known_peers().get(source, document.path.parent.resolve() / source)
    known = [f"{library}:NAME" for library in known_peers()]
    require(file.suffix == ".py", f"peer {peer!r} is neither file.py:name nor one of {', '.join(known)}")
    return f"{file}:{name}"


def _settings(document: _Document, suite: Suite, label: str, env: str) -> dict[str, Any]:
    """All settings of an algorithm or a peer in an environment, as they are read from `results.jsonl`."""
    entry, environment = suite.algorithms[label], suite.environments[env]
    own = entry.overrides | entry.environments.get(env, {})
    if entry.peer is not None:
        settings = load_peer(_peer(document, entry.peer)).settings(env)
        for name in own:
            require(name in settings, no_such("setting", name, settings))
        settings = {"peer": entry.peer, **settings, **own, "total_steps": environment.total_steps}
    else:
        overrides = suite.overrides | environment.overrides | own
        for name in overrides:
            require(name not in _ELSEWHERE, f"{name} cannot be overridden: {_ELSEWHERE.get(name)}")
        overrides["total_steps"] = environment.total_steps
        algorithm = entry.algorithm or label
        if entry.preset:
            of = entry.preset if isinstance(entry.preset, str) else None
            overrides = starting_from(algorithm, env, overrides, of=of)[0]
        config = make_config(algorithm, env, **overrides)
        objects = [f"{name} is {what}" for name, what in config.objects.items()]
        require(not objects, f"a suite needs settings that config.json can hold, but {', '.join(objects)}")
        check_schedules(config)
        check_device(config.device)
        settings = config.to_dict()
        del settings["env"], settings["seed"]
    return dict(json.loads(json.dumps(settings)))


class _Document:
    """A YAML file, and the line of each key and each item of a list, by its place."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.lines: dict[Place, int] = {}
        try:
            loader = _Loader(read_bytes(path).decode())
            node = loader.get_single_node()
            self.content = None if node is None else loader.construct_document(node)
        except yaml.MarkedYAMLError as error:
            line = error.problem_mark.line + 1 if error.problem_mark else 1
            raise ConfigError(f"{path}, line {line}: {error.problem}") from error
        except OSError as error:
            raise ConfigError(f"{path} cannot be read: {error.strerror}") from error
        except Exception as error:  # YAML's constructors raise many kinds
            raise ConfigError(f"{path}, line 1: invalid YAML: {describe_error(error)}") from error
        self._note(node, ())

    def _note(self, node: yaml.Node | None, place: Place) -> None:
        """Notes the lines below a node; keys must be different texts."""
        pairs = [(x, None) for x in node.value] if isinstance(node, yaml.SequenceNode) else []
        if isinstance(node, yaml.MappingNode):
            pairs = node.value
        for key, value in pairs:
            name, line = (*place, str(key.value)), key.start_mark.line + 1
            if value is not None and key.tag != "tag:yaml.org,2002:str":
                raise ConfigError(f"{self.path}, line {line}: {key.value} is not a name")
            if value is not None and name in self.lines:
                raise ConfigError(f"{self.path}, line {line}: {key.value} is given twice")
            self.lines[name] = line
            self._note(value, name)

    def mapping(self, content: Any, place: Place) -> dict[str, Any]:
        """The content at a place, which must be a mapping."""
        if not isinstance(content, dict):
            what = (
                f"{place[-1]} must be a mapping, got {content!r}" if place else "a suite is a mapping: algorithms, ..."
            )
            raise self.error(what, place)
        return content

    def error(self, message: str, *places: Place) -> ConfigError:
        """An error with its line: that of a field which the message names, below the last place that has it; else that
        of the last place that is not `overrides`."""
        words = re.findall(r"\w+", message)
        named = [(*place, word) for place in reversed(places) for word in words if (*place, word) in self.lines]
        place = (named or [place for place in places if len(places) == 1 or place[-1:] != ("overrides",)][-1:])[0]
        return ConfigError(f"{self.path}, line {self.lines.get(place, 1)}: {message}")


class _Loader(yaml.SafeLoader):  # type: ignore[misc]
    """Loader that reads 1e-3 as a number, as YAML 1.2 does. It has no aliases, with which a short file can stand for an
    endless one."""

    def compose_node(self, parent: Any, index: Any) -> Any:
        if self.check_event(yaml.AliasEvent):
            mark = self.peek_event().start_mark
            raise yaml.composer.ComposerError(None, None, "aliases are not supported; write the value again", mark)
        return super().compose_node(parent, index)


_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float", re.compile(r"[-+]?(\d[\d_]*)(\.\d*)?[eE][-+]?\d+$"), list("-+0123456789")
)
