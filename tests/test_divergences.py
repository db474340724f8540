"""Rényi divergences against closed forms, quadrature and Monte Carlo."""

import math

import numpy as np
import pytest
import torch as th
from scipy import integrate, stats

from sb3_pois.common.divergences import (
    bernoulli_renyi_divergence,
    categorical_renyi_divergence,
    gaussian_renyi_divergence,
    mean_exponentiated_divergence,
    multi_categorical_renyi_divergence,
)


def gaussian(mean_p, std_p, mean_q, std_q, order=2.0):
    mean_p, std_p, mean_q, std_q = (th.as_tensor(np.atleast_1d(x), dtype=th.float64) for x in (mean_p, std_p, mean_q, std_q))
    return gaussian_renyi_divergence(mean_p, std_p.log(), mean_q, std_q.log(), order).item()


@pytest.mark.parametrize(("mean_p", "std_p", "d2"), [(0.5, 1.0, 1.2840254), (0.0, 0.5, 1.5118579), (0.0, 1.3, 1.3815792)])
def test_gaussian_check_values(mean_p, std_p, d2):
    assert math.exp(gaussian(mean_p, std_p, 0.0, 1.0)) == pytest.approx(d2, rel=1e-6)


def test_gaussian_fifty_dimensions():
    assert gaussian(np.zeros(50), np.full(50, 0.4), np.zeros(50), np.full(50, 0.3)) == pytest.approx(23.2178, abs=1e-4)


@pytest.mark.parametrize("order", [0.3, 0.999, 1.5, 2.0, 3.0])
@pytest.mark.parametrize(("mean_p", "std_p", "mean_q", "std_q"), [(0.3, 0.8, -0.2, 0.9), (0.0, 1.0, 0.7, 1.1)])
def test_gaussian_against_quadrature(mean_p, std_p, mean_q, std_q, order):
    def integrand(x):
        log_p, log_q = stats.norm.logpdf(x, mean_p, std_p), stats.norm.logpdf(x, mean_q, std_q)
        return np.exp(order * log_p + (1.0 - order) * log_q)

    integral, _ = integrate.quad(integrand, -30.0, 30.0, epsabs=1e-13, epsrel=1e-12, limit=500)
    assert gaussian(mean_p, std_p, mean_q, std_q, order) == pytest.approx(math.log(integral) / (order - 1.0), abs=1e-8)


def test_gaussian_order_two_is_the_second_moment_of_the_weight():
    rng = np.random.default_rng(0)
    x = rng.normal(0.1, 1.2, 2_000_000)
    squared_weight = np.exp(2.0 * (stats.norm.logpdf(x, 0.4, 1.0) - stats.norm.logpdf(x, 0.1, 1.2)))
    standard_error = squared_weight.std() / math.sqrt(len(x))
    assert math.exp(gaussian(0.4, 1.0, 0.1, 1.2)) == pytest.approx(squared_weight.mean(), abs=4.0 * standard_error)


@pytest.mark.parametrize("order", [1.0, 1.0 + 1e-6, 1.0 - 1e-6])
def test_gaussian_order_one_is_the_kl_divergence(order):
    kl = th.distributions.kl_divergence(th.distributions.Normal(0.3, 0.8), th.distributions.Normal(-0.2, 1.1)).item()
    assert gaussian(0.3, 0.8, -0.2, 1.1, order) == pytest.approx(kl, rel=1e-5)


@pytest.mark.parametrize("order", [0.5, 1.0, 2.0, 5.0])
def test_gaussian_from_itself_is_exactly_zero(order):
    mean, log_std = th.randn(7), th.randn(7)
    assert gaussian_renyi_divergence(mean, log_std, mean, log_std, order).item() == 0.0


@pytest.mark.parametrize("n_infeasible", [1, 2, 3, 4])
def test_gaussian_is_infinite_as_soon_as_one_dimension_is_infeasible(n_infeasible):
    # A product of variances turns positive again at every even number of infeasible dimensions
    std_p = np.where(np.arange(4) < n_infeasible, 2.0, 1.0)
    assert gaussian(np.zeros(4), std_p, np.zeros(4), np.ones(4)) == math.inf


def test_gaussian_feasibility_ends_at_root_two():
    assert gaussian(0.0, math.sqrt(2.0) * (1.0 - 1e-9), 0.0, 1.0) < math.inf
    assert gaussian(0.0, math.sqrt(2.0) * (1.0 + 1e-9), 0.0, 1.0) == math.inf


def test_gaussian_thousand_dimensions_in_float32():
    mean, log_std_q = th.zeros(1000), th.full((1000,), math.log(0.01))
    divergence = gaussian_renyi_divergence(mean, log_std_q + 0.01, mean, log_std_q)
    expected = 1000 * gaussian(0.0, 0.01 * math.exp(0.01), 0.0, 0.01)
    assert divergence.item() == pytest.approx(expected, rel=1e-3)


