"""Files of a run that another program deletes or links elsewhere."""

import shutil

import pytest
import short_runs

from rlzoo.cli import main
from rlzoo.core.system.errors import TrainingError
from rlzoo.runs.train import resume


def test_a_deleted_run_directory_ends_the_run_in_one_line(tmp_path):
    path = tmp_path / "run"

    def delete(trainer, iteration):
        shutil.rmtree(path)

    with pytest.raises(TrainingError, match=r"^step \d+: cannot write \S+: .*; the run directory was deleted$"):
        short_runs.quick_run(path, on_iteration=delete, checkpoint_interval=1)
    assert not path.exists()


def test_hidden_links_in_a_run_lead_nowhere(tmp_path):
    run = short_runs.quick_run(tmp_path / "run")
    precious = tmp_path / "precious.txt"
    precious.write_text("precious")
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "precious.txt").write_text("precious")
    names = (".config.json.tmp", ".metrics.jsonl.tmp", ".evaluations.jsonl.tmp", "checkpoints/.best.json.tmp")
    for name in names:
        (run.path / name).symlink_to(precious)
    (run.checkpoints / ".800.tmp").symlink_to(tmp_path / "elsewhere")
    assert resume(run, total_steps=800).finished
    assert precious.read_text() == "precious"
    assert (tmp_path / "elsewhere" / "precious.txt").read_text() == "precious"
    (run.path / ".lock").unlink()
    (run.path / ".lock").symlink_to(precious)
    assert main(["resume", str(run.path), "--total-steps", "900"]) == 1
    assert precious.read_text() == "precious"
