"""MkDocs hooks: reports and notebooks as pages, equations as MathML, and an update's source beside its equations."""

import ast
import base64
import html
import json
import re
from pathlib import Path

from latex2mathml.converter import convert
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, InclusionLevel
from pygments import highlight
from pygments.formatters import HtmlFormatter
from pygments.lexers import PythonLexer

ROOT = Path(__file__).parents[1]
EQUATION = re.compile(r'<(span|div) class="arithmatex">\\[(\[](.*?)\\[)\]]</\1>', re.DOTALL)
BESIDE = re.compile(r"<!-- beside: (\S+) (\S+) -->\s*<table>(.*?)</table>", re.DOTALL)
ROW = re.compile(r"<tr>\s*<td>(.*?)</td>\s*<td>(.*?)</td>\s*</tr>", re.DOTALL)


def on_files(files, config):
    """Adds the changelog and the results of the benchmarks, which are outside `docs`, and the notebooks as pages."""
    changelog = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8").replace("](docs/", "](")
    files.append(File.generated(config, "changelog.md", content=changelog))
    for pattern in ("*/figures/*.svg", "*/report.md", "*.md"):
        for path in sorted((ROOT / "benchmarks/results").glob(pattern)):
            name = path.relative_to(ROOT).as_posix()
            file = File.generated(config, f"../{name}", abs_src_path=str(path), inclusion=InclusionLevel.NOT_IN_NAV)
            file.dest_uri = str(Path(name).with_suffix(".html")) if path.suffix == ".md" else name
            files.append(file)
    for path in sorted((ROOT / "docs/notebooks").glob("*.ipynb")):
        text = notebook(json.loads(path.read_text(encoding="utf-8")), path.name)
        files.append(File.generated(config, f"notebooks/{path.stem}.md", content=text))
    return files


def notebook(content, name):
    """A notebook, with its outputs, as Markdown."""
    parts = []
    for cell in content["cells"]:
        source = "".join(cell["source"])
        if cell["cell_type"] == "markdown":
            parts.append(re.sub(r"(?<=\w)\.ipynb\)", ".md)", source))
        else:
            parts += [f"``` {{ .python }}\n{source}\n```", *(as_markdown(output) for output in cell["outputs"])]
    return "\n\n".join([*parts, f"The notebook: [{name}]({name})."]) + "\n"


def as_markdown(output):
    """An output of a cell: a picture, HTML or text."""
    data = output.get("data", {})
    if "image/png" in data:
        return f'<img alt="" src="data:image/png;base64,{"".join(data["image/png"]).replace(chr(10), "")}">'
    if "image/svg+xml" in data:
        svg = base64.b64encode("".join(data["image/svg+xml"]).encode()).decode()
        return f'<img alt="" src="data:image/svg+xml;base64,{svg}">'
    if "text/html" in data:
        return "".join(data["text/html"])
    text = "".join(output.get("text", data.get("text/plain", [])))
    return f"``` {{ .text .no-copy .output }}\n{text}\n```"


def on_page_content(content, page, config, files):
    """Typesets equations, then places source code beside those of a table that asks for it."""
    content = EQUATION.sub(lambda match: mathml(match[2], "block" if match[1] == "div" else "inline"), content)
    return BESIDE.sub(lambda match: beside(match[1], match[2], ROW.findall(match[3])), content)


def mathml(escaped, display):
    """An equation in TeX, escaped for HTML, as MathML."""
    tex = html.unescape(escaped)
    result = convert(tex, display=display)
    result = re.sub(r'(?<=<mi mathvariant="normal">)(\w)</mi>(?:<mi mathvariant="normal">\w</mi>)+', _word, result)
    result = result.replace("<mi>log</mi>", '<mi>log</mi><mspace width="0.167em"/>')
    unknown = re.search(r"\\\w+|>&<", result)
    if unknown:
        raise PluginError(f"{unknown[0]!r} of the equation {tex.strip()!r} is unknown to latex2mathml")
    return result


def _word(match):
    """Upright letters side by side are one name."""
    return "".join(re.findall(r"(?:^|>)(\w)</mi>", match[0])) + "</mi>"


def beside(path, name, rows):
    """The source of a function with an equation beside each line that a row of the table names, in their order."""
    source, first = function(path, name)
    lines = highlight(source, PythonLexer(), HtmlFormatter(nowrap=True)).splitlines()
    texts = [html.unescape(re.sub(r"<.*?>", "", code)) for _, code in rows]
    starts = places(source.splitlines(), texts, f"{path} {name}")
    parts = [("", lines[: starts[0]])] if starts[0] else []
    for (equation, _), start, end in zip(rows, starts, [*starts[1:], len(lines)], strict=True):
        parts.append((equation, lines[start:end]))
    cells, number = [], first
    for equation, code in parts:
        text = "\n".join(f'<span class="no">{number + i}</span>{line}' for i, line in enumerate(code))
        cells.append(f'<div class="equation">{equation}</div><pre class="highlight"><code>{text}</code></pre>')
        number += len(code)
    caption = f'<p class="caption"><code>{path}</code>, <code>{name}</code></p>'
    return f'{caption}<div class="beside no-copy">{"".join(cells)}</div>'


def function(path, name):
    """The source of a function or method, `name` or `Class.name`, without its indentation, and its first line."""
    text = (ROOT / path).read_text(encoding="utf-8")
    node = ast.parse(text)
    for part in name.split("."):
        matches = [x for x in node.body if isinstance(x, ast.ClassDef | ast.FunctionDef) and x.name == part]
        if not matches:
            raise PluginError(f"{path} has no {name}")
        node = matches[0]
    lines = text.splitlines()[node.lineno - 1 : node.end_lineno]
    return "\n".join(line[node.col_offset :] for line in lines), node.lineno


def places(lines, texts, where):
    """The line in which each text begins, each after the one before."""
    starts = []
    for text in texts:
        later = range(starts[-1] + 1 if starts else 0, len(lines))
        start = next((i for i in later if begins(lines[i : i + 3], text)), None)
        if start is None:
            raise PluginError(f"{where} has no line {text!r} after the lines before it")
        starts.append(start)
    return starts


def begins(lines, text):
    """Whether a text begins in the first of some lines, whatever its spaces and line breaks."""
    first, *_ = squeezed = ["".join(line.split()) for line in lines]
    return 0 <= "".join(squeezed).find("".join(text.split())) < len(first)
