"""Spaces of observations and actions: which are supported, and how actions are laid out as numbers."""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.spaces.box import array_short_repr

from rlzoo.core.env import Array
from rlzoo.core.system.errors import ConfigError, UnsupportedSpace

Space = gymnasium.Space[Any]

_FLAT: Any = spaces.Box | spaces.Discrete | spaces.MultiDiscrete | spaces.MultiBinary | spaces.Dict | spaces.Tuple
"""Leaves of an observation with a fixed number of numbers; the last two are empty."""
_MOST_CATEGORIES = 2**20
"""Largest number of categories in a space. The first or last layer of a network has a weight for each."""


def check_spaces(name: str, observation: Space, action: Space) -> None:
    """Raises `UnsupportedSpace` if no policy can be built for a space of the environment `name`."""
    if not all(isinstance(leaf, _FLAT) for leaf in leaves(observation)):
        raise UnsupportedSpace(f"environment {name!r}: observation space {observation} is not supported")
    try:
        categories(action)
    except ConfigError as error:
        raise UnsupportedSpace(f"environment {name!r}: {error}") from error
    for kind, part in (("observation", observation), *(("action", leaf) for leaf in leaves(action))):
        if spaces.flatdim(part) == 0:
            raise UnsupportedSpace(f"environment {name!r}: {kind} space {part} has no numbers")
    for kind, space in (("observation", observation), ("action", action)):
        count = sum(spaces.flatdim(leaf) for leaf in leaves(space) if not isinstance(leaf, spaces.Box))
        if count > _MOST_CATEGORIES:
            number = f"{count:,} categories, each a number; at most {_MOST_CATEGORIES:,} are supported"
            raise UnsupportedSpace(f"environment {name!r}: {kind} space {space} has {number}")


_PRINTED: dict[str, Any] = {
    "precision": 8, "threshold": 1000, "edgeitems": 3, "linewidth": 75, "suppress": False, "floatmode": "maxprec",
    "sign": "-", "nanstr": "nan", "infstr": "inf", "formatter": None, "legacy": False,
}  # fmt: skip
"""NumPy's own print options."""


def space_text(space: Space) -> str:
    """A space as one line, which does not depend on the print options of the program."""
    space = copy.deepcopy(space)
    with np.printoptions(**_PRINTED):
        for leaf in leaves(space):
            if isinstance(leaf, spaces.Box):  # it keeps the texts that it was made with
                leaf.low_repr, leaf.high_repr = array_short_repr(leaf.low), array_short_repr(leaf.high)
        return " ".join(str(space).split())


def leaves(space: Space) -> list[Space]:
    """The spaces that a `Dict` or `Tuple` consists of, in order. Any other space, or an empty one, is its own leaf."""
    return [leaf for part in _parts(space) for leaf in leaves(part)] if is_product(space) else [space]


def is_product(space: Space) -> bool:
    """Whether actions have several parts, each with a distribution of its own."""
    return bool(_parts(space))


def _parts(space: Space) -> list[Space]:
    if isinstance(space, spaces.Dict):
        return list(space.spaces.values())
    return list(space.spaces) if isinstance(space, spaces.Tuple) else []


def categories(space: Space) -> list[int]:
    """Number of categories of each categorical action, in order; none for a Box."""
    if is_product(space):
        return [n for leaf in leaves(space) for n in categories(leaf)]
    if isinstance(space, spaces.Discrete):
        return [int(space.n)]
    if isinstance(space, spaces.MultiDiscrete):
        return [int(n) for n in space.nvec.reshape(-1)]
    if isinstance(space, spaces.MultiBinary):
        return [2] * int(np.prod(space.shape))
    if isinstance(space, spaces.Box) and np.issubdtype(space.dtype, np.floating):
        return []
    raise ConfigError(
        f"action space {space} is not supported; use Discrete, MultiDiscrete, MultiBinary or Box, or a Dict or Tuple"
    )


def is_gumbel(space: Space) -> Array:
    """(Z,) whether each number of standard noise is a Gumbel, for a category, or a normal, for a component of a Box."""
    sizes = [sum(categories(leaf)) or action_columns(leaf) for leaf in leaves(space)]
    return np.repeat([bool(categories(leaf)) for leaf in leaves(space)], sizes)


def action_columns(space: Space) -> int:
    """Numbers of an action of one leaf."""
    return math.prod(space.shape or ())


def box_units(space: spaces.Box, dtype: type[np.floating[Any]] = np.float32) -> tuple[np.ndarray, np.ndarray]:
    """Centre and half-width (A,) of a Box's bounds; the number nearest to 0, and 1, where it has not both, or no width.

    A Gaussian policy starts with mean 0 and standard deviation 1 in these units. The largest number is no bound.
    """
    with np.errstate(over="ignore", invalid="ignore"):
        low, high = space.low.reshape(-1).astype(dtype), space.high.reshape(-1).astype(dtype)
        centre, half = (low + high) / 2, (high - low) / 2
        bounded = np.isfinite(4 * half) & (half > 0)  # so that also 0 to the largest number has not both
    return np.where(bounded, centre, np.clip(0, low, high)).astype(dtype), np.where(bounded, half, 1).astype(dtype)


