"""
High-confidence lower bounds of the target policy's expected return: estimate minus penalty.

With c = sqrt((1 - delta) / delta), the penalty is c times a scale of the returns times 1 / sqrt(effective sample size)
(Metelli et al. 2018, theorem 4.1 and equations 8-12). With returns that are not centred, the true largest absolute
return, a known divergence and a target chosen beforehand, the ``max-d2`` bound holds with probability 1 - delta. PPOIS
knows its divergence, APOIS estimates it. With the empirical maximum, centred returns and the maximisation over targets
the bound guides the search and is no longer that theorem's.

A new bound is a function here and its row in ``BOUNDS``.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import torch as th

from sb3_pois.common.arguments import check_choice, check_number
from sb3_pois.common.estimators import ESTIMATORS
from sb3_pois.common.importance import effective_sample_size

LOG_SMALLEST_WEIGHT = math.log(th.finfo(th.float64).tiny)


@dataclass(frozen=True, kw_only=True)
class Terms:
    """
    What an objective needs to know of a target.

    :param log_weights: log importance weights of what is weighted, of episodes or of their steps, float64,
        shape (n_weights, ...)
    :param log_d2: log exponentiated Rényi divergence of order 2 of whole episodes, float64, shape (...); None if not asked
        for
    :param second_moment: bound on the second moment of what an episode contributes to the estimate, float64, shape (...),
        where that is not one weight times one return; None elsewhere
    """

    log_weights: th.Tensor
    log_d2: th.Tensor | None = None
    second_moment: th.Tensor | None = None

    def effective_share(self) -> th.Tensor:
        """
        Effective sample size of the weights over their number.

        :return: share in (0, 1], shape (...)
        """
        return effective_sample_size(self.log_weights) / len(self.log_weights)


def confidence_factor(delta: float) -> float:
    r"""
    Factor :math:`c = \sqrt{(1 - \delta) / \delta}` of Cantelli's inequality.

    :param delta: 1 minus the confidence, in (0, 1]
    :return: the factor
    """
    return math.sqrt((1.0 - delta) / delta)


def no_penalty(returns: th.Tensor, terms: Terms, delta: float) -> th.Tensor:
    """``J``: 0."""
    return th.zeros_like(terms.log_weights[0])


def max_d2_penalty(returns: th.Tensor, terms: Terms, delta: float) -> th.Tensor:
    """``max-d2``: c max_i abs(R_i) sqrt(d2 / N), the root being that of a bound on the estimate's variance."""
    if terms.second_moment is not None:
        return confidence_factor(delta) * (terms.second_moment / len(returns)).sqrt()
    return confidence_factor(delta) * returns.abs().max() * _root_inverse_divergence_ess(returns, terms)


def std_d2_penalty(returns: th.Tensor, terms: Terms, delta: float) -> th.Tensor:
    """``std-d2``: c std(R) sqrt(d2 / N), with the population standard deviation."""
    return confidence_factor(delta) * returns.std(correction=0) * _root_inverse_divergence_ess(returns, terms)


def max_ess_penalty(returns: th.Tensor, terms: Terms, delta: float) -> th.Tensor:
    """``max-ess``: c max_i abs(R_i) / sqrt(ESS)."""
    return confidence_factor(delta) * returns.abs().max() * _root_inverse_weights_ess(returns, terms)


def std_ess_penalty(returns: th.Tensor, terms: Terms, delta: float) -> th.Tensor:
    """``std-ess``: c std(R) / sqrt(ESS), with the population standard deviation."""
    return confidence_factor(delta) * returns.std(correction=0) * _root_inverse_weights_ess(returns, terms)


def _root_inverse_divergence_ess(returns: th.Tensor, terms: Terms) -> th.Tensor:
    """One over the root of the effective sample size N / d2 that the divergence gives."""
    assert terms.log_d2 is not None
    return th.exp(0.5 * (terms.log_d2 - math.log(len(returns))))


def _root_inverse_weights_ess(returns: th.Tensor, terms: Terms) -> th.Tensor:
    """One over the root of the effective sample size of the weights, in episodes."""
    return (effective_sample_size(terms.log_weights) * (len(returns) / len(terms.log_weights))).rsqrt()


class Bound(NamedTuple):
    """
    A penalty and what it needs.

    :param penalty: maps returns of shape (n_episodes,), terms and delta to the penalty in units of return, shape (...)
    :param needs_divergence: whether it reads the terms' divergence
    :param estimators: names of the estimators that it goes with
    """

    penalty: Callable[[th.Tensor, Terms, float], th.Tensor]
    needs_divergence: bool = False
    estimators: tuple[str, ...] = tuple(ESTIMATORS)


