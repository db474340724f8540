"""What APOIS and PPOIS share: arguments, the learning loop, logging, saving."""

import inspect
import io
import pathlib
import sys
import time
import warnings
from abc import abstractmethod
from collections import deque
from collections.abc import Iterable
from typing import Any, ClassVar, TypeVar

import gymnasium as gym
import numpy as np
import torch as th
from gymnasium import spaces
from gymnasium.vector import AutoresetMode
from stable_baselines3.common.base_class import BaseAlgorithm, maybe_make_env
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.policies import BasePolicy
from stable_baselines3.common.type_aliases import GymEnv, MaybeCallback
from stable_baselines3.common.utils import safe_mean
from stable_baselines3.common.vec_env import VecEnv, VecFrameStack, is_vecenv_wrapped
from torch import nn

from sb3_pois.common.arguments import check_choice, check_flag, check_integer, check_number
from sb3_pois.common.ascent import OptimizationResult
from sb3_pois.common.bounds import Objective
from sb3_pois.common.buffers import EpisodeRolloutBuffer
from sb3_pois.common.collection import Actor, collect
from sb3_pois.common.episode_schedule import EpisodeSchedule
from sb3_pois.common.line_search import STEP_RULES
from sb3_pois.common.saving import replaced_when_complete
from sb3_pois.common.surrogate import Surrogate
from sb3_pois.common.vec_env import GymnasiumVecEnv

SelfPoisAlgorithm = TypeVar("SelfPoisAlgorithm", bound="PoisAlgorithm")

# Share of its initial value below which a standard deviation counts as collapsed
COLLAPSED_STD = 0.01


