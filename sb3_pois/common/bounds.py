"""
High-confidence lower bounds of the target policy's expected return: estimate minus penalty.

With c = sqrt((1 - delta) / delta), the penalty is c times a scale of the returns times 1 / sqrt(effective sample size)
(Metelli et al. 2018, theorem 4.1 and equations 8-12). With returns that are not centred, the true largest absolute
return and a target chosen beforehand, the ``max-d2`` bound holds with probability 1 - delta. With the empirical
maximum, centred returns and the maximisation over targets it guides the search and is no longer that theorem's bound.
"""

import math
from collections.abc import Callable
from typing import NamedTuple

import torch as th

from sb3_pois.common.estimators import ESTIMATORS
from sb3_pois.common.importance import effective_sample_size

# The scale of the returns that a bound multiplies with, from returns of shape (n_episodes,)
ReturnScale = Callable[[th.Tensor], th.Tensor]


LOG_SMALLEST_WEIGHT = math.log(th.finfo(th.float64).tiny)


class Bound(NamedTuple):
    """
    What a surrogate subtracts from its estimate.

    :param return_scale: scale of the returns, or None for no penalty at all
    :param uses_divergence: whether the effective sample size is N / d2 rather than the weights' own
    """

    return_scale: ReturnScale | None
    uses_divergence: bool


class LowerBound(NamedTuple):
    """
    The lower bound at one target and its two parts, each of shape (...) as the weights have beyond the episodes.

    :param value: estimate minus penalty, in units of return; -inf where the target is not feasible
    :param estimate: estimated expected return of the target
    :param penalty: confidence penalty
    """

    value: th.Tensor
    estimate: th.Tensor
    penalty: th.Tensor


def largest_absolute_return(returns: th.Tensor) -> th.Tensor:
    """
    Largest absolute return of the batch, the empirical stand-in for the supremum in the theorem.

    :param returns: episode returns, shape (n_episodes,)
    :return: a scalar in units of return
    """
    return returns.abs().max()


def return_std(returns: th.Tensor) -> th.Tensor:
    """
    Population standard deviation of the returns.

    :param returns: episode returns, shape (n_episodes,)
    :return: a scalar in units of return
    """
    return returns.std(correction=0)


BOUNDS: dict[str, Bound] = {
    "J": Bound(None, uses_divergence=False),
    "max-d2": Bound(largest_absolute_return, uses_divergence=True),
    "std-d2": Bound(return_std, uses_divergence=True),
    "max-ess": Bound(largest_absolute_return, uses_divergence=False),
    "std-ess": Bound(return_std, uses_divergence=False),
}


def penalty(bound: str, returns: th.Tensor, log_weights: th.Tensor, log_d2: th.Tensor | None, delta: float) -> th.Tensor:
    r"""
    Confidence penalty, :math:`\sqrt{(1 - \delta) / \delta}` times return scale over root effective sample size.

    ============ ===============================================
    ``J``        0
    ``max-d2``   ``c max_i |R_i| sqrt(d2 / N)``
    ``std-d2``   ``c std(R) sqrt(d2 / N)``
    ``max-ess``  ``c max_i |R_i| / sqrt(ESS)``
    ``std-ess``  ``c std(R) / sqrt(ESS)``
    ============ ===============================================

    At delta = 1 the penalty and its gradient are exactly 0, also where the divergence is infinite.

    :param bound: name of the bound
    :param returns: episode returns, shape (n_episodes,)
    :param log_weights: log importance weights, shape (n_episodes, ...)
    :param log_d2: log exponentiated Rényi divergence of order 2, shape (...); only the ``d2`` bounds need it
    :param delta: 1 minus the confidence, in (0, 1]
    :return: penalty in units of return, shape (...)
    :raises ValueError: if the bound is unknown or lacks its divergence, or delta lies outside (0, 1]
    """
    check_bound(bound)
    check_delta(delta)
    return_scale, uses_divergence = BOUNDS[bound]
    if uses_divergence and log_d2 is None:
        raise ValueError(f"log_d2 is None, but the bound {bound!r} needs the divergence")
    if return_scale is None or delta == 1.0:
        return th.zeros_like(log_weights[0])
    confidence_factor = math.sqrt((1.0 - delta) / delta)
    if log_d2 is not None and uses_divergence:
        root_inverse_ess = th.exp(0.5 * (log_d2 - math.log(returns.shape[0])))
    else:
        root_inverse_ess = effective_sample_size(log_weights).rsqrt()
    return confidence_factor * return_scale(returns) * root_inverse_ess


def lower_bound(
    bound: str, iw_norm: str, returns: th.Tensor, log_weights: th.Tensor, log_d2: th.Tensor | None, delta: float
) -> LowerBound:
    """
    Lower bound of the target's expected return, the surrogate that POIS climbs: estimate minus penalty.

    A target is feasible when its bound is finite, not all of its weights underflow and, for the bounds with a divergence,
    its divergence is finite (at delta = 1 too). The value of one that is not is -inf.

    :param bound: name of the bound, see :func:`penalty`
    :param iw_norm: name of the estimator: ``none``, ``sn`` or ``regression``
    :param returns: episode returns, shape (n_episodes,)
    :param log_weights: log importance weights, shape (n_episodes, ...)
    :param log_d2: log exponentiated Rényi divergence of order 2, shape (...); only the ``d2`` bounds need it
    :param delta: 1 minus the confidence, in (0, 1]
    :return: value, estimate and penalty, each of shape (...)
    :raises ValueError: if the bound is unknown or lacks its divergence, the estimator is unknown, or delta lies
        outside (0, 1]
    """
    check_iw_norm(iw_norm)
    estimate = ESTIMATORS[iw_norm](log_weights, returns)
    confidence_penalty = penalty(bound, returns, log_weights, log_d2, delta)
    value = estimate - confidence_penalty
    # Where every weight underflows, the batch says nothing of the target, and no weight of the next batch would be finite
    feasible = th.isfinite(value) & (th.logsumexp(log_weights, dim=0) > LOG_SMALLEST_WEIGHT)
    if log_d2 is not None and BOUNDS[bound].uses_divergence:
        feasible = feasible & th.isfinite(log_d2)
    return LowerBound(th.where(feasible, value, th.full_like(value, -math.inf)), estimate, confidence_penalty)


def check_bound(bound: str) -> None:
    """
    Refuse a bound that does not exist.

    :param bound: name of the bound
    :raises ValueError: if it is unknown
    """
    if bound not in list(BOUNDS):  # a dict would hash whatever was given
        raise ValueError(f"bound is {bound!r}, but allowed are {', '.join(map(repr, BOUNDS))}")


def check_delta(delta: float) -> None:
    """
    Refuse a confidence parameter outside its range.

    :param delta: 1 minus the confidence
    :raises ValueError: if it lies outside (0, 1]
    """
    if not 0.0 < delta <= 1.0:
        raise ValueError(f"delta is {delta}, but must lie in (0, 1]")


def check_iw_norm(iw_norm: str) -> None:
    """
    Refuse an estimator that does not exist.

    :param iw_norm: name of the estimator
    :raises ValueError: if it is unknown
    """
    if iw_norm not in ESTIMATORS:
        raise ValueError(f"iw_norm is {iw_norm!r}, but allowed are {', '.join(map(repr, ESTIMATORS))}")
