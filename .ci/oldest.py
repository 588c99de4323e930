"""Prints the oldest versions that pyproject.toml allows, as constraints for pip: `name==version` in each line.

PyTorch is left out. Its wheels are large, so it is tested with the version that the machine has.
"""

import itertools
import re
import tomllib
from pathlib import Path


def oldest(pyproject: str) -> list[str]:
    """The constraints of a `pyproject.toml`, of its dependencies and extras, without the tools of developers."""
    project = tomllib.loads(pyproject)["project"]
    extras = [extra for name, extra in project["optional-dependencies"].items() if name not in ("test", "docs")]
    requirements = itertools.chain(project["dependencies"], *extras)
    bounds = (re.match(r"([\w-]+)(?:\[.*\])?>=([\w.]+)", requirement) for requirement in requirements)
    return sorted({f"{bound[1]}=={bound[2]}" for bound in bounds if bound and bound[1] != "torch"})


if __name__ == "__main__":
    print("\n".join(oldest((Path(__file__).parents[1] / "pyproject.toml").read_text())))
