"""PPO and TRPO on an environment of your own, three seeds each: train, evaluate, save, load, act, plot."""

import gymnasium as gym
import matplotlib.pyplot as plt
import numpy as np

import rlzoo


class Centred(gym.RewardWrapper):
    """CartPole, with less reward far from the centre."""

    def reward(self, reward):
        return reward - 0.2 * abs(self.unwrapped.state[0])


def make_env():
    return gym.make("CartPole-v1", max_episode_steps=300)


objects = {"env": make_env, "wrappers": [Centred]}
for algorithm in ("ppo-clip", "trpo"):
    runs = [
        rlzoo.train(algorithm, **objects, num_envs=8, total_steps=20_000, seed=seed, out=f"runs/{algorithm}-{seed}")
        for seed in range(3)
    ]
    scores = [rlzoo.evaluate(run, episodes=20, **objects).mean_return for run in runs]
    print(f"{algorithm}: {np.mean(scores):.0f} ± {np.std(scores):.0f}")
    for run in runs:
        points = [(x["step"], x["mean_return"]) for x in run.evaluations() if not x["deterministic"]]
        plt.plot(*zip(*points, strict=True), color="C0" if algorithm == "trpo" else "C1")
plt.savefig("curves.png")

policy, env = rlzoo.load_policy("runs/trpo-0", **objects), Centred(make_env())
obs, _ = env.reset(seed=0)
total, done = 0.0, False
while not done:
    obs, reward, terminated, truncated, _ = env.step(policy(obs))
    total, done = total + reward, terminated or truncated
print(f"one episode: {total:.0f}")
