"""On-policy policy gradients, from REINFORCE to PPO.

    import rlzoo

    run = rlzoo.train("trpo", "CartPole-v1", seed=1, out="runs/first")
    print(rlzoo.evaluate(run, episodes=100).mean_return)

Names are imported when they are first used, so `import rlzoo` itself is quick.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
