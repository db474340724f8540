"""A batch of environments of one task: worlds, random streams, step counts and automatic resets."""

from collections.abc import Sequence

import gymnasium as gym
import numpy as np
from gymnasium.utils import seeding
from numpy.typing import ArrayLike

from sb3_pois.common.arguments import check_integer
from sb3_pois.envs.simulation import BoolArray, FloatArray, IndexArray, Simulation
from sb3_pois.envs.tasks import make_simulation

BatchStep = tuple[FloatArray, FloatArray, BoolArray, BoolArray, IndexArray, FloatArray]


class NoiseStreams:
    """
    One random stream per world, for the noise of its resets.

    Each stream is drawn in blocks of several resets, which gives the same numbers as drawing reset by reset and
    spares a batch with many short episodes most of the calls.

    :param simulation: whose resets the noise is for
    :param block: resets drawn at a time
    """

    def __init__(self, simulation: Simulation, block: int):
        self._is_normal = simulation.noise_law == "normal"
        self._block = block
        self._generators: list[np.random.Generator | None] = [None] * simulation.n_worlds
        self._noise = np.empty((simulation.n_worlds, block, simulation.noise_dim))
        self._used = np.full(simulation.n_worlds, block)

    def use(self, index: int, generator: np.random.Generator) -> None:
        """
        Draw a world's noise from this generator from now on.

        :param index: a world
        :param generator: where its numbers come from
        """
        if self._generators[index] is not generator:
            self._generators[index] = generator
            self._used[index] = self._block

    def seed(self, index: int, seed: int) -> None:
        """
        Start a world's stream anew.

        :param index: a world
        :param seed: the seed, used exactly as a single environment's ``reset(seed=...)`` uses it
        """
        self.use(index, seeding.np_random(seed)[0])

    def draw(self, indices: IndexArray) -> FloatArray:
        """
        The noise of these worlds' next resets.

        :param indices: the worlds, shape ``(k,)``, without repetition
        :return: standard uniform or standard normal numbers, shape ``(k, noise_dim)``
        """
        used = self._used[indices]
        exhausted = indices[used == self._block]
        if exhausted.size:
            for index in exhausted.tolist():
                self._refill(index)
            self._used[exhausted] = 0
            used = self._used[indices]
        self._used[indices] = used + 1
        return self._noise[indices, used]

    def _refill(self, index: int) -> None:
        generator = self._generators[index]
        if generator is None:
            generator = self._generators[index] = seeding.np_random()[0]
        if self._is_normal:
            generator.standard_normal(out=self._noise[index])
        else:
            generator.random(out=self._noise[index])


class ResetNeeded(gym.error.ResetNeeded, RuntimeError):
    """
    An environment was used before its first reset.

    :param task: id of the task
    :param method: what was called too early
    :param index: which environment of a batch, or None for a single one
    """

    def __init__(self, task: str, method: str, index: int | None = None):
        where = "" if index is None else f" (environment {index} of the batch has not been reset)"
        super().__init__(f"{task}: call reset() before {method}(){where}")


class Batch:
    """
    A batch of environments: worlds, their random streams, their step counts and their automatic resets.

    :param task: id of the task, a key of ``TASKS``
    :param n_envs: number of environments
    :param max_episode_steps: steps after which an episode is truncated, or None for no limit
    :raises ValueError: if the task is unknown or a number is out of range
    """

    # Resets drawn at a time per environment: enough to make drawing cheap, little enough to store for 10,000
    NOISE_BLOCK = 16

    def __init__(self, task: str, n_envs: int, max_episode_steps: int | None):
        self.simulation = make_simulation(task, n_envs)
        if max_episode_steps is not None:
            check_integer("max_episode_steps", max_episode_steps, least=1)
        self.task = self.simulation.task
        self.n_envs = self.simulation.n_worlds
        self.max_episode_steps = max_episode_steps
        self.everyone: IndexArray = np.arange(self.n_envs)
        self._limit = np.iinfo(np.int64).max if max_episode_steps is None else int(max_episode_steps)
        self._noise = NoiseStreams(self.simulation, self.NOISE_BLOCK)
        self._elapsed = np.zeros(self.n_envs, dtype=np.int64)
        self._is_running = np.zeros(self.n_envs, dtype=bool)
        self._all_running = False
        self._action_shape = (self.n_envs, self.simulation.action_dim)

    def reset(self, indices: IndexArray, seeds: Sequence[int | None]) -> FloatArray:
        """
        Start new episodes.

        :param indices: the environments to reset, shape ``(k,)``
        :param seeds: a seed for each of them, or None to go on with its random stream
        :return: their first observations, shape ``(k, observation_dim)``
        """
        seeded = [(index, seed) for index, seed in zip(indices.tolist(), seeds, strict=True) if seed is not None]
        for index, seed in seeded:
            self._noise.seed(index, seed)
        if seeded:
            # a seed determines the episode, whatever happened before it
            self.simulation.renew(np.array([index for index, _ in seeded]))
        self._is_running[indices] = True
        self._all_running = bool(self._is_running.all())
        return self._restart(indices)

    def get_state(self, index: int) -> FloatArray:
        """
        The full state of one environment.

        :param index: the environment
        :return: the state, see :meth:`Simulation.get_state`
        :raises RuntimeError: before its first reset
        """
        if not self._is_running[index]:
            raise ResetNeeded(self.task, "get_state", index)
        return self.simulation.get_state(index)

    def resume(self, index: int, state: ArrayLike) -> None:
        """
        Start an episode in a given state.

        :param index: the environment
        :param state: the state, see :meth:`Simulation.set_state`
        """
        self.simulation.set_state(index, state)
        self._elapsed[index] = 0
        self._is_running[index] = True
        self._all_running = bool(self._is_running.all())

    def _restart(self, indices: IndexArray) -> FloatArray:
        self.simulation.reset(indices, self._noise.draw(indices))
        self._elapsed[indices] = 0
        return self.simulation.observe(indices)

    def step(self, actions: ArrayLike) -> BatchStep:
        """
        Step every environment, and reset those whose episode ended.

        :param actions: actions, shape ``(n_envs, action_dim)``
        :return: observations (after a reset, the first of the new episode), rewards, terminations, truncations,
            the environments that ended, shape ``(k,)``, and their last observations, shape ``(k, observation_dim)``;
            all arrays are new
        :raises ValueError: if the actions have the wrong shape or type or are NaN
        :raises RuntimeError: before the first reset
        """
        if not self._all_running:
            raise ResetNeeded(self.task, "step", int(np.flatnonzero(~self._is_running)[0]))
        controls = self.simulation.controls(actions, self._action_shape)
        observations, rewards, terminated = self.simulation.step(controls)
        self._elapsed += 1
        truncated = self._elapsed >= self._limit
        ended = (terminated | truncated).nonzero()[0]
        last_observations = observations.take(ended, axis=0)
        if ended.size:
            observations[ended] = self._restart(ended)
        return observations, rewards, terminated, truncated, ended, last_observations
