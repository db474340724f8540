"""
The families of action distributions that APOIS searches in.

A distribution over a batch of states is a tuple of its natural parameters: ``(mean, log_std)`` or ``(logits,)``.
Densities and divergences take tensors and are differentiable, in the type of the parameters; sampling takes arrays and
noise that was drawn beforehand, so that a whole batch's noise can be drawn at once.
"""

import math
from abc import ABC, abstractmethod
from typing import Any

import numpy as np
import torch as th
from gymnasium import spaces
from torch.nn import functional as F

from sb3_pois.common.divergences import (
    bernoulli_renyi_divergence,
    categorical_renyi_divergence,
    gaussian_renyi_divergence,
    multi_categorical_renyi_divergence,
)

Params = tuple[th.Tensor, ...]
ArrayParams = tuple[np.ndarray, ...]


class ActionDistribution(ABC):
    """
    Family of distributions over an action space.

    :param action_space: the action space
    :ivar n_outputs: number of network outputs that parametrise one distribution
    """

    n_outputs: int

    def __init__(self, action_space: spaces.Space) -> None:
        self.action_shape = tuple(action_space.shape or ())
        self.dtype = action_space.dtype

    @abstractmethod
    def draw_noise(self, rng: Any, size: tuple[int, ...]) -> np.ndarray:
        """
        Draw what :meth:`sample` needs.

        :param rng: numpy ``Generator``, or the module ``numpy.random``
        :param size: shape of the batch of distributions
        :return: noise, shape (*size, n_outputs)
        """

    @abstractmethod
    def sample(self, params: ArrayParams, noise: np.ndarray) -> np.ndarray:
        """
        Turn noise into actions.

        :param params: parameters of the distributions, shape (n_states, n_outputs)
        :param noise: noise from :meth:`draw_noise`, shape (n_states, n_outputs)
        :return: actions before any clipping, shape (n_states, *action_shape)
        """

    @abstractmethod
    def mode(self, params: ArrayParams) -> np.ndarray:
        """
        Most likely actions.

        :param params: parameters of the distributions, shape (n_states, n_outputs)
        :return: actions, shape (n_states, *action_shape)
        """

    @abstractmethod
    def log_prob(self, params: Params, actions: th.Tensor) -> th.Tensor:
        """
        Log density of actions.

        :param params: parameters of the distributions, shape (n_steps, n_outputs)
        :param actions: actions as sampled, shape (n_steps, *action_shape)
        :return: log densities in nats, shape (n_steps,)
        """

    @abstractmethod
    def renyi_divergence(self, params_p: Params, params_q: Params) -> th.Tensor:
        """
        Rényi divergence of order 2 of p from q, state by state.

        :param params_p: parameters of the target distributions
        :param params_q: parameters of the behavioral distributions
        :return: divergences in nats, shape (n_steps,)
        """


class DiagonalGaussian(ActionDistribution):
    """Gaussian with a state-dependent mean and a standard deviation of its own, for Box actions."""

    def __init__(self, action_space: spaces.Box) -> None:
        super().__init__(action_space)
        self.n_outputs = int(np.prod(action_space.shape))
        if np.dtype(self.dtype).kind != "f":
            self.dtype = np.dtype(np.float32)  # unclipped samples do not fit an integer type

    def draw_noise(self, rng: Any, size: tuple[int, ...]) -> np.ndarray:
        return rng.standard_normal((*size, self.n_outputs)).astype(np.float32)

    def sample(self, params: ArrayParams, noise: np.ndarray) -> np.ndarray:
        mean, log_std = params
        return self._to_actions(mean + np.exp(log_std) * noise)

    def mode(self, params: ArrayParams) -> np.ndarray:
        return self._to_actions(params[0])

    def log_prob(self, params: Params, actions: th.Tensor) -> th.Tensor:
        mean, log_std = params
        standardized = (actions.flatten(1) - mean) * th.exp(-log_std)
        constant = log_std.sum() + 0.5 * math.log(2.0 * math.pi) * self.n_outputs
        return -0.5 * (standardized**2).sum(-1) - constant

    def renyi_divergence(self, params_p: Params, params_q: Params) -> th.Tensor:
        (mean_p, log_std_p), (mean_q, log_std_q) = params_p, params_q
        return gaussian_renyi_divergence(mean_p, log_std_p, mean_q, log_std_q)

    def _to_actions(self, flat: np.ndarray) -> np.ndarray:
        return flat.reshape(-1, *self.action_shape).astype(self.dtype, copy=False)


