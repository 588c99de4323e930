"""Language tasks through the trainer: all five algorithms, evaluation, settings, and what a run saves."""

import importlib
import json
import shutil

import numpy as np
import pytest
import short_language_runs
import tiny
import torch
from lm_builders import collected, move, same
from transformers import AutoModelForCausalLM, pipeline

import rlzoo
from rlzoo.core.system.errors import ConfigError
from rlzoo.lm.fast import packed
from rlzoo.lm.fast.attention import NAMES
from rlzoo.lm.finetune.sft import SFTSettings
from rlzoo.lm.model.language_model import LanguageModel
from rlzoo.lm.model.pretrained import load_causal_lm, new_causal_lm
from rlzoo.lm.model.saving import save
from rlzoo.lm.reward.shaping import sequence_kl
from rlzoo.lm.tasks.conversation import Speaker
from rlzoo.lm.tasks.samples import respond
from rlzoo.optim.natural_gradient import FlatPolicy
from rlzoo.optim.objective import surrogate
from rlzoo.runs.configuration.config import check, make_config
from rlzoo.runs.evaluate import load_task
from rlzoo.runs.loop import Trainer
from rlzoo.runs.registry import ALGORITHMS


def vowels(prompts, responses):
    """A score: the share of vowels."""
    return [sum(c in "aeiou" for c in text) / max(len(text), 1) for text in responses]


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    folder = tmp_path_factory.mktemp("data")
    tiny.save_lm(folder / "model")
    (folder / "prompts.txt").write_text("ab\nhello\nxyz\nQ\n")
    return folder


def config(data, algorithm="ppo-clip", **settings):
    given = {
        "model": str(data / "model"),
        "prompts": str(data / "prompts.txt"),
        "reward": f"{__file__}:vowels",
        "responses_per_batch": 8,
        "max_new_tokens": 5,
        **settings,
    }
    return rlzoo.make_config(algorithm, "Prompts", **given)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_every_algorithm_trains_a_language_model(algorithm, data):
    trainer = Trainer(config(data, algorithm))
    before = {name: p.clone() for name, p in trainer.model.state_dict().items()}
    for _ in range(2):
        metrics = trainer.iterate().metrics
    moved = [name for name, p in trainer.model.state_dict().items() if not torch.equal(p, before[name])]
    assert any(name.startswith("trunk") for name in moved)
    assert any(name.startswith("value") for name in moved)
    assert metrics["kl_reference"] != 0
    assert np.isfinite(list(metrics.values())).all()


def test_responses_end_where_the_generation_configuration_ends_them(tmp_path):
    """As in chat; also after a resume, from the run's own copy."""
    tiny.save_lm(tmp_path / "model")
    file = tmp_path / "model" / "generation_config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "eos_token_id": [7, tiny.EOS]}))
    (tmp_path / "prompts.txt").write_text("ab\n")
    lines = []
    own = Trainer(config(tmp_path), progress=tiny.Said(lines)).task.env.stop
    assert own == {7, tiny.EOS} == Speaker.load(tmp_path / "model", 1.0, 4).stop
    assert "responses end with 'h', '<eos>', as the model's generation configuration has it" in lines
    run = rlzoo.train(config(tmp_path, total_steps=40), out=tmp_path / "run")
    assert load_task(run).env.stop == own
    assert Trainer(config(tmp_path, stop_tokens=("a",))).task.env.stop == {0}


@pytest.mark.parametrize("estimator", ["leave-one-out", "group-mean", "group-norm"])
@pytest.mark.parametrize("algorithm", ["reinforce", "trpo", "ppo-clip"])
def test_advantages_within_groups_train_too(algorithm, estimator, data):
    trainer = Trainer(config(data, algorithm, estimator=estimator, responses_per_prompt=4))
    buffer = collected(trainer.task).buffer
    rows = trainer.algorithm.estimator(buffer)
    totals = (rows.advantage * rows.mask).sum(1) / rows.mask.sum(1)
    torch.testing.assert_close(totals.view(2, 4).sum(1), torch.zeros(2), rtol=0, atol=1e-5)
    assert totals.abs().max() > 1e-3
    trainer.iterate()


