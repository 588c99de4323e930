"""The figure of a report that its reader changes: a Vega-Lite chart, and the code that draws it."""

from __future__ import annotations

import csv
import importlib.resources
import importlib.util
import io
import json
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import yaml

from rlzoo.benchmark.reports.data import METRIC
from rlzoo.benchmark.reports.figures import styles
from rlzoo.benchmark.reports.study import Study
from rlzoo.core.system.screen import one_line

_VEGA_LITE = "6.4"
_DRAW = """
const chart = %s, still = document.querySelector("p:has(img)"), place = document.createElement("div");
for (const { data } of chart.vconcat) {
  const link = document.querySelector(`a[download="${data.name}"]`);
  data.values = decodeURIComponent(link.getAttribute("href").replace(/^.*?,/, ""));
}
place.id = "chart";
still.before(place);
vegaEmbed(place, chart, {renderer: "svg", actions: {export: true, source: false, compiled: false, editor: false}})
  .then(() => still.remove());
"""
_DASHES = {"solid": [1, 0], "dashed": [6, 3], "dashdot": [6, 3, 1, 3], "dotted": [1, 3]}


def is_available() -> bool:
    """Whether the extra `report` is installed."""
    return importlib.util.find_spec("vl_convert") is not None


def script(chart: Mapping[str, Any]) -> str:
    """JavaScript, which loads nothing: a chart in the place of a page's first image, with the numbers in its links."""
    return _library() + _DRAW % json.dumps(chart, separators=(",", ":")).replace("<", r"\u003c")


@lru_cache
def _library() -> str:
    import vl_convert

    return str(vl_convert.javascript_bundle("window.vegaEmbed = vegaEmbed;", vl_version=_VEGA_LITE))


def chart(study: Study, numbers: Mapping[str, str]) -> dict[str, Any]:
    """Vega-Lite specification of learning curves and final scores, with a panel for each environment.

    Its parameters are the unit of time, what is drawn, and a box for each environment and each algorithm.

    Args:
        numbers: the texts of `scores.csv` and `curves.csv`, which the chart refers to by these names.
    """
    file = importlib.resources.files("rlzoo.benchmark") / "templates" / "chart.yaml"
    chart: dict[str, Any] = yaml.safe_load(file.read_text(encoding="utf-8"))
    environments = {one_line(name): x.threshold for name, x in study.environments.items()}
    look = {one_line(name): style for name, style in styles(study.algorithms.values()).items()}
    thresholds = {"values": [{"environment": name, "threshold": x} for name, x in environments.items()]}
    lookup = {"data": thresholds, "key": "environment", "fields": ["threshold"]}
    transforms: list[dict[str, Any]] = [{"lookup": "environment", "from": lookup}]
    params, radios = [], chart["params"]
    for field, names in (("environment", list(environments)), ("algorithm", list(look))):
        options = {f"{field}_{i}": name for i, name in enumerate(names)}
        boxes = [{"name": x, "value": True, "bind": {"input": "checkbox", "name": name}} for x, name in options.items()]
        chosen = [f"({x} && datum.{field} === {json.dumps(name)})" for x, name in options.items()]
        params += [radios.pop(0), *boxes]
        transforms.append({"filter": " || ".join(chosen)})
    chart["params"] = params
    ranges = {
        "color": [x["color"] for x in look.values()],
        "strokeDash": [_DASHES.get(x := style["linestyle"]) or x[1] for style in look.values()],
    }
    for panels in chart["vconcat"]:
        columns = next(csv.reader(io.StringIO(numbers[panels["data"]["name"]])))
        parse = {x: "string" if x in ("environment", "algorithm", "seed") else "number" for x in columns}
        panels["data"]["format"] = {"type": "csv", "parse": parse}
        panels["transform"][:0] = transforms
        panels["facet"]["sort"] = list(environments)
        encoding = panels["spec"]["encoding"]
        for channel in ranges.keys() & encoding.keys():
            encoding[channel]["scale"] = {"domain": list(look), "range": ranges[channel]}
    chart["vconcat"][1]["spec"]["encoding"]["y"]["sort"] = list(look)
    if study.against:
        spec = chart["vconcat"][1]["spec"]
        axis = {"type": "quantitative", "scale": {"zero": False}}
        spec |= {"height": 180, "layer": spec["layer"][1:]}
        spec["encoding"]["x"] = {"field": METRIC + study.against.replace(".", r"\."), "title": study.against, **axis}
        spec["encoding"]["y"] = {"field": "score", "title": "score", **axis}
    return chart
