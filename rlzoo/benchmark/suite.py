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

from rlzoo.benchmark import known_suites
from rlzoo.benchmark.peer import load_peer
from rlzoo.core.errors import ConfigError, EnvError, UnknownEnv, UnsupportedSpace, no_such, require
from rlzoo.core.fields import Count, NonNegativeInt, check_fields
from rlzoo.core.files import read_bytes
from rlzoo.runs.configuration.config import make_config
from rlzoo.runs.configuration.defaults import starting_from
from rlzoo.runs.registry import ALGORITHMS, ALIASES, reward_threshold, task_class

_MOST_SEEDS = 100_000


@dataclass(frozen=True)
class Entry:
    """An algorithm or a peer of a suite."""

    algorithm: str | None = None
    """A name or `module:Class`; the label by default."""
    preset: str | bool = True
    """The preset below the overrides: the algorithm's own, none, or that of the named algorithm."""
    peer: str | None = None
    """`file.py:name` of a `Peer`, relative to the suite's file, instead of an algorithm."""
    counterpart: str | None = None
    """The label that a peer is compared with."""
    overrides: dict[str, Any] = field(default_factory=dict)
    """Settings that take precedence over all others."""


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
class Labelled:
    """What tells a job from the others of a suite."""

    label: str
    env: str
    seed: int

    @property
    def key(self) -> tuple[str, str, int]:
        return self.label, self.env, self.seed


@dataclass(frozen=True)
class Job(Labelled):
    """One run of a suite."""

    settings: dict[str, Any]
    """All settings that determine the outcome."""
    eval_interval: int
    eval_episodes: int
    final_episodes: int
    peer: str | None = None
    """Absolute `file.py:name` of a peer."""


