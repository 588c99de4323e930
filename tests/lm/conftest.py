"""Most tests of language models take a second or more: all but those of these files are slow."""

from pathlib import Path

import pytest

QUICK = {
    f"test_{name}"
    for name in ("tokens", "shaping", "scores", "data", "pretraining", "columns", "pass_at_k", "expressions")
}


def pytest_collection_modifyitems(items):
    for item in items:
        if Path(__file__).parent in item.path.parents and item.path.stem not in QUICK:
            item.add_marker(pytest.mark.slow)
