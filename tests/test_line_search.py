"""Line searches: by property on a table of objectives, and one test for every way to fail."""

import math

import numpy as np
import pytest
import torch as th

from sb3_pois.common.line_search import STEP_RULES, Box, line_search, parabolic_steps

RULES = list(STEP_RULES)


def search(function, start, rule="parabolic", **kwargs):
    """Search along the gradient of a scalar function of a vector."""
    start = th.as_tensor(start, dtype=th.float64)
    point = start.clone().requires_grad_()
    value = function(point)
    (gradient,) = th.autograd.grad(value, point)
    calls = []

    def objective(theta):
        calls.append(theta)
        return function(theta).detach().reshape(1)

    slope = (gradient**2).sum().reshape(1)
    result = line_search(objective, start, value.detach().reshape(1), gradient, slope, rule=rule, **kwargs)
    assert result.n_evals == len(calls)
    return result, calls


OBJECTIVES = {
    "quadratic": (lambda x: -0.5 * ((x - 3.0) ** 2).sum(), [0.0, 1.0]),
    "steep quadratic": (lambda x: -500.0 * ((x - 3.0) ** 2).sum(), [0.0, 1.0]),
    "flat quadratic": (lambda x: -0.01 * ((x - 30.0) ** 2).sum(), [0.0, 1.0]),
    "not concave": (lambda x: (x.sin() - 0.05 * x**2).sum(), [0.3, 1.0]),
    "narrow feasible region": (lambda x: (x + th.log(1.0 - 100.0 * (x**2).sum())).sum(), [0.0]),
    "barrier": (lambda x: th.where((x < 0.01).all(), x.sum(), th.tensor(math.nan).double()), [0.0]),
}


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("name", list(OBJECTIVES))
def test_result_is_the_best_of_the_feasible_trials(name, rule):
    function, start = OBJECTIVES[name]
    result, calls = search(function, start, rule)
    values = [function(theta).item() for theta in calls]
    best = max(value for value in values if math.isfinite(value))
    assert result.value.item() == pytest.approx(best, rel=1e-12)
    assert function(result.theta).item() == pytest.approx(best, rel=1e-12)
    start_value = function(th.as_tensor(start, dtype=th.float64)).item()
    assert result.improvement.item() == pytest.approx(best - start_value) and result.improvement.item() > 0.0
    assert result.step_size.item() > 0.0


@pytest.mark.parametrize("rule", RULES)
def test_concave_quadratic_reaches_its_maximum(rule):
    result, _ = search(lambda x: -0.5 * ((x - 3.0) ** 2).sum(), [0.0], rule)
    assert result.value.item() == pytest.approx(0.0, abs=1e-3)


def test_parabola_is_exact_after_one_trial_on_a_quadratic():
    # dL(eps) = eps - eps^2 / 8 has its maximum at eps = 4, beyond what doubling reaches in one trial
    result, calls = search(lambda x: -0.5 * 0.25 * ((x - 4.0) ** 2).sum(), [0.0], initial_step=3.9)
    assert result.theta.item() == pytest.approx(4.0, abs=1e-9)
    assert len(calls) == 3


def test_parabolic_step_rule_by_hand():
    steps = parabolic_steps(1.0, tol=1e-4)
    assert next(steps) == 1.0
    assert steps.send(0.9) == 2.0  # 0.9 > 3/4: grow by eta = 2
    assert steps.send(1.2) == pytest.approx(4.0 / (2.0 * 0.8))  # vertex of the parabola
    assert steps.send(math.nan) == pytest.approx(1.25)  # rejected: halve
    assert steps.send(1.2 + 2e-4) == pytest.approx(1.25 * 2)  # compared with 1.2, which the rejected trial left alone
    with pytest.raises(StopIteration):
        steps.send(1.2 + 2e-4)


