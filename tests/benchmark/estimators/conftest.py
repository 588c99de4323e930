"""The enumerated task with a policy that is a little away from its reference."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[3]))  # the study is in the checkout, not in the package

from benchmarks.studies.estimators.judge import Judge
from benchmarks.studies.estimators.tabular import Table
from benchmarks.studies.estimators.task import BETA, ascend, fit_walks, new_model, small_walks


@pytest.fixture(scope="package")
def walks():
    return small_walks()


@pytest.fixture(scope="package")
def task(walks):
    return walks[1]


@pytest.fixture(scope="package")
def policies(walks):
    """The reference as a table, and the policy as a model."""
    graph, task = walks
    model = new_model(task.vocabulary)
    fit_walks(model, graph, task, steps=60)
    reference = Table.of(model, task)
    ascend(model, task, task.logp(model).detach(), BETA, 4, rate=0.02)
    return reference, model


@pytest.fixture(scope="package")
def judge(task, policies):
    reference, model = policies
    table = Table.of(model, task)
    return Judge(task, reference, table, table, BETA)
