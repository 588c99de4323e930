"""Settings by name: the fields of a configuration's parts as one flat table."""

from __future__ import annotations

import ast
import dataclasses
import difflib
import functools
import inspect
import re
import textwrap
from collections.abc import Collection, Iterable, Iterator, Mapping
from itertools import pairwise
from typing import Annotated, Any, NamedTuple, get_args, get_origin

from rlzoo.core.system.errors import ConfigError
from rlzoo.core.system.fields import ADVANCED, Checked, field_types
from rlzoo.runs.registry import ALGORITHMS, algorithm_class


class Setting(NamedTuple):
    """One field of one part."""

    name: str
    """Name in the command line and in `config.json`."""
    field: str
    part: type
    hint: Any
    """Type of the field, without the mark `Advanced`."""
    value: Any
    help: str
    advanced: bool = False
    """Whether only `--help-all` shows it."""

    @property
    def group(self) -> str:
        """The group of the help page: that of `groups` of its part, else the part's `title`, else its name."""
        for title, fields in getattr(self.part, "groups", {}).items():
            if self.field in fields:
                return str(title)
        first, *rest = getattr(self.part, "name", "").split("-")
        return str(getattr(self.part, "title", "-".join([first.upper(), *rest]) or self.part.__name__))


def settings_of(*parts: Any, units: Mapping[str, tuple[str, str]] | None = None) -> dict[str, Setting]:
    """The fields of dataclass instances, and of the dataclasses in them, by setting name.

    Args:
        units: field -> setting name and help text in a task's own units.

    Raises:
        ConfigError: two parts have a setting of the same name.
    """
    table: dict[str, Setting] = {}
    for part in parts:
        for setting in _fields(part, units or {}):
            other = table.setdefault(setting.name, setting)
            if other is not setting:
                parts_named = f"both {other.part.__name__} and {setting.part.__name__}"
                raise ConfigError(f"setting {setting.name!r} is defined by {parts_named}: rename one of them")
    return table


_OF_TRAIN = frozenset(
    ("out", "overwrite", "preset", "no_preset", "progress", "quiet", "json", "track", "jobs", "threads")
)
RESERVED = _OF_TRAIN | {"wrapper", "algorithm", "estimator", "task", "config"}
"""Names of no setting: those of other options of `rlzoo train`, and of parts of a run."""


def is_part(value: Any) -> bool:
    """Whether a field's value is a dataclass instance, whose own fields are settings; not a function of the user's."""
    plain = dataclasses.is_dataclass(value) and not isinstance(value, type) and not callable(value)
    return plain or isinstance(value, Checked)


PEERS = {
    "num_envs": "n_envs",
    "responses_per_batch": "num_envs n_envs per_device_train_batch_size",
    "num_steps": "n_steps",
    "minibatch_size": "batch_size",
    "minibatch_responses": "batch_size minibatch_size",
    "epochs": "n_epochs num_epochs num_iterations num_ppo_epochs update_epochs num_train_epochs",
    "clip_coef": "clip_range cliprange epsilon",
    "clip_value": "clip_range_vf cliprange_value",
    "ent_coef": "entropy_coef",
    "gae_lambda": "lam lambda lambda_",
    "beta": "init_kl_coef kl_coef",
    "cg_iters": "cg_max_steps",
    "backtrack_iters": "line_search_max_iter",
    "vf_epochs": "n_critic_updates",
    "hidden": "net_arch policy_kwargs",
    "total_steps": "total_timesteps n_timesteps total_episodes",
    "max_new_tokens": "max_completion_length response_length",
    "responses_per_prompt": "num_generations",
    "prompts": "train_dataset",
    "precision": "bf16",
    "lora_rank": "peft_config",
    "reward": "reward_funcs reward_model reward_weights",
    "max_tokens": "max_length max_seq_length",
    "eval_interval": "eval_freq",
    "eval_episodes": "n_eval_episodes",
    "out": "output_dir tensorboard_log",
}
"""Names here, and their names in Stable-Baselines3, CleanRL and TRL."""


def unknown_name(kind: str, name: str, names: Iterable[str]) -> str:
    """An error message that suggests the nearest name, also for initials and for the names of other libraries."""
    names = sorted(names)
    plain = {other.strip("-").replace("-", "_"): other for other in names}
    asked = name.strip("-").replace("-", "_")
    for ours, theirs in PEERS.items():
        if asked in theirs.split() and ours in plain:
            return f"no {kind} {name!r}; did you mean {plain[ours]!r}?"
    initials = {"".join(word[0] for word in re.findall(r"[a-z]+", other)): other for other in names}
    near = [plain[x] for x in difflib.get_close_matches(asked, plain, n=1, cutoff=0.67)]
    nearest = initials.get(name.strip("-"), near[0] if near else None)
    return f"no {kind} {name!r}" + (f"; did you mean {nearest!r}?" if nearest else "")


def of_others(algorithm: Any, name: str, known: Collection[str]) -> str | None:
    """An error message if other registered algorithms have the setting, and none of the `known` ones is meant."""
    if any(name in theirs.split() and ours in known for ours, theirs in PEERS.items()):
        return None
    own, *others = ({f.name for f in dataclasses.fields(x)} for x in (algorithm, *map(algorithm_class, ALGORITHMS)))
    have = [other for other, fields in zip(ALGORITHMS, others, strict=True) if name in fields - own]
    return f"{algorithm.name} has no {name}; {', '.join(have)} {'have' if len(have) > 1 else 'has'}" if have else None


@functools.cache
def help_texts(cls: type) -> dict[str, str]:
    """The string literals below the fields of a dataclass and its base classes, by field."""
    texts: dict[str, str] = {}
    for base in reversed(cls.__mro__[:-1]):
        try:
            (definition,) = ast.parse(textwrap.dedent(inspect.getsource(base))).body
        except (OSError, TypeError, SyntaxError, ValueError):
            continue
        for statement, following in pairwise(getattr(definition, "body", [])):
            match statement, following:
                case ast.AnnAssign(target=ast.Name(field)), ast.Expr(ast.Constant(str(text))):
                    texts[field] = " ".join(text.split())
    return texts


def _fields(part: Any, units: Mapping[str, tuple[str, str]]) -> Iterator[Setting]:
    cls: Any = type(part)
    hints, texts = field_types(cls), help_texts(cls)
    for f in dataclasses.fields(part):
        value = getattr(part, f.name)
        if is_part(value) and hints[f.name] is not Any:
            yield from _fields(value, units)
        else:
            name, text = units.get(f.name, (f.name, texts.get(f.name, "")))
            kind, *marks = get_args(hints[f.name]) if get_origin(hints[f.name]) is Annotated else (hints[f.name],)
            kept = [mark for mark in marks if mark is not ADVANCED]
            hint = Annotated[(kind, *kept)] if kept else kind
            yield Setting(name, f.name, cls, hint, value, text, ADVANCED in marks)
