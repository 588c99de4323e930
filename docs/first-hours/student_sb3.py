"""A2C (there is no REINFORCE), the same with one change, and TRPO: learning curves, final scores, and the update."""

import inspect

import matplotlib.pyplot as plt
import numpy as np
from sb3_contrib import TRPO
from scipy.stats import bootstrap
from stable_baselines3 import A2C
from stable_baselines3.common.callbacks import EvalCallback
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.evaluation import evaluate_policy

variants = {
    "A2C": (A2C, {}),
    "A2C, smaller steps": (A2C, {"learning_rate": 1e-4}),
    "TRPO": (TRPO, {"n_steps": 128}),
}
for i, (label, (algorithm, settings)) in enumerate(variants.items()):
    finals = []
    for seed in range(3):
        env = make_vec_env("CartPole-v1", n_envs=8, seed=seed)
        test_env = make_vec_env("CartPole-v1", seed=1000 + seed)
        callback = EvalCallback(
            test_env, eval_freq=2_000 // 8, n_eval_episodes=10, deterministic=False, log_path=f"logs/{label} {seed}"
        )
        model = algorithm("MlpPolicy", env, seed=seed, device="cpu", **settings).learn(20_000, callback=callback)
        model.save(f"models/{label} {seed}")
        log = np.load(f"logs/{label} {seed}/evaluations.npz")
        means = log["results"].mean(axis=1)
        plt.plot(log["timesteps"], means, color=f"C{i}", label=None if seed else label)
        finals.append(evaluate_policy(model, test_env, n_eval_episodes=20, deterministic=False)[0])
    low, high = bootstrap((finals,), np.mean, method="percentile").confidence_interval
    print(f"{label}: {np.mean(finals):.0f} [{low:.0f}, {high:.0f}]")
plt.legend()
plt.savefig("curves.png")
print(inspect.getsource(A2C.train))
