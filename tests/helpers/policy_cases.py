"""APOIS's policies, each with an environment for it whose episodes differ in length or whose actions earn something."""

from typing import Any

import gymnasium as gym
import numpy as np
import torch as th
from gymnasium import spaces
from stable_baselines3.common.envs import FakeImageEnv


class DoubleBox(gym.Env):
    """Two observations, two actions, reward for answering an observation; episodes of different lengths."""

    def __init__(self, observation_space=None, action_space=None):
        self.observation_space = observation_space or spaces.Box(-1.0, 1.0, (2,), np.float32)
        self.action_space = action_space or spaces.Box(-1.0, 1.0, (2,), np.float32)

    def reset(self, seed=None, options=None):
        super().reset(seed=seed)
        self.steps_left = int(self.np_random.integers(2, 9))
        return self._observe(), {}

    def step(self, action):
        self.steps_left -= 1
        reward = 1.0 - float(np.abs(np.asarray(action, dtype=float)).mean())
        return self._observe(), reward, self.steps_left == 0, False, {}

    def _observe(self):
        if isinstance(self.observation_space, spaces.Dict):
            return {key: self._draw(space) for key, space in self.observation_space.items()}
        return self._draw(self.observation_space)

    def _draw(self, space):
        return self.np_random.uniform(-1.0, 1.0, space.shape).astype(np.float32)


class RewardedImageEnv(FakeImageEnv):
    """Random images, and a reward for what is done."""

    def step(self, action):
        observation, _, terminated, truncated, info = super().step(action)
        return observation, float(np.sum(action)), terminated, truncated, info


def image_env():
    return RewardedImageEnv(screen_height=36, screen_width=36, n_channels=1, discrete=False, channel_first=True)


POLICY_CASES: dict[str, Any] = {
    "linear": ("LinearPolicy", DoubleBox, {}),
    "mlp": ("MlpPolicy", DoubleBox, {}),
    "relu": ("MlpPolicy", DoubleBox, {"activation_fn": th.nn.ReLU, "net_arch": [16]}),
    "elu": ("MlpPolicy", DoubleBox, {"activation_fn": th.nn.ELU}),
    "discrete": ("MlpPolicy", lambda: DoubleBox(action_space=spaces.Discrete(3)), {}),
    "multi-discrete": ("MlpPolicy", lambda: DoubleBox(action_space=spaces.MultiDiscrete([2, 3])), {}),
    "multi-binary": ("LinearPolicy", lambda: DoubleBox(action_space=spaces.MultiBinary(2)), {}),
    "cnn": ("CnnPolicy", image_env, {}),
    "dict": (
        "MultiInputPolicy",
        lambda: DoubleBox(spaces.Dict({"a": spaces.Box(-1, 1, (2,)), "b": spaces.Box(-1, 1, (3,))})),
        {},
    ),
}
