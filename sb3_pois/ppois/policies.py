"""The hyperpolicies of PPOIS: Gaussians over the parameters of deterministic controllers."""

import reprlib
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch as th
from gymnasium import spaces
from stable_baselines3.common.policies import BasePolicy
from stable_baselines3.common.type_aliases import PyTorchObs
from torch import nn

from sb3_pois.common.arguments import check_flag, check_integer
from sb3_pois.common.net_arch import hidden_sizes
from sb3_pois.ppois.controllers import Controller, NetworkController

# Standard deviation of the initial mean with mean_init="normal", as in the paper
MEAN_INIT_STD = 0.01


class HyperPolicy(BasePolicy):
    """
    Diagonal Gaussian over the parameters of a deterministic controller.

    :param observation_space: observation space
    :param action_space: Box, Discrete, MultiDiscrete or MultiBinary space
    :param controller_class: the controller
    :param controller_kwargs: its keyword arguments besides the spaces
    :param mean_init: initial mean: ``controller`` (the controller's own initial parameters), ``normal`` (drawn from
        N(0, 0.01^2)), or the values, shape (n_params,)
    :param log_std_init: initial log standard deviation, one number or one per parameter
    :param learn_std: whether the standard deviation is learned; False keeps it as it starts
    :ivar controller: the controller
    :ivar mean: mean of the hyperpolicy, float64, shape (n_params,)
    :ivar named_params: indices of the parameters that have a name in common, by name
    :ivar log_std: log standard deviation of the hyperpolicy, float64, shape (n_params,)
    :raises ValueError: if an argument is not allowed
    """

    def __init__(
        self,
        observation_space: spaces.Space,
        action_space: spaces.Space,
        controller_class: type[Controller],
        controller_kwargs: dict[str, Any] | None = None,
        mean_init: str | Sequence[float] | np.ndarray = "controller",
        log_std_init: float | Sequence[float] | np.ndarray = 0.0,
        learn_std: bool = True,
    ) -> None:
        super().__init__(observation_space, action_space)
        check_flag("learn_std", learn_std)
        self.controller_class = controller_class
        self.controller_kwargs = controller_kwargs
        self.mean_init = mean_init
        self.log_std_init = log_std_init
        self.learn_std = learn_std
        self.action_dtype = np.dtype(action_space.dtype)
        if isinstance(action_space, spaces.Box) and self.action_dtype.kind != "f":
            self.action_dtype = np.dtype(np.float32)  # unclipped actions do not fit an integer type
        self.controller = controller_class(observation_space, action_space, **(controller_kwargs or {}))
        check_integer(f"{controller_class.__name__}.n_params", getattr(self.controller, "n_params", None), least=1)
        self.named_params = _params_by_name(self.controller)
        self.mean = nn.Parameter(th.from_numpy(self._initial_mean()))
        self.log_std = nn.Parameter(th.from_numpy(self._initial_log_std()), requires_grad=bool(learn_std))

    @property
    def n_params(self) -> int:
        """Number of the controller's parameters."""
        return int(self.controller.n_params)

    def _initial_mean(self) -> np.ndarray:
        if not isinstance(self.mean_init, str):
            return as_vector("mean_init", self.mean_init, self.n_params)
        if self.mean_init == "controller":
            name = f"{type(self.controller).__name__}.initial_params()"
            return as_vector(name, self.controller.initial_params(), self.n_params)
        if self.mean_init == "normal":
            return np.random.normal(0.0, MEAN_INIT_STD, self.n_params)
        raise ValueError(f"mean_init is {self.mean_init!r}, but allowed are 'controller', 'normal' and a list of numbers")

    def _initial_log_std(self) -> np.ndarray:
        if np.ndim(self.log_std_init) > 0:
            return as_vector("log_std_init", self.log_std_init, self.n_params)
        return as_vector("log_std_init", [self.log_std_init] * self.n_params, self.n_params)

    def _get_constructor_parameters(self) -> dict[str, Any]:
        return dict(
            observation_space=self.observation_space,
            action_space=self.action_space,
            controller_class=self.controller_class,
            controller_kwargs=self.controller_kwargs,
            mean_init=self.mean_init,
            log_std_init=self.log_std_init,
            learn_std=self.learn_std,
        )

    def act(self, params: np.ndarray, observations: Any) -> np.ndarray:
        """
        Let the controller act, and check what it returns.

        :param params: controller parameters, shape (n_envs, n_params)
        :param observations: observations, shape (n_envs, *obs_shape), or a dict of such
        :return: actions before any clipping, shape (n_envs, *action_shape)
        :raises ValueError: if they have another shape, or a type that does not fit the action space
        """
        actions = np.asarray(self.controller.act(params, observations))
        shape = (len(params), *(self.action_space.shape or ()))
        if actions.shape != shape:
            raise ValueError(
                f"{type(self.controller).__name__}.act returned actions of shape {actions.shape}, but must return "
                f"{shape}: one action per row of params"
            )
        if not np.can_cast(actions.dtype, self.action_dtype, "same_kind"):
            raise ValueError(
                f"{type(self.controller).__name__}.act returned actions of type {actions.dtype}, but the action space "
                f"{self.action_space} takes {self.action_dtype}"
            )
        return actions.astype(self.action_dtype, copy=False)

    def draw_params(self, n_draws: int) -> np.ndarray:
        """
        Draw controller parameters from the hyperpolicy, with numpy's global generator.

        :param n_draws: number of draws
        :return: controller parameters, shape (n_draws, n_params)
        """
        mean, log_std = to_array(self.mean), to_array(self.log_std)
        return mean + np.exp(log_std) * np.random.standard_normal((n_draws, self.n_params))

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
        :param state: what the last call returned, when not deterministic: the controller parameters that are in use, a
            tuple of one array of shape (n_envs, n_params); None draws them
        :param episode_start: where an episode starts and new parameters are drawn, shape (n_envs,); None for nowhere
        :param deterministic: whether to act with the mean of the hyperpolicy
        :return: actions, and the state for the next call
        :raises ValueError: if state or episode_start do not fit the observation
        """
        if deterministic:
            return super().predict(observation, state, episode_start, deterministic)
        if isinstance(observation, tuple):
            raise ValueError("observation is a tuple, but must be an array or a dict: pass `obs` of `obs, info = env.reset()`")
        obs_tensor, is_vectorized = self.obs_to_tensor(observation)
        observations = _to_arrays(obs_tensor)
        params = self._continue_params(state, episode_start, _n_rows(observations))
        actions = self.act(params.astype(self.controller.params_dtype, copy=False), observations)
        if isinstance(self.action_space, spaces.Box):
            actions = np.clip(actions, self.action_space.low, self.action_space.high)
        return actions if is_vectorized else actions.squeeze(axis=0), (params,)

    def _continue_params(
        self, state: tuple[np.ndarray, ...] | None, episode_start: np.ndarray | None, n_envs: int
    ) -> np.ndarray:
        """Controller parameters of the environments, drawn anew where an episode starts."""
        if state is None:
            return self.draw_params(n_envs)
        shapes = [np.shape(part) for part in state]
        if shapes != [(n_envs, self.n_params)]:
            raise ValueError(f"state has parts of the shapes {shapes}, but the observation asks for {(n_envs, self.n_params)}")
        params = np.array(state[0])
        if episode_start is not None:
            starts = np.ravel(episode_start).astype(bool)
            if len(starts) != n_envs:
                raise ValueError(f"episode_start has {len(starts)} entries, but the observation asks for {n_envs}")
            params[starts] = self.draw_params(int(starts.sum()))
        return params

    def _predict(self, observation: PyTorchObs, deterministic: bool = True) -> th.Tensor:
        observations = _to_arrays(observation)
        n_envs = _n_rows(observations)
        params = np.broadcast_to(to_array(self.mean), (n_envs, self.n_params)) if deterministic else self.draw_params(n_envs)
        actions = self.act(params.astype(self.controller.params_dtype, copy=False), observations)
        return th.as_tensor(actions, device=self.device)

    def forward(self, observation: PyTorchObs) -> th.Tensor:
        """
        Actions of the controller at the centre of the hyperpolicy.

        :param observation: observations, shape (n_states, *obs_shape), or a dict of such
        :return: actions before any clipping, shape (n_states, *action_shape)
        """
        return self._predict(observation)


class MlpPolicy(HyperPolicy):
    """
    Hyperpolicy over the weights of a multi-layer perceptron.

    :param observation_space: observation space; Dict spaces are flattened
    :param action_space: Box, Discrete, MultiDiscrete or MultiBinary space
    :param net_arch: sizes of the hidden layers, or ``dict(pi=sizes)``; None for two of 64 units
    :param activation_fn: activation of the hidden layers
    :param with_bias: whether the layers have biases
    :param mean_init: initial mean: ``normal`` (drawn from N(0, 0.01^2)), ``controller`` (Xavier-uniform weights, biases of
        0), or the values, shape (n_params,)
    :param log_std_init: initial log standard deviation, one number or one per parameter
    :param learn_std: whether the standard deviation is learned; False keeps it as it starts
    :param normalize_images: whether to divide images by 255
    :raises ValueError: if an argument is not allowed
    """

    controller: NetworkController

    def __init__(
        self,
        observation_space: spaces.Space,
        action_space: spaces.Space,
        net_arch: list[int] | dict[str, list[int]] | None = None,
        activation_fn: type[nn.Module] = nn.Tanh,
        with_bias: bool = True,
        mean_init: str | Sequence[float] | np.ndarray = "normal",
        log_std_init: float | Sequence[float] | np.ndarray = 0.0,
        learn_std: bool = True,
        normalize_images: bool = True,
    ) -> None:
        self.network = dict(
            net_arch=hidden_sizes(net_arch),
            activation_fn=activation_fn,
            with_bias=with_bias,
            normalize_images=normalize_images,
        )
        super().__init__(observation_space, action_space, NetworkController, self.network, mean_init, log_std_init, learn_std)

    def _get_constructor_parameters(self) -> dict[str, Any]:
        parameters = super()._get_constructor_parameters()
        del parameters["controller_class"], parameters["controller_kwargs"]
        return {**parameters, **self.network}


class LinearPolicy(MlpPolicy):
    """
    Hyperpolicy over the weights of a linear controller, without bias unless asked for, as in the paper.

    :param observation_space: observation space; Dict spaces are flattened
    :param action_space: Box, Discrete, MultiDiscrete or MultiBinary space
    :param with_bias: whether to add a bias
    :param mean_init: initial mean: ``normal``, ``controller``, or the values, shape (n_params,)
    :param log_std_init: initial log standard deviation, one number or one per parameter
    :param learn_std: whether the standard deviation is learned; False keeps it as it starts
    :param normalize_images: whether to divide images by 255
    :raises ValueError: if an argument is not allowed
    """

    def __init__(
        self,
        observation_space: spaces.Space,
        action_space: spaces.Space,
        with_bias: bool = False,
        mean_init: str | Sequence[float] | np.ndarray = "normal",
        log_std_init: float | Sequence[float] | np.ndarray = 0.0,
        learn_std: bool = True,
        normalize_images: bool = True,
    ) -> None:
        super().__init__(
            observation_space,
            action_space,
            net_arch=[],
            with_bias=with_bias,
            mean_init=mean_init,
            log_std_init=log_std_init,
            learn_std=learn_std,
            normalize_images=normalize_images,
        )

    def _get_constructor_parameters(self) -> dict[str, Any]:
        parameters = super()._get_constructor_parameters()
        del parameters["net_arch"], parameters["activation_fn"]
        return parameters


# The networks flatten Dict observations by themselves
MultiInputPolicy = MlpPolicy


def as_vector(name: str, values: Any, n_params: int) -> np.ndarray:
    """
    Check a vector of parameters.

    :param name: what it is called in the message
    :param values: the values
    :param n_params: number of values that there have to be
    :return: float64 copy, shape (n_params,)
    :raises ValueError: if there are more or fewer values, they are no numbers, not finite, or a tensor
    """
    if isinstance(values, th.Tensor):
        raise ValueError(
            f"{name} is a tensor, but must be a list or an array: models are saved without tensors beside weights"
        )
    try:
        vector = np.array(values, dtype=np.float64)
    except (TypeError, ValueError):
        raise ValueError(f"{name} is {values!r}, but must be {n_params} numbers") from None
    if vector.shape != (n_params,):
        raise ValueError(f"{name} has the shape {vector.shape}, but must be ({n_params},), one value per parameter")
    if not np.isfinite(vector).all():
        raise ValueError(f"{name} has {int((~np.isfinite(vector)).sum())} values that are not finite, but all must be")
    return vector


def _params_by_name(controller: Controller) -> dict[str, np.ndarray]:
    """
    Indices of the parameters that have a name in common.

    :param controller: the controller
    :return: indices by name; empty if its parameters have no names
    :raises ValueError: if there is not one text for each, or one is too long for a table of the log
    """
    names, n_params = controller.param_names, controller.n_params
    if names is None:
        return {}
    is_sequence = isinstance(names, Sequence) and not isinstance(names, str)
    if not (is_sequence and len(names) == n_params and all(isinstance(n, str) and 0 < len(n) <= 24 for n in names)):
        raise ValueError(
            f"{type(controller).__name__}.param_names is {reprlib.repr(names)}, but must be None or {n_params} texts of 1 to "
            "24 characters, one per parameter"
        )
    indices: dict[str, list[int]] = {}
    for index, name in enumerate(names):
        indices.setdefault(name, []).append(index)
    return {name: np.array(of_name) for name, of_name in indices.items()}


def to_array(tensor: th.Tensor) -> np.ndarray:
    """
    Copy a tensor into an array on the CPU.

    :param tensor: any tensor
    :return: the copy
    """
    return tensor.detach().cpu().numpy().copy()


def _to_arrays(observation: PyTorchObs) -> Any:
    if isinstance(observation, dict):
        return {key: values.cpu().numpy() for key, values in observation.items()}
    return observation.cpu().numpy()


def _n_rows(observations: Any) -> int:
    return len(next(iter(observations.values())) if isinstance(observations, dict) else observations)
