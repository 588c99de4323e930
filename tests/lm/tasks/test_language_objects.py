"""Objects as model, tokenizer, prompts and rewards of a language run; several rewards; runs that start from runs."""

import json
import shutil
import warnings
from dataclasses import dataclass
from pathlib import Path

import pytest
import tiny
import torch
from lm_builders import make_rows, move
from transformers import AutoModelForCausalLM, AutoTokenizer, pipeline

import rlzoo
from rlzoo.cli import main
from rlzoo.core.system.errors import ConfigError, RunError
from rlzoo.lm.model.language_model import LanguageModel, with_adapter
from rlzoo.lm.model.pretrained import load_causal_lm
from rlzoo.lm.reward.scores import WeightedSum, call_scores
from rlzoo.lm.tasks.settings import Language, Text

PROMPTS = ["Say a", "Tell me", "Go on"]
SMALL = {
    "responses_per_batch": 6, "responses_per_prompt": 2, "max_new_tokens": 4, "minibatch_responses": 3, "epochs": 1,
    "total_steps": 60,
    "eval_episodes": 3, "final_eval_episodes": 3,
}  # fmt: skip


def length(prompts, responses):
    return [len(response) / 4 for response in responses]


def vowels(prompts, responses):
    return [sum(letter in "aeiou" for letter in response) for response in responses]


def make_objects():
    return {"model": tiny.make_lm(), "tokenizer": tiny.make_tokenizer(), "prompts": PROMPTS, "reward": length}


@pytest.fixture
def objects():
    return make_objects()


@pytest.fixture(scope="module")
def first(tmp_path_factory):
    return train(**make_objects(), out=tmp_path_factory.mktemp("first") / "run")


@pytest.fixture
def run(first):
    """A copy of the first run."""
    return rlzoo.Run(shutil.copytree(first.path, "run"))


