r"""
Step-size searches along one direction (Metelli et al. 2018, appendix on the parabolic line search).

The step is measured by the gain that a linear model of the surrogate predicts: with slope :math:`g \cdot d`, a step
:math:`\epsilon` moves the parameters by :math:`\alpha d` with :math:`\alpha = \epsilon / (g \cdot d)`, so epsilon is in
units of return whatever the parametrisation. Parameters may come in groups, each with an objective and a step of its
own (N-POIS); all groups are tried together, one evaluation per trial.

A *step rule* is a generator that yields the next epsilon to try and is sent the improvement found there, NaN where the
trial was rejected because the objective is not finite. It ends when it is satisfied.
"""

import math
from collections.abc import Callable, Generator
from typing import NamedTuple

import torch as th

StepRule = Callable[[float, float], Generator[float, float, None]]

SMALLEST_STEP = 1e-300
LARGEST_SHRINKAGE = 0.1


class Box(NamedTuple):
    """
    Limits within which parameters are searched.

    :param lower: smallest values, in the parameters' type, shape (n_params,); -inf where there is no limit
    :param upper: largest values, in the parameters' type, shape (n_params,); +inf where there is no limit
    """

    lower: th.Tensor
    upper: th.Tensor

    def project(self, theta: th.Tensor) -> th.Tensor:
        """
        Nearest point of the box.

        :param theta: parameters, shape (n_params,)
        :return: parameters of which each is within its limits, shape (n_params,)
        """
        return th.clamp(theta, self.lower, self.upper)

    def inward(self, theta: th.Tensor, direction: th.Tensor) -> th.Tensor:
        """
        What is left of a direction where a parameter is at its limit and the direction leads out of it.

        :param theta: parameters within the box, shape (n_params,)
        :param direction: any direction, shape (n_params,)
        :return: the direction, 0 in those parameters, shape (n_params,)
        """
        leads_out = (theta <= self.lower) & (direction < 0.0) | (theta >= self.upper) & (direction > 0.0)
        return direction.masked_fill(leads_out, 0.0)


class LineSearchResult(NamedTuple):
    """
    Where a line search ended.

    :param theta: the best feasible improving point, or exactly the start, shape (n_params,)
    :param value: objective there, shape (n_groups,)
    :param improvement: gain over the start, 0 where nothing improved, shape (n_groups,)
    :param step_size: step alpha that was taken, 0 where nothing improved, shape (n_groups,)
    :param n_evals: number of evaluations of the objective
    """

    theta: th.Tensor
    value: th.Tensor
    improvement: th.Tensor
    step_size: th.Tensor
    n_evals: int


def parabolic_steps(initial_step: float, tol: float, eta: float = 2.0) -> Generator[float, float, None]:
    r"""
    Step rule that jumps to the vertex of the parabola through the start, its slope and the last trial.

    .. math::

        \epsilon' = \begin{cases} \eta \epsilon & \text{if } \Delta L > \epsilon (2 \eta - 1) / (2 \eta) \\
        \epsilon^2 / (2 (\epsilon - \Delta L)) & \text{otherwise} \end{cases}

    (The inequality in the paper's pseudo-code has the sign of its derivation wrong.) Epsilon shrinks by no more than a
    factor of ten: the parabola through a point far below says nothing of the scale near the start. Ends when a trial gains
    no more than ``tol`` over the last one that gained, or when one gains nothing although it promised no more than ``tol``.
    So no overshoot, however large, ends it. A rejected trial halves epsilon and is otherwise forgotten.

    :param initial_step: first epsilon, in units of return
    :param tol: least gain from trial to trial, in units of return
    :param eta: largest growth of epsilon from trial to trial
    :return: generator of steps
    """
    step, previous = initial_step, -math.inf
    while SMALLEST_STEP < step < math.inf:
        improvement = yield step
        if not math.isfinite(improvement):
            step /= 2.0
            continue
        if improvement <= previous + tol or (improvement <= 0.0 and step <= tol):
            return
        if improvement > 0.0:
            previous = improvement
        if improvement > step * (2.0 * eta - 1.0) / (2.0 * eta):
            step *= eta
        else:
            step = max(step**2 / (2.0 * (step - improvement)), LARGEST_SHRINKAGE * step)


