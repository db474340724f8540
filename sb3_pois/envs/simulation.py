"""What the six tasks have in common: a batch of independent worlds, and the random numbers that reset them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from gymnasium.utils import seeding
from numpy.typing import ArrayLike, NDArray

if TYPE_CHECKING:
    from sb3_pois.envs.rendering import Canvas

FloatArray = NDArray[np.float64]
BoolArray = NDArray[np.bool_]
IndexArray = NDArray[np.intp]

#: Where each task's simulation lives. Its module is imported when the task is made, so a missing engine harms no other task.
TASKS = {
    "POIS/Cartpole-v0": "sb3_pois.envs.cartpole:Cartpole",
    "POIS/InvertedPendulum-v0": "sb3_pois.envs.cartpole:InvertedPendulum",
    "POIS/Acrobot-v0": "sb3_pois.envs.acrobot:Acrobot",
    "POIS/MountainCar-v0": "sb3_pois.envs.mountain_car:MountainCar",
    "POIS/InvertedDoublePendulum-v0": "sb3_pois.envs.mujoco_tasks:InvertedDoublePendulum",
    "POIS/Swimmer-v0": "sb3_pois.envs.mujoco_tasks:Swimmer",
}
HORIZON = 500


class Simulation(ABC):
    """
    ``n_worlds`` independent copies of one task's world, stepped together.

    The single and the vector environments all run this one implementation; a world's path depends on its own
    state and controls only, so it is the same, bit for bit, in a batch of any size.

    :param n_worlds: Number of worlds.
    :raises ValueError: if ``n_worlds`` is not a positive integer.
    """

    task: ClassVar[str]
    action_dim: ClassVar[int] = 1
    observation_dim: ClassVar[int]
    state_dim: ClassVar[int]
    #: The control is the action, clipped to [-1, 1], times this (newtons or newton metres).
    control_limit: ClassVar[float]
    #: Seconds of simulated time per step.
    step_seconds: ClassVar[float]
    #: Random numbers one reset takes, and the law they are drawn from.
    noise_dim: ClassVar[int]
    noise_law: ClassVar[Literal["uniform", "normal"]]

    def __init__(self, n_worlds: int):
        if isinstance(n_worlds, bool) or not isinstance(n_worlds, (int, np.integer)) or n_worlds < 1:
            raise ValueError(f"{self.task}: the number of environments must be an integer of at least 1, not {n_worlds!r}")
        self.n_worlds = int(n_worlds)

    @classmethod
    def action_space(cls) -> spaces.Box:
        """
        The actions of one environment.

        :return: [-1, 1] in every dimension.
        """
        return spaces.Box(-1.0, 1.0, (cls.action_dim,), np.float32)

    @classmethod
    def observation_space(cls) -> spaces.Box:
        """
        The observations of one environment.

        :return: An unbounded box in double precision.
        """
        return spaces.Box(-np.inf, np.inf, (cls.observation_dim,), np.float64)

    def controls(self, actions: ArrayLike, shape: tuple[int, ...]) -> FloatArray:
        """
        Rescale actions to controls, clipped to the control range.

        :param actions: Actions of the given shape; outside [-1, 1] they are clipped.
        :param shape: ``(action_dim,)`` for one environment, ``(n_worlds, action_dim)`` for a batch.
        :return: Controls, shape ``(n_worlds, action_dim)``, in newtons or newton metres.
        :raises ValueError: if the shape or the type is wrong or an action is NaN.
        """
        given = np.asarray(actions)
        if given.shape != shape or given.dtype.kind not in "fiu":
            raise ValueError(
                f"{self.task}: actions must be real numbers in [-1, 1] of shape {shape}, "
                f"not {given.dtype} of shape {given.shape}"
            )
        clipped = np.minimum(np.maximum(given.astype(np.float64), -1.0), 1.0).reshape(-1, self.action_dim)
        # clipped values are finite or NaN, so their sum is NaN exactly when one of them is
        if np.isnan(np.add.reduce(clipped, axis=None)):
            index = int(np.flatnonzero(np.isnan(clipped).any(axis=1))[0])
            where = f"of environment {index} " if len(shape) == 2 else ""
            raise ValueError(
                f"{self.task}: the action {where}is {clipped[index].tolist()}; actions must be numbers in [-1, 1]"
            )
        return clipped * self.control_limit

    def state_vector(self, state: ArrayLike) -> FloatArray:
        """
        Check a state given from outside.

        :param state: The state, in the layout of :meth:`get_state`.
        :return: The state, shape ``(state_dim,)``.
        :raises ValueError: if its shape is wrong or it is not finite.
        """
        vector = np.asarray(state, dtype=np.float64)
        if vector.shape != (self.state_dim,):
            raise ValueError(f"{self.task}: a state has shape ({self.state_dim},), not {vector.shape}")
        if not np.isfinite(vector).all():
            raise ValueError(f"{self.task}: a state must be finite, not {vector.tolist()}")
        return vector

    def renew(self, indices: IndexArray) -> None:  # noqa: B027 - most worlds remember nothing but their state
        """
        Forget whatever these worlds remember besides their state (contacts, warm starts), before a seeded reset.

        :param indices: The worlds, shape ``(k,)``.
        """

    @abstractmethod
    def reset(self, indices: IndexArray, noise: FloatArray) -> None:
        """
        Put worlds into an initial state.

        :param indices: The worlds, shape ``(k,)``.
        :param noise: Standard uniform or standard normal numbers (``noise_law``), shape ``(k, noise_dim)``.
        """

    @abstractmethod
    def step(self, controls: FloatArray) -> tuple[FloatArray, FloatArray, BoolArray]:
        """
        Advance every world by one environment step.

        :param controls: Controls within the control range, shape ``(n_worlds, action_dim)``.
        :return: Observations ``(n_worlds, observation_dim)``, rewards and terminations ``(n_worlds,)``; all new arrays.
        """

    @abstractmethod
    def observe(self, indices: IndexArray) -> FloatArray:
        """
        :param indices: The worlds, shape ``(k,)``.
        :return: Their observations, shape ``(k, observation_dim)``, a new array.
        """

    @abstractmethod
    def get_state(self, index: int) -> FloatArray:
        """
        :param index: A world.
        :return: Its full state, shape ``(state_dim,)``, a new array.
        """

    @abstractmethod
    def set_state(self, index: int, state: ArrayLike) -> None:
        """
        Put one world into a given state, as a fresh world: no contact list and no warm start survives.

        :param index: A world.
        :param state: The state, in the layout of :meth:`get_state`.
        :raises ValueError: if the state has the wrong shape, is not finite, or is one the task cannot be in.
        """

    #: The rectangle a picture shows, in metres: left, bottom, width. The height follows from the picture's shape.
    view: ClassVar[tuple[float, float, float]]

    def paint(self, canvas: Canvas, index: int) -> None:
        """
        Draw one world.

        :param canvas: What to draw on, in the world's own coordinates.
        :param index: A world.
        """
        raise NotImplementedError

    def render(self, index: int, width: int, height: int) -> NDArray[np.uint8]:
        """
        Picture of one world.

        :param index: A world.
        :param width: Width in pixels.
        :param height: Height in pixels.
        :return: The picture, shape ``(height, width, 3)``.
        """
        from sb3_pois.envs.rendering import Canvas

        canvas = Canvas(width, height, self.view)
        self.paint(canvas, index)
        return canvas.pixels()

    def close(self) -> None:  # noqa: B027 - most have nothing to free
        """Free what rendering holds."""


class EngineSimulation(Simulation):
    """A simulation whose worlds live in an engine that cannot be pickled: a copy starts fresh worlds in the same states."""

    @abstractmethod
    def _build(self) -> None:
        """Create the engine's worlds."""

    def __init__(self, n_worlds: int):
        super().__init__(n_worlds)
        self._build()

    def __getstate__(self) -> dict[str, Any]:
        return {"n_worlds": self.n_worlds, "states": [self.get_state(index) for index in range(self.n_worlds)]}

    def __setstate__(self, saved: dict[str, Any]) -> None:
        self.n_worlds = saved["n_worlds"]
        self._build()
        for index, state in enumerate(saved["states"]):
            self.set_state(index, state)


