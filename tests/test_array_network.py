"""Array snapshots of networks."""

import numpy as np
import pytest
import torch as th
from torch import nn

from sb3_pois.common.array_network import array_network
from sb3_pois.common.parameters import ParameterVector


@pytest.mark.parametrize("activation", [nn.Tanh, nn.ReLU])
@pytest.mark.parametrize("bias", [False, True])
def test_equals_the_network(activation, bias):
    network = nn.Sequential(nn.Linear(3, 5, bias=bias), activation(), nn.Linear(5, 2, bias=bias))
    forward = array_network(network)
    assert forward is not None
    x = np.random.default_rng(0).normal(size=(7, 3)).astype(np.float32)
    before = x.copy()
    np.testing.assert_allclose(forward(x), network(th.as_tensor(x)).detach(), rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(x, before, err_msg="the input is left alone")


@pytest.mark.parametrize("layer", [nn.ELU(), nn.Dropout(), nn.LayerNorm(5), nn.Linear(5, 5).requires_grad_(False)])
def test_other_layers(layer):
    expected_none = not isinstance(layer, nn.Linear)
    assert (array_network([nn.Linear(3, 5), layer]) is None) == expected_none


def test_parameter_vector_round_trip():
    module = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2))
    module[0].bias.requires_grad_(False)
    parameters = ParameterVector(module)
    theta = parameters.get()
    assert theta.shape == (3 * 4 + 4 * 2 + 2,), "frozen parameters are no variables"
    parameters.set(theta + 1.0)
    th.testing.assert_close(parameters.get(), theta + 1.0)
    with pytest.raises(ValueError, match="2 of 22 new parameters are not finite"):
        parameters.set(th.cat([th.tensor([float("nan"), float("inf")]), theta[2:]]))
    th.testing.assert_close(parameters.get(), theta + 1.0)


def test_parameter_vector_is_differentiable():
    module = nn.Linear(2, 1)
    parameters = ParameterVector(module)
    theta = parameters.get().requires_grad_()
    output = th.func.functional_call(module, parameters.split(theta), (th.tensor([[1.0, 2.0]]),))
    (gradient,) = th.autograd.grad(output.sum(), theta)
    th.testing.assert_close(gradient, th.tensor([1.0, 2.0, 1.0]))


def test_parameter_vector_is_written_whole_or_not_at_all(monkeypatch):
    parameters = ParameterVector(nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2)))
    before = parameters.get()
    copies = []

    def interrupted(self, value):
        copies.append(value)
        if len(copies) == 2:
            raise KeyboardInterrupt
        return th.Tensor.set_(self, value.clone())

    monkeypatch.setattr(nn.Parameter, "copy_", interrupted, raising=False)
    with pytest.raises(KeyboardInterrupt):
        parameters.set(before + 1.0)
    monkeypatch.undo()
    assert th.equal(parameters.get(), before)