@pytest.mark.slow
@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"lora_rank": 2},
        {"precision": "bfloat16"},
        {"precision": "bfloat16", "lora_rank": 2, "micro_batch_tokens": 100},
    ],
    ids=["all weights", "adapter", "bfloat16", "adapter in bfloat16"],
)
@pytest.mark.parametrize(("algorithm", "most"), [("trpo", 0.003), ("npg", 0.0045)])
def test_natural_gradient_steps_improve_the_surrogate_within_max_kl(algorithm, most, settings, data):
    """On all rows, measured after the update. NPG bounds the quadratic model of the KL alone: up to a half more."""
    trainer = Trainer(config(data, algorithm, max_kl=0.003, responses_per_batch=16, **settings))
    model, accepted = trainer.model, 0
    for _ in range(5):
        buffer = collected(trainer.task).buffer
        batch = trainer.algorithm.estimator(buffer).rows(0)
        batch = batch.whitened.replace(old=model.distribution(batch.obs).detach())
        metrics = trainer.algorithm.update(model, trainer.state, buffer)
        before = float(batch.mean(batch.advantage))
        policy = FlatPolicy(model)
        after, kl = policy.objective(surrogate, batch).value_and_kl(policy.theta)
        assert metrics["kl"] == pytest.approx(kl, rel=1e-3, abs=1e-7)
        if metrics.get("accepted", 1):
            accepted += 1
            assert max(kl, metrics["kl"]) <= most
            assert after > before + 1e-3
    assert accepted >= 4


def test_the_ratio_is_1_before_the_first_step(data):
    trainer = Trainer(config(data, "ppo-clip"))
    trainer.iterate()  # off the start
    batch = collected(trainer.task).buffer.rows(0)
    with torch.no_grad():
        ratio = torch.exp(trainer.model.distribution(batch.obs).log_prob(batch.action) - batch.logp)
    assert (ratio - 1).abs().max() < 1e-5


@pytest.mark.parametrize("algorithm", ["trpo", "ppo-penalty"])
def test_micro_batches_change_no_update(algorithm, data):
    weights = []
    for micro_batch_tokens in (None, 16):
        trainer = Trainer(config(data, algorithm, micro_batch_tokens=micro_batch_tokens, **STEADY[algorithm]))
        trainer.iterate()
        weights.append(torch.cat([p.reshape(-1) for p in trainer.model.state_dict().values()]))
    torch.testing.assert_close(*weights, rtol=1e-3, atol=2e-5)


STEADY = {"trpo": {"cg_iters": 3, "vf_epochs": 0}, "ppo-penalty": {"epochs": 1, "minibatch_responses": "all"}}


def test_bfloat16_trains_nearly_the_same(data):
    metrics = []
    for precision in ("float32", "bfloat16"):
        trainer = Trainer(config(data, precision=precision, beta=0.0))
        metrics.append(trainer.iterate().metrics)
        assert all(p.dtype == torch.float32 for p in trainer.model.parameters())
    assert metrics[1]["entropy"] == pytest.approx(metrics[0]["entropy"], rel=0.05)
    assert abs(metrics[1]["kl_reference"]) < 1e-6  # actor and reference are rounded alike


def test_evaluation_leaves_no_trace_in_the_training(data):
    one, other = (Trainer(config(data, seed=3)) for _ in range(2))
    one.iterate(), other.iterate()
    other.task.evaluate(7, seed=5)
    assert one.iterate().metrics == other.iterate().metrics


def test_evaluation_is_the_same_for_the_same_seed(data):
    task = Trainer(config(data)).task
    first, again, other = (task.evaluate(9, seed=seed).summary() for seed in (1, 1, 2))
    assert first == again
    assert first["samples"] != other["samples"]
    assert first["kl_reference"] == pytest.approx(0, abs=1e-6)
    assert len(first["samples"]) == 4
    assert first["samples"][0]["prompt"] == "ab"


def test_a_run_leaves_models_that_transformers_loads(data, tmp_path):
    settings = {"total_steps": 60, "lora_rank": 2}
    run = rlzoo.train(config(data, **settings), out=tmp_path / "run")
    actor = AutoModelForCausalLM.from_pretrained(run.path / "actor")
    model = rlzoo.load_model(run)
    assert isinstance(model, LanguageModel)
    ids = torch.tensor([[1, 2, 3]])
    expected = model.actor(ids).logits
    torch.testing.assert_close(actor(ids).logits, expected, rtol=1e-4, atol=1e-4)
    start = AutoModelForCausalLM.from_pretrained(run.path / "start")
    assert not torch.allclose(start(ids).logits, expected, atol=1e-4)
    record = json.loads((run.path / "evaluations.jsonl").read_text().splitlines()[-1])
    assert record["samples"]


