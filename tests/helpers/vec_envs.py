"""SB3 vector environments with the abstract methods only."""

from collections.abc import Callable, Sequence
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from stable_baselines3.common.vec_env import VecEnv
from stable_baselines3.common.vec_env.base_vec_env import VecEnvIndices, VecEnvObs, VecEnvStepReturn

# Draws the lengths of that many new episodes
DrawLengths = Callable[[int], np.ndarray]


class MinimalVecEnv(VecEnv):
    """
    All environments in a few arrays; resets by itself, as SB3 demands, and offers nothing that SB3 does not demand.

    Observations are (episode, length, step), ``episode`` counting all episodes of all environments. The reward is 0 until
    an episode's last step, where it is ``last_reward(length)``.

    :param n_envs: number of environments
    :param draw_lengths: lengths of new episodes
    :param last_reward: reward of an episode's last step
    """

    def __init__(
        self, n_envs: int, draw_lengths: DrawLengths, last_reward: Callable[[np.ndarray], np.ndarray] = np.ones_like
    ) -> None:
        self.draw_lengths = draw_lengths
        self.last_reward = last_reward
        self.render_mode = None
        super().__init__(n_envs, spaces.Box(0, np.inf, (3,), np.float32), spaces.Discrete(2))
        self.n_started = 0
        self.n_steps = 0
        self.episodes = np.zeros(n_envs, dtype=np.int64)
        self.lengths = np.zeros(n_envs, dtype=np.int64)
        self.t = np.zeros(n_envs, dtype=np.int64)

    def reset(self) -> VecEnvObs:
        self._start(np.ones(self.num_envs, dtype=bool))
        return self._observations()

    def step_async(self, actions: np.ndarray) -> None:
        pass

    def step_wait(self) -> VecEnvStepReturn:
        self.n_steps += 1
        self.t += 1
        dones = self.t >= self.lengths
        rewards = np.where(dones, self.last_reward(self.lengths), 0.0).astype(np.float32)
        infos: list[dict[str, Any]] = [{} for _ in range(self.num_envs)]
        if dones.any():
            terminal_observations = self._observations()
            for env in np.flatnonzero(dones):
                infos[env]["terminal_observation"] = terminal_observations[env]
            self._start(dones)
        return self._observations(), rewards, dones, infos

    def close(self) -> None:
        pass

    def get_attr(self, attr_name: str, indices: VecEnvIndices = None) -> list[Any]:
        return [getattr(self, attr_name)] * len(list(self._get_indices(indices)))

    def set_attr(self, attr_name: str, value: Any, indices: VecEnvIndices = None) -> None:
        raise NotImplementedError

    def env_method(
        self, method_name: str, *method_args: Any, indices: VecEnvIndices = None, **method_kwargs: Any
    ) -> list[Any]:
        raise NotImplementedError

    def env_is_wrapped(self, wrapper_class: type[gym.Wrapper], indices: VecEnvIndices = None) -> list[bool]:
        return [False] * len(list(self._get_indices(indices)))

    def _start(self, envs: np.ndarray) -> None:
        n = int(envs.sum())
        self.episodes[envs] = self.n_started + np.arange(n)
        self.n_started += n
        self.lengths[envs] = self.draw_lengths(n)
        self.t[envs] = 0

    def _observations(self) -> np.ndarray:
        return np.stack([self.episodes, self.lengths, self.t], axis=1).astype(np.float32)


def one_or_hundred(seed: int) -> DrawLengths:
    """Lengths 1 or 100, each with probability one half."""
    rng = np.random.default_rng(seed)
    return lambda n: rng.choice([1, 100], size=n)


def always(length: int) -> DrawLengths:
    return lambda n: np.full(n, length)


def in_turn(lengths: Sequence[int]) -> DrawLengths:
    """Lengths one after the other, then over again."""
    position = 0

    def draw(n: int) -> np.ndarray:
        nonlocal position
        position += n
        return np.array([lengths[i % len(lengths)] for i in range(position - n, position)])

    return draw
