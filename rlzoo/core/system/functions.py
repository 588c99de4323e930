"""Code of users, functions and classes by name from modules and files; and optional packages."""

from __future__ import annotations

import importlib
import importlib.util
import pkgutil
import reprlib
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

from rlzoo.core.system.errors import LIBRARIES, ConfigError, describe_error, no_such, place, require
from rlzoo.core.system.files import check_regular


def load_function(kind: str, spec: str, other: str | None = None) -> Callable[..., Any]:
    """The function named `module:function` or `path/file.py:function` (see `load_object`)."""
    function = load_object(kind, spec, "function", other)
    name = spec.rpartition(":")[2]
    require(callable(function), f"{kind} {spec!r}: {name} is not a function but of type {type(function).__name__}")
    return function


def load_object(kind: str, spec: str, noun: str, other: str | None = None) -> Any:
    """What `module:name` or `path/file.py:name` names (see `import_source`).

    Args:
        kind: the use of the object, for messages: "reward".
        noun: the kind of object, for messages: "function".
        other: what `spec` may be instead, for messages.

    Raises:
        ConfigError: there is no such module, file or name (the nearest one is suggested), or importing it fails.
    """
    source, _, name = spec.rpartition(":")
    forms = f"module:{noun} nor file.py:{noun}"
    require(bool(source and name), f"{kind} {spec!r} is neither {f'{other} nor {forms}' if other else forms}")
    try:
        module = import_source(source)
        has = hasattr(module, name)
    except (Exception, SystemExit) as error:  # a module may import more when it is asked for a name
        raise ConfigError(f"{kind} {spec!r}: {error}") from error.__cause__ or error
    if not has:
        raise ConfigError(f"{kind} {spec!r}: {no_such(noun, name, vars(module))}")
    return getattr(module, name)


def import_source(source: str) -> ModuleType:
    """The module of this name, which may be in the current directory, or that of a file `path/file.py`.

    A file may import the modules in its own directory. Its path is the module's name, so that its classes and
    functions have names from which they are found again. It is read again if it has changed.

    Raises:
        ConfigError: there is no such module or file (the nearest name is suggested), or importing it fails.
    """
    if not source.endswith(".py"):
        return _import_module(source)
    path = Path(source)
    try:
        if not path.is_file():
            raise ConfigError(no_such("file", source, [str(other) for other in path.parent.glob("*.py")]))
        check_regular(path)
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}") from error
    sys.modules[source] = _import_file(source, path.resolve(), path.stat().st_mtime_ns)
    return sys.modules[source]


def as_function(kind: str, spec: Any, example: str) -> Callable[..., Any]:
    """The function that a user gave: itself, or by name (see `load_function`). `example` is one for messages."""
    if isinstance(spec, str):
        return load_function(kind, spec)
    forms = f'{kind} must be a function or "module:function", such as {kind}={example}'
    require(callable(spec), f"{forms}; got {brief(spec)}")
    return spec


def _import_module(name: str) -> ModuleType:
    with _importable(Path.cwd()):
        try:
            module = importlib.import_module(name)
        except (Exception, SystemExit) as error:
            missing = error.name if isinstance(error, ModuleNotFoundError) else None
            if missing is not None and f"{name}.".startswith(f"{missing}."):
                raise ConfigError(no_such("module", missing, _modules_beside(missing))) from error
            raise ConfigError(f"importing {name} raised {describe_error(error)}{place(error)}") from error
    here, file = Path(*name.split(".")).with_suffix(".py"), getattr(module, "__file__", None)
    same = file is None or not here.is_file() or here.resolve() == Path(file).resolve()
    require(same, f"{name} was imported from {file} before: name the file, {here}:NAME, or start Python anew")
    return module


@cache
def _import_file(name: str, path: Path, changed: int) -> ModuleType:
    """The module of a file as it was when it `changed`."""
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    own = _own.setdefault(path.parent, {})
    others = {x.stem: sys.modules.pop(x.stem) for x in path.parent.glob("*.py") if _is_elsewhere(x)}
    sys.modules.update(own)
    with _importable(path.parent):
        try:
            spec.loader.exec_module(module)
        except (Exception, SystemExit) as error:
            del sys.modules[name]
            raise ConfigError(f"{describe_error(error)}{place(error)}") from error
        finally:
            own |= {x: sys.modules[x] for x in others if x in sys.modules}
            sys.modules.update(others)
    return module


_own: dict[Path, dict[str, ModuleType]] = {}
"""Modules that the files of a folder import, where `sys.modules` has those of other folders by these names."""


def _is_elsewhere(path: Path) -> bool:
    """Whether the module of this file's name is that of another file, and of no library."""
    file = getattr(sys.modules.get(path.stem), "__file__", None)
    return file is not None and not file.startswith(LIBRARIES) and Path(file).resolve() != path.resolve()


@contextmanager
def _importable(folder: Path) -> Iterator[None]:
    """Context in which modules in `folder` can be imported, before all others."""
    sys.path.insert(0, str(folder))
    try:
        yield
    finally:
        with suppress(ValueError):
            sys.path.remove(str(folder))


def _modules_beside(name: str) -> list[str]:
    """Full names of the modules in the package of `name`; without one, rlzoo and modules in the current directory."""
    package = name.rpartition(".")[0]
    if not package:
        return ["rlzoo", *(module.name for module in pkgutil.iter_modules([str(Path.cwd())]))]
    return [x.name for x in pkgutil.iter_modules(getattr(sys.modules.get(package), "__path__", []), f"{package}.")]


def optional_module(name: str, message: str) -> Any:
    """A module of an optional package. Raises `ConfigError(message)` if it is not installed."""
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise ConfigError(message) from error


def brief(x: Any) -> str:
    """A short form of an object, for messages."""
    return " ".join(reprlib.repr(x).split())
