"""The documentation is true: its Python runs, its commands parse, its tables and quotations are those of the code."""

import dataclasses
import importlib
import itertools
import re
import runpy
import shlex
import sys
from decimal import ROUND_HALF_UP, Decimal
from pathlib import Path

import gymnasium
import pytest

import rlzoo
import rlzoo.control.envs.no_velocity
from rlzoo import cli
from rlzoo.benchmark.reports.statistics import iqm
from rlzoo.benchmark.reports.study import Study
from rlzoo.benchmark.results import Results
from rlzoo.benchmark.suite import load_suite
from rlzoo.cli import options
from rlzoo.control.task import NETWORKS
from rlzoo.core.estimators import ALIASES as OTHER_NAMES
from rlzoo.core.estimators import ESTIMATORS
from rlzoo.lm.finetune.data import read_examples, read_pairs
from rlzoo.lm.tasks.settings import Language
from rlzoo.runs.configuration.config import make_config
from rlzoo.runs.configuration.presets import recipes
from rlzoo.runs.registry import ALGORITHMS, ALIASES, TASKS, algorithm_class
from rlzoo.runs.run import Run
from rlzoo.runs.session import Session

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
WITH_PYTHON = [page for page in PAGES if "```python" in page.read_text()]
WITH_COMMANDS = [page for page in PAGES if "rlzoo" in page.read_text() and "```sh" in page.read_text()]

BLOCK = re.compile(r'^```(python|sh|json|yaml)(?: title="(.+?)")?\n(.*?)^```', re.MULTILINE | re.DOTALL)
QUOTATION = re.compile(r'^```(?:py| { \.python \.source) title="(.+?)"(?: })?\n(.*?)^```', re.MULTILINE | re.DOTALL)
SOURCES = {str(path.relative_to(ROOT)): path.read_text() for path in sorted((ROOT / "rlzoo").rglob("*.py"))}


def name_of(page):
    return str(page.relative_to(ROOT))


def blocks(page):
    """(language, title, text) of each block of code that runs, in order."""
    return [(language, title, text) for language, title, text in BLOCK.findall(page.read_text())]


def commands(text):
    """The simple commands of a shell block, as lists of words."""
    for line in re.split(r"\n|&&|;", text.replace("\\\n", " ")):
        words = shlex.split(re.sub(r"\$\w*", "0", line.replace("$algorithm", "npg")), comments=True)
        if words:
            yield words


def arguments_of(words):
    """What a command gives to rlzoo; None if it calls something else."""
    if Path(words[0]).name == "rlzoo":
        return words[1:]
    return words[3:] if words[:3] == ["python", "-m", "rlzoo"] else None


