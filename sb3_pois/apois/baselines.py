r"""
Baselines for per-decision estimates: functions of state and time that take variance out of what is weighted.

For any V that is 0 after the end of an episode and does not depend on the batch,

.. math::

    E\Big[V(s_0) + \sum_t \gamma^t w_{0:t} \big(r_t + \gamma V(s_{t+1}) - V(s_t)\big)\Big]
    = E\Big[\sum_t \gamma^t w_{0:t} \, r_t\Big]

so V is a control variate and no critic: the estimate's mean does not depend on it, and nothing is bootstrapped. It is fitted
by least squares to the returns to go. Each half of the episodes gets the fit to the other half, so that it does not depend
on the episodes that it serves.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch as th
from gymnasium import spaces
from stable_baselines3.common.preprocessing import is_image_space, preprocess_obs

from sb3_pois.common.buffers import EpisodeRolloutBuffer
from sb3_pois.common.episodes import EpisodeLayout

BASELINES = ("none", "time", "linear")

# Observations are clipped to this range before they become features
MAX_OBSERVATION = 10.0
# What is added to the diagonal of the normal equations
RIDGE = 1e-5
# Longer observations are left to the baseline of time alone: the normal equations are quadratic in their length
MAX_OBSERVATION_LENGTH = 1000

# Features of some of a batch's steps, given as a slice: float64, shape (n_chunk_steps, n_features)
Features = Callable[[slice], th.Tensor]


def time_features(layout: EpisodeLayout) -> Features:
    """
    Powers of the time since the start of the episode: 1, t, t^2, t^3, with t as a share of the longest episode.

    :param layout: where the episodes' steps lie
    :return: the features
    """

    def features(rows: slice) -> th.Tensor:
        time = layout.step_index[rows].double() / layout.horizon
        return th.stack([th.ones_like(time), time, time**2, time**3], dim=1)

    return features


def linear_features(buffer: EpisodeRolloutBuffer, layout: EpisodeLayout) -> Features:
    """
    Observations clipped to [-10, 10], their squares, and powers of time (Duan et al. 2016).

    :param buffer: the batch
    :param layout: where the episodes' steps lie
    :return: the features; those of time alone where there are images or more than 1,000 numbers
    """
    of_time, space, observations = time_features(layout), buffer.observation_space, buffer.observations
    parts: list[Any] = [(space, observations)]
    if isinstance(space, spaces.Dict):
        parts = [(part_space, observations[key]) for key, part_space in space.items()]
    if any(is_image_space(part_space) for part_space, _ in parts):
        return of_time

    def vector(part_space: spaces.Space, part: np.ndarray) -> th.Tensor:
        tensor = preprocess_obs(th.as_tensor(part, device=layout.lengths.device), part_space)
        assert isinstance(tensor, th.Tensor)
        return tensor.flatten(1).double().clamp(-MAX_OBSERVATION, MAX_OBSERVATION)

    def vectors(rows: slice) -> th.Tensor:
        return th.cat([vector(part_space, part[rows]) for part_space, part in parts], dim=1)

    if vectors(slice(1)).shape[1] > MAX_OBSERVATION_LENGTH:
        return of_time

    def features(rows: slice) -> th.Tensor:
        observations = vectors(rows)
        return th.cat([observations, observations**2, of_time(rows)], dim=1)

    return features


def fit_values(features: Features, returns_to_go: th.Tensor, layout: EpisodeLayout, max_chunk_steps: int) -> th.Tensor:
    """
    Predict the returns to go by ridge regression, those of each half of the episodes from the other half.

    Odd and even episodes are the halves. A prediction stays within the range of what its half earned: beyond the states and
    times of that half the regression extrapolates, and is worse than no baseline.

    :param features: features of the steps
    :param returns_to_go: what to predict, float64, shape (n_steps,)
    :param layout: where the episodes' steps lie; two at least
    :param max_chunk_steps: most steps to work on at a time
    :return: predictions V, float64, shape (n_steps,)
    """
    is_odd = layout.episode_index % 2 == 1
    chunks = [slice(start, start + max_chunk_steps) for start in range(0, layout.n_steps, max_chunk_steps)]

    def fit(half: th.Tensor) -> Callable[[th.Tensor], th.Tensor]:
        if not half.any():
            return lambda own: own.new_zeros(len(own))
        n_features = features(slice(1)).shape[1]
        gram = RIDGE * th.eye(n_features, dtype=th.float64, device=half.device)
        moments = th.zeros(n_features, dtype=th.float64, device=half.device)
        for rows in chunks:
            own = features(rows)[half[rows]]
            gram += own.T @ own
            moments += own.T @ returns_to_go[rows][half[rows]]
        coefficients, earned = th.linalg.solve(gram, moments), returns_to_go[half]
        return lambda own: (own @ coefficients).clamp(earned.min(), earned.max())

    of_even_steps, of_odd_steps = fit(is_odd), fit(~is_odd)
    values = th.empty_like(returns_to_go)
    for rows in chunks:
        own = features(rows)
        values[rows] = th.where(is_odd[rows], of_odd_steps(own), of_even_steps(own))
    return values
