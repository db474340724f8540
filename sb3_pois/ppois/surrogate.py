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

from sb3_pois.common.bounds import Objective, Terms
from sb3_pois.common.divergences import gaussian_renyi_divergence
from sb3_pois.common.surrogate import Surrogate
from sb3_pois.ppois.grouped_noise import GroupedNoise

# Parameters whose divergence is computed at once
BLOCK_SIZE = 2**14


class HyperpolicySurrogate(Surrogate):
    """
    Surrogate of a batch as a function of the hyperparameters (mean, log_std), with one value per group of parameters.

    Gradients are analytic and go through the noise once, so that nothing of its size is kept for them. Groups that are
    still where the last gradient was taken keep what was found there, so that a line search costs less
    and less as group after group is done.

    :param mean: mean of the behavioral hyperpolicy, float64, shape (n_params,)
    :param log_std: log standard deviation of the behavioral hyperpolicy, float64, shape (n_params,)
    :param noise: noise of each episode, shape (n_episodes, n_params)
    :param returns: episode returns, float64, shape (n_episodes,)
    :param objective: what to climb
    :param group_index: group of each controller parameter, shape (n_params,); None for a single group
    :param learn_mean: whether the mean is to move; its gradient is 0 otherwise
    :param learn_std: whether the standard deviation is to move; its gradient is 0 otherwise
    """

    def __init__(
        self,
        mean: np.ndarray,
        log_std: np.ndarray,
        noise: np.ndarray,
        returns: th.Tensor,
        objective: Objective,
        group_index: np.ndarray | None = None,
        learn_mean: bool = True,
        learn_std: bool = True,
    ) -> None:
        super().__init__(returns, objective)
        device = returns.device
        if group_index is None:
            group_index = np.zeros(len(mean), dtype=np.int64)
        self.behavioral_mean = th.as_tensor(mean, device=device)
        self.behavioral_log_std = th.as_tensor(log_std, device=device)
        self.noise = GroupedNoise(noise, group_index, device)
        self.learn_mean, self.learn_std = learn_mean, learn_std
        self.group_of_param = th.as_tensor(group_index, device=device)
        self.all_groups = th.ones(self.noise.n_groups, dtype=th.bool, device=device)
        # Where the last gradient was taken, and what was found there; NaN differs from everything
        self.last_theta = th.full((2 * len(mean),), math.nan, dtype=th.float64, device=device)
        self.last_gradient = self.last_theta
        self.last_value = self.last_theta[: self.noise.n_groups]

    def terms(self, theta: th.Tensor, with_divergence: bool) -> Terms:
        return self._terms_of_groups(theta, with_divergence, self.all_groups)

    def value(self, theta: th.Tensor) -> th.Tensor:
        moved = self._moved_groups(theta)
        terms = self._terms_of_groups(theta, self.objective.needs_divergence, moved)
        return self.last_value.masked_scatter(moved, self.lower_bound(terms).value)

    def value_and_gradient(self, theta: th.Tensor) -> tuple[th.Tensor, th.Tensor]:
        moved = self._moved_groups(theta)
        terms = self._terms_of_groups(theta, self.objective.needs_divergence, moved)
        inputs = [values.requires_grad_() for values in (terms.log_weights, terms.log_d2) if values is not None]
        value = self.lower_bound(terms).value
        gradients = th.autograd.grad(value.sum(), inputs, materialize_grads=True, allow_unused=True)
        gradient = self._pull_back(theta, moved, *gradients)
        self.last_theta = theta
        self.last_value = self.last_value.masked_scatter(moved, value.detach())
        self.last_gradient = th.where(moved[self.group_of_param].repeat(2), gradient, self.last_gradient)
        return self.last_value, self.last_gradient

    @property
    def group_of_theta(self) -> th.Tensor:
        """Group of each hyperparameter, shape (2 * n_params,)."""
        return self.group_of_param.repeat(2)

    def _terms_of_groups(self, theta: th.Tensor, with_divergence: bool, groups: th.Tensor) -> Terms:
        """Log weights and divergences of some groups, whose mask has the shape (n_groups,)."""
        shift, log_ratio = self._in_behavioral_units(theta)
        squared_ratio = th.exp(2.0 * log_ratio)
        constant = self._sum_groups(log_ratio - 0.5 * squared_ratio * shift**2)[groups]
        forms = self.noise.quadratic_forms(-0.5 * th.expm1(2.0 * log_ratio), squared_ratio * shift, groups)
        return Terms(
            log_weights=(forms + constant.unsqueeze(1)).T,
            log_d2=self._log_d2(shift, log_ratio)[groups] if with_divergence else None,
        )

    def _log_d2(self, shift: th.Tensor, log_ratio: th.Tensor) -> th.Tensor:
        """Divergence of every group's target from its behavioral hyperpolicy, exact, shape (n_groups,)."""
        standard = th.zeros(1, dtype=th.float64, device=shift.device)
        blocks = zip(shift.unsqueeze(1).split(BLOCK_SIZE), log_ratio.unsqueeze(1).split(BLOCK_SIZE), strict=True)
        return self._sum_groups(th.cat([gaussian_renyi_divergence(a, -log_r, standard, standard) for a, log_r in blocks]))

    def _pull_back(
        self, theta: th.Tensor, groups: th.Tensor, of_log_weights: th.Tensor, of_log_d2: th.Tensor | None = None
    ) -> th.Tensor:
        """
        Gradient in the hyperparameters from that in the terms of some groups.

        :param theta: target hyperparameters, shape (2 * n_params,)
        :param groups: mask of the groups, shape (n_groups,)
        :param of_log_weights: gradient in the log weights, shape (n_episodes, n_groups wanted)
        :param of_log_d2: gradient in the divergences, shape (n_groups wanted,)
        :return: gradient, shape (2 * n_params,), 0 in the other groups
        """
        shift, log_ratio = self._in_behavioral_units(theta)
        squared_ratio = th.exp(2.0 * log_ratio)
        first, second = self.noise.moments(of_log_weights.T, groups)
        total = self._spread(of_log_weights.sum(0), groups)
        of_shift = first - shift * total
        of_log_std = squared_ratio * (second - shift * (first + of_shift)) - total
        of_shift *= squared_ratio
        if of_log_d2 is not None:
            # Per parameter D2 = a^2 / v + log r - log(v) / 2, with v = 2 - 1 / r^2
            factor = self._spread(of_log_d2, groups)
            mixed_variance = 2.0 - 1.0 / squared_ratio
            slope = 2.0 * shift / mixed_variance
            of_shift += factor * slope
            of_log_std += factor * ((slope * shift + 1.0) / (squared_ratio * mixed_variance) - 1.0)
        of_mean = of_shift * th.exp(-self.behavioral_log_std)
        for part, is_learned in ((of_mean, self.learn_mean), (of_log_std, self.learn_std)):
            if not is_learned:
                part.zero_()
        return th.cat([of_mean, of_log_std])

    def _in_behavioral_units(self, theta: th.Tensor) -> tuple[th.Tensor, th.Tensor]:
        """Shift a of the mean, and log r of the standard deviations' ratio, each of shape (n_params,)."""
        mean, log_std = theta.chunk(2)
        return (mean - self.behavioral_mean) * th.exp(-self.behavioral_log_std), self.behavioral_log_std - log_std

    def _moved_groups(self, theta: th.Tensor) -> th.Tensor:
        """Mask of the groups that are elsewhere than where the last gradient was taken, shape (n_groups,)."""
        moved = th.zeros_like(self.all_groups)
        moved[self.group_of_param[(theta != self.last_theta).view(2, -1).any(0)]] = True
        return moved

    def _spread(self, values: th.Tensor, groups: th.Tensor) -> th.Tensor:
        """One value per wanted group to one per parameter, 0 in the other groups: shape (n_params,)."""
        spread = th.zeros(self.noise.n_groups, dtype=values.dtype, device=values.device)
        return spread.masked_scatter(groups, values)[self.group_of_param]

    def _sum_groups(self, values: th.Tensor) -> th.Tensor:
        """Sum over the parameters of each group: (n_params,) to (n_groups,)."""
        sums = th.zeros(self.noise.n_groups, dtype=values.dtype, device=values.device)
        return sums.index_add(0, self.group_of_param, values)


def gaussian_natural_gradient(theta: th.Tensor, gradient: th.Tensor) -> th.Tensor:
    """
    Natural gradient by the exact Fisher information of a diagonal Gaussian, diag(1 / std^2, 2) in (mean, log std).

    :param theta: hyperparameters (mean, log_std) of the target, shape (2 * n_params,)
    :param gradient: gradient of the surrogate, shape (2 * n_params,)
    :return: the direction, shape (2 * n_params,)
    """
    log_std = theta.chunk(2)[1]
    gradient_of_mean, gradient_of_log_std = gradient.chunk(2)
    return th.cat([gradient_of_mean * th.exp(2.0 * log_std), 0.5 * gradient_of_log_std])
