"""The offline optimisation loop."""

import math

import numpy as np
import pytest
import torch as th
from scipy import optimize

from sb3_pois.common.ascent import optimize_offline
from sb3_pois.common.line_search import Box


class Function:
    """A surrogate from a scalar function of the parameters, or one with a value per group."""

    def __init__(self, function):
        self.function = function
        self.n_gradients = 0

    def value(self, theta):
        return self.function(theta).detach().reshape(-1)

    def value_and_gradient(self, theta):
        self.n_gradients += 1
        theta = theta.detach().requires_grad_()
        value = self.function(theta).reshape(-1)
        (gradient,) = th.autograd.grad(value.sum(), theta)
        return value.detach(), gradient


CURVATURES = th.tensor([1.0, 30.0, 5.0], dtype=th.float64)
START = th.tensor([4.0, 1.0, -2.0], dtype=th.float64)


def bowl(theta):
    return -0.5 * (CURVATURES * theta**2).sum()


@pytest.mark.parametrize("rule", ["parabolic", "binary"])
def test_climbs_to_the_maximum(rule):
    result = optimize_offline(Function(bowl), START, n_iters=200, rule=rule, gradient_tol=1e-8, tol=1e-12)
    assert result.value.item() == pytest.approx(0.0, abs=1e-6)
    assert result.value.item() == pytest.approx(bowl(result.theta).item(), abs=1e-15)
    assert result.value_before.item() == bowl(START).item()
    assert result.is_success.all()


def test_newton_direction_arrives_in_one_search():
    result = optimize_offline(Function(bowl), START, direction=lambda theta, g: g / CURVATURES, n_iters=1, initial_step=1e3)
    assert result.n_iters == 1 and result.value.item() == pytest.approx(0.0, abs=1e-9)


@pytest.mark.parametrize("bad", [-1.0, 0.0, math.nan])
def test_direction_that_does_not_ascend_is_replaced_by_the_gradient(bad):
    expected = optimize_offline(Function(bowl), START, n_iters=3)
    result = optimize_offline(Function(bowl), START, direction=lambda theta, g: bad * g, n_iters=3)
    assert th.equal(result.theta, expected.theta)


def test_number_of_searches_and_gradients():
    function = Function(bowl)
    result = optimize_offline(function, START, n_iters=4)
    assert result.n_iters == 4 and function.n_gradients == 4


def test_stops_on_a_small_gradient_without_searching():
    result = optimize_offline(Function(lambda theta: 1e-5 * theta.sum()), START, n_iters=5)
    assert result.n_iters == 0 and result.n_evals == 0 and th.equal(result.theta, START)
    assert result.grad_norm.item() == pytest.approx(1e-5 * math.sqrt(3.0))
    assert not result.is_success.any()


def test_stops_on_a_small_improvement():
    result = optimize_offline(Function(lambda theta: -1e-3 * (theta**2).sum()), START, n_iters=50, tol=1.0)
    assert result.n_iters == 1


def test_gradient_that_is_not_finite_keeps_the_last_good_point():
    def function(theta):
        # Finite everywhere, but its gradient is infinite at 0, where the first search ends
        return -theta.abs().sqrt().sum() if theta.requires_grad and theta.abs().max() < 1e-3 else bowl(theta)

    start = th.tensor([0.5, 0.0, 0.0], dtype=th.float64)
    result = optimize_offline(Function(function), start, n_iters=10)
    assert th.isfinite(result.theta).all() and result.value.item() >= bowl(start).item()
    result = optimize_offline(Function(lambda theta: (theta - START).abs().sqrt().sum() + bowl(theta)), START, n_iters=3)
    assert th.equal(result.theta, START) and result.n_iters == 0


def test_never_below_the_start_on_a_nasty_surface():
    generator = th.Generator().manual_seed(0)
    for _ in range(50):
        frequencies = 5.0 * th.randn(3, 3, generator=generator, dtype=th.float64)

        def nasty(theta, frequencies=frequencies):
            value = (frequencies @ theta).sin().sum() - 0.1 * (theta**2).sum()
            return th.where(theta.abs().max() > 3.0, th.tensor(math.nan, dtype=th.float64), value)

        start = th.rand(3, generator=generator, dtype=th.float64)
        for rule in ("parabolic", "binary"):
            result = optimize_offline(Function(nasty), start, rule=rule)
            assert result.value.item() >= result.value_before.item()
            assert nasty(result.theta).item() == result.value.item()


