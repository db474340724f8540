"""The Stable-Baselines3 vector environment of every task."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import gymnasium as gym
import numpy as np
from numpy.typing import ArrayLike, NDArray
from stable_baselines3.common.vec_env import VecEnv
from stable_baselines3.common.vec_env.base_vec_env import VecEnvIndices

from sb3_pois.envs.rendering import Viewer
from sb3_pois.envs.simulation import HORIZON, Batch, FloatArray, check_render_mode


class TaskVecEnv(VecEnv):
    """
    Many environments of a task, stepped in array operations and reset in the step that ends an episode.

    Every array that ``reset`` and ``step`` return is new. ``env_method`` reaches the methods ``reset``, ``render``,
    ``get_state`` and ``set_state`` of each environment (:class:`EnvView`).

    :param task: Id of the task.
    :param n_envs: Number of environments.
    :param max_episode_steps: Steps after which an episode is truncated, or None for no limit.
    :param render_mode: ``"rgb_array"``, ``"human"`` or None.
    :raises ValueError: if the task or the render mode is unknown or a number is out of range.
    """

    def __init__(self, task: str, n_envs: int, max_episode_steps: int | None = HORIZON, render_mode: str | None = None):
        check_render_mode(task, render_mode)
        self.batch = Batch(task, n_envs, max_episode_steps)
        simulation = self.batch.simulation
        fps = round(1 / simulation.step_seconds)
        self.viewer = Viewer(simulation.task, fps)
        self._actions: ArrayLike | None = None
        self._views = [EnvView(self, index, render_mode) for index in range(self.batch.n_envs)]
        super().__init__(self.batch.n_envs, simulation.observation_space(), simulation.action_space())
        self.spec = gym.spec(self.batch.task)  # VecMonitor writes its id
        self.metadata = {"render_modes": ["human", "rgb_array"], "render_fps": fps}  # type: ignore[dict-item]

    def reset(self) -> FloatArray:
        """
        Start new episodes everywhere, with the seeds of the last call of :meth:`seed` if they have not been used.

        :return: Observations, shape ``(n_envs, observation_dim)``.
        :raises ValueError: if options were set: there are none.
        """
        if any(self._options):
            options = next(options for options in self._options if options)
            self._reset_options()
            raise ValueError(f"{self.batch.task}: reset() takes no options, not {options}")
        observations = self.batch.reset(self.batch.everyone, self._seeds)
        self._reset_seeds()
        self._actions = None
        self._show()
        return observations

    def step_async(self, actions: ArrayLike) -> None:
        """
        Take the actions of the next step.

        :param actions: Shape ``(n_envs, action_dim)``, clipped to [-1, 1].
        """
        self._actions = actions

    def step_wait(self) -> tuple[FloatArray, FloatArray, NDArray[np.bool_], list[dict[str, Any]]]:
        """
        Advance every environment by one step, and reset those whose episode ended.

        :return: Observations, rewards, dones and infos. Where ``dones`` is set, the observation is the first of the next
            episode and the info has the last one's ``terminal_observation``.
        :raises ValueError: if the actions have the wrong shape or type or are NaN.
        :raises RuntimeError: before the first reset, or without :meth:`step_async`.
        """
        if self._actions is None:
            raise RuntimeError(f"{self.batch.task}: step_wait() needs a step_async() before it")
        observations, rewards, terminated, truncated, ended, last_observations = self.batch.step(self._actions)
        self._actions = None
        infos: list[dict[str, Any]] = [{"TimeLimit.truncated": False} for _ in range(self.num_envs)]
        if ended.size:
            is_cut = (truncated[ended] & ~terminated[ended]).tolist()
            for index, cut, last_observation in zip(ended.tolist(), is_cut, last_observations, strict=True):
                infos[index] = {"TimeLimit.truncated": cut, "terminal_observation": last_observation}
                self.reset_infos[index] = {}
        self._show()
        return observations, rewards, terminated | truncated, infos

    def _show(self) -> None:
        if self.render_mode == "human":
            self.viewer.show([view.picture() for view in self._views])

    def close(self) -> None:
        """Close the window and free the renderer."""
        self.viewer.close()
        self.batch.simulation.close()

    def get_images(self) -> Sequence[NDArray[np.uint8] | None]:
        """
        Pictures of all environments.

        :return: One picture per environment, or Nones when the render mode is not ``"rgb_array"``.
        """
        return [view.render() for view in self._views]

    def render(self, mode: str | None = None) -> NDArray[np.uint8] | None:
        """
        Picture of all environments in one.

        :param mode: ``"human"`` or ``"rgb_array"``; left out, the environment's own render mode.
        :return: The picture in mode ``"rgb_array"``; None in mode ``"human"``, whose window is kept up to date by itself.
        """
        if self.render_mode == "human" and mode in (None, "human"):
            return None
        return super().render(mode)

    def get_attr(self, attr_name: str, indices: VecEnvIndices = None) -> list[Any]:
        """
        Read an attribute of environments.

        :param attr_name: Its name.
        :param indices: Which environments; None for all.
        :return: One value per environment.
        """
        return [getattr(view, attr_name) for view in self._chosen(indices)]

    def set_attr(self, attr_name: str, value: Any, indices: VecEnvIndices = None) -> None:
        """
        Set an attribute of environments.

        :param attr_name: Its name.
        :param value: Its new value.
        :param indices: Which environments; None for all.
        """
        for view in self._chosen(indices):
            setattr(view, attr_name, value)

    def env_method(
        self, method_name: str, *method_args: Any, indices: VecEnvIndices = None, **method_kwargs: Any
    ) -> list[Any]:
        """
        Call a method of environments.

        :param method_name: Its name.
        :param method_args: Positional arguments.
        :param indices: Which environments; None for all.
        :param method_kwargs: Keyword arguments.
        :return: One result per environment.
        """
        return [getattr(view, method_name)(*method_args, **method_kwargs) for view in self._chosen(indices)]

    def env_is_wrapped(self, wrapper_class: type[gym.Wrapper], indices: VecEnvIndices = None) -> list[bool]:
        """
        :param wrapper_class: A wrapper.
        :param indices: Which environments; None for all.
        :return: False for each environment: these have no wrappers, their time limit included.
        """
        return [False for _ in self._chosen(indices)]

    def _chosen(self, indices: VecEnvIndices) -> list[EnvView]:
        return [self._views[index] for index in self._get_indices(indices)]


class EnvView:
    """
    One environment of a :class:`TaskVecEnv`, as far as it can be used alone.

    :param vec_env: The vector environment.
    :param index: Which environment.
    :param render_mode: The vector environment's render mode.
    """

    def __init__(self, vec_env: TaskVecEnv, index: int, render_mode: str | None):
        self._vec_env = vec_env
        self._index = index
        self.render_mode = render_mode

    @property
    def unwrapped(self) -> EnvView:
        """The environment itself."""
        return self

    @property
    def spec(self) -> gym.envs.registration.EnvSpec:
        """The task's registration."""
        return gym.spec(self._vec_env.batch.task)

    @property
    def metadata(self) -> dict[str, Any]:
        """Render modes and frames per second."""
        return self._vec_env.metadata

    @property
    def observation_space(self) -> gym.Space[Any]:
        """The observations of one environment."""
        return self._vec_env.observation_space

    @property
    def action_space(self) -> gym.Space[Any]:
        """The actions of one environment."""
        return self._vec_env.action_space

    @property
    def max_episode_steps(self) -> int | None:
        """Steps after which an episode is truncated."""
        return self._vec_env.batch.max_episode_steps

    def reset(self, *, seed: int | None = None) -> tuple[FloatArray, dict[str, Any]]:
        """
        Start a new episode in this environment alone.

        :param seed: A seed, or None to go on with its random stream.
        :return: The first observation and an empty dictionary.
        """
        self._vec_env.reset_infos[self._index] = {}
        return self._vec_env.batch.reset(np.array([self._index]), [seed])[0], {}

    def get_state(self) -> FloatArray:
        """
        The full state of the world.

        :return: Shape ``(state_dim,)``.
        """
        return self._vec_env.batch.get_state(self._index)

    def set_state(self, state: ArrayLike) -> None:
        """
        Start an episode in a given state, in a fresh world.

        :param state: Shape ``(state_dim,)``, in the layout of :meth:`get_state`.
        """
        self._vec_env.batch.resume(self._index, state)

    def picture(self) -> NDArray[np.uint8]:
        """
        Draw this world.

        :return: Picture, shape ``(height, width, 3)``.
        """
        return self._vec_env.viewer.picture(self._vec_env.batch.simulation, self._index)

    def render(self) -> NDArray[np.uint8] | None:
        """
        Draw this world, if the render mode asks for pictures.

        :return: Picture in mode ``"rgb_array"``, else None.
        """
        return self.picture() if self.render_mode == "rgb_array" else None


def make_vec_env(
    env_id: str,
    n_envs: int = 1,
    seed: int | None = None,
    *,
    max_episode_steps: int | None = HORIZON,
    render_mode: str | None = None,
) -> TaskVecEnv:
    """
    Create the Stable-Baselines3 vector environment of a task, stepped in array operations.

    :param env_id: Id of the task, such as ``"POIS/Cartpole-v0"``.
    :param n_envs: Number of environments.
    :param seed: Environment i starts from ``seed + i`` at the first reset; None for a random start.
    :param max_episode_steps: Steps after which an episode is truncated, or None for no limit.
    :param render_mode: ``"rgb_array"``, ``"human"`` or None.
    :return: The vector environment.
    :raises ValueError: if the task or the render mode is unknown or a number is out of range.
    :raises gymnasium.error.DependencyNotInstalled: if the task's engine cannot be imported.
    """
    vec_env = TaskVecEnv(env_id, n_envs, max_episode_steps, render_mode)
    if seed is not None:
        vec_env.seed(seed)
        vec_env.action_space.seed(seed)
    return vec_env