def binary_steps(initial_step: float, tol: float) -> Generator[float, float, None]:
    """
    Step rule that doubles the step until it gets worse, then bisects between the best step and the worse one.

    Ends when the two are no more than ``tol`` apart: where the objective is concave, no more than that is left to gain.

    :param initial_step: first epsilon, in units of return
    :param tol: least gain that keeps the search going, in units of return
    :return: generator of steps
    """
    best_step, best, worse_step = 0.0, 0.0, math.inf
    step = initial_step
    while step < math.inf and worse_step - best_step > max(tol, SMALLEST_STEP):
        improvement = yield step
        if improvement > best:
            best_step, best = step, improvement
        else:  # worse, or rejected
            worse_step = step
        step = 2.0 * best_step if worse_step == math.inf else 0.5 * (best_step + worse_step)


STEP_RULES: dict[str, StepRule] = {"parabolic": parabolic_steps, "binary": binary_steps}


def line_search(
    objective: Callable[[th.Tensor], th.Tensor],
    start: th.Tensor,
    start_value: th.Tensor,
    direction: th.Tensor,
    slope: th.Tensor,
    group_index: th.Tensor | None = None,
    rule: str = "parabolic",
    max_iter: int = 30,
    tol: float = 1e-4,
    initial_step: float = 1.0,
    box: Box | None = None,
) -> LineSearchResult:
    """
    Search along a direction for the best point, in each group of parameters on its own.

    Every trial is evaluated at parameters of the start's dtype, as they would be stored, so what is measured is what is
    kept. The result is never worse than the start, whatever the objective returns. Nothing is changed in place. Within a
    box the search follows the direction's projection: a parameter that has come to its limit waits there for the others.

    :param objective: maps parameters of shape (n_params,) to one value per group, shape (n_groups,), float64; a value
        that is not finite rejects the trial for that group. Each group's value depends on that group's parameters only.
    :param start: parameters to start from, shape (n_params,)
    :param start_value: objective at the start, shape (n_groups,)
    :param direction: direction to search along, shape (n_params,)
    :param slope: derivative of each group's objective along the direction, shape (n_groups,); groups whose slope is not
        positive and finite stay where they are
    :param group_index: group of each parameter, int64, shape (n_params,); None for a single group
    :param rule: ``parabolic`` or ``binary``
    :param max_iter: largest number of trials
    :param tol: least gain that keeps the search going, in the objective's unit
    :param initial_step: gain that the first trial's linear prediction promises, in the objective's unit
    :param box: limits of the parameters; the start has to lie within them
    :return: the best point and what was found there
    """
    step_rules = [STEP_RULES[rule](initial_step, tol) for _ in range(len(slope))]
    steps: list[float | None] = [
        next(steps_of_group, None) if 0.0 < slope_of_group < math.inf else None
        for steps_of_group, slope_of_group in zip(step_rules, slope.tolist(), strict=True)
    ]
    theta, value = start, start_value
    step_size = th.zeros_like(slope)
    n_evals = 0
    while n_evals < max_iter and any(step is not None for step in steps):
        tried = th.tensor([step is not None for step in steps], device=slope.device)
        trial_size = th.tensor([step or 0.0 for step in steps], dtype=slope.dtype, device=slope.device)
        trial_size = th.where(tried, trial_size / slope, th.zeros_like(slope))
        size_of_parameter = trial_size if group_index is None else trial_size[group_index]
        trial = (start.double() + size_of_parameter * direction.double()).to(start.dtype)
        if box is not None:
            trial = box.project(trial)
        trial_value = objective(trial)
        n_evals += 1

        better = tried & th.isfinite(trial_value) & (trial_value > value)
        theta = th.where(better if group_index is None else better[group_index], trial, theta)
        value = th.where(better, trial_value, value)
        step_size = th.where(better, trial_size, step_size)
        for group, improvement in enumerate((trial_value - start_value).tolist()):
            if steps[group] is not None:
                steps[group] = _next_step(step_rules[group], improvement)
    return LineSearchResult(theta, value, value - start_value, step_size, n_evals)


def _next_step(steps: Generator[float, float, None], improvement: float) -> float | None:
    """Tell a step rule what its last trial gained; None when it has ended."""
    try:
        return steps.send(improvement)
    except StopIteration:
        return None
