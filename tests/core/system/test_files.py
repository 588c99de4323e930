"""Files and memory: what a process may use."""

import pytest

from rlzoo.core.system import files
from rlzoo.core.system.cache import make_once
from rlzoo.core.system.errors import ConfigError


def test_hidden_files_are_no_damage(tmp_path):
    """Finder leaves .DS_Store in every folder that it shows."""
    (tmp_path / "weights").write_text("1")
    files.seal(tmp_path)
    (tmp_path / ".DS_Store").write_text("2")
    files.check_sealed(tmp_path)
    (tmp_path / "more").write_text("3")
    with pytest.raises(OSError, match="more is damaged, or not the file that was saved there"):
        files.check_sealed(tmp_path)


def test_a_folder_of_the_cache_that_lost_its_files_is_damaged(tmp_path):
    """Programs that tidy up delete files and leave folders."""
    folder = make_once(tmp_path / "made", lambda new: (new.mkdir(), (new / "x").write_text("1"), files.seal(new)))
    for path in folder.iterdir():
        path.unlink()
    files.check_sealed(folder)  # as one of rlzoo 0.1.0, which had no checksums
    with pytest.raises(ConfigError, match=f"made/{files.MANIFEST} is missing; delete .*made, and it is made again"):
        make_once(folder, None)


@pytest.mark.parametrize(("limit", "gib"), [(str(2**30), 1), ("max", 16), (None, 16)])
def test_memory_is_that_of_the_container(limit, gib, monkeypatch, tmp_path):
    path = tmp_path / "memory.max"
    if limit is not None:
        path.write_text(limit + "\n")
    monkeypatch.setattr(files, "_CONTAINER_LIMIT", path)
    monkeypatch.setattr(files.os, "sysconf", {"SC_PAGE_SIZE": 2**12, "SC_PHYS_PAGES": 2**22}.__getitem__)
    assert files.memory() == gib * 2**30
    assert files.most_in_memory() == gib * 2**29
