"""The enumerated task: probabilities, objective, gradient, KL and Fisher matrix, each in two independent ways."""

import math

import numpy as np
import pytest
import torch

from benchmarks.studies.estimators import natural
from benchmarks.studies.estimators.task import BETA, GOAL, weighted
from rlzoo.core.collector import Collector, evaluate
from rlzoo.core.collector import score as rewarded
from rlzoo.core.system.streams import stream, torch_generator
from rlzoo.lm.model.acting import TokenActor
from rlzoo.lm.model.language_model import Reference
from rlzoo.lm.reward.env import LMEnv
from rlzoo.lm.reward.generation import Generation
from rlzoo.lm.reward.prompt import Prompts
from rlzoo.lm.reward.scoring import Scoring
from rlzoo.lm.reward.shaping import FixedKL
from rlzoo.optim.fisher import fisher_vector_product
from rlzoo.optim.natural_gradient import FlatPolicy


def flat(gradients):
    return torch.cat([g.reshape(-1) for g in gradients])


def ends_at_the_goal(task):
    return task.action[task.last] == GOAL


def score_function(task, logp, reference, beta):
    """A scalar whose gradient is Σ_y π(y)·(score(y) − β·log(π(y)/π_ref(y)))·∇log π(y): the KL adds E[∇log π] = 0."""
    reward = task.score - beta * (logp - reference).sum(1)
    return (task.probability(logp) * reward).detach() @ logp.sum(1)


def test_there_are_2343_responses_to_three_prompts_and_each_once(task):
    assert len(task.score) == 3 * (1 + 5 + 25 + 125 + 625)
    assert task.num_states == 3 * (1 + 5 + 25 + 125)
    texts = {
        (int(p), *a[m].tolist()) for p, a, m in zip(task.prompt, task.action, task.mask, strict=True)
    }  # fmt: skip
    assert len(texts) == len(task.score)


def test_scores_are_those_of_the_graph(task):
    rewarded = {}
    for i in (task.score > 0).nonzero().squeeze(1).tolist():
        walk = (int(task.rows.token[i, 0]), *task.action[i][task.mask[i]].tolist())
        rewarded["".join("abcd"[token] for token in walk)] = float(task.score[i])
    assert rewarded == pytest.approx({"bca": 1, "bdbca": 5 / 7, "ca": 1, "cdbca": 5 / 8, "dbca": 1})


def test_score_function_sum_equals_autograd_of_the_exact_objective(task, policies):
    reference, model = policies
    ref = task.logp(reference.model(), task.state).detach()
    exact = flat(torch.autograd.grad(task.objective(task.logp(model), ref, BETA), model.policy_parameters()))
    summed = flat(torch.autograd.grad(score_function(task, task.logp(model), ref, BETA), model.policy_parameters()))
    torch.testing.assert_close(summed, exact, rtol=0, atol=1e-8)
    assert exact.norm() > 0.1
    biased = flat(torch.autograd.grad(score_function(task, task.logp(model), ref, 0.0), model.policy_parameters()))
    assert (biased - exact).norm() > 0.1 * exact.norm()


def test_table_and_its_jacobian_give_the_gradient_of_the_model(judge, task, policies):
    model = policies[1]
    with torch.no_grad():
        torch.testing.assert_close(task.logp(judge.new.model(), task.state), task.logp(model), rtol=0, atol=1e-12)
    ref = task.logp(policies[0].model(), task.state).detach()
    exact = flat(torch.autograd.grad(task.objective(task.logp(model), ref, BETA), model.policy_parameters()))
    torch.testing.assert_close(judge.gradient, exact, rtol=0, atol=1e-10)


def test_kl_of_responses_is_the_expected_sum_of_the_exact_kl_of_tokens(judge, task):
    """KL(π ‖ π_ref) of whole responses by its definition, and by the chain rule over tokens."""
    p = judge.probability
    whole = p @ (judge.buffer.logp - judge.reference_logp).sum(1)
    with torch.no_grad():
        new, ref = (table.model().distribution(task.state) for table in (judge.new, judge.reference))
        chained = p @ (new.kl(ref) * task.mask).sum(1)
    assert float(whole) == pytest.approx(float(chained), abs=1e-12)
    assert float(whole) > 0.05


def test_exact_fisher_is_the_mean_outer_product_and_equals_the_product_of_the_package(judge, task, policies):
    """E[∇log π(y)·∇log π(y)ᵀ] over whole responses, against the product of the package."""
    model = policies[1]
    states = judge.new.jacobian.view(task.num_states, task.vocabulary, -1)
    scores = torch.where(task.mask.unsqueeze(-1), states[task.state, task.action], 0.0).sum(1)
    outer = scores.t() @ (judge.probability.unsqueeze(1) * scores)
    fisher = natural.exact_fisher(judge)
    torch.testing.assert_close(fisher, outer, rtol=0, atol=1e-9)

    batch = weighted(task.buffer(task.rows), task.mask * judge.probability.unsqueeze(1))
    policy = FlatPolicy(model)
    product = fisher_vector_product(policy, policy.theta, batch)
    vectors = torch.randn(3, len(fisher), generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    for v in vectors:
        torch.testing.assert_close(product(v), fisher @ v, rtol=0, atol=1e-8)
    assert (fisher @ vectors[0]).abs().max() > 0.1


def test_samples_of_the_package_have_the_enumerated_probabilities_and_rewards(walks, policies, judge):
    """The environment, the collector and the actor of training, against the enumeration."""
    graph, task = walks
    model = policies[1]
    score = lambda prompts, texts: graph.optimality(prompts, texts)  # noqa: E731
    prompts, scoring = Prompts(graph.prompts, group_size=1000), Scoring(score, control=FixedKL(BETA))
    generation = Generation(max_new_tokens=4, stop=frozenset({GOAL}))
    env = LMEnv(model, graph.tokenizer(), prompts, scoring, generation, rows=3000, reference=Reference(model))
    actor = TokenActor(model, torch_generator(stream(0, "action")))
    experience = Collector(env, whole_episodes=True).collect(actor)
    buffer = rewarded(env, experience._replace(buffer=evaluate(model, experience.buffer))).buffer

    index = {}
    for i in range(len(task.score)):
        index[int(task.rows.token[i, 0]), *task.action[i][task.mask[i]].tolist()] = i
    drawn = [
        index[int(token[0]), *action[mask].tolist()]
        for token, action, mask in zip(buffer.obs.token, buffer.action, buffer.mask, strict=True)
    ]
    counts = np.bincount(drawn, minlength=len(task.score))
    expected = judge.probability.numpy() * len(drawn)
    common = expected > 5
    pooled = np.append(expected[common], expected[~common].sum()), np.append(counts[common], counts[~common].sum())
    chi2 = float((np.square(pooled[1] - pooled[0]) / pooled[0]).sum())
    freedom = int(common.sum()) - 2
    assert chi2 < freedom + 4 * math.sqrt(2 * freedom)
    torch.testing.assert_close(buffer.reward.sum(1).double(), task.score[drawn], rtol=0, atol=1e-6)
    logp = torch.where(buffer.mask, buffer.logp, 0.0).sum(1)
    torch.testing.assert_close(logp, judge.buffer.logp.sum(1)[drawn], rtol=0, atol=1e-10)