def test_gaussian_sums_over_dimensions_and_broadcasts():
    mean_p, mean_q = th.randn(5, 3, dtype=th.float64), th.randn(5, 3, dtype=th.float64)
    log_std_p, log_std_q = th.tensor([0.1, -0.2, 0.0]).double(), th.tensor([0.0, 0.1, -0.1]).double()
    whole = gaussian_renyi_divergence(mean_p, log_std_p, mean_q, log_std_q)
    parts = [gaussian_renyi_divergence(mean_p[:, [i]], log_std_p[[i]], mean_q[:, [i]], log_std_q[[i]]) for i in range(3)]
    th.testing.assert_close(whole, sum(parts))
    assert whole.shape == (5,)


def test_gaussian_gradients():
    arguments = [th.randn(2, 3, dtype=th.float64) for _ in range(2)]
    mean_p, mean_q = arguments
    log_std_p, log_std_q = th.tensor([0.1, -0.2, 0.0]).double(), th.zeros(3).double()
    inputs = [x.requires_grad_() for x in (mean_p, log_std_p, mean_q, log_std_q)]
    assert th.autograd.gradcheck(gaussian_renyi_divergence, inputs)


def test_gaussian_gradient_is_zero_where_infeasible():
    log_std = th.tensor([1.0, 0.0, 2.0], requires_grad=True)
    gaussian_renyi_divergence(th.zeros(3), log_std, th.zeros(3), th.zeros(3)).backward()
    assert log_std.grad is not None and (log_std.grad == 0.0).all()


def test_categorical_check_value():
    p, q = th.tensor([0.9, 0.1], dtype=th.float64), th.tensor([0.5, 0.5], dtype=th.float64)
    assert categorical_renyi_divergence(p.log(), q.log()).exp().item() == pytest.approx(1.64, rel=1e-12)


@pytest.mark.parametrize("order", [0.5, 1.0, 2.0, 3.0])
def test_categorical_against_the_sum(order):
    p, q = np.array([0.2, 0.5, 0.3]), np.array([0.4, 0.4, 0.2])
    expected = (p * np.log(p / q)).sum() if order == 1.0 else np.log((p**order * q ** (1 - order)).sum()) / (order - 1.0)
    logits_p, logits_q = th.as_tensor(np.log(p)) + 3.0, th.as_tensor(np.log(q)) - 5.0  # logits need no normalisation
    assert categorical_renyi_divergence(logits_p, logits_q, order).item() == pytest.approx(expected, rel=1e-12)


def test_multi_categorical_is_the_divergence_of_the_joint_distribution():
    logits_p, logits_q = th.randn(5, dtype=th.float64), th.randn(5, dtype=th.float64)

    def joint(logits):
        return (logits[:2].log_softmax(0)[:, None] + logits[2:].log_softmax(0)[None, :]).ravel()

    expected = categorical_renyi_divergence(joint(logits_p), joint(logits_q))
    th.testing.assert_close(multi_categorical_renyi_divergence(logits_p, logits_q, [2, 3]), expected)


def test_bernoulli_is_the_divergence_of_the_joint_distribution():
    p, q = th.tensor([0.3, 0.8], dtype=th.float64), th.tensor([0.5, 0.6], dtype=th.float64)

    def joint(probability):
        outcomes = [[1 - probability[i], probability[i]] for i in range(2)]
        return th.stack([outcomes[0][i] * outcomes[1][j] for i in range(2) for j in range(2)]).log()

    expected = categorical_renyi_divergence(joint(p), joint(q))
    th.testing.assert_close(bernoulli_renyi_divergence(th.logit(p), th.logit(q)), expected)


def test_discrete_divergences_do_not_overflow():
    huge = th.tensor([1e4, -1e4])
    assert categorical_renyi_divergence(huge, huge).item() == 0.0
    assert math.isfinite(bernoulli_renyi_divergence(huge, th.zeros(2)).item())


def test_mean_exponentiated_divergence_check_value():
    assert mean_exponentiated_divergence(th.tensor([95.0, 90.0], dtype=th.float64)).item() == pytest.approx(
        94.313568, abs=1e-6
    )


@pytest.mark.parametrize("order", [0.0, -1.0, math.nan])
def test_order_must_be_positive(order):
    with pytest.raises(ValueError, match=r"order is .* order > 0"):
        gaussian(0.0, 1.0, 0.0, 1.0, order)
    with pytest.raises(ValueError, match=r"order is .* order > 0"):
        categorical_renyi_divergence(th.zeros(2), th.zeros(2), order)
