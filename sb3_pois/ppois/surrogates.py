r"""
The surrogate of PPOIS as a function of the hyperparameters.

With the noise z that an episode's controller parameters come from, theta = mean + std z, and with the target in the
behavioral hyperpolicy's units, mean' = mean + std a and std' = std / r, the log weight of a group of parameters is

.. math::

    \log w_i = \sum_j \Big[\frac{1 - r_j^2}{2} z_{ij}^2 + r_j^2 a_j z_{ij} - \frac{r_j^2 a_j^2}{2} + \log r_j\Big]

so all episodes' weights are matrix products of the noise and its squares with one vector each, and they are exactly 1
at the behavioral hyperpolicy, where a = 0 and r = 1.
"""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import torch as th

from sb3_pois.common.divergences import gaussian_renyi_divergence
from sb3_pois.common.episode_surrogate import EpisodeSurrogate, EpisodeTerms

# Numbers that are worked on at once: squares and float64 copies of the noise of that size stay in the processor's cache
CHUNK_SIZE = 2**16


class _Chunk(NamedTuple):
    """Noise of some groups of equal size in some episodes."""

    noise: th.Tensor  # (n_chunk_groups, n_chunk_episodes, group_size)
    columns: th.Tensor  # parameters of each group, (n_chunk_groups, group_size)
    groups: th.Tensor  # (n_chunk_groups,)
    episodes: slice


class _Coefficients(NamedTuple):
    """What the target contributes to the log weights: factors of z^2 and z, shape (n_params,), and (n_groups,) constants."""

    quadratic: th.Tensor
    linear: th.Tensor
    constant: th.Tensor


