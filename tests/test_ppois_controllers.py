"""Network controllers against torch networks and SB3's preprocessing, groupings, and the checks of user controllers."""

from typing import Any

import numpy as np
import pytest
import torch as th
from gymnasium import spaces
from stable_baselines3.common.preprocessing import preprocess_obs
from torch import nn

from sb3_pois.ppois import Controller, HyperPolicy, LinearPolicy, MlpPolicy
from sb3_pois.ppois.controllers import NetworkController
from sb3_pois.ppois.grouping import check_grouping, group_index_of

BOX = spaces.Box(-1.0, 1.0, (3,), np.float32)
OBSERVATION_SPACES: dict[str, Any] = {
    "box": BOX,
    "box float64 matrix": spaces.Box(-1.0, 1.0, (2, 3), np.float64),
    "discrete": spaces.Discrete(5),
    "multi-discrete": spaces.MultiDiscrete([2, 3]),
    "multi-binary": spaces.MultiBinary(4),
    "image": spaces.Box(0, 255, (3, 36, 36), np.uint8),
    "dict": spaces.Dict(vector=BOX, number=spaces.Discrete(3), image=spaces.Box(0, 255, (1, 36, 36), np.uint8)),
}
ACTION_SPACES: dict[str, Any] = {
    "box": spaces.Box(-1.0, 1.0, (2, 2), np.float32),
    "discrete": spaces.Discrete(3, start=-1),
    "multi-discrete": spaces.MultiDiscrete([2, 3]),
    "multi-binary": spaces.MultiBinary(3),
}


def sample_batch(space, n, seed=0):
    space.seed(seed)
    samples = [space.sample() for _ in range(n)]
    if isinstance(space, spaces.Dict):
        return {key: np.stack([sample[key] for sample in samples]) for key in space.spaces}
    return np.stack(samples)


def torch_network(controller, params):
    """The same network as torch modules, for one parameter vector."""
    modules = []
    for weight, bias in controller.split(params[None]):
        linear = nn.Linear(weight.shape[1], weight.shape[2], bias=bias is not None)
        linear.weight.data = th.as_tensor(weight[0].T.copy())
        if bias is not None:
            linear.bias.data = th.as_tensor(bias[0].copy())
        modules += [linear, controller.activation_fn()]
    return nn.Sequential(*modules[:-1])


@pytest.mark.parametrize("name", list(OBSERVATION_SPACES))
def test_features_are_those_of_sb3(name):
    space = OBSERVATION_SPACES[name]
    controller = NetworkController(space, BOX, [], nn.Tanh, with_bias=True)
    observations = sample_batch(space, 4)
    tensors = {k: th.as_tensor(v) for k, v in observations.items()} if isinstance(observations, dict) else None
    expected = preprocess_obs(th.as_tensor(observations) if tensors is None else tensors, space)
    if isinstance(expected, dict):
        expected = th.cat([expected[key].flatten(1) for key in space.spaces], dim=1)
    features = controller.features(observations)
    assert features.dtype == np.float32
    np.testing.assert_array_equal(features, expected.flatten(1))
    assert features.shape[1] == controller.layer_sizes[0][0]


def test_images_as_they_are():
    space = OBSERVATION_SPACES["image"]
    controller = NetworkController(space, BOX, [], nn.Tanh, with_bias=True, normalize_images=False)
    assert controller.features(sample_batch(space, 2)).max() > 1.0


@pytest.mark.parametrize("with_bias", [True, False])
@pytest.mark.parametrize("net_arch", [[], [4], [5, 3]])
@pytest.mark.parametrize("activation_fn", [nn.Tanh, nn.ReLU, nn.ELU])
def test_many_controllers_act_as_one_network_each(net_arch, with_bias, activation_fn):
    action_space = ACTION_SPACES["box"]
    controller = NetworkController(BOX, action_space, net_arch, activation_fn, with_bias)
    params = np.random.default_rng(0).standard_normal((6, controller.n_params), dtype=np.float32)
    observations = sample_batch(BOX, 6)
    actions = controller.act(params, observations)
    with th.no_grad():
        expected = [torch_network(controller, p)(th.as_tensor(o)) for p, o in zip(params, observations, strict=True)]
    np.testing.assert_allclose(actions.reshape(6, -1), th.stack(expected), rtol=0, atol=1e-5)
    assert actions.shape == (6, 2, 2)


