import gymnasium
import numpy as np
from stable_baselines3 import PPO
from stable_baselines3.common.callbacks import BaseCallback, EvalCallback
from stable_baselines3.common.env_util import make_vec_env


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


class Hooks(BaseCallback):
    def _on_training_start(self):
        self.distances, self.lengths = [], []

    def _on_step(self):
        self.distances += [info["distance"] for info in self.locals["infos"]]
        self.lengths += [info["episode"]["l"] for info in self.locals["infos"] if "episode" in info]
        return True

    def _on_rollout_end(self):
        stage = self.num_timesteps // 5_000
        self.training_env.set_attr("length", 5 * (1 + stage))  # a curriculum
        self.logger.record("train/stage", stage)  # a metric
        self.logger.record("env/info_distance", np.mean(self.distances))
        self.last = {"stage": stage, "info_distance": float(np.mean(self.distances))}
        self.distances = []

    def _on_training_end(self):
        print(f"the shortest of {len(self.lengths)} episodes: {min(self.lengths)} steps")
        print(self.last)


class AfterEvaluation(BaseCallback):
    def _on_step(self):
        print(f"step {self.num_timesteps}: {self.parent.last_mean_reward:.2f}")
        return True


evaluations = EvalCallback(
    make_vec_env(Corridor, n_envs=4), callback_after_eval=AfterEvaluation(), eval_freq=512, verbose=0
)
model = PPO("MlpPolicy", make_vec_env(Corridor, n_envs=4), n_steps=128, tensorboard_log="runs")
model.learn(20_000, callback=[Hooks(), evaluations])
