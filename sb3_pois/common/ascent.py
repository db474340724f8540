"""
Offline optimisation of a surrogate: everything POIS does between two batches (Metelli et al. 2018, algorithms 1 and 2).

Knows flat parameter vectors and callables only. The surrogates that are climbed are in ``surrogate.py``.
"""

import math
from collections.abc import Callable
from typing import NamedTuple, Protocol

import torch as th

from sb3_pois.common.line_search import Box, line_search


class SurrogateFunction(Protocol):
    """A function of the target parameters with one value per group of parameters (one group unless stated)."""

    def value(self, theta: th.Tensor) -> th.Tensor:
        """
        Evaluate without a gradient.

        :param theta: target parameters, shape (n_params,)
        :return: float64 values, shape (n_groups,); not finite where the target is not feasible
        """

    def value_and_gradient(self, theta: th.Tensor) -> tuple[th.Tensor, th.Tensor]:
        """
        Evaluate with the gradient of the sum of all groups' values.

        :param theta: target parameters, shape (n_params,)
        :return: float64 values, shape (n_groups,), and float64 gradient, shape (n_params,)
        """


class OptimizationResult(NamedTuple):
    """
    Where an offline optimisation ended.

    :param theta: parameters with every group at its best, shape (n_params,)
    :param value_before: surrogate at the start, shape (n_groups,)
    :param value: surrogate at ``theta``, nowhere below ``value_before``, shape (n_groups,)
    :param grad_norm: norm of the first gradient, shape (n_groups,)
    :param step_size: last step that was taken, 0 where there was none, shape (n_groups,)
    :param n_iters: number of line searches
    :param n_evals: number of evaluations of the surrogate in line searches
    """

    theta: th.Tensor
    value_before: th.Tensor
    value: th.Tensor
    grad_norm: th.Tensor
    step_size: th.Tensor
    n_iters: int
    n_evals: int

    @property
    def is_success(self) -> th.Tensor:
        """Whether the surrogate improved, shape (n_groups,)."""
        return self.value > self.value_before


# Maps (theta, gradient), both of shape (n_params,), to an ascent direction of shape (n_params,)
Direction = Callable[[th.Tensor, th.Tensor], th.Tensor]


def gradient_direction(theta: th.Tensor, gradient: th.Tensor) -> th.Tensor:
    """
    Steepest ascent.

    :param theta: target parameters, shape (n_params,)
    :param gradient: gradient of the surrogate, shape (n_params,)
    :return: the gradient
    """
    return gradient


def optimize_offline(
    surrogate: SurrogateFunction,
    theta: th.Tensor,
    direction: Direction = gradient_direction,
    group_index: th.Tensor | None = None,
    n_iters: int = 10,
    rule: str = "parabolic",
    max_iter: int = 30,
    tol: float = 1e-4,
    gradient_tol: float = 1e-4,
    initial_step: float = 1.0,
    box: Box | None = None,
) -> OptimizationResult:
    """
    Climb a surrogate from the behavioral parameters by repeated {gradient, direction, line search}.

    Each group of parameters stops for good when the norm of its gradient falls below ``gradient_tol`` or is not finite,
    or when a line search gains less than ``tol``. No group ever ends below its start. Within a box, gradient and direction
    are 0 where a parameter is at its limit and would leave it, so that the others go on.

    :param surrogate: function to climb
    :param theta: behavioral parameters, shape (n_params,)
    :param direction: turns a gradient into an ascent direction; where it does not ascend, the gradient takes its place
    :param group_index: group of each parameter, int64, shape (n_params,); None for a single group
    :param n_iters: largest number of line searches
    :param rule: step rule of the line search, ``parabolic`` or ``binary``
    :param max_iter: largest number of trials of one line search
    :param tol: least gain, in units of the surrogate
    :param gradient_tol: least gradient norm
    :param initial_step: gain that the first trial of a line search promises, in units of the surrogate
    :param box: limits of the parameters; the behavioral ones have to lie within them
    :return: the best parameters and how they were found
    """
    if box is None:
        box = Box(th.full_like(theta, -math.inf), th.full_like(theta, math.inf))
    value, gradient = surrogate.value_and_gradient(theta)
    value_before, first_grad_norm = value, _free_norm(theta, gradient, group_index, box)
    grad_norm = first_grad_norm
    active = th.ones_like(value, dtype=th.bool)
    step_size = th.zeros_like(value)
    n_searches = n_evals = 0
    while n_searches < n_iters:
        active = active & th.isfinite(grad_norm) & (grad_norm >= gradient_tol)
        if not active.any():
            break
        ascent, slope = _ascent_direction(direction, theta, gradient, group_index, box)
        result = line_search(
            surrogate.value, theta, value, ascent, slope * active, group_index, rule, max_iter, tol, initial_step, box
        )
        n_searches += 1
        n_evals += result.n_evals
        theta, value = result.theta, result.value
        step_size = th.where(result.improvement > 0.0, result.step_size, step_size)
        active = active & (result.improvement >= tol)
        if n_searches < n_iters and active.any():
            _, gradient = surrogate.value_and_gradient(theta)
            grad_norm = _free_norm(theta, gradient, group_index, box)
    return OptimizationResult(theta, value_before, value, first_grad_norm, step_size, n_searches, n_evals)


def _ascent_direction(
    direction: Direction, theta: th.Tensor, gradient: th.Tensor, group_index: th.Tensor | None, box: Box
) -> tuple[th.Tensor, th.Tensor]:
    """Direction within the box and slope per group; a group in which the direction does not ascend takes the gradient."""
    free_gradient = box.inward(theta, gradient)
    ascent = box.inward(theta, direction(theta, free_gradient))
    slope = _sum_groups(gradient * ascent, group_index)
    ascends = th.isfinite(slope) & (slope > 0.0)
    ascent = th.where(ascends if group_index is None else ascends[group_index], ascent, free_gradient)
    slope = th.where(ascends, slope, _sum_groups(free_gradient**2, group_index))
    return ascent, slope


def _free_norm(theta: th.Tensor, gradient: th.Tensor, group_index: th.Tensor | None, box: Box) -> th.Tensor:
    """Norm of what the box leaves of each group's gradient, shape (n_groups,)."""
    return _sum_groups(box.inward(theta, gradient) ** 2, group_index).sqrt()


def _sum_groups(values: th.Tensor, group_index: th.Tensor | None) -> th.Tensor:
    """Sum over the parameters of each group: (n_params,) to (n_groups,)."""
    if group_index is None:
        return values.sum(0, keepdim=True)
    n_groups = int(group_index.max()) + 1
    return th.zeros(n_groups, dtype=values.dtype, device=values.device).index_add(0, group_index, values)
