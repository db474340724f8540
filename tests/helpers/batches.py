"""Batches of a :class:`CountingEnv`, whose observations say where each step belongs."""

from collections.abc import Callable
from typing import Any

import numpy as np

from tests.helpers.envs import CountingEnv


def make_counting(mark: int, lengths: tuple[int, ...] = (2, 5, 3), **kwargs: Any) -> Callable[[], CountingEnv]:
    """An environment with a mark, whose episodes start at that place of the list of lengths."""
    shift = mark % len(lengths)
    return lambda: CountingEnv(lengths[shift:] + lengths[:shift], mark, **kwargs)


def episodes_of(buffer: Any) -> list[dict[str, np.ndarray]]:
    """The packed batch, episode by episode."""
    ends = buffer.episode_starts[1:].tolist()
    parts = {name: np.split(getattr(buffer, name), ends) for name in ("observations", "actions", "rewards")}
    return [{name: part[i] for name, part in parts.items()} for i in range(buffer.n_episodes)]


def assert_whole(buffer: Any, lengths: list[int] | None = None) -> None:
    """Every episode starts at its reset, misses no step and belongs to one environment."""
    episodes = episodes_of(buffer)
    if lengths is not None:
        assert [len(episode["rewards"]) for episode in episodes] == lengths
    for episode in episodes:
        n_steps = len(episode["rewards"])
        assert np.unique(episode["observations"][:, :2], axis=0).shape == (1, 2)
        assert episode["observations"][:, 2].tolist() == list(range(n_steps))
        assert episode["rewards"].tolist() == list(range(1, n_steps + 1))
    assert len({tuple(episode["observations"][0, :2]) for episode in episodes}) == len(episodes)


def assert_whole_dicts(buffer: Any) -> None:
    """The same of a :class:`CountingDictEnv`, whose parts keep their types."""
    assert {key: values.dtype for key, values in buffer.observations.items()} == dict(
        count=np.float64, picture=np.uint8, label=np.int64
    )
    t = np.arange(buffer.n_steps) - np.repeat(buffer.episode_starts, buffer.episode_lengths)
    np.testing.assert_array_equal(buffer.observations["count"][:, 2], t)
    np.testing.assert_array_equal(buffer.observations["picture"], np.broadcast_to(t[:, None, None], (len(t), 2, 2)))
    np.testing.assert_array_equal(buffer.observations["label"], t % 5)
    for start, end in zip(buffer.episode_starts, buffer.episode_starts + buffer.episode_lengths, strict=True):
        assert len(np.unique(buffer.observations["count"][start:end, :2], axis=0)) == 1


def assert_stacked(buffer: Any) -> None:
    """Of two frames stacked, the one before an episode's first is zero: none of the episode before it shines through."""
    assert buffer.observations.shape[1] == 6
    for episode in episodes_of(buffer):
        observations = episode["observations"]
        assert (observations[0, :3] == 0.0).all()
        np.testing.assert_array_equal(observations[1:, :3], observations[:-1, 3:])
        assert observations[:, 5].tolist() == list(range(len(observations)))
