"""A few attacks of each family. `python -m tests.faults.campaign FAMILY --runs N` makes as many as one likes."""

import importlib
from random import Random

import pytest

from tests.faults.campaign.__main__ import FAMILIES
from tests.faults.campaign.sandbox import Sandbox

COUNTS = {"kill": 2, "twins": 2, "disks": 2}


@pytest.mark.slow
@pytest.mark.parametrize("family", FAMILIES)
def test_a_few_attacks(family, tmp_path):
    one = importlib.import_module(f"tests.faults.campaign.{family}").one
    faults = []
    for seed in range(COUNTS.get(family, 6)):
        faults += [(seed, fault) for fault in one(Random(f"{family} {seed}"), Sandbox(tmp_path / str(seed)))]
    assert not faults
