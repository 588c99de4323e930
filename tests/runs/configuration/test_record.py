"""What a run's record says."""

import importlib.metadata
import sys

import pytest

from rlzoo.runs.configuration.record import versions


@pytest.mark.parametrize("name", ["transformers", "tokenizers", "peft"])
def test_libraries_of_language_models_are_named_where_they_are_used(name, monkeypatch):
    module = pytest.importorskip(name)
    monkeypatch.setitem(sys.modules, name, None)
    assert name not in versions()
    monkeypatch.setitem(sys.modules, name, module)
    assert versions()[name] == importlib.metadata.version(name)
