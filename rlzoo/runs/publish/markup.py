"""Text in Markdown and HTML, where nothing that a file supplied is interpreted."""

from __future__ import annotations

import re
from typing import Any

import jinja2
from markupsafe import Markup

from rlzoo.core.system.screen import one_line

_MARKUP = r"[&<>\\`*|~$]|\{(?!\})|(?<!\w)_|_(?!\w)|\](?=[(\[:])|^[#+=-]|^\d(?=\d*[.)] )"
"""Characters that Markdown could interpret: brackets only before a target, braces around something, some signs only at
the start of a line."""


def escape(value: Any) -> Markup:
    """Text in one line, with the characters that Markdown or HTML would interpret replaced by entities."""
    if isinstance(value, Markup):
        return value
    return Markup(re.sub(_MARKUP, lambda match: f"&#{ord(match[0])};", one_line(value)))


def template(package: str, name: str) -> jinja2.Template:
    """A template of a package, for Markdown or HTML. Values that are not `Markup` go through `escape`."""
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader(package, ""),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        finalize=escape,
    )
    return environment.get_template(name)
