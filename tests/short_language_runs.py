"""Short runs of language models, with everything that has a state: β, statistics of scores, orders, noise."""

import dataclasses

from rlzoo.lm.tasks.language import LanguageTask
from rlzoo.lm.tasks.random_walks import RandomWalks
from tests import tiny


class Walks(RandomWalks):
    """RandomWalks after one epoch over 100 walks, evaluated by samples: its SFT checkpoint is quickly made."""

    def own_sft(self):
        sft = super().own_sft()
        return dataclasses.replace(sft, texts=sft.texts[:100], fit=dataclasses.replace(sft.fit, epochs=1))

    def evaluate(self, episodes, *, seed, deterministic=False):
        return LanguageTask.evaluate(self, episodes, seed=seed, deterministic=deterministic)


def vowels(prompts, responses):
    """A score: the share of vowels."""
    return [sum(c in "aeiou" for c in text) / max(len(text), 1) for text in responses]


def echo(conversations):
    """A reply: the last letter again, with a reward for a long turn."""
    return [(x.turns[-1][-1], 0.1 * len(x.turns[-1])) for x in conversations]


def save_data(folder):
    """The model, prompts and texts that the runs take from a folder."""
    tiny.save_lm(folder / "model")
    (folder / "prompts.txt").write_text("ab\nhello\nxyz\nQ\n")
    (folder / "texts.txt").write_text("an aeon\nout of\nan idea, a one\n")


def settings(data, algorithm, **more):
    """Those of a run of six iterations."""
    return {
        "algorithm": algorithm,
        "env": "Prompts",
        "model": str(data / "model"),
        "prompts": str(data / "prompts.txt"),
        "reward": f"{__file__}:vowels",
        "ptx": str(data / "texts.txt"),
        "ptx_rows": 2,
        "responses_per_batch": 6,
        "responses_per_prompt": 1,
        "estimator": "gae",
        "max_new_tokens": 4,
        "total_steps": 140,
        "eval_episodes": 3,
        "final_eval_episodes": 5,
        "beta": 0.1,
        "beta_target": 1.0,
        "beta_horizon": 50.0,
        "score_normalization": "running",
        **more,
    }


PPO = {"minibatch_responses": 3, "epochs": 2, "learning_rate": 1e-3}
TRPO = {"cg_iters": 2, "vf_epochs": 2, "vf_minibatch_responses": 3, "score_normalization": "reference"}
TURNS = {"reply": f"{__file__}:echo", "stop_tokens": tuple("abcdefghij"), "max_turns": 3, "max_new_tokens": 9}
KINDS = {
    "ppo-clip": ("ppo-clip", PPO),
    "trpo": ("trpo", TRPO),
    "lora": ("ppo-clip", {**PPO, "lora_rank": 2, "critic": "actor"}),
    "adam-trpo": ("trpo", {**TRPO, "epochs": 2, "minibatch_responses": 3}),
    "lora-trpo": ("trpo", {**TRPO, "lora_rank": 2, "critic": "actor"}),
    "bfloat16-trpo": ("trpo", {**TRPO, "precision": "bfloat16"}),
    "bfloat16-npg": ("npg", {**TRPO, "precision": "bfloat16", "fisher_fraction": 0.5}),
    "turns": ("ppo-clip", {**PPO, **TURNS}),
    "turns-trpo": ("trpo", {**TRPO, **TURNS}),
}
CONTAINED = ("trpo", "lora", "bfloat16-trpo", "turns")
"""Kinds whose every part is in another kind."""
