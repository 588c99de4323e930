"""A language task at work: actor, critic, reference and score around the environment, for the one training loop."""

from __future__ import annotations

import copy
import itertools
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch

from rlzoo.control.evaluation import Evaluation
from rlzoo.core.collector import evaluate
from rlzoo.core.errors import ConfigError, require
from rlzoo.core.models import ActorCritic
from rlzoo.core.task import Experience, Say, Streams, Task, silent, torch_generator
from rlzoo.lm.finetune.data import read_prompts, read_texts
from rlzoo.lm.finetune.demonstrations import Demonstrations
from rlzoo.lm.finetune.reward_model import RewardModel
from rlzoo.lm.model import pretrained
from rlzoo.lm.model.language_model import LanguageModel, with_adapter
from rlzoo.lm.reward.env import LMEnv, stop_ids
from rlzoo.lm.reward.rollout import rollout
from rlzoo.lm.reward.scores import Score, call_score, load_score
from rlzoo.lm.reward.shaping import AdaptiveKL, FixedKL, KLController, Moments, ScoreTreatment, sequence_kl
from rlzoo.lm.tasks.builtin import built_in
from rlzoo.lm.tasks.exact import expected_optimality
from rlzoo.lm.tasks.random_walks import RandomWalks

if TYPE_CHECKING:
    from rlzoo.lm.tasks.settings import Language
    from rlzoo.runs.config import Config

START, ACTOR = "start", "actor"
_ROWS = 64
"""Responses that are sampled together outside of training."""
_CALIBRATION = 256
"""Responses of the reference from which scores are normalised."""