class Categorical(ActionDistribution):
    """Categorical distribution for Discrete actions."""

    def __init__(self, action_space: spaces.Discrete) -> None:
        super().__init__(action_space)
        self.n_outputs = int(action_space.n)
        self.first_action = int(action_space.start)

    def draw_noise(self, rng: Any, size: tuple[int, ...]) -> np.ndarray:
        return rng.gumbel(size=(*size, self.n_outputs))

    def sample(self, params: ArrayParams, noise: np.ndarray) -> np.ndarray:
        return self.mode((params[0] + noise,))  # the Gumbel-max trick

    def mode(self, params: ArrayParams) -> np.ndarray:
        return (params[0].argmax(-1) + self.first_action).astype(self.dtype, copy=False)

    def log_prob(self, params: Params, actions: th.Tensor) -> th.Tensor:
        index = (actions.long() - self.first_action).unsqueeze(-1)
        return F.log_softmax(params[0], dim=-1).gather(-1, index).squeeze(-1)

    def renyi_divergence(self, params_p: Params, params_q: Params) -> th.Tensor:
        return categorical_renyi_divergence(params_p[0], params_q[0])


class MultiCategorical(ActionDistribution):
    """Independent categorical distributions for MultiDiscrete actions."""

    def __init__(self, action_space: spaces.MultiDiscrete) -> None:
        super().__init__(action_space)
        self.n_categories = [int(n) for n in np.ravel(action_space.nvec)]
        self.n_outputs = sum(self.n_categories)
        self.first_actions = np.ravel(action_space.start).astype(np.int64)

    def draw_noise(self, rng: Any, size: tuple[int, ...]) -> np.ndarray:
        return rng.gumbel(size=(*size, self.n_outputs))

    def sample(self, params: ArrayParams, noise: np.ndarray) -> np.ndarray:
        return self.mode((params[0] + noise,))

    def mode(self, params: ArrayParams) -> np.ndarray:
        factors = np.split(params[0], np.cumsum(self.n_categories)[:-1], axis=-1)
        actions = np.stack([factor.argmax(-1) for factor in factors], axis=-1) + self.first_actions
        return actions.reshape(-1, *self.action_shape).astype(self.dtype, copy=False)

    def log_prob(self, params: Params, actions: th.Tensor) -> th.Tensor:
        index = actions.flatten(1).long() - th.as_tensor(self.first_actions, device=actions.device)
        factors = th.split(params[0], self.n_categories, dim=-1)
        return th.stack(
            [F.log_softmax(logits, dim=-1).gather(-1, index[:, i : i + 1]).squeeze(-1) for i, logits in enumerate(factors)]
        ).sum(0)

    def renyi_divergence(self, params_p: Params, params_q: Params) -> th.Tensor:
        return multi_categorical_renyi_divergence(params_p[0], params_q[0], self.n_categories)


class BernoulliVector(ActionDistribution):
    """Independent Bernoulli variables for MultiBinary actions, parametrised by their log-odds."""

    def __init__(self, action_space: spaces.MultiBinary) -> None:
        super().__init__(action_space)
        self.n_outputs = int(np.prod(action_space.shape))

    def draw_noise(self, rng: Any, size: tuple[int, ...]) -> np.ndarray:
        return rng.logistic(size=(*size, self.n_outputs))

    def sample(self, params: ArrayParams, noise: np.ndarray) -> np.ndarray:
        return self.mode((params[0] + noise,))  # the sum is positive with probability sigmoid(log-odds)

    def mode(self, params: ArrayParams) -> np.ndarray:
        return (params[0] > 0.0).reshape(-1, *self.action_shape).astype(self.dtype)

    def log_prob(self, params: Params, actions: th.Tensor) -> th.Tensor:
        logits = params[0]
        return -F.binary_cross_entropy_with_logits(logits, actions.flatten(1).to(logits.dtype), reduction="none").sum(-1)

    def renyi_divergence(self, params_p: Params, params_q: Params) -> th.Tensor:
        return bernoulli_renyi_divergence(params_p[0], params_q[0])


DISTRIBUTIONS: dict[type[spaces.Space], type[ActionDistribution]] = {
    spaces.Box: DiagonalGaussian,
    spaces.Discrete: Categorical,
    spaces.MultiDiscrete: MultiCategorical,
    spaces.MultiBinary: BernoulliVector,
}
SUPPORTED_ACTION_SPACES = tuple(DISTRIBUTIONS)


def make_action_distribution(action_space: spaces.Space) -> ActionDistribution:
    """
    Family that fits an action space.

    :param action_space: Box, Discrete, MultiDiscrete or MultiBinary space
    :return: the family
    :raises ValueError: if the space is of another kind
    """
    for space_class, distribution_class in DISTRIBUTIONS.items():
        if isinstance(action_space, space_class):
            return distribution_class(action_space)
    allowed = ", ".join(space_class.__name__ for space_class in DISTRIBUTIONS)
    raise ValueError(f"the action space is {action_space}, but allowed are {allowed}")
