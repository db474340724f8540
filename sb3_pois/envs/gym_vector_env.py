"""The Gymnasium vector environment of every task."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.vector import AutoresetMode
from gymnasium.vector.utils import batch_space
from numpy.typing import NDArray

from sb3_pois.envs.rendering import Viewer
from sb3_pois.envs.simulation import HORIZON, Batch, BoolArray, FloatArray, check_render_mode


class TaskVectorEnv(gym.vector.VectorEnv[FloatArray, NDArray[np.float32], NDArray[Any]]):
    """
    Many environments of a task, stepped in array operations and reset in the step that ends an episode.

    The last observation of an episode is in ``infos["final_obs"]``, as Gymnasium's same-step autoreset has it.

    :param task: Id of the task.
    :param num_envs: Number of environments.
    :param max_episode_steps: Steps after which an episode is truncated, or None for no limit.
    :param render_mode: ``"rgb_array"``, ``"human"`` or None.
    :raises ValueError: if the task or the render mode is unknown or a number is out of range.
    """

    metadata: dict[str, Any] = {  # noqa: RUF012
        "render_modes": ["human", "rgb_array"],
        "render_fps": 50,
        "autoreset_mode": AutoresetMode.SAME_STEP,
    }

    def __init__(self, task: str, num_envs: int = 1, max_episode_steps: int | None = HORIZON, render_mode: str | None = None):
        check_render_mode(task, render_mode)
        self._batch = Batch(task, num_envs, max_episode_steps)
        simulation = self._batch.simulation
        self.num_envs = self._batch.n_envs
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

        :param seed: Environment i gets ``seed + i``, or ``seed[i]`` of a sequence; None goes on with the random streams.
        :param options: ``reset_mask``, boolean of shape ``(num_envs,)``, resets only some environments.
        :return: Observations, shape ``(num_envs, observation_dim)``, and an empty dictionary.
        :raises ValueError: if the number of seeds is wrong or an option is unknown or malformed.
        """
        seeds = self._seeds(seed)
        indices = self._chosen(options)
        observations = self._last_observations.copy()
        observations[indices] = self._batch.reset(indices, [seeds[index] for index in indices.tolist()])
        self._last_observations = observations
        self._show()
        return observations.copy(), {}

    def _seeds(self, seed: int | Sequence[int | None] | None) -> Sequence[int | None]:
        if seed is None:
            return [None] * self.num_envs
        if isinstance(seed, (int, np.integer)):
            return [int(seed) + index for index in range(self.num_envs)]
        if len(seed) != self.num_envs:
            raise ValueError(f"{self._batch.task}: {self.num_envs} environments need as many seeds, not {len(seed)}")
        return seed

    def _chosen(self, options: dict[str, Any] | None) -> NDArray[np.intp]:
        if not options:
            return self._batch.everyone
        unknown = sorted(set(options) - {"reset_mask"})
        if unknown:
            raise ValueError(f"{self._batch.task}: the only option of reset() is 'reset_mask', not {', '.join(unknown)}")
        mask = np.asarray(options["reset_mask"])
        if mask.shape != (self.num_envs,) or mask.dtype != np.bool_:
            raise ValueError(
                f"{self._batch.task}: reset_mask must be boolean of shape ({self.num_envs},), "
                f"not {mask.dtype} of shape {mask.shape}"
            )
        return np.flatnonzero(mask)

    def step(self, actions: NDArray[np.float32]) -> tuple[FloatArray, FloatArray, BoolArray, BoolArray, dict[str, Any]]:
        """
        Advance every environment by one step, and reset those whose episode ended.

        :param actions: Shape ``(num_envs, action_dim)``, clipped to [-1, 1].
        :return: Observations, rewards, terminations, truncations (all new arrays) and infos.
        :raises ValueError: if the actions have the wrong shape or type or are NaN.
        :raises RuntimeError: before the first reset.
        """
        observations, rewards, terminated, truncated, ended, last_observations = self._batch.step(actions)
        infos: dict[str, Any] = {}
        if ended.size:
            is_final = np.zeros(self.num_envs, dtype=bool)
            is_final[ended] = True
            final_obs = np.full(self.num_envs, None, dtype=object)
            for index, last_observation in zip(ended.tolist(), last_observations, strict=True):
                final_obs[index] = last_observation
            infos = {"final_obs": final_obs, "_final_obs": is_final, "final_info": {}, "_final_info": is_final.copy()}
        self._last_observations = observations
        self._show()
        return observations.copy(), rewards, terminated, truncated, infos

    def _show(self) -> None:
        if self.render_mode == "human":
            self._viewer.show(self._pictures())

    def _pictures(self) -> list[NDArray[np.uint8]]:
        return [self._viewer.picture(self._batch.simulation, index) for index in range(self.num_envs)]

    def render(self) -> tuple[NDArray[np.uint8], ...] | None:
        """
        Pictures of the worlds.

        :return: One per environment, each of shape ``(height, width, 3)``, in mode ``"rgb_array"``, else None: a window is
            kept up to date by itself.
        """
        if self.render_mode == "rgb_array":
            return tuple(self._pictures())
        if self.render_mode is None:
            gym.logger.warn(f"{self._batch.task}: render() draws nothing without a render_mode")
        return None

    def close_extras(self, **kwargs: Any) -> None:
        """
        Close the window and free the renderer.

        :param kwargs: What ``close`` was given; nothing here depends on it.
        """
        self._viewer.close()
        self._batch.simulation.close()
