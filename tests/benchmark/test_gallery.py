"""How an animation of the gallery is made."""

import pytest
import short_runs
from PIL import Image

from benchmarks.studies.gallery import FPS, HEIGHT, SECONDS, animate


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # imageio leaves its pipes open
def test_an_animation_is_small_and_short(tmp_path):
    pytest.importorskip("pygame")
    pytest.importorskip("imageio")
    run = short_runs.quick_run(tmp_path / "run", total_steps=200)
    animate(run, tmp_path / "a.webp")
    with Image.open(tmp_path / "a.webp") as image:
        assert image.height == HEIGHT
        assert 1 < image.n_frames <= SECONDS * FPS * 1.1
