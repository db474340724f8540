"""
Rényi divergences between the action distributions and hyperpolicies that POIS compares.

All functions return the divergence ``D_alpha(p || q)`` in nats, as a *sum over the last dimension*: products of
variances underflow in float32 beyond some sixty dimensions. The exponentiated divergence of Metelli et al. 2018 is
``d_alpha = exp(D_alpha)``; for order 2 it is the second moment of the importance weight p/q under q.
"""

import math
from collections.abc import Sequence

import torch as th
from torch.nn import functional as F


def gaussian_renyi_divergence(
    mean_p: th.Tensor, log_std_p: th.Tensor, mean_q: th.Tensor, log_std_q: th.Tensor, order: float = 2.0
) -> th.Tensor:
    r"""
    Rényi divergence between diagonal Gaussians (Gil et al. 2013; Metelli et al. 2018, appendix C).

    Per dimension, with :math:`s_\alpha^2 = \alpha s_q^2 + (1 - \alpha) s_p^2`,

    .. math::

        D_\alpha = \frac{\alpha}{2} \frac{(m_p - m_q)^2}{s_\alpha^2}
        - \frac{1}{2(\alpha - 1)} \left[\log s_\alpha^2 - (1 - \alpha) \log s_p^2 - \alpha \log s_q^2\right]

    and :math:`+\infty` as soon as one dimension has :math:`s_\alpha^2 \le 0` (at order 2: ``s_p >= sqrt(2) s_q``; the
    paper's "2 sigma_Q" is a misprint). Order 1 is the limit, the Kullback-Leibler divergence. The evaluation works on
    the ratio of the variances, so that the divergence of a distribution from itself is exactly 0.

    :param mean_p: mean of p, shape (..., n_dims)
    :param log_std_p: log standard deviation of p, broadcastable to (..., n_dims)
    :param mean_q: mean of q, shape (..., n_dims)
    :param log_std_q: log standard deviation of q, broadcastable to (..., n_dims)
    :param order: order alpha > 0 of the divergence
    :return: divergence in nats, shape (...); where it is infinite its gradient is 0
    :raises ValueError: if the order is not positive
    """
    _check_order(order)
    log_ratio = log_std_p - log_std_q  # log(s_p / s_q)
    squared_shift = ((mean_p - mean_q) * th.exp(-log_std_q)) ** 2  # (m_p - m_q)^2 / s_q^2
    variance_ratio_minus_one = th.expm1(2.0 * log_ratio)
    if order == 1.0:
        return (0.5 * (squared_shift + variance_ratio_minus_one) - log_ratio).sum(-1)
    mixed_minus_one = (1.0 - order) * variance_ratio_minus_one  # s_alpha^2 / s_q^2 - 1
    feasible = mixed_minus_one > -1.0
    # Replace what has no logarithm before taking it: th.where alone would let NaN gradients through
    mixed_minus_one = th.where(feasible, mixed_minus_one, th.zeros_like(mixed_minus_one))
    log_terms = th.log1p(mixed_minus_one) - 2.0 * (1.0 - order) * log_ratio
    per_dim = 0.5 * order * squared_shift / (1.0 + mixed_minus_one) - log_terms / (2.0 * (order - 1.0))
    divergence = per_dim.sum(-1)
    all_feasible = feasible.expand_as(per_dim).all(-1)
    return th.where(all_feasible, divergence, th.full_like(divergence, math.inf))


def categorical_renyi_divergence(logits_p: th.Tensor, logits_q: th.Tensor, order: float = 2.0) -> th.Tensor:
    r"""
    Rényi divergence between categorical distributions, :math:`\frac{1}{\alpha - 1} \log \sum_k p_k^\alpha q_k^{1 - \alpha}`.

    :param logits_p: unnormalised log-probabilities of p, shape (..., n_categories)
    :param logits_q: unnormalised log-probabilities of q, shape (..., n_categories)
    :param order: order alpha > 0 of the divergence; 1 gives the Kullback-Leibler divergence
    :return: divergence in nats, shape (...)
    :raises ValueError: if the order is not positive
    """
    _check_order(order)
    log_p, log_q = F.log_softmax(logits_p, dim=-1), F.log_softmax(logits_q, dim=-1)
    if order == 1.0:
        return (log_p.exp() * (log_p - log_q)).sum(-1)
    return th.logsumexp(order * log_p + (1.0 - order) * log_q, dim=-1) / (order - 1.0)


def multi_categorical_renyi_divergence(
    logits_p: th.Tensor, logits_q: th.Tensor, n_categories: Sequence[int], order: float = 2.0
) -> th.Tensor:
    """
    Rényi divergence between vectors of independent categoricals: the sum of the factors' divergences.

    :param logits_p: logits of all factors of p side by side, shape (..., sum(n_categories))
    :param logits_q: logits of all factors of q side by side, shape (..., sum(n_categories))
    :param n_categories: number of categories of each factor
    :param order: order alpha > 0 of the divergence
    :return: divergence in nats, shape (...)
    :raises ValueError: if the order is not positive
    """
    sizes = list(n_categories)
    factors = zip(th.split(logits_p, sizes, dim=-1), th.split(logits_q, sizes, dim=-1), strict=True)
    return th.stack([categorical_renyi_divergence(p, q, order) for p, q in factors]).sum(0)


def bernoulli_renyi_divergence(logits_p: th.Tensor, logits_q: th.Tensor, order: float = 2.0) -> th.Tensor:
    """
    Rényi divergence between vectors of independent Bernoulli variables: the sum of the factors' divergences.

    :param logits_p: log-odds of p, shape (..., n_dims)
    :param logits_q: log-odds of q, shape (..., n_dims)
    :param order: order alpha > 0 of the divergence
    :return: divergence in nats, shape (...)
    :raises ValueError: if the order is not positive
    """
    two_p = th.stack([logits_p, th.zeros_like(logits_p)], dim=-1)
    two_q = th.stack([logits_q, th.zeros_like(logits_q)], dim=-1)
    return categorical_renyi_divergence(two_p, two_q, order).sum(-1)


def mean_exponentiated_divergence(divergences: th.Tensor) -> th.Tensor:
    r"""
    Logarithm of the empirical trajectory divergence of APOIS (Metelli et al. 2018, section 4.1), as a log-mean-exp.

    .. math:: \log \hat d_2 = \log \frac{1}{N} \sum_i \exp \sum_t D_2(\pi'(\cdot|s_{it}) \| \pi(\cdot|s_{it}))

    :param divergences: sum over the steps of each episode of the divergence in nats, shape (n_episodes,)
    :return: log d2, a scalar
    """
    return th.logsumexp(divergences, dim=0) - math.log(divergences.shape[0])


def _check_order(order: float) -> None:
    if not order > 0.0:
        raise ValueError(f"order is {order}, but a Rényi divergence needs an order > 0")
