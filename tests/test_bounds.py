"""Penalties and lower bounds."""

import math

import numpy as np
import pytest
import torch as th

from sb3_pois.common.bounds import BOUNDS, lower_bound, penalty

RETURNS = th.tensor([1.0, -4.0, 2.0, 3.0], dtype=th.float64)
LOG_WEIGHTS = th.tensor([0.1, -0.3, 0.4, 0.0], dtype=th.float64)
LOG_D2 = th.tensor(0.5, dtype=th.float64)
WEIGHTS = np.exp(LOG_WEIGHTS.numpy())
ESS = WEIGHTS.sum() ** 2 / (WEIGHTS**2).sum()


@pytest.mark.parametrize(
    ("bound", "scale", "root_inverse_ess"),
    [
        ("J", 0.0, 0.0),
        ("max-d2", 4.0, math.sqrt(math.exp(0.5) / 4)),
        ("std-d2", np.std([1.0, -4.0, 2.0, 3.0]), math.sqrt(math.exp(0.5) / 4)),
        ("max-ess", 4.0, 1.0 / math.sqrt(ESS)),
        ("std-ess", np.std([1.0, -4.0, 2.0, 3.0]), 1.0 / math.sqrt(ESS)),
    ],
)
@pytest.mark.parametrize("delta", [0.1, 0.4, 0.99])
def test_penalty_by_its_formula(bound, scale, root_inverse_ess, delta):
    expected = math.sqrt((1.0 - delta) / delta) * scale * root_inverse_ess
    assert penalty(bound, RETURNS, LOG_WEIGHTS, LOG_D2, delta).item() == pytest.approx(expected, rel=1e-12)


def test_max_d2_bound_holds_as_often_as_it_promises():
    """Cantelli's bound with the true divergence and the true largest return: below J with probability >= 1 - delta."""
    rng = np.random.default_rng(0)
    shift, n_episodes, delta = 0.5, 20, 0.4
    log_d2 = th.tensor(shift**2, dtype=th.float64)  # D2(N(shift, 1) || N(0, 1)) = shift^2
    true_return = np.tanh(rng.normal(shift, 1.0, 10**6)).mean()
    holds = 0
    for _ in range(2000):
        x = rng.normal(0.0, 1.0, n_episodes)
        log_weights, returns = th.as_tensor(shift * x - 0.5 * shift**2), th.as_tensor(np.tanh(x))
        returns = th.cat([returns, th.tensor([1.0], dtype=th.float64)])  # the supremum of the returns, with weight 0
        log_weights = th.cat([log_weights, th.tensor([-math.inf], dtype=th.float64)])
        estimate = lower_bound("J", "none", returns[:-1], log_weights[:-1], None, delta).value
        holds += int((estimate - penalty("max-d2", returns, log_weights, log_d2, delta)).item() <= true_return)
    assert holds / 2000 >= 1.0 - delta


@pytest.mark.parametrize("bound", [name for name in BOUNDS if name != "J"])
def test_penalty_falls_with_delta(bound):
    values = [penalty(bound, RETURNS, LOG_WEIGHTS, LOG_D2, delta).item() for delta in (0.01, 0.1, 0.4, 0.8, 0.999, 1.0)]
    assert values == sorted(values, reverse=True)
    assert values[-1] == 0.0


@pytest.mark.parametrize("bound", list(BOUNDS))
def test_at_delta_one_penalty_and_gradient_are_exactly_zero(bound):
    log_weights, log_d2 = LOG_WEIGHTS.clone().requires_grad_(), LOG_D2.clone().requires_grad_()
    value = lower_bound(bound, "none", RETURNS, log_weights, log_d2, 1.0).value
    gradient, divergence_gradient = th.autograd.grad(value, [log_weights, log_d2], allow_unused=True)
    th.testing.assert_close(gradient, LOG_WEIGHTS.exp() * RETURNS / 4)
    assert divergence_gradient is None or divergence_gradient.item() == 0.0


@pytest.mark.parametrize("delta", [0.4, 1.0])
@pytest.mark.parametrize("bound", list(BOUNDS))
def test_feasibility(bound, delta):
    value = lower_bound(bound, "none", RETURNS, LOG_WEIGHTS, th.tensor(math.inf).double(), delta).value.item()
    assert (value == -math.inf) == BOUNDS[bound].uses_divergence
    overflowing = th.tensor([800.0, 0.0, 0.0, 0.0], dtype=th.float64)
    assert lower_bound(bound, "none", RETURNS, overflowing, LOG_D2, delta).value.item() == -math.inf


def test_groups():
    log_weights, log_d2 = th.randn(4, 3, dtype=th.float64), th.tensor([0.1, math.inf, 0.3], dtype=th.float64)
    bound = lower_bound("max-d2", "sn", RETURNS, log_weights, log_d2, 0.4)
    assert bound.value.shape == bound.estimate.shape == bound.penalty.shape == (3,)
    assert th.isfinite(bound.value).tolist() == [True, False, True]


@pytest.mark.parametrize("delta", [0.0, -0.1, 1.5, math.nan])
def test_delta_out_of_range(delta):
    with pytest.raises(ValueError, match=r"delta is .* \(0, 1\]"):
        penalty("max-d2", RETURNS, LOG_WEIGHTS, LOG_D2, delta)


def test_unknown_names_and_missing_divergence():
    with pytest.raises(ValueError, match=r"bound is 'd2'.*'max-d2'"):
        penalty("d2", RETURNS, LOG_WEIGHTS, LOG_D2, 0.4)
    with pytest.raises(ValueError, match=r"iw_norm is 'snis'.*'sn'"):
        lower_bound("J", "snis", RETURNS, LOG_WEIGHTS, None, 0.4)
    with pytest.raises(ValueError, match="needs the divergence"):
        penalty("std-d2", RETURNS, LOG_WEIGHTS, None, 0.4)


def test_target_whose_weights_all_underflow_is_not_feasible():
    for bound in BOUNDS:
        nothing = th.full((4,), -800.0, dtype=th.float64)
        assert lower_bound(bound, "none", -RETURNS.abs(), nothing, LOG_D2, 1.0).value.item() == -math.inf
        nothing[0] = -600.0
        assert lower_bound(bound, "none", -RETURNS.abs(), nothing, LOG_D2, 1.0).value.item() > -math.inf