@pytest.fixture(autouse=True)
def place(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def train(**settings):
    return rlzoo.train("ppo", "Prompts", **{**SMALL, "out": "own", **settings})


def weights(folder):
    return torch.cat([p.flatten() for p in load_causal_lm(folder).parameters()])


def test_run_from_objects_equals_one_from_files(objects, first, tmp_path):
    tiny.save_lm(tmp_path / "model")
    (tmp_path / "prompts.txt").write_text("\n".join(PROMPTS))
    other = train(**{**objects, "model": "model", "tokenizer": None, "prompts": "prompts.txt"})
    assert torch.equal(weights(first.path / "actor"), weights(other.path / "actor"))


def test_config_says_what_it_was_made_from_and_resume_needs_nothing(run):
    record = json.loads((run.path / "config.json").read_text())
    assert record["prompts"] == {"object": "a list of 3"}
    assert record["model"]["object"].startswith("an instance of GPT2LMHeadModel")
    assert record["reward"] == f"{__name__}:length"
    assert record["objects"] == {}
    assert (run.path / "prompts.jsonl").read_text().splitlines()[0] == '{"prompt": "Say a"}'
    step = run.steps()[-1]
    assert rlzoo.resume(run, total_steps=step + 20).steps()[-1] > step
    assert [x.prompt for x in rlzoo.play(run, 3)] == PROMPTS


def test_function_that_cannot_be_imported_is_needed_again(objects):
    run = train(**{**objects, "reward": [(lambda prompts, responses: [1.0] * len(responses), 0.5), length]})
    with pytest.raises(RunError, match=r"config.json cannot hold: pass reward=... \(a lambda of "):
        rlzoo.evaluate(run)
    assert rlzoo.evaluate(run, 3, reward=length).mean_return >= 0


def test_frozen_layers_need_a_language_model_which_needs_no_other_model(objects):
    def partly_frozen():
        lm = tiny.make_lm().requires_grad_(False)
        lm.transformer.h[1].requires_grad_(True)
        return lm

    objects["model"] = lm = partly_frozen()
    with pytest.raises(ConfigError, match=r"^transformer.wte.weight of the given model is frozen, .*LanguageModel"):
        train(**objects)
    before = {name: p.clone() for name, p in lm.named_parameters()}
    run = train(**{**objects, "model": rlzoo.LanguageModel(lm)})
    after = dict(load_causal_lm(run.path / "actor").named_parameters())
    moved = {name for name, p in before.items() if not torch.equal(p, after[name])}
    assert moved
    assert all(name.startswith("transformer.h.1.") for name in moved)
    assert rlzoo.evaluate(run, 3, model=rlzoo.LanguageModel(partly_frozen())).further["kl_reference"] > 0
    with pytest.raises(ConfigError, match="model is missing: Prompts has none of its own; give a directory, a Hub"):
        train(**{**objects, "model": None, "out": "another"})


class Asks(rlzoo.LanguageTask):
    """A task whose prompts are records."""

    def own_prompts(self):
        return [{"prompt": text, "letter": "a"} for text in PROMPTS]

    def own_eval_prompts(self):
        return self.own_prompts()[:2]

    def own_score(self):
        return lambda prompts, responses, letter: [x.count(y) for x, y in zip(responses, letter, strict=True)]


def test_own_prompts_may_be_records(objects):
    task = {"model": objects["model"], "tokenizer": objects["tokenizer"]}
    run = rlzoo.train("ppo", Asks, out="own", **task, **SMALL)
    assert [x.prompt for x in rlzoo.play(run, 2, env=Asks)] == PROMPTS[:2]


class Own(rlzoo.LanguageTask):
    """A task with a model of its own, which a given one replaces."""

    @dataclass(frozen=True)
    class Settings(Language):
        model: Text | None = "model"

    def own_prompts(self):
        return PROMPTS

    def own_score(self):
        return length


def test_reference_of_a_given_actor_critic_is_what_it_was_before_training(tmp_path):
    """`start/` held the task's own model, and to evaluate with the trained object gave a KL of 0."""
    tiny.save_lm(tmp_path / "model")
    model = rlzoo.LanguageModel(tiny.make_lm(seed=1))
    run = rlzoo.train("ppo", Own, model=model, out="own", learning_rate=0.01, **SMALL)
    again = rlzoo.LanguageModel(tiny.make_lm(seed=1))
    assert torch.equal(weights(run.path / "start"), torch.cat([p.flatten() for p in again.actor.parameters()]))
    kl, same = (rlzoo.evaluate(run, 3, model=x).further["kl_reference"] for x in (model, again))
    assert kl == same > 0


EXPERTS = {"model_type": "mixtral", "num_key_value_heads": 2, "num_experts_per_tok": 3}


@pytest.mark.parametrize(
    ("algorithm", "dtype", "kind"),
    [("npg", torch.float32, {}), ("npg", torch.float32, EXPERTS), ("ppo", torch.float64, EXPERTS)],
)
def test_a_resumed_run_computes_with_a_given_actor_critic_as_before(algorithm, dtype, kind, tmp_path):
    tiny.save_lm(tmp_path / "model")

    def given():
        return rlzoo.LanguageModel(tiny.make_lm("llama", **kind).to(dtype))

    settings = {
        name: x for name, x in SMALL.items() if algorithm == "ppo" or name not in ("minibatch_responses", "epochs")
    }
    run = rlzoo.train(algorithm, Own, model=given(), out="own", fast=False, **settings)
    whole = run.metrics()[-1]["kl_reference"], weights(run.path / "actor")
    rlzoo.resume(run, checkpoint=run.steps()[0], model=given())
    assert run.metrics()[-1]["kl_reference"] == whole[0]
    assert torch.equal(weights(run.path / "actor"), whole[1])


@pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::UserWarning")  # of transformers, for PEFT
def test_a_given_adapter_is_saved_for_the_model_that_it_is_on(tmp_path):
    """`start/` held that model with the initial adapter merged, so that the saved adapter came on top of it."""
    peft = pytest.importorskip("peft")
    tiny.save_lm(tmp_path / "model")
    model = rlzoo.LanguageModel(with_adapter(tiny.make_lm(), 2, seed=0))
    move(model, model.policy_parameters())
    run = rlzoo.train("ppo", Own, model=model, out="own", **SMALL)
    assert torch.equal(weights(run.path / "start"), weights("model"))
    adapted = peft.PeftModel.from_pretrained(load_causal_lm(run.path / "start"), run.path / "adapter")
    merged = torch.cat([p.flatten() for p in adapted.merge_and_unload().parameters()])
    torch.testing.assert_close(merged, weights(run.path / "actor"))


def test_killed_before_its_objects_were_saved(run):
    (run.path / "prompts.jsonl").unlink()
    with pytest.raises(ConfigError, match="stopped before its prompts were saved"):
        rlzoo.evaluate(run)
    shutil.rmtree(run.path / "start")
    with pytest.raises(ConfigError, match="stopped before its model was saved"):
        rlzoo.evaluate(run)


def test_killed_before_its_tokenizer_was_saved(objects, tmp_path):
    tiny.save_lm(tmp_path / "model")
    run = train(**{**objects, "model": "model"})
    shutil.rmtree(run.path / "start")
    with pytest.raises(ConfigError, match="stopped before its tokenizer was saved"):
        rlzoo.evaluate(run)


def test_prompts_of_messages_are_rendered_and_kept(objects, capsys):
    objects["tokenizer"].chat_template = "{% for m in messages %}{{ m.content }}{% endfor %}!"
    plain = "prompts are plain texts, without the model's chat template"
    train(**objects, progress=True, out="plain")
    assert plain in capsys.readouterr().out
    run = train(**{**objects, "prompts": [[{"role": "user", "content": "Hi"}]], "eval_prompts": ["Bye"]}, progress=True)
    assert plain not in capsys.readouterr().out
    assert json.loads((run.path / "prompts.jsonl").read_text()) == {"prompt": "Hi!"}
    assert [x.prompt for x in rlzoo.play(run, 1)] == ["Bye"]
    assert AutoTokenizer.from_pretrained(run.path / "actor").chat_template == objects["tokenizer"].chat_template


def test_adapter_of_a_given_model_is_merged(objects):
    peft = pytest.importorskip("peft")
    with warnings.catch_warnings(action="ignore"):  # of transformers, about what PEFT calls
        adapted = peft.get_peft_model(tiny.make_lm(), peft.LoraConfig(r=2, target_modules="all-linear"))
    with torch.no_grad():
        for name, p in adapted.named_parameters():
            if "lora_B" in name:
                p.fill_(0.1)
    run = train(**{**objects, "model": adapted})
    ids = torch.arange(5).unsqueeze(0)
    adapted.eval()
    expected = adapted(ids).logits
    torch.testing.assert_close(load_causal_lm(run.path / "start")(ids).logits, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"model": 3}, 'model must be a directory, a Hub name or a loaded one, such as model="gpt2", got int'),
        ({"tokenizer": 3}, 'tokenizer must be .* such as tokenizer="gpt2", got int'),
        ({"tokenizer": None}, "tokenizer is missing: a loaded model needs one, such as tokenizer=tokenizer"),
        (
            {"prompts": 3},
            r"prompts must be a file, a list or a datasets.Dataset .*, such as prompts=.*, got int 3",
        ),
        ({"prompts": []}, "prompts: there are none"),
        ({"prompts": [{"prompt": "a", "answer": {1}}]}, "prompts, entry 1 cannot be saved .*set is not JSON"),
        ({"eval_prompts": [{"prompt": "a", "answer": (1, 2)}]}, "eval_prompts, entry 1 cannot be saved .*tuples"),
        ({"reward": 3}, "reward must be"),
        ({"reward": []}, r"reward must be a score or several with weights, such as reward=\[\(brevity, 1.0\)"),
        ({"reward": [(length, "much")]}, "reward must be a score or several"),
        ({"reward": [(length, 1.0, 2.0)]}, "reward must be a score or several"),
        ({"reward": lambda texts: [1.0]}, r"cannot be called with \(prompts, responses\)"),
        ({"reward": [object()]}, 'reward must be a function, "module:function" or the directory of a reward model'),
    ],
)
def test_wrong_objects(objects, wrong, message, tmp_path):
    with pytest.raises(ConfigError, match=message) as caught:
        train(**{**objects, **wrong})
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "own").exists()