def test_the_adapter_is_there_if_the_disk_is_too_full_for_the_model(data, tmp_path, monkeypatch):
    task = Trainer(config(data, lora_rank=2)).task

    def full(*arguments):
        raise OSError("no space left")

    monkeypatch.setattr(task.model, "save_pretrained", full)
    with pytest.raises(OSError, match="no space left"):
        task.end(tmp_path)
    assert (tmp_path / "adapter" / "adapter_model.safetensors").is_file()


def test_a_run_depends_on_no_directory_but_its_own(data, tmp_path):
    tiny.save_lm(tmp_path / "model")
    run = rlzoo.train(config(data, model=str(tmp_path / "model"), total_steps=40), out=tmp_path / "run")
    before = rlzoo.evaluate(run, 3).mean_return
    (tmp_path / "model").rename(tmp_path / "gone")
    assert rlzoo.evaluate(run, 3).mean_return == before
    rlzoo.resume(run, total_steps=80)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_fast_implementations_change_results_by_rounding_alone(algorithm, data, monkeypatch):
    """Packed weights and the faster Adam, on a model of which every layer is packed."""
    monkeypatch.setattr(packed, "_WORTH", 0)
    trainers = [Trainer(config(data, algorithm, fast=fast, lora_rank=None)) for fast in (False, True)]
    optimizers = [{type(x).__name__ for x in trainer.state.optimizers.values()} for trainer in trainers]
    assert optimizers == [{"Adam"}, {"FastAdam"}]
    slow, fast = ([collected(trainer.task) for _ in range(2)] for trainer in trainers)
    for a, b in zip(slow, fast, strict=True):
        assert same(a.buffer.obs, b.buffer.obs)
        assert torch.equal(a.buffer.action[a.buffer.mask], b.buffer.action[b.buffer.mask])
    first, second = (trainer.iterate().metrics for trainer in trainers)
    assert first == pytest.approx(second, rel=1e-3, abs=1e-5)


def shift(path, count):
    """Adds blanks to the header of a safetensors file, which moves its tensors."""
    data = path.read_bytes()
    size = int.from_bytes(data[:8], "little")
    header = data[8 : 8 + size] + b" " * count
    path.write_bytes(len(header).to_bytes(8, "little") + header + data[8 + size :])


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", ["trpo", "ppo-clip"])
def test_the_alignment_of_a_file_changes_no_result(algorithm, tmp_path):
    """Of actor, critic and reward model. One short response, because products of few rows are those that differ."""
    (tmp_path / "prompts.txt").write_text("ab\nhello\nxyz\nQ\n")
    tiny.save_lm(tmp_path / "model")
    tiny.make_reward_model(tmp_path / "model").save(tmp_path / "judge")
    given = {"reward": str(tmp_path / "judge"), "critic": "reward-model", "prompts": str(tmp_path / "prompts.txt")}
    given |= {"responses_per_batch": 1, "max_new_tokens": 4}
    found = []
    for count in (0, 8, 16, 24):
        for name in ("model", "judge"):
            shift(tmp_path / name / "model.safetensors", count)
        trainer = Trainer(config(tmp_path, algorithm, **given))
        metrics = [trainer.iterate().metrics for _ in range(2)]
        found.append((metrics, {name: p.numpy().tobytes() for name, p in trainer.model.state_dict().items()}))
    assert all(x == found[0] for x in found)


def test_a_run_that_lost_its_reference_is_not_resumed(tmp_path):
    short_language_runs.save_data(tmp_path)
    run = rlzoo.train(out=tmp_path / "run", **short_language_runs.settings(tmp_path, "ppo-clip", total_steps=60))
    shutil.rmtree(run.path / "start")
    with pytest.raises(ConfigError, match=r"start is missing; the run cannot be resumed without its own reference$"):
        rlzoo.resume(run, 120)
    assert not (run.path / "start").exists()


def test_a_critic_that_has_no_embedding_of_a_token_is_an_error(data, tmp_path):
    tiny.make_reward_model(data / "model").save(tmp_path / "judge")
    actor = load_causal_lm(data / "model")
    has = actor.get_input_embeddings().num_embeddings
    actor.resize_token_embeddings(has + 8)  # as models have whose embedding is padded
    save(actor, tiny.make_tokenizer(), tmp_path / "padded")
    given = {"model": str(tmp_path / "padded"), "reward": str(tmp_path / "judge"), "critic": "reward-model"}
    with pytest.raises(ConfigError, match=rf"judge has {has} embeddings, and {has + 8} tokens can be sampled$"):
        Trainer(config(data, "ppo-clip", **given))


