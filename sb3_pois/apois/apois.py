"""Action-based POIS."""

from typing import Any, ClassVar

import gymnasium as gym
import numpy as np
import torch as th
from stable_baselines3.common.policies import BasePolicy
from stable_baselines3.common.type_aliases import GymEnv
from stable_baselines3.common.utils import explained_variance

from sb3_pois.apois.action_distributions import SUPPORTED_ACTION_SPACES
from sb3_pois.apois.baselines import BASELINES, fit_values, linear_features, time_features
from sb3_pois.apois.policies import CnnPolicy, LinearPolicy, MlpPolicy, MultiInputPolicy
from sb3_pois.apois.surrogate import ActionSurrogate, PerDecisionSurrogate, make_surrogate
from sb3_pois.common.arguments import check_choice, check_integer, check_number
from sb3_pois.common.ascent import gradient_direction, optimize_offline
from sb3_pois.common.buffers import EpisodeRolloutBuffer, Observations
from sb3_pois.common.collection import Actor
from sb3_pois.common.episodes import EpisodeLayout
from sb3_pois.common.gains import StepGains, gains_of_rewards, gains_over_baseline
from sb3_pois.common.parameters import ParameterVector
from sb3_pois.common.pois_algorithm import PoisAlgorithm, warn_of_stochastic_layers
from sb3_pois.common.std_limits import std_box

# Steps whose noise is drawn at once while a batch is collected
NOISE_BLOCK_STEPS = 64


