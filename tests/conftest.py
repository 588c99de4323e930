"""Every test runs with the shapes in rlzoo's signatures checked at run time."""

import hypothesis
import jaxtyping

jaxtyping.install_import_hook("rlzoo", "shape_checks.check")

import torch  # noqa: E402

torch.set_num_threads(1)

hypothesis.settings.register_profile("rlzoo", deadline=None, derandomize=True)
hypothesis.settings.load_profile("rlzoo")
