"""Sizes of networks."""

from collections.abc import Sequence

import numpy as np


def hidden_sizes(net_arch: Sequence[int] | dict[str, list[int]] | None, default: Sequence[int] = (64, 64)) -> list[int]:
    """
    Sizes of an actor's hidden layers.

    :param net_arch: sizes, or ``dict(pi=sizes)``; None for the default
    :param default: what None stands for
    :return: the sizes
    :raises ValueError: if a size is no integer > 0, or there is another key than ``pi``
    """
    if net_arch is None:
        net_arch = default
    if isinstance(net_arch, dict):
        if set(net_arch) != {"pi"}:
            raise ValueError(f"net_arch has the keys {sorted(net_arch)}, but there is an actor only: give dict(pi=[...])")
        net_arch = net_arch["pi"]
    if not all(isinstance(size, (int, np.integer)) and size > 0 for size in net_arch):
        raise ValueError(f"net_arch is {net_arch}, but must list the sizes of the hidden layers, each an integer > 0")
    return list(net_arch)
