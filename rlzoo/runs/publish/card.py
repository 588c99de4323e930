"""The model card of a run: its README.md on the Hugging Face hub, with the training curve as a picture."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from markupsafe import Markup

from rlzoo.core.system.screen import one_line
from rlzoo.runs.configuration.record import NOT_SETTINGS
from rlzoo.runs.publish.markup import template
from rlzoo.runs.run import Run


def card(run: Run, step: int, name: str, spaces: Mapping[str, str], has_curve: bool) -> str:
    """README.md of a checkpoint that `load_policy` loads by `name`: evaluations, loading, spaces, settings."""
    from huggingface_hub import EvalResult, ModelCardData

    record = run.record
    env, algorithm, task = _text(record["env"]), _text(record["algorithm"]), "reinforcement-learning"
    metadata = ModelCardData(
        library_name="rlzoo", pipeline_tag=task, tags=[env, algorithm, task, "deep-reinforcement-learning", "rlzoo"]
    )
    kinds = {_kind(e): e for e in run.evaluations() if e["step"] == step}  # the last of each kind
    evaluation = kinds.get("deterministic", kinds.get("stochastic"))
    if evaluation is not None:  # for the hub's leaderboards
        value = f"{evaluation['mean_return']:.2f} +/- {evaluation['std_return']:.2f}"
        result = EvalResult(task, env, env, "mean_reward", value, task_name=task, metric_name="mean_reward")
        metadata.model_name, metadata.eval_results = algorithm, [result]
    figures = {kind: _figures(evaluation) for kind, evaluation in kinds.items()}
    about = {"kinds": figures, "objects": run.objects, "has_curve": has_curve}
    return _render("card.md.jinja", record, metadata, step, name, spaces, **about)


def language_card(run: Run, step: int, name: str, origin: Mapping[str, str], has_curve: bool) -> str:
    """README.md of a model that transformers loads by `name`: its origin, evaluations, samples, loading and settings.

    Args:
        origin: "base", the Hub name of the initial model, and its "license"; empty where unknown.
    """
    from huggingface_hub import ModelCardData

    record = run.record
    metadata = ModelCardData(
        library_name="transformers",
        pipeline_tag="text-generation",
        tags=[_text(record["env"]), _text(record["algorithm"]), "reinforcement-learning", "rlzoo"],
        base_model=origin["base"] or None,
        license=origin["license"] or None,
    )
    evaluations = [e for e in run.evaluations() if e["step"] in (0, step)]
    kinds = {("start, " if e["step"] < step else "") + _kind(e): e for e in evaluations}
    sampled = [e["samples"] for e in evaluations if e["step"] == step and e.get("samples")]
    facts = {
        "initial model": origin["base"] or "not on the Hugging Face hub",
        "licence of the initial model": origin["license"] or "unknown",
    }
    about: dict[str, Any] = {
        "kinds": {kind: _scores(evaluation) for kind, evaluation in kinds.items()},
        "samples": [
            {name: f"{x:.3g}" if isinstance(x, float) else _text(x) for name, x in sample.items()}
            for sample in (sampled[-1] if sampled else [])
        ],
        "has_curve": has_curve,
    }
    return _render("language_card.md.jinja", record, metadata, step, name, facts, **about)


def _render(
    file: str, record: Mapping[str, Any], metadata: Any, step: int, name: str, facts: Mapping[str, str], **about: Any
) -> str:
    """A card from its template, with what all cards have: settings and versions from `config.json`."""
    hidden = {"env", "algorithm", *NOT_SETTINGS}
    return template("rlzoo.runs.publish", file).render(
        metadata=Markup(f"{metadata.to_yaml()}\n"),
        algorithm=_text(record["algorithm"]),
        env=_text(record["env"]),
        step=f"{step:,}",
        name=Markup(json.dumps(name)),
        settings={name: _text(_without_folder(x)) for name, x in record.items() if name not in hidden},
        facts={**facts, **record.get("versions", {})},
        **about,
    )


def _without_folder(value: Any) -> Any:
    """A setting with the names of files alone: the folders of a machine are nothing to publish."""
    if isinstance(value, list):
        return list(map(_without_folder, value))
    return Path(value).name if isinstance(value, str) and Path(value).is_absolute() else value


def _kind(evaluation: Mapping[str, Any]) -> str:
    return "deterministic" if evaluation["deterministic"] else "stochastic"


def _scores(evaluation: Mapping[str, Any]) -> list[str]:
    """Mean score, its 95 % interval (none of an exact one), KL to the reference, and responses."""
    mean, half = evaluation["mean_return"], 1.96 * evaluation["std_return"] / math.sqrt(evaluation["episodes"])
    interval = "exact" if evaluation.get("exact") else f"{mean - half:,.3f} to {mean + half:,.3f}"
    kl = evaluation.get("kl_reference")
    return [f"{mean:,.3f}", interval, "" if kl is None else f"{kl:,.2f}", f"{evaluation['episodes']:,}"]


def curve(run: Run, step: int) -> bytes | None:
    """The curves up to `step` (see `notebook.plot`) as a PNG; None if training has fewer than two points."""
    from rlzoo.runs.publish.notebook import plot, points  # imports Matplotlib

    metrics, evaluations = ([r for r in records if r["step"] <= step] for records in (run.metrics(), run.evaluations()))
    return plot(metrics, evaluations).png(dpi=120) if len(points(metrics, "mean_return")) > 1 else None


def _figures(evaluation: Mapping[str, Any]) -> list[str]:
    """Mean return, its standard error, standard deviation over episodes, and episodes."""
    std, episodes = evaluation["std_return"], evaluation["episodes"]
    return [f"{evaluation['mean_return']:,.2f}", f"{std / math.sqrt(episodes):,.2f}", f"{std:,.2f}", f"{episodes:,}"]


def _text(value: Any) -> str:
    """A value of `config.json`, in one line. An object is its description."""
    if isinstance(value, dict) and set(value) == {"object"}:
        value = str(value["object"])
    return one_line(value) if isinstance(value, str) else "none" if value is None else json.dumps(value)