class HyperpolicySurrogate(EpisodeSurrogate):
    """
    Surrogate of a batch as a function of the hyperparameters rho = (mean, log_std), one value per group of parameters.

    The noise stays in its own type and order by groups; float64 copies and squares exist of one chunk at a time only.
    Groups whose parameters are still where the last gradient was taken keep the value they had there: in a line search
    the cost shrinks with the number of groups that are still searching.

    :param mean: mean of the behavioral hyperpolicy, float64, shape (n_params,)
    :param log_std: log standard deviation of the behavioral hyperpolicy, float64, shape (n_params,)
    :param noise: noise of each episode, shape (n_episodes, n_params)
    :param returns: episode returns, float64, shape (n_episodes,)
    :param bound: name of the bound
    :param iw_norm: name of the estimator
    :param delta: 1 minus the confidence, in (0, 1]
    :param group_index: group of each controller parameter, shape (n_params,); None for a single group
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
        group_index = np.zeros(len(mean), dtype=np.int64) if group_index is None else group_index
        self.mean = th.as_tensor(mean, device=device)
        self.log_std = th.as_tensor(log_std, device=device)
        self.group_index = th.as_tensor(group_index, device=device)
        self.n_groups = int(group_index.max()) + 1
        self.chunks = list(_make_chunks(noise, group_index, device))
        self._last_theta: th.Tensor | None = None
        self._last_value = th.zeros(0)

    @property
    def group_index_of_theta(self) -> th.Tensor:
        """Group of each entry of rho, shape (2 * n_params,)."""
        return self.group_index.repeat(2)

    def episode_terms(self, theta: th.Tensor, with_divergence: bool) -> EpisodeTerms:
        log_weights = self._log_weights(self._coefficients(theta))
        return EpisodeTerms(log_weights, self._log_d2(theta) if with_divergence else None)

    def value(self, theta: th.Tensor) -> th.Tensor:
        with th.no_grad():
            moved = self._moved_groups(theta)
            log_weights = self._log_weights(self._coefficients(theta), moved)
            log_d2 = self._log_d2(theta)[moved] if self.uses_divergence else None
            value = self._last_value.clone() if self._last_theta is not None else th.zeros(self.n_groups).to(log_weights)
            value[moved] = self.bound_of_terms(EpisodeTerms(log_weights, log_d2))
        return value

    def value_and_gradient(self, theta: th.Tensor) -> tuple[th.Tensor, th.Tensor]:
        theta = theta.detach().requires_grad_()
        coefficients = self._coefficients(theta)
        with th.no_grad():
            log_weights = self._log_weights(coefficients)
        log_weights.requires_grad_()
        log_d2 = self._log_d2(theta) if self.uses_divergence else None
        value = self.bound_of_terms(EpisodeTerms(log_weights, log_d2))
        (sensitivity,) = th.autograd.grad(value.sum(), log_weights, retain_graph=True)
        first, second = self._moments(sensitivity)
        # Linear in the coefficients, with the gradient that the value has through the log weights
        through_weights = coefficients.quadratic @ second + coefficients.linear @ first
        through_weights = through_weights + coefficients.constant @ sensitivity.sum(0)
        (gradient,) = th.autograd.grad(value.sum() + through_weights, theta)
        self._last_theta, self._last_value = theta.detach(), value.detach()
        return value.detach(), gradient

    def _coefficients(self, theta: th.Tensor) -> _Coefficients:
        mean, log_std = theta.double().chunk(2)
        shift = (mean - self.mean) * th.exp(-self.log_std)
        log_ratio = self.log_std - log_std
        precision = th.exp(2.0 * log_ratio)
        constant = log_ratio - 0.5 * precision * shift**2
        return _Coefficients(-0.5 * th.expm1(2.0 * log_ratio), precision * shift, self._sum_groups(constant))

    def _log_d2(self, theta: th.Tensor) -> th.Tensor:
        """Divergence of each group's target from its behavioral hyperpolicy, exact, shape (n_groups,)."""
        mean, log_std = theta.double().chunk(2)
        per_param = gaussian_renyi_divergence(mean[:, None], log_std[:, None], self.mean[:, None], self.log_std[:, None])
        return self._sum_groups(per_param)

    def _log_weights(self, coefficients: _Coefficients, groups: th.Tensor | None = None) -> th.Tensor:
        """
        Log weights by matrix products of the noise with the coefficients.

        :param coefficients: coefficients of the target
        :param groups: mask of the groups wanted, shape (n_groups,); None for all
        :return: float64 log weights, shape (n_episodes, n_groups wanted)
        """
        quadratic, linear, constant = coefficients
        log_weights = constant.repeat(self.n_episodes, 1)
        for chunk in self.chunks:
            if groups is None or groups[chunk.groups].any():
                noise = chunk.noise.double()
                exponents = noise.square() @ quadratic[chunk.columns].unsqueeze(2)
                exponents += noise @ linear[chunk.columns].unsqueeze(2)
                log_weights[chunk.episodes, chunk.groups] += exponents.squeeze(2).T
        return log_weights if groups is None else log_weights[:, groups]

    def _moments(self, factors: th.Tensor) -> tuple[th.Tensor, th.Tensor]:
        """
        Weighted sums over the episodes of the noise and its squares.

        :param factors: weight of each episode for each group, shape (n_episodes, n_groups)
        :return: both sums, shape (n_params,)
        """
        first, second = th.zeros_like(self.mean), th.zeros_like(self.mean)
        for chunk in self.chunks:
            noise = chunk.noise.double()
            rows = factors[chunk.episodes, chunk.groups].T.unsqueeze(1)
            first[chunk.columns] += (rows @ noise).squeeze(1)
            second[chunk.columns] += (rows @ noise.square()).squeeze(1)
        return first, second

    def _moved_groups(self, theta: th.Tensor) -> th.Tensor:
        """Mask of the groups that are not where the last gradient was taken, shape (n_groups,)."""
        if self._last_theta is None:
            return th.ones(self.n_groups, dtype=th.bool, device=theta.device)
        moved = th.zeros(self.n_groups, dtype=th.bool, device=theta.device)
        moved[self.group_index_of_theta[theta != self._last_theta]] = True
        return moved

    def _sum_groups(self, values: th.Tensor) -> th.Tensor:
        return th.zeros(self.n_groups, dtype=values.dtype, device=values.device).index_add(0, self.group_index, values)


def _make_chunks(noise: np.ndarray, group_index: np.ndarray, device: th.device) -> Iterator[_Chunk]:
    """Lay the noise out by groups: those of equal size together, as many per chunk as fit, episodes split if none does."""
    n_episodes = len(noise)
    sizes = np.bincount(group_index)
    params_by_group = np.split(np.argsort(group_index, kind="stable"), np.cumsum(sizes)[:-1])
    for size in np.unique(sizes):
        groups_of_size = np.flatnonzero(sizes == size)
        n_groups = max(1, CHUNK_SIZE // (n_episodes * int(size)))
        n_rows = max(1, CHUNK_SIZE // (n_groups * int(size)))
        for first_group in range(0, len(groups_of_size), n_groups):
            groups = groups_of_size[first_group : first_group + n_groups]
            columns = np.stack([params_by_group[group] for group in groups])
            for start in range(0, n_episodes, n_rows):
                rows = slice(start, min(start + n_rows, n_episodes))
                values = np.ascontiguousarray(noise[rows][:, columns].transpose(1, 0, 2))
                yield _Chunk(
                    th.as_tensor(values, device=device),
                    th.as_tensor(columns, device=device),
                    th.as_tensor(groups, device=device),
                    rows,
                )


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