@pytest.fixture
def workplace(tmp_path, monkeypatch):
    """An empty current directory, from which modules can be imported; they are forgotten afterwards."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    before = set(gymnasium.registry)
    yield tmp_path
    for path in tmp_path.glob("*.py"):
        sys.modules.pop(path.stem, None)
    for env in set(gymnasium.registry) - before:
        del gymnasium.registry[env]


@pytest.fixture
def brief(monkeypatch):
    """Training ends with its second iteration, final evaluations have few episodes, and fits use few texts."""
    iterate = rlzoo.Trainer.iterate

    def iterate_and_count(trainer):
        trainer.turns = getattr(trainer, "turns", 0) + 1
        return iterate(trainer)

    monkeypatch.setattr(rlzoo.Trainer, "iterate", iterate_and_count)
    monkeypatch.setattr(rlzoo.Trainer, "done", property(lambda trainer: getattr(trainer, "turns", 0) >= 2))
    evaluate = Session._evaluate
    monkeypatch.setattr(Session, "_evaluate", lambda run, episodes, *kind, **more: evaluate(run, 4, *kind, **more))
    monkeypatch.setattr("rlzoo.runs.finetune.read_examples", lambda source: read_examples(source)[:100])
    monkeypatch.setattr("rlzoo.runs.finetune.read_pairs", lambda *arguments: read_pairs(*arguments)[:100])


SLOW = [page for page in WITH_PYTHON if page.name != "README.md"]


@pytest.mark.parametrize(
    "page", [pytest.param(p, marks=[pytest.mark.slow] if p in SLOW else []) for p in WITH_PYTHON], ids=name_of
)
def test_python_runs(page, workplace, brief):
    namespace = {"__name__": "__main__"}
    for language, title, text in blocks(page):
        if title:
            (workplace / title).write_text(text)
        elif language == "python":
            exec(compile(text, name_of(page), "exec"), namespace)
        elif language == "sh":
            for words in commands(text):
                if words[0] == "python" and (workplace / words[-1]).is_file():
                    runpy.run_path(words[-1], run_name="__main__")


def test_outputs_on_the_page_of_ppo_by_hand(workplace, capsys):
    page = ROOT / "docs/ppo-by-hand.md"
    shown = re.findall(r"^```{ \.text \.no-copy }\n(.*?)^```", page.read_text(), re.MULTILINE | re.DOTALL)
    namespace = {}
    for _, _, text in blocks(page):
        exec(text, namespace)
    assert capsys.readouterr().out == "".join(shown)


class Parsed(Exception):  # noqa: N818
    """A command was understood."""


@pytest.mark.parametrize("page", WITH_COMMANDS, ids=name_of)
def test_commands_parse(page, workplace, monkeypatch, capsys):
    parse = options.parse

    def parse_and_stop(*arguments, partly=False):
        try:
            options_ = parse(*arguments, partly=partly)
        except SystemExit as done:
            raise Parsed from done
        if partly:
            return options_
        raise Parsed

    for module in (cli.benchmarks, cli.language, cli.policies, cli.runs, options):
        monkeypatch.setattr(module, "parse", parse_and_stop)
    for path in ("runs/cartpole", "runs/old", "runs/first"):  # for --config
        Run(path).write_config(make_config("ppo-clip", "CartPole-v1"))
    preset = workplace / "searches" / "ppo-clip-CartPole-v1" / "preset.toml"  # for --preset
    preset.parent.mkdir(parents=True)
    preset.write_text("[CartPole-v1]\n")
    for language, title, text in blocks(page):
        if title:
            (workplace / title).write_text(text)
        elif language == "sh":
            for words in commands(text):
                arguments = arguments_of(words)
                if arguments is not None:
                    try:
                        cli.main(arguments)
                        pytest.fail(f"{' '.join(words)}: {capsys.readouterr().err}")
                    except Parsed:
                        pass


def settings_tables(page):
    """[(name, default), ...] of each table of settings."""
    tables = re.findall(r"^\| setting \| default .*\n\|.*\n((?:\|.*\n)+)", page.read_text(), re.MULTILINE)
    return [re.findall(r"^\| `(\w+)` \| (.*?) \|", table, re.MULTILINE) for table in tables]


def as_shown(default):
    """As the pages write it."""
    if isinstance(default, bool):
        return "on" if default else "off"
    if isinstance(default, tuple):
        return " ".join(map(str, default)) or "none"
    return "none" if default is None else str(default)


def settings_of(part, leave_out=()):
    """[(name, default), ...] of a dataclass's instance."""
    return [(f.name, as_shown(getattr(part, f.name))) for f in dataclasses.fields(part) if f.name not in leave_out]


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_table_of_settings_is_the_algorithms(algorithm):
    (table,) = settings_tables(ROOT / f"docs/algorithms/{algorithm}.md")
    instance = algorithm_class(algorithm)()
    assert table == settings_of(instance.estimator) + settings_of(instance, leave_out=("estimator",))


