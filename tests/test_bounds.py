"""Penalties and lower bounds."""

import math

import numpy as np
import pytest
import torch as th

from sb3_pois.common.bounds import BOUNDS, Objective, Terms
from tests.helpers.objectives import an_objective_with, objectives

RETURNS = th.tensor([1.0, -4.0, 2.0, 3.0], dtype=th.float64)
LOG_WEIGHTS = th.tensor([0.1, -0.3, 0.4, 0.0], dtype=th.float64)
LOG_D2 = th.tensor(0.5, dtype=th.float64)
TERMS = Terms(log_weights=LOG_WEIGHTS, log_d2=LOG_D2)

LARGEST, STD = 4.0, np.std([1.0, -4.0, 2.0, 3.0])
WEIGHTS = np.exp(LOG_WEIGHTS.numpy())
ROOT_D2_OVER_N = math.sqrt(math.exp(0.5) / 4)
ROOT_INVERSE_ESS = math.sqrt((WEIGHTS**2).sum()) / WEIGHTS.sum()


def c(delta):
    return math.sqrt((1.0 - delta) / delta)


# Every bound's penalty as a function of delta
PENALTIES = {
    "J": lambda delta: 0.0,
    "max-d2": lambda delta: c(delta) * LARGEST * ROOT_D2_OVER_N,
    "std-d2": lambda delta: c(delta) * STD * ROOT_D2_OVER_N,
    "max-ess": lambda delta: c(delta) * LARGEST * ROOT_INVERSE_ESS,
    "std-ess": lambda delta: c(delta) * STD * ROOT_INVERSE_ESS,
}

for_each_bound = pytest.mark.parametrize("bound", list(BOUNDS))


@for_each_bound
@pytest.mark.parametrize("delta", [0.1, 0.4, 0.99])
def test_penalty_by_its_formula(bound, delta):
    assert an_objective_with(bound, delta).penalty(RETURNS, TERMS).item() == pytest.approx(PENALTIES[bound](delta), rel=1e-12)


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
        estimate = Objective("J", "none", delta).lower_bound(returns, Terms(log_weights=log_weights)).value
        returns = th.cat([returns, th.tensor([1.0], dtype=th.float64)])  # the supremum of the returns, with weight 0
        log_weights = th.cat([log_weights, th.tensor([-math.inf], dtype=th.float64)])
        penalty = Objective("max-d2", "none", delta).penalty(returns, Terms(log_weights=log_weights, log_d2=log_d2))
        holds += int((estimate - penalty).item() <= true_return)
    assert holds / 2000 >= 1.0 - delta


@pytest.mark.parametrize("bound", [name for name in BOUNDS if name != "J"])
def test_penalty_falls_with_delta(bound):
    values = [an_objective_with(bound, delta).penalty(RETURNS, TERMS).item() for delta in (0.01, 0.1, 0.4, 0.8, 0.999, 1.0)]
    assert values == sorted(values, reverse=True)
    assert values[-1] == 0.0


@pytest.mark.parametrize("objective", objectives(delta=1.0), ids=str)
def test_at_delta_one_penalty_and_gradient_are_exactly_zero(objective):
    def gradients(of):
        log_weights, log_d2 = LOG_WEIGHTS.clone().requires_grad_(), LOG_D2.clone().requires_grad_()
        value = of.lower_bound(RETURNS, Terms(log_weights=log_weights, log_d2=log_d2)).value
        return th.autograd.grad(value, [log_weights, log_d2], allow_unused=True)

    gradient, divergence_gradient = gradients(objective)
    of_estimate, _ = gradients(Objective("J", objective.iw_norm, 0.4))
    th.testing.assert_close(gradient, of_estimate, rtol=0, atol=0)
    assert divergence_gradient is None or divergence_gradient.item() == 0.0


@pytest.mark.parametrize("objective", [*objectives(delta=0.4), *objectives(delta=1.0)], ids=str)
def test_feasibility(objective):
    def is_infeasible(log_weights, log_d2):
        return objective.lower_bound(RETURNS, Terms(log_weights=log_weights, log_d2=log_d2)).value.item() == -math.inf

    assert is_infeasible(LOG_WEIGHTS, th.tensor(math.inf).double()) == objective.needs_divergence
    assert not is_infeasible(LOG_WEIGHTS, LOG_D2)
    overflowing = th.tensor([800.0, 0.0, 0.0, 0.0], dtype=th.float64)
    assert is_infeasible(overflowing, LOG_D2) == (objective.iw_norm == "none")


def test_groups():
    log_weights, log_d2 = th.randn(4, 3, dtype=th.float64), th.tensor([0.1, math.inf, 0.3], dtype=th.float64)
    bound = Objective("max-d2", "sn", 0.4).lower_bound(RETURNS, Terms(log_weights=log_weights, log_d2=log_d2))
    assert bound.value.shape == bound.estimate.shape == bound.penalty.shape == (3,)
    assert th.isfinite(bound.value).tolist() == [True, False, True]


def test_an_objective_refuses_what_is_not_allowed(monkeypatch):
    for delta in (0.0, -0.1, 1.5):
        with pytest.raises(ValueError, match=r"delta is .* \(0, 1\]"):
            Objective("max-d2", "none", delta)
    with pytest.raises(ValueError, match="delta is nan, but must be a finite number"):
        Objective("max-d2", "none", math.nan)
    with pytest.raises(ValueError, match=r"bound is 'd2'.*'max-d2'"):
        Objective("d2", "none", 0.4)
    with pytest.raises(ValueError, match=r"iw_norm is 'snis'.*'sn'"):
        Objective("J", "snis", 0.4)
    with pytest.raises(ValueError, match="needs the divergence"):
        Objective("std-d2", "none", 0.4).penalty(RETURNS, Terms(log_weights=LOG_WEIGHTS))
    monkeypatch.setitem(BOUNDS, "J", BOUNDS["J"]._replace(estimators=("sn",)))
    with pytest.raises(ValueError, match="iw_norm is 'none', but the bound 'J' goes with 'sn' only"):
        Objective("J", "none", 0.4)


@pytest.mark.parametrize("bound", [name for name in BOUNDS if "none" in BOUNDS[name].estimators])
def test_target_whose_weights_all_underflow_is_not_feasible(bound):
    objective, nothing = Objective(bound, "none", 1.0), th.full((4,), -800.0, dtype=th.float64)
    assert objective.lower_bound(-RETURNS.abs(), Terms(log_weights=nothing, log_d2=LOG_D2)).value.item() == -math.inf
    nothing[0] = -600.0
    assert objective.lower_bound(-RETURNS.abs(), Terms(log_weights=nothing, log_d2=LOG_D2)).value.item() > -math.inf
