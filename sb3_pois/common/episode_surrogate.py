"""The lower bound as a function of the target parameters, for one batch of episodes."""

from abc import ABC, abstractmethod
from typing import NamedTuple

import torch as th

from sb3_pois.common.bounds import BOUNDS, lower_bound
from sb3_pois.common.importance import effective_sample_size, importance_weights


class EpisodeTerms(NamedTuple):
    """
    All that the lower bound needs to know of a target.

    :param log_weights: log importance weights, float64, shape (n_episodes, n_groups)
    :param log_d2: log exponentiated Rényi divergence of order 2, float64, shape (n_groups,); None if not asked for
    """

    log_weights: th.Tensor
    log_d2: th.Tensor | None


class EpisodeSurrogate(ABC):
    """
    Surrogate of one batch (a :class:`~sb3_pois.common.surrogate.SurrogateFunction`).

    :param returns: episode returns, float64, shape (n_episodes,)
    :param bound: name of the bound
    :param iw_norm: name of the estimator
    :param delta: 1 minus the confidence, in (0, 1]
    """

    def __init__(self, returns: th.Tensor, bound: str, iw_norm: str, delta: float) -> None:
        self.returns = returns
        self.bound = bound
        self.iw_norm = iw_norm
        self.delta = delta
        self.uses_divergence = BOUNDS[bound].uses_divergence

    @property
    def n_episodes(self) -> int:
        """Number of episodes of the batch."""
        return len(self.returns)

    @abstractmethod
    def episode_terms(self, theta: th.Tensor, with_divergence: bool) -> EpisodeTerms:
        """
        Log weights and divergence of a target, differentiable in it.

        :param theta: target parameters, shape (n_params,)
        :param with_divergence: whether the divergence is needed
        :return: the terms
        """

    def bound_of_terms(self, terms: EpisodeTerms) -> th.Tensor:
        """
        Lower bound from the episodes' terms.

        :param terms: log weights and divergence of a target
        :return: float64 values, shape (n_groups,); -inf where the target is not feasible
        """
        return lower_bound(self.bound, self.iw_norm, self.returns, *terms, self.delta).value

    def value(self, theta: th.Tensor) -> th.Tensor:
        """
        Lower bound of a target.

        :param theta: target parameters, shape (n_params,)
        :return: float64 values, shape (n_groups,); -inf where the target is not feasible
        """
        with th.no_grad():
            return self.bound_of_terms(self.episode_terms(theta, self.uses_divergence))

    def value_and_gradient(self, theta: th.Tensor) -> tuple[th.Tensor, th.Tensor]:
        """
        Lower bound of a target and the gradient of its sum over the groups.

        :param theta: target parameters, shape (n_params,)
        :return: float64 values, shape (n_groups,), and float64 gradient, shape (n_params,)
        """
        theta = theta.detach().requires_grad_()
        value = self.bound_of_terms(self.episode_terms(theta, self.uses_divergence))
        (gradient,) = th.autograd.grad(value.sum(), theta)
        return value.detach(), gradient.double()

    def diagnostics(self, theta: th.Tensor) -> dict[str, float]:
        """
        What the importance weights of a target say about the sample that its surrogate rests on.

        :param theta: target parameters, shape (n_params,)
        :return: means over the groups of ``penalty``, ``ess``, ``d2`` and of mean, maximum and standard deviation of the
            importance weights; with several groups also ``ess_min``
        """
        with th.no_grad():
            terms = self.episode_terms(theta, with_divergence=True)
            weights = importance_weights(terms.log_weights)
            ess = effective_sample_size(terms.log_weights)
            penalty = lower_bound(self.bound, self.iw_norm, self.returns, *terms, self.delta).penalty
            assert terms.log_d2 is not None
            values = {
                "penalty": penalty,
                "ess": ess,
                "d2": terms.log_d2.exp(),
                "max_importance_weight": weights.amax(0),
                "mean_importance_weight": weights.mean(0),
                "std_importance_weight": weights.std(0, correction=0),
            }
            means = {name: float(value.mean()) for name, value in values.items()}
            if ess.numel() > 1:
                means["ess_min"] = float(ess.min())
        return means