def native_actions(space: Any, action: Array) -> Any:
    """Actions (N,) or (N, A) of a policy as environments of this action space take them, (N, *A).

    Actions of a `Dict` or `Tuple` are nested in the same way, a batch in each leaf.
    """
    if is_product(space):
        sizes = [sum(map(action_columns, leaves(part))) for part in _parts(space)]
        parts = map(native_actions, _parts(space), np.split(action, np.cumsum(sizes)[:-1], axis=1))
        return dict(zip(space.spaces, parts, strict=True)) if isinstance(space, spaces.Dict) else tuple(parts)
    action = action.reshape(len(action), *space.shape)
    if isinstance(space, spaces.Box):
        action = action.clip(space.low, space.high)
    else:
        action = action + getattr(space, "start", 0)
    return action.astype(space.dtype, copy=False)


def flat_mask(space: Space, mask: Any) -> Array:
    """A mask of legal actions as (K,) booleans, one for each category in order.

    Args:
        mask: an array, or arrays nested like the space; for MultiDiscrete also a tuple of arrays.

    Raises:
        ValueError: it has another number of entries, or entries other than booleans, or 0 and 1.
    """
    if isinstance(space, spaces.Dict) and isinstance(mask, dict):
        parts = [flat_mask(part, mask.get(name)) for name, part in space.spaces.items() if sum(categories(part))]
        return np.concatenate(parts)
    if isinstance(space, spaces.Tuple) and isinstance(mask, tuple | list):
        parts = [flat_mask(part, x) for part, x in zip(space.spaces, mask, strict=True) if sum(categories(part))]
        return np.concatenate(parts)
    flat = np.concatenate([np.ravel(x) for x in mask]) if isinstance(mask, tuple | list) else np.ravel(mask)
    wanted = sum(categories(space))
    if flat.shape != (wanted,) or not (np.issubdtype(flat.dtype, np.number) or flat.dtype == np.bool_):
        what = f"shape {mask.shape}" if isinstance(mask, np.ndarray) else f"kind {type(mask).__name__}"
        raise ValueError(f"action mask of {what}, the action space has {wanted} categories")
    others = flat[(flat != 0) & (flat != 1)]
    if len(others):
        raise ValueError(f"action mask with {others[0]}: its entries must be booleans, or 0 and 1")
    return flat.astype(bool)


def mask_row(masks: Any, row: int) -> Any:
    """One mask of a batch: of a sequence of masks, or of arrays (N, ...) nested like one mask in dicts and tuples."""
    if isinstance(masks, dict):
        return {name: mask_row(part, row) for name, part in masks.items()}
    if isinstance(masks, tuple):
        return tuple(mask_row(part, row) for part in masks)
    return None if masks is None else masks[row]


def observation_parts(space: Any, obs: Any, name: str = "observation") -> Iterator[tuple[Any, Any, str]]:
    """The leaves of a space, with the part of an observation that each describes, and its name."""
    if isinstance(space, spaces.Dict | spaces.Tuple):
        for key, part in enumerate(space.spaces) if isinstance(space, spaces.Tuple) else space.spaces.items():
            yield from observation_parts(part, obs[key], f"{name}[{key!r}]")
    else:
        yield space, obs, name


def check_observation(space: Any, obs: Any, batch: tuple[int, ...] = ()) -> None:
    """Raises `ValueError` if a part has another shape or kind than its Box, or another count than its other space.

    Also for an integer that the Box's data type does not have: 256 would become the pixel 0.

    Args:
        batch: the axes before those of the space.
    """
    for leaf, part, name in observation_parts(space, obs):
        _check_part(leaf, part, name, batch)


def _check_part(leaf: Any, part: Any, name: str, batch: tuple[int, ...] = ()) -> None:
    """`check_observation` of one leaf of a space."""
    x, is_box, shape = np.asarray(part), isinstance(leaf, spaces.Box), (*batch, *(leaf.shape or ()))
    fits = x.shape == shape if is_box else x.size == math.prod(shape)
    if not fits or (is_box and x.dtype.kind in "fc" and not np.can_cast(x.dtype, leaf.dtype, "same_kind")):
        raise ValueError(f"{name} is {x.dtype} of shape {x.shape}, its space {leaf.dtype} of shape {shape}")
    integers = is_box and x.dtype != leaf.dtype and x.dtype.kind in "iu" and leaf.dtype.kind in "iu"
    if integers and (x.astype(leaf.dtype) != x).any():
        raise ValueError(f"{name} has an integer that {leaf.dtype} does not have")


def flat_observation(space: Any, obs: Any) -> Any:
    """An observation as a vector, by Gymnasium's rules.

    Raises:
        ValueError: a part has another shape than its Box, or numbers that a Box of integers does not have; or a
            discrete part lies outside its space. Gymnasium would take -1 for the last category.
    """
    if isinstance(space, spaces.Box):
        if space.dtype.kind != "f" and np.asarray(obs).dtype != space.dtype:
            check_observation(space, obs)
        return np.asarray(obs, space.dtype).flatten()
    for leaf, part, name in observation_parts(space, obs):
        if isinstance(leaf, spaces.Box):
            _check_part(leaf, part, name)
        else:
            category = np.asarray(part) - getattr(leaf, "start", 0)
            counts = leaf.n if isinstance(leaf, spaces.Discrete) else getattr(leaf, "nvec", 2)
            if not ((category >= 0) & (category < counts) & (category % 1 == 0)).all():
                raise ValueError(f"observation {part} lies outside {leaf}")
    return spaces.flatten(space, obs)


def illegal_part(space: Space, mask: Array) -> int | None:
    """The first part of an action without a legal category; None if there is none."""
    counts = categories(space)
    legal = [bool(part.any()) for part in np.split(mask, np.cumsum(counts)[:-1])]
    return None if all(legal) else legal.index(False)
