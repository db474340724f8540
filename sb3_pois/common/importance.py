"""
Importance weights of whole episodes and what they say about the sample, all in log space until the last step.

An episode's log weight is the sum over its steps of log pi'(a|s) - log pi(a|s) in action-based search, and
log nu_rho'(theta) - log nu_rho(theta) in parameter-based search, where the trajectory's density cancels.
Functions over episodes act on dimension 0, so a second dimension may hold groups of parameters.
"""

import math

import torch as th


def sum_per_episode(values: th.Tensor, episode_index: th.Tensor, n_episodes: int) -> th.Tensor:
    """
    Sum packed per-step values within each episode, in float64: over long horizons float32 sums lose the small ratios.

    :param values: one value per step, shape (n_steps,) or (n_steps, n_features)
    :param episode_index: the episode each step belongs to, int64, shape (n_steps,)
    :param n_episodes: number of episodes
    :return: float64 sums, shape (n_episodes,) or (n_episodes, n_features)
    """
    sums = th.zeros(n_episodes, *values.shape[1:], dtype=th.float64, device=values.device)
    return sums.index_add(0, episode_index, values.double())


def importance_weights(log_weights: th.Tensor) -> th.Tensor:
    """
    Likelihood ratios of target over behavioral policy.

    :param log_weights: log importance weights, shape (n_episodes, ...)
    :return: importance weights, shape (n_episodes, ...); +inf where they do not fit their type
    """
    return th.exp(log_weights)


def self_normalized_weights(log_weights: th.Tensor) -> th.Tensor:
    """
    Importance weights divided by their sum.

    :param log_weights: log importance weights, shape (n_episodes, ...)
    :return: weights that sum to 1 over the episodes, shape (n_episodes, ...)
    """
    return th.softmax(log_weights, dim=0)


def effective_sample_size(log_weights: th.Tensor) -> th.Tensor:
    r"""
    Effective sample size from the weights, :math:`(\sum_i w_i)^2 / \sum_i w_i^2`, between 1 and n_episodes.

    :param log_weights: log importance weights, shape (n_episodes, ...)
    :return: effective number of episodes, shape (...)
    """
    return th.exp(2.0 * th.logsumexp(log_weights, dim=0) - th.logsumexp(2.0 * log_weights, dim=0))


def effective_sample_size_from_divergence(log_d2: th.Tensor, n_episodes: int) -> th.Tensor:
    """
    Effective sample size from the divergence, N / d2 (Metelli et al. 2018, section 3).

    :param log_d2: log of the exponentiated Rényi divergence of order 2, any shape
    :param n_episodes: number of episodes N
    :return: effective number of episodes, same shape
    """
    return th.exp(math.log(n_episodes) - log_d2)
