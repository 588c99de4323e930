"""What operations of PyTorch compute, as C++ of their elements."""

from __future__ import annotations

from collections.abc import Callable


def _clamp(self: str, min: str | None = None, max: str | None = None) -> str:
    x = self if min is None else f"upper({self}, {min})"
    return x if max is None else f"lower({x}, {max})"


def _power(self: str, exponent: str) -> str:
    return {"T(2)": f"{self} * {self}", "T(0.5)": f"std::sqrt({self})"}.get(exponent, f"std::pow({self}, {exponent})")


ELEMENTWISE: dict[str, str | Callable[..., str]] = {
    "abs": "std::abs({self})", "add": "{self} + {alpha} * {other}", "clamp": _clamp, "clamp_max": _clamp,
    "clamp_min": _clamp, "clone": "{self}", "copy": "{src}", "cos": "std::cos({self})", "div": "{self} / {other}",
    "erf": "std::erf({self})", "exp": "exp_of({self})", "expm1": "std::expm1({self})", "fill": "{value}",
    "full": "{fill_value}", "full_like": "{fill_value}", "lift_fresh_copy": "{self}", "log": "std::log({self})",
    "log1p": "std::log1p({self})", "masked_fill": "{mask} ? {value} : {self}", "maximum": "upper({self}, {other})",
    "minimum": "lower({self}, {other})", "mul": "{self} * {other}", "neg": "-{self}", "new_full": "{fill_value}",
    "new_ones": "1", "new_zeros": "0", "ones": "1", "ones_like": "1", "pow": _power, "reciprocal": "1 / {self}",
    "relu": "{self} < 0 ? T(0) : {self}", "rsqrt": "1 / std::sqrt({self})", "rsub": "{other} - {alpha} * {self}",
    "scalar_tensor": "{s}", "sigmoid": "1 / (1 + exp_of(-{self}))", "sin": "std::sin({self})",
    "sqrt": "std::sqrt({self})", "sub": "{self} - {alpha} * {other}", "tanh": "tanh_of({self})", "_to_copy": "{self}",
    "where": "{condition} ? {self} : {other}", "zero": "0", "zeros": "0", "zeros_like": "0",
    "leaky_relu": "{self} > 0 ? {self} : {self} * {negative_slope}",
    "leaky_relu_backward": "{self} > 0 ? {grad_output} : {grad_output} * {negative_slope}",
    "lerp": "std::abs({weight}) < T(0.5) ? {self} + {weight} * ({end} - {self}) "
    ": {end} - ({end} - {self}) * (1 - {weight})",
    "mse_loss": "({self} - {target}) * ({self} - {target})",
    "mse_loss_backward": "{grad_output} * 2 * ({self} - {target})",
    "sigmoid_backward": "{grad_output} * (1 - {output}) * {output}", "sgn": "({self} > 0) - ({self} < 0)",
    "silu": "{self} / (1 + exp_of(-{self}))",
    "silu_backward": "{grad_output} / (1 + exp_of(-{self})) * (1 + {self} / (1 + exp_of({self})))",
    "softplus": "{self} * {beta} > {threshold} ? {self} : std::log1p(exp_of({self} * {beta})) / {beta}",
    "softplus_backward": "{grad_output} / ({self} * {beta} > {threshold} ? 1 : 1 + exp_of(-{self} * {beta}))",
    "tanh_backward": "{grad_output} * (1 - {output} * {output})",
    "threshold_backward": "{self} <= {threshold} ? T(0) : {grad_output}",
    "eq": "{self} == {other}", "ne": "{self} != {other}", "lt": "{self} < {other}", "le": "{self} <= {other}",
    "gt": "{self} > {other}", "ge": "{self} >= {other}", "logical_and": "{self} & {other}",
    "logical_or": "{self} | {other}", "logical_xor": "{self} ^ {other}", "logical_not": "!{self}",
}  # fmt: skip
"""By name of an operation, the value of an element; T is the type that it is computed in."""

SUMS = {
    "sum": ("S", "0", "{a} += {x}", "{a}"),
    "mean": ("S", "0", "{a} += {x}", "{a} / {n}"),
    "dot": ("S", "0", "{a} += S({x}) * {y}", "{a}"),
    "linalg_vector_norm": ("S", "0", "{a} += S({x}) * {x}", "std::sqrt({a})"),
    "amax": ("T", "-INFINITY", "{a} = upper({a}, {x})", "{a}"),
    "amin": ("T", "INFINITY", "{a} = lower({a}, {x})", "{a}"),
    "argmax": ("T", "-INFINITY", "if ({a} == {a} && !({x} <= {a})) {a} = {x}, best = position; ++position", "best"),
    "any": ("bool", "0", "{a} |= {x} != 0", "{a}"),
    "all": ("bool", "1", "{a} &= {x} != 0", "{a}"),
}
"""Type and first value of what runs over elements x (and y), what each does to it, and what becomes of it at the end.

T is the type of the elements, and S the one in which they are summed.
"""
