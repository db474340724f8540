"""Families of action distributions against torch.distributions, and samples against probabilities."""

from typing import Any

import numpy as np
import pytest
import torch as th
from gymnasium import spaces

from sb3_pois.apois.action_distributions import make_action_distribution

SPACES: dict[str, Any] = {
    "box": spaces.Box(-1.0, 1.0, (2,), np.float32),
    "matrix": spaces.Box(-1.0, 1.0, (2, 2), np.float64),
    "discrete": spaces.Discrete(3),
    "discrete from 5": spaces.Discrete(3, start=5),
    "multi-discrete": spaces.MultiDiscrete([2, 3]),
    "multi-binary": spaces.MultiBinary(3),
    "binary matrix": spaces.MultiBinary([2, 2]),
}


def parameters(distribution, n_states, seed=0):
    outputs = th.randn(n_states, distribution.n_outputs, generator=th.Generator().manual_seed(seed), dtype=th.float64)
    if type(distribution).__name__ == "DiagonalGaussian":
        return outputs, 0.3 * outputs[0]
    return (outputs,)


def oracle(name, params):
    """The same distributions, by torch; events flattened."""
    if name in ("box", "matrix"):
        mean, log_std = params
        return th.distributions.Independent(th.distributions.Normal(mean, log_std.exp().expand_as(mean)), 1)
    if name.startswith("discrete"):
        return th.distributions.Categorical(logits=params[0])
    if name == "multi-discrete":
        return [th.distributions.Categorical(logits=params[0][:, :2]), th.distributions.Categorical(logits=params[0][:, 2:])]
    return th.distributions.Independent(th.distributions.Bernoulli(logits=params[0]), 1)


@pytest.fixture(params=list(SPACES))
def name(request):
    return request.param


def test_log_prob(name):
    distribution = make_action_distribution(SPACES[name])
    params = parameters(distribution, 50)
    noise = distribution.draw_noise(np.random.default_rng(0), (50,))
    actions = th.as_tensor(distribution.sample(tuple(p.numpy() for p in params), noise))
    reference = oracle(name, params)
    if name == "multi-discrete":
        expected = sum(factor.log_prob(actions[:, i]) for i, factor in enumerate(reference))
    elif name.startswith("discrete"):
        expected = reference.log_prob(actions - SPACES[name].start)
    else:
        expected = reference.log_prob(actions.flatten(1).double())
    th.testing.assert_close(distribution.log_prob(params, actions), expected)


def test_samples_have_the_spaces_shape_and_type(name):
    space = SPACES[name]
    distribution = make_action_distribution(space)
    params = tuple(p.numpy() for p in parameters(distribution, 7))
    for actions in (
        distribution.mode(params),
        distribution.sample(params, distribution.draw_noise(np.random.default_rng(0), (7,))),
    ):
        assert actions.shape == (7, *space.shape) and actions.dtype == space.dtype
        if not isinstance(space, spaces.Box):
            assert all(space.contains(action) for action in actions)


def test_samples_follow_the_density(name):
    """Mean log density of many samples against the negative entropy, within 4 standard errors."""
    distribution = make_action_distribution(SPACES[name])
    n_samples = 100_000
    params = parameters(distribution, 1)
    repeated = tuple(p.expand(n_samples, -1) if p.dim() == 2 else p for p in params)
    noise = distribution.draw_noise(np.random.default_rng(1), (n_samples,))
    actions = th.as_tensor(distribution.sample(tuple(p.numpy() for p in repeated), noise))
    log_prob = distribution.log_prob(repeated, actions)
    reference = oracle(name, params)
    entropy = sum(f.entropy().item() for f in reference) if isinstance(reference, list) else reference.entropy().item()
    assert log_prob.mean().item() == pytest.approx(-entropy, abs=4.0 * log_prob.std().item() / np.sqrt(n_samples))


def test_mode_has_the_highest_density(name):
    distribution = make_action_distribution(SPACES[name])
    params = parameters(distribution, 200)
    arrays = tuple(p.numpy() for p in params)
    sampled = distribution.sample(arrays, distribution.draw_noise(np.random.default_rng(2), (200,)))
    mode_log_prob = distribution.log_prob(params, th.as_tensor(distribution.mode(arrays)))
    assert (mode_log_prob >= distribution.log_prob(params, th.as_tensor(sampled)) - 1e-6).all()


def test_renyi_divergence_is_the_second_moment_of_the_weight(name):
    distribution = make_action_distribution(SPACES[name])
    n_samples = 400_000
    behavioral = parameters(distribution, 1)
    target = tuple(p + 0.1 * th.arange(p.shape[-1]) for p in behavioral)
    repeated = [tuple(p.expand(n_samples, -1) if p.dim() == 2 else p for p in q) for q in (target, behavioral)]
    noise = distribution.draw_noise(np.random.default_rng(3), (n_samples,))
    actions = th.as_tensor(distribution.sample(tuple(p.numpy() for p in repeated[1]), noise))
    log_weights = distribution.log_prob(repeated[0], actions) - distribution.log_prob(repeated[1], actions)
    squares = (2.0 * log_weights).exp()
    expected = distribution.renyi_divergence(target, behavioral).exp().item()
    assert squares.mean().item() == pytest.approx(expected, abs=4.0 * squares.std().item() / np.sqrt(n_samples))
    assert distribution.renyi_divergence(behavioral, behavioral).item() == 0.0


def test_integer_box_is_sampled_in_float():
    distribution = make_action_distribution(spaces.Box(0, 10, (1,), np.int64))
    assert distribution.sample((np.zeros((2, 1)), np.zeros(1)), np.full((2, 1), 0.5)).dtype == np.float32


def test_other_spaces_are_refused():
    with pytest.raises(ValueError, match=r"Text.*Box, Discrete, MultiDiscrete, MultiBinary"):
        make_action_distribution(spaces.Text(3))