def test_weights_that_are_not_finite(objects):
    with torch.no_grad():
        objects["model"].transformer.wpe.weight[0, 0] = torch.nan
    with pytest.raises(ConfigError, match=r"the weights in .* are damaged: transformer.wpe.weight is not finite"):
        train(**objects)


# Several rewards


def test_sum_of_rewards_by_hand():
    score = WeightedSum({"length": (length, 2.0), "vowels": (vowels, -0.5)})
    total, parts = call_scores(score, "sum", ["p", "q"], ["aab", "bbbb"])
    assert parts["length"].tolist() == [0.75, 1.0]
    assert parts["vowels"].tolist() == [2.0, 0.0]
    assert total.tolist() == score(["p", "q"], ["aab", "bbbb"]) == [0.5, 2.0]


@pytest.mark.parametrize(
    ("reward", "expected"),
    [
        (None, []),
        ("a:f", [("a:f", 1.0)]),
        ("a:f=0.5", [("a:f", 0.5)]),
        (("a:f", "b:g=-2"), [("a:f", 1.0), ("b:g", -2.0)]),
        ([(length, 2), "b:g"], [(length, 2), ("b:g", 1.0)]),
        ({"a:f": 0.5, length: 1}, [("a:f", 0.5), (length, 1)]),
        ([["a:f", 0.5]], [("a:f", 0.5)]),
        ("file=x.py:f", [("file=x.py:f", 1.0)]),
    ],
)
def test_forms_of_several_rewards(reward, expected):
    assert Language(reward=reward).rewards == expected


def test_each_reward_has_a_metric(objects):
    run = train(**{**objects, "reward": {length: 2.0, vowels: -0.5}})
    for record in (run.metrics()[0], run.evaluations()[0]):
        total = record.get("score", record["mean_return"])
        assert total == pytest.approx(2 * record["score_length"] - 0.5 * record["score_vowels"], abs=1e-5)
    assert run.metrics()[0]["score_std"] > 0


