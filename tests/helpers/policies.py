"""Policy parts that users write."""

from typing import Any

import numpy as np
import torch as th
from gymnasium import spaces
from stable_baselines3.common.torch_layers import BaseFeaturesExtractor
from torch import nn

from sb3_pois.apois import LinearPolicy
from sb3_pois.ppois import Controller


class ScalingExtractor(BaseFeaturesExtractor):
    """A features extractor with a parameter of its own."""

    def __init__(self, observation_space: spaces.Space, features_dim: int = 5) -> None:
        super().__init__(observation_space, features_dim)
        self.layer = nn.Linear(int(np.prod(observation_space.shape or ())), features_dim)

    def forward(self, observations: th.Tensor) -> th.Tensor:
        return th.tanh(self.layer(observations.flatten(1).float()))


class NoisyExtractor(ScalingExtractor):
    """A features extractor with dropout and batch normalisation."""

    def __init__(self, observation_space: spaces.Space, features_dim: int = 8) -> None:
        super().__init__(observation_space, features_dim)
        self.norm = nn.BatchNorm1d(features_dim)
        self.dropout = nn.Dropout(0.5)

    def forward(self, observations: th.Tensor) -> th.Tensor:
        return self.dropout(self.norm(super().forward(observations)))


class BiasedController(Controller):
    """
    One action, linear in three observed numbers.

    :param bias: what is added to the action
    """

    n_params = 3

    def __init__(self, observation_space: spaces.Space, action_space: spaces.Space, bias: float = 0.0) -> None:
        super().__init__(observation_space, action_space)
        self.bias = bias

    def act(self, params: np.ndarray, observations: Any) -> np.ndarray:
        return (params * observations).sum(1, keepdims=True) + self.bias


class ConstantController(Controller):
    """The one parameter is the action, whatever is observed."""

    n_params = 1

    def act(self, params: np.ndarray, observations: Any) -> np.ndarray:
        return params


class Float64LinearPolicy(LinearPolicy):
    """Linear policy in double precision, for comparisons that single precision would blur."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.double()

    def extract_features(self, obs, features_extractor=None):
        return super().extract_features(obs, features_extractor).double()