def test_what_a_run_saves_ends_its_texts_in_hugging_face(tmp_path):
    """The model of `sft`, and `start` and `actor` of a run: greedy and sampled generation stop at EOS, as pipelines."""
    tiny.save_lm(tmp_path / "random")
    (tmp_path / "texts.txt").write_text("\n".join(["abc", "bca", "cab", "ab", "bc", "ca"] * 20))
    (tmp_path / "prompts.txt").write_text("a\nb\nc\n")
    fit = SFTSettings(epochs=8, learning_rate=3e-3, held_out=0.0)
    rlzoo.sft(tmp_path / "texts.txt", tmp_path / "random", tmp_path / "sft", settings=fit)
    settings = {"model": str(tmp_path / "sft"), "prompts": str(tmp_path / "prompts.txt"), "learning_rate": 1e-5}
    for rank in (None, 2):
        given = config(tmp_path, total_steps=30, max_new_tokens=20, lora_rank=rank, **settings)
        run = rlzoo.train(given, out=tmp_path / f"run-{rank}")
        for folder in (tmp_path / "sft", run.path / "start", run.path / "actor"):
            model = AutoModelForCausalLM.from_pretrained(folder)
            assert (model.generation_config.eos_token_id, model.generation_config.pad_token_id) == (tiny.EOS, tiny.PAD)
            torch.manual_seed(0)
            for how in ({"do_sample": False}, {"do_sample": True}):
                rows = model.generate(torch.tensor([[0], [1], [2]] * 4), max_length=31, **how)
                for row in rows.tolist():
                    assert tiny.EOS in row
                    assert set(row[row.index(tiny.EOS) + 1 :]) <= {tiny.PAD}
            said = pipeline("text-generation", str(folder))("a", max_new_tokens=30, do_sample=False)
            assert len(said[0]["generated_text"]) < 10


# A task in one file of the user's

TASK = """
from dataclasses import dataclass
from rlzoo import LanguageTask
from rlzoo.lm.finetune.sft import SFTSettings, train_tokenizer
from rlzoo.lm.finetune.sft_checkpoint import SFTCheckpoint, small_gpt2
from rlzoo.lm.tasks.settings import Language

TEXTS = ["the cat sat", "a cat ran", "the dog sat", "a dog ran"] * 5


@dataclass(frozen=True)
class Settings(Language):
    max_new_tokens: int = 6


class Words(LanguageTask):
    Settings = Settings

    def own_prompts(self):
        return ["the", "a"]

    def own_score(self):
        return lambda prompts, responses: [float("cat" in x) for x in responses]
"""
OWN_SFT = """
    def own_sft(self):
        fit = SFTSettings(epochs=2, learning_rate=1e-3, held_out=0.0)
        return SFTCheckpoint(TEXTS, lambda: train_tokenizer(TEXTS, 260), small_gpt2(1, 16, 2, 16), fit)
"""


def test_a_new_task_given_as_its_class(tmp_path, monkeypatch):
    (tmp_path / "words_class.py").write_text(TASK + OWN_SFT)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("RLZOO_CACHE", str(tmp_path / "cache"))
    words = importlib.import_module("words_class").Words
    trainer = Trainer(rlzoo.make_config("ppo-clip", words, responses_per_batch=4, responses_per_prompt=2))
    assert trainer.task.env.prompts.texts == ["the", "a"]


