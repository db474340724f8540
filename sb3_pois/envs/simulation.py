"""What all tasks have in common: a batch of independent worlds."""

from abc import ABC, abstractmethod
from typing import Any, ClassVar, Literal

import numpy as np
from gymnasium import spaces
from numpy.typing import ArrayLike, NDArray

from sb3_pois.common.arguments import check_integer
from sb3_pois.envs.rendering import PICTURE_HEIGHT, PICTURE_WIDTH, Canvas

FloatArray = NDArray[np.float64]
BoolArray = NDArray[np.bool_]
IndexArray = NDArray[np.intp]


class Simulation(ABC):
    """
    ``n_worlds`` independent copies of one task's world, stepped together.

    The single and the vector environments all run this one implementation; a world's path depends on its own
    state and controls only, so it is the same, bit for bit, in a batch of any size.

    :param n_worlds: number of worlds
    :raises ValueError: if ``n_worlds`` is not a positive integer
    """

    task: ClassVar[str]
    action_dim: ClassVar[int] = 1
    observation_dim: ClassVar[int]
    state_dim: ClassVar[int]
    # The control is the action, clipped to [-1, 1], times this (newtons or newton metres)
    control_limit: ClassVar[float]
    # Seconds of simulated time per step
    step_seconds: ClassVar[float]
    # Random numbers one reset takes, and the law they are drawn from
    noise_dim: ClassVar[int]
    noise_law: ClassVar[Literal["uniform", "normal"]]

    def __init__(self, n_worlds: int):
        check_integer("the number of environments", n_worlds, least=1)
        self.n_worlds = int(n_worlds)

    @classmethod
    def action_space(cls) -> spaces.Box:
        """
        The actions of one environment.

        :return: [-1, 1] in every dimension
        """
        return spaces.Box(-1.0, 1.0, (cls.action_dim,), np.float32)

    @classmethod
    def observation_space(cls) -> spaces.Box:
        """
        The observations of one environment.

        :return: an unbounded box in double precision
        """
        return spaces.Box(-np.inf, np.inf, (cls.observation_dim,), np.float64)

    def controls(self, actions: ArrayLike, shape: tuple[int, ...]) -> FloatArray:
        """
        Rescale actions to controls, clipped to the control range.

        :param actions: actions of the given shape; outside [-1, 1] they are clipped
        :param shape: ``(action_dim,)`` for one environment, ``(n_worlds, action_dim)`` for a batch
        :return: controls, shape ``(n_worlds, action_dim)``, in newtons or newton metres
        :raises ValueError: if the shape or the type is wrong or an action is NaN
        """
        given = np.asarray(actions)
        if given.shape != shape or given.dtype.kind not in "fiu":
            raise ValueError(
                f"{self.task}: the actions are {given.dtype} of shape {given.shape}, "
                f"but must be real numbers in [-1, 1] of shape {shape}"
            )
        clipped = np.minimum(np.maximum(given.astype(np.float64), -1.0), 1.0).reshape(-1, self.action_dim)
        # clipped values are finite or NaN, so their sum is NaN exactly when one of them is
        if np.isnan(np.add.reduce(clipped, axis=None)):
            index = int(np.flatnonzero(np.isnan(clipped).any(axis=1))[0])
            where = f"of environment {index} " if len(shape) == 2 else ""
            raise ValueError(f"{self.task}: the action {where}is {clipped[index].tolist()}, but must lie in [-1, 1]")
        return clipped * self.control_limit

    def state_vector(self, state: ArrayLike) -> FloatArray:
        """
        Check a state given from outside.

        :param state: the state, in the layout of :meth:`get_state`
        :return: the state, shape ``(state_dim,)``
        :raises ValueError: if its shape is wrong or it is not finite
        """
        vector = np.asarray(state, dtype=np.float64)
        if vector.shape != (self.state_dim,):
            raise ValueError(f"{self.task}: the state has shape {vector.shape}, but must have shape ({self.state_dim},)")
        if not np.isfinite(vector).all():
            raise ValueError(f"{self.task}: the state is {vector.tolist()}, but must be finite")
        return vector

    def renew(self, indices: IndexArray) -> None:  # noqa: B027 - most worlds remember nothing but their state
        """
        Forget whatever these worlds remember besides their state (contacts, warm starts), before a seeded reset.

        :param indices: the worlds, shape ``(k,)``
        """

    @abstractmethod
    def reset(self, indices: IndexArray, noise: FloatArray) -> None:
        """
        Put worlds into an initial state.

        :param indices: the worlds, shape ``(k,)``
        :param noise: standard uniform or standard normal numbers (``noise_law``), shape ``(k, noise_dim)``
        """

    @abstractmethod
    def step(self, controls: FloatArray) -> tuple[FloatArray, FloatArray, BoolArray]:
        """
        Advance every world by one environment step.

        :param controls: controls within the control range, shape ``(n_worlds, action_dim)``
        :return: observations ``(n_worlds, observation_dim)``, rewards and terminations ``(n_worlds,)``; all new arrays
        """

    @abstractmethod
    def observe(self, indices: IndexArray) -> FloatArray:
        """
        :param indices: the worlds, shape ``(k,)``
        :return: their observations, shape ``(k, observation_dim)``, a new array
        """

    @abstractmethod
    def get_state(self, index: int) -> FloatArray:
        """
        :param index: a world
        :return: its full state, shape ``(state_dim,)``, a new array
        """

    @abstractmethod
    def set_state(self, index: int, state: ArrayLike) -> None:
        """
        Put one world into a given state, as a fresh world: no contact list and no warm start survives.

        :param index: a world
        :param state: the state, in the layout of :meth:`get_state`
        :raises ValueError: if the state has the wrong shape, is not finite, or is one the task cannot be in
        """

    # The rectangle a picture shows, in metres: left, bottom, width; the height follows from the picture's shape
    view: ClassVar[tuple[float, float, float]]

    def paint(self, canvas: Canvas, index: int) -> None:
        """
        Draw one world.

        :param canvas: what to draw on, in the world's own coordinates
        :param index: a world
        """
        raise NotImplementedError

    def render(self, index: int) -> NDArray[np.uint8]:
        """
        Picture of one world.

        :param index: a world
        :return: the picture, shape ``(PICTURE_HEIGHT, PICTURE_WIDTH, 3)``
        """
        canvas = Canvas(PICTURE_WIDTH, PICTURE_HEIGHT, self.view)
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
