import gymnasium
import numpy as np

import rlzoo


class Corridor(gymnasium.Env):
    """Walk to the right end of a corridor."""

    observation_space = gymnasium.spaces.Box(0, 1, (2,))
    action_space = gymnasium.spaces.Discrete(2)
    length = 5

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.place, self.steps = 0, 0
        return self.seen(), {}

    def step(self, action):
        self.place, self.steps = max(0, self.place + 2 * action - 1), self.steps + 1
        there = self.place >= self.length
        return self.seen(), float(there), there, self.steps == 100, {"distance": self.length - self.place}

    def seen(self):
        return np.array([self.place / 50, self.length / 50], np.float32).clip(0, 1)


lengths = []


def after_episode(trainer, episode):
    lengths.append(episode.length)


def after_iteration(trainer, iteration):
    stage = trainer.step // 5_000
    trainer.set_attr("length", 5 * (1 + stage))  # a curriculum
    return {"stage": stage}  # a metric


def after_evaluation(trainer, evaluation):
    print(f"step {evaluation['step']}: {evaluation['mean_return']:.2f}")


hooks = rlzoo.Hooks(on_episode=after_episode, on_iteration=after_iteration, on_evaluation=after_evaluation)
run = rlzoo.train(
    "ppo", Corridor, hooks=hooks, log_info=["distance"], total_steps=20_000, num_envs=4, out="runs/corridor"
)
print(f"the shortest of {len(lengths)} episodes: {min(lengths)} steps")
print({name: run.metrics()[-1][name] for name in ("stage", "info_distance")})
