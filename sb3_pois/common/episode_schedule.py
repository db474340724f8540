"""Which environment runs which episode, and which steps make up the batch."""

from collections.abc import Iterable

import numpy as np

# Longer episodes without a horizon are taken for endless ones
MAX_EPISODE_STEPS = 100_000
IDLE = -1


class EpisodeSchedule:
    """
    Counts episodes in the order in which they are launched.

    A batch is the first episodes that were *launched*: taking the first that *finish* would favour short ones. An
    environment whose episode ends by itself starts the next one at once, and idles when there is nothing left to launch.
    A vector environment cannot reset one environment alone, so an environment whose episode is cut (by the horizon, or
    because its further steps cannot belong to the batch any more) idles until the wave is over: then all are reset.

    With a budget of steps the batch is the shortest run of launched episodes whose lengths sum to the budget or more. The
    last one is cut to the budget, or else is run to its end. Either is a function of the episodes' lengths in launch order
    alone, hence the same law for any number of environments. An episode is launched only while the steps made so far of the
    episodes before it are short of the budget, and runs on only while those (and its own, where the last is cut) are.

    :param n_envs: number of environments
    :param n_episodes: number of episodes of the batch; None where the budget is in steps
    :param batch_timesteps: number of steps of the batch; None where the budget is in episodes
    :param finish_last_episode: whether a budget of steps is exceeded by the rest of its last episode
    :param horizon: number of steps after which every episode is cut; None for no cut
    :ivar episode_of_env: episode that each environment is in, ``IDLE`` where it is in none, shape (n_envs,)
    :ivar active: mask of the environments that are in an episode, shape (n_envs,)
    """

    def __init__(
        self,
        n_envs: int,
        n_episodes: int | None = None,
        batch_timesteps: int | None = None,
        finish_last_episode: bool = False,
        horizon: int | None = None,
    ) -> None:
        self.n_envs = n_envs
        self.n_episodes = n_episodes
        self.batch_timesteps = batch_timesteps
        self.finish_last_episode = finish_last_episode
        self.horizon = horizon
        self.episode_of_env = np.full(n_envs, IDLE)
        self.active = np.zeros(n_envs, dtype=bool)
        self.n_active = 0
        self._steps_of_env = np.zeros(n_envs, dtype=np.int64)
        self._lengths: list[int] = []  # of all launched episodes; out of date for those still running
        self._n_steps = 0  # of all launched episodes

    @property
    def all_active(self) -> bool:
        """Whether every environment is in an episode."""
        return self.n_active == self.n_envs

    @property
    def wave_is_over(self) -> bool:
        """Whether no environment is in an episode, so that all may be reset."""
        return self.n_active == 0

    @property
    def is_complete(self) -> bool:
        """Whether the batch is collected."""
        return self.wave_is_over and not self._wants_another()

    def start_wave(self) -> np.ndarray:
        """
        Launch an episode in every environment that is wanted, right after all were reset.

        :return: indices of the environments that start an episode
        """
        return self._launch(range(self.n_envs))

    def skip(self, envs: Iterable[int]) -> None:
        """
        Leave the step that is about to be counted out of the episodes of some environments.

        :param envs: environments in an episode whose step is no step of it
        """
        for env in envs:
            self._steps_of_env[env] -= 1
            self._n_steps -= 1

    def advance(self, dones: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """
        Count one step of all environments.

        :param dones: whether each environment ended its episode and reset itself, False where idle, shape (n_envs,)
        :return: whether each episode is over, by itself or cut by the horizon, shape (n_envs,); indices of the
            environments that start a new episode with the next step
        :raises ValueError: if an episode does not end and there is no horizon
        """
        self._steps_of_env += 1
        self._n_steps += self.n_active
        if self.horizon is None:
            over = dones
            if self._steps_of_env.max() >= MAX_EPISODE_STEPS:
                self._refuse_endless_episodes()
        else:
            over = dones | (self.active & (self._steps_of_env >= self.horizon))
        budget_reached = self.batch_timesteps is not None and self._n_steps >= self.batch_timesteps
        if not (budget_reached or over.any()):
            return over, NO_ENVS
        for env in np.flatnonzero(over).tolist():
            self._end_episode(env)
        if budget_reached:
            self._stop_superfluous()
        return over, self._launch(np.flatnonzero(dones).tolist())

    def kept_lengths(self) -> np.ndarray:
        """
        Number of steps that the batch keeps of the first launched episodes, once it is complete.

        :return: lengths, shape (n_episodes,)
        """
        lengths = np.array(self._lengths, dtype=np.int64)
        if self.batch_timesteps is not None:
            total = np.cumsum(lengths)
            last = int(np.searchsorted(total, self.batch_timesteps))
            lengths = lengths[: last + 1]
            if not self.finish_last_episode:
                lengths[last] -= total[last] - self.batch_timesteps
        return lengths

    def _refuse_endless_episodes(self) -> None:
        if (self.active & (self._steps_of_env >= MAX_EPISODE_STEPS)).any():
            raise ValueError(
                f"an episode has not ended after {MAX_EPISODE_STEPS:,} steps: set `horizon` to cut episodes, "
                "or give the environment a time limit"
            )

    def _wants_another(self) -> bool:
        if self.batch_timesteps is not None:
            return self._n_steps < self.batch_timesteps
        return len(self._lengths) < self.n_episodes  # type: ignore[operator]

    def _launch(self, envs: Iterable[int]) -> np.ndarray:
        launched = []
        for env in envs:
            if self._wants_another():
                self.episode_of_env[env] = len(self._lengths)
                self._lengths.append(0)
                self.active[env] = True
                self._steps_of_env[env] = 0
                self.n_active += 1
                launched.append(env)
        return np.array(launched, dtype=np.int64)

    def _end_episode(self, env: int) -> None:
        self._lengths[self.episode_of_env[env]] = int(self._steps_of_env[env])
        self.episode_of_env[env] = IDLE
        self.active[env] = False
        self.n_active -= 1

    def _stop_superfluous(self) -> None:
        """Stop the episodes of which the batch can keep no further step."""
        running = np.flatnonzero(self.active).tolist()
        lengths = np.array(self._lengths, dtype=np.int64)
        lengths[self.episode_of_env[running]] = self._steps_of_env[running]
        total = np.cumsum(lengths)
        if self.finish_last_episode:
            total -= lengths  # of the episodes before it
        for env in running:
            if total[self.episode_of_env[env]] >= self.batch_timesteps:
                self._end_episode(env)


NO_ENVS = np.zeros(0, dtype=np.int64)
