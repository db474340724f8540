"""What every test of the environments runs under."""

import gymnasium as gym
import pytest


@pytest.fixture(autouse=True)
def gymnasiums_own_time_limit(monkeypatch):
    """RL Zoo, as soon as another test imports it, puts a time limit of its own in the place of Gymnasium's."""
    own = next(c for c in gym.wrappers.TimeLimit.__mro__ if c.__module__.startswith("gymnasium."))
    for module in (gym.wrappers, gym.wrappers.common):
        monkeypatch.setattr(module, "TimeLimit", own)