@pytest.mark.parametrize("bad_value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("rule", RULES)
def test_objective_that_is_never_finite_returns_exactly_the_start(rule, bad_value):
    start = th.tensor([0.1, 0.2])
    result = line_search(
        lambda theta: th.tensor([bad_value], dtype=th.float64),
        start,
        th.tensor([5.0], dtype=th.float64),
        th.ones(2),
        th.tensor([2.0], dtype=th.float64),
        rule=rule,
    )
    assert th.equal(result.theta, start)
    assert result.improvement.item() == 0.0 and result.value.item() == 5.0 and result.step_size.item() == 0.0


@pytest.mark.parametrize("rule", RULES)
def test_rejected_trials_do_not_end_the_search(rule):
    # Infeasible beyond 1e-4: the first dozen trials are rejected
    result, _ = search(lambda x: th.where(x.sum() < 1e-4, x.sum(), th.tensor(math.nan).double()), [0.0], rule, tol=1e-9)
    assert 5e-5 < result.improvement.item() < 1e-4


@pytest.mark.parametrize("rule", RULES)
def test_flat_function_returns_the_start(rule):
    start = th.tensor([1.0, 2.0], dtype=th.float64)
    value = th.tensor([3.0], dtype=th.float64)
    result = line_search(lambda theta: value, start, value, th.ones(2), th.tensor([2.0]).double(), rule=rule)
    assert th.equal(result.theta, start) and result.improvement.item() == 0.0


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("slope", [0.0, -1.0, math.nan, math.inf])
def test_direction_that_does_not_ascend_is_not_tried(rule, slope):
    def never(theta):
        raise AssertionError("evaluated")

    start = th.tensor([1.0])
    result = line_search(never, start, th.zeros(1).double(), -th.ones(1), th.tensor([slope]).double(), rule=rule)
    assert th.equal(result.theta, start) and result.n_evals == 0


@pytest.mark.parametrize("rule", RULES)
def test_iteration_limit(rule):
    result, calls = search(lambda x: 1e6 * x.sum(), [0.0], rule, max_iter=7)
    assert len(calls) == 7 and result.improvement.item() > 0.0


@pytest.mark.parametrize("rule", RULES)
def test_measured_at_the_parameters_as_stored(rule):
    seen = []

    def objective(theta):
        seen.append(theta)
        return -((theta.double() - 1.0) ** 2).sum().reshape(1)

    start = th.zeros(1, dtype=th.float32)
    result = line_search(objective, start, -th.ones(1).double(), th.full((1,), 2.0), th.tensor([4.0]).double(), rule=rule)
    assert all(theta.dtype == th.float32 for theta in seen) and result.theta.dtype == th.float32
    assert result.value.item() == -((result.theta.double() - 1.0) ** 2).item()


@pytest.mark.parametrize("rule", RULES)
def test_groups_search_as_if_alone(rule):
    group_index = th.tensor([0, 1, 1, 2])
    targets, curvatures = th.tensor([3.0, -1.0, 0.5, 7.0]).double(), th.tensor([1.0, 40.0, 40.0, 0.02]).double()

    def value_of(theta):
        terms = -0.5 * curvatures * (theta - targets) ** 2
        return th.zeros(3, dtype=th.float64).index_add(0, group_index, terms)

    start = th.zeros(4, dtype=th.float64)
    gradient = curvatures * (targets - start)
    slope = th.zeros(3, dtype=th.float64).index_add(0, group_index, gradient**2)
    together = line_search(value_of, start, value_of(start), gradient, slope, group_index, rule)
    for group in range(3):
        mine = group_index == group

        def value_alone(theta, mine=mine):
            return (-0.5 * curvatures[mine] * (theta - targets[mine]) ** 2).sum().reshape(1)

        alone = line_search(
            value_alone,
            start[mine],
            value_of(start)[[group]],
            gradient[mine],
            slope[[group]],
            rule=rule,
        )
        th.testing.assert_close(together.theta[mine], alone.theta)
        th.testing.assert_close(together.step_size[[group]], alone.step_size)


def test_a_group_without_slope_does_not_disturb_the_others():
    group_index = th.tensor([0, 1])
    start = th.tensor([0.0, 5.0], dtype=th.float64)

    def value_of(theta):
        return th.stack([-((theta[0] - 1.0) ** 2), theta[1] * math.nan])

    result = line_search(
        value_of,
        start,
        th.tensor([-1.0, 0.0]).double(),
        th.tensor([2.0, math.nan]).double(),
        th.tensor([4.0, math.nan]).double(),
        group_index,
    )
    assert result.theta[1].item() == 5.0 and result.theta[0].item() == pytest.approx(1.0, abs=0.05)


@pytest.mark.parametrize("rule", RULES)
def test_initial_step_that_underflows_returns_the_start(rule):
    result, _ = search(lambda x: x.sum(), [0.0], rule, initial_step=1e-308)
    assert 0.0 <= result.improvement.item() < 1e-290


def test_a_finite_overshoot_shrinks_the_step_by_no_more_than_ten():
    """The parabola through a point far below says nothing of the scale near the start."""
    steps = parabolic_steps(1.0, 1e-4)
    assert next(steps) == 1.0
    assert steps.send(-3.8e28) == pytest.approx(0.1)


@pytest.mark.parametrize("overshoots", [[-100.0, -200.0], [-1e-5, -1e-5, -1e-5], [-3.8e28] * 3, [-1.0, -math.inf, -2.0]])
def test_no_overshoot_ends_the_search(overshoots):
    """Far from the start the objective need not rise again towards it, as where one episode has all the weight."""
    steps = parabolic_steps(1.0, 1e-4)
    tried = [next(steps)]
    for improvement in overshoots:
        tried.append(steps.send(improvement))
        assert 0.1 <= tried[-1] / tried[-2] <= 0.5 + 1e-9
    steps.send(0.5 * tried[-1])
    with pytest.raises(StopIteration):
        steps.send(0.5 * tried[-1])


def test_a_search_ends_where_the_trials_promise_no_more_than_the_tolerance():
    start = th.zeros(1, dtype=th.float64)
    result = line_search(lambda x: -1.0 - x.abs(), start, th.zeros(1).double(), th.ones(1), th.ones(1).double(), tol=1e-4)
    assert th.equal(result.theta, start) and result.n_evals == 6  # 1, 1/6, then tenths of it: 30 without an end


@pytest.mark.parametrize("rule", RULES)
def test_a_plateau_far_below_the_start_is_left(rule):
    """As of weights: near the start the objective rises, and far away, where one weight is left, it has no trend."""
    result, _ = search(lambda x: th.where(x < 1e-3, x, -10.0 - th.sin(1e3 * x) ** 2).sum(), [0.0], rule, tol=1e-6)
    assert 5e-4 < result.improvement.item() < 1e-3


BOXES = {
    "wide": ([-9.0, -9.0, -9.0], [9.0, 9.0, 9.0]),
    "one limit": ([-math.inf, -math.inf, -math.inf], [0.5, math.inf, math.inf]),
    "two limits": ([-0.2, -math.inf, -0.1], [0.1, math.inf, math.inf]),
}


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("name", list(BOXES))
def test_search_in_a_box_is_the_search_over_the_projected_path(name, rule):
    """Against the same search, without a box, of what numpy's clipping makes of the objective, and against a grid."""
    target, curvature = np.array([2.0, 3.0, -4.0]), np.array([2.0, 0.5, 1.0])
    start, direction = np.zeros(3), curvature * target
    lower, upper = map(np.array, BOXES[name])
    trials = []

    def value_of(points):
        return -0.5 * (curvature * (points - target) ** 2).sum(-1)

    def objective(theta):
        trials.append(theta.numpy())
        return th.as_tensor(value_of(theta.numpy())).reshape(1)

    def clipped_objective(theta):
        return th.as_tensor(value_of(np.clip(theta.numpy(), lower, upper))).reshape(1)

    where = (th.as_tensor(start), th.as_tensor(value_of(start)).reshape(1), th.as_tensor(direction))
    slope = th.as_tensor((direction**2).sum()).reshape(1)
    box = Box(th.as_tensor(lower), th.as_tensor(upper))
    result = line_search(objective, *where, slope, rule=rule, box=box)
    oracle = line_search(clipped_objective, *where, slope, rule=rule)
    np.testing.assert_array_equal(result.theta, np.clip(oracle.theta.numpy(), lower, upper))
    assert result.value == oracle.value and result.n_evals == oracle.n_evals and result.step_size == oracle.step_size
    assert result.value.item() == value_of(result.theta.numpy()), "what was measured is what is kept"
    assert all((lower <= trial).all() and (trial <= upper).all() for trial in trials)
    path = np.clip(np.linspace(0.0, 5.0, 20_001)[:, None] * direction, lower, upper)
    highest = value_of(path).max()
    assert value_of(start) < result.value.item() <= highest + 1e-6
    if name != "wide":
        assert (np.abs(result.theta.numpy() - direction * result.step_size.item()) > 0.01).any(), "a limit was met"


@pytest.mark.parametrize("rule", RULES)
def test_limits_that_are_not_met_change_nothing(rule):
    def function(x):
        return (x.sin() - 0.05 * x**2).sum()

    box = Box(th.tensor([-50.0, -math.inf]).double(), th.tensor([50.0, 50.0]).double())
    without, within = (search(function, [0.3, 1.0], rule, **kwargs)[0] for kwargs in ({}, dict(box=box)))
    assert th.equal(without.theta, within.theta) and without.n_evals == within.n_evals


def test_what_a_box_leaves_of_a_direction():
    box = Box(th.tensor([0.0, 0.0, 0.0, 0.0, -math.inf]), th.tensor([1.0, 1.0, 1.0, 1.0, math.inf]))
    theta = th.tensor([0.0, 0.0, 1.0, 1.0, 7.0])
    left = box.inward(theta, th.tensor([-2.0, 2.0, -3.0, 3.0, 5.0]))
    assert left.tolist() == [0.0, 2.0, -3.0, 0.0, 5.0]
