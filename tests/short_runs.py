"""Short runs, and what they leave behind."""

import json
import os
import signal
import socket
import time
import traceback

from torch.distributed import TCPStore

from rlzoo.runs.loop import Trainer
from rlzoo.runs.train import resume, train

QUICK = {
    "env": "CartPole-v1",
    "total_steps": 600,
    "num_envs": 4,
    "num_steps": 25,
    "eval_episodes": 3,
    "final_eval_episodes": 10,
    "hidden": (8,),
}
PPO = {
    **QUICK,
    "algorithm": "ppo-clip",
    "epochs": 2,
    "minibatch_size": 50,
    "normalize_obs": True,
    "normalize_reward": True,
    "noise_correlation": 0.5,
}
GRU = {**PPO, "env": "CartPoleNoVel-v1", "preset": False, "network": "gru", "cell_size": 8, "unroll": 10}
TRPO = {**QUICK, "algorithm": "trpo", "total_steps": 300, "cg_iters": 2, "vf_epochs": 2, "vf_minibatch_size": 50}

_TIMES = ("seconds", "steps_per_second")


def quick_run(path, **settings):
    """A run of 7 iterations, in a tenth of a second or two."""
    return train(**{"algorithm": "ppo-clip", "epochs": 1, "minibatch_size": 100, **QUICK, "out": path, **settings})


def go_on(path, settings, **options):
    """What a user does who finds the run stopped."""
    if (path / "config.json").exists():
        resume(path, **options)
    else:
        train(**settings, out=path, **options)


def outcome(run):
    """All that a run leaves but times: what must not depend on how often it was stopped."""
    last = run.checkpoints / str(run.steps()[-1])
    state = json.loads((last / "state.json").read_text())
    del state["state"]["logger"]["seconds"]
    return {
        "steps": run.steps(),
        "best": run.best_step(),
        "model": (last / "model.safetensors").read_bytes(),
        "arrays": (last / "state.safetensors").read_bytes(),
        "state": state,
        "evaluations": [_timeless(record) for record in run.evaluations()],
        "metrics": [_timeless(record) for record in run.metrics()],
    }


def _timeless(record):
    return {name: x for name, x in record.items() if name not in _TIMES}


def weights(run):
    """The bytes of the last checkpoint's model."""
    return (run.checkpoints / str(run.steps()[-1]) / "model.safetensors").read_bytes()


def in_child(work):
    """Runs `work` in a forked process; returns its wait status."""
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            work()
            code = 0
        finally:
            os._exit(code)
    return os.waitpid(pid, 0)[1]


def dies_in_iteration(number):
    """Kills this process when the n-th iteration begins."""
    left, iterate = number, Trainer.iterate

    def wrapper(self):
        nonlocal left
        left -= 1
        if left == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        return iterate(self)

    Trainer.iterate = wrapper


def in_processes(count, work):
    """Runs `work` in forked processes that are one group, as torchrun's are; returns their exit codes.

    A process that a signal killed has the negative number of the signal.
    """
    listener = socket.create_server(("127.0.0.1", 0))  # kept until the store takes it over, so that no one else gets it
    port = listener.getsockname()[1]
    pids = []
    for rank in range(count):
        pid = os.fork()
        if pid == 0:
            here = {"RANK": rank, "WORLD_SIZE": count, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
            here["TORCHELASTIC_USE_AGENT_STORE"] = True
            os.environ.update({name: str(x) for name, x in here.items()})
            code = 1
            try:
                listener.close()
                code = work() or 0
            except Exception:
                traceback.print_exc()
            finally:
                os._exit(code)
        pids.append(pid)
    listening = {"is_master": True, "wait_for_workers": False, "master_listen_fd": listener.detach()}
    store = TCPStore("127.0.0.1", port, **listening)  # as in torchrun's own process
    codes = {}
    while len(codes) < count:  # in the order of their ends, as torchrun does
        time.sleep(0.02)
        for pid in {*pids} - {*codes}:
            ended, status = os.waitpid(pid, os.WNOHANG)
            if ended:
                codes[pid] = os.waitstatus_to_exitcode(status)
    del store
    return [codes[pid] for pid in pids]
