"""Language tasks: an environment of prompts and a score, a language model, and how to evaluate it."""

from __future__ import annotations

import copy
import os
import shutil
import tempfile
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from transformers import PreTrainedTokenizerBase

from rlzoo.core.collector import Collector
from rlzoo.core.env import Experience, env_name
from rlzoo.core.evaluation import Evaluation, Played
from rlzoo.core.models import ActorCritic
from rlzoo.core.system import processes
from rlzoo.core.system.errors import ConfigError, require
from rlzoo.core.system.files import check_sealed
from rlzoo.core.system.functions import as_function
from rlzoo.core.system.streams import stream, torch_generator
from rlzoo.core.system.threads import fit_to
from rlzoo.core.task import DeployedPolicy, Setup, Task, TaskSettings
from rlzoo.lm.finetune.chat import asked, is_rendered
from rlzoo.lm.finetune.data import as_lines, read_prompts, save_prompts
from rlzoo.lm.finetune.pretraining import PretrainingLoss, read_pieces
from rlzoo.lm.finetune.sft_checkpoint import SFTCheckpoint
from rlzoo.lm.model import pretrained
from rlzoo.lm.model.acting import TokenActor
from rlzoo.lm.model.hugging_face import as_license, loading, on_hub
from rlzoo.lm.model.language_model import (
    LanguageModel,
    Reference,
    causal_lm,
    merge_adapter,
    with_adapter,
    without_adapter,
)
from rlzoo.lm.model.precision import advice
from rlzoo.lm.model.saving import LICENSE, save, save_adapter
from rlzoo.lm.reward.allowed import AllowedTokens
from rlzoo.lm.reward.env import LMEnv
from rlzoo.lm.reward.generation import Generation, end_ids, stop_ids
from rlzoo.lm.reward.pass_at_k import mean_pass_at_k
from rlzoo.lm.reward.prompt import Prompts
from rlzoo.lm.reward.scores import Score, call_score, call_scores, missing_columns, score_name
from rlzoo.lm.reward.scoring import Scoring, load_scores
from rlzoo.lm.reward.shaping import AdaptiveKL, FixedKL, KLController, Moments, ScoreTreatment
from rlzoo.lm.reward.turns import Reply, Turns
from rlzoo.lm.tasks.samples import Sample, batches, describe_samples, distinct_words, respond, sample
from rlzoo.lm.tasks.settings import SMALL, Language, check_language

START, ACTOR, ADAPTER = "start", "actor", "adapter"
_MODELS = "give a directory, a Hub name or a Hugging Face model"
_CALIBRATION = 256
"""Responses of the reference whose scores give the fixed normalisation."""


