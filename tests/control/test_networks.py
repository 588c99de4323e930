"""The built-in networks: initialisation, activations, action spaces."""

import numpy as np
import pytest
import torch
from builders import SPACES, make_model
from gymnasium import spaces
from torch import nn

from rlzoo.control.networks import MLP, Network
from rlzoo.control.spaces import box_units, categories
from rlzoo.core.distributions import Categorical, DiagGaussian, MultiCategorical
from rlzoo.core.system.errors import ConfigError

OBS = spaces.Box(-1, 1, (4,))


def gain(weight):
    """Every singular value, if they are all the same."""
    values = torch.linalg.svdvals(weight.detach())
    torch.testing.assert_close(values, values[:1].expand_as(values))
    return float(values[0])


@pytest.mark.parametrize("space", SPACES)
def test_initial_gains_are_root_two_then_a_hundredth_for_policy_and_one_for_value(space):
    model = Network(hidden=(8, 6)).build(OBS, SPACES[space])
    policy, value = model.policy.net.layers, model.value.net.layers
    assert [gain(layer.weight) for layer in policy] == pytest.approx([2**0.5, 2**0.5, 0.01])
    assert [gain(layer.weight) for layer in value] == pytest.approx([2**0.5, 2**0.5, 1])
    assert all((layer.bias == 0).all() for layer in (*policy, *value))


def test_shared_trunk_has_the_hidden_layers_and_heads_are_linear():
    model = Network(hidden=(8, 6), shared_trunk=True).build(OBS, SPACES["discrete"])
    assert [gain(layer.weight) for layer in model.trunk.layers] == pytest.approx([2**0.5, 2**0.5])
    assert [gain(layer.weight) for layer in model.policy.net.layers] == pytest.approx([0.01])
    assert [gain(layer.weight) for layer in model.value.net.layers] == pytest.approx([1])


def test_initialisation_repeats_with_its_generator():
    first, second = (Network().build(OBS, SPACES["box"], torch.Generator().manual_seed(5)) for _ in range(2))
    for name, weight in first.state_dict().items():
        assert torch.equal(weight, second.state_dict()[name])


@pytest.mark.parametrize(("activation", "module"), [("tanh", nn.Tanh()), ("relu", nn.ReLU())])
def test_mlp_equals_a_sequence_of_layers(activation, module):
    net = MLP(4, (8, 6), activation, outputs=3)
    plain = nn.Sequential(net.layers[0], module, net.layers[1], module, net.layers[2])
    x = torch.randn(5, 2, 4, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(net(x), plain(x))


@pytest.mark.parametrize(
    ("space", "kind", "outputs"),
    [("discrete", Categorical, 3), ("box", DiagGaussian, 2), ("multidiscrete", MultiCategorical, 5),
     ("multibinary", MultiCategorical, 6)],
)  # fmt: skip
def test_each_action_space_has_its_distribution(space, kind, outputs):
    model = make_model(SPACES[space])
    assert isinstance(model.distribution(torch.zeros(1, 1, 4, dtype=torch.float64)), kind)
    assert model.policy.net.outputs == outputs


def test_gaussian_policy_starts_in_the_middle_of_the_bounds():
    space = spaces.Box(np.float32([-2, 0, -np.inf]), np.float32([2, 10, 3]))
    for state_dependent in (False, True):
        model = Network(log_std_init=-1.0, state_dependent_std=state_dependent).build(OBS, space)
        policy = model.distribution(torch.zeros(1, 1, 4))
        torch.testing.assert_close(policy.mean[0, 0], torch.tensor([0.0, 5.0, 0.0]))
        expected = torch.tensor([2.0, 5.0, 1.0]) * np.exp(-1)
        torch.testing.assert_close(policy.log_std[0, 0].exp(), expected)


def test_global_std_is_a_parameter_and_state_dependent_std_an_output():
    plain, dependent = (make_model(SPACES["box"], state_dependent_std=x) for x in (False, True))
    x, y = torch.randn(2, 1, 1, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    assert any(p is plain.policy.log_std for p in plain.policy_parameters())
    assert torch.equal(plain.distribution(x).log_std, plain.distribution(y).log_std)
    assert dependent.policy.log_std is None
    assert not torch.equal(dependent.distribution(x).log_std, dependent.distribution(y).log_std)


def test_box_units_are_centre_and_half_width_or_the_number_nearest_to_zero_and_one():
    low, high = np.float32([-2, 0, -np.inf, 5, -np.inf]), np.float32([2, 10, 3, np.inf, -7])
    centre, scale = box_units(spaces.Box(low, high))
    assert centre.tolist() == [0, 5, 0, 5, -7]
    assert scale.tolist() == [2, 5, 1, 1, 1]


def test_component_without_a_width_or_with_a_huge_one_counts_as_unbounded():
    largest = np.finfo(np.float32).max
    space = spaces.Box(np.float32([3, -largest, -1, 0]), np.float32([3, largest, 1, largest]))
    centre, scale = box_units(space)
    assert centre.tolist() == [3, 0, 0, 0]
    assert scale.tolist() == [1, 1, 1, 1]
    policy = Network(hidden=(4,)).build(OBS, space).distribution(torch.zeros(2, 1, 4))
    assert policy.log_prob(policy.sample()).isfinite().all()


@pytest.mark.parametrize("state_dependent", [False, True])
def test_units_of_a_box_are_as_precise_as_the_model(state_dependent):
    space = spaces.Box(np.array([-0.1, 0.2, -3.0]), np.array([0.1, 0.9, np.inf]), dtype=np.float64)
    model = Network(hidden=(4,), state_dependent_std=state_dependent).build(OBS, space)
    for dtype, exactness in ((torch.float64, 1e-15), (torch.float32, 1e-6), (torch.float64, 1e-15)):
        model = model.to(dtype)
        with torch.no_grad():
            for p in model.policy.parameters():
                p.zero_()
        policy = model.distribution(torch.zeros(1, 1, 4, dtype=dtype))
        assert policy.mean.dtype == policy.log_std.dtype == dtype
        centre, width = (torch.tensor(x, dtype=dtype) for x in ([0.0, 0.55, 0.0], [0.1, 0.35, 1.0]))
        torch.testing.assert_close(policy.mean[0, 0], centre, rtol=exactness, atol=0)
        torch.testing.assert_close(policy.log_std[0, 0].detach(), width.log(), rtol=exactness, atol=1e-16)


def test_categories_of_each_space():
    sizes = {name: categories(space) for name, space in SPACES.items()}
    assert sizes == {"discrete": [3], "box": [], "multidiscrete": [2, 3], "multibinary": [2, 2, 2]}


@pytest.mark.parametrize("space", [spaces.Text(3), spaces.Dict({}), spaces.Box(0, 9, (2,), np.int64)])
def test_unsupported_action_space_is_an_error(space):
    with pytest.raises(ConfigError, match="is not supported; use Discrete, MultiDiscrete, MultiBinary or Box"):
        Network().build(OBS, space)


@pytest.mark.parametrize("settings", [{"hidden": (4, 0)}, {"activation": "sine"}])
def test_network_that_cannot_be_built_is_an_error(settings):
    with pytest.raises(ConfigError, match=next(iter(settings))):
        Network(**settings)
