"""
Off-policy estimators of the target policy's expected return (Metelli et al. 2018, section 3).

Each takes the log importance weights and the returns of the episodes, and is differentiable in the weights. Episodes
lie in dimension 0; a second dimension of the weights may hold groups of parameters, each with its own estimate.
"""

from collections.abc import Callable

import torch as th

from sb3_pois.common.episodes import EpisodeLayout
from sb3_pois.common.importance import importance_weights, self_normalized_weights

Estimator = Callable[[th.Tensor, th.Tensor], th.Tensor]


def importance_sampling_estimate(log_weights: th.Tensor, returns: th.Tensor) -> th.Tensor:
    r"""
    Plain importance sampling, :math:`\frac{1}{N} \sum_i w_i R_i`: unbiased.

    :param log_weights: log importance weights, shape (n_episodes, ...)
    :param returns: episode returns, shape (n_episodes,)
    :return: estimate in units of return, shape (...)
    """
    return (importance_weights(log_weights) * _like_weights(returns, log_weights)).mean(0)


def self_normalized_estimate(log_weights: th.Tensor, returns: th.Tensor) -> th.Tensor:
    r"""
    Self-normalised importance sampling, :math:`\sum_i \tilde w_i R_i` with weights that sum to 1.

    Biased but consistent, of lower variance, and never outside the range of the returns.

    :param log_weights: log importance weights, shape (n_episodes, ...)
    :param returns: episode returns, shape (n_episodes,)
    :return: estimate in units of return, shape (...)
    """
    return (self_normalized_weights(log_weights) * _like_weights(returns, log_weights)).sum(0)


def regression_estimate(log_weights: th.Tensor, returns: th.Tensor) -> th.Tensor:
    r"""
    Importance sampling with the weight as control variate (its mean is known to be 1).

    .. math::

        \frac{1}{N} \sum_i \left[w_i R_i - \beta (w_i - 1)\right], \qquad
        \beta = \frac{\sum_i (w_i - \bar w) w_i R_i}{\sum_i (w_i - \bar w)^2}

    with beta = 0 where the weights do not vary. It jumps at the behavioral policy, where every weight is 1 and where an
    optimisation starts, so it serves evaluation and not training.

    :param log_weights: log importance weights, shape (n_episodes, ...)
    :param returns: episode returns, shape (n_episodes,)
    :return: estimate in units of return, shape (...)
    """
    weights = importance_weights(log_weights)
    weighted_returns = weights * _like_weights(returns, log_weights)
    deviations = weights - weights.mean(0)
    variation = (deviations**2).sum(0)
    varies = variation > 0.0
    beta = (deviations * weighted_returns).sum(0) / th.where(varies, variation, th.ones_like(variation))
    beta = th.where(varies, beta, th.zeros_like(beta))
    return (weighted_returns - beta * (weights - 1.0)).mean(0)


def per_decision_estimate(
    step_log_weights: th.Tensor, gains: th.Tensor, after_end: th.Tensor, layout: EpisodeLayout, normalized: bool
) -> th.Tensor:
    r"""
    Per-decision importance sampling: each step's gain is weighted by the ratios up to it (Metelli et al. 2020).

    .. math:: \frac{1}{N} \sum_i \sum_t w_{i,0:t} \, c_{it}

    An episode that has ended counts on with its last weight, so that the mean of every step's weights stays 1. What it
    gains then depends on the step alone. Self-normalised, each step's weights are divided by their mean over all N
    episodes.

    :param step_log_weights: log weight of each step, shape (n_steps,)
    :param gains: discounted gain of each step, in units of return, shape (n_steps,)
    :param after_end: discounted gain of an episode that has ended, at each step, shape (horizon,)
    :param layout: where the episodes' steps lie
    :param normalized: whether to normalise the weights over the episodes at every step
    :return: estimate in units of return, a scalar
    """
    if normalized:
        weights = th.exp(step_log_weights - step_log_weights.detach().max())
        totals = layout.sum_over_episodes(weights)
        weights = weights / totals[layout.step_index]
        ended = 1.0 - totals.new_zeros(layout.horizon).index_add(0, layout.step_index, weights)
        return (weights * gains).sum() + (ended * after_end).sum()
    weights = importance_weights(step_log_weights)
    gains_after_end = layout.sums_after_end(after_end)
    return ((weights * gains).sum() + (weights[layout.last_steps] * gains_after_end).sum()) / layout.n_episodes


def _like_weights(returns: th.Tensor, log_weights: th.Tensor) -> th.Tensor:
    """Append dimensions to the returns until they broadcast against the weights."""
    return returns.reshape(-1, *(1,) * (log_weights.dim() - 1))


ESTIMATORS: dict[str, Estimator] = {
    "none": importance_sampling_estimate,
    "sn": self_normalized_estimate,
    "regression": regression_estimate,
}
