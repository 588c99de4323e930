"""REINFORCE, the same with one change, and TRPO: learning curves, final scores with intervals, and the update."""

import inspect

import matplotlib.pyplot as plt
import numpy as np
from scipy.stats import bootstrap

import rlzoo

variants = {
    "REINFORCE": ("reinforce", {}),
    "REINFORCE, smaller steps": ("reinforce", {"learning_rate": 5e-4}),
    "TRPO": ("trpo", {}),
}
for i, (label, (algorithm, settings)) in enumerate(variants.items()):
    finals = []
    for seed in range(3):
        run = rlzoo.train(
            algorithm, "CartPole-v1", total_steps=20_000, seed=seed, out=f"runs/{label} {seed}", **settings
        )
        points = [(x["step"], x["mean_return"]) for x in run.evaluations() if not x["deterministic"]]
        plt.plot(*zip(*points, strict=True), color=f"C{i}", label=None if seed else label)
        finals.append(rlzoo.evaluate(run, episodes=20).mean_return)
    low, high = bootstrap((finals,), np.mean, method="percentile").confidence_interval
    print(f"{label}: {np.mean(finals):.0f} [{low:.0f}, {high:.0f}]")
plt.legend()
plt.savefig("curves.png")
print(inspect.getsource(rlzoo.Reinforce.update))
