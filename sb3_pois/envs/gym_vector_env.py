"""The Gymnasium vector environment of every task."""

from collections.abc import Sequence
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.vector import AutoresetMode
from gymnasium.vector.utils import batch_space
from numpy.typing import ArrayLike, NDArray

from sb3_pois.envs.batch import Batch, BatchStep
from sb3_pois.envs.rendering import RENDER_MODES, Viewer, check_render_mode
from sb3_pois.envs.simulation import BoolArray, FloatArray
from sb3_pois.envs.tasks import HORIZON


class TaskVectorEnv(gym.vector.VectorEnv[FloatArray, NDArray[np.float32], NDArray[Any]]):
    """
    Many environments of a task, stepped in array operations and reset in the step that ends an episode.

    The last observation of an episode is in ``infos["final_obs"]``, as Gymnasium's same-step autoreset has it.

    :param task: id of the task
    :param num_envs: number of environments
    :param max_episode_steps: steps after which an episode is truncated, or None for no limit
    :param render_mode: ``"rgb_array"``, ``"human"`` or None
    :raises ValueError: if the task or the render mode is unknown or a number is out of range
    """

    metadata: dict[str, Any] = {  # noqa: RUF012
        "render_modes": RENDER_MODES,
        "render_fps": 50,
        "autoreset_mode": AutoresetMode.SAME_STEP,
    }

    def __init__(self, task: str, num_envs: int = 1, max_episode_steps: int | None = HORIZON, render_mode: str | None = None):
        check_render_mode(render_mode)
        self.batch = Batch(task, num_envs, max_episode_steps)
        simulation = self.batch.simulation
        self.num_envs = self.batch.n_envs
        self.single_action_space = simulation.action_space()
        self.single_observation_space = simulation.observation_space()
        self.action_space = batch_space(self.single_action_space, self.num_envs)
        self.observation_space = batch_space(self.single_observation_space, self.num_envs)
        self.render_mode = render_mode
        self.metadata = {**self.metadata, "render_fps": round(1 / simulation.step_seconds)}
        self._viewer = Viewer(simulation.task, self.metadata["render_fps"])
        self._last_observations = np.zeros((self.num_envs, simulation.observation_dim))

    def reset(
        self, *, seed: int | Sequence[int | None] | None = None, options: dict[str, Any] | None = None
    ) -> tuple[FloatArray, dict[str, Any]]:
        """
        Start new episodes.

        :param seed: environment i gets ``seed + i``, or ``seed[i]`` of a sequence; None goes on with the random streams
        :param options: ``reset_mask``, boolean of shape ``(num_envs,)``, resets only some environments
        :return: observations, shape ``(num_envs, observation_dim)``, and an empty dictionary
        :raises ValueError: if the number of seeds is wrong or an option is unknown or malformed
        """
        seeds = self._seeds(seed)
        indices = self._chosen(options)
        self._last_observations[indices] = self.batch.reset(indices, [seeds[index] for index in indices.tolist()])
        self._show()
        return self._last_observations.copy(), {}

    def _seeds(self, seed: int | Sequence[int | None] | None) -> Sequence[int | None]:
        if seed is None:
            return [None] * self.num_envs
        if isinstance(seed, (int, np.integer)):
            return [int(seed) + index for index in range(self.num_envs)]
        if len(seed) != self.num_envs:
            raise ValueError(f"{self.batch.task}: there are {len(seed)} seeds, but {self.num_envs} environments")
        return seed

    def _chosen(self, options: dict[str, Any] | None) -> NDArray[np.intp]:
        if not options:
            return self.batch.everyone
        unknown = sorted(set(options) - {"reset_mask"})
        if unknown:
            raise ValueError(f"{self.batch.task}: options has {', '.join(unknown)}, but allowed is 'reset_mask'")
        mask = np.asarray(options["reset_mask"])
        if mask.shape != (self.num_envs,) or mask.dtype != np.bool_:
            raise ValueError(
                f"{self.batch.task}: reset_mask is {mask.dtype} of shape {mask.shape}, "
                f"but must be boolean of shape ({self.num_envs},)"
            )
        return np.flatnonzero(mask)

    def step(self, actions: NDArray[np.float32]) -> tuple[FloatArray, FloatArray, BoolArray, BoolArray, dict[str, Any]]:
        """
        Advance every environment by one step, and reset those whose episode ended.

        :param actions: shape ``(num_envs, action_dim)``, clipped to [-1, 1]
        :return: observations, rewards, terminations, truncations (all new arrays) and infos
        :raises ValueError: if the actions have the wrong shape or type or are NaN
        :raises RuntimeError: before the first reset
        """
        observations, rewards, terminated, truncated, ended, last_observations = self.advance(actions)
        infos: dict[str, Any] = {}
        if ended.size:
            is_final = np.zeros(self.num_envs, dtype=bool)
            is_final[ended] = True
            final_obs = np.full(self.num_envs, None, dtype=object)
            for index, last_observation in zip(ended.tolist(), last_observations, strict=True):
                final_obs[index] = last_observation
            infos = {"final_obs": final_obs, "_final_obs": is_final, "final_info": {}, "_final_info": is_final.copy()}
        return observations, rewards, terminated, truncated, infos

    def advance(self, actions: ArrayLike) -> BatchStep:
        """
        Step without Gymnasium's infos, for whoever makes infos of another kind.

        :param actions: actions, shape ``(num_envs, action_dim)``
        :return: what :meth:`Batch.step` returns
        """
        result = self.batch.step(actions)
        self._last_observations = result[0].copy()
        self._show()
        return result

    def _show(self) -> None:
        if self.render_mode == "human":
            self._viewer.show(self._pictures())

    def _pictures(self) -> list[NDArray[np.uint8]]:
        return [self.batch.simulation.render(index) for index in range(self.num_envs)]

    def render(self) -> tuple[NDArray[np.uint8], ...] | None:
        """
        Pictures of the worlds.

        :return: one per environment, each of shape ``(height, width, 3)``, in mode ``"rgb_array"``, else None: a window is
            kept up to date by itself
        """
        if self.render_mode == "rgb_array":
            return tuple(self._pictures())
        if self.render_mode is None:
            gym.logger.warn(f"{self.batch.task}: render() draws nothing without a render_mode")
        return None

    def close_extras(self, **kwargs: Any) -> None:
        self._viewer.close()
        self.batch.simulation.close()