class LanguageTask(Task):
    """Samples responses with the actor, prices their tokens, and evaluates by the score alone.

    A run's directory holds in `start/` what the actor started from, which is the reference too, and at the end in
    `actor/` what it became, both as Hugging Face models with their tokenizer.
    """

    model: LanguageModel
    evaluates_start = True

    def __init__(
        self,
        settings: Language,
        config: Config,
        model: ActorCritic | None = None,
        folder: Path | None = None,
        say: Say = silent,
    ) -> None:
        self.settings = settings
        self.config = config
        self.data = built_in(config.env)
        streams = Streams.of(config.seed)
        order, texts, self._reference_samples = streams.env.spawn(3)
        self._start = self._find_start(folder, say)
        self.tokenizer = pretrained.load_tokenizer(self._start)
        self.score, self.score_name = self._find_score()
        self.model = self._given(model) if model is not None else self._build()
        self.model.to(config.device)
        self.env = self._environment(order)
        self.eval_prompts = self._eval_prompts()
        self.demonstrations = None if settings.ptx is None else self._demonstrations(settings.ptx, texts)
        self.generator = torch_generator(streams.action, config.device)

    def _find_start(self, folder: Path | None, say: Say) -> str:
        """What the actor starts from: the run's own copy, the model asked for, or the task's supervised start."""
        if folder is not None and (folder / START).is_dir():
            return str(folder / START)
        if self.settings.model is not None:
            return self.settings.model
        assert self.data is not None
        return str(self.data.start(say))

    def _find_score(self) -> tuple[Score, str]:
        spec = self.settings.reward
        if self.settings.reward_model is not None:
            return RewardModel.load(self.settings.reward_model, device=self.config.device), self.settings.reward_model
        if spec is not None:
            return load_score(spec), spec
        assert self.data is not None
        return self.data.score, self.data.name

    def _given(self, model: ActorCritic) -> LanguageModel:
        if not isinstance(model, LanguageModel):
            raise ConfigError(f"model: {self.config.env} trains a LanguageModel, not a {type(model).__name__}")
        return model

    def _build(self) -> LanguageModel:
        settings = self.settings
        attention = settings.attention
        if attention == "auto" and self.config.algorithm.second_order:
            attention = "eager"
        actor = pretrained.load_causal_lm(self._start, attention)
        pretrained.check_vocabulary(actor, len(self.tokenizer), self._start)
        critic = None
        if settings.critic == "actor":
            critic = copy.deepcopy(actor.base_model)
        elif settings.reward_model is not None and settings.critic == "reward-model":
            critic = pretrained.load_reward_model(settings.reward_model, attention).base_model
            pretrained.check_vocabulary(critic, len(self.tokenizer), settings.reward_model)
        return LanguageModel(
            actor if settings.lora_rank is None else with_adapter(actor, settings.lora_rank, self.config.seed),
            critic,
            settings.temperature,
            {"float32": None, "bfloat16": torch.bfloat16}[settings.precision],
            settings.part_tokens,
            settings.gradient_checkpointing,
        )

    def _environment(self, seed: np.random.SeedSequence) -> LMEnv:
        settings = self.settings
        if settings.prompts is not None:
            prompts = read_prompts(settings.prompts)
        else:
            assert self.data is not None
            prompts = self.data.prompts
        control: KLController = FixedKL(settings.beta)
        if settings.beta_target is not None:
            control = AdaptiveKL(settings.beta, settings.beta_target, settings.beta_horizon)
        return LMEnv(
            self.model,
            self.tokenizer,
            prompts,
            self.score,
            score_name=self.score_name,
            max_prompt_tokens=settings.max_prompt_tokens,
            max_new_tokens=settings.max_new_tokens,
            stop_tokens=stop_ids(self.tokenizer, settings.stop_tokens),
            responses_per_prompt=settings.responses_per_prompt,
            kl_estimator=settings.kl_estimator,
            control=control,
            treatment=ScoreTreatment(settings.score_normalization, settings.score_clip, settings.missing_end_penalty),
            seed=seed,
        )

    def _eval_prompts(self) -> list[str]:
        if self.settings.eval_prompts is not None:
            prompts = read_prompts(self.settings.eval_prompts)
            self.env.encode(prompts, "eval_prompts")
            return prompts
        return self.env.prompts if self.settings.prompts is not None or self.data is None else self.data.eval_prompts

    def _demonstrations(self, path: str, seed: np.random.SeedSequence) -> Demonstrations:
        end = self.tokenizer.eos_token_id
        longest = self.env.max_prompt_tokens + self.settings.max_new_tokens
        texts = [ids + ([] if end is None else [end]) for ids in pretrained.encode(self.tokenizer, read_texts(path))]
        pieces = [text[i : i + longest] for text in texts for i in range(0, len(text), longest)]
        pieces = [piece for piece in pieces if len(piece) > 1]
        require(bool(pieces), f"ptx: {path} holds no text of two tokens")
        rows = self.settings.ptx_rows or self.config.num_envs
        return Demonstrations(pieces, self.settings.ptx_coef, rows, self.env.pad_token, seed)

    def collect(self) -> Experience:
        if self.settings.score_normalization == "reference" and not self.env.moments.count:
            self.env.moments = self._moments_of_reference()
        buffer = rollout(self.env, self.env.next_prompts(self.config.num_envs), self.generator)
        buffer = self.env.settle(evaluate(self.model, buffer))
        if self.demonstrations is not None:
            buffer = self.demonstrations.add_to(buffer)
        return Experience(buffer, self.env.episodes, self.env.metrics)

    def _moments_of_reference(self) -> Moments:
        """Of the scores of what the actor says before it is trained."""
        generator = torch_generator(self._reference_samples, self.config.device)
        prompts = list(itertools.islice(itertools.cycle(self.env.prompt_ids), _CALIBRATION))
        parts = (prompts[i : i + _ROWS] for i in range(0, len(prompts), _ROWS))
        texts = (self.env.texts(rollout(self.env, part, generator)) for part in parts)
        return Moments.of(torch.cat([call_score(self.score, self.score_name, *pair) for pair in texts]))

    def evaluate(self, episodes: int, *, seed: int, deterministic: bool = False) -> Evaluation:
        """Responses to the evaluation's prompts in turn; returns are raw scores, without the KL.

        On RandomWalks the returns are the exact expectations for each start, however many episodes are asked for,
        and `score` is the mean score of sampled responses. On another built-in task with a score of one's own,
        `true_score` is the mean of the task's.
        """
        samples = self.sample(episodes, seed=seed, deterministic=deterministic)
        returns = np.array([x.score for x in samples])
        further: dict[str, Any] = {
            "kl_reference": float(np.mean([x.kl for x in samples])),
            "ended": float(np.mean([x.ended for x in samples])),
            "samples": [x._asdict() for x in samples[: self.settings.log_samples]],
        }
        if self.data is not None and self.data.walks is not None:
            further = {"exact": True, "score": float(returns.mean()), **further}
            returns = self._optimality(self.data.walks, deterministic)
        elif self.data is not None and self.settings.reward is not None:
            said = [x.prompt for x in samples], [x.response for x in samples]
            further = {"true_score": float(np.mean(self.data.score(*said))), **further}
        lengths = np.array([x.length for x in samples])
        return Evaluation(returns, lengths, deterministic, seed, further)

    def _optimality(self, walks: RandomWalks, deterministic: bool) -> np.ndarray[Any, Any]:
        """Expected optimality from each start, or that of the one response to it which is most probable."""
        if not deterministic:
            return expected_optimality(self.model, self.tokenizer, walks, walks.prompts).numpy()
        buffer = rollout(self.env, self.env.encode(walks.prompts), None, deterministic=True)
        return np.array(walks.optimality(*self.env.texts(buffer)))

    @torch.no_grad()
    def sample(self, responses: int, *, seed: int, deterministic: bool = False) -> list[Sample]:
        """Responses to the evaluation's prompts in turn, with score and KL to the reference."""
        generator = torch.Generator(self.config.device).manual_seed(seed)
        texts = list(itertools.islice(itertools.cycle(self.eval_prompts), responses))
        samples = []
        for some in (texts[i : i + _ROWS] for i in range(0, responses, _ROWS)):
            buffer = rollout(self.env, self.env.encode(some), generator, deterministic)
            _, said = self.env.texts(buffer)
            score = call_score(self.score, self.score_name, some, said).tolist()
            obs = buffer.obs[:, :-1]
            kl = self.model.distribution(obs).kl(self.env.reference.distribution(obs))
            columns = (
                score,
                sequence_kl(kl, buffer.mask).tolist(),
                buffer.mask.sum(1).tolist(),
                self.env.ended(buffer).tolist(),
            )
            samples += [Sample(*x) for x in zip(some, said, *columns, strict=True)]
        return samples

    def state_dict(self) -> dict[str, Any]:
        return {
            "env": self.env.state_dict(),
            "generator": self.generator.get_state(),
            "demonstrations": None if self.demonstrations is None else self.demonstrations.state_dict(),
        }

    def load_state_dict(self, state: dict[str, Any], step: int) -> None:
        self.env.load_state_dict(state["env"])
        self.generator.set_state(state["generator"])
        if self.demonstrations is not None:
            self.demonstrations.load_state_dict(state["demonstrations"])

    def close(self) -> None:
        """Nothing is held that the process does not give back by itself."""

    def begin(self, folder: Path) -> None:
        """Keeps what the actor starts from, so that the run depends on no other directory."""
        if not (folder / START).is_dir():
            pretrained.save(pretrained.load_causal_lm(self._start), self.tokenizer, folder / START)

    def end(self, folder: Path) -> None:
        """Leaves the actor as a Hugging Face model, its adapter merged into it."""
        self.model.save_pretrained(self.tokenizer, folder / ACTOR)


class Sample(NamedTuple):
    """A response, and what there is to say of it."""

    prompt: str
    response: str
    score: float
    kl: float
    """KL(π ‖ π_ref) summed over the response's tokens, exact over the vocabulary at each, in nats."""
    length: int
    """Tokens."""
    ended: bool
    """With a stop token, rather than at the limit."""
