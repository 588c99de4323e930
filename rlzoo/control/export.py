"""Policies as files for other programs: ONNX, and a C header without dependencies."""

from __future__ import annotations

import io
import math
import warnings
from collections.abc import Callable, Mapping
from typing import Any

import gymnasium
import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor, nn

from rlzoo.control.networks import MLP, MLPPolicy
from rlzoo.control.spaces import is_product
from rlzoo.core.env import Array
from rlzoo.core.models import ActorCritic, Normalizer
from rlzoo.core.system.errors import ConfigError, first_line, require
from rlzoo.core.system.screen import one_line


def export_model(
    model: ActorCritic, obs: Tensor, action_space: gymnasium.Space[Any], format: str, about: Mapping[str, str]
) -> bytes:
    """The deterministic policy as the contents of a file, with the normaliser of the observations inside.

    The file's input is `obs` (N, D) float32, flat observations. Its output is `action` (N, *A), as `env.step` takes
    it: float32 for a Box, else integers. An ONNX file is loaded again, and compared with the policy.

    Args:
        model: on the CPU.
        obs: some observations (N, D) as the model sees them, which the policies are compared on.
        format, about: as for `DeployedPolicy.export`, whose errors it raises.
    """
    require(format in FORMATS, f"format must be {' or '.join(FORMATS)}, got {format!r}")
    named = " or ".join(_own_parts(model)) or "this policy"
    require(not is_product(action_space), f"actions of several parts, {action_space}, have no export: use load_policy")
    module = PolicyModule(model, action_space, obs.dtype).eval()
    with torch.no_grad(), warnings.catch_warnings(action="ignore"):
        try:
            memory = model.act(obs)[1]
            require(memory is None, f"{named} has a memory, which no export format holds: use load_policy")
            data, loaded = FORMATS[format](module, obs[:2].float(), about)
            same = loaded is None or _same(module(obs), loaded(obs.float()))
        except ConfigError:
            raise
        except Exception as error:  # of any kind, from tracing any code
            raise ConfigError(f"{named} cannot be exported to {format}: {first_line(error)}") from error
    require(same, f"{named} cannot be exported to {format}: its forward pass branches on its input")
    return data


def _own_parts(model: ActorCritic) -> list[str]:
    """Names of the parts of a policy that are not those of the built-in MLPs."""
    head, net = (model.policy, MLPPolicy), (getattr(model.policy, "net", None), MLP)
    names = []
    for part, kind in ((model, ActorCritic), (model.normalizer, Normalizer), (model.trunk, MLP), head, net):
        if part is not None and not (isinstance(part, kind) and type(part).__module__.startswith("rlzoo.")):
            names.append(type(part[0] if isinstance(part, nn.Sequential) else part).__name__)
    return names


def _same(expected: Tensor, actual: Tensor) -> bool:
    """Whether two batches of actions are equal up to rounding, which may decide between equally probable actions."""
    if expected.shape != actual.shape:
        return False
    same = torch.isclose(actual.double(), expected.double(), rtol=1e-4, atol=1e-5, equal_nan=True)
    return same.double().mean().item() > 0.95


class PolicyModule(nn.Module):
    """`obs (N, D) -> action (N, *A)`: the most probable actions, as the environment takes them."""

    low: Tensor
    high: Tensor
    start: Tensor

    def __init__(self, model: ActorCritic, space: gymnasium.Space[Any], dtype: torch.dtype) -> None:
        super().__init__()
        self.model = model
        self.space = space
        self.dtype = dtype
        if isinstance(space, spaces.Box):
            self.register_buffer("low", _rounded(space.low, np.greater_equal, np.inf))
            self.register_buffer("high", _rounded(space.high, np.less_equal, -np.inf))
        else:
            smallest = np.broadcast_to(getattr(space, "start", 0), space.shape or ())
            self.register_buffer("start", torch.from_numpy(smallest.astype(np.int64)))

    def forward(self, obs: Tensor) -> Tensor:
        action = self.model.act(obs.to(self.dtype))[0].mode.reshape(-1, *(self.space.shape or ()))
        if isinstance(self.space, spaces.Box):
            return action.clamp(self.low, self.high)
        return action + self.start


