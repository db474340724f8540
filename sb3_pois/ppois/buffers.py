"""Storage of a batch of episodes whose controllers were drawn from a hyperpolicy."""

from collections.abc import Callable

import numpy as np
from gymnasium import spaces

from sb3_pois.common.buffers import EpisodeRolloutBuffer


class HyperpolicyBuffer(EpisodeRolloutBuffer):
    """
    A batch of episodes: their rewards, and the controller parameters that each was run with.

    Parameters are kept as the standard normal noise z that they come from, theta = mean + std z, in float32 as it was
    drawn: half the memory, and nothing is lost.

    :param observation_space: observation space
    :param action_space: action space
    :ivar mean: mean of the behavioral hyperpolicy, float64, shape (n_params,)
    :ivar log_std: log standard deviation of the behavioral hyperpolicy, float64, shape (n_params,)
    :ivar noise: noise of each episode, float32, shape (n_episodes, n_params)
    """

    mean: np.ndarray
    log_std: np.ndarray
    noise: np.ndarray

    def __init__(self, observation_space: spaces.Space, action_space: spaces.Space) -> None:
        self.mean = self.log_std = np.zeros(0)
        super().__init__(observation_space, action_space, store_transitions=False)

    def reset(self) -> None:
        """Forget the episodes."""
        super().reset()
        self.noise = np.zeros((0, len(self.mean)), dtype=np.float32)
        self._noise_blocks: list[np.ndarray] = []

    def set_behavioral(self, mean: np.ndarray, log_std: np.ndarray) -> None:
        """
        Say which hyperpolicy the next batch comes from.

        :param mean: its mean, float64, shape (n_params,)
        :param log_std: its log standard deviation, float64, shape (n_params,)
        """
        self.mean, self.log_std = mean, log_std
        self.reset()

    @property
    def controller_params(self) -> np.ndarray:
        """Controller parameters of each episode, float64, shape (n_episodes, n_params)."""
        return self.mean + np.exp(self.log_std) * self.noise

    def add_episodes(self, kept: np.ndarray | None) -> None:
        """
        Append episodes in launch order.

        :param kept: their noise, shape (n_started, n_params)
        """
        assert kept is not None
        self._noise_blocks.append(kept)

    def pack(self, episode_lengths: np.ndarray, normalize_rewards: Callable[[np.ndarray], np.ndarray] | None = None) -> None:
        """
        Lay the collected steps out episode by episode.

        :param episode_lengths: number of steps to keep of the first episodes in launch order, shape (n_episodes,)
        :param normalize_rewards: makes of the environments' rewards those that the algorithm sees; None for no difference
        """
        super().pack(episode_lengths, normalize_rewards)
        self.noise = np.empty((self.n_episodes, len(self.mean)), dtype=np.float32)
        end = 0
        while self._noise_blocks:
            block = self._noise_blocks.pop(0)  # releases its memory as soon as it is copied
            start, end = end, end + len(block)
            self.noise[start:end] = block[: max(0, self.n_episodes - start)]  # the last may be superfluous
