"""The animations on the first page of the documentation, and how one is made."""

from pathlib import Path

import pytest
import short_runs
from PIL import Image

from benchmarks.studies.gallery import FPS, HEIGHT, SECONDS, TRAINED, animate

DOCS = Path(__file__).parents[2] / "docs"


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # imageio leaves its pipes open
def test_an_animation_is_small_and_short(tmp_path):
    pytest.importorskip("pygame")
    pytest.importorskip("imageio")
    run = short_runs.quick_run(tmp_path / "run", total_steps=200)
    animate(run, tmp_path / "a.webp")
    with Image.open(tmp_path / "a.webp") as image:
        assert image.height == HEIGHT
        assert 1 < image.n_frames <= SECONDS * FPS * 1.1


def test_the_page_shows_and_describes_every_animation():
    page = (DOCS / "index.md").read_text()
    names = [f"{env}-{seed}.webp" for env in TRAINED for seed in ("best", "median")]
    assert sorted(path.name for path in (DOCS / "assets" / "gallery").iterdir()) == sorted(names)
    for env, (algorithm, *_) in TRAINED.items():
        for seed in ("best", "median"):
            assert f"![{algorithm} on {env}, {seed} seed](assets/gallery/{env}-{seed}.webp)" in page
    sizes = [(DOCS / "assets" / "gallery" / name).stat().st_size for name in names]
    assert max(sizes) < 300_000
    assert sum(sizes) < 2_000_000
