"""Adapter from Gymnasium's vector environments to SB3's."""

from collections.abc import Sequence
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.vector import AutoresetMode
from stable_baselines3.common.env_util import is_wrapped
from stable_baselines3.common.vec_env import VecEnv
from stable_baselines3.common.vec_env.base_vec_env import VecEnvIndices, VecEnvObs, VecEnvStepReturn

# Key that marks, in an environment's info, a step that did nothing but reset it
RESET_STEP = "autoreset_step"


class GymnasiumVecEnv(VecEnv):
    """
    A Gymnasium ``VectorEnv`` seen as an SB3 ``VecEnv``.

    Both autoreset modes are served. With ``SAME_STEP`` the result obeys SB3's contract to the letter. With ``NEXT_STEP``
    an environment whose episode has ended spends its next step on its reset: the step takes no notice of the action,
    its reward is 0, its info carries ``"autoreset_step": True``, and the algorithms of this package drop it. Other code
    that steps the adapter sees that step as the first of the new episode.

    :param venv: vector environment to wrap
    :raises ValueError: if its ``metadata["autoreset_mode"]`` is neither ``NEXT_STEP`` nor ``SAME_STEP``
    """

    def __init__(self, venv: gym.vector.VectorEnv) -> None:
        self.venv = venv
        self.autoreset_mode = venv.metadata.get("autoreset_mode")
        if self.autoreset_mode not in (AutoresetMode.NEXT_STEP, AutoresetMode.SAME_STEP):
            raise ValueError(
                f"the vector environment's autoreset mode is {self.autoreset_mode}, but allowed are "
                "AutoresetMode.NEXT_STEP and AutoresetMode.SAME_STEP: set it in metadata['autoreset_mode']"
            )
        super().__init__(venv.num_envs, venv.single_observation_space, venv.single_action_space)
        self._actions: np.ndarray | None = None
        self._resets_next = np.zeros(venv.num_envs, dtype=bool)

    def reset(self) -> VecEnvObs:
        """
        Reset all environments, with the seed and the options that were set since the last reset.

        :return: observations, shape (n_envs, *obs_shape), or a dict of such
        """
        observations, infos = self.venv.reset(seed=self._seeds[0], options=self._options[0] or None)
        self.reset_infos = self._split_infos(infos)
        self._reset_seeds()
        self._reset_options()
        self._resets_next[:] = False
        return _copy(observations)

    def step_async(self, actions: np.ndarray) -> None:
        """
        Remember the actions for :meth:`step_wait`.

        :param actions: actions, shape (n_envs, *action_shape)
        """
        self._actions = actions

    def step_wait(self) -> VecEnvStepReturn:
        """
        Step all environments.

        :return: observations, rewards, dones and infos as SB3 has them
        """
        observations, rewards, terminations, truncations, vector_infos = self.venv.step(self._actions)
        observations = _copy(observations)
        dones = np.asarray(terminations) | np.asarray(truncations)
        final_observations = vector_infos.pop("final_obs", None)
        final_infos = vector_infos.pop("final_info", None)
        infos = self._split_infos(vector_infos)
        for env in np.flatnonzero(self._resets_next).tolist():
            infos[env][RESET_STEP] = True
        for env in np.flatnonzero(dones).tolist():
            infos[env]["TimeLimit.truncated"] = bool(truncations[env] and not terminations[env])
            if self.autoreset_mode == AutoresetMode.NEXT_STEP:
                infos[env]["terminal_observation"] = _row(observations, env)
            elif final_observations is not None:
                infos[env]["terminal_observation"] = final_observations[env]
        if final_infos is not None:
            for info, final_info in zip(infos, self._split_infos(final_infos), strict=True):
                info.update(final_info)
        if self.autoreset_mode == AutoresetMode.NEXT_STEP:
            self._resets_next = dones.copy()
        return observations, np.asarray(rewards, dtype=np.float32), dones, infos

    def close(self) -> None:
        """Close the vector environment."""
        self.venv.close()

    def get_images(self) -> Sequence[np.ndarray | None]:
        """
        Render all environments.

        :return: one picture per environment
        """
        images = self.venv.render()
        return [None] * self.num_envs if images is None else list(images)  # type: ignore[arg-type]

    def get_attr(self, attr_name: str, indices: VecEnvIndices = None) -> list[Any]:
        """
        Attribute of the environments, or of the vector environment where it has no separate ones.

        :param attr_name: name of the attribute
        :param indices: environments to ask; None for all
        :return: one value per environment
        """
        if attr_name == "render_mode" or not hasattr(self.venv.unwrapped, "get_attr"):
            values: Sequence[Any] = [getattr(self.venv, attr_name)] * self.num_envs
        else:
            values = self.venv.unwrapped.get_attr(attr_name)
        return [values[i] for i in self._get_indices(indices)]

    def set_attr(self, attr_name: str, value: Any, indices: VecEnvIndices = None) -> None:
        """
        Set an attribute of environments, or of the vector environment where it has no separate ones.

        :param attr_name: name of the attribute
        :param value: value for each of the environments
        :param indices: environments to set it in; None for all
        :raises ValueError: if only some environments are asked for and the vector environment has no separate ones
        """
        indices = list(self._get_indices(indices))
        if hasattr(self.venv.unwrapped, "set_attr"):
            values = list(self.get_attr(attr_name)) if len(indices) < self.num_envs else [value] * self.num_envs
            for i in indices:
                values[i] = value
            self.venv.unwrapped.set_attr(attr_name, values)
        elif len(indices) == self.num_envs:
            setattr(self.venv.unwrapped, attr_name, value)
        else:
            raise ValueError(f"indices is {indices}, but {self.venv} has no separate environments: set {attr_name!r} in all")

    def env_method(
        self, method_name: str, *method_args: Any, indices: VecEnvIndices = None, **method_kwargs: Any
    ) -> list[Any]:
        """
        Call a method of the environments.

        :param method_name: name of the method
        :param method_args: positional arguments
        :param indices: environments whose results to return; None for all. The method runs in all.
        :param method_kwargs: keyword arguments
        :return: one result per environment
        :raises AttributeError: if the vector environment has no separate environments
        """
        if not hasattr(self.venv.unwrapped, "call"):
            raise AttributeError(f"{self.venv} has no separate environments whose {method_name!r} could be called")
        results = self.venv.unwrapped.call(method_name, *method_args, **method_kwargs)
        return [results[i] for i in self._get_indices(indices)]

    def env_is_wrapped(self, wrapper_class: type[gym.Wrapper], indices: VecEnvIndices = None) -> list[bool]:
        """
        Whether environments are wrapped in a class; False where they run in other processes or are not separate.

        :param wrapper_class: class to look for
        :param indices: environments to ask; None for all
        :return: one answer per environment
        """
        envs = getattr(self.venv.unwrapped, "envs", None)
        return [envs is not None and is_wrapped(envs[i], wrapper_class) for i in self._get_indices(indices)]

    def _split_infos(self, vector_infos: dict[str, Any]) -> list[dict[str, Any]]:
        """One dict per environment from Gymnasium's dict of arrays with masks."""
        infos: list[dict[str, Any]] = [{} for _ in range(self.num_envs)]
        for key, values in vector_infos.items():
            if key.startswith("_") and key[1:] in vector_infos:
                continue  # the mask of another key
            mask = vector_infos.get(f"_{key}")
            per_env = self._split_infos(values) if isinstance(values, dict) else values
            if not hasattr(per_env, "__len__") or len(per_env) != self.num_envs:
                per_env = [values] * self.num_envs
            for env in range(self.num_envs) if mask is None else np.flatnonzero(mask):
                infos[env][key] = per_env[env]
        return infos


def _copy(observations: Any) -> VecEnvObs:
    """Own the memory: a vector environment may write its next observations where the last ones were."""
    if isinstance(observations, dict):
        return {key: np.array(values) for key, values in observations.items()}
    return np.array(observations)


def _row(observations: VecEnvObs, env: int) -> Any:
    if isinstance(observations, dict):
        return {key: values[env].copy() for key, values in observations.items()}
    return observations[env].copy()