@pytest.mark.parametrize("own_sft", [True, False])
def test_a_new_task_is_one_file(own_sft, data, tmp_path, monkeypatch):
    name = "words_task" if own_sft else "words_task_without_model"
    (tmp_path / f"{name}.py").write_text(TASK + OWN_SFT * own_sft)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("RLZOO_CACHE", str(tmp_path / "cache"))
    env, iterations = f"{name}:Words", []
    settings = {
        "responses_per_batch": 4,
        "responses_per_prompt": 2,
        "total_steps": 25,
        "eval_episodes": 2,
        "minibatch_responses": "all",
    }
    if not own_sft:
        with pytest.raises(ConfigError, match=f"model is missing: {env} has none of its own"):
            rlzoo.make_config("ppo-clip", env, **settings)
        settings["model"] = str(data / "model")

    def note(trainer, iteration):
        iterations.append(iteration.metrics["score"])

    run = rlzoo.train("ppo-clip", env, out=tmp_path / "run", on_iteration=note, **settings)
    assert len(iterations) >= 2  # four responses of at most six tokens each
    assert all(0 <= score <= 1 for score in iterations)
    assert run.read_config().task.max_new_tokens == 6
    step = run.steps()[-1]
    rlzoo.resume(run, total_steps=step + 1)
    assert run.steps()[-1] > step
    assert 0 <= rlzoo.evaluate(run, 3).mean_return <= 1
    samples = rlzoo.play(run, 3)
    assert [x.prompt for x in samples] == ["the", "a", "the"]
    assert all(x.score == float("cat" in x.response) for x in samples)


def test_true_score_is_that_of_the_task_in_any_form(data, tmp_path, monkeypatch):
    score = "        return lambda completions: (len(x) for x in completions)\n"
    own = TASK.partition("        return lambda")[0] + score
    (tmp_path / "long_words_task.py").write_text(own)
    monkeypatch.syspath_prepend(str(tmp_path))
    settings = {"model": str(data / "model"), "reward": f"{__file__}:vowels"}
    task = Trainer(rlzoo.make_config("ppo-clip", "long_words_task:Words", **settings)).task
    lengths = [len(x.response) for x in task.sample(4, seed=0)]
    assert task.evaluate(4, seed=0).further["true_score"] == sum(lengths) / 4


def test_a_deterministic_evaluation_has_no_copies_of_a_response(data):
    task = Trainer(config(data)).task
    copies = task.sample(8, seed=0, deterministic=True)
    result = task.evaluate(8, seed=0, deterministic=True)
    assert result.returns.tolist() == [x.score for x in copies[:4]] == [x.score for x in copies[4:]]
    assert len(task.evaluate(3, seed=0, deterministic=True).returns) == 3
    assert len(task.evaluate(8, seed=0).returns) == 8


@pytest.mark.parametrize("parameters", [0, 10**9])
def test_the_faster_precision_is_named_for_a_model_that_is_not_small(data, monkeypatch, parameters):
    monkeypatch.setattr("rlzoo.lm.tasks.language.SMALL", parameters)
    monkeypatch.setattr("rlzoo.lm.tasks.language.advice", lambda device, precision: f"{precision} is slower")
    lines = []
    Trainer(config(data), progress=tiny.Said(lines))
    assert ("float32 is slower" in lines) == (parameters == 0)


def test_bfloat16_on_a_device_without_it_is_one_line(data, monkeypatch):
    settings = config(data, precision="bfloat16", device="cuda")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation: True)
    check(settings)
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation: False)
    with pytest.raises(ConfigError, match=r"^precision: cuda does not compute in bfloat16; use float32$"):
        check(settings)


def test_trpo_with_epochs_needs_no_forward_mode(data):
    weights = []
    for settings in ({"attention": "eager"}, {"attention": "sdpa"}, {"gradient_checkpointing": True}):
        trainer = Trainer(config(data, "trpo", epochs=2, **settings))
        assert trainer.iterate().metrics["accepted"]
        weights.append(torch.nn.utils.parameters_to_vector(trainer.model.parameters()))
    assert trainer.model.actor.config._attn_implementation == NAMES["sdpa"]  # by default
    torch.testing.assert_close(weights[1:], [weights[0], weights[0]], rtol=0, atol=1e-5)


def second_order_trainer(data, folder, kind, given):
    shape = {"num_hidden_layers": 1, "hidden_size": 16, "intermediate_size": 16}
    heads = {"num_attention_heads": 2, "num_key_value_heads": 2}
    actor = new_causal_lm({"model_type": kind, **shape, **heads}, tiny.PAD + 1)
    save(actor, tiny.make_tokenizer(), folder)
    return Trainer(config(data, "npg", model=str(folder)), model=LanguageModel(actor) if given else None)


@pytest.mark.parametrize("given", [False, True])
def test_experts_have_fisher_products(given, data, tmp_path):
    trainer = second_order_trainer(data, tmp_path, "mixtral", given)
    assert trainer.iterate().metrics["kl"] > 0