@pytest.mark.parametrize("name", list(ACTION_SPACES))
def test_actions_of_outputs(name):
    space = ACTION_SPACES[name]
    policy = LinearPolicy(BOX, space)
    params = np.random.default_rng(0).standard_normal((20, policy.n_params), dtype=np.float32)
    observations = sample_batch(BOX, 20)
    actions = policy.act(params, observations)
    assert actions.dtype == space.dtype and actions.shape == (20, *space.shape)
    outputs = np.stack([o @ p.reshape(3, -1) for p, o in zip(params, observations, strict=True)])
    if name == "box":
        np.testing.assert_allclose(actions.reshape(20, -1), outputs, atol=1e-6)
        return
    assert all(space.contains(action) for action in actions)
    expected = {
        "discrete": lambda: outputs.argmax(1) - 1,
        "multi-discrete": lambda: np.stack([outputs[:, :2].argmax(1), outputs[:, 2:].argmax(1)], axis=1),
        "multi-binary": lambda: outputs > 0,
    }[name]()
    np.testing.assert_array_equal(actions, expected)
    assert len(np.unique(actions)) > 1


def test_initial_params():
    np.random.seed(0)
    controller = NetworkController(BOX, BOX, [400, 300], nn.Tanh, with_bias=True)
    layers = list(controller.split(controller.initial_params()[None]))
    for weight, bias in layers:
        assert bias is not None and not bias.any()
        expected_std = np.sqrt(2.0 / sum(weight.shape[1:]))  # Glorot and Bengio 2010
        assert weight.std() == pytest.approx(expected_std, rel=0.05)


@pytest.mark.parametrize(
    ("policy_class", "n_params"), [(MlpPolicy, 3 * 64 + 64 + 64 * 64 + 64 + 64 * 3 + 3), (LinearPolicy, 9)]
)
def test_default_policies(policy_class, n_params):
    policy = policy_class(BOX, BOX)
    assert policy.n_params == n_params
    assert policy.mean.dtype == policy.log_std.dtype == th.float64
    assert (policy.log_std == 0.0).all() and 0.0 < policy.mean.abs().max() < 0.06
    assert [name for name, _ in policy.named_parameters()] == ["mean", "log_std"]


def test_mean_and_log_std_of_choice():
    policy = LinearPolicy(BOX, BOX, with_bias=True, mean_init=np.arange(12), log_std_init=np.arange(12) / 10)
    np.testing.assert_array_equal(policy.mean.detach(), np.arange(12))
    np.testing.assert_array_equal(policy.log_std.detach(), np.arange(12) / 10)
    draws = policy.draw_params(100_000)
    np.testing.assert_allclose(draws.mean(0), np.arange(12), atol=0.05)
    np.testing.assert_allclose(draws.std(0), np.exp(np.arange(12) / 10), rtol=0.02)
    assert LinearPolicy(BOX, BOX, mean_init="controller").mean.abs().max() > 0.06
    assert (HyperPolicy(BOX, ONE_ACTION, Proportional).mean == 0.0).all()


# Groupings


def test_a_neuron_is_its_weights_and_its_bias():
    controller = NetworkController(BOX, spaces.Box(-1.0, 1.0, (2,)), [4, 3], nn.Tanh, with_bias=True)
    groups = [np.flatnonzero(controller.neuron_index() == m).tolist() for m in range(9)]
    first = [[0 + u, 4 + u, 8 + u, 12 + u] for u in range(4)]  # kernel (3, 4) from 0, bias from 12
    second = [[16 + u, 19 + u, 22 + u, 25 + u, 28 + u] for u in range(3)]  # kernel (4, 3) from 16, bias from 28
    last = [[31 + u, 33 + u, 35 + u, 37 + u] for u in range(2)]  # kernel (3, 2) from 31, bias from 37
    assert groups == first + second + last
    assert len(controller.neuron_index()) == controller.n_params == 39


def test_a_neuron_of_a_network_without_bias():
    controller = NetworkController(BOX, spaces.Box(-1.0, 1.0, (2,)), [], nn.Tanh, with_bias=False)
    assert controller.neuron_index().tolist() == [0, 1, 0, 1, 0, 1]


def test_each_neuron_is_changed_by_its_group_only():
    controller = NetworkController(BOX, spaces.Box(-1.0, 1.0, (2,)), [4], nn.Identity, with_bias=True)
    params = np.random.default_rng(0).standard_normal((1, controller.n_params), dtype=np.float32)
    observation = sample_batch(BOX, 1)
    index = controller.neuron_index()
    for output in range(2):
        changed = params + (index == 4 + output).astype(np.float32)
        difference = controller.act(changed, observation) != controller.act(params, observation)
        assert difference[0].tolist() == [output == 0, output == 1]


def test_index_lists():
    controller = LinearPolicy(BOX, spaces.Discrete(2)).controller
    lists: Any = [[5, 0], (1,), np.array([2, 3, 4])]
    np.testing.assert_array_equal(group_index_of(lists, controller), [0, 1, 2, 2, 2, 0])
    assert group_index_of("none", controller) is None