class APOIS(PoisAlgorithm):
    """
    Action-based Policy Optimization via Importance Sampling (Metelli, Papini, Faccio and Restelli, NeurIPS 2018).

    Paper: https://arxiv.org/abs/1809.06098. Collects a batch of whole episodes with a stochastic policy, then climbs a
    lower bound of the expected return of other policies, estimated from that batch by importance sampling, until the
    bound stops improving. With ``center_returns``, the empirical largest return and the maximisation over targets, the
    default surrogate is a guide and not the bound of the paper's theorem.

    Not supported: recurrent policies, gSDE, a learning rate, a critic.

    :param policy: ``LinearPolicy``, ``MlpPolicy``, ``CnnPolicy``, ``MultiInputPolicy``, or a subclass of ``MlpPolicy``
    :param env: environment to learn from: an id, a Gymnasium environment or vector environment, or an SB3 ``VecEnv``
    :param n_episodes: episodes per batch
    :param batch_timesteps: steps per batch, instead of ``n_episodes``: whole episodes in launch order, only the last cut;
        4,000 if ``n_episodes`` is not given either
    :param finish_last_episode: whether that last episode is not cut but run to its end, beyond ``batch_timesteps``
    :param horizon: number of steps after which every episode is cut; None leaves the end to the environment
    :param gamma: discount factor, in [0, 1]
    :param delta: 1 minus the confidence of the bound, in (0, 1]; 1 switches its penalty off
    :param bound: surrogate: ``J``, ``max-d2``, ``std-d2``, ``max-ess`` or ``std-ess``
    :param iw_norm: estimator: ``none`` (importance sampling) or ``sn`` (self-normalised)
    :param iw_method: what a weight is for: ``trajectory`` weights every episode's return by the ratios of all its steps,
        ``per-decision`` every step's reward by the ratios up to it
    :param iw_lambda: with ``per-decision``, how much of the logarithm of a ratio the next step's weight keeps, in [0, 1]: 1
        is importance sampling; less is biased, leaves the discount out of the sum over the steps, and makes long episodes
        learnable
    :param baseline: with ``per-decision``, the control variate: ``none``, ``time`` (a polynomial in the step) or ``linear``
        (in the observation and its square, too), fitted to the batch
    :param min_ess: least effective sample size of the weights that a target may have, as a share of their number, in
        [0, 1); 0 for no limit
    :param center_returns: subtract the batch's mean return before everything (``per-decision``: at every step its mean
        reward; with a baseline, its mean at the start); logged surrogates are relative to it
    :param natural_gradient: precondition the gradient with the inverse Fisher information: that of whole episodes, or of
        single steps with ``per-decision``
    :param fisher_damping: what the natural gradient adds to the diagonal of the Fisher information, in units of its mean
    :param n_offline_iters: largest number of line searches per batch
    :param line_search: ``parabolic`` or ``binary``
    :param line_search_max_iter: largest number of trials per line search
    :param line_search_tol: least gain of a trial and of a line search
    :param line_search_initial_step: gain that the first trial promises
    :param gradient_tol: norm of the gradient below which the optimisation stops
    :param line_search_units: what those three are measured in: ``absolute`` for units of return, as the paper has it, or
        ``returns`` for standard deviations of the batch's returns
    :param max_chunk_steps: most steps that are evaluated at once; bounds the peak memory of the optimisation
    :param stats_window_size: number of episodes that ``ep_info_buffer`` and ``ep_success_buffer`` keep
    :param tensorboard_log: folder of the tensorboard logs; None for none
    :param policy_kwargs: keyword arguments of the policy
    :param verbose: 0 for no output, 1 for information, 2 for debugging
    :param seed: seed of the pseudo-random generators
    :param device: device of the optimisation
    :param _init_setup_model: whether to build the network on construction
    :raises ValueError: if an argument is outside its range
    :raises AssertionError: if the action space is not supported
    """

    policy_aliases: ClassVar[dict[str, type[BasePolicy]]] = {
        "LinearPolicy": LinearPolicy,
        "MlpPolicy": MlpPolicy,
        "CnnPolicy": CnnPolicy,
        "MultiInputPolicy": MultiInputPolicy,
    }
    policy: MlpPolicy
    policy_bases = (MlpPolicy,)
    default_batch = (None, 4000)
    # What the paper's linear experiments have in common, but for delta, which is the task's: APOIS(policy, env, **APOIS.PAPER)
    PAPER: ClassVar[dict[str, Any]] = {
        "n_episodes": 100,
        "gamma": 1.0,
        "delta": 0.4,
        "bound": "max-d2",
        "iw_norm": "none",
        "iw_method": "trajectory",
        "iw_lambda": 1.0,
        "baseline": "none",
        "min_ess": 0.0,
        "natural_gradient": False,
        "n_offline_iters": 10,
        "line_search_units": "absolute",
    }

    def __init__(
        self,
        policy: str | type[BasePolicy],
        env: GymEnv | gym.vector.VectorEnv | str | None,
        n_episodes: int | None = None,
        batch_timesteps: int | None = None,
        finish_last_episode: bool = False,
        horizon: int | None = None,
        gamma: float = 0.999,
        delta: float = 0.9,
        bound: str = "std-ess",
        iw_norm: str = "none",
        iw_method: str = "per-decision",
        iw_lambda: float = 0.95,
        baseline: str = "linear",
        min_ess: float = 0.75,
        center_returns: bool = True,
        natural_gradient: bool = True,
        fisher_damping: float = 10.0,
        n_offline_iters: int = 3,
        line_search: str = "parabolic",
        line_search_max_iter: int = 30,
        line_search_tol: float = 1e-4,
        line_search_initial_step: float = 1.0,
        gradient_tol: float = 1e-4,
        line_search_units: str = "returns",
        max_chunk_steps: int = 16_384,
        stats_window_size: int = 100,
        tensorboard_log: str | None = None,
        policy_kwargs: dict[str, Any] | None = None,
        verbose: int = 0,
        seed: int | None = None,
        device: th.device | str = "cpu",
        _init_setup_model: bool = True,
    ) -> None:
        self.iw_method = iw_method
        self.iw_lambda = iw_lambda
        self.baseline = baseline
        self.fisher_damping = fisher_damping
        self.max_chunk_steps = max_chunk_steps
        super().__init__(
            policy,
            env,
            n_episodes=n_episodes,
            batch_timesteps=batch_timesteps,
            finish_last_episode=finish_last_episode,
            horizon=horizon,
            gamma=gamma,
            delta=delta,
            bound=bound,
            iw_norm=iw_norm,
            min_ess=min_ess,
            center_returns=center_returns,
            natural_gradient=natural_gradient,
            n_offline_iters=n_offline_iters,
            line_search=line_search,
            line_search_max_iter=line_search_max_iter,
            line_search_tol=line_search_tol,
            line_search_initial_step=line_search_initial_step,
            gradient_tol=gradient_tol,
            line_search_units=line_search_units,
            policy_kwargs=policy_kwargs,
            stats_window_size=stats_window_size,
            tensorboard_log=tensorboard_log,
            verbose=verbose,
            seed=seed,
            device=device,
            supported_action_spaces=SUPPORTED_ACTION_SPACES,
        )
        if _init_setup_model:
            self._setup_model()

    def _validate_arguments(self) -> None:
        check_choice("iw_method", self.iw_method, ("trajectory", "per-decision"))
        check_choice("baseline", self.baseline, BASELINES)
        check_number("iw_lambda", self.iw_lambda)
        if not 0.0 <= self.iw_lambda <= 1.0:
            raise ValueError(f"iw_lambda is {self.iw_lambda}, but must lie in [0, 1]")
        super()._validate_arguments()
        self._refuse_combinations()
        check_number("fisher_damping", self.fisher_damping)
        check_integer("max_chunk_steps", self.max_chunk_steps, least=1)
        if not self.fisher_damping > 0.0:
            raise ValueError(f"fisher_damping is {self.fisher_damping}, but must be > 0")

    def _refuse_combinations(self) -> None:
        if self.iw_method == "trajectory":
            for name, value, allowed in (("iw_lambda", self.iw_lambda, 1.0), ("baseline", self.baseline, "none")):
                if value != allowed:
                    raise ValueError(
                        f"{name} is {value!r}, but iw_method 'trajectory' goes with {allowed!r} only: it weights whole returns"
                    )
        if self.iw_lambda < 1.0 and self.objective.needs_divergence:
            raise ValueError(
                f"bound is {self.bound!r} and iw_lambda is {self.iw_lambda}, but weights that forget have no such bound: set "
                "iw_lambda to 1, or bound to 'J', 'max-ess' or 'std-ess'"
            )

    def _make_policy(self) -> MlpPolicy:
        policy_class: Any = self.policy_class
        policy = policy_class(self.observation_space, self.action_space, **self.policy_kwargs)
        warn_of_stochastic_layers(policy)
        return policy.to(self.device)

    def _make_buffer(self) -> EpisodeRolloutBuffer:
        return EpisodeRolloutBuffer(self.observation_space, self.action_space)

    def _make_actor(self, n_envs: int, rng: np.random.Generator) -> Actor:
        return StochasticActor(self.policy, n_envs, rng)

    def train(self) -> None:
        """Climb the surrogate of the batch in ``rollout_buffer`` (Metelli et al. 2018, algorithm 1)."""
        surrogate = self._make_surrogate()
        if surrogate is None:
            return
        parameters = ParameterVector(self.policy)
        direction = surrogate.natural_direction(self.fisher_damping) if self.natural_gradient else gradient_direction
        theta = parameters.get()
        box = std_box(theta, parameters.mask("log_std"))
        result = optimize_offline(surrogate, theta, direction, box=box, **self._optimization_arguments())
        self._log_optimization(surrogate, result)
        parameters.set(result.theta)

    def _make_surrogate(self) -> ActionSurrogate | None:
        """The surrogate of the batch; None if there is nothing to learn from it."""
        if self.iw_method == "trajectory":
            returns = self._informative_returns()
            if returns is None:
                return None
            return make_surrogate(self.policy, self.rollout_buffer, returns, self.objective, self.max_chunk_steps)
        gains = self._informative_gains()
        if gains is None:
            return None
        return PerDecisionSurrogate(
            self.policy, self.rollout_buffer, gains, self.objective, self.iw_lambda, self.max_chunk_steps
        )

    def _informative_gains(self) -> StepGains | None:
        """Gains of the batch's steps as the surrogate takes them; None if there is nothing to learn from them."""
        buffer = self.rollout_buffer
        layout = EpisodeLayout(th.as_tensor(buffer.episode_lengths, device=self.device))
        rewards = th.as_tensor(buffer.rewards, dtype=th.float64, device=self.device)
        # Where every episode earned the same at every step, a baseline's residuals are its own error and nothing to climb
        differences = gains_of_rewards(rewards, layout, gamma=1.0, discounted=False, centered=True)
        if not self._teaches_something(layout.n_episodes, differences.largest > 1e-12 * rewards.abs().max().item()):
            return None
        # Where the weights forget, the estimate is no longer that of the discounted return, and every step counts alike
        arguments = (layout, self.gamma, self.iw_lambda == 1.0, self.center_returns)
        if self.baseline == "none":
            gains = gains_of_rewards(rewards, *arguments)
        else:
            gains = gains_over_baseline(rewards, self._values(layout, rewards), *arguments)
        return gains.over(self._choose_unit(gains.of_episodes, gains.largest))

    def _values(self, layout: EpisodeLayout, rewards: th.Tensor) -> th.Tensor:
        """The baseline at the states of the batch, shape (n_steps,)."""
        features = linear_features(self.rollout_buffer, layout) if self.baseline == "linear" else time_features(layout)
        returns_to_go = layout.returns_to_go(rewards, self.gamma)
        values = fit_values(features, returns_to_go, layout, self.max_chunk_steps)
        explained = explained_variance(values.cpu().numpy(), returns_to_go.cpu().numpy())
        if np.isfinite(explained):  # NaN where the returns to go do not vary
            self.logger.record("train/explained_variance", float(explained))
        return values

    def _log_std(self) -> np.ndarray | None:
        return self.policy.log_std.detach().cpu().numpy() if hasattr(self.policy, "log_std") else None

    def _std_groups(self) -> dict[str, np.ndarray]:
        return {f"action_{i}": np.array([i]) for i in range(self.policy.distribution.n_outputs)}


class StochasticActor:
    """
    Samples the actions of one batch from a snapshot of the policy.

    :param policy: the behavioral policy
    :param n_envs: number of environments
    :param rng: source of all noise of the batch
    """

    def __init__(self, policy: MlpPolicy, n_envs: int, rng: np.random.Generator) -> None:
        self.forward = policy.array_forward()
        self.distribution = policy.distribution
        self.size = (NOISE_BLOCK_STEPS, n_envs)
        self.rng = rng
        self.step_in_block = NOISE_BLOCK_STEPS

    def start_episodes(self, envs: np.ndarray) -> None:
        """
        Take no notice: all episodes follow the same policy.

        :param envs: indices of the environments
        """

    def act(self, observations: Observations) -> np.ndarray:
        """
        Sample one action per environment.

        :param observations: observations, shape (n_envs, *obs_shape), or a dict of such
        :return: actions before any clipping, shape (n_envs, *action_shape)
        """
        if self.step_in_block == NOISE_BLOCK_STEPS:
            self.noise = self.distribution.draw_noise(self.rng, self.size)
            self.step_in_block = 0
        noise = self.noise[self.step_in_block]
        self.step_in_block += 1
        return self.distribution.sample(self.forward(observations), noise)
