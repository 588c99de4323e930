"""Every test runs with the shapes in rlzoo's signatures checked at run time."""

import contextlib
import importlib.util
import os
import signal
from pathlib import Path
from unittest import mock

import cloudpickle
import hypothesis
import jaxtyping
import pytest
import shape_checks

# A shell ignores Ctrl-C for what it starts with `&`. Children inherit that from a process that ignores it too.
signal.signal(signal.SIGINT, signal.default_int_handler)

os.fsync = lambda file: None  # no test loses power

# Checking costs time in every call, so only the modules that state shapes are checked.
PACKAGE = Path(importlib.util.find_spec("rlzoo").origin).parent
SHAPED = [path.relative_to(PACKAGE) for path in PACKAGE.rglob("*.py") if "from jaxtyping" in path.read_text()]
MODULES = [".".join(("rlzoo", *path.with_suffix("").parts)) for path in SHAPED]
jaxtyping.jaxtyped = shape_checks.jaxtyped  # the hook wraps every function
jaxtyping.install_import_hook(MODULES, "shape_checks.check")

import torch  # noqa: E402

torch.set_num_threads(1)

hypothesis.settings.register_profile("rlzoo", deadline=None, derandomize=True, max_examples=60)
hypothesis.settings.load_profile("rlzoo")


@pytest.fixture(autouse=True)
def own_environment():
    """Commands choose a number of threads for their process, where a later test would take it for the user's."""
    with mock.patch.dict(os.environ), mock.patch("rlzoo.core.system.threads._chosen", None):
        os.environ.pop("OMP_NUM_THREADS", None)
        yield


@pytest.fixture(autouse=True)
def classes_by_value(request):
    """Processes of environments and suites get the classes of a test file without importing it, and PyTorch with it."""
    cloudpickle.register_pickle_by_value(request.module)
    yield
    with contextlib.suppress(ValueError):  # a test has done it
        cloudpickle.unregister_pickle_by_value(request.module)


def pytest_collection_modifyitems(items):
    """Tests of what happens on a GPU, simulated here, repeat others with more work."""
    for item in items:
        if "gpu" in item.originalname:
            item.add_marker(pytest.mark.slow)
