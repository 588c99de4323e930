"""The settings of known systems (recipes): each makes a configuration that trains."""

import math

import pytest
import torch
from lm_builders import collected

import rlzoo
from rlzoo.lm.finetune.sft import train_tokenizer
from rlzoo.lm.model import pretrained, saving
from rlzoo.lm.tasks import reviews
from rlzoo.lm.tasks.random_walks import WalkGraph
from rlzoo.runs.configuration.config import make_config
from rlzoo.runs.configuration.defaults import starting_from
from rlzoo.runs.configuration.presets import recipes

NAMES = ("openai-2019", "instructgpt", "deepspeed-chat", "trl", "trlx", "coati")
ENVS = ("RandomWalks", "Reviews")


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """A directory for each task, with a model of random weights that speaks its tokens."""
    tokenizers = {
        "RandomWalks": WalkGraph.make().tokenizer(),
        "Reviews": train_tokenizer(reviews.texts(50, seed=0), vocab_size=300),
    }
    shape = {"model_type": "gpt2", "n_layer": 1, "n_embd": 8, "n_head": 1, "n_positions": 128}
    folders = {}
    for env, tokenizer in tokenizers.items():
        model = pretrained.new_causal_lm(shape, len(tokenizer))
        saving.use_tokens(model, tokenizer)
        folders[env] = tmp_path_factory.mktemp("models") / env
        saving.save(model, tokenizer, folders[env])
    return folders


def test_these_are_the_recipes():
    assert tuple(recipes()) == NAMES


@pytest.mark.parametrize("env", ENVS)
@pytest.mark.parametrize("name", NAMES)
def test_recipe_is_a_configuration_of_ppo_clip(name, env):
    settings, _ = starting_from("ppo-clip", env, {}, name)
    config, given = make_config("ppo-clip", env, **settings), recipes()[name]
    found = config.to_dict()
    assert {name: "none" if found[name] is None else found[name] for name in given} == {
        name: "none" if x is None else x for name, x in given.items()
    }
    for setting in ("model", "prompts", "reward", "ptx"):
        assert getattr(config.task, setting) is None


@pytest.mark.parametrize("name", NAMES)
def test_recipe_sets_all_that_another_turns_on(name):
    """On top of a preset that has one of these on, a recipe that does not mention it would not be itself."""
    known = set.union(*(set(recipe) for recipe in recipes().values()))
    without_off = {"beta_target", "beta_horizon", "score_clip", "ptx_coef"}  # off is none, which TOML cannot say
    unpublished = {"max_grad_norm"} if name == "instructgpt" else set()
    assert known - without_off - unpublished <= recipes()[name].keys()


@pytest.mark.slow
@pytest.mark.parametrize("env", ENVS)
@pytest.mark.parametrize("name", NAMES)
def test_recipe_starts_at_ratio_1_and_trains(name, env, models, tmp_path):
    score = tmp_path / "score.py"  # a model of random weights gets 0 from the task's own for all it says
    score.write_text("def length(prompts, responses):\n    return [float(len(x)) for x in responses]\n")
    own = {"model": str(models[env]), "reward": f"{score}:length", "responses_per_batch": 4}
    settings, _ = starting_from("ppo-clip", env, own, name)
    trainer = rlzoo.Trainer(make_config("ppo-clip", env, **settings))
    experience = collected(trainer.task)
    assert experience.metrics["beta"] == settings["beta"]
    batch = experience.buffer.rows(0)
    ratio = torch.exp(trainer.model.distribution(batch.obs).log_prob(batch.action) - batch.logp)
    assert (ratio - 1)[batch.mask].abs().max() < 1e-5
    iteration = trainer.iterate()
    assert iteration.metrics["gradient_steps"] == settings["epochs"]
    assert all(math.isfinite(x) for x in iteration.metrics.values())


@pytest.mark.parametrize("name", ["instructgpt", "deepspeed-chat", "coati"])
def test_ptx_of_a_recipe_needs_its_texts_alone(name, models, tmp_path):
    texts = tmp_path / "texts.txt"
    texts.write_text("\n".join(reviews.texts(8, seed=1)))
    own = {"model": str(models["Reviews"]), "responses_per_batch": 4, "ptx": str(texts)}
    settings, _ = starting_from("ppo-clip", "Reviews", own, name)
    task = rlzoo.Trainer(make_config("ppo-clip", "Reviews", **settings)).task
    loss = task.model.auxiliary
    assert loss.coef == pytest.approx(recipes()[name]["ptx_coef"])
    assert loss.rows is None  # as many texts as responses
    assert all(math.isfinite(float(term(task.model).detach())) for term in loss.draw(4))
