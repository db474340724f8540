"""The lower bound as a function of the target parameters, for one batch of episodes."""

from abc import ABC, abstractmethod

import torch as th

from sb3_pois.common.bounds import LowerBound, Objective, Terms
from sb3_pois.common.importance import effective_sample_size, importance_weights


class Surrogate(ABC):
    """
    Surrogate of one batch (a :class:`~sb3_pois.common.ascent.SurrogateFunction`).

    :param returns: episode returns, float64, shape (n_episodes,)
    :param objective: what to climb
    """

    def __init__(self, returns: th.Tensor, objective: Objective) -> None:
        self.returns = returns
        self.objective = objective

    @property
    def n_episodes(self) -> int:
        """Number of episodes of the batch."""
        return len(self.returns)

    @abstractmethod
    def terms(self, theta: th.Tensor, with_divergence: bool) -> Terms:
        """
        What the objective needs to know of a target, differentiable in it.

        :param theta: target parameters, shape (n_params,)
        :param with_divergence: whether the divergence is needed
        :return: the terms, log weights of shape (n_episodes, n_groups)
        """

    def lower_bound(self, terms: Terms) -> LowerBound:
        """
        Lower bound of a target.

        :param terms: what is known of the target
        :return: value, estimate and penalty, float64, each of shape (n_groups,)
        """
        return self.objective.lower_bound(self.returns, terms)

    def value(self, theta: th.Tensor) -> th.Tensor:
        """
        Lower bound of a target.

        :param theta: target parameters, shape (n_params,)
        :return: float64 values, shape (n_groups,); -inf where the target is not feasible
        """
        with th.no_grad():
            return self.lower_bound(self.terms(theta, self.objective.needs_divergence)).value

    def value_and_gradient(self, theta: th.Tensor) -> tuple[th.Tensor, th.Tensor]:
        """
        Lower bound of a target and the gradient of its sum over the groups.

        :param theta: target parameters, shape (n_params,)
        :return: float64 values, shape (n_groups,), and float64 gradient, shape (n_params,)
        """
        theta = theta.detach().requires_grad_()
        value = self.lower_bound(self.terms(theta, self.objective.needs_divergence)).value
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
            terms = self.terms(theta, with_divergence=True)
            assert terms.log_d2 is not None
            weights = importance_weights(terms.log_weights)
            ess = effective_sample_size(terms.log_weights)
            values = {
                "penalty": self.lower_bound(terms).penalty,
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