class PoisAlgorithm(BaseAlgorithm):
    """
    Base of the POIS algorithms (Metelli et al. 2018): collect whole episodes, then climb a surrogate offline.

    The arguments are those of :class:`~sb3_pois.APOIS`, and

    :param supported_action_spaces: action spaces that the algorithm supports
    """

    #: what a policy class has to be a subclass of
    policy_bases: ClassVar[tuple[type, ...]]
    #: ``n_episodes`` and ``batch_timesteps`` where neither is given
    default_batch: ClassVar[tuple[int | None, int | None]]
    #: estimators that an optimisation may climb: value and gradient are continuous where it starts
    training_estimators: ClassVar[tuple[str, ...]] = ("none", "sn")
    rollout_buffer: EpisodeRolloutBuffer

    def __init__(
        self,
        policy: str | type[BasePolicy],
        env: GymEnv | gym.vector.VectorEnv | str | None,
        n_episodes: int | None,
        batch_timesteps: int | None,
        finish_last_episode: bool,
        horizon: int | None,
        gamma: float,
        delta: float,
        bound: str,
        iw_norm: str,
        min_ess: float,
        center_returns: bool,
        natural_gradient: bool,
        n_offline_iters: int,
        line_search: str,
        line_search_max_iter: int,
        line_search_tol: float,
        line_search_initial_step: float,
        gradient_tol: float,
        line_search_units: str,
        policy_kwargs: dict[str, Any] | None,
        stats_window_size: int,
        tensorboard_log: str | None,
        verbose: int,
        seed: int | None,
        device: th.device | str,
        supported_action_spaces: tuple[type[spaces.Space], ...],
    ) -> None:
        self.n_episodes = n_episodes
        self.batch_timesteps = batch_timesteps
        self.finish_last_episode = finish_last_episode
        self.horizon = horizon
        self.gamma = gamma
        self.delta = delta
        self.bound = bound
        self.iw_norm = iw_norm
        self.min_ess = min_ess
        self.center_returns = center_returns
        self.natural_gradient = natural_gradient
        self.n_offline_iters = n_offline_iters
        self.line_search = line_search
        self.line_search_max_iter = line_search_max_iter
        self.line_search_tol = line_search_tol
        self.line_search_initial_step = line_search_initial_step
        self.gradient_tol = gradient_tol
        self.line_search_units = line_search_units
        self._stats_window_size = stats_window_size  # the name under which SB3 keeps it
        self.seed = seed
        self._validate_arguments()
        if isinstance(env, str) and horizon is not None:
            env = gym.wrappers.TimeLimit(maybe_make_env(env, verbose), horizon)  # type: ignore[arg-type]
        super().__init__(
            policy,
            env,  # type: ignore[arg-type]
            learning_rate=0.0,  # the step sizes come from the line search
            policy_kwargs=policy_kwargs,
            stats_window_size=stats_window_size,
            tensorboard_log=tensorboard_log,
            verbose=verbose,
            device=device,
            support_multi_env=True,
            seed=seed,
            supported_action_spaces=supported_action_spaces,
        )
        self._n_dropped_steps = 0
        self._warned_of_collapsed_std = False
        self._unit = 1.0

    # Construction, validation, life cycle

    def _setup_model(self) -> None:
        if not hasattr(self, "observation_space"):
            raise ValueError("env is None, but a new model needs the environment whose spaces it is for")
        if not isinstance(self.policy_kwargs, dict):
            raise ValueError(f"policy_kwargs is {self.policy_kwargs!r}, but must be a dict")
        self._check_policy_class()
        self._validate_arguments()
        super().set_random_seed(self._seed_of_now())
        self.policy = self._make_policy()
        self.policy.set_training_mode(False)
        self.rollout_buffer = self._make_buffer()

    def _get_policy_from_name(self, policy_name: str) -> type[BasePolicy]:
        check_choice("policy", policy_name, self.policy_aliases)
        return super()._get_policy_from_name(policy_name)

    def _check_policy_class(self) -> None:
        given = self.policy_class
        if isinstance(given, type) and issubclass(given, self.policy_bases):
            return
        name = f"{given.__module__}.{given.__qualname__}" if isinstance(given, type) else repr(given)
        allowed = " or ".join(f"{base.__module__.rpartition('.')[0]}.{base.__name__}" for base in self.policy_bases)
        raise ValueError(
            f"policy is {name}, but must be a subclass of {allowed}; what another algorithm saved, its own class has to load"
        )

    @abstractmethod
    def _make_policy(self) -> BasePolicy:
        """Create the policy on the device."""

    @abstractmethod
    def _make_buffer(self) -> EpisodeRolloutBuffer:
        """Create the episode buffer."""

    @abstractmethod
    def _make_actor(self, n_envs: int, rng: np.random.Generator) -> Actor:
        """Snapshot the behavioral policy for one batch."""

    def _validate_arguments(self) -> None:
        """Refuse values outside their range; ``load`` comes through here too, with whatever was given to it."""
        if self.n_episodes is not None and self.batch_timesteps is not None:
            raise ValueError(
                f"n_episodes is {self.n_episodes} and batch_timesteps is {self.batch_timesteps}: "
                "a batch has one budget, set the other to None"
            )
        check_flag("finish_last_episode", self.finish_last_episode)
        if self.finish_last_episode and self._batch_size()[1] is None:
            raise ValueError(
                "finish_last_episode is True, but a budget in episodes finishes every episode: set batch_timesteps, or "
                "finish_last_episode to False"
            )
        for name in ("n_episodes", "batch_timesteps", "horizon"):
            if getattr(self, name) is not None:
                check_integer(name, getattr(self, name), least=1)
        if self.seed is not None:
            check_integer("seed", self.seed, least=0)
            if self.seed >= 2**32:
                raise ValueError(f"seed is {self.seed}, but must be below 2**32")
            self.seed = int(self.seed)
        for name in ("n_offline_iters", "line_search_max_iter"):
            check_integer(name, getattr(self, name), least=1)
        check_integer("stats_window_size", self._stats_window_size, least=1)
        for name in ("gamma", "line_search_tol", "line_search_initial_step", "gradient_tol"):
            check_number(name, getattr(self, name))
        if not 0.0 <= self.gamma <= 1.0:
            raise ValueError(f"gamma is {self.gamma}, but must lie in [0, 1]")
        if self.iw_norm == "regression":
            raise ValueError(
                "iw_norm is 'regression', which jumps where the optimisation starts and so serves evaluation only: "
                f"allowed are {', '.join(map(repr, self.training_estimators))}"
            )
        check_choice("iw_norm", self.iw_norm, self.training_estimators)
        _ = self.objective  # refuses what is not allowed
        check_choice("line_search", self.line_search, STEP_RULES)
        check_choice("line_search_units", self.line_search_units, ("absolute", "returns"))
        for name in ("center_returns", "natural_gradient"):
            check_flag(name, getattr(self, name))
        for name in ("line_search_tol", "gradient_tol"):
            if getattr(self, name) < 0.0:
                raise ValueError(f"{name} is {getattr(self, name)}, but must be >= 0")
        if not self.line_search_initial_step > 0.0:
            raise ValueError(f"line_search_initial_step is {self.line_search_initial_step}, but must be > 0")

    def _batch_size(self) -> tuple[int | None, int | None]:
        """Episodes and steps of a batch, one of them None."""
        is_given = self.n_episodes is not None or self.batch_timesteps is not None
        return (self.n_episodes, self.batch_timesteps) if is_given else self.default_batch

    @property
    def objective(self) -> Objective:
        """What the optimisation climbs."""
        return Objective(self.bound, self.iw_norm, self.delta, self.min_ess)

    @staticmethod
    def _wrap_env(env: Any, verbose: int = 0, monitor_wrapper: bool = True) -> VecEnv:
        if isinstance(env, gym.vector.VectorEnv):
            if verbose >= 1:
                print("Wrapping the vector environment in a GymnasiumVecEnv.")
            env = GymnasiumVecEnv(env)
        if is_vecenv_wrapped(env, VecFrameStack):
            adapter = env.unwrapped
            if isinstance(adapter, GymnasiumVecEnv) and adapter.autoreset_mode == AutoresetMode.NEXT_STEP:
                raise ValueError(
                    "VecFrameStack is around a vector environment with AutoresetMode.NEXT_STEP, where it stacks the last "
                    "observation of an episode under the first of the next one: make it with AutoresetMode.SAME_STEP"
                )
        return BaseAlgorithm._wrap_env(env, verbose, monitor_wrapper)

    @classmethod
    def load(
        cls: type[SelfPoisAlgorithm],
        path: str | pathlib.Path | io.BufferedIOBase,
        env: GymEnv | gym.vector.VectorEnv | None = None,
        device: th.device | str = "cpu",
        custom_objects: dict[str, Any] | None = None,
        print_system_info: bool = False,
        force_reset: bool = True,
        **kwargs: Any,
    ) -> SelfPoisAlgorithm:
        """
        Load a model from a zip file.

        :param path: path of the file, or the opened file
        :param env: environment to continue on, with any number of environments; None for prediction only
        :param device: device of the optimisation
        :param custom_objects: objects to use in place of what the file has under their names
        :param print_system_info: print the system that saved the file and this one
        :param force_reset: reset the environment before training
        :param kwargs: constructor arguments to change
        :return: the model
        :raises ValueError: if a keyword is no constructor argument, or its value is not allowed
        """
        allowed = set(inspect.signature(cls.__init__).parameters) - {"self", "policy", "env", "_init_setup_model"}
        unknown = sorted(set(kwargs) - allowed)
        if unknown:
            raise ValueError(f"{cls.__name__}.load got {', '.join(unknown)}, but allowed are {', '.join(sorted(allowed))}")
        if "stats_window_size" in kwargs:
            kwargs["_stats_window_size"] = kwargs.pop("stats_window_size")
        model = super().load(path, env, device, custom_objects, print_system_info, force_reset, **kwargs)  # type: ignore[arg-type]
        for name in ("ep_info_buffer", "ep_success_buffer"):  # a length that was changed on loading
            if getattr(model, name) is not None:
                setattr(model, name, deque(getattr(model, name), maxlen=model._stats_window_size))
        return model

    def save(
        self,
        path: str | pathlib.Path | io.BufferedIOBase,
        exclude: Iterable[str] | None = None,
        include: Iterable[str] | None = None,
    ) -> None:
        """
        Save the model to a zip file, whole or not at all: what was at ``path`` stays until the new file is complete.

        :param path: path of the file (``.zip`` is appended if it has no suffix), or an opened file
        :param exclude: attributes to leave out besides the default ones
        :param include: attributes to save although they are left out by default
        """
        if not isinstance(path, (str, pathlib.Path)):
            super().save(path, exclude, include)
            return
        target = pathlib.Path(path)
        if target.suffix == "":
            target = target.with_name(f"{target.name}.zip")
        with replaced_when_complete(target) as file:
            super().save(file, exclude, include)

    def _excluded_save_params(self) -> list[str]:
        return [*super()._excluded_save_params(), "_last_obs", "_last_episode_starts", "_last_original_obs"]

    def _get_torch_save_params(self) -> tuple[list[str], list[str]]:
        return ["policy"], []

    # Randomness

    def set_random_seed(self, seed: int | None = None) -> None:
        """
        Seed python, numpy, torch, the action space, the environments and what the model draws from now on.

        :param seed: the seed; None leaves everything as it is
        """
        if seed is not None:
            self.seed = seed
        super().set_random_seed(seed)

    def _seed_of_now(self) -> int | None:
        """The seed itself at the start; later one that depends on progress, so that a loaded model does not replay it."""
        if self.seed is None or (self.num_timesteps == 0 and self._n_updates == 0):
            return self.seed
        return int(np.random.SeedSequence(self._entropy()).generate_state(1)[0] % 2**31)

    def _entropy(self) -> list[int]:
        seed = int(np.random.randint(2**31)) if self.seed is None else self.seed
        return [seed, self.num_timesteps, self._n_updates]

    # Collection

    def collect_rollouts(self, env: VecEnv, callback: BaseCallback, rollout_buffer: EpisodeRolloutBuffer) -> bool:
        """
        Collect a batch of whole episodes with the current policy as behavioral policy.

        :param env: environments to step
        :param callback: called at every step; when it returns False the batch is dropped
        :param rollout_buffer: buffer to fill
        :return: False if the callback stopped the collection
        :raises ValueError: if an observation, an action or a reward is not finite, or an episode does not end
        """
        callback.on_rollout_start()
        self.policy.set_training_mode(False)
        schedule = EpisodeSchedule(env.num_envs, *self._batch_size(), self.finish_last_episode, self.horizon)
        actor = self._make_actor(env.num_envs, np.random.default_rng(self._entropy()))
        n_timesteps_before = self.num_timesteps
        callback.update_locals(locals())

        def on_step(step: dict[str, Any]) -> bool:
            self.num_timesteps += env.num_envs
            callback.update_locals(step)
            if not callback.on_step():
                return False
            self._record_successes(step["infos"], step["dones"])
            return True

        if not collect(env, actor, schedule, rollout_buffer, on_step):
            return False
        self._n_dropped_steps = self.num_timesteps - n_timesteps_before - rollout_buffer.n_steps
        self._episode_num += rollout_buffer.n_episodes
        self._record_episodes(rollout_buffer)
        callback.on_rollout_end()
        return True

    def _record_successes(self, infos: list[dict[str, Any]], dones: np.ndarray) -> None:
        assert self.ep_success_buffer is not None
        ended = [infos[i] for i in np.flatnonzero(dones).tolist()]
        self.ep_success_buffer.extend(info["is_success"] for info in ended if "is_success" in info)

    def _record_episodes(self, rollout_buffer: EpisodeRolloutBuffer) -> None:
        """Fill SB3's episode statistics from the batch: a ``Monitor``, if there is one, does not see a horizon's cuts."""
        returns, lengths = rollout_buffer.episode_returns(original=True), rollout_buffer.episode_lengths
        assert self.ep_info_buffer is not None
        self.ep_info_buffer.extend({"r": float(r), "l": int(n)} for r, n in zip(returns, lengths, strict=True))

    # Learning

    @abstractmethod
    def train(self) -> None:
        """Optimise the policy on the batch in ``rollout_buffer``."""

    def learn(
        self: SelfPoisAlgorithm,
        total_timesteps: int = 1_000_000,
        callback: MaybeCallback = None,
        log_interval: int | None = 1,
        tb_log_name: str | None = None,
        reset_num_timesteps: bool = True,
        progress_bar: bool = False,
    ) -> SelfPoisAlgorithm:
        """
        Alternate between collecting a batch and optimising on it.

        :param total_timesteps: no batch starts once this many environment steps were taken; the last batch may overshoot
        :param callback: called at every step; may stop the training
        :param log_interval: number of batches between logs; None for no logs
        :param tb_log_name: name of the tensorboard run; None for the class name
        :param reset_num_timesteps: count steps from 0; False continues the count
        :param progress_bar: show a progress bar (needs tqdm and rich)
        :return: the model
        :raises ValueError: if the model has no environment
        """
        if self.env is None:
            raise ValueError("the model has no environment: call set_env(env) first, or load(path, env=env)")
        total_timesteps, callback = self._setup_learn(
            total_timesteps, callback, reset_num_timesteps, tb_log_name or type(self).__name__, progress_bar
        )
        callback.on_training_start(locals(), globals())
        iteration = 0
        while self.num_timesteps < total_timesteps:
            if not self.collect_rollouts(self.env, callback, self.rollout_buffer):
                break
            self._update_current_progress_remaining(self.num_timesteps, total_timesteps)
            self.policy.set_training_mode(False)  # a callback may have switched it on
            self.train()
            self._log_policy()
            self._n_updates += 1
            iteration += 1
            if log_interval is not None and iteration % log_interval == 0:
                self.dump_logs(iteration)
        callback.on_training_end()
        return self

    def _informative_returns(self) -> th.Tensor | None:
        """
        Returns of the batch as the surrogate takes them.

        :return: float64 returns on the device, shape (n_episodes,); None if there is nothing to learn from them
        """
        returns = self.rollout_buffer.episode_returns(self.gamma)
        if not self._teaches_something(len(returns), np.ptp(returns) > 1e-12 * np.abs(returns).max()):
            return None
        if self.center_returns:
            returns = returns - returns.mean()
        returns_on_device = th.as_tensor(returns, dtype=th.float64, device=self.device)
        return returns_on_device / self._choose_unit(returns_on_device)

    def _teaches_something(self, n_episodes: int, returns_differ: bool) -> bool:
        """Whether there is anything to learn from the batch; the log says why not."""
        if n_episodes >= 2 and returns_differ:
            self.logger.name_to_value.pop("train/skipped_update", None)  # of an earlier batch that was not logged yet
            return True
        reason = "all returns are equal" if n_episodes >= 2 else "the batch has one episode"
        self.logger.record("train/is_line_search_success", 0.0)
        self.logger.record("train/skipped_update", reason, exclude="tensorboard")
        return False

    def _choose_unit(self, returns: th.Tensor, largest_gain: float = 0.0) -> float:
        """What the surrogate of the batch is measured in, in units of return; remembered for the log."""
        self._unit = 1.0
        if self.line_search_units == "returns":
            self._unit = float(returns.std(correction=0))
            if self._unit <= 1e-6 * largest_gain:  # nothing but rounding
                self._unit = largest_gain
        return self._unit

    # Logging

    def dump_logs(self, iteration: int = 0) -> None:
        """
        Write the log of the last batch.

        :param iteration: number of batches in this call of ``learn``
        """
        buffer = self.rollout_buffer
        time_elapsed = max((time.time_ns() - self.start_time) / 1e9, sys.float_info.epsilon)
        fps = int((self.num_timesteps - self._num_timesteps_at_start) / time_elapsed)
        if iteration > 0:
            self.logger.record("time/iterations", iteration, exclude="tensorboard")
        if buffer.n_episodes > 0:
            self.logger.record("rollout/ep_rew_mean", float(buffer.episode_returns(original=True).mean()))
            self.logger.record("rollout/ep_len_mean", float(buffer.episode_lengths.mean()))
            self.logger.record("rollout/n_episodes", buffer.n_episodes)
            self.logger.record("rollout/dropped_steps", self._n_dropped_steps)
        if self.ep_success_buffer is not None and len(self.ep_success_buffer) > 0:
            self.logger.record("rollout/success_rate", safe_mean(self.ep_success_buffer))
        self.logger.record("time/fps", fps)
        self.logger.record("time/time_elapsed", int(time_elapsed), exclude="tensorboard")
        self.logger.record("time/total_timesteps", self.num_timesteps, exclude="tensorboard")
        self.logger.dump(step=self.num_timesteps)

    def _optimization_arguments(self) -> dict[str, Any]:
        """Options of the offline optimisation, by the names that ``optimize_offline`` has for them."""
        return dict(
            n_iters=self.n_offline_iters,
            rule=self.line_search,
            max_iter=self.line_search_max_iter,
            tol=self.line_search_tol,
            gradient_tol=self.gradient_tol,
            initial_step=self.line_search_initial_step,
        )

    @abstractmethod
    def _log_std(self) -> np.ndarray | None:
        """Log standard deviations of what is searched in, shape (n_stds,); None where there are none."""

    @abstractmethod
    def _std_groups(self) -> dict[str, np.ndarray]:
        """Indices of the standard deviations that have a name in common, by name."""

    def _log_policy(self) -> None:
        """Record the mean standard deviation, and that of every group if there are several."""
        log_std, groups = self._log_std(), self._std_groups()
        if log_std is None:
            return
        std = np.exp(log_std)
        self.logger.record("train/std", float(std.mean()))
        if len(groups) > 1:
            for name, index in groups.items():
                self.logger.record(f"train/std/{name}", float(std[index].mean()))

    def _warn_of_collapsed_std(self) -> None:
        """Say once that the standard deviation is all but gone, for a batch whose returns differ."""
        log_std = self._log_std()
        if log_std is None or self._warned_of_collapsed_std:
            return
        share = float(np.exp(np.mean(log_std - self.policy.log_std_init)))
        if share < COLLAPSED_STD:
            self._warned_of_collapsed_std = True
            warnings.warn(
                f"the standard deviation has shrunk to {share:.2g} of its initial value and the returns still vary: if they "
                "are not as good as they can be, take more episodes per batch, a larger min_ess, or a constant standard "
                "deviation (policy_kwargs=dict(learn_std=False))",
                stacklevel=2,
            )

    def _log_optimization(self, surrogate: Surrogate, result: OptimizationResult) -> None:
        """Record how the optimisation went and what the importance weights say about the sample it rests on."""
        self._warn_of_collapsed_std()
        record = self.logger.record
        record("train/surrogate_before", self._unit * _mean(result.value_before))
        record("train/surrogate", self._unit * _mean(result.value))
        record("train/surrogate_improvement", self._unit * _mean(result.value - result.value_before))
        record("train/grad_norm", self._unit * _mean(result.grad_norm))
        record("train/step_size", _mean(result.step_size))
        record("train/n_offline_iters", result.n_iters)
        record("train/n_line_search_evals", result.n_evals)
        record("train/is_line_search_success", _mean(result.is_success))
        for name, value in surrogate.diagnostics(result.theta).items():
            record(f"train/{name}", self._unit * value if name == "penalty" else value)


def warn_of_stochastic_layers(policy: nn.Module) -> None:
    """
    Say once which layers of a policy behave differently in training and evaluation: POIS never trains them.

    :param policy: the policy
    """
    names = [
        f"{name} ({type(module).__name__})"
        for name, module in policy.named_modules()
        if isinstance(module, (nn.modules.batchnorm._BatchNorm, nn.modules.dropout._DropoutNd))
    ]
    if names:
        warnings.warn(
            f"the policy has {', '.join(names)}: they stay in evaluation mode throughout, since every importance weight has "
            "to be exactly 1 at the behavioral policy; batch-norm statistics never change and dropout drops nothing",
            stacklevel=2,
        )


def _mean(values: th.Tensor) -> float:
    return float(values.double().mean())