def test_a_layer_without_forward_mode_is_one_line(data, tmp_path):
    trainer = second_order_trainer(data, tmp_path, "bloom", given=False)
    with pytest.raises(ConfigError, match="which Fisher products need: You must implement") as caught:
        trainer.iterate()
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"temperature": 0.0}, "temperature must be at least 1e-06"),
        ({"temperature": 1e-300}, "temperature must be at least 1e-06, got 1e-300"),
        ({"beta": -0.1}, "beta must be at least 0"),
        ({"responses_per_prompt": 3}, "responses_per_batch must be a multiple of responses_per_prompt = 3, got 8"),
        ({"attention": "sdpa", "algorithm": "npg"}, "npg needs forward-mode derivatives, which sdpa"),
        (
            {"gradient_checkpointing": True, "algorithm": "trpo"},
            "gradient_checkpointing has no forward-mode derivatives, which trpo needs",
        ),
        ({"critic": "reward-model"}, "reward must be the directory of one"),
        ({"beta_target": 6.0, "beta_horizon": 1.0}, "beta_horizon must be above a fifth of responses_per_batch = 8"),
        ({"prompts": None}, "prompts is missing"),
        ({"max_new_tokens": 32}, "max_new_tokens must leave room"),
        ({"max_prompt_tokens": 2}, r"prompt 2 \('hello'\) has 5 tokens; there is room for 2"),
        ({"stop_tokens": ("ab",)}, "'ab' is 2 tokens"),
        ({"ptx": "missing.txt"}, "missing.txt"),
    ],
)
def test_wrong_settings_are_one_line(settings, message, data):
    with pytest.raises(ConfigError, match=message) as caught:
        Trainer(config(data, **settings))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("of_messages", [False, True])
def test_a_template_that_requires_a_system_message(of_messages, tmp_path):
    """The run's own prompts tell whether the prompts of `respond_to` go through the template."""
    tokenizer = tiny.make_tokenizer()
    tokenizer.chat_template = (
        "{% if messages[0]['role'] != 'system' %}{{ raise_exception('a system message is required') }}{% endif %}"
        "{% for m in messages %}{{ m['content'] }}.{% endfor %}{% if add_generation_prompt %}!{% endif %}"
    )
    messages = [{"role": "system", "content": "be"}, {"role": "user", "content": "ab"}]
    prompts = [messages if of_messages else "ab"] * 2
    settings = {"model": str(tiny.save_lm(tmp_path, tokenizer=tokenizer)), "prompts": prompts, "reward": vowels}
    task = Trainer(rlzoo.make_config("reinforce", "Prompts", **settings, max_new_tokens=4, responses_per_batch=2)).task
    if of_messages:
        with pytest.raises(ConfigError, match="a system message is required"):
            task.respond_to(["a"], 1, seed=0)
    else:
        assert [x.prompt for x in task.respond_to(["a"], 1, seed=0).records] == ["a"]


def test_moments_of_the_reference_are_measured_once(tmp_path):
    short_language_runs.save_data(tmp_path)
    more = {**short_language_runs.PPO, "learning_rate": 1e-2, "score_normalization": "reference"}
    settings = short_language_runs.settings(tmp_path, "ppo-clip", **more)
    trainer, moments = Trainer(make_config(**settings)), []
    for _ in range(3):
        trainer.iterate()
        moments.append(trainer.task.env.scoring.moments)
    assert moments[0].count == 256
    assert moments == [moments[0]] * 3


def language_task(tmp_path):
    short_language_runs.save_data(tmp_path)
    return Trainer(make_config(**short_language_runs.settings(tmp_path, "ppo-clip", **short_language_runs.PPO))).task


def test_samples_follow_their_seed(tmp_path):
    task = language_task(tmp_path)
    one, again, other = ([x.response for x in task.sample(9, seed=seed)] for seed in (1, 1, 2))
    assert one == again != other


def test_kl_of_a_sample_is_from_the_policy_to_the_reference(tmp_path):
    task = language_task(tmp_path)
    move(task.model, spread=0.3)
    buffer, *_ = respond(task.env, task.eval_texts[:3], torch.Generator().manual_seed(5))
    tokens = buffer.obs.columns(0, buffer.mask.shape[1])
    with torch.no_grad():
        policy, reference = task.model.distribution(tokens), task.env.reference.distribution(tokens)
    expected = sequence_kl(policy.kl(reference), buffer.mask)
    assert [x.kl for x in task.sample(3, seed=5)] == pytest.approx(expected.tolist(), rel=1e-4)
