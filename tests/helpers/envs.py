"""Small environments in which every step says where it belongs."""

from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces

Info = dict[str, Any]


class CountingEnv(gym.Env):
    """
    Observations are (mark, episode, step), rewards 1, 2, 3, ... within an episode, so that a leak shows at once.

    :param lengths: lengths of the episodes, over and over again
    :param mark: first number of every observation
    :param truncates: whether episodes are truncated rather than terminated
    :param dtype: type of the observations
    """

    def __init__(
        self, lengths: tuple[int, ...] = (3,), mark: int = 0, truncates: bool = False, dtype: Any = np.float32
    ) -> None:
        high = 255 if np.dtype(dtype) == np.uint8 else 1e6
        self.observation_space: spaces.Space = spaces.Box(0, high, (3,), dtype)
        self.action_space: spaces.Space = spaces.Discrete(2)
        self.lengths = lengths
        self.mark = mark
        self.truncates = truncates
        self.episode = -1
        self.t = 0

    def reset(self, *, seed: int | None = None, options: Info | None = None) -> tuple[Any, Info]:
        super().reset(seed=seed)
        self.episode += 1
        self.t = 0
        return self.observation(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, Info]:
        assert self.action_space.contains(action), f"{action!r} is not in {self.action_space}"
        self.t += 1
        ended = self.t >= self.lengths[self.episode % len(self.lengths)]
        return self.observation(), float(self.t), ended and not self.truncates, ended and self.truncates, {"t": self.t}

    def observation(self) -> Any:
        return np.array([self.mark, self.episode, self.t], dtype=self.observation_space.dtype)


class CountingDictEnv(CountingEnv):
    """A :class:`CountingEnv` whose observations are a dict with parts of different types."""

    def __init__(self, lengths: tuple[int, ...] = (3,), mark: int = 0) -> None:
        super().__init__(lengths, mark)
        self.observation_space = spaces.Dict(
            count=spaces.Box(0, 1e6, (3,), np.float64),
            picture=spaces.Box(0, 255, (2, 2), np.uint8),
            label=spaces.Discrete(5),
        )

    def observation(self) -> dict[str, Any]:
        return dict(
            count=np.array([self.mark, self.episode, self.t], dtype=np.float64),
            picture=np.full((2, 2), self.t, dtype=np.uint8),
            label=np.int64(self.t % 5),
        )


class AnySpacesEnv(gym.Env):
    """
    Random observations and actions of any space; the reward is random too, the episodes have 4 steps.

    :param observation_space: observation space
    :param action_space: action space
    """

    def __init__(self, observation_space: spaces.Space, action_space: spaces.Space) -> None:
        self.observation_space = observation_space
        self.action_space = action_space
        self.actions: list[Any] = []

    def reset(self, *, seed: int | None = None, options: Info | None = None) -> tuple[Any, Info]:
        super().reset(seed=seed)
        if seed is not None:
            self.observation_space.seed(seed)
        self.t = 0
        return self.observation_space.sample(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, Info]:
        self.actions.append(action)
        self.t += 1
        reward = float(self.np_random.normal()) + float(np.sum(action))
        return self.observation_space.sample(), reward, False, self.t >= 4, {"is_success": bool(reward > 0.0)}


class ControlEnv(AnySpacesEnv):
    """Vectors of 3 as observations and an action of 1 number in [-0.1, 0.1], with which the reward grows."""

    def __init__(self) -> None:
        super().__init__(spaces.Box(-2.0, 2.0, (3,), np.float32), spaces.Box(-0.1, 0.1, (1,), np.float32))


class PoisonEnv(gym.Env):
    """
    Something that is not finite turns up in the fifth episode, and in no batch of four before it.

    :param where: ``reward``, ``observation``, ``dict`` (observation of a dict) or ``reset`` (first observation)
    :param value: what turns up
    """

    poisoned_episode = 5

    def __init__(self, where: str, value: float) -> None:
        box = spaces.Box(-np.inf, np.inf, (2,), np.float32)
        self.observation_space = spaces.Dict(good=box, bad=box) if where == "dict" else box
        self.action_space = spaces.Discrete(2)
        self.where = where
        self.value = value
        self.episode = 0

    def reset(self, *, seed: int | None = None, options: Info | None = None) -> tuple[Any, Info]:
        super().reset(seed=seed)
        self.episode += 1
        self.t = 0
        return self._observation(self.where == "reset"), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, Info]:
        self.t += 1
        is_bad = self.episode >= self.poisoned_episode and self.t == 2
        reward = self.value if is_bad and self.where == "reward" else float(action)
        return self._observation(is_bad and self.where in ("observation", "dict")), reward, self.t == 3, False, {}

    def _observation(self, is_bad: bool) -> Any:
        good = np.zeros(2, dtype=np.float32)
        bad = np.array([0.0, self.value if is_bad and self.episode >= self.poisoned_episode else 0.0], dtype=np.float32)
        return dict(good=good, bad=bad) if self.where == "dict" else bad
