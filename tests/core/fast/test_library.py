"""The cache of native code: what a library is named by, and which are never loaded."""

import os
from pathlib import Path

import pytest

from rlzoo.core.fast import library
from rlzoo.core.fast.library import Build
from rlzoo.core.system.errors import ConfigError

CODE = 'extern "C" int answer() { return 42; }'


@pytest.fixture
def cache(tmp_path, monkeypatch):
    directory = tmp_path / "cache"
    monkeypatch.setenv("RLZOO_CACHE", str(directory))
    return directory


@pytest.fixture
def folder(cache):
    """That of a library."""
    assert built().answer() == 42
    (folder,) = cache.iterdir()
    return folder


def built(code=CODE, folder=Path(__file__).parent, options=("-O1",)):
    return Build(code, folder, options).library()


def test_the_name_of_a_library_depends_on_what_is_compiled_and_where_it_runs(monkeypatch):
    names = [library._digest(["a"]), library._digest(["a"]), library._digest(["b"]), library._digest(["a", "b"])]
    monkeypatch.setattr(library, "_processor", lambda: "another")
    names.append(library._digest(["a"]))
    assert len(set(names)) == len(names) - 1


def test_code_options_and_headers_are_each_compiled_once(cache, tmp_path):
    cases = [(CODE, ("-O1",)), (CODE, ("-O0",)), (CODE + " ", ("-O1",)), (CODE, ("-O1",))]
    assert [built(code, tmp_path, options).answer() for code, options in cases] == [42] * 4
    assert len(list(cache.iterdir())) == 3
    (tmp_path / "new.h").write_text("// new")
    built(CODE, tmp_path)
    assert len(list(cache.iterdir())) == 4


def test_the_cache_directory_follows_the_environment(monkeypatch):
    monkeypatch.setenv("RLZOO_CACHE", "/own")
    monkeypatch.setenv("XDG_CACHE_HOME", "/xdg")
    monkeypatch.setenv("HOME", "/home/someone")
    assert library.cache_directory() == Path("/own")
    monkeypatch.delenv("RLZOO_CACHE")
    assert library.cache_directory() == Path("/xdg/rlzoo")
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert library.cache_directory() == Path("/home/someone/.cache/rlzoo")
    monkeypatch.delenv("HOME")
    monkeypatch.setattr("os.path.expanduser", lambda path: path)  # a user without an entry
    with pytest.raises(ConfigError, match="no home directory for a cache; set RLZOO_CACHE to a directory"):
        library.cache_directory()


@pytest.mark.parametrize("mode", [0o620, 0o602, 0o666])
def test_a_library_that_others_may_write_is_compiled_again(folder, mode, caplog):
    (folder / "library.so").chmod(mode)
    assert built().answer() == 42
    assert "others may write to it" in caplog.text
    assert (folder / "library.so").stat().st_mode & 0o777 == 0o600


def test_a_library_of_another_user_is_removed(folder, monkeypatch, caplog):
    owner = folder.stat().st_uid
    monkeypatch.setattr(os, "geteuid", lambda: owner + 1)
    library._remove_unsafe(folder)
    assert "belongs to another user" in caplog.text
    assert not folder.exists()


def test_a_link_in_the_cache_is_never_followed(folder, tmp_path):
    folder.rename(tmp_path / "elsewhere")
    folder.symlink_to(tmp_path / "elsewhere")
    assert built().answer() == 42
    assert not folder.is_symlink()
    assert (tmp_path / "elsewhere" / "library.so").exists()


@pytest.mark.parametrize("content", [b"", b"not a library"])
def test_a_damaged_library_is_compiled_again(folder, content, caplog):
    (folder / "library.so").unlink()  # this process has it in memory
    (folder / "library.so").write_bytes(content)
    assert built().answer() == 42
    assert "is damaged" in caplog.text


@pytest.mark.parametrize("script", ["", "echo junk >$last"])
def test_what_a_compiler_leaves_that_is_no_library_is_not_kept(script, cache, tmp_path, monkeypatch):
    compiler = tmp_path / "compiler"
    compiler.write_text(f"#!/bin/sh\ncat >/dev/null\nfor last; do :; done\n{script}\n")
    compiler.chmod(0o700)
    with monkeypatch.context() as patch:
        patch.setenv("CXX", str(compiler))
        with pytest.raises(RuntimeError, match="compiler ended without an error, but has made no library"):
            built()
    assert built().answer() == 42
