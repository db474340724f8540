"""The packed episode buffer."""

import tracemalloc

import numpy as np
import pytest
from gymnasium import spaces

from sb3_pois.common import buffers
from sb3_pois.common.buffers import EpisodeRolloutBuffer

OBSERVATION_SPACE = spaces.Box(-1.0, 1.0, (2,), np.float32)
ACTION_SPACE = spaces.Box(-1.0, 1.0, (1,), np.float32)


def fill(buffer, n_envs, n_vec_steps, episode_of_env, observation=None):
    """Steps in which row value = 100 * episode + step within it, by a table of episodes per vector step."""
    step_of: dict[int, int] = {}
    for step in range(n_vec_steps):
        episodes = np.array([episode_of_env(env, step) for env in range(n_envs)])
        values = np.array([100 * e + step_of.get(e, 0) for e in episodes], dtype=np.float32)
        for e in episodes:
            step_of[e] = step_of.get(e, 0) + 1
        active = episodes >= 0
        obs = np.stack([values, -values], axis=1) if observation is None else observation(values)
        buffer.add(obs, values[:, None], values, episodes, None if active.all() else active)


def test_episodes_lie_one_after_the_other():
    buffer = EpisodeRolloutBuffer(OBSERVATION_SPACE, ACTION_SPACE)
    # Env 0: episode 0 for three steps, then 2; env 1: episode 1 for four steps, then idle
    fill(buffer, 2, 5, lambda env, step: (0 if step < 3 else 2) if env == 0 else (1 if step < 4 else -1))
    buffer.pack(np.array([3, 4, 2]))
    np.testing.assert_array_equal(buffer.rewards, [0, 1, 2, 100, 101, 102, 103, 200, 201])
    np.testing.assert_array_equal(buffer.actions[:, 0], buffer.rewards)
    np.testing.assert_array_equal(buffer.observations, np.stack([buffer.rewards, -buffer.rewards], axis=1))
    np.testing.assert_array_equal(buffer.episode_index, [0, 0, 0, 1, 1, 1, 1, 2, 2])
    np.testing.assert_array_equal(buffer.episode_starts, [0, 3, 7])
    assert buffer.n_episodes == 3 and buffer.n_steps == 9
    np.testing.assert_array_equal(buffer.original_rewards, buffer.rewards)


def test_last_episode_is_cut_and_later_ones_are_dropped():
    buffer = EpisodeRolloutBuffer(OBSERVATION_SPACE, ACTION_SPACE)
    fill(buffer, 3, 4, lambda env, step: env)
    buffer.pack(np.array([4, 2]))
    np.testing.assert_array_equal(buffer.rewards, [0, 1, 2, 3, 100, 101])


@pytest.mark.parametrize("gamma", [1.0, 0.9, 0.0])
def test_returns_against_a_loop(gamma):
    buffer = EpisodeRolloutBuffer(OBSERVATION_SPACE, ACTION_SPACE)
    fill(buffer, 2, 6, lambda env, step: env)
    buffer.pack(np.array([6, 5]))
    episodes = np.split(buffer.rewards.astype(np.float64), [6])
    expected = [sum(gamma**t * r for t, r in enumerate(episode)) for episode in episodes]
    np.testing.assert_allclose(buffer.episode_returns(gamma), expected, rtol=1e-12)
    assert buffer.episode_returns(gamma).shape == buffer.episode_lengths.shape == (2,)


def test_original_rewards_are_kept_beside_the_normalised_ones():
    buffer = EpisodeRolloutBuffer(OBSERVATION_SPACE, ACTION_SPACE)
    for step in range(3):
        buffer.add(np.zeros((1, 2)), np.zeros((1, 1)), np.array([10.0 + step]), np.array([0]))
    buffer.pack(np.array([3]), lambda rewards: rewards / 100.0)
    assert buffer.episode_returns()[0] == pytest.approx(0.33)
    assert buffer.episode_returns(original=True)[0] == pytest.approx(33.0)


def test_types_are_kept(monkeypatch):
    monkeypatch.setattr(buffers, "BLOCK_BYTES", 64)  # several blocks
    space = spaces.Dict({"image": spaces.Box(0, 255, (3, 4, 4), np.uint8), "vector": spaces.Box(-1, 1, (2,), np.float64)})
    buffer = EpisodeRolloutBuffer(space, spaces.Discrete(3))
    rng = np.random.default_rng(0)
    images = rng.integers(0, 256, (10, 2, 3, 4, 4)).astype(np.uint8)
    for step in range(10):
        obs = {"image": images[step], "vector": np.full((2, 2), step, dtype=np.float64)}
        buffer.add(obs, np.array([step, -step]), np.zeros(2), np.array([0, 1]))
    buffer.pack(np.array([10, 10]))
    assert buffer.observations["image"].dtype == np.uint8 and buffer.observations["vector"].dtype == np.float64
    np.testing.assert_array_equal(buffer.observations["image"], np.concatenate([images[:, 0], images[:, 1]]))
    assert buffer.actions.dtype == np.int64
    np.testing.assert_array_equal(buffer.actions, [*range(10), *(-i for i in range(10))])


def test_memory_is_proportional_to_the_kept_steps():
    buffer = EpisodeRolloutBuffer(OBSERVATION_SPACE, ACTION_SPACE)
    # 64 environments of which one is in an episode: padding would take 64 times as much
    n_steps, row_bytes = 20_000, 8 + 4 + 4 + 8  # observation, action, reward, number of the episode
    tracemalloc.start()
    try:
        fill(buffer, 64, n_steps, lambda env, step: 0 if env == 0 else -1)
        collected = tracemalloc.get_traced_memory()[0]
        buffer.pack(np.array([n_steps]))
        packed = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
    assert buffer.rewards.shape == (n_steps,)
    assert packed < 2 * n_steps * row_bytes and collected < 16 * n_steps * row_bytes


def test_rewards_alone():
    buffer = EpisodeRolloutBuffer(OBSERVATION_SPACE, ACTION_SPACE, store_transitions=False)
    fill(buffer, 2, 3, lambda env, step: env)
    buffer.pack(np.array([3, 3]))
    assert buffer.rewards.shape == (6,) and len(buffer.observations) == len(buffer.actions) == 0


def test_adding_copies_and_reset_forgets():
    buffer = EpisodeRolloutBuffer(OBSERVATION_SPACE, ACTION_SPACE)
    obs, action, reward = np.zeros((1, 2)), np.zeros((1, 1)), np.ones(1)
    buffer.add(obs, action, reward, np.array([0]))
    reward[:] = obs[:] = action[:] = 9.0
    buffer.pack(np.array([1]))
    assert buffer.rewards[0] == 1.0 and not np.asarray(buffer.observations).any() and not np.any(buffer.actions)
    buffer.reset()
    assert buffer.n_episodes == 0 and buffer.n_steps == 0 and len(buffer.rewards) == 0