def _rounded(bounds: Array, within: Callable[[Array, Array], Array], inside: float) -> Tensor:
    """Bounds in single precision, rounded to the inside: 0.1 is less than the nearest number."""
    with np.errstate(over="ignore"):
        x = bounds.astype(np.float32)
    return torch.from_numpy(np.where(within(x, bounds), x, np.nextafter(x, np.float32(inside))))


Loaded = Callable[[Tensor], Tensor]
"""The policy of an exported file."""


def _onnx(module: PolicyModule, obs: Tensor, about: Mapping[str, str]) -> tuple[bytes, Loaded]:
    try:
        import onnx
        from onnxruntime import InferenceSession, SessionOptions
    except ImportError as error:
        raise ConfigError(f"exporting to onnx needs two packages: pip install onnx onnxruntime ({error})") from error
    export_onnx: Any = torch.onnx.export
    file = io.BytesIO()
    export_onnx(
        module,
        (obs,),
        file,
        input_names=["obs"],
        output_names=["action"],
        dynamic_axes={"obs": {0: "N"}, "action": {0: "N"}},
        dynamo=False,  # the exporter with dynamo=True gives the same graph, but takes ten seconds
    )
    graph = onnx.load_from_string(file.getvalue())
    onnx.helper.set_model_props(graph, dict(about))
    data = graph.SerializeToString()
    options = SessionOptions()
    options.log_severity_level = 4  # errors are raised, and not printed too
    session = InferenceSession(data, options, providers=["CPUExecutionProvider"])
    return data, lambda obs: torch.from_numpy(session.run(None, {"obs": obs.numpy()})[0])


def _c(module: PolicyModule, obs: Tensor, about: Mapping[str, str]) -> tuple[bytes, None]:
    """`policy.h.jinja` with the weights of the policy."""
    import jinja2

    model, space = module.model, module.space
    for name in _own_parts(model):
        raise ConfigError(f"the C header holds MLPs only, and a part of this policy is a {name}: export it as onnx")
    head: Any = model.policy
    nets: list[Any] = [net for net in (model.trunk, head.net) if net is not None]
    pairs = [(net, pair) for net in nets for pair in zip(net.layers, net.activated, strict=True)]
    layers = [(layer, net.activation if activated else None) for net, (layer, activated) in pairs]
    floats: dict[str, Tensor] = {}
    integers: dict[str, list[int]] = {}
    for k, (layer, _) in enumerate(layers, 1):
        floats |= {f"w{k}": layer.weight.T, f"b{k}": layer.bias}
    if model.normalizer is not None:
        floats |= {"mean": model.normalizer.mean, "scale": model.normalizer.scale}
    if isinstance(space, spaces.Box):
        floats |= {"centre": head.centre, "unit": head.log_scale.exp(), "low": module.low, "high": module.high}
    else:
        integers = {"categories": head.nvec, "start": module.start.reshape(-1).tolist()}
        fits = all(-(2**31) <= x <= 2**31 - n for x, n in zip(integers["start"], head.nvec, strict=True))
        require(fits, f"the C header's actions are 32-bit integers, which {one_line(space)} exceeds: export it as onnx")
    template = jinja2.Environment(
        loader=jinja2.PackageLoader("rlzoo.control", ""),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    ).get_template("policy.h.jinja")
    text = template.render(
        about=[[one_line(x).replace("*/", "* /") for x in pair] for pair in about.items()],
        inputs=obs.shape[1],
        actions=math.prod(space.shape or ()),
        box=isinstance(space, spaces.Box),
        clip=None if model.normalizer is None else model.normalizer.clip,
        layers=[(layer.in_features, layer.out_features, activation) for layer, activation in layers],
        floats={name: [_literal(x) for x in values.flatten().tolist()] for name, values in floats.items()},
        integers=integers,
    )
    return text.encode(), None


def _literal(x: float) -> str:
    """The number as a C constant in single precision."""
    if math.isinf(x):
        return "INFINITY" if x > 0 else "-INFINITY"
    text = f"{x:.9g}"
    return text + ("f" if "." in text or "e" in text else ".0f")


FORMATS: dict[str, Callable[[PolicyModule, Tensor, Mapping[str, str]], tuple[bytes, Loaded | None]]] = {
    "onnx": _onnx,
    "c": _c,
}
"""Formats, and the functions that make the contents of a file and the policy in it."""