def test_tables_of_shared_settings_are_those_of_the_code():
    run, control, language, network, estimator = settings_tables(ROOT / "docs/settings.md")
    config = make_config("ppo-clip", "CartPole-v1")
    assert run == settings_of(config, leave_out=("env", "algorithm", "task"))
    assert control == settings_of(config.task, leave_out=("network",))
    assert language == settings_of(Language())
    assert network == settings_of(config.task.network)
    assert estimator == settings_of(rlzoo.GAE())


def as_written(cell):
    """A value of the table of recipes: numbers are equal however they are written."""
    try:
        return float(cell)
    except ValueError:
        return {"on": True, "off": False}.get(cell, cell)


def without_none(table):
    """None as the file and the page write it."""
    return {name: {k: "none" if x is None else x for k, x in row.items()} for name, row in table.items()}


def test_table_of_recipes_is_the_recipes():
    rows = re.findall(r"^\| `(\w+)` \| (.*) \|$", (ROOT / "docs/recipes.md").read_text(), re.MULTILINE)
    header = re.search(r"^\| setting \| (.*) \|$", (ROOT / "docs/recipes.md").read_text(), re.MULTILINE)[1]
    names = [name.strip("`") for name in header.split(" | ")]
    table = {name: {} for name in names}
    for setting, cells in rows:
        for name, cell in zip(names, cells.split(" | "), strict=True):
            if cell != "–":
                table[name][setting] = as_written(cell)
    assert table == without_none(recipes())


def names(text):
    """The names in code."""
    return re.findall(r"`([A-Za-z][\w-]*)`", text)


def names_between(page, start, end):
    return names(re.search(f"{re.escape(start)}(.*?){re.escape(end)}", page.read_text(), re.DOTALL)[1])


def names_in_table(page, header):
    """The names in the first column of the table with that first heading."""
    table = re.search(rf"^\| {header} \|.*\n\|.*\n((?:\|.*\n)+)", page.read_text(), re.MULTILINE)[1]
    return names(" ".join(re.findall(r"^\| (.*?) \|", table, re.MULTILINE)))


def test_lists_of_names_on_the_page_of_commands():
    page = ROOT / "docs/command-line.md"
    assert names_between(page, "ALGORITHM is", "or `module:Class`") == [*ALGORITHMS, *ALIASES]
    assert names_between(page, "[a language task](tasks.md):", "for [your own]") == list(TASKS)
    assert {*names_between(page, "| `--network NAME` |", "or `module:Class`")} == {*NETWORKS}
    estimators = names_between(page, "| `--estimator NAME` |", "instead of")
    assert sorted(estimators) == sorted([*ESTIMATORS, *OTHER_NAMES])
    listed = page.read_text().split("```")[1]
    assert re.findall(r"^rlzoo ([a-z-]+)", listed, re.MULTILINE) == list(cli._COMMANDS)
    assert re.findall(r"^## ([a-z-]+)$", page.read_text(), re.MULTILINE) == list(cli._COMMANDS)


def test_lists_of_networks_estimators_and_suites():
    assert {*names_in_table(ROOT / "docs/interfaces.md", "kind")} == {*NETWORKS}
    settings = names_between(ROOT / "docs/settings.md", "## The estimators", "Every algorithm works")
    assert {*ESTIMATORS, *OTHER_NAMES} <= {*settings}
    suites = {path.stem for path in (ROOT / "benchmarks/suites").glob("*.yaml")}
    assert {*names_in_table(ROOT / "docs/benchmarks.md", "suite")} == suites


def test_help_of_train_names_all_networks_and_estimators(capsys):
    cli.main(["train", "--help"])
    words = re.findall(r"[\w-]+", capsys.readouterr().out)
    assert {*NETWORKS, *ESTIMATORS, *OTHER_NAMES, *TASKS, *ALGORITHMS} <= {*words}


def test_help_shows_a_default_for_every_option(capsys):
    cli.main(["train", "ppo-clip", "CartPole-v1", "--help-all"])
    assert not re.search(r"default:[\s│]*\)", capsys.readouterr().out)


