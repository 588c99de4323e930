"""Text in Markdown and HTML, with everything that they would interpret escaped."""

from __future__ import annotations

import re
from typing import Any

import jinja2
from markupsafe import Markup

_MARKUP = r"[&<>\\`*|~$]|(?<!\w)_|_(?!\w)|\](?=[(\[:])|^[#+=-]|^\d(?=\d*[.)] )"
"""Characters that Markdown could interpret: brackets only before a target, some signs only at the start of a line."""


def escaped(value: Any) -> Markup:
    """Text with the characters that Markdown or HTML would interpret replaced by entities."""
    if isinstance(value, Markup):
        return value
    return Markup(re.sub(_MARKUP, lambda match: f"&#{ord(match[0])};", str(value)))


def template(package: str, name: str, **options: Any) -> jinja2.Template:
    """A template of a package. Values are escaped for HTML; with `finalize=escaped` for Markdown too."""
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader(package, ""),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        **options,
    )
    return environment.get_template(name)
