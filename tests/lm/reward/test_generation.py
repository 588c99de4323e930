"""Prompts and their order, and responses token by token without a model."""

import numpy as np
import pytest
from tiny import EOS, PAD, make_tokenizer

from rlzoo.core.system.errors import EnvError
from rlzoo.lm.reward.generation import Generation, Responses
from rlzoo.lm.reward.prompt import Group, Prompts
from rlzoo.lm.reward.turns import Turns


def test_every_prompt_is_used_once_before_any_is_used_again():
    prompts = Prompts(list("abcde"), group_size=2, seed=3)
    groups = [group for _ in range(5) for group in prompts.groups(4)]
    assert {group.size for group in groups} == {2}
    assert sorted(group.prompt for group in groups[:5]) == sorted(group.prompt for group in groups[5:]) == [*range(5)]
    again = Prompts(list("abcde"), group_size=2, seed=3)
    assert again.groups(4) == groups[:2]
    assert Prompts(["x", "y"], seed=None).groups(2) == [Group(0, 1), Group(1, 1)]


def responses(generation, prompts=("ab", "h"), own=slice(0, 2)):
    tokenizer = make_tokenizer()
    tokens = tokenizer(list(prompts))["input_ids"]
    return Responses(list(prompts)[own], tokens, own, generation, frozenset([EOS]), tokenizer)


def episode(rows, *actions):
    """The columns of an episode, and for each step the rewards and ends."""
    column, forced = rows.observe()
    columns, results = [column], []
    for action in actions:
        column, reward, ended, forced = rows.step(np.array(action))
        columns.append(column)
        results.append((reward.tolist(), ended.tolist(), forced.tolist()))
    return columns, results


def test_a_response_ends_with_a_stop_token_or_at_the_limit():
    rows = responses(Generation(max_new_tokens=2))
    columns, results = episode(rows, (9, 9), (20, EOS), (21, 9))
    assert [x.token.tolist() for x in columns] == [[0, PAD], [1, 7], [20, EOS], [21, PAD]]
    assert [x.attention.tolist() for x in columns] == [[True, False], [True, True], [True, True], [True, False]]
    assert [x.acts.tolist() for x in columns] == [[False, False], [True, True], [True, False], [False, False]]
    assert [ended for _, ended, _ in results] == [[False, False], [False, True], [True, False]]
    assert not rows.alive.any()


def test_a_process_has_its_own_rows_padded_like_all():
    columns, _ = episode(responses(Generation(), own=slice(1, 2)), (9,), (EOS,))
    assert [x.token.tolist() for x in columns] == [[PAD], [7], [EOS]]


def test_a_reply_is_forced_on_its_row_and_its_turn_has_a_reward():
    turns = Turns(lambda conversations: [("no", 0.5) if len(x.turns) == 1 else None for x in conversations])
    rows = responses(Generation(turns=turns), prompts=("a",), own=slice(0, 1))
    columns, results = episode(rows, (EOS,), (9,), (9,), (3,), (EOS,))
    assert make_tokenizer().decode([x.token[0] for x in columns]) == "a<eos>nod<eos>"
    assert [reward for reward, _, _ in results] == [[0.5], [0], [0], [0], [0]]
    assert [forced for _, _, forced in results] == [[True], [True], [False], [False], [True]]
    assert [ended for _, ended, _ in results] == [[False]] * 4 + [[True]]


def test_a_wrong_reply_names_the_row_among_all_processes():
    rows = responses(Generation(turns=Turns(lambda conversations: [3])), own=slice(1, 2))
    with pytest.raises(EnvError, match="reply reply, row 1: returned 3"):
        episode(rows, (9,), (EOS,))
