"""Storage of a batch of whole episodes, packed one after the other."""

from collections.abc import Callable

import numpy as np
from gymnasium import spaces
from numpy.typing import DTypeLike

Observations = np.ndarray | dict[str, np.ndarray]

# While a batch is collected its rows lie in blocks of about this size, so that growing never copies
BLOCK_BYTES = 4 * 2**20
MAX_BLOCK_ROWS = 8192


class EpisodeRolloutBuffer:
    """
    A batch of whole episodes of one behavioral policy, packed rather than padded.

    While a batch is collected, steps arrive as the environments make them (:meth:`add`). :meth:`pack` then lays them out
    episode after episode, in the order in which the episodes were launched. Memory is proportional to the steps kept,
    and every array keeps the type in which the data came.

    :param observation_space: observation space, Dict or anything with a shape
    :param action_space: action space
    :param store_transitions: whether to keep observations and actions beside the rewards
    :ivar observations: observations as the policy saw them, shape (n_steps, *obs_shape), a dict of such for Dict spaces
    :ivar actions: actions as they were sampled, before any clipping, shape (n_steps, *action_shape)
    :ivar rewards: rewards as the algorithm sees them, shape (n_steps,)
    :ivar original_rewards: rewards before a ``VecNormalize``, shape (n_steps,)
    :ivar episode_lengths: number of steps of each episode, shape (n_episodes,)
    """

    observations: Observations
    actions: np.ndarray
    rewards: np.ndarray
    original_rewards: np.ndarray
    episode_lengths: np.ndarray

    def __init__(self, observation_space: spaces.Space, action_space: spaces.Space, store_transitions: bool = True) -> None:
        self.observation_space = observation_space
        self.action_space = action_space
        self.store_transitions = store_transitions
        self.reset()

    def reset(self) -> None:
        """Forget everything."""
        self._columns: dict[str, _Column] = {}
        self._episode_of_row: list[np.ndarray] = []
        self._observation_keys: list[str] | None = None
        no_rows = np.zeros(0, dtype=np.float32)
        self.observations = self.actions = self.rewards = self.original_rewards = no_rows
        self.episode_lengths = np.zeros(0, dtype=np.int64)

    @property
    def n_episodes(self) -> int:
        """Number of episodes of the packed batch."""
        return len(self.episode_lengths)

    @property
    def n_steps(self) -> int:
        """Number of steps of the packed batch."""
        return int(self.episode_lengths.sum())

    @property
    def episode_starts(self) -> np.ndarray:
        """Row of the first step of each episode, shape (n_episodes,)."""
        return np.cumsum(self.episode_lengths) - self.episode_lengths

    @property
    def episode_index(self) -> np.ndarray:
        """Episode that each step belongs to, shape (n_steps,)."""
        return np.repeat(np.arange(self.n_episodes), self.episode_lengths)

    def add_episodes(self, kept: np.ndarray | None) -> None:
        """
        Take note of new episodes, in launch order; this buffer keeps nothing of them beyond their steps.

        :param kept: what the actor has to have kept of each of them, shape (n_started, ...); None for nothing
        """

    def add(
        self,
        observations: Observations,
        actions: np.ndarray,
        rewards: np.ndarray,
        episode_of_env: np.ndarray,
        active: np.ndarray | None = None,
    ) -> None:
        """
        Copy one step of all environments.

        :param observations: observations before the step, shape (n_envs, *obs_shape), or a dict of such
        :param actions: actions as sampled, shape (n_envs, *action_shape)
        :param rewards: rewards before any ``VecNormalize``, shape (n_envs,)
        :param episode_of_env: number of the episode that each environment is in, shape (n_envs,)
        :param active: mask of the environments whose step is kept, shape (n_envs,); None keeps all
        """
        self._append("rewards", rewards, active)
        if self.store_transitions:
            self._append("actions", actions, active)
            if isinstance(observations, dict):
                self._observation_keys = list(observations)
                for key, values in observations.items():
                    self._append(f"observations.{key}", values, active)
            else:
                self._append("observations", observations, active)
        self._episode_of_row.append(episode_of_env.copy() if active is None else episode_of_env[active])

    def pack(self, episode_lengths: np.ndarray, normalize_rewards: Callable[[np.ndarray], np.ndarray] | None = None) -> None:
        """
        Lay the collected steps out episode by episode.

        :param episode_lengths: number of steps to keep of the first episodes in launch order, shape (n_episodes,); only
            the last may be shorter than what was collected of it, and what belongs to later episodes is dropped
        :param normalize_rewards: makes of the environments' rewards those that the algorithm sees, all at once so that
            one scale serves the whole batch; None for no difference
        """
        self.episode_lengths = np.asarray(episode_lengths, dtype=np.int64)
        order = np.argsort(np.concatenate(self._episode_of_row), kind="stable")
        self._episode_of_row = []
        target_row = np.empty_like(order)
        target_row[order] = np.arange(len(order))
        packed = {name: self._columns.pop(name).scatter(target_row, self.n_steps) for name in list(self._columns)}

        self.rewards = self.original_rewards = packed["rewards"]
        if normalize_rewards is not None:
            self.rewards = normalize_rewards(self.original_rewards)
        if self.store_transitions:
            self.actions = packed["actions"]
            if self._observation_keys is None:
                self.observations = packed["observations"]
            else:
                self.observations = {key: packed[f"observations.{key}"] for key in self._observation_keys}

    def episode_returns(self, gamma: float = 1.0, original: bool = False) -> np.ndarray:
        r"""
        Discounted return of every episode, :math:`R_i = \sum_t \gamma^t r_{it}`, summed in float64.

        :param gamma: discount factor
        :param original: take the rewards before ``VecNormalize``
        :return: returns, shape (n_episodes,)
        """
        rewards = (self.original_rewards if original else self.rewards).astype(np.float64)
        if gamma != 1.0:
            step_in_episode = np.arange(self.n_steps) - np.repeat(self.episode_starts, self.episode_lengths)
            rewards = rewards * gamma**step_in_episode
        return np.add.reduceat(rewards, self.episode_starts)

    def _append(self, name: str, rows: np.ndarray, active: np.ndarray | None) -> None:
        column = self._columns.get(name)
        if column is None:
            column = self._columns[name] = _Column(rows.shape[1:], rows.dtype)
        column.append(rows if active is None else rows[active])


