"""Action-based POIS."""

from typing import Any, ClassVar

import gymnasium as gym
import numpy as np
import torch as th
from stable_baselines3.common.policies import BasePolicy
from stable_baselines3.common.type_aliases import GymEnv

from sb3_pois.apois.action_distributions import SUPPORTED_ACTION_SPACES
from sb3_pois.apois.policies import CnnPolicy, LinearPolicy, MlpPolicy, MultiInputPolicy
from sb3_pois.apois.surrogate import make_surrogate, score_natural_gradient
from sb3_pois.common.arguments import check_integer, check_number
from sb3_pois.common.ascent import gradient_direction, optimize_offline
from sb3_pois.common.buffers import EpisodeRolloutBuffer, Observations
from sb3_pois.common.collection import Actor
from sb3_pois.common.parameters import ParameterVector
from sb3_pois.common.pois_algorithm import PoisAlgorithm, warn_of_stochastic_layers

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
    :param n_episodes: episodes per batch; 100 if ``batch_timesteps`` is not given either
    :param batch_timesteps: steps per batch, instead of ``n_episodes``: whole episodes in launch order, only the last cut
    :param horizon: number of steps after which every episode is cut; None leaves the end to the environment
    :param gamma: discount factor, in [0, 1]
    :param delta: 1 minus the confidence of the bound, in (0, 1]; 1 switches its penalty off
    :param bound: surrogate: ``J``, ``max-d2``, ``std-d2``, ``max-ess`` or ``std-ess``
    :param iw_norm: estimator: ``none`` (importance sampling) or ``sn`` (self-normalised)
    :param center_returns: subtract the batch's mean return before everything; logged surrogates are relative to it
    :param natural_gradient: precondition the gradient with the inverse Fisher information, by conjugate gradient
    :param fisher_damping: what the natural gradient adds to the diagonal of the Fisher information
    :param n_offline_iters: largest number of line searches per batch
    :param line_search: ``parabolic`` or ``binary``
    :param line_search_max_iter: largest number of trials per line search
    :param line_search_tol: least gain of a trial and of a line search, in units of return
    :param line_search_initial_step: gain that the first trial promises, in units of return
    :param gradient_tol: norm of the gradient below which the optimisation stops, in units of return
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

    def __init__(
        self,
        policy: str | type[BasePolicy],
        env: GymEnv | gym.vector.VectorEnv | str | None,
        n_episodes: int | None = None,
        batch_timesteps: int | None = None,
        horizon: int | None = None,
        gamma: float = 1.0,
        delta: float = 0.4,
        bound: str = "max-d2",
        iw_norm: str = "none",
        center_returns: bool = True,
        natural_gradient: bool = False,
        fisher_damping: float = 1e-2,
        n_offline_iters: int = 10,
        line_search: str = "parabolic",
        line_search_max_iter: int = 30,
        line_search_tol: float = 1e-4,
        line_search_initial_step: float = 1.0,
        gradient_tol: float = 1e-4,
        max_chunk_steps: int = 16_384,
        stats_window_size: int = 100,
        tensorboard_log: str | None = None,
        policy_kwargs: dict[str, Any] | None = None,
        verbose: int = 0,
        seed: int | None = None,
        device: th.device | str = "cpu",
        _init_setup_model: bool = True,
    ) -> None:
        self.fisher_damping = fisher_damping
        self.max_chunk_steps = max_chunk_steps
        super().__init__(
            policy,
            env,
            n_episodes=n_episodes,
            batch_timesteps=batch_timesteps,
            horizon=horizon,
            gamma=gamma,
            delta=delta,
            bound=bound,
            iw_norm=iw_norm,
            center_returns=center_returns,
            natural_gradient=natural_gradient,
            n_offline_iters=n_offline_iters,
            line_search=line_search,
            line_search_max_iter=line_search_max_iter,
            line_search_tol=line_search_tol,
            line_search_initial_step=line_search_initial_step,
            gradient_tol=gradient_tol,
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
        super()._validate_arguments()
        check_number("fisher_damping", self.fisher_damping)
        check_integer("max_chunk_steps", self.max_chunk_steps, least=1)
        if not self.fisher_damping > 0.0:
            raise ValueError(f"fisher_damping is {self.fisher_damping}, but must be > 0")

    def _make_policy(self) -> MlpPolicy:
        if not (isinstance(self.policy_class, type) and issubclass(self.policy_class, MlpPolicy)):
            self._refuse_policy_class("sb3_pois.apois.MlpPolicy")
        policy = self.policy_class(self.observation_space, self.action_space, **self.policy_kwargs)
        warn_of_stochastic_layers(policy)
        return policy.to(self.device)

    def _make_buffer(self) -> EpisodeRolloutBuffer:
        return EpisodeRolloutBuffer(self.observation_space, self.action_space)

    def _make_actor(self, n_envs: int, rng: np.random.Generator) -> Actor:
        return StochasticActor(self.policy, n_envs, rng)

    def train(self) -> None:
        """Climb the surrogate of the batch in ``rollout_buffer`` (Metelli et al. 2018, algorithm 1)."""
        returns = self._informative_returns()
        if returns is None:
            return
        parameters = ParameterVector(self.policy)
        surrogate = make_surrogate(self.policy, self.rollout_buffer, returns, self.objective, self.max_chunk_steps)
        direction = score_natural_gradient(surrogate, self.fisher_damping) if self.natural_gradient else gradient_direction
        result = optimize_offline(surrogate, parameters.get(), direction, **self._optimization_arguments())
        self._log_optimization(surrogate, result)
        parameters.set(result.theta)

    def _log_policy(self) -> None:
        if hasattr(self.policy, "log_std"):
            self.logger.record("train/std", float(self.policy.log_std.detach().exp().mean()))


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