class LanguageTask(Task):
    """Trains a language model by the scores of its responses, and evaluates it by the scores alone.

    A run directory holds the actor's initial weights, which are also the reference, in `start/`, and its final weights
    in `actor/`. Both are Hugging Face models with their tokenizer. A LoRA adapter is also in `adapter/`, for PEFT.

    A subclass may have its own prompts, score and SFT checkpoint. What it does not have must be a setting.
    """

    Settings: ClassVar[type[TaskSettings]] = Language
    evaluates_start: ClassVar[bool] = True
    settings: Language
    model: LanguageModel
    env: LMEnv
    _restored = False
    """Whether the model is that of a checkpoint, and no longer the initial one."""

    def __init__(self, settings: Language, setup: Setup, model: ActorCritic | None = None) -> None:
        self.settings, self.setup = settings, setup
        for path in (settings.prompts, settings.eval_prompts, settings.ptx):  # before the model, which takes long
            require(not isinstance(path, str) or os.path.exists(path), f"no such file: {path}")
        given = load_scores(settings.rewards, setup.device) if settings.rewards else None
        complete = model is not None and settings.tokenizer is not None and self._start is None
        self._source = "" if complete else self._find_source()
        self.tokenizer = self._find_tokenizer()
        self.score, self.score_name = given or self._named_own_score()
        if not (model is None or isinstance(model, LanguageModel)):
            raise ConfigError(f"model: {env_name(setup.env)} needs a LanguageModel, got a {type(model).__name__}")
        self.model = (self._build() if model is None else self._check_own(model)).to(setup.device)
        lm = causal_lm(self.model.actor)
        if setup.second_order and hasattr(lm, "set_experts_implementation"):  # since transformers 5
            lm.set_experts_implementation("eager")  # the only one with forward-mode derivatives
        self.env = self._environment(None if model is None else self._initial(self.model))
        self.collector = Collector(self.env, whole_episodes=True)
        self.eval_texts = self._find_eval_prompts()
        self.pretraining = None if settings.ptx is None else self._pretraining_loss(settings.ptx)
        self.model.auxiliary = self.pretraining
        self.generator = torch_generator(stream(setup.seed, "action"), setup.device)
        chats = settings.prompts is not None and self.tokenizer.chat_template is not None
        if chats and not any(is_rendered(text, self.tokenizer) for text in self.env.prompts.texts[:8]):
            remedy = "for answers give messages (docs/language-data.md)"
            setup.progress.say(f"prompts are plain texts, without the model's chat template; {remedy}")
        parameters = sum(p.numel() for p in self.model.parameters())
        fit_to(parameters, setup.progress.say)
        if parameters > SMALL and (line := advice(setup.device, settings.precision)):
            setup.progress.say(line)

    def own_prompts(self) -> Sequence[str | Mapping[str, Any]]:
        """Prompts of the task for training: texts, or records with columns."""
        raise ConfigError(f"prompts is missing: {env_name(self.setup.env)} has none of its own")

    def own_eval_prompts(self) -> Sequence[str | Mapping[str, Any]]:
        """Prompts of the task, for evaluations; by default those of training."""
        return self.env.prompts.texts

    def own_score(self) -> Score | None:
        """Score of the task; None if it has none."""
        return None

    def own_reply(self) -> Reply | None:
        """What the task says to the model when it has ended a turn; None for responses of one turn."""
        return None

    def own_sft(self) -> SFTCheckpoint | None:
        """Recipe of the task's SFT checkpoint; None if it has none."""
        return None

    @classmethod
    def check(cls, settings: Language, setup: Setup) -> None:
        check_language(settings, setup)
        one_turn = cls.own_reply is LanguageTask.own_reply and settings.reply is None
        require(not one_turn or settings.max_turns is None, "max_turns is for conversations: it needs reply")
        remedy = {"model": f"; {_MODELS}"}
        for name, own in (("model", "own_sft"), ("prompts", "own_prompts"), ("reward", "own_score")):
            there = getattr(cls, own) is not getattr(LanguageTask, own) or getattr(settings, name) is not None
            later = name == "model" and settings.tokenizer is not None  # there may be a LanguageModel with it
            fault = f"{name} is missing: {env_name(setup.env)} has none of its own{remedy.get(name, '')}"
            require(there or later, fault)

    @property
    def _start(self) -> Path | None:
        """The run's own copy of the initial model and its tokenizer; None if it has none yet."""
        folder = self.setup.folder
        return folder / START if folder is not None and (folder / START).is_dir() else None

    def _setting(self, name: str) -> Any:
        """A setting that may be an object. A run that is loaded has only a description of an object."""
        setting, were = getattr(self.settings, name), "were" if name.endswith("s") else "was"
        fault = f"{self.setup.folder} was stopped before its {name} {were} saved in it: train it again"
        require(self.setup.folder is None or not isinstance(setting, Mapping), fault)
        return setting

    def _find_source(self) -> str:
        """Directory or Hub name of the initial weights: the run's own copy, the setting, or the SFT checkpoint."""
        if self._start is not None:
            try:
                check_sealed(self._start)
            except OSError as error:
                raise ConfigError(f"{error}; the run cannot be used without its own reference") from error
            return str(self._start)
        model = self._setting("model")
        if isinstance(model, str):
            return pretrained.located(model, self.setup.progress)
        if model is not None:
            scratch = tempfile.mkdtemp(prefix="rlzoo-")
            weakref.finalize(self, shutil.rmtree, scratch, ignore_errors=True)
            save(merge_adapter(model), self._find_tokenizer(), scratch)
            return scratch
        sft = self.own_sft()
        if sft is None:
            raise ConfigError(f"model is missing: {env_name(self.setup.env)} has none of its own; {_MODELS}")
        return str(sft.path(env_name(self.setup.env), self.setup.progress))

    def _find_tokenizer(self) -> PreTrainedTokenizerBase:
        """The tokenizer of the run's own copy, of the setting, or of the initial model."""
        if self._start is not None or self.settings.tokenizer is None:
            return pretrained.load_tokenizer(self._source)
        tokenizer = self._setting("tokenizer")
        if isinstance(tokenizer, str):
            return pretrained.load_tokenizer(pretrained.located(tokenizer, self.setup.progress))
        return pretrained.with_padding(tokenizer, "given")

    def _named_own_score(self) -> tuple[Score, str]:
        score = self.own_score()
        if score is None:
            raise ConfigError(f"own_score of {env_name(self.setup.env)} returned None: give reward, or a score")
        return score, env_name(self.setup.env)

    def _build(self) -> LanguageModel:
        settings = self.settings
        attention: pretrained.Attention = "eager" if self.setup.second_order else settings.attention
        actor = pretrained.load_causal_lm(self._source, attention)
        given: Any = settings.model
        if hasattr(given, "named_parameters") and not hasattr(given, "peft_config"):
            trains = {name for name, p in actor.named_parameters() if p.requires_grad}
            frozen = next((x for x, p in given.named_parameters() if x in trains and not p.requires_grad), None)
            remedy = "give model=rlzoo.LanguageModel(model), tokenizer=tokenizer"
            require(frozen is None, f"{frozen} of the given model is frozen, but all of it would train: {remedy}")
        pretrained.check_vocabulary(actor, len(self.tokenizer), self._source)
        critic = None
        if settings.critic == "actor":
            critic = copy.deepcopy(actor.base_model)
        elif settings.reward_model is not None and settings.critic == "reward-model":
            critic = pretrained.load_reward_model(settings.reward_model, attention).base_model
            same = pretrained.load_tokenizer(settings.reward_model).get_vocab() == self.tokenizer.get_vocab()
            require(same, f"critic: {settings.reward_model} has another tokenizer than {self._source}")
            models: list[Any] = [critic, actor]
            has, needs = (len(x.get_input_embeddings().weight) for x in models)
            fault = f"critic: {settings.reward_model} has {has} embeddings, and {needs} tokens can be sampled"
            require(has >= needs, fault)
        if settings.lora_rank is not None:
            actor = with_adapter(actor, settings.lora_rank, self.setup.seed)
        precision = torch.bfloat16 if settings.precision == "bfloat16" else None
        memory = settings.micro_batch_tokens, settings.gradient_checkpointing
        return LanguageModel(actor, critic, settings.temperature, precision, *memory)

    def _check_own(self, model: LanguageModel) -> LanguageModel:
        """The user's own model, which must have something to train, tokens and derivatives for the run."""
        require(bool(model.policy_parameters()), "model: nothing of its policy is trained; unfreeze some of it")
        actor = causal_lm(model.actor)
        pretrained.check_vocabulary(actor, len(self.tokenizer), "of yours")
        if self.setup.second_order:
            actor.set_attn_implementation("eager")  # the only one with forward-mode derivatives
        return model

    def _initial(self, given: LanguageModel) -> Reference | None:
        """π_ref of a model that is given again, and may be trained: the run's own copy of what it was. None if new."""
        if self._start is None or hasattr(given.actor, "disable_adapter"):
            return None
        lm = causal_lm(given.actor)
        kind = {"dtype": lm.dtype, "attn_implementation": lm.config._attn_implementation}
        if hasattr(lm.config, "_experts_implementation"):  # since transformers 5
            kind["experts_implementation"] = lm.config._experts_implementation
        with loading(str(self._start), "model"):
            actor = type(lm).from_pretrained(self._start, **kind)
        initial = LanguageModel(actor, None, given.policy.temperature, given.trunk.precision)
        return Reference(initial.to(self.setup.device))

    def _environment(self, reference: Reference | None) -> LMEnv:
        settings = self.settings
        control: KLController = FixedKL(settings.beta)
        if settings.beta_target is not None:
            control = AdaptiveKL(settings.beta, settings.beta_target, settings.beta_horizon)
        treatment = ScoreTreatment(settings.score_normalization, settings.score_clip, settings.missing_eos_penalty)
        stop = stop_ids(self.tokenizer, settings.stop_tokens, end_ids(causal_lm(self.model.actor)))
        if not settings.stop_tokens and stop != {self.tokenizer.eos_token_id}:
            ends = ", ".join(repr(self.tokenizer.decode([x])) for x in sorted(stop))
            self.setup.progress.say(f"responses end with {ends}, as the model's generation configuration has it")
        if settings.reply is None:
            reply, name = self.own_reply(), env_name(self.setup.env)
        else:
            reply, name = as_function("reply", settings.reply, "answer"), score_name(settings.reply)
        turns = None if reply is None else Turns(reply, name, settings.max_turns)
        spec = settings.allowed_tokens
        allowed = None if spec is None else AllowedTokens.of(spec, self.model)
        generation = Generation(settings.max_new_tokens, settings.max_prompt_tokens, stop, turns, allowed)
        texts = self._read_prompts("prompts") or read_prompts(self.own_prompts(), self.tokenizer, "own_prompts")
        own = processes.own_rows(settings.responses_per_batch, "responses_per_batch")
        return LMEnv(
            self.model,
            self.tokenizer,
            Prompts(texts, settings.responses_per_prompt, stream(self.setup.seed, "env", 0)),
            Scoring(self.score, self.score_name, settings.kl_estimator, control, treatment),
            generation,
            rows=settings.responses_per_batch,
            reference=reference,
            own=own if processes.size() > 1 else None,
        )

    def _find_eval_prompts(self) -> list[str]:
        training, texts = self.env.prompts.texts, self._read_prompts("eval_prompts")
        if not texts:
            own = training if self.settings.prompts is not None else self.own_eval_prompts()
            texts = own if own is training else read_prompts(own, self.tokenizer, "own_eval_prompts")
        if texts is not training:
            self.env.encode(texts, "eval_prompts")
        return list(texts)

    def _read_prompts(self, name: str) -> Sequence[str]:
        """The prompts of a setting; of the run's own copy if they were given as an object; none if not set."""
        setting, folder = getattr(self.settings, name), self.setup.folder
        if setting is None:
            return []
        if isinstance(setting, str):
            return read_prompts(setting, self.tokenizer, name)
        if folder is not None and (folder / f"{name}.jsonl").is_file():
            return read_prompts(folder / f"{name}.jsonl")
        prompts = read_prompts(self._setting(name), self.tokenizer, name)
        as_lines(prompts, name)  # what cannot be saved is an error before there is a run
        return prompts

    def _pretraining_loss(self, path: str) -> PretrainingLoss:
        settings, seed = self.settings, stream(self.setup.seed, "env", 1)
        pieces = read_pieces(path, self.tokenizer, self.env.max_prompt_tokens + settings.max_new_tokens)
        sizes = settings.ptx_rows, self.env.pad_token, settings.micro_batch_tokens
        return PretrainingLoss(pieces, settings.ptx_coef, *sizes, seed)

    def actor(self) -> TokenActor:
        rows = self.settings.responses_per_batch
        return TokenActor(self.model, self.generator, whole_rows=rows, own=processes.own_rows(rows))

    def collect(self) -> Experience:
        if self.settings.score_normalization == "reference" and not self.env.scoring.moments.count:
            self.env.scoring.moments = self._moments_of_reference()
        actor = self.actor()
        experience = self.collector.collect(actor)
        acting = experience.buffer.mask.any(0).int()
        actor.draw_until(len(acting) - int(acting.argmax()))
        return experience

    def _moments_of_reference(self) -> Moments:
        """Moments of the scores of responses before training."""
        generator = torch_generator(stream(self.setup.seed, "env", 2), self.setup.device)
        texts = (respond(self.env, batch, generator)[1:] for batch in batches(self.env.prompts.texts, _CALIBRATION))
        return Moments.of(torch.cat([call_scores(self.score, self.score_name, *some)[0] for some in texts]))

    def evaluate(self, episodes: int, *, seed: int, deterministic: bool = False) -> Evaluation:
        """Samples responses to the evaluation prompts in turn. Returns are raw scores, without the KL.

        With `deterministic`, no prompt gets a second response, which would be a copy. If the task has its own score but
        is trained on another one, `true_score` is the mean of its own.
        """
        episodes = min(episodes, len(self.eval_texts)) if deterministic else episodes
        return self._evaluate(self.eval_texts, episodes, seed, deterministic)[0]

    def evaluate_passes(self, episodes: int, k: int, *, seed: int) -> Evaluation:
        """`evaluate` on as many prompts as get at least k responses each, with pass@1 and pass@k (`pass_at_k`)."""
        require(1 <= k <= episodes, f"pass_k must be in [1, {episodes}], the number of responses; got {k}")
        prompts = self.eval_texts[: episodes // k]
        result, raw = self._evaluate(prompts, episodes, seed, deterministic=False)
        scores = [raw[i :: len(prompts)] for i in range(len(prompts))]
        passes = {f"pass@{n}": mean_pass_at_k(scores, n) for n in sorted({1, k})}
        return replace(result, further={**passes, **result.further})

    def _evaluate(
        self, texts: Sequence[str], episodes: int, seed: int, deterministic: bool
    ) -> tuple[Evaluation, list[float]]:
        """The evaluation, and the scores without the rewards of turns."""
        samples, parts, raw = sample(self.env, texts, episodes, seed, deterministic, self.on_step)
        logged = [x._asdict() for x in samples[: self.settings.log_samples]]
        further: dict[str, Any] = {
            "kl_reference": float(np.mean([x.kl for x in samples])),
            "ended": float(np.mean([x.ended for x in samples])),
            "distinct_words": float(np.mean([distinct_words(x.response) for x in samples])),
            **{f"score_{name}": float(np.mean(scores)) for name, scores in parts.items()},
            "samples": logged,
            **({"farthest": max(samples, key=lambda x: x.kl)._asdict()} if logged else {}),
        }
        own, prompts = self.own_score(), [x.prompt for x in samples]
        if own is not None and self.settings.reward is not None and not missing_columns(own, prompts):
            true = call_score(own, env_name(self.setup.env), prompts, [x.response for x in samples])
            further = {"true_score": float(true.double().mean()), **further}
        returns, lengths = np.array([x.score for x in samples]), np.array([x.length for x in samples])
        return Evaluation(returns, lengths, deterministic, seed, further), raw

    def sample(self, responses: int, *, seed: int, deterministic: bool = False) -> list[Sample]:
        """Samples responses to the evaluation prompts in turn, with score and KL to the reference."""
        return sample(self.env, self.eval_texts, responses, seed, deterministic, self.on_step)[0]

    def play(self, episodes: int, *, seed: int, deterministic: bool = False, video: Path | None = None) -> Played:
        """Samples responses to the evaluation prompts in turn, as text."""
        require(video is None, f"video: {env_name(self.setup.env)} cannot be recorded; play prints the responses")
        return describe_samples(self.sample(episodes, seed=seed, deterministic=deterministic))

    def respond_to(self, prompts: Sequence[str], episodes: int, *, seed: int, deterministic: bool = False) -> Played:
        """Samples responses to these prompts in turn, as text; without scores if the score takes a column of prompts.

        A prompt goes through the chat template if those of the evaluations did.
        """
        if is_rendered(self.eval_texts[0], self.tokenizer):
            prompts = [asked(x, self.tokenizer) for x in prompts]
        env, unscored = self.env, missing_columns(self.score, self.env.with_turns(prompts[:1], [[]]))
        if unscored:
            env = copy.copy(env)
            env.scoring = Scoring(lambda prompts, responses: [0.0] * len(responses))
        samples, *_ = sample(env, prompts, episodes, seed, deterministic, self.on_step)
        return describe_samples([x._replace(score=None) for x in samples] if unscored else samples)

    def policy(self, *, deterministic: bool = True, seed: int = 0) -> DeployedPolicy:
        actor = ACTOR if self.setup.folder is None else self.setup.folder / ACTOR
        raise ConfigError(f"{env_name(self.setup.env)} trains a language model: load {actor} with transformers")

    def state_dict(self) -> dict[str, Any]:
        return {
            "collector": self.collector.state_dict(),
            "generator": self.generator.get_state(),
            "pretraining": None if self.pretraining is None else self.pretraining.state_dict(),
        }

    def load_state_dict(self, state: dict[str, Any], step: int) -> None:
        self._restored = True
        self.collector.load_state_dict(state["collector"])
        self.generator.set_state(state["generator"])
        if self.pretraining is not None:
            self.pretraining.load_state_dict(state["pretraining"])

    def begin(self, folder: Path) -> None:
        """Saves the reference, and prompts that are objects, so that the run depends on nothing else."""
        for name, prompts in (("prompts", self.env.prompts.texts), ("eval_prompts", self.eval_texts)):
            setting, path = getattr(self.settings, name), folder / f"{name}.jsonl"
            if setting is not None and not isinstance(setting, str) and not path.is_file():
                save_prompts(path, prompts)
        if not (folder / START).is_dir():
            fault = f"{folder / START} is missing; the run cannot be resumed without its own reference"
            require(not self._restored, fault)
            save(without_adapter(self.model.actor), self.tokenizer, folder / START, self.env.stop, sealed=True)

    def end(self, folder: Path) -> None:
        """Saves the adapter, which is small, and then the actor with it merged, as a Hugging Face model."""
        if hasattr(self.model.actor, "peft_config"):
            base = None if self.settings.model == "smollm2" else self._base()  # the Hub's weights are not quantised
            save_adapter(self.model.actor, base or str((folder / START).resolve()), folder / ADAPTER)
        self.model.save_pretrained(self.tokenizer, folder / ACTOR, self.env.stop)

    def _base(self) -> str | None:
        """Hub name of the initial model; None if it is a file, a directory or an object."""
        model = self.settings.model
        if not isinstance(model, str) or Path(model).exists() or model.lower().endswith(".gguf"):
            return None
        if model == "smollm2":
            return pretrained.SMOLLM2
        return model if on_hub(model) else None  # not a directory that is elsewhere now

    def save_model(self, folder: Path) -> dict[str, str]:
        self.model.save_pretrained(self.tokenizer, folder, self.env.stop)
        license = as_license(getattr(causal_lm(self.model.actor).config, LICENSE, None))
        return {"base": self._base() or "", "license": license or ""}