@pytest.mark.parametrize(
    "grouping",
    [[[0, 1, 2]], [[0, 1, 2, 3, 4, 5], [5]], [[0, 1, 2, 3, 4, 6]], [[0, 1, 2, 3, 4, 5], []], [], [[0.0, 1.0, 2, 3, 4, 5]]],
)
def test_no_partition(grouping):
    with pytest.raises(ValueError, match=r"but must be a partition: every integer of 0, ..., 5 in exactly one group"):
        group_index_of(grouping, LinearPolicy(BOX, spaces.Discrete(2)).controller)


# User controllers


class Proportional(Controller):
    n_params = 3

    def act(self, params, observations):
        return -(params * observations).sum(1, keepdims=True)


ONE_ACTION = spaces.Box(-1.0, 1.0, (1,), np.float32)


def test_user_controller_has_no_neurons():
    with pytest.raises(ValueError, match="grouping is 'neuron', but Proportional has no neurons"):
        group_index_of("neuron", Proportional(BOX, ONE_ACTION))


@pytest.mark.parametrize(
    ("result", "message"),
    [
        (np.zeros(2), r"Proportional.act returned actions of shape \(2,\), but must return \(2, 1\)"),
        (np.zeros((1, 1)), r"actions of shape \(1, 1\), but must return \(2, 1\)"),
        (None, r"actions of shape \(\), but must return \(2, 1\)"),
        (np.array([["a"], ["b"]]), "actions of type <U1, but the action space .* takes float32"),
    ],
)
def test_controller_that_returns_something_else(monkeypatch, result, message):
    policy = HyperPolicy(BOX, ONE_ACTION, Proportional)
    monkeypatch.setattr(policy.controller, "act", lambda params, observations: result)
    with pytest.raises(ValueError, match=message):
        policy.predict(np.zeros((2, 3), dtype=np.float32))


def test_fractions_are_no_discrete_actions(monkeypatch):
    policy = HyperPolicy(BOX, spaces.Discrete(2), Proportional)
    monkeypatch.setattr(policy.controller, "act", lambda params, observations: np.zeros(len(params)))
    with pytest.raises(ValueError, match=r"actions of type float64, but the action space Discrete\(2\) takes int64"):
        policy.predict(np.zeros((2, 3), dtype=np.float32))


@pytest.mark.parametrize("n_params", [None, 0, 2.0, True])
def test_number_of_parameters(monkeypatch, n_params):
    monkeypatch.setattr(Proportional, "n_params", n_params)
    with pytest.raises(ValueError, match=f"Proportional.n_params is {n_params}, but must be an integer >= 1"):
        HyperPolicy(BOX, ONE_ACTION, Proportional)


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("mean_init", [1.0, 2.0], r"mean_init has the shape \(2,\), but must be \(3,\)"),
        ("mean_init", [1.0, np.nan, 2.0], "mean_init has 1 values that are not finite"),
        ("mean_init", ["a", "b", "c"], r"mean_init is \['a', 'b', 'c'\], but must be 3 numbers"),
        ("mean_init", "xavier", "mean_init is 'xavier', but allowed are 'controller', 'normal' and a list of numbers"),
        ("mean_init", th.zeros(3), "mean_init is a tensor, but must be a list or an array"),
        ("log_std_init", np.inf, "log_std_init has 3 values that are not finite"),
        ("log_std_init", "wide", "but must be 3 numbers"),
        ("log_std_init", [0.0], r"log_std_init has the shape \(1,\)"),
    ],
)
def test_initial_values_that_do_not_fit(name, value, message):
    with pytest.raises(ValueError, match=message):
        HyperPolicy(BOX, ONE_ACTION, Proportional, **{name: value})


@pytest.mark.parametrize("index", [[0, 0, 2, 2, 5, 5], [0] * 5, [-1, 0, 0, 1, 1, 1], [0.0] * 6])
def test_neurons_of_a_users_controller_are_checked(index):
    class Numbered(Controller):
        n_params = 6

        def act(self, params, observations):
            return np.zeros((len(params), 2))

        def neuron_index(self):
            return np.array(index)

    with pytest.raises(ValueError, match=r"Numbered.neuron_index\(\) is .* but must give each of the 6 parameters"):
        group_index_of("neuron", Numbered(BOX, BOX))


@pytest.mark.parametrize("grouping", [{"a": [0]}, [[[0, 1], [2, 3]], [4, 5]], [[True, False], [2, 3, 4, 5]], [["a"], [1]]])
def test_groups_of_what_is_no_index(grouping):
    with pytest.raises(ValueError, match="a list of lists of parameter indices"):
        check_grouping(grouping)
