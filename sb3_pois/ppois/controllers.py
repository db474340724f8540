"""
Deterministic controllers: what acts in PPOIS.

A controller is a function of a flat parameter vector and an observation. Many parameter vectors act at once, one per
environment, in a single call.
"""

import itertools
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from typing import Any, ClassVar

import numpy as np
import torch as th
from gymnasium import spaces
from numpy.typing import DTypeLike
from stable_baselines3.common.preprocessing import get_flattened_obs_dim, is_image_space, preprocess_obs
from stable_baselines3.common.utils import obs_as_tensor
from torch import nn

from sb3_pois.common.array_network import ARRAY_ACTIVATIONS, ArrayFunction

SUPPORTED_ACTION_SPACES = (spaces.Box, spaces.Discrete, spaces.MultiDiscrete, spaces.MultiBinary)


class Controller(ABC):
    """
    Base of all controllers; derive from it to tune a controller of your own, and pass the class as ``policy``.

    A controller need not be differentiable. It holds no parameters (they are handed to :meth:`act`) and remembers nothing
    between calls: whatever it has to remember, an integral or a filtered signal, belongs into the observation, through a
    wrapper of the environment.

    .. code-block:: python

        class ProportionalDerivative(Controller):
            n_params = 2
            param_names = ("P", "D")

            def act(self, params, observations):
                return -(params * observations).sum(1, keepdims=True)

        model = PPOIS(ProportionalDerivative, env, policy_kwargs=dict(mean_init=[1.0, 0.1], log_std_init=-1.0))

    :param observation_space: observation space
    :param action_space: action space
    :ivar n_params: number of parameters; set it in the class or in the constructor
    :ivar param_names: name of each parameter, by which the log has the standard deviations (parameters of one name have
        their mean there); None for no names
    :cvar params_dtype: type of the parameters that :meth:`act` receives
    """

    n_params: int
    param_names: Sequence[str] | None = None
    params_dtype: ClassVar[DTypeLike] = np.float64

    def __init__(self, observation_space: spaces.Space, action_space: spaces.Space) -> None:
        self.observation_space = observation_space
        self.action_space = action_space

    @abstractmethod
    def act(self, params: np.ndarray, observations: Any) -> np.ndarray:
        """
        Choose one action per environment, each with parameters of its own.

        :param params: parameters, shape (n_envs, n_params); may be read-only
        :param observations: observations as the environments (or a ``VecNormalize``) give them, shape
            (n_envs, *obs_shape), or a dict of such
        :return: actions, shape (n_envs, *action_shape); those of a Box are clipped to its bounds afterwards
        """

    def initial_params(self) -> np.ndarray:
        """
        Where the search starts with ``mean_init="controller"``.

        :return: parameters, shape (n_params,); zeros unless overridden
        """
        return np.zeros(self.n_params)

    def neuron_index(self) -> np.ndarray:
        """
        Neuron that each parameter belongs to, for ``grouping="neuron"``.

        :return: numbers of the neurons, shape (n_params,)
        :raises ValueError: if the controller has no neurons
        """
        raise ValueError(
            f"grouping is 'neuron', but {type(self).__name__} has no neurons: use 'none' or a list of index lists"
        )


