"""Files and memory: what a process may use."""

import pytest

from rlzoo.core.system import files


@pytest.mark.parametrize(("limit", "gib"), [(str(2**30), 1), ("max", 16), (None, 16)])
def test_memory_is_that_of_the_container(limit, gib, monkeypatch, tmp_path):
    path = tmp_path / "memory.max"
    if limit is not None:
        path.write_text(limit + "\n")
    monkeypatch.setattr(files, "_CONTAINER_LIMIT", path)
    monkeypatch.setattr(files.os, "sysconf", {"SC_PAGE_SIZE": 2**12, "SC_PHYS_PAGES": 2**22}.__getitem__)
    assert files.memory() == gib * 2**30
    assert files.most_in_memory() == gib * 2**29