class NoiseStreams:
    """
    One random stream per world, for the noise of its resets.

    Each stream is drawn in blocks of several resets, which gives the same numbers as drawing reset by reset and
    spares a batch with many short episodes most of the calls.

    :param simulation: Whose resets the noise is for.
    :param block: Resets drawn at a time.
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

        :param index: A world.
        :param generator: Where its numbers come from.
        """
        if self._generators[index] is not generator:
            self._generators[index] = generator
            self._used[index] = self._block

    def seed(self, index: int, seed: int) -> None:
        """
        Start a world's stream anew.

        :param index: A world.
        :param seed: The seed, used exactly as a single environment's ``reset(seed=...)`` uses it.
        """
        self.use(index, seeding.np_random(seed)[0])

    def draw(self, indices: IndexArray) -> FloatArray:
        """
        The noise of these worlds' next resets.

        :param indices: The worlds, shape ``(k,)``, without repetition.
        :return: Standard uniform or standard normal numbers, shape ``(k, noise_dim)``.
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

    :param task: Id of the task.
    :param method: What was called too early.
    :param index: Which environment of a batch, or None for a single one.
    """

    def __init__(self, task: str, method: str, index: int | None = None):
        where = "" if index is None else f" (environment {index} of the batch has not been reset)"
        super().__init__(f"{task}: call reset() before {method}(){where}")


