"""The surrogate of PPOIS: against densities, sampling, finite differences, and one group at a time."""

import numpy as np
import pytest
import torch as th
from scipy import stats

from sb3_pois.common.ascent import optimize_offline
from sb3_pois.common.bounds import Objective
from sb3_pois.common.importance import effective_sample_size
from sb3_pois.ppois import grouped_noise
from sb3_pois.ppois.surrogate import HyperpolicySurrogate, gaussian_natural_gradient
from tests.helpers.objectives import objectives

MAX_D2, MAX_ESS = Objective("max-d2", "sn", 0.4), Objective("max-ess", "sn", 0.4)
N_EPISODES, N_PARAMS = 30, 7
MEAN = np.linspace(-1.0, 1.0, N_PARAMS)
LOG_STD = np.linspace(-0.7, 0.4, N_PARAMS)
GROUPS = np.array([0, 1, 0, 2, 1, 0, 3])  # sizes 3, 2, 1, 1


def draw_noise(n_episodes=N_EPISODES, n_params=N_PARAMS, seed=0):
    return np.random.default_rng(seed).standard_normal((n_episodes, n_params), dtype=np.float32)


def make_surrogate(objective=MAX_D2, groups=None, noise=None):
    noise = draw_noise() if noise is None else noise
    returns = th.as_tensor(noise.astype(np.float64).sum(1) + 3.0)
    return HyperpolicySurrogate(MEAN, LOG_STD, noise, returns, objective, groups)


BEHAVIORAL = th.as_tensor(np.concatenate([MEAN, LOG_STD]))


def a_target(scale=0.2, seed=1):
    return BEHAVIORAL + scale * th.as_tensor(np.random.default_rng(seed).standard_normal(2 * N_PARAMS))