SECTIONS = {name: name for name in cli._COMMANDS if name != "train"}
SECTIONS |= {"play": "play|eval", "sft": "sft|reward-model"}  # as the page says there


@pytest.mark.parametrize("command", SECTIONS)
def test_options_of_a_command_are_in_its_section(command, capsys):
    cli.main([command, "--help"])
    options = {*re.findall(r"^[│ ]*(--[a-z][\w-]+)", capsys.readouterr().out, re.MULTILINE)} - {"--help-all"}
    assert options
    page = (ROOT / "docs/command-line.md").read_text()
    sections = re.findall(rf"^## (?:{SECTIONS[command]})$(.*?)(?=^## )", page, re.MULTILINE | re.DOTALL)
    assert sorted(options - {*re.findall(r"--[a-z][\w-]+", " ".join(sections))}) == []


def test_results_of_a_suite_are_a_table_of_pandas(workplace):
    page = (ROOT / "docs/benchmarks.md").read_text()
    block = re.search(r"^``` { \.python \.no-copy }\n(import pandas.*?)```", page, re.MULTILINE | re.DOTALL)[1]
    (workplace / "results").symlink_to(RESULTS)
    namespace = {}
    exec(block, namespace)
    assert len(namespace["curves"]) == sum(map(len, namespace["results"]["steps"]))
    assert {*namespace["results"]["label"]} == {*ALGORITHMS}


def test_language_tasks_are_on_their_page():
    rows = re.findall(r"^\| `(\w+)` \|", (ROOT / "docs/tasks.md").read_text(), re.MULTILINE)
    assert rows == list(TASKS)


def test_metrics_of_language_models_are_explained(workplace):
    from rlzoo.lm.finetune import sft
    from rlzoo.lm.model import pretrained, saving

    tokenizer = sft.train_tokenizer(["ab"], 258)
    shape = {"model_type": "gpt2", "n_layer": 1, "n_embd": 8, "n_head": 1}
    saving.save(pretrained.new_causal_lm(shape, len(tokenizer)), tokenizer, "model")
    Path("prompts.txt").write_text("a\nb\n")
    Path("score.py").write_text("def score(prompts, responses):\n    return range(len(responses))\n")
    task = {"model": "model", "prompts": "prompts.txt", "reward": "score.py:score", "max_new_tokens": 4}
    task |= {"total_steps": 8, "eval_episodes": 2}
    for algorithm in ("ppo-clip", "trpo"):
        config = make_config(algorithm, "Prompts", **task)
        run = rlzoo.train(config, out=algorithm)
        assert not unexplained(run)


def unexplained(run):
    """What a run records and the page of metrics has no row for."""
    rows = re.findall(r"^\| ((?:`\w+`(?:, )?)+) \|", (ROOT / "docs/metrics.md").read_text(), re.MULTILINE)
    on_page = {name for row in rows for name in re.findall(r"`(\w+)`", row)}
    return {name for line in (*run.metrics(), *run.evaluations()) for name in line} - on_page


@pytest.mark.parametrize("env", ["CartPole-v1", "Pendulum-v1"])
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_all_metrics_have_a_row_on_their_page(algorithm, env, tmp_path):
    run = rlzoo.train(
        algorithm, env, preset=False, num_envs=2, num_steps=128, total_steps=256, eval_episodes=1, out=tmp_path / "run"
    )
    assert run.metrics()
    assert not unexplained(run)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_metrics_are_explained(algorithm):
    trainer = rlzoo.Trainer(make_config(algorithm, "CartPole-v1", num_envs=2, num_steps=64))
    page = (ROOT / f"docs/algorithms/{algorithm}.md").read_text()
    missing = [name for name in trainer.iterate().metrics if f"`{name}`" not in page]
    assert not missing


