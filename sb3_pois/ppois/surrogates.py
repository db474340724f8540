r"""
The surrogate of PPOIS as a function of the hyperparameters.

With the noise z that an episode's controller parameters come from, theta = mean + std z, and with the target in the
behavioral hyperpolicy's units, mean' = mean + std a and std' = std / r, the log weight of a group of parameters is

.. math::

    \log w_i = \sum_j \Big[\frac{1 - r_j^2}{2} z_{ij}^2 + r_j^2 a_j z_{ij} - \frac{r_j^2 a_j^2}{2} + \log r_j\Big]

so all episodes' log weights are matrix products of the noise and of its squares with one vector each, and they are
exactly 0 at the behavioral hyperpolicy, where a = 0 and r = 1.
"""

import math

import numpy as np
import torch as th

from sb3_pois.common.divergences import gaussian_renyi_divergence
from sb3_pois.common.episode_surrogate import EpisodeSurrogate, EpisodeTerms
from sb3_pois.ppois.grouped_noise import GroupedNoise


class HyperpolicySurrogate(EpisodeSurrogate):
    """
    Surrogate of a batch as a function of the hyperparameters (mean, log_std), with one value per group of parameters.

    Groups that are still where the last gradient was taken keep what was found there, so that a line search costs less
    and less as group after group is done.

    :param mean: mean of the behavioral hyperpolicy, float64, shape (n_params,)
    :param log_std: log standard deviation of the behavioral hyperpolicy, float64, shape (n_params,)
    :param noise: noise of each episode, shape (n_episodes, n_params)
    :param returns: episode returns, float64, shape (n_episodes,)
    :param bound: name of the bound
    :param iw_norm: name of the estimator
    :param delta: 1 minus the confidence, in (0, 1]
    :param group_index: group of each controller parameter, shape (n_params,); None for a single group
    :ivar group_of_theta: group of each hyperparameter, shape (2 * n_params,)
    """

    def __init__(
        self,
        mean: np.ndarray,
        log_std: np.ndarray,
        noise: np.ndarray,
        returns: th.Tensor,
        bound: str,
        iw_norm: str,
        delta: float,
        group_index: np.ndarray | None = None,
    ) -> None:
        super().__init__(returns, bound, iw_norm, delta)
        device = returns.device
        if group_index is None:
            group_index = np.zeros(len(mean), dtype=np.int64)
        self.behavioral_mean = th.as_tensor(mean, device=device)
        self.behavioral_log_std = th.as_tensor(log_std, device=device)
        self.noise = GroupedNoise(noise, group_index, device)
        self.group_of_param = th.as_tensor(group_index, device=device)
        self.group_of_theta = self.group_of_param.repeat(2)
        self.all_groups = th.ones(self.noise.n_groups, dtype=th.bool, device=device)
        # Where the last gradient was taken, and what was found there; NaN differs from everything
        self.last_theta = th.full((2 * len(mean),), math.nan, dtype=th.float64, device=device)
        self.last_gradient = self.last_theta
        self.last_value = self.last_theta[: self.noise.n_groups]

    def episode_terms(self, theta: th.Tensor, with_divergence: bool) -> EpisodeTerms:
        return self._terms_of_groups(theta, with_divergence, self.all_groups)

    def value(self, theta: th.Tensor) -> th.Tensor:
        moved = self._moved_groups(theta)
        with th.no_grad():
            value = self.bound_of_terms(self._terms_of_groups(theta, self.uses_divergence, moved))
        return self.last_value.masked_scatter(moved, value)

    def value_and_gradient(self, theta: th.Tensor) -> tuple[th.Tensor, th.Tensor]:
        moved = self._moved_groups(theta)
        theta = theta.detach().requires_grad_()
        value = self.bound_of_terms(self._terms_of_groups(theta, self.uses_divergence, moved))
        (gradient,) = th.autograd.grad(value.sum(), theta)
        self.last_theta = theta.detach()
        self.last_value = self.last_value.masked_scatter(moved, value.detach())
        self.last_gradient = th.where(moved[self.group_of_theta], gradient, self.last_gradient)
        return self.last_value, self.last_gradient

    def _terms_of_groups(self, theta: th.Tensor, with_divergence: bool, groups: th.Tensor) -> EpisodeTerms:
        """Log weights and divergences of some groups, whose mask has the shape (n_groups,)."""
        mean, log_std = theta.chunk(2)
        shift = (mean - self.behavioral_mean) * th.exp(-self.behavioral_log_std)
        log_ratio = self.behavioral_log_std - log_std
        squared_ratio = th.exp(2.0 * log_ratio)
        constant = self._sum_groups(log_ratio - 0.5 * squared_ratio * shift**2)[groups]
        forms = self.noise.quadratic_forms(-0.5 * th.expm1(2.0 * log_ratio), squared_ratio * shift, groups)
        log_weights = (forms + constant.unsqueeze(1)).T
        return EpisodeTerms(log_weights, self._log_d2(mean, log_std)[groups] if with_divergence else None)

    def _log_d2(self, mean: th.Tensor, log_std: th.Tensor) -> th.Tensor:
        """Divergence of every group's target from its behavioral hyperpolicy, exact, shape (n_groups,)."""
        target = (mean.unsqueeze(1), log_std.unsqueeze(1))
        return self._sum_groups(
            gaussian_renyi_divergence(*target, self.behavioral_mean.unsqueeze(1), self.behavioral_log_std.unsqueeze(1))
        )

    def _moved_groups(self, theta: th.Tensor) -> th.Tensor:
        """Mask of the groups that are elsewhere than where the last gradient was taken, shape (n_groups,)."""
        moved = th.zeros_like(self.all_groups)
        moved[self.group_of_theta[theta != self.last_theta]] = True
        return moved

    def _sum_groups(self, values: th.Tensor) -> th.Tensor:
        """Sum over the parameters of each group: (n_params,) to (n_groups,)."""
        sums = th.zeros(self.noise.n_groups, dtype=values.dtype, device=values.device)
        return sums.index_add(0, self.group_of_param, values)


def natural_gradient(theta: th.Tensor, gradient: th.Tensor) -> th.Tensor:
    """
    Natural gradient by the exact Fisher information of a diagonal Gaussian, diag(1 / std^2, 2) in (mean, log std).

    :param theta: hyperparameters (mean, log_std) of the target, shape (2 * n_params,)
    :param gradient: gradient of the surrogate, shape (2 * n_params,)
    :return: the direction, shape (2 * n_params,)
    """
    log_std = theta.chunk(2)[1]
    gradient_of_mean, gradient_of_log_std = gradient.chunk(2)
    return th.cat([gradient_of_mean * th.exp(2.0 * log_std), 0.5 * gradient_of_log_std])
