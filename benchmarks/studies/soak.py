"""A soak test: memory, open files, threads and disk of two long runs, minute by minute.

    python benchmarks/studies/soak.py run --minutes 60   # both runs at once -> results/soak/{cartpole,random-walks}.csv
    python benchmarks/studies/soak.py report             # -> results/soak/soak.md and docs/assets/soak.svg

Each run is a process of its own, `rlzoo train`, with one PyTorch thread. It has more steps than it can take in that
time, and SIGTERM ends it. Needs Linux: the samples are read from /proc.
"""

from __future__ import annotations

import csv
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import tyro

from rlzoo.runs.run import Run

HERE = Path(__file__).parents[1]
RESULTS = HERE / "results" / "soak"
RUNS = {
    "cartpole": "CartPole-v1 --total-steps 2_000_000_000 --eval-interval 500_000 --checkpoint-interval 200_000",
    "random-walks": "RandomWalks --total-steps 200_000_000 --eval-interval 50_000 --checkpoint-interval 20_000",
}
TITLES = {"cartpole": "PPO-clip, CartPole-v1", "random-walks": "PPO-clip, RandomWalks"}
COLUMNS = (
    *("minute", "resident_mb", "open_files", "threads", "step", "steps_per_second"),
    *("logs_mb", "tensorboard_mb", "checkpoints_mb", "other_mb", "checkpoints"),
)
MB = 1_000_000


def sample(pid: int, folder: Path) -> dict[str, float]:
    """Resources of a process, and the sizes of its run directory's parts."""
    status = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
    sizes = {"logs_mb": 0, "tensorboard_mb": 0, "checkpoints_mb": 0, "other_mb": 0}
    for path in folder.rglob("*"):
        try:
            size = path.stat().st_size if path.is_file() else 0
        except FileNotFoundError:  # a checkpoint that was just deleted
            continue
        top = path.relative_to(folder).parts[0]
        logs = "logs_mb" if top.endswith(".jsonl") else "checkpoints_mb" if top == "checkpoints" else "other_mb"
        sizes["tensorboard_mb" if "tfevents" in top else logs] += size
    return {
        "resident_mb": round(int(status["VmRSS"].split()[0]) * 1024 / MB, 2),
        "open_files": len(os.listdir(f"/proc/{pid}/fd")),
        "threads": int(status["Threads"]),
        "step": (Run(folder).last_metrics() or {"step": 0})["step"],
        **{name: round(size / MB, 3) for name, size in sizes.items()},
        "checkpoints": sum(path.name.isdigit() for path in (folder / "checkpoints").glob("*")),
    }


def run(minutes: int = 60) -> None:
    """Writes a line of each CSV every minute."""
    RESULTS.mkdir(parents=True, exist_ok=True)
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    with tempfile.TemporaryDirectory() as root:
        folders = {name: Path(root) / name for name in RUNS}
        processes = {}
        for name, words in RUNS.items():
            command = [sys.executable, "-m", "rlzoo", "train", "ppo-clip", *words.split(), "--quiet", "--threads", "1"]
            processes[name] = subprocess.Popen([*command, "--out", str(folders[name])], env=environment)
            with (RESULTS / f"{name}.csv").open("w", newline="") as file:
                csv.DictWriter(file, COLUMNS).writeheader()
        start, before = time.monotonic(), dict.fromkeys(RUNS, (0.0, 0.0))
        for minute in range(1, minutes + 1):
            time.sleep(max(0.0, start + 60 * minute - time.monotonic()))
            for name, process in processes.items():
                if process.poll() is not None:
                    raise RuntimeError(f"{name} ended in minute {minute} with code {process.returncode}")
                record = sample(process.pid, folders[name])
                now, (then, step) = time.monotonic(), before[name]
                rate = (record["step"] - step) / (now - then) if step else None
                before[name] = now, record["step"]
                row = {"minute": minute, "steps_per_second": rate and round(rate, 1), **record}
                with (RESULTS / f"{name}.csv").open("a", newline="") as file:
                    csv.DictWriter(file, COLUMNS).writerow(row)
        for name, process in processes.items():
            process.send_signal(signal.SIGTERM)
            code = process.wait(60)
            print(f"{name}: ended by SIGTERM with code {code}")


def read(name: str) -> list[dict[str, float]]:
    with (RESULTS / f"{name}.csv").open() as file:
        return [{key: float(x or "nan") for key, x in row.items()} for row in csv.DictReader(file)]


def report() -> None:
    from matplotlib.figure import Figure

    panels = {
        "resident memory, MB": ("resident_mb",),
        "open files; threads": ("open_files", "threads"),
        "run directory, MB": ("logs_mb", "tensorboard_mb", "checkpoints_mb"),
        "steps per second": ("steps_per_second",),
    }
    colours = ("#0072B2", "#D55E00", "#009E73")
    figure = Figure(figsize=(11, 5.2), layout="constrained")
    axes = figure.subplots(len(RUNS), len(panels), sharex=True)
    lines = [
        "| run | minute | resident memory, MB | open files | threads | logs, MB | TensorBoard, MB | checkpoints, MB |"
        " steps, millions |",
        "|---" * 9 + "|",
    ]
    for row, name in zip(axes, RUNS, strict=True):
        records = read(name)
        minutes = [record["minute"] for record in records]
        for place, (title, names) in zip(row, panels.items(), strict=True):
            for colour, key in zip(colours, names, strict=False):
                label = key.removesuffix("_mb").replace("_", " ").replace("tensorboard", "TensorBoard")
                place.plot(minutes, [record[key] for record in records], color=colour, label=label)
            place.set_title(title, fontsize=9)
            place.set_ylim(0, 1.2 * place.get_ylim()[1])
            place.grid(alpha=0.25)
            place.tick_params(labelsize=8)
            place.spines[["top", "right"]].set_visible(False)
            if len(names) > 1:
                place.legend(frameon=False, fontsize=8)
        row[0].set_ylabel(TITLES[name])
        for minute in (2, 10, 30, len(records)):
            if minute <= len(records):
                r = records[minute - 1]
                lines.append(
                    f"| {TITLES[name]} | {minute} | {r['resident_mb']:.1f} | {r['open_files']:.0f} |"
                    f" {r['threads']:.0f} | {r['logs_mb']:.1f} | {r['tensorboard_mb']:.2f} |"
                    f" {r['checkpoints_mb']:.2f} | {r['step'] / MB:.1f} |"
                )
    for place in axes[-1]:
        place.set_xlabel("minute", fontsize=8)
    figure.savefig(HERE.parent / "docs" / "assets" / "soak.svg")
    (RESULTS / "soak.md").write_text("\n".join([*lines, ""]))
    print("\n".join(lines))


if __name__ == "__main__":
    tyro.extras.subcommand_cli_from_dict({"run": run, "report": report}, description=__doc__)
