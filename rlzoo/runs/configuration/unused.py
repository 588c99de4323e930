"""Settings that have no effect beside others."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rlzoo.core.estimators import ESTIMATORS

_FIT = "vf_learning_rate vf_epochs vf_minibatch_size vf_minibatch_responses"


def unused(settings: Mapping[str, Any]) -> dict[str, str]:
    """The settings that have no effect, each with the reason.

    Args:
        settings: every setting of a run by its name, as `Config.to_dict` gives them.
    """
    given, name = settings.get, settings.get("estimator")
    estimator = ESTIMATORS.get(name) if isinstance(name, str) else None
    whole = estimator is not None and estimator.whole_episodes
    no_value = estimator is not None and not estimator.needs_value
    trpo = given("algorithm") == "trpo"
    rules = (
        (trpo and not given("epochs"), "learning_rate clip_coef minibatch_size minibatch_responses", "without epochs"),
        (trpo and given("epochs"), "cg_iters cg_damping fisher_fraction", "with epochs"),
        (given("baseline") is False, _FIT, "without baseline"),
        (given("vf_epochs") and no_value, f"baseline {_FIT}", f"with estimator {name}, which needs no value"),
        (given("vf_epochs") == 0, _FIT.replace("vf_epochs ", ""), "with vf_epochs 0"),
        (given("vf_coef") == 0, "clip_value vf_learning_rate vf_warmup critic", "with vf_coef 0"),
        (no_value and not given("vf_coef"), "critic", f"with estimator {name}, which needs no value"),
        (whole, "num_steps", f"with estimator {name}, which needs whole episodes"),
        (given("stop_kl") is not None, "compile", "with stop_kl"),
        (given("beta_target") is None, "beta_horizon", "without beta_target"),
        (given("ptx") is None, "ptx_coef ptx_rows", "without ptx"),
    )
    return {name: why for applies, names, why in rules if applies for name in names.split() if name in settings}
