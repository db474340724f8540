"""The Gymnasium environment of every task: a batch of one world."""

from typing import Any

import gymnasium as gym
import numpy as np
from numpy.typing import ArrayLike, NDArray

from sb3_pois.envs.batch import NoiseStreams, ResetNeeded
from sb3_pois.envs.rendering import RENDER_MODES, Viewer, check_render_mode
from sb3_pois.envs.simulation import FloatArray
from sb3_pois.envs.tasks import make_simulation

_ONLY = np.zeros(1, dtype=np.intp)


class TaskEnv(gym.Env[Any, Any]):
    """
    One environment of a task, without a time limit (``gym.make`` adds the horizon of 500).

    :param task: id of the task
    :param render_mode: ``"rgb_array"``, ``"human"`` or None
    :raises ValueError: if the task or the render mode is unknown
    """

    # gym.make reads this from the class, before it has an instance
    metadata: dict[str, Any] = {"render_modes": RENDER_MODES, "render_fps": 50}  # noqa: RUF012

    def __init__(self, task: str, render_mode: str | None = None):
        check_render_mode(render_mode)
        self._simulation = make_simulation(task, 1)
        self._noise = NoiseStreams(self._simulation, block=1)
        self._is_running = False
        self.action_space = self._simulation.action_space()
        self.observation_space = self._simulation.observation_space()
        self.render_mode = render_mode
        self.metadata = {**self.metadata, "render_fps": round(1 / self._simulation.step_seconds)}
        self._viewer = Viewer(self._simulation.task, self.metadata["render_fps"])

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[FloatArray, dict[str, Any]]:
        """
        Start an episode.

        :param seed: determines this and, until the next seed, all following episodes; None goes on with the random stream
        :param options: there are none; anything but None or an empty dictionary is an error
        :return: the first observation and an empty dictionary
        :raises ValueError: if an option is given
        """
        if options:
            raise ValueError(f"{self._simulation.task}: options is {options}, but reset() takes none")
        super().reset(seed=seed)
        if seed is not None:
            self._simulation.renew(_ONLY)
        self._noise.use(0, self.np_random)
        self._simulation.reset(_ONLY, self._noise.draw(_ONLY))
        self._is_running = True
        self._show()
        return self._simulation.observe(_ONLY)[0], {}

    def step(self, action: ArrayLike) -> tuple[FloatArray, float, bool, bool, dict[str, Any]]:
        """
        Advance by one step.

        :param action: shape ``(action_dim,)``, clipped to [-1, 1]
        :return: observation, reward, whether the episode ended, False (the time limit is a wrapper), an empty dictionary
        :raises ValueError: if the action has the wrong shape or type or is NaN
        :raises RuntimeError: before the first reset
        """
        self._require_reset("step")
        controls = self._simulation.controls(action, (self._simulation.action_dim,))
        observations, rewards, terminated = self._simulation.step(controls)
        self._show()
        return observations[0], float(rewards[0]), bool(terminated[0]), False, {}

    def get_state(self) -> FloatArray:
        """
        The full state of the world, in the layout of the recorded transitions (see the task's simulation).

        :return: shape ``(state_dim,)``
        :raises RuntimeError: before the first reset
        """
        self._require_reset("get_state")
        return self._simulation.get_state(0)

    def set_state(self, state: ArrayLike) -> None:
        """
        Go on from a given state in a fresh world. The steps that a time limit has counted are left alone.

        :param state: shape ``(state_dim,)``, in the layout of :meth:`get_state`
        :raises ValueError: if the shape is wrong, a number is not finite, or the task cannot be in this state
        """
        self._simulation.set_state(0, state)
        self._is_running = True

    def _require_reset(self, method: str) -> None:
        if not self._is_running:
            raise ResetNeeded(self._simulation.task, method)

    def _show(self) -> None:
        if self.render_mode == "human":
            self._viewer.show([self._simulation.render(0)])

    def render(self) -> NDArray[np.uint8] | None:
        """
        Picture of the world.

        :return: shape ``(height, width, 3)`` in mode ``"rgb_array"``, else None: a window is kept up to date by itself
        :raises RuntimeError: before the first reset
        """
        self._require_reset("render")
        if self.render_mode == "rgb_array":
            return self._simulation.render(0)
        if self.render_mode is None:
            gym.logger.warn(f"{self._simulation.task}: render() draws nothing without a render_mode")
        return None

    def close(self) -> None:
        self._viewer.close()
        self._simulation.close()
