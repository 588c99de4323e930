"""Functions of users: loading them by name, and errors that point at their code."""

from __future__ import annotations

import importlib
import importlib.util
import pkgutil
import reprlib
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import ModuleType
from typing import Any

from rlzoo.core.system.errors import ConfigError, described, no_such, place, require
from rlzoo.core.system.files import check_regular


def load_function(kind: str, spec: str, other: str | None = None) -> Callable[..., Any]:
    """The function named `module:function` or `path/file.py:function`.

    A module may be in the current directory. A file may import the modules in its own directory.

    Args:
        kind: what the function is, for messages: "reward".
        other: what `spec` may be instead, for messages.

    Raises:
        ConfigError: there is no such module, file or function (the nearest name is suggested), or importing it fails.
    """
    source, _, name = spec.rpartition(":")
    forms = "module:function nor file.py:function"
    require(bool(source and name), f"{kind} {spec!r} is neither {f'{other} nor {forms}' if other else forms}")
    try:
        module = _import_file(kind, Path(source)) if source.endswith(".py") else _import_module(source)
    except ConfigError as error:
        raise ConfigError(f"{kind} {spec!r}: {error}") from error.__cause__
    if not hasattr(module, name):
        functions = [key for key, x in vars(module).items() if callable(x)]
        raise ConfigError(f"{kind} {spec!r}: {no_such('function', name, functions)}")
    function = getattr(module, name)
    require(callable(function), f"{kind} {spec!r}: {name} is not a function but of type {type(function).__name__}")
    return function


def given_function(kind: str, spec: Any, example: str) -> Callable[..., Any]:
    """The function that a user gave: itself, or by name (see `load_function`).

    Args:
        example: name of a function, for messages.

    Raises:
        ConfigError: there is no such function.
    """
    if isinstance(spec, str):
        return load_function(kind, spec)
    forms = f'{kind} must be a function or "module:function", such as {kind}={example}'
    require(callable(spec), f"{forms}; got {brief(spec)}")
    return spec


def _import_module(name: str) -> ModuleType:
    with _importable(Path.cwd()):
        try:
            return importlib.import_module(name)
        except (Exception, SystemExit) as error:
            missing = error.name if isinstance(error, ModuleNotFoundError) else None
            if missing is not None and f"{name}.".startswith(f"{missing}."):
                raise ConfigError(no_such("module", missing, _modules_beside(missing))) from error
            raise ConfigError(f"importing {name} raised {described(error)}{place(error)}") from error


def _import_file(kind: str, path: Path) -> ModuleType:
    if not path.is_file():
        raise ConfigError(no_such("file", str(path), [str(other) for other in path.parent.glob("*.py")]))
    try:
        check_regular(path)
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}") from error
    path = path.resolve()
    # A prefix, because its own name could be that of another module.
    spec = importlib.util.spec_from_file_location(f"_{kind}_{path.stem}", path)
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    with _importable(path.parent):
        try:
            spec.loader.exec_module(module)
        except (Exception, SystemExit) as error:
            del sys.modules[spec.name]
            raise ConfigError(f"{described(error)}{place(error)}") from error
    return module


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
    """Full names of the modules in the package of `name`; without a package, of all top-level modules."""
    package = name.rpartition(".")[0]
    if not package:
        return [module.name for module in pkgutil.iter_modules()]
    return [x.name for x in pkgutil.iter_modules(getattr(sys.modules.get(package), "__path__", []), f"{package}.")]


def brief(x: Any) -> str:
    """A short form of an object, for messages."""
    return " ".join(reprlib.repr(x).split())