@pytest.mark.parametrize("page", [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md"], ids=name_of)
def test_links_lead_to_files(page):
    links = re.findall(r"(?<!!)\[[^]]*\]\(([^)#]+)", page.read_text())
    assert [link for link in links if "://" not in link and not (ROOT / link).exists()] == []


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_files_and_tests_that_are_named_exist(page):
    for path, test in re.findall(r"`((?:rlzoo|tests|benchmarks)/[\w/.-]+\.(?:py|toml))(?:::(\w+))?`", page.read_text()):
        assert (ROOT / path).is_file(), path
        assert not test or f"def {test}(" in (ROOT / path).read_text(), f"{path}::{test}"


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_images_exist(page):
    images = re.findall(r"!\[[^]]*\]\(([^)]+)\)", page.read_text())
    assert [image for image in images if not (page.parent / image).is_file()] == []


def squeezed(text):
    """Without white space, so that line breaks and indentation do not count."""
    return re.sub(r"\s+", "", text)


QUOTATIONS = [(page, *quotation) for page in PAGES for quotation in QUOTATION.findall(page.read_text())]


@pytest.mark.parametrize(("page", "path", "text"), QUOTATIONS, ids=[f"{name_of(p)}-{q}" for p, q, _ in QUOTATIONS])
def test_quoted_code_is_the_source(page, path, text):
    assert squeezed(text) in squeezed(SOURCES[path])


def code_beside_equations():
    """(page, code) for each piece of code in the tables of equations and code."""
    for page in PAGES:
        for table in re.findall(r"^\| equation \| code.*\n\|.*\n((?:\|.*\n)+)", page.read_text(), re.MULTILINE):
            for cell in re.findall(r"^\| .* \| (.*) \|$", table, re.MULTILINE):
                yield from ((page, code) for code in re.findall(r"`([^`]+)`", cell))


CODE = list(code_beside_equations())


@pytest.mark.parametrize(("page", "code"), CODE, ids=[f"{name_of(page)}-{code}" for page, code in CODE])
def test_code_beside_an_equation_is_in_the_source(page, code):
    if method := re.fullmatch(r"([A-Z]\w+)\.(\w+)", code):
        homes = [text for text in SOURCES.values() if f"class {method[1]}" in text]
        assert any(f"def {method[2]}(" in text for text in homes)
    else:
        assert code in SOURCES or any(squeezed(code) in squeezed(text) for text in SOURCES.values())


def exists(name):
    """Whether a dotted name is that of a module, or of something in one."""
    parts = name.split(".")
    for end in range(len(parts), 0, -1):
        module = ".".join(parts[:end])
        try:
            thing = importlib.import_module(module)
        except ModuleNotFoundError as error:
            if error.name is None or not f"{module}.".startswith(f"{error.name}."):
                raise
            continue
        for part in parts[end:]:
            if not hasattr(thing, part) and part not in getattr(thing, "__annotations__", {}):
                return False
            thing = getattr(thing, part, None)
        return True
    return False


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_names_in_rlzoo_exist(page):
    text = page.read_text()
    names = set(re.findall(r"(?<![\w/.'-])rlzoo(?:\.[A-Za-z_]\w*)+(?!\w*[/:-])", text))
    for module, imported in re.findall(r"^from (rlzoo[\w.]*) import \(?([^)\n]+)", text, re.MULTILINE):
        names |= {f"{module}.{name.strip()}" for name in imported.split(",")}
    for module, members in re.findall(r"^::: (\S+)\n(?: {4}.*\n)*? +members:(?: \[(.*)\]\n|\n)", text, re.MULTILINE):
        names |= {f"{module}.{name.strip()}" for name in members.split(",") if name}
    assert [name for name in sorted(names) if not exists(name)] == []


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_environments_exist(page):
    text = page.read_text()
    ids = set(re.findall(r"\b(?:[a-z]+/)?[A-Z][A-Za-z0-9]*-v\d+\b(?!\S*\.webp)", text))
    own = set(re.findall(r"gymnasium\.register\(\"(.+?)\"", text))
    assert ids - own - set(gymnasium.registry) == set()


SUITES = [(page, title) for page in PAGES for kind, title, _ in blocks(page) if kind == "yaml" and title]


@pytest.mark.parametrize(("page", "title"), SUITES, ids=[f"{name_of(page)}-{title}" for page, title in SUITES])
def test_suites_can_be_loaded(page, title, workplace):
    for _, name, block in blocks(page):
        if name:
            (workplace / name).write_text(block)
    assert load_suite(title).jobs


RESULTS = ROOT / "benchmarks/results"
TABLES = {path.read_text() for path in RESULTS.glob("*.md")}
NUMBER = r"(?<![\w.])−?(?:\d{1,3}(?:,\d{3})+|\d+)(?:\.\d+)?"
FIGURE = re.compile(rf"{NUMBER}(?: \[{NUMBER}, {NUMBER}\])?")
UNSAID = {"rlzoo", "float32", "fp32", "without"}
"""Words of a row that a passage about it need not have."""
SAID_AS = {"bf16": "bfloat16", "box": "continuous"}


def numbers(text):
    """The numbers in a text, with their decimals."""
    return [Decimal(x.replace(",", "").replace("−", "-")) for x in re.findall(NUMBER, text)]


def rows(results, said):
    """[(words, figures), ...] of rows of tables: the words of what they are of, and what was measured.

    A report has many columns: only the final scores count, and the columns that have one of the words `said`. Its table
    of each algorithm against each counts for probabilities.
    """
    is_report = results.startswith("# ")
    for table in re.findall(r"(?:^\|.*\n)+", results.partition("## Runs and settings")[0], re.MULTILINE):
        header, _, *lines = ([cell.replace("**", "") for cell in x[2:-2].split(" | ")] for x in table.splitlines())
        if is_report and header[0] == "Algorithm" and "probability" not in said:
            continue
        meant = [not is_report or words(cell) & {*said, "stochastic"} - {"with"} for cell in header]
        for cells in lines:
            measured = [numbers(x[0]) for x in map(FIGURE.match, itertools.compress(cells, meant)) if x]
            labels = [re.sub(r"rlzoo\S*/|-v\d", "", cell) for cell in cells if not FIGURE.match(cell)]
            yield words(" ".join(labels)) - UNSAID, measured


def words(text):
    return {SAID_AS.get(word, word) for word in re.findall(r"[a-z][a-z0-9]{2,}", text.lower().replace("novel", ""))}


def claimed(passage, tables):
    """What was measured in the rows that a passage is about: those whose words it has, or parts of them."""
    said = words(passage) | (words(" ".join(ALGORITHMS)) if re.search("[Tt]he five|[Bb]oth PPOs", passage) else set())
    for table in tables:
        for named, measured in rows(table, said):
            if all(any(word in x or x in word for x in said) for word in named):
                yield from measured


def is_rounded(shown, exact):
    """Whether a figure is another one, interval included, to the digits that it shows."""
    pairs = list(zip(shown, exact, strict=False))
    return len(shown) <= len(exact) and all(
        x.as_tuple().exponent >= y.as_tuple().exponent and x == y.quantize(x, ROUND_HALF_UP) for x, y in pairs
    )


def passages(page):
    """Paragraphs, items of lists and rows of tables, without blocks of code."""
    text = re.sub(r"^```.*?^```$", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    return [part for part in re.split(r"\n\s*\n|\n(?=- |\| |\d\. |#)", text) if part.strip()]


def sources(page, passage):
    """The committed results that a passage names: by a link, or by the command that made them."""
    links = re.findall(r"\(([^()]*benchmarks/results/[^()]*\.md)\)", passage)
    scripts = re.findall(r"`python benchmarks/(?:\w+/)?(\w+\.py \w+)", passage)
    tables = [table for script in scripts for table in TABLES if f"/{script}" in table]
    return [(page.parent / link).resolve().read_text() for link in links] + tables


def figures(passage):
    """What a passage says was measured: with decimals, thousands or a sign, and not the version of a program."""
    prose = re.sub(
        r"`[^`]*`|\]\([^)]*\)|\$[^$]*\$|\b(?:Python|TRL) [\d.]+|λ of [\d. or]+|on the same seed[^.;]*", "", passage
    )
    return [numbers(x[0]) for x in FIGURE.finditer(prose) if not x[0].isdigit()]


# On the first pages every measured number needs a source; elsewhere, those beside a source are checked.
FIRST = [ROOT / "README.md", ROOT / "docs/index.md", ROOT / "docs/performance.md"]
FIGURES = [
    (page, passage)
    for page in (*FIRST, ROOT / "docs/benchmarks.md", *sorted((ROOT / "docs/algorithms").glob("*.md")))
    for passage in passages(page)
    if figures(passage) and (page in FIRST or sources(page, passage))
]


@pytest.mark.parametrize(("page", "passage"), FIGURES, ids=[f"{name_of(page)}-{text[:40]}" for page, text in FIGURES])
def test_figures_are_those_of_the_committed_results(page, passage):
    tables = sources(page, passage)
    assert tables, f"no source beside the figures of: {passage}"
    measured = list(claimed(passage, tables))
    wrong = [x for x in figures(passage) if not any(is_rounded(x, y) for y in measured)]
    assert not wrong, f"{wrong} are not in the rows of: {passage}"


def test_scores_of_the_real_model_are_those_of_the_suite():
    """Interquartile means over the seeds, and the minutes of the fastest run on a CPU."""
    study = Study.of([Results.read(RESULTS / "real")])
    expected = []
    for (name, env), group in study.groups.items():
        before = [run.stochastic[0] for run in group.runs]
        kl, words = group.metric("kl_reference"), group.metric("distinct_words")
        scores = (before, group.final, group.final_deterministic)
        cells = [*(f"{float(iqm([x])):.2f}" for x in scores), f"{float(iqm([kl])):.1f}", f"{float(iqm([words])):.2f}"]
        seconds = [run.seconds[-1] for run in group.runs if run.settings["device"] == "cpu"]
        minutes = f"{min(seconds) / 60:.0f}" if seconds else "–"
        assert len(group.runs) == 3
        expected.append(f"| `{env}` | `{name}` | {' | '.join(cells)} | {minutes} |")
    lines = (ROOT / "docs/real-models-results.md").read_text().splitlines()
    assert [line for line in lines if re.match(r"\| `\w+` \| `[\w-]+` \|", line)] == expected


def test_speed_in_words_has_its_source_too():
    for page in (ROOT / "README.md", ROOT / "docs/performance.md"):
        for passage in passages(page):
            assert not re.search(r"\d times|(two|three|four|five|twice) (times )?as fast", passage), passage


def test_files_to_read_for_a_contribution_are_as_long_as_it_says():
    text = (ROOT / "CONTRIBUTING.md").read_text()
    lists = re.findall(r"about (\d+)\s+lines.*?^wc -l (.+?)$", text, re.MULTILINE | re.DOTALL)
    assert len(lists) == 3
    for lines, files in lists:
        total = sum(len(SOURCES[path].splitlines()) for path in files.split())
        assert len(files.split()) <= 4
        assert total <= 600
        assert total == pytest.approx(int(lines), rel=0.05)


def test_methods_of_a_language_task_are_on_the_page():
    text = (ROOT / "docs/tasks-of-your-own.md").read_text()
    own = {name for name in vars(rlzoo.LanguageTask) if name.startswith("own_")}
    assert set(re.findall(r"^\| `(own_\w+)` \|", text, re.MULTILINE)) == own
