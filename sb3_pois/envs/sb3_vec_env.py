"""The Stable-Baselines3 vector environment of every task."""

from collections.abc import Sequence
from typing import Any

import gymnasium as gym
import numpy as np
from numpy.typing import ArrayLike, NDArray
from stable_baselines3.common.vec_env.base_vec_env import VecEnvIndices, VecEnvObs, VecEnvStepReturn

from sb3_pois.common.vec_env import GymnasiumVecEnv
from sb3_pois.envs.gym_vector_env import TaskVectorEnv
from sb3_pois.envs.simulation import FloatArray
from sb3_pois.envs.tasks import HORIZON


class TaskVecEnv(GymnasiumVecEnv):
    """
    Many environments of a task, stepped in array operations and reset in the step that ends an episode.

    Every array that ``reset`` and ``step`` return is new. ``env_method`` reaches the methods ``reset``, ``render``,
    ``get_state`` and ``set_state`` of each environment (:class:`EnvView`).

    :param task: id of the task
    :param n_envs: number of environments
    :param max_episode_steps: steps after which an episode is truncated, or None for no limit
    :param render_mode: ``"rgb_array"``, ``"human"`` or None
    :raises ValueError: if the task or the render mode is unknown or a number is out of range
    """

    venv: TaskVectorEnv

    def __init__(self, task: str, n_envs: int, max_episode_steps: int | None = HORIZON, render_mode: str | None = None):
        venv = TaskVectorEnv(task, n_envs, max_episode_steps, render_mode)
        self.spec = gym.spec(venv.batch.task)  # VecMonitor writes its id
        self._views = [EnvView(self, venv, index) for index in range(venv.num_envs)]
        super().__init__(venv)
        self.metadata = venv.metadata

    def reset(self) -> VecEnvObs:
        """
        Start new episodes everywhere, with the seeds of the last call of :meth:`seed` if they have not been used.

        :return: observations, shape ``(n_envs, observation_dim)``
        :raises ValueError: if options were set: there are none
        """
        options = next(filter(None, self._options), None)
        if options:
            self._reset_options()
            raise ValueError(f"{self.venv.batch.task}: options is {options}, but reset() takes none")
        self._actions = None
        return super().reset()

    def step_wait(self) -> VecEnvStepReturn:
        """
        Advance every environment by one step, and reset those whose episode ended.

        Past Gymnasium's infos, which take longer to translate than a step of a hundred cart-poles.

        :return: observations, rewards, dones and infos; where ``dones`` is set, the observation is the first of the next
            episode and the info has the last one's ``terminal_observation``
        :raises ValueError: if the actions have the wrong shape or type or are NaN
        :raises RuntimeError: before the first reset, or without :meth:`step_async`
        """
        if self._actions is None:
            raise RuntimeError(f"{self.venv.batch.task}: step_wait() needs a step_async() before it")
        observations, rewards, terminated, truncated, ended, last_observations = self.venv.advance(self._actions)
        self._actions = None
        infos: list[dict[str, Any]] = [{"TimeLimit.truncated": False} for _ in range(self.num_envs)]
        if ended.size:
            is_cut = (truncated[ended] & ~terminated[ended]).tolist()
            for index, cut, last_observation in zip(ended.tolist(), is_cut, last_observations, strict=True):
                infos[index] = {"TimeLimit.truncated": cut, "terminal_observation": last_observation}
                self.reset_infos[index] = {}
        return observations, rewards, terminated | truncated, infos

    def get_images(self) -> Sequence[NDArray[np.uint8] | None]:
        return self.env_method("render")

    def get_attr(self, attr_name: str, indices: VecEnvIndices = None) -> list[Any]:
        return [getattr(self._views[index], attr_name) for index in self._get_indices(indices)]

    def set_attr(self, attr_name: str, value: Any, indices: VecEnvIndices = None) -> None:
        for index in self._get_indices(indices):
            setattr(self._views[index], attr_name, value)

    def env_method(
        self, method_name: str, *method_args: Any, indices: VecEnvIndices = None, **method_kwargs: Any
    ) -> list[Any]:
        # unlike the adapter's, in the chosen environments only
        return [method(*method_args, **method_kwargs) for method in self.get_attr(method_name, indices)]


class EnvView:
    """
    One environment of a :class:`TaskVecEnv`, as far as it can be used alone.

    :param vec_env: the vector environment
    :param venv: the Gymnasium vector environment in it
    :param index: which environment
    """

    def __init__(self, vec_env: TaskVecEnv, venv: TaskVectorEnv, index: int):
        self._vec_env = vec_env
        self._batch = venv.batch
        self._index = index
        self.unwrapped = self
        self.spec = vec_env.spec
        self.render_mode = venv.render_mode
        self.metadata = venv.metadata
        self.observation_space = venv.single_observation_space
        self.action_space = venv.single_action_space
        self.max_episode_steps = venv.batch.max_episode_steps

    def reset(self, *, seed: int | None = None) -> tuple[FloatArray, dict[str, Any]]:
        """
        Start a new episode in this environment alone.

        :param seed: a seed, or None to go on with its random stream
        :return: the first observation and an empty dictionary
        """
        self._vec_env.reset_infos[self._index] = {}
        return self._batch.reset(np.array([self._index]), [seed])[0], {}

    def get_state(self) -> FloatArray:
        """
        The full state of the world.

        :return: shape ``(state_dim,)``
        """
        return self._batch.get_state(self._index)

    def set_state(self, state: ArrayLike) -> None:
        """
        Start an episode in a given state, in a fresh world.

        :param state: shape ``(state_dim,)``, in the layout of :meth:`get_state`
        """
        self._batch.resume(self._index, state)

    def render(self) -> NDArray[np.uint8] | None:
        """
        Draw this world, if the render mode asks for pictures.

        :return: picture in mode ``"rgb_array"``, else None
        """
        return self._batch.simulation.render(self._index) if self.render_mode == "rgb_array" else None


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

    :param env_id: id of the task, such as ``"POIS/Cartpole-v0"``
    :param n_envs: number of environments
    :param seed: environment i starts from ``seed + i`` at the first reset; None for a random start
    :param max_episode_steps: steps after which an episode is truncated, or None for no limit
    :param render_mode: ``"rgb_array"``, ``"human"`` or None
    :return: the vector environment
    :raises ValueError: if the task or the render mode is unknown or a number is out of range
    :raises gymnasium.error.DependencyNotInstalled: if the task's engine cannot be imported
    """
    vec_env = TaskVecEnv(env_id, n_envs, max_episode_steps, render_mode)
    if seed is not None:
        vec_env.seed(seed)
        vec_env.action_space.seed(seed)
    return vec_env
