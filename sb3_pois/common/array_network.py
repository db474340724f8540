"""
Plain array snapshots of networks.

While a batch is collected the weights stand still and the inputs are a handful of rows, so that the bookkeeping of
tensors costs more than the arithmetic.
"""

from collections.abc import Callable, Iterable

import numpy as np
from torch import nn

ArrayFunction = Callable[[np.ndarray], np.ndarray]


def _relu(x: np.ndarray) -> np.ndarray:
    return np.maximum(x, 0.0, out=x)


def _tanh(x: np.ndarray) -> np.ndarray:
    return np.tanh(x, out=x)


ARRAY_ACTIVATIONS: dict[type[nn.Module], ArrayFunction] = {nn.Tanh: _tanh, nn.ReLU: _relu}


def array_network(layers: Iterable[nn.Module]) -> ArrayFunction | None:
    """
    Copy a chain of linear layers and activations into a function of arrays.

    :param layers: layers in order, the first of them linear
    :return: function from float32 inputs of shape (n_rows, n_inputs) to outputs of shape (n_rows, n_outputs); None if a
        layer is of another kind than ``Linear``, ``Tanh`` and ``ReLU``
    """
    steps: list[ArrayFunction] = []
    for layer in layers:
        if type(layer) is nn.Linear:
            steps.append(_affine(layer))
        elif type(layer) in ARRAY_ACTIVATIONS:
            steps.append(ARRAY_ACTIVATIONS[type(layer)])
        else:
            return None

    def forward(x: np.ndarray) -> np.ndarray:
        for step in steps:
            x = step(x)
        return x

    return forward


def _affine(layer: nn.Linear) -> ArrayFunction:
    weight = np.ascontiguousarray(layer.weight.detach().cpu().numpy().T.copy())
    if layer.bias is None:
        return lambda x: x @ weight
    bias = layer.bias.detach().cpu().numpy().copy()

    def affine(x: np.ndarray) -> np.ndarray:
        x = x @ weight
        x += bias
        return x

    return affine