BOUNDS: dict[str, Bound] = {
    "J": Bound(no_penalty),
    "max-d2": Bound(max_d2_penalty, needs_divergence=True),
    "std-d2": Bound(std_d2_penalty, needs_divergence=True),
    "max-ess": Bound(max_ess_penalty),
    "std-ess": Bound(std_ess_penalty),
}


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


@dataclass(frozen=True)
class Objective:
    """
    What POIS climbs: the lower bound made of an estimator and a penalty.

    :param bound: name of the bound, a key of ``BOUNDS``
    :param iw_norm: name of the estimator, a key of ``ESTIMATORS``
    :param delta: 1 minus the confidence, in (0, 1]; at 1 the penalty and its gradient are exactly 0
    :param min_ess: least effective sample size of the weights of a feasible target, as a share of their number, in [0, 1)
    :raises ValueError: if a value is not allowed, or the bound does not go with the estimator
    """

    bound: str
    iw_norm: str
    delta: float
    min_ess: float = 0.0

    def __post_init__(self) -> None:
        check_number("delta", self.delta)
        if not 0.0 < self.delta <= 1.0:
            raise ValueError(f"delta is {self.delta}, but must lie in (0, 1]")
        check_number("min_ess", self.min_ess)
        if not 0.0 <= self.min_ess < 1.0:
            raise ValueError(f"min_ess is {self.min_ess}, but must lie in [0, 1)")
        check_choice("bound", self.bound, BOUNDS)
        check_choice("iw_norm", self.iw_norm, ESTIMATORS)
        allowed = BOUNDS[self.bound].estimators
        if self.iw_norm not in allowed:
            raise ValueError(
                f"iw_norm is {self.iw_norm!r}, but the bound {self.bound!r} goes with {', '.join(map(repr, allowed))} only"
            )

    @property
    def needs_divergence(self) -> bool:
        """Whether a target's divergence has to be known."""
        return BOUNDS[self.bound].needs_divergence

    def penalty(self, returns: th.Tensor, terms: Terms) -> th.Tensor:
        """
        Confidence penalty of a target.

        :param returns: episode returns, shape (n_episodes,)
        :param terms: what is known of the target
        :return: penalty in units of return, shape (...)
        :raises ValueError: if the bound lacks its divergence
        """
        if self.needs_divergence and terms.log_d2 is None:
            raise ValueError(f"log_d2 is None, but the bound {self.bound!r} needs the divergence")
        # At delta = 1 the factor is 0, but 0 times an infinite divergence would be NaN
        penalty = no_penalty if self.delta == 1.0 else BOUNDS[self.bound].penalty
        return penalty(returns, terms, self.delta)

    def lower_bound(self, returns: th.Tensor, terms: Terms) -> LowerBound:
        """
        Lower bound of a target's expected return.

        :param returns: episode returns, shape (n_episodes,)
        :param terms: what is known of the target
        :return: value, estimate and penalty, each of shape (...)
        :raises ValueError: if the bound lacks its divergence
        """
        return self.subtract_penalty(ESTIMATORS[self.iw_norm](terms.log_weights, returns), returns, terms)

    def subtract_penalty(self, estimate: th.Tensor, returns: th.Tensor, terms: Terms) -> LowerBound:
        """
        Lower bound from an estimate.

        A target is feasible when its bound is finite, not all of its weights underflow, their effective sample size is
        not below ``min_ess`` and, for the bounds with a divergence, its divergence is finite (at delta = 1 too). The value
        of one that is not is -inf.

        :param estimate: estimated expected return, shape (...)
        :param returns: episode returns, shape (n_episodes,)
        :param terms: what is known of the target
        :return: value, estimate and penalty, each of shape (...)
        :raises ValueError: if the bound lacks its divergence
        """
        penalty = self.penalty(returns, terms)
        value = estimate - penalty
        # Where every weight underflows, the batch says nothing of the target, and no weight of the next would be finite
        feasible = th.isfinite(value) & (th.logsumexp(terms.log_weights, dim=0) > LOG_SMALLEST_WEIGHT)
        if self.min_ess > 0.0:
            feasible = feasible & (terms.effective_share() >= self.min_ess)
        if terms.log_d2 is not None and self.needs_divergence:
            feasible = feasible & th.isfinite(terms.log_d2)
        return LowerBound(th.where(feasible, value, th.full_like(value, -math.inf)), estimate, penalty)
