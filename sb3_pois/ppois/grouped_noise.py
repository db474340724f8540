"""The noise of a batch of controllers, laid out so that matrix products over groups of parameters are cheap."""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import torch as th

# Numbers that are worked on at once: on a CPU their float64 copy stays in its cache
CHUNK_SIZE = {"cpu": 2**16, "cuda": 2**24}


class _Chunk(NamedTuple):
    """Noise of some groups of equal size in some episodes; slices are in the layout's own order."""

    noise: th.Tensor  # (n_chunk_groups, group_size, n_chunk_episodes)
    params: slice
    groups: slice
    episodes: slice


class GroupedNoise:
    """
    Noise of every episode's controller parameters, in the order of the groups and, among these, of their sizes.

    The noise stays in its own type; float64 copies exist of one chunk at a time only.

    :param noise: noise, shape (n_episodes, n_params)
    :param group_index: group of each parameter, shape (n_params,)
    :param device: device to work on
    """

    def __init__(self, noise: np.ndarray, group_index: np.ndarray, device: th.device) -> None:
        self.n_episodes, self.n_params = noise.shape
        sizes = np.bincount(group_index)
        self.n_groups = len(sizes)
        order_of_groups = np.argsort(sizes, kind="stable")
        place_of_group = np.argsort(order_of_groups)
        order_of_params = np.argsort(place_of_group[group_index], kind="stable")
        self.order_of_groups = th.as_tensor(order_of_groups, device=device)
        self.place_of_group = th.as_tensor(place_of_group, device=device)
        in_order = np.array_equal(order_of_params, np.arange(self.n_params))
        self.order_of_params = slice(None) if in_order else th.as_tensor(order_of_params, device=device)
        self.chunks = [
            chunk._replace(noise=th.as_tensor(_noise_of(chunk, noise, None if in_order else order_of_params), device=device))
            for chunk in _plan_chunks(sizes[order_of_groups], self.n_episodes, CHUNK_SIZE.get(device.type, 2**24))
        ]
        self.scratch = th.empty(max(chunk.noise.numel() for chunk in self.chunks), dtype=th.float64, device=device)

    def quadratic_forms(self, quadratic: th.Tensor, linear: th.Tensor, groups: th.Tensor) -> th.Tensor:
        r"""
        For every group m and episode i, :math:`\sum_{j \in m} q_j z_{ij}^2 + l_j z_{ij}`.

        :param quadratic: factors q, float64, shape (n_params,)
        :param linear: factors l, float64, shape (n_params,)
        :param groups: mask of the groups that are wanted, shape (n_groups,)
        :return: float64, shape (n_groups wanted, n_episodes)
        """
        quadratic, linear = quadratic[self.order_of_params], linear[self.order_of_params]
        forms = th.empty(self.n_groups, self.n_episodes, dtype=th.float64, device=quadratic.device)
        for chunk in self._chunks_of(groups):
            n_groups, group_size, _ = chunk.noise.shape
            noise = self._in_float64(chunk.noise)
            part = linear[chunk.params].view(n_groups, 1, group_size) @ noise
            part.baddbmm_(quadratic[chunk.params].view(n_groups, 1, group_size), noise.square_())
            forms[chunk.groups, chunk.episodes] = part.squeeze(1)
        return forms[self.place_of_group[groups]]

    def moments(self, factors: th.Tensor, groups: th.Tensor) -> tuple[th.Tensor, th.Tensor]:
        """
        Weighted sums over the episodes of the noise and of its squares: the transpose of :meth:`quadratic_forms`.

        :param factors: weight of each episode in each wanted group, shape (n_groups wanted, n_episodes)
        :param groups: mask of the groups that are wanted, shape (n_groups,)
        :return: sums of the noise and of its squares, float64, shape (n_params,), 0 in groups that are not wanted
        """
        factors_in_order = th.zeros(self.n_groups, self.n_episodes, dtype=th.float64, device=factors.device)
        factors_in_order[self.place_of_group[groups]] = factors
        sums = th.zeros(2, self.n_params, dtype=th.float64, device=factors.device)
        for chunk in self._chunks_of(groups):
            noise = self._in_float64(chunk.noise)
            weights = factors_in_order[chunk.groups, chunk.episodes].unsqueeze(2)
            sums[0, chunk.params] += (noise @ weights).flatten()
            sums[1, chunk.params] += (noise.square_() @ weights).flatten()
        if not isinstance(self.order_of_params, slice):
            sums = th.empty_like(sums).index_copy(1, self.order_of_params, sums)
        return sums[0], sums[1]

    def _in_float64(self, noise: th.Tensor) -> th.Tensor:
        """Copy a chunk's noise to where the last chunk's was: memory that is asked for anew costs more than the copying."""
        return self.scratch[: noise.numel()].view(noise.shape).copy_(noise)

    def _chunks_of(self, groups: th.Tensor) -> Iterator[_Chunk]:
        wanted = groups[self.order_of_groups].tolist()
        return (chunk for chunk in self.chunks if any(wanted[chunk.groups]))


def _plan_chunks(sizes: np.ndarray, n_episodes: int, chunk_size: int) -> Iterator[_Chunk]:
    """Cut groups of ascending sizes into chunks: as many of one size as fit, and episodes apart where not even one does."""
    first_param = np.concatenate([[0], np.cumsum(sizes)])
    for size in np.unique(sizes).tolist():
        first, end = np.searchsorted(sizes, [size, size + 1]).tolist()
        n_groups = max(1, chunk_size // (n_episodes * size))
        n_rows = max(1, chunk_size // (n_groups * size))
        for start in range(first, end, n_groups):
            groups = slice(start, min(start + n_groups, end))
            params = slice(int(first_param[groups.start]), int(first_param[groups.stop]))
            for row in range(0, n_episodes, n_rows):
                yield _Chunk(th.empty(0), params, groups, slice(row, min(row + n_rows, n_episodes)))


def _noise_of(chunk: _Chunk, noise: np.ndarray, order_of_params: np.ndarray | None) -> np.ndarray:
    """Noise of a chunk, shape (n_chunk_groups, group_size, n_chunk_episodes); a view where the order is the given one."""
    rows = noise[chunk.episodes]
    if order_of_params is None:
        values = rows[:, chunk.params].T
    else:
        values = np.ascontiguousarray(rows[:, order_of_params[chunk.params]].T)
    return values.reshape(chunk.groups.stop - chunk.groups.start, -1, len(rows))
