"""Flat view of a module's parameters, the form in which the optimisation handles them."""

from collections.abc import Iterable

import torch as th
from torch import nn


class ParameterVector:
    """
    Reads and writes parameters of a module as one vector. Holds no copy of them.

    :param module: module whose parameters to handle
    :param names: the parameters to handle, frozen or not, in this order; None for all that require a gradient
    :raises ValueError: if none of them requires a gradient
    """

    def __init__(self, module: nn.Module, names: Iterable[str] | None = None) -> None:
        if names is None:
            self.parameters = {name: p for name, p in module.named_parameters() if p.requires_grad}
        else:
            self.parameters = {name: module.get_parameter(name) for name in names}
        if not any(p.requires_grad for p in self.parameters.values()):
            raise ValueError("nothing of the policy requires a gradient, so nothing can be learned: unfreeze a parameter")

    def get(self) -> th.Tensor:
        """
        Copy the parameters into a vector.

        :return: parameters in the widest of their types, shape (n_params,)
        """
        return th.cat([p.detach().reshape(-1) for p in self.parameters.values()])

    def set(self, theta: th.Tensor) -> None:
        """
        Write a vector into the parameters, all of it or, where it is interrupted, none.

        :param theta: parameters, shape (n_params,)
        :raises ValueError: if a value is not finite; the parameters then stay as they are
        """
        if not th.isfinite(theta).all():
            raise ValueError(f"{int((~th.isfinite(theta)).sum())} of {theta.numel()} new parameters are not finite")
        before = self.get()
        try:
            self._write(theta)
        except BaseException:
            self._write(before)
            raise

    def mask(self, name: str) -> th.Tensor:
        """
        Where a parameter lies in the vector.

        :param name: name of the parameter
        :return: mask, shape (n_params,); False throughout where it is not among those handled
        """
        return th.cat([th.full((p.numel(),), own == name, device=p.device) for own, p in self.parameters.items()])

    def _write(self, theta: th.Tensor) -> None:
        with th.no_grad():
            for name, value in self.split(theta).items():
                self.parameters[name].copy_(value)

    def split(self, theta: th.Tensor) -> dict[str, th.Tensor]:
        """
        View a vector as named parameters, differentiably.

        :param theta: parameters, shape (n_params,)
        :return: parameters by name, each in its own shape and type
        """
        parts = th.split(theta, [p.numel() for p in self.parameters.values()])
        return {name: part.view(p.shape).to(p.dtype) for part, (name, p) in zip(parts, self.parameters.items(), strict=True)}
