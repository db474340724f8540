"""The stochastic policies of APOIS: an actor and nothing else."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import torch as th
from gymnasium import spaces
from stable_baselines3.common.policies import BasePolicy
from stable_baselines3.common.preprocessing import is_image_space, preprocess_obs
from stable_baselines3.common.torch_layers import (
    BaseFeaturesExtractor,
    CombinedExtractor,
    FlattenExtractor,
    NatureCNN,
    create_mlp,
)
from stable_baselines3.common.type_aliases import PyTorchObs
from stable_baselines3.common.utils import obs_as_tensor
from torch import nn

from sb3_pois.apois.action_distributions import ArrayParams, Params, make_action_distribution
from sb3_pois.common.arguments import check_choice, check_flag
from sb3_pois.common.array_network import array_network
from sb3_pois.common.net_arch import hidden_sizes


def _xavier(layer: nn.Linear, is_last: bool) -> None:
    nn.init.xavier_uniform_(layer.weight)


def _normal(layer: nn.Linear, is_last: bool) -> None:
    nn.init.normal_(layer.weight, std=0.01)


def _orthogonal(layer: nn.Linear, is_last: bool) -> None:
    nn.init.orthogonal_(layer.weight, gain=0.01 if is_last else math.sqrt(2.0))


WEIGHT_INITS: dict[str, Callable[[nn.Linear, bool], None]] = {
    "orthogonal": _orthogonal,
    "xavier": _xavier,
    "normal": _normal,
}
IN_PLACE_ACTIVATIONS: dict[type[nn.Module], Callable[[th.Tensor], th.Tensor]] = {nn.Tanh: th.tanh_, nn.ReLU: th.relu_}


class MlpPolicy(BasePolicy):
    """
    Multi-layer perceptron that parametrises an action distribution.

    :param observation_space: observation space
    :param action_space: Box, Discrete, MultiDiscrete or MultiBinary space
    :param net_arch: sizes of the hidden layers, or ``dict(pi=sizes)``; None for two of 64 units, or none after a
        ``NatureCNN``
    :param activation_fn: activation of the hidden layers
    :param log_std_init: initial log standard deviation of Box actions, the same in all dimensions
    :param learn_std: whether the standard deviation of Box actions is learned; False keeps it as it starts
    :param with_bias: whether the layers have biases
    :param weight_init: ``orthogonal`` (as SB3: gain sqrt(2), the output layer 0.01), ``xavier`` (uniform) or ``normal``
        (N(0, 0.01^2)); biases start at 0
    :param features_extractor_class: features extractor
    :param features_extractor_kwargs: its keyword arguments
    :param normalize_images: whether to divide images by 255
    :raises ValueError: if an argument is not allowed
    """

    def __init__(
        self,
        observation_space: spaces.Space,
        action_space: spaces.Space,
        net_arch: list[int] | dict[str, list[int]] | None = None,
        activation_fn: type[nn.Module] = nn.Tanh,
        log_std_init: float = 0.0,
        learn_std: bool = True,
        with_bias: bool = True,
        weight_init: str = "orthogonal",
        features_extractor_class: type[BaseFeaturesExtractor] = FlattenExtractor,
        features_extractor_kwargs: dict[str, Any] | None = None,
        normalize_images: bool = True,
    ) -> None:
        super().__init__(
            observation_space,
            action_space,
            features_extractor_class,
            features_extractor_kwargs,
            normalize_images=normalize_images,
        )
        check_choice("weight_init", weight_init, WEIGHT_INITS)
        check_flag("learn_std", learn_std)
        if not math.isfinite(log_std_init):
            raise ValueError(f"log_std_init is {log_std_init}, but must be a finite number")
        self.net_arch = hidden_sizes(net_arch, default=[] if issubclass(features_extractor_class, NatureCNN) else [64, 64])
        self.activation_fn = activation_fn
        self.log_std_init = log_std_init
        self.learn_std = learn_std
        self.with_bias = with_bias
        self.weight_init = weight_init

        self.distribution = make_action_distribution(action_space)
        self.features_extractor = self.make_features_extractor()
        features_dim = self.features_extractor.features_dim
        self.mlp = _HiddenLayers(*create_mlp(features_dim, -1, self.net_arch, activation_fn, with_bias=with_bias))
        last_dim = self.net_arch[-1] if self.net_arch else features_dim
        self.action_net = nn.Linear(last_dim, self.distribution.n_outputs, bias=with_bias)
        if isinstance(action_space, spaces.Box):
            log_std = th.full((self.distribution.n_outputs,), float(log_std_init))
            self.log_std = nn.Parameter(log_std, requires_grad=bool(learn_std))
        self._init_weights()

    def _init_weights(self) -> None:
        if self.weight_init == "orthogonal":
            for module in self.features_extractor.modules():
                self.init_weights(module, gain=math.sqrt(2.0))
        for layer in (*self.mlp, self.action_net):
            if isinstance(layer, nn.Linear):
                WEIGHT_INITS[self.weight_init](layer, layer is self.action_net)
                if layer.bias is not None:
                    nn.init.zeros_(layer.bias)

    def _get_constructor_parameters(self) -> dict[str, Any]:
        parameters = super()._get_constructor_parameters()
        parameters.update(
            net_arch=self.net_arch,
            activation_fn=self.activation_fn,
            log_std_init=self.log_std_init,
            learn_std=self.learn_std,
            with_bias=self.with_bias,
            weight_init=self.weight_init,
            features_extractor_class=self.features_extractor_class,
            features_extractor_kwargs=self.features_extractor_kwargs,
        )
        return parameters

    def extract_features(self, obs: PyTorchObs, features_extractor: BaseFeaturesExtractor) -> th.Tensor:
        """
        Preprocess observations and extract their features, in the type of the parameters: SB3 makes float32 of them all.

        :param obs: observations, shape (n_states, *obs_shape), or a dict of such
        :param features_extractor: features extractor
        :return: features, shape (n_states, features_dim)
        """
        inputs, dtype = preprocess_obs(obs, self.observation_space, self.normalize_images), next(self.parameters()).dtype
        if isinstance(inputs, dict):
            return features_extractor({key: values.to(dtype) for key, values in inputs.items()})
        return features_extractor(inputs.to(dtype))

    def forward(self, observation: PyTorchObs) -> Params:
        """
        Parameters of the action distributions.

        :param observation: observations, shape (n_states, *obs_shape), or a dict of such
        :return: ``(mean, log_std)`` for Box actions, of shapes (n_states, n_outputs) and (n_outputs,), else ``(logits,)``
        """
        features = self.extract_features(observation, self.features_extractor)
        outputs = self.action_net(self.mlp(features))
        return (outputs, self.log_std) if hasattr(self, "log_std") else (outputs,)

    def _predict(self, observation: PyTorchObs, deterministic: bool = False) -> th.Tensor:
        params = tuple(param.cpu().numpy() for param in self(observation))
        if deterministic:
            actions = self.distribution.mode(params)
        else:
            actions = self.distribution.sample(params, self.distribution.draw_noise(np.random, (len(params[0]),)))
        return th.as_tensor(actions, device=self.device)

    @property
    def is_plain(self) -> bool:
        """Whether the network sees the flattened observation vector as it is."""
        return (
            isinstance(self.observation_space, spaces.Box)
            and type(self.features_extractor) is FlattenExtractor
            and not (self.normalize_images and is_image_space(self.observation_space))
        )

    @property
    def is_linear_gaussian(self) -> bool:
        """Whether the policy is a Gaussian whose mean is linear in the observation vector."""
        return self.is_plain and len(self.mlp) == 0 and isinstance(self.action_space, spaces.Box)

    def array_forward(self) -> Callable[[Any], ArrayParams]:
        """
        Snapshot of :meth:`forward` on arrays, through plain array operations where the network allows it.

        :return: function from observations, shape (n_envs, *obs_shape) or a dict of such, to parameters as arrays
        """
        network = array_network((*self.mlp, self.action_net)) if self.is_plain else None
        if network is None:
            return self._array_forward_by_tensors
        log_std = (self.log_std.detach().cpu().numpy().copy(),) if hasattr(self, "log_std") else ()
        return lambda obs: (network(obs.reshape(len(obs), -1).astype(np.float32, copy=False)), *log_std)

    def _array_forward_by_tensors(self, observation: Any) -> ArrayParams:
        with th.no_grad():
            return tuple(param.cpu().numpy() for param in self(obs_as_tensor(observation, self.device)))


class _HiddenLayers(nn.Sequential):
    """Linear layers whose activations overwrite their outputs: a new array takes longer to come by than to compute."""

    def forward(self, x: th.Tensor) -> th.Tensor:
        for layer in self:
            x = IN_PLACE_ACTIVATIONS.get(type(layer), layer)(x)
        return x


class LinearPolicy(MlpPolicy):
    """
    Linear policy, without bias and initialised from N(0, 0.01^2) unless asked otherwise, as in the paper.

    :param observation_space: observation space
    :param action_space: Box, Discrete, MultiDiscrete or MultiBinary space
    :param log_std_init: initial log standard deviation of Box actions
    :param learn_std: whether the standard deviation of Box actions is learned; False keeps it as it starts
    :param with_bias: whether to add a bias
    :param weight_init: ``normal``, ``xavier`` or ``orthogonal``
    :param normalize_images: whether to divide images by 255
    """

    def __init__(
        self,
        observation_space: spaces.Space,
        action_space: spaces.Space,
        log_std_init: float = 0.0,
        learn_std: bool = True,
        with_bias: bool = False,
        weight_init: str = "normal",
        normalize_images: bool = True,
    ) -> None:
        super().__init__(
            observation_space,
            action_space,
            net_arch=[],
            log_std_init=log_std_init,
            learn_std=learn_std,
            with_bias=with_bias,
            weight_init=weight_init,
            normalize_images=normalize_images,
        )

    def _get_constructor_parameters(self) -> dict[str, Any]:
        parameters = super()._get_constructor_parameters()
        for name in ("net_arch", "activation_fn", "features_extractor_class", "features_extractor_kwargs"):
            del parameters[name]
        return parameters


class CnnPolicy(MlpPolicy):
    """
    Convolutional policy for images; arguments as :class:`MlpPolicy`.

    :param observation_space: image space
    :param action_space: Box, Discrete, MultiDiscrete or MultiBinary space
    :param features_extractor_class: features extractor
    :param kwargs: arguments of :class:`MlpPolicy`
    """

    def __init__(
        self,
        observation_space: spaces.Space,
        action_space: spaces.Space,
        features_extractor_class: type[BaseFeaturesExtractor] = NatureCNN,
        **kwargs: Any,
    ) -> None:
        super().__init__(observation_space, action_space, features_extractor_class=features_extractor_class, **kwargs)


class MultiInputPolicy(MlpPolicy):
    """
    Policy for Dict observations; arguments as :class:`MlpPolicy`.

    :param observation_space: Dict space
    :param action_space: Box, Discrete, MultiDiscrete or MultiBinary space
    :param features_extractor_class: features extractor
    :param kwargs: arguments of :class:`MlpPolicy`
    """

    def __init__(
        self,
        observation_space: spaces.Space,
        action_space: spaces.Space,
        features_extractor_class: type[BaseFeaturesExtractor] = CombinedExtractor,
        **kwargs: Any,
    ) -> None:
        super().__init__(observation_space, action_space, features_extractor_class=features_extractor_class, **kwargs)