def test_every_group_keeps_its_own_best_and_stops_on_its_own():
    group_index = th.tensor([0, 1, 2])

    def groups(theta):
        steep, flat = -0.5 * 30.0 * theta[0] ** 2, 1e-6 * theta[1]
        return th.stack([steep, flat, -((theta[2] - 1.0) ** 2)])

    start = th.tensor([1.0, 2.0, -2.0], dtype=th.float64)
    result = optimize_offline(Function(groups), start, group_index=group_index, n_iters=20)
    assert result.theta[1].item() == 2.0, "its gradient is below the tolerance"
    assert result.theta[0].item() == pytest.approx(0.0, abs=1e-2) and result.theta[2].item() == pytest.approx(1.0, abs=1e-2)
    assert (result.value >= result.value_before).all()
    assert result.is_success.tolist() == [True, False, True]


HESSIAN = th.tensor([[4.0, 1.5, -0.5], [1.5, 2.0, 0.3], [-0.5, 0.3, 1.0]], dtype=th.float64)
DIRECTIONS = {
    "gradient": lambda theta, g: g,
    "diagonal": lambda theta, g: g / HESSIAN.diagonal(),
    "Newton": lambda theta, g: th.linalg.solve(HESSIAN, g),
}


@pytest.mark.parametrize("rule", ["parabolic", "binary"])
@pytest.mark.parametrize("name", list(DIRECTIONS))
def test_climbs_to_the_maximum_within_a_box(name, rule):
    """Parameters at their limits stay there and the others go on, where scipy's bounded optimiser goes too."""
    limits = np.array([[-0.5, 0.4], [-np.inf, np.inf], [-0.3, 2.0]])

    def coupled(theta):
        return -0.5 * (theta - START) @ HESSIAN @ (theta - START)

    oracle = optimize.minimize(lambda x: -coupled(th.as_tensor(x)).item(), np.zeros(3), bounds=limits, tol=1e-12)
    box = Box(*th.as_tensor(limits).unbind(1))
    assert (oracle.x == limits[:, 1]).any() or (oracle.x == limits[:, 0]).any()
    kwargs = dict(n_iters=100, rule=rule, tol=1e-12, gradient_tol=1e-9)
    result = optimize_offline(Function(coupled), th.zeros(3).double(), DIRECTIONS[name], box=box, **kwargs)
    np.testing.assert_allclose(result.theta, oracle.x, atol=1e-3)
    assert (box.project(result.theta) == result.theta).all()


def test_a_corner_of_the_box_ends_the_optimisation():
    box = Box(th.full((3,), -1.0).double(), th.full((3,), 1.0).double())
    result = optimize_offline(Function(lambda theta: theta.sum()), th.zeros(3).double(), box=box, n_iters=10)
    assert result.theta.tolist() == [1.0, 1.0, 1.0] and result.n_iters == 1


@pytest.mark.parametrize("factor", [1.0, -1.0, math.nan])
def test_a_parameter_at_its_limit_takes_no_part_in_gradient_direction_and_slope(factor):
    """The factors that do not ascend let the gradient take the direction's place."""
    box = Box(th.full((3,), -math.inf).double(), th.tensor([0.0, math.inf, math.inf]).double())
    gradients = []

    def direction(theta, gradient):
        gradients.append(gradient.tolist())
        return factor * gradient

    function = Function(lambda theta: theta.sum())
    result = optimize_offline(function, th.zeros(3).double(), direction, n_iters=1, max_iter=1, box=box)
    assert gradients == [[0.0, 1.0, 1.0]] and result.grad_norm.item() == pytest.approx(math.sqrt(2.0))
    assert result.theta.tolist() == [0.0, 0.5, 0.5], "a step of 1 over a slope of 2"