class _Column:
    """Rows of one array, collected in blocks."""

    def __init__(self, row_shape: tuple[int, ...], dtype: DTypeLike) -> None:
        self.row_shape = row_shape
        self.dtype = np.dtype(dtype)
        row_bytes = max(1, self.dtype.itemsize * int(np.prod(row_shape)))
        self.block_rows = min(MAX_BLOCK_ROWS, max(1, BLOCK_BYTES // row_bytes))
        self.full_blocks: list[np.ndarray] = []
        self.block = self._new_block(0)
        self.n_in_block = 0

    def append(self, rows: np.ndarray) -> None:
        end = self.n_in_block + len(rows)
        if end > len(self.block):
            self.full_blocks.append(self.block[: self.n_in_block])
            self.block = self._new_block(len(rows))
            self.n_in_block, end = 0, len(rows)
        self.block[self.n_in_block : end] = rows
        self.n_in_block = end

    def scatter(self, target_row: np.ndarray, n_rows: int) -> np.ndarray:
        """Put row i of the column at ``target_row[i]`` where that lies below ``n_rows``; empties the column."""
        result = np.empty((n_rows, *self.row_shape), dtype=self.dtype)
        blocks = [*self.full_blocks, self.block[: self.n_in_block]]
        self.full_blocks = []
        position = 0
        while blocks:
            block = blocks.pop(0)  # releases its memory as soon as it is copied
            targets = target_row[position : position + len(block)]
            position += len(block)
            kept = targets < n_rows
            if kept.all():
                result[targets] = block
            else:
                result[targets[kept]] = block[kept]
        return result

    def _new_block(self, least_rows: int) -> np.ndarray:
        return np.empty((max(least_rows, self.block_rows), *self.row_shape), dtype=self.dtype)
