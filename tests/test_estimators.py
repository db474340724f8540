"""Off-policy estimators."""

import itertools

import numpy as np
import pytest
import torch as th

from sb3_pois.common.estimators import ESTIMATORS, regression_estimate

LOG_WEIGHTS = th.tensor([[0.2, -0.1], [-0.3, 0.4]], dtype=th.float64).sum(1)
RETURNS = th.tensor([1.0 + 0.5 * 2.0, 3.0 + 0.5 * 4.0], dtype=th.float64)


@pytest.mark.parametrize(("name", "expected"), [("none", 3.8680982), ("sn", 3.5)])
def test_check_values(name, expected):
    assert ESTIMATORS[name](LOG_WEIGHTS, RETURNS).item() == pytest.approx(expected, abs=1e-6)


def test_importance_sampling_is_unbiased_over_all_samples_of_two_actions():
    behavioral, target, reward = np.array([0.3, 0.7]), np.array([0.6, 0.4]), th.tensor([1.0, -2.0], dtype=th.float64)
    log_ratio = th.as_tensor(np.log(target / behavioral))
    expectation = 0.0
    for sample in itertools.product([0, 1], repeat=3):
        index = th.tensor(sample)
        expectation += np.prod(behavioral[list(sample)]) * ESTIMATORS["none"](log_ratio[index], reward[index]).item()
    assert expectation == pytest.approx((target * reward.numpy()).sum(), rel=1e-12)


def test_self_normalised_estimate_stays_within_the_returns():
    for scale in (0.1, 10.0, 1000.0):
        log_weights, returns = scale * th.randn(20, dtype=th.float64), th.randn(20, dtype=th.float64)
        estimate = ESTIMATORS["sn"](log_weights, returns).item()
        assert returns.min().item() - 1e-12 <= estimate <= returns.max().item() + 1e-12


@pytest.mark.parametrize("name", ["none", "sn"])
def test_gradient_at_the_behavioral_policy_is_the_score_function_gradient(name):
    log_weights = th.zeros(6, dtype=th.float64, requires_grad=True)
    returns = th.randn(6, dtype=th.float64)
    (gradient,) = th.autograd.grad(ESTIMATORS[name](log_weights, returns), log_weights)
    baseline = returns.mean() if name == "sn" else 0.0
    th.testing.assert_close(gradient, (returns - baseline) / 6.0)


def test_regression_beta_is_the_least_squares_coefficient():
    log_weights, returns = 0.5 * th.randn(50, dtype=th.float64), th.randn(50, dtype=th.float64)
    weights = np.exp(log_weights.numpy())
    slope, _ = np.polyfit(weights, weights * returns.numpy(), 1)
    expected = np.mean(weights * returns.numpy() - slope * (weights - 1.0))
    assert regression_estimate(log_weights, returns).item() == pytest.approx(expected, rel=1e-10)


def test_regression_has_no_correction_where_the_weights_do_not_vary():
    returns = th.tensor([1.0, 2.0, 6.0], dtype=th.float64)
    assert regression_estimate(th.zeros(3, dtype=th.float64), returns).item() == pytest.approx(3.0)


@pytest.mark.parametrize("name", list(ESTIMATORS))
def test_groups_are_independent_columns(name):
    log_weights, returns = th.randn(10, 3, dtype=th.float64), th.randn(10, dtype=th.float64)
    columns = th.stack([ESTIMATORS[name](log_weights[:, i], returns) for i in range(3)])
    th.testing.assert_close(ESTIMATORS[name](log_weights, returns), columns)
