"""Animations of trained policies, of the best and of the median of three seeds.

MUJOCO_GL=egl python benchmarks/studies/gallery.py [ENV ...]    # trains in runs/gallery -> docs/assets/gallery/*.webp

A second call trains only what is missing. Needs pip install -e '.[mujoco,video]'.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import tyro
from imageio import v2 as imageio
from PIL import Image

import rlzoo
from rlzoo.benchmark.seeds import final_scores
from rlzoo.cli import main as command
from rlzoo.runs.run import Run

ROOT = Path(__file__).parents[2]
SEEDS = range(1, 4)
TRAINED = {
    "CartPole-v1": ["reinforce"],
    "Acrobot-v1": ["npg"],
    "MountainCar-v0": ["trpo"],
    "MountainCarContinuous-v0": ["ppo-penalty"],
    "Pendulum-v1": ["ppo-clip"],
    "InvertedPendulum-v5": ["ppo-clip", "--total-steps", "50_000"],
}
"""Algorithm and options by environment. All but the last have a preset."""
HEIGHT, FPS, SECONDS = 100, 12, 8
"""Pixels, frames per second, and the length that an animation is cut to."""


def main(envs: tuple[str, ...] = (), /) -> None:
    gallery = ROOT / "docs" / "assets" / "gallery"
    gallery.mkdir(parents=True, exist_ok=True)
    for env in envs or TRAINED:
        algorithm, *options = TRAINED[env]
        folder, seeds = ROOT / "runs" / "gallery" / env, f"{SEEDS[0]}-{SEEDS[-1]}"
        if command(["train", algorithm, env, *options, "--seed", seeds, "--out", str(folder), "--quiet"]):
            raise SystemExit(f"{env} was not trained")
        scores = {seed: float(final_scores(Run(folder / f"seed-{seed}"))[1]["mean_return"]) for seed in SEEDS}
        order = sorted(scores, key=lambda seed: scores[seed])
        for name, seed in (("best", order[-1]), ("median", order[len(order) // 2])):
            path = gallery / f"{env}-{name}.webp"
            animate(Run(folder / f"seed-{seed}"), path)
            print(f"{path.name}: {algorithm}, seed {seed}, {scores[seed]:.1f}, {path.stat().st_size // 1000} kB")


def animate(run: Run, path: Path) -> None:
    """An episode with sampled actions, small and with few frames."""
    with tempfile.TemporaryDirectory() as folder:
        video = Path(folder, "episode.mp4")
        rlzoo.play(run, episodes=1, video=video)
        with imageio.get_reader(video) as reader:
            fps = reader.get_meta_data()["fps"]
            stride = max(1, round(fps / FPS))
            images = [Image.fromarray(x) for i, x in enumerate(reader) if i % stride == 0 and i < SECONDS * fps]
    size = round(HEIGHT * images[0].width / images[0].height), HEIGHT
    first, *others = (image.resize(size, Image.Resampling.LANCZOS) for image in images)
    pause = round(1000 * stride / fps)
    first.save(path, save_all=True, append_images=others, duration=pause, loop=0, quality=50, method=6)


if __name__ == "__main__":
    tyro.cli(main, description=__doc__)
