"""Collecting a batch of whole episodes: environments, an actor and a schedule in, a packed batch out."""

from collections.abc import Callable
from typing import Any, Protocol

import numpy as np
from gymnasium import spaces
from stable_baselines3.common.vec_env import VecEnv, VecEnvWrapper, VecNormalize

from sb3_pois.common.buffers import EpisodeRolloutBuffer, Observations
from sb3_pois.common.episode_schedule import EpisodeSchedule
from sb3_pois.common.vec_env import RESET_STEP


class Actor(Protocol):
    """Chooses the actions of one batch, from a snapshot of the behavioral policy."""

    def start_episodes(self, envs: np.ndarray) -> np.ndarray | None:
        """
        Start the next episodes in launch order.

        :param envs: indices of the environments that they start in, shape (n_started,)
        :return: what the batch has to keep of each of them, shape (n_started, ...); None for nothing
        """

    def act(self, observations: Observations) -> np.ndarray:
        """
        Choose one action per environment.

        :param observations: observations, shape (n_envs, *obs_shape), or a dict of such
        :return: actions before any clipping, shape (n_envs, *action_shape)
        """


def collect(
    env: VecEnv,
    actor: Actor,
    schedule: EpisodeSchedule,
    batch: EpisodeRolloutBuffer,
    on_step: Callable[[dict[str, Any]], bool],
) -> bool:
    """
    Collect a batch of whole episodes, each from a reset on.

    Where a ``VecNormalize`` normalises the rewards, its scale moves with every step, and one batch must not have several. So
    the batch's rewards are normalised all at once when it is complete, as ``VecNormalize`` would do it then.

    :param env: environments to step
    :param actor: chooses the actions
    :param schedule: says which environment runs which episode, and what the batch keeps
    :param batch: buffer to fill
    :param on_step: called after every step with ``obs``, ``actions``, ``new_obs``, ``rewards``, ``dones`` and ``infos``;
        where an environment is in no episode, its reward is 0, its info is empty and it is not done. When it returns
        False the batch is dropped.
    :return: whether the batch is complete
    :raises ValueError: if an observation, an action or a reward is not finite, an episode does not end, or a wrapper changes
        normalised rewards
    """
    batch.reset()
    to_env_actions = _EnvActions(env.action_space)
    normalizer = _reward_normalizer(env)
    n_vec_steps = 0
    started = np.zeros(0, dtype=np.int64)
    obs: Observations
    latest_obs: Any  # as the environments returned it

    while not schedule.is_complete:
        if schedule.wave_is_over:
            latest_obs = env.reset()
            obs = _own(latest_obs, latest_obs)
            started = schedule.start_wave()
            _check_finite("observation", obs, schedule, n_vec_steps)
        if len(started) > 0:
            batch.add_episodes(actor.start_episodes(started))
        actions = actor.act(obs)
        _check_finite("action", actions, schedule, n_vec_steps)
        new_obs, rewards, dones, infos = env.step(to_env_actions(actions, schedule))
        n_vec_steps += 1
        original_rewards = rewards if normalizer is None else _original_rewards(normalizer, rewards)
        original_rewards = original_rewards.astype(np.float32, copy=False)  # SubprocVecEnv has float64, unlike DummyVecEnv
        rewards = rewards.astype(np.float32, copy=False)

        skipped = [i for i in started.tolist() if RESET_STEP in infos[i]]  # a step that only reset the environment
        active = None if schedule.all_active and not skipped else schedule.active.copy()
        if active is not None:
            active[skipped] = False
            schedule.skip(skipped)
            rewards, dones = np.where(active, rewards, np.float32(0.0)), dones & active
            infos = [info if keep else {} for info, keep in zip(infos, active, strict=True)]
        _check_finite("reward", original_rewards, schedule, n_vec_steps)
        if normalizer is not None:
            _check_finite("normalised reward", rewards, schedule, n_vec_steps)
        _check_finite("observation", new_obs, schedule, n_vec_steps)

        batch.add(obs, actions, original_rewards, schedule.episode_of_env, active)
        dones, started = schedule.advance(dones)
        step = dict(obs=obs, actions=actions, new_obs=new_obs, rewards=rewards, dones=dones, infos=infos)
        if not on_step(step):
            batch.reset()
            return False
        obs, latest_obs = _own(new_obs, latest_obs), new_obs

    batch.pack(schedule.kept_lengths(), None if normalizer is None else normalizer.normalize_reward)
    return True


def _reward_normalizer(env: VecEnv) -> VecNormalize | None:
    """The wrapper that normalises the rewards, if there is one."""
    found = []
    while isinstance(env, VecEnvWrapper):
        if isinstance(env, VecNormalize) and env.norm_reward:
            found.append(env)
        env = env.venv
    if len(found) > 1:
        raise ValueError(
            f"{len(found)} VecNormalize normalise the rewards one after the other: leave norm_reward to one of them"
        )
    return found[0] if found else None


def _original_rewards(normalizer: VecNormalize, rewards: np.ndarray) -> np.ndarray:
    """Rewards of the last step before they were normalised."""
    original = normalizer.get_original_reward()
    if not np.array_equal(rewards, normalizer.normalize_reward(original), equal_nan=True):
        raise ValueError(
            "a wrapper around VecNormalize changes the rewards, so no one scale fits the batch: wrap it before VecNormalize"
        )
    return original


class _EnvActions:
    """Turns sampled actions into what the environments take: Box actions are clipped to the bounds."""

    def __init__(self, action_space: spaces.Space) -> None:
        self.box = action_space if isinstance(action_space, spaces.Box) else None
        first = getattr(action_space, "start", 0)  # Discrete spaces need not start at 0
        idle = np.full(action_space.shape or (), first, dtype=action_space.dtype)
        self.idle_action = idle if self.box is None else np.clip(idle, self.box.low, self.box.high)

    def __call__(self, actions: np.ndarray, schedule: EpisodeSchedule) -> np.ndarray:
        if self.box is not None:
            actions = actions.clip(self.box.low, self.box.high)
        if not schedule.all_active:
            actions = actions.copy()
            actions[~schedule.active] = self.idle_action
        return actions


def _own(observations: Any, earlier: Any) -> Any:
    """Copy observations that lie where earlier ones lay: the environments would overwrite them with their next step."""
    if isinstance(observations, dict):
        return {key: _own(part, earlier[key]) for key, part in observations.items()}
    return observations.copy() if np.may_share_memory(observations, earlier) else observations


def _check_finite(name: str, values: Any, schedule: EpisodeSchedule, n_vec_steps: int) -> None:
    """Raise on a NaN or an infinite value in an environment that is in an episode."""
    if isinstance(values, dict):
        for key, part in values.items():
            _check_finite(f"{name} {key!r}", part, schedule, n_vec_steps)
        return
    if values.dtype.kind != "f" or np.isfinite(values).all():
        return
    finite = np.isfinite(values).reshape(len(values), -1).all(axis=1)
    bad_envs = np.flatnonzero(~finite & schedule.active)
    if len(bad_envs) > 0:
        raise ValueError(
            f"the {name} of environment {bad_envs[0]} at step {n_vec_steps} of the batch is {values[bad_envs[0]]}, "
            "but must be finite: the policy was left as it was before the batch"
        )