@dataclass(frozen=True)
class Suite:
    """Runs of every algorithm in every environment with every seed."""

    name: str
    algorithms: dict[str, Entry]
    environments: dict[str, Environment]
    seeds: tuple[NonNegativeInt, ...]
    jobs: tuple[Job, ...] = ()
    """In the order of seeds, so that an interrupted suite has every pair."""
    title: str = ""
    description: str = ""
    against: str | None = None
    """A metric of the task, in the final evaluation, that the report draws the score against: `kl_reference`."""
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
    path = _find(str(name))
    document = _Document(path)
    content = _top(document)
    parts = {name: list(_entries(document, name, content.pop(name))) for name in ("algorithms", "environments")}
    seeds = _seeds(document, content.pop("seeds"))
    top = {"title": path.stem} | content
    suite: Suite = _make(document, Suite, (), top, name=path.stem, algorithms={}, environments={}, seeds=seeds, jobs=())
    for label, entry in parts["algorithms"]:
        suite.algorithms[label] = _make(document, Entry, ("algorithms", label), entry)
    for env, fields in parts["environments"]:
        budget = fields.get("total_steps", suite.total_steps)
        interval = suite.eval_interval or (max(1, budget // 20) if isinstance(budget, int) else 1)
        defaults = {"total_steps": budget, "eval_interval": interval, "threshold": reward_threshold(env)}
        suite.environments[env] = _make(document, Environment, ("environments", env), defaults | fields, id=env)
    _check(document, suite)
    return dataclasses.replace(suite, jobs=tuple(_jobs(document, suite)))


def _find(name: str) -> Path:
    path = Path(name)
    if path.suffix in (".yaml", ".yml") or path.is_file():
        if not path.is_file():
            raise ConfigError(f"{path}: there is no such file")
        return path
    known = known_suites()
    if name not in known:
        raise ConfigError(f"{no_such('suite', name, known)} (rlzoo list shows them; a file ends in .yaml)")
    return known[name]


def _top(document: _Document) -> dict[str, Any]:
    """The content of the file, with its three required parts."""
    content = document.content
    if not isinstance(content, dict):
        raise document.error((), "a suite is a mapping: algorithms, environments, seeds and so on")
    for name in ("algorithms", "environments", "seeds"):
        if not content.get(name):
            raise document.error((name,) if name in content else (), f"{name}: at least one is required")
    return dict(content)


def _entries(document: _Document, name: str, content: Any) -> Iterator[tuple[str, dict[str, Any]]]:
    """Labels and fields, from a list of labels or a mapping of labels to fields."""
    if not isinstance(content, (list, dict)):
        raise document.error((name,), f"{name} must be a list of names, or a mapping of names to their fields")
    for i, label in enumerate(content):
        if not isinstance(label, str):
            raise document.error((name, i), f"{name}: {label!r} is not a name")
        entry = content[label] if isinstance(content, dict) else None
        if isinstance(content, list):
            document.lines[name, label] = document.lines[name, i]
        entry = {} if entry is None else entry
        _check_mapping(document, (name, label), entry)
        yield label, entry


def _check_mapping(document: _Document, path: tuple[Any, ...], content: Any) -> None:
    if not isinstance(content, dict):
        raise document.error(path, f"{path[-1]} must be a mapping, got {content!r}")
    for i, key in enumerate(content):
        if not isinstance(key, str):
            raise document.error((*path, i), f"{path[-1]}: {key!r} is not a name")


def _seeds(document: _Document, content: Any) -> tuple[Any, ...]:
    """Seeds from a list, or from `first-last`."""
    if isinstance(content, str) and (match := re.fullmatch(r"(\d{1,18})\s*-\s*(\d{1,18})", content)):
        first, last = int(match[1]), int(match[2])
        if last - first >= _MOST_SEEDS:
            raise document.error(("seeds",), f"seeds: {content} are more than {_MOST_SEEDS:,}")
        content = list(range(first, last + 1))
    if not isinstance(content, list) or not content or len(set(map(str, content))) < len(content):
        raise document.error(("seeds",), f"seeds must be a list of different integers, or first-last; got {content!r}")
    return tuple(content)


def _make(document: _Document, cls: Any, path: tuple[Any, ...], content: dict[str, Any], **fixed: Any) -> Any:
    """Instance of a dataclass from a mapping in the file."""
    known = [f.name for f in dataclasses.fields(cls) if f.name not in ("id", "name", "jobs")]
    for name in content:
        if name not in known:
            raise document.error((*path, name), no_such("field", str(name), known))
    _check_mapping(document, (*path, "overrides"), content.get("overrides", {}))
    made = cls(**fixed, **content)
    try:
        check_fields(made)
    except ConfigError as error:
        raise document.error(_mentioned(document, [path], error), str(error)) from error
    return made


def _check(document: _Document, suite: Suite) -> None:
    """Checks everything but the settings of the runs."""
    for label, entry in suite.algorithms.items():
        path = ("algorithms", label, "counterpart")
        if entry.counterpart is not None and entry.peer is None:
            raise document.error(path, "counterpart: only a peer has one")
        if entry.peer is not None and entry.algorithm is not None:
            raise document.error(("algorithms", label), "an entry is an algorithm or a peer, not both")
        if isinstance(entry.preset, str) and ALIASES.get(entry.preset, entry.preset) not in ALGORITHMS:
            raise document.error(("algorithms", label, "preset"), no_such("algorithm", entry.preset, ALGORITHMS))
    for env in suite.environments:
        try:
            task_class(env).available(env)
        except (UnknownEnv, EnvError, UnsupportedSpace, ConfigError) as error:
            raise document.error(("environments", env), str(error)) from error


def _jobs(document: _Document, suite: Suite) -> Iterator[Job]:
    """All runs of the suite, with complete settings."""
    settings: dict[tuple[str, str], dict[str, Any]] = {}
    for label, entry in suite.algorithms.items():
        for env, environment in suite.environments.items():
            given = suite.overrides | environment.overrides | entry.overrides
            given["total_steps"] = environment.total_steps
            try:
                settings[label, env] = _settings(document, label, entry, env, given)
            except ConfigError as error:
                places = [("overrides",), ("environments", env, "overrides"), ("algorithms", label, "overrides")]
                path = _mentioned(document, [("environments", env), ("algorithms", label), *places], error)
                raise document.error(path, f"{label} on {env}: {error}") from error
    for seed, (env, environment), (label, entry) in itertools.product(
        suite.seeds, suite.environments.items(), suite.algorithms.items()
    ):
        peer = None if entry.peer is None else str(document.path.parent.resolve() / entry.peer)
        episodes = suite.eval_episodes, suite.final_episodes
        yield Job(label, env, seed, settings[label, env], environment.eval_interval, *episodes, peer)


def _settings(document: _Document, label: str, entry: Entry, env: str, given: dict[str, Any]) -> dict[str, Any]:
    if entry.peer is not None:
        settings = load_peer(str(document.path.parent / entry.peer)).settings(env)
        for name in entry.overrides:
            require(name in settings, no_such("setting", name, settings))
        return _as_json({"peer": entry.peer, **settings, **entry.overrides, "total_steps": given["total_steps"]})
    algorithm = entry.algorithm or label
    if entry.preset:
        of = entry.preset if isinstance(entry.preset, str) else None
        given = starting_from(algorithm, env, given, of=of)[0]
    config = make_config(algorithm, env, **given)
    objects = [f"{name} is {what}" for name, what in config.objects.items()]
    require(not objects, f"a suite needs settings that config.json can hold, but {', '.join(objects)}")
    settings = config.to_dict()
    del settings["env"], settings["seed"]
    return _as_json(settings)


def _as_json(settings: dict[str, Any]) -> dict[str, Any]:
    """Settings as they are read from `results.jsonl`, for comparison with those."""
    return dict(json.loads(json.dumps(settings)))


def _mentioned(document: _Document, places: list[tuple[Any, ...]], error: ConfigError) -> tuple[Any, ...]:
    """The place in the file that an error is about: a field that the message names, below the last place that has it;
    else the last place that is not `overrides`."""
    words = re.findall(r"\w+", str(error))
    for place in reversed(places):
        for word in words:
            if (*place, word) in document.lines:
                return (*place, word)
    return [place for place in places if place[-1:] != ("overrides",)][-1]


class _Document:
    """A YAML file and the line of each node in it, by its path of keys or of positions."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.lines: dict[tuple[Any, ...], int] = {(): 1}
        try:
            text = read_bytes(path).decode()
            node = yaml.compose(text, _Loader)
            self.content = yaml.load(text, _Loader)
        except yaml.MarkedYAMLError as error:
            line = error.problem_mark.line + 1 if error.problem_mark else 1
            raise ConfigError(f"{path}, line {line}: {error.problem}") from error
        except RecursionError as error:
            raise ConfigError(f"{path}, line 1: invalid YAML: it nests too deep") from error
        except OSError as error:
            raise ConfigError(f"{path} cannot be read: {error.strerror}") from error
        except (yaml.YAMLError, UnicodeDecodeError) as error:
            raise ConfigError(f"{path}, line 1: invalid YAML: {' '.join(str(error).split())}") from error
        if node is not None:
            self._note(node, ())

    def _note(self, node: yaml.Node, path: tuple[Any, ...]) -> None:
        if isinstance(node, yaml.MappingNode):
            for i, (key, value) in enumerate(node.value):
                self.lines[*path, i] = key.start_mark.line + 1
                name = (*path, key.value)
                if name in self.lines:
                    raise ConfigError(f"{self.path}, line {key.start_mark.line + 1}: {key.value} is given twice")
                self.lines[name] = key.start_mark.line + 1
                self._note(value, name)
        elif isinstance(node, yaml.SequenceNode):
            for i, value in enumerate(node.value):
                self.lines[*path, i] = value.start_mark.line + 1
                self._note(value, (*path, i))

    def error(self, path: tuple[Any, ...], message: str) -> ConfigError:
        return ConfigError(f"{self.path}, line {self.lines.get(path, 1)}: {message}")


class _Loader(yaml.SafeLoader):  # type: ignore[misc]
    """Loader that reads 1e-3 as a number, as YAML 1.2 does, and names the line of every error. It has no aliases, with
    which a short file can stand for an endless one."""

    def compose_node(self, parent: Any, index: Any) -> Any:
        if self.check_event(yaml.AliasEvent):
            mark = self.peek_event().start_mark
            raise yaml.composer.ComposerError(None, None, "aliases are not supported; write the value again", mark)
        return super().compose_node(parent, index)

    def construct_object(self, node: Any, deep: bool = False) -> Any:
        try:
            return super().construct_object(node, deep)
        except (ValueError, AttributeError, TypeError, KeyError, OverflowError) as error:
            problem = f"cannot read {node.tag.rpartition(':')[2]} {str(node.value)[:40]!r}"
            raise yaml.constructor.ConstructorError(None, None, problem, node.start_mark) from error


_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float", re.compile(r"[-+]?(\d[\d_]*)(\.\d*)?[eE][-+]?\d+$"), list("-+0123456789")
)
