"""Parameter-based POIS."""

import importlib
from collections.abc import Sequence
from typing import Any, ClassVar, TypeVar

import gymnasium as gym
import numpy as np
import torch as th
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.policies import BasePolicy
from stable_baselines3.common.type_aliases import GymEnv
from torch import nn

from sb3_pois.common.ascent import gradient_direction, optimize_offline
from sb3_pois.common.buffers import Observations
from sb3_pois.common.collection import Actor
from sb3_pois.common.parameters import ParameterVector
from sb3_pois.common.pois_algorithm import PoisAlgorithm
from sb3_pois.common.std_limits import std_box
from sb3_pois.ppois.buffers import HyperpolicyBuffer
from sb3_pois.ppois.controllers import SUPPORTED_ACTION_SPACES, Controller, NetworkController
from sb3_pois.ppois.grouping import Grouping, check_grouping, group_index_of
from sb3_pois.ppois.policies import HyperPolicy, LinearPolicy, MlpPolicy, MultiInputPolicy, as_vector, to_array
from sb3_pois.ppois.surrogate import HyperpolicySurrogate, gaussian_natural_gradient

SelfPPOIS = TypeVar("SelfPPOIS", bound="PPOIS")


class PPOIS(PoisAlgorithm):
    """
    Parameter-based Policy Optimization via Importance Sampling (Metelli, Papini, Faccio and Restelli, NeurIPS 2018).

    Paper: https://arxiv.org/abs/1809.06098. Searches the parameters of a deterministic controller with a Gaussian
    *hyperpolicy*: every episode runs a controller drawn from it, then a lower bound of the expected return of other
    hyperpolicies, estimated from that batch by importance sampling, is climbed until it stops improving. With a grouping
    it is N-POIS: every group of parameters has its own importance weights, surrogate and step size.

    ``rollout/ep_rew_mean`` is the mean over the drawn controllers; ``eval/mean_reward`` is that of the controller at the
    hyperpolicy's centre, with which ``predict`` acts by default.

    Not supported: recurrent policies, convolutional policies, gSDE, a learning rate, a critic.

    :param policy: ``LinearPolicy``, ``MlpPolicy``, ``MultiInputPolicy``, a :class:`Controller` of your own (the class or
        its dotted name; ``policy_kwargs`` are then those of :class:`HyperPolicy`), or a subclass of :class:`HyperPolicy`
    :param env: environment to learn from: an id, a Gymnasium environment or vector environment, or an SB3 ``VecEnv``
    :param n_episodes: episodes per batch; 50 if ``batch_timesteps`` is not given either
    :param batch_timesteps: steps per batch, instead of ``n_episodes``: whole episodes in launch order, only the last cut
    :param finish_last_episode: whether that last episode is not cut but run to its end, beyond ``batch_timesteps``
    :param horizon: number of steps after which every episode is cut; None leaves the end to the environment
    :param gamma: discount factor, in [0, 1]
    :param delta: 1 minus the confidence of the bound, in (0, 1]; 1 switches its penalty off
    :param bound: surrogate: ``J``, ``max-d2``, ``std-d2``, ``max-ess`` or ``std-ess``
    :param iw_norm: estimator: ``none`` (importance sampling) or ``sn`` (self-normalised)
    :param min_ess: least effective sample size that a target's weights may have, as a share of the episodes, in [0, 1);
        with a grouping that of every group's weights
    :param center_returns: subtract the batch's mean return before everything; logged surrogates are relative to it
    :param natural_gradient: precondition the gradient with the inverse Fisher information, which is exact here
    :param grouping: ``none``, ``neuron`` (all weights into a unit and its bias, N-POIS), or lists of parameter indices
    :param n_offline_iters: largest number of line searches per batch
    :param line_search: ``parabolic`` or ``binary``
    :param line_search_max_iter: largest number of trials per line search
    :param line_search_tol: least gain of a trial and of a line search
    :param line_search_initial_step: gain that the first trial promises
    :param gradient_tol: norm of the gradient below which the optimisation stops
    :param line_search_units: what those three are measured in: ``absolute`` for units of return, as the paper has it, or
        ``returns`` for standard deviations of the batch's returns
    :param stats_window_size: number of episodes that ``ep_info_buffer`` and ``ep_success_buffer`` keep
    :param tensorboard_log: folder of the tensorboard logs; None for none
    :param policy_kwargs: keyword arguments of the policy
    :param verbose: 0 for no output, 1 for information, 2 for debugging
    :param seed: seed of the pseudo-random generators
    :param device: device of the optimisation
    :param _init_setup_model: whether to build the policy on construction
    :raises ValueError: if an argument is outside its range
    :raises AssertionError: if the action space is not supported
    """

    policy_aliases: ClassVar[dict[str, type[BasePolicy]]] = {
        "LinearPolicy": LinearPolicy,
        "MlpPolicy": MlpPolicy,
        "MultiInputPolicy": MultiInputPolicy,
    }
    policy: HyperPolicy
    rollout_buffer: HyperpolicyBuffer
    policy_bases = (Controller, HyperPolicy)
    default_batch = (50, None)
    # What the paper's linear experiments have in common, but for delta, which is the task's: PPOIS(policy, env, **PPOIS.PAPER)
    PAPER: ClassVar[dict[str, Any]] = {
        "n_episodes": 100,
        "gamma": 1.0,
        "delta": 0.4,
        "bound": "max-d2",
        "iw_norm": "sn",
        "min_ess": 0.0,
        "center_returns": False,
        "natural_gradient": True,
        "n_offline_iters": 10,
        "line_search_units": "absolute",
    }

    def __init__(
        self,
        policy: str | type[BasePolicy] | type[Controller],
        env: GymEnv | gym.vector.VectorEnv | str | None,
        n_episodes: int | None = None,
        batch_timesteps: int | None = None,
        finish_last_episode: bool = False,
        horizon: int | None = None,
        gamma: float = 1.0,
        delta: float = 0.4,
        bound: str = "std-ess",
        iw_norm: str = "sn",
        min_ess: float = 0.5,
        center_returns: bool = False,
        natural_gradient: bool = True,
        grouping: Grouping = "none",
        n_offline_iters: int = 10,
        line_search: str = "parabolic",
        line_search_max_iter: int = 30,
        line_search_tol: float = 1e-4,
        line_search_initial_step: float = 1.0,
        gradient_tol: float = 1e-4,
        line_search_units: str = "returns",
        stats_window_size: int = 100,
        tensorboard_log: str | None = None,
        policy_kwargs: dict[str, Any] | None = None,
        verbose: int = 0,
        seed: int | None = None,
        device: th.device | str = "cpu",
        _init_setup_model: bool = True,
    ) -> None:
        self.grouping = grouping
        super().__init__(
            policy,  # type: ignore[arg-type]
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

    # Construction and validation

    def _validate_arguments(self) -> None:
        super()._validate_arguments()
        check_grouping(self.grouping)

    def _get_policy_from_name(self, policy_name: str) -> type[BasePolicy]:
        module_name, _, class_name = policy_name.rpartition(".")
        if module_name == "":
            return super()._get_policy_from_name(policy_name)
        try:
            return getattr(importlib.import_module(module_name), class_name)
        except (ImportError, AttributeError) as error:
            raise ValueError(f"policy is {policy_name!r}, but there is no such class: {error}") from error

    def _make_policy(self) -> HyperPolicy:
        policy_class: Any = self.policy_class
        spaces_and_kwargs = dict(
            observation_space=self.observation_space, action_space=self.action_space, **self.policy_kwargs
        )
        if issubclass(policy_class, Controller):
            policy = HyperPolicy(controller_class=policy_class, **spaces_and_kwargs)
        else:
            policy = policy_class(**spaces_and_kwargs)
        group_index_of(self.grouping, policy.controller)  # refuses what is no partition of the parameters
        return policy.to(self.device)

    def _make_buffer(self) -> HyperpolicyBuffer:
        return HyperpolicyBuffer(self.observation_space, self.action_space)

    def _make_actor(self, n_envs: int, rng: np.random.Generator) -> Actor:
        self.rollout_buffer.set_behavioral(to_array(self.policy.mean), to_array(self.policy.log_std))
        return HyperpolicyActor(self.policy, n_envs, rng)

    # Learning and prediction

    def train(self) -> None:
        """Climb the surrogate of the batch in ``rollout_buffer`` (Metelli et al. 2018, algorithm 2)."""
        returns = self._informative_returns()
        if returns is None:
            return
        buffer = self.rollout_buffer
        parameters = ParameterVector(self.policy, ("mean", "log_std"))
        group_index = group_index_of(self.grouping, self.policy.controller)
        surrogate = HyperpolicySurrogate(
            buffer.mean,
            buffer.log_std,
            buffer.noise,
            returns,
            self.objective,
            group_index,
            learn_mean=self.policy.mean.requires_grad,
            learn_std=self.policy.log_std.requires_grad,
        )
        theta = parameters.get()
        result = optimize_offline(
            surrogate,
            theta,
            gaussian_natural_gradient if self.natural_gradient else gradient_direction,
            None if group_index is None else surrogate.group_of_theta,
            box=std_box(theta, parameters.mask("log_std")),
            **self._optimization_arguments(),
        )
        self._log_optimization(surrogate, result)
        parameters.set(result.theta)

    def _log_std(self) -> np.ndarray:
        return to_array(self.policy.log_std)

    def _std_groups(self) -> dict[str, np.ndarray]:
        return self.policy.named_params

    def predict(
        self,
        observation: np.ndarray | dict[str, np.ndarray],
        state: tuple[np.ndarray, ...] | None = None,
        episode_start: np.ndarray | None = None,
        deterministic: bool = True,
    ) -> tuple[np.ndarray, tuple[np.ndarray, ...] | None]:
        """
        Choose actions with the controller at the centre of the hyperpolicy, or with one drawn for each episode.

        :param observation: observation, or a batch of one per environment
        :param state: what the last call returned, when not deterministic: the controller parameters that are in use
        :param episode_start: where an episode starts and new parameters are drawn, shape (n_envs,); None for nowhere
        :param deterministic: whether to act with the mean of the hyperpolicy
        :return: actions, and the state for the next call
        """
        return self.policy.predict(observation, state, episode_start, deterministic)

    def warm_start(self: SelfPPOIS, source: "np.ndarray | Sequence[float] | BaseAlgorithm | nn.Module") -> SelfPPOIS:
        """
        Move the centre of the hyperpolicy to known controller parameters; its standard deviation stays.

        :param source: the parameters, shape (n_params,); a PPOIS model or its policy, whose centre is taken; or a network
            (APOIS, PPO, A2C, TRPO or ARS model or policy, or a chain of layers) with the layers of this model's
        :return: the model
        :raises ValueError: if the source does not fit
        """
        if isinstance(source, BaseAlgorithm):
            source = source.policy
        if isinstance(source, HyperPolicy):
            mean = to_array(source.mean)
        elif isinstance(source, nn.Module):
            if not isinstance(self.policy.controller, NetworkController):
                raise ValueError(
                    f"source is a network, but {type(self.policy.controller).__name__} is none: give its parameters as a list"
                )
            mean = self.policy.controller.params_of_layers(_actor_layers(source))
        else:
            mean = source  # type: ignore[assignment]
        vector = as_vector("source", mean, self.policy.n_params)
        with th.no_grad():
            self.policy.mean.copy_(th.from_numpy(vector))
        return self


class HyperpolicyActor:
    """
    Draws the controllers of one batch and lets them act.

    Noise is drawn in the order in which episodes are launched, so that an episode's controller does not depend on how the
    environments run.

    :param policy: the behavioral hyperpolicy
    :param n_envs: number of environments
    :param rng: source of all noise of the batch
    """

    def __init__(self, policy: HyperPolicy, n_envs: int, rng: np.random.Generator) -> None:
        self.policy = policy
        self.rng = rng
        self.mean, self.std = to_array(policy.mean), np.exp(to_array(policy.log_std))
        self.params = np.tile(self.mean, (n_envs, 1)).astype(policy.controller.params_dtype)

    def start_episodes(self, envs: np.ndarray) -> np.ndarray:
        """
        Draw the controllers of the next episodes in launch order.

        :param envs: indices of the environments that they start in, shape (n_started,)
        :return: the noise that their parameters come from, shape (n_started, n_params)
        """
        noise = self.rng.standard_normal((len(envs), len(self.mean)), dtype=np.float32)
        self.params[envs] = self.mean + self.std * noise
        return noise

    def act(self, observations: Observations) -> np.ndarray:
        """
        Let every environment's controller act.

        :param observations: observations, shape (n_envs, *obs_shape), or a dict of such
        :return: actions before any clipping, shape (n_envs, *action_shape)
        """
        return self.policy.act(self.params, observations)


def _actor_layers(network: Any) -> list[nn.Linear]:
    """Linear layers of an actor in order: of APOIS, SB3's actor-critics, ARS, or a plain chain."""
    parts = [network]
    if hasattr(network, "mlp_extractor"):
        parts = [network.mlp_extractor.policy_net, network.action_net]
    elif hasattr(network, "action_net"):
        parts = [*getattr(network, "mlp", []), network.action_net]
    return [layer for part in parts for layer in part.modules() if isinstance(layer, nn.Linear)]
