"""PPO and TRPO on an environment of your own, three seeds each: train, evaluate, save, load, act, plot."""

import gymnasium as gym
import matplotlib.pyplot as plt
import numpy as np
from sb3_contrib import TRPO
from stable_baselines3 import PPO
from stable_baselines3.common.callbacks import EvalCallback
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.evaluation import evaluate_policy


class Centred(gym.RewardWrapper):
    """CartPole, with less reward far from the centre."""

    def reward(self, reward):
        return reward - 0.2 * abs(self.unwrapped.state[0])


def make_env():
    return gym.make("CartPole-v1", max_episode_steps=300)


for name, algorithm in {"ppo": PPO, "trpo": TRPO}.items():
    scores = []
    for seed in range(3):
        env = make_vec_env(make_env, n_envs=8, seed=seed, wrapper_class=Centred)
        test_env = make_vec_env(make_env, seed=1000 + seed, wrapper_class=Centred)
        callback = EvalCallback(
            test_env, eval_freq=2_000 // 8, n_eval_episodes=10, deterministic=False, log_path=f"logs/{name}-{seed}"
        )
        model = algorithm("MlpPolicy", env, n_steps=128, seed=seed, device="cpu")
        model.learn(total_timesteps=20_000, callback=callback)
        model.save(f"models/{name}-{seed}")
        scores.append(evaluate_policy(model, test_env, n_eval_episodes=20, deterministic=False)[0])
        log = np.load(f"logs/{name}-{seed}/evaluations.npz")
        plt.plot(log["timesteps"], log["results"].mean(axis=1), color="C0" if name == "trpo" else "C1")
    print(f"{name}: {np.mean(scores):.0f} ± {np.std(scores):.0f}")
plt.savefig("curves.png")

model, env = TRPO.load("models/trpo-0", device="cpu"), Centred(make_env())
obs, _ = env.reset(seed=0)
total, done = 0.0, False
while not done:
    action, _ = model.predict(obs, deterministic=True)
    obs, reward, terminated, truncated, _ = env.step(action)
    total, done = total + reward, terminated or truncated
print(f"one episode: {total:.0f}")