@pytest.mark.parametrize("groups", [None, GROUPS])
def test_log_weights_are_ratios_of_normal_densities(groups):
    noise, target = draw_noise(), a_target()
    params = MEAN + np.exp(LOG_STD) * noise.astype(np.float64)
    mean, log_std = np.split(target.numpy(), 2)
    ratios = stats.norm.logpdf(params, mean, np.exp(log_std)) - stats.norm.logpdf(params, MEAN, np.exp(LOG_STD))
    index = np.zeros(N_PARAMS, dtype=int) if groups is None else groups
    expected = np.stack([ratios[:, index == m].sum(1) for m in range(index.max() + 1)], axis=1)
    actual = make_surrogate(groups=groups).terms(target, with_divergence=False).log_weights
    np.testing.assert_allclose(actual, expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("groups", [None, GROUPS])
def test_behavioral_weights_and_divergences_are_exact(groups):
    terms = make_surrogate(groups=groups).terms(BEHAVIORAL, with_divergence=True)
    assert (terms.log_weights == 0.0).all()
    assert (terms.log_d2 == 0.0).all()


def test_divergence_is_the_second_moment_of_the_weights():
    noise = draw_noise(n_episodes=400_000)
    target = a_target(scale=0.08)
    terms = make_surrogate(noise=noise, groups=GROUPS).terms(target, with_divergence=True)
    weights = terms.log_weights.exp()
    np.testing.assert_allclose(weights.mean(0), 1.0, atol=5e-3)
    np.testing.assert_allclose((weights**2).mean(0), terms.log_d2.exp(), atol=2e-2)


def test_divergence_of_a_group_is_infinite_on_its_own():
    target = BEHAVIORAL.clone()
    target[N_PARAMS + 3] += 0.5 * np.log(2.0) + 1e-6  # group 2: std beyond sqrt(2) times the behavioral one
    surrogate = make_surrogate(groups=GROUPS)
    log_d2 = surrogate.terms(target, with_divergence=True).log_d2
    assert log_d2.tolist() == [0.0, 0.0, np.inf, 0.0]
    assert th.isfinite(surrogate.value(target)).tolist() == [True, True, False, True]


@pytest.mark.parametrize("groups", [None, GROUPS])
@pytest.mark.parametrize("objective", objectives(), ids=str)
def test_gradient_is_that_of_finite_differences(objective, groups):
    target = a_target(scale=0.1)
    surrogate = make_surrogate(objective, groups=groups)
    value, gradient = surrogate.value_and_gradient(target)
    np.testing.assert_array_equal(value, surrogate.value(target))
    step = 1e-6
    for j in range(2 * N_PARAMS):
        shift = th.zeros_like(target)
        shift[j] = step
        slope = (surrogate.value(target + shift) - surrogate.value(target - shift)).sum() / (2.0 * step)
        assert gradient[j].item() == pytest.approx(slope.item(), abs=1e-6)


def test_moments_are_the_transpose_of_the_quadratic_forms():
    noise = grouped_noise.GroupedNoise(draw_noise(), GROUPS, th.device("cpu"))
    wanted = th.tensor([True, False, True, True])
    quadratic, linear = (th.randn(N_PARAMS, dtype=th.float64) for _ in range(2))
    factors = th.randn(3, N_EPISODES, dtype=th.float64)
    forms = noise.quadratic_forms(quadratic, linear, wanted)
    squares = quadratic.numpy() * draw_noise().astype(float) ** 2 + linear.numpy() * draw_noise()
    np.testing.assert_allclose(forms, [squares[:, GROUPS == m].sum(1) for m in (0, 2, 3)], rtol=1e-12)
    first, second = noise.moments(factors, wanted)
    assert (forms * factors).sum().item() == pytest.approx((linear @ first + quadratic @ second).item())
    assert (first[GROUPS == 1] == 0.0).all() and (second[GROUPS == 1] == 0.0).all()


@pytest.mark.parametrize("groups", [None, GROUPS])
@pytest.mark.parametrize("chunk_size", [1, 5, 64, 10_000])
def test_chunks_make_no_difference(monkeypatch, groups, chunk_size):
    whole = make_surrogate(groups=groups)
    monkeypatch.setitem(grouped_noise.CHUNK_SIZE, "cpu", chunk_size)
    chunked = make_surrogate(groups=groups)
    target = a_target()
    for expected, actual in zip(whole.value_and_gradient(target), chunked.value_and_gradient(target), strict=True):
        np.testing.assert_allclose(actual, expected, rtol=1e-12, atol=1e-12)


def test_each_group_is_a_surrogate_of_its_own():
    target, noise = a_target(), draw_noise()
    surrogate = make_surrogate(MAX_ESS, groups=GROUPS)
    value, gradient = surrogate.value_and_gradient(target)
    log_weights = surrogate.terms(target, with_divergence=False).log_weights
    for group in range(4):
        own = GROUPS == group
        alone = HyperpolicySurrogate(MEAN[own], LOG_STD[own], noise[:, own], surrogate.returns, surrogate.objective)
        both = np.tile(own, 2)
        own_value, own_gradient = alone.value_and_gradient(target[both])
        np.testing.assert_allclose(value[group], own_value[0], rtol=1e-12)
        np.testing.assert_allclose(gradient[both], own_gradient, rtol=1e-10, atol=1e-12)
        own_weights = alone.terms(target[both], with_divergence=False).log_weights[:, 0]
        assert effective_sample_size(log_weights)[group].item() == pytest.approx(effective_sample_size(own_weights).item())


def test_groups_that_stand_still_keep_their_value(monkeypatch):
    surrogate, fresh = make_surrogate(MAX_ESS, groups=GROUPS), make_surrogate(MAX_ESS, groups=GROUPS)
    surrogate.value_and_gradient(BEHAVIORAL)
    computed = []
    forms = surrogate.noise.quadratic_forms

    def spy(quadratic, linear, groups):
        computed.append(groups.tolist())
        return forms(quadratic, linear, groups)

    monkeypatch.setattr(surrogate.noise, "quadratic_forms", spy)
    target = BEHAVIORAL.clone()
    target[GROUPS.tolist().index(2)] += 0.3  # the mean of group 2 moves
    np.testing.assert_allclose(surrogate.value(target), fresh.value(target), rtol=1e-14)
    for expected, actual in zip(fresh.value_and_gradient(target), surrogate.value_and_gradient(target), strict=True):
        np.testing.assert_allclose(actual, expected, rtol=1e-12, atol=1e-14)
    assert computed == [[False, False, True, False]] * 2


@pytest.mark.parametrize("objective", objectives(), ids=str)
@pytest.mark.parametrize("rule", ["parabolic", "binary"])
def test_no_group_ends_below_its_start(objective, rule):
    surrogate = make_surrogate(objective, groups=GROUPS)
    result = optimize_offline(surrogate, BEHAVIORAL, gaussian_natural_gradient, surrogate.group_of_theta, rule=rule)
    fresh = make_surrogate(objective, groups=GROUPS)
    np.testing.assert_allclose(fresh.value(result.theta), result.value, rtol=1e-9)
    assert (result.value >= result.value_before).all()
    assert (result.value > result.value_before).any()


@pytest.mark.parametrize("groups", [None, GROUPS])
def test_gradient_of_what_is_not_learned_is_zero(groups):
    both = make_surrogate(groups=groups)
    arguments = (MEAN, LOG_STD, draw_noise(), both.returns, both.objective, groups)
    of_mean = HyperpolicySurrogate(*arguments, learn_std=False).value_and_gradient(a_target())[1]
    of_std = HyperpolicySurrogate(*arguments, learn_mean=False).value_and_gradient(a_target())[1]
    assert (of_mean[N_PARAMS:] == 0.0).all() and (of_std[:N_PARAMS] == 0.0).all()
    th.testing.assert_close(of_mean + of_std, both.value_and_gradient(a_target())[1], rtol=0, atol=0)


def test_natural_gradient_is_the_gradient_over_the_fisher_information():
    target, gradient = a_target(), th.arange(1.0, 2 * N_PARAMS + 1, dtype=th.float64)
    params = np.exp(target[N_PARAMS:].numpy()) * np.random.default_rng(0).standard_normal((200_000, N_PARAMS))
    std = np.exp(target[N_PARAMS:].numpy())
    scores = np.hstack([params / std**2, (params / std) ** 2 - 1.0])  # of (mean, log std)
    fisher = (scores**2).mean(0)
    np.testing.assert_allclose(gaussian_natural_gradient(target, gradient), gradient.numpy() / fisher, rtol=0.03)


@pytest.mark.skipif(not th.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("groups", [None, GROUPS])
def test_same_on_a_gpu(groups):
    on_cpu = make_surrogate(groups=groups)
    on_gpu = HyperpolicySurrogate(MEAN, LOG_STD, draw_noise(), on_cpu.returns.cuda(), on_cpu.objective, groups)
    for expected, actual in zip(
        on_cpu.value_and_gradient(a_target()), on_gpu.value_and_gradient(a_target().cuda()), strict=True
    ):
        np.testing.assert_allclose(actual.cpu(), expected, rtol=1e-9, atol=1e-9)