class NetworkController(Controller):
    """
    Multi-layer perceptron on the flattened observation; a linear controller if it has no hidden layer.

    Observations are preprocessed as SB3 does it: one-hot where discrete, images divided by 255, Dict spaces
    concatenated in their order. Discrete actions are the largest output's, MultiDiscrete ones that of each factor, and
    MultiBinary ones the outputs' signs.

    The parameters are, layer by layer, the weights (n_inputs, n_outputs) in row-major order and then the biases.

    :param observation_space: observation space
    :param action_space: Box, Discrete, MultiDiscrete or MultiBinary space
    :param net_arch: sizes of the hidden layers
    :param activation_fn: activation of the hidden layers, elementwise
    :param with_bias: whether the layers have biases
    :param normalize_images: whether to divide images by 255
    """

    params_dtype: ClassVar[DTypeLike] = np.float32

    def __init__(
        self,
        observation_space: spaces.Space,
        action_space: spaces.Space,
        net_arch: Sequence[int],
        activation_fn: type[nn.Module],
        with_bias: bool,
        normalize_images: bool = True,
    ) -> None:
        super().__init__(observation_space, action_space)
        self.with_bias = with_bias
        self.normalize_images = normalize_images
        self.activation_fn = activation_fn
        self.activation = _array_activation(activation_fn)
        self.is_plain = isinstance(observation_space, spaces.Box) and not (
            normalize_images and is_image_space(observation_space)
        )
        n_outputs, self.to_actions = _make_output(action_space)
        sizes = [get_flattened_obs_dim(observation_space), *net_arch, n_outputs]
        self.layer_sizes = list(itertools.pairwise(sizes))
        self.n_params = sum(n_in * n_out + with_bias * n_out for n_in, n_out in self.layer_sizes)
        self.param_names = [
            name
            for layer, (n_in, n_out) in enumerate(self.layer_sizes)
            for name, size in ((f"layer_{layer}.weight", n_in * n_out), (f"layer_{layer}.bias", with_bias * n_out))
            for _ in range(size)
        ]

    def act(self, params: np.ndarray, observations: Any) -> np.ndarray:
        x = self.features(observations)
        for layer, (weight, bias) in enumerate(self.split(params)):
            if layer > 0:
                x = self.activation(x)
            x = np.matmul(x[:, None], weight)[:, 0]  # one vector-matrix product per environment, in one call
            if bias is not None:
                x += bias
        return self.to_actions(x)

    def features(self, observations: Any) -> np.ndarray:
        """
        Flatten observations.

        :param observations: observations, shape (n_envs, *obs_shape), or a dict of such
        :return: float32 features, shape (n_envs, n_features)
        """
        if self.is_plain:
            return observations.reshape(len(observations), -1).astype(np.float32, copy=False)
        tensors = obs_as_tensor(observations, th.device("cpu"))
        preprocessed = preprocess_obs(tensors, self.observation_space, self.normalize_images)
        if isinstance(preprocessed, dict):
            parts = [preprocessed[key] for key in self.observation_space.spaces]  # type: ignore[attr-defined]
        else:
            parts = [preprocessed]
        return th.cat([part.flatten(1) for part in parts], dim=1).numpy()

    def split(self, params: np.ndarray) -> Iterator[tuple[np.ndarray, np.ndarray | None]]:
        """
        View parameters as layers.

        :param params: parameters, shape (n_envs, n_params)
        :return: weights of shape (n_envs, n_inputs, n_outputs) and biases of shape (n_envs, n_outputs) of each layer
        """
        start = 0
        for n_in, n_out in self.layer_sizes:
            end = start + n_in * n_out
            weight = params[:, start:end].reshape(len(params), n_in, n_out)
            start = end + n_out if self.with_bias else end
            yield weight, params[:, end:start] if self.with_bias else None

    def initial_params(self) -> np.ndarray:
        """
        Xavier-uniform weights and biases of 0, from numpy's global generator.

        :return: parameters, shape (n_params,)
        """
        params = np.zeros((1, self.n_params))
        for (n_in, n_out), (weight, _) in zip(self.layer_sizes, self.split(params), strict=True):
            limit = np.sqrt(6.0 / (n_in + n_out))
            weight[:] = np.random.uniform(-limit, limit, weight.shape)
        return params[0]

    def neuron_index(self) -> np.ndarray:
        """
        Neuron that each parameter belongs to: all weights into a unit and its bias, output units included.

        :return: numbers of the neurons, shape (n_params,)
        """
        parts = []
        n_neurons = 0
        for n_in, n_out in self.layer_sizes:
            units = np.arange(n_neurons, n_neurons + n_out)
            parts.append(np.tile(units, n_in + self.with_bias))
            n_neurons += n_out
        return np.concatenate(parts)

    def params_of_layers(self, layers: Sequence[nn.Linear]) -> np.ndarray:
        """
        Parameters that make the controller compute what a chain of linear layers does.

        :param layers: linear layers in order
        :return: parameters, shape (n_params,)
        :raises ValueError: if they do not have this controller's shape
        """
        given = [(layer.in_features, layer.out_features, layer.bias is not None) for layer in layers]
        own = [(n_in, n_out, self.with_bias) for n_in, n_out in self.layer_sizes]
        if given != own:
            raise ValueError(
                f"the actor's layers are {given} as (inputs, outputs, bias), but the controller's are {own}: "
                "give it the same net_arch and with_bias"
            )
        parts = []
        for layer in layers:
            parts.append(layer.weight.detach().cpu().numpy().T.ravel())
            if layer.bias is not None:
                parts.append(layer.bias.detach().cpu().numpy())
        return np.concatenate(parts).astype(np.float64)


def _array_activation(activation_fn: type[nn.Module]) -> ArrayFunction:
    """An activation as a function of arrays, which it may change in place."""
    if activation_fn in ARRAY_ACTIVATIONS:
        return ARRAY_ACTIVATIONS[activation_fn]
    module = activation_fn()

    def activation(x: np.ndarray) -> np.ndarray:
        with th.no_grad():
            return module(th.from_numpy(x)).numpy()

    return activation


def _make_output(action_space: spaces.Space) -> tuple[int, Callable[[np.ndarray], np.ndarray]]:
    """Number of outputs that an action space takes, and what turns those of shape (n_envs, n_outputs) into actions."""
    if isinstance(action_space, spaces.Box):
        shape = action_space.shape
        return int(np.prod(shape)), lambda outputs: outputs.reshape(-1, *shape)
    if isinstance(action_space, spaces.Discrete):
        first = int(action_space.start)
        return int(action_space.n), lambda outputs: outputs.argmax(1) + first
    if isinstance(action_space, spaces.MultiDiscrete):
        n_categories, shape, start = np.ravel(action_space.nvec), action_space.shape, np.ravel(action_space.start)

        def largest_of_factors(outputs: np.ndarray) -> np.ndarray:
            factors = np.split(outputs, np.cumsum(n_categories)[:-1], axis=1)
            return (np.stack([factor.argmax(1) for factor in factors], axis=1) + start).reshape(-1, *shape)

        return int(n_categories.sum()), largest_of_factors
    assert isinstance(action_space, spaces.MultiBinary)
    shape = action_space.shape
    return int(np.prod(shape)), lambda outputs: (outputs > 0.0).reshape(-1, *shape)