def test_several_rewards_on_the_command_line(tmp_path, capsys):
    tiny.save_lm(tmp_path / "model")
    (tmp_path / "prompts.txt").write_text("\n".join(PROMPTS))
    (tmp_path / "mine.py").write_text("def std(prompts, responses):\n    return [1.0] * len(responses)\n")
    options = [text for name, x in SMALL.items() for text in (f"--{name.replace('_', '-')}", str(x))]
    rewards = ["mine.py:std", f"{__name__}:length=0.5"]
    files = ["--model", "model", "--prompts", "prompts.txt", "--reward", *rewards, "--out", "run"]
    assert main(["train", "ppo", "Prompts", "--quiet", "--threads", "1", *files, *options]) == 0
    record = rlzoo.Run("run").metrics()[0]
    assert record["score_std_2"] == 1.0
    assert record["score"] == pytest.approx(1 + 0.5 * record["score_length"], abs=1e-4)
    assert rlzoo.Run("run").read_config().task.reward == tuple(rewards)


# What a run saves, and runs that start from it


def test_saved_models_stop_at_every_stop_token(objects):
    before = {name: x.clone() for name, x in objects["model"].state_dict().items()}
    run = train(**{**objects, "stop_tokens": ("a", "b")})
    assert all(torch.equal(before[name], x) for name, x in objects["model"].state_dict().items())
    for name in ("start", "actor"):
        model = AutoModelForCausalLM.from_pretrained(run.path / name)
        assert set(model.generation_config.eos_token_id) == {tiny.EOS, 0, 1}
    assert objects["model"].generation_config.eos_token_id == tiny.EOS
    with torch.no_grad():  # "a" is always the next token
        model.lm_head.weight.zero_()
        model.transformer.ln_f.weight.zero_()
        model.transformer.ln_f.bias.fill_(1.0)
        model.lm_head.weight[0] = 1.0
    generate = pipeline("text-generation", model=model, tokenizer=AutoTokenizer.from_pretrained(run.path / "actor"))
    for sampled in (False, True):
        (response,) = generate("cd", max_new_tokens=9, do_sample=sampled, return_full_text=False)
        assert response["generated_text"] == "a"


def test_language_run_starts_from_the_final_actor_of_a_run(objects, run):
    start = {**objects, "model": run, "tokenizer": None}
    second = train(**start, out="second")
    assert torch.equal(weights(second.path / "start"), weights(run.path / "actor"))
    shutil.rmtree(run.path / "actor")
    with pytest.raises(ConfigError, match=r"run is a run of Prompts without actor/: a language run that has finished"):
        train(**start, out="third")
    shutil.rmtree(run.path)
    assert rlzoo.evaluate(second, 3).mean_return >= 0


def own_model(**changes):
    return LanguageModel(load_causal_lm(tiny.save_lm(Path("given"), "gpt2"), **changes))


def trainer_of(model, algorithm="ppo-clip", tokenizer=None, fast=False):
    given = {"tokenizer": tokenizer or tiny.make_tokenizer(), "prompts": PROMPTS, "reward": length, "model": "given"}
    settings = {**given, "responses_per_batch": 6, "max_new_tokens": 8, "fast": fast}
    return rlzoo.Trainer(rlzoo.make_config(algorithm, "Prompts", **settings), model)


def test_natural_gradients_use_eager_attention_of_a_model_of_ones_own():
    for algorithm, attention in (("ppo-clip", "sdpa"), ("npg", "eager")):
        trainer = trainer_of(own_model(attention="sdpa"), algorithm)
        assert trainer.model.actor.config._attn_implementation == attention


@pytest.mark.parametrize("before", ["ppo-clip", "npg"])
def test_a_model_that_a_run_has_used_is_the_same_policy_in_the_next(before):
    model, rows = own_model(), make_rows([(2, 5), (7, 3), (4, 9), (12, 3)])
    log_prob = model.distribution(rows).log_prob(rows.action)
    for algorithm in (before, "npg"):
        trainer_of(model, algorithm, fast=True)
        assert (model.distribution(rows).log_prob(rows.action) - log_prob).norm() < 3e-6 * log_prob.norm()


def test_a_model_of_ones_own_that_cannot_train_is_an_error():
    frozen = own_model()
    frozen.actor.requires_grad_(False)
    with pytest.raises(ConfigError, match="model: nothing of its policy is trained"):
        trainer_of(frozen)
    larger = tiny.make_tokenizer()
    larger.add_tokens(["<more>"])
    with pytest.raises(ConfigError, match="tokens, but the model of yours only"):
        trainer_of(own_model(), tokenizer=larger)


def test_settings_that_a_model_of_ones_own_does_not_take_are_named():
    config = rlzoo.make_config("ppo-clip", "Prompts", model="m", prompts="p", reward="r:r")
    assert {"temperature", "precision", "lora_rank"} <= config.of_model
    assert {"network", "hidden", "normalize_obs"} <= rlzoo.make_config("ppo-clip", "CartPole-v1").of_model
