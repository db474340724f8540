"""Groups of controller parameters that PPOIS optimises separately (N-POIS)."""

import reprlib
from collections.abc import Sequence
from typing import Any

import numpy as np

from sb3_pois.ppois.controllers import Controller

GROUPINGS = ("none", "neuron")

Grouping = str | Sequence[Sequence[int]]


def check_grouping(grouping: Any) -> None:
    """
    Refuse what is neither a name nor index lists.

    :param grouping: the argument
    :raises ValueError: if it is not allowed
    """
    is_name = isinstance(grouping, str) and grouping in GROUPINGS
    is_lists = isinstance(grouping, (list, tuple)) and all(
        isinstance(group, (list, tuple, np.ndarray)) and all(_is_index(index) for index in group) for group in grouping
    )
    if not (is_name or is_lists):
        raise ValueError(
            f"grouping is {grouping!r}, but allowed are {', '.join(map(repr, GROUPINGS))} and a list of lists of "
            "parameter indices"
        )


def group_index_of(grouping: Grouping, controller: Controller) -> np.ndarray | None:
    """
    Group that each controller parameter belongs to.

    :param grouping: ``none``, ``neuron``, or the indices of the parameters of each group
    :param controller: the controller
    :return: numbers of the groups, int64, shape (n_params,); None for a single group
    :raises ValueError: if the controller has no neurons, or the lists are no partition of its parameters
    """
    if isinstance(grouping, str):
        return None if grouping == "none" else _checked_neuron_index(controller)
    indices = np.concatenate([np.asarray(group) for group in grouping]) if len(grouping) > 0 else np.zeros(0)
    n_params = controller.n_params
    empty = [number for number, group in enumerate(grouping) if len(group) == 0]
    if empty or indices.dtype.kind not in "iu" or not np.array_equal(np.sort(indices), np.arange(n_params)):
        raise ValueError(
            f"grouping is {reprlib.repr(grouping)}, with {len(grouping)} groups ({len(empty)} empty), {len(indices)} entries, "
            f"{len(np.unique(indices))} of them distinct, but must be a partition: every integer of "
            f"0, ..., {n_params - 1} in exactly one group, and no group empty"
        )
    group_index = np.empty(n_params, dtype=np.int64)
    for number, group in enumerate(grouping):
        group_index[np.asarray(group)] = number
    return group_index


def _is_index(value: Any) -> bool:
    return isinstance(value, (int, np.integer)) and not isinstance(value, bool)


def _checked_neuron_index(controller: Controller) -> np.ndarray:
    """Refuse neurons of a user's controller that are no numbering 0, 1, ... of groups of its parameters."""
    index = np.asarray(controller.neuron_index())
    if (
        index.shape != (controller.n_params,)
        or index.dtype.kind not in "iu"
        or not np.array_equal(np.unique(index), np.arange(index.max() + 1))
    ):
        raise ValueError(
            f"{type(controller).__name__}.neuron_index() is {reprlib.repr(index)}, but must give each of the "
            f"{controller.n_params} parameters the number of its neuron, an integer, with every number from 0 on in use"
        )
    return index.astype(np.int64)