class Batch:
    """
    A batch of environments: worlds, their random streams, their step counts and their automatic resets.

    :param task: Id of the task, a key of ``TASKS``.
    :param n_envs: Number of environments.
    :param max_episode_steps: Steps after which an episode is truncated, or None for no limit.
    :raises ValueError: if the task is unknown or a number is out of range.
    """

    #: Resets drawn at a time per environment: enough to make drawing cheap, little enough to store for 10,000.
    NOISE_BLOCK = 16

    def __init__(self, task: str, n_envs: int, max_episode_steps: int | None):
        self.simulation = make_simulation(task, n_envs)
        if max_episode_steps is not None and (
            isinstance(max_episode_steps, bool)
            or not isinstance(max_episode_steps, (int, np.integer))
            or max_episode_steps < 1
        ):
            raise ValueError(f"{task}: max_episode_steps must be an integer of at least 1 or None, not {max_episode_steps!r}")
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

        :param indices: The environments to reset, shape ``(k,)``.
        :param seeds: A seed for each of them, or None to go on with its random stream.
        :return: Their first observations, shape ``(k, observation_dim)``.
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

        :param index: The environment.
        :return: The state, see :meth:`Simulation.get_state`.
        :raises RuntimeError: before its first reset.
        """
        if not self._is_running[index]:
            raise ResetNeeded(self.task, "get_state", index)
        return self.simulation.get_state(index)

    def resume(self, index: int, state: ArrayLike) -> None:
        """
        Start an episode in a given state.

        :param index: The environment.
        :param state: The state, see :meth:`Simulation.set_state`.
        """
        self.simulation.set_state(index, state)
        self._elapsed[index] = 0
        self._is_running[index] = True
        self._all_running = bool(self._is_running.all())

    def _restart(self, indices: IndexArray) -> FloatArray:
        self.simulation.reset(indices, self._noise.draw(indices))
        self._elapsed[indices] = 0
        return self.simulation.observe(indices)

    def step(self, actions: ArrayLike) -> tuple[FloatArray, FloatArray, BoolArray, BoolArray, IndexArray, FloatArray]:
        """
        Step every environment, and reset those whose episode ended.

        :param actions: Actions, shape ``(n_envs, action_dim)``.
        :return: Observations (after a reset, the first of the new episode), rewards, terminations, truncations,
            the environments that ended, shape ``(k,)``, and their last observations, shape ``(k, observation_dim)``.
            All arrays are new.
        :raises ValueError: if the actions have the wrong shape or type or are NaN.
        :raises RuntimeError: before the first reset.
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


def make_simulation(task: str, n_worlds: int) -> Simulation:
    """
    Create a task's worlds.

    :param task: Id of the task, a key of ``TASKS``, with or without the prefix ``sb3_pois.envs:``.
    :param n_worlds: Number of worlds.
    :return: The simulation.
    :raises ValueError: if there is no such task.
    :raises gymnasium.error.DependencyNotInstalled: if the task's engine cannot be imported.
    """
    path = TASKS.get(task.removeprefix("sb3_pois.envs:")) if isinstance(task, str) else None
    if path is None:
        raise ValueError(f"There is no task {task!r}; the tasks are {', '.join(TASKS)}")
    module, name = path.split(":")
    return getattr(import_module(module), name)(n_worlds)


def check_render_mode(task: str, render_mode: str | None) -> None:
    """
    Refuse an unknown render mode.

    :param task: Id of the task.
    :param render_mode: What was asked for.
    :raises ValueError: if there is no such mode.
    """
    if render_mode not in (None, "rgb_array", "human"):
        raise ValueError(f"{task}: render_mode must be 'rgb_array', 'human' or None, not {render_mode!r}")
