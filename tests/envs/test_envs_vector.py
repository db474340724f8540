"""The native Gymnasium vector environments, and that they do exactly what single environments do."""

from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from envs_helpers import TASKS, make_env, make_vec, random_actions
from gymnasium.vector import AutoresetMode

from sb3_pois.envs.batch import Batch
from sb3_pois.envs.tasks import make_simulation


@pytest.mark.parametrize("task", TASKS)
def test_equals_single_environments_bit_for_bit(task):
    n_envs, n_steps, horizon = 5, 130, 40
    actions = random_actions(task, n_steps, n_envs)
    envs = make_vec(task, n_envs, max_episode_steps=horizon)
    singles = [make_env(task, max_episode_steps=horizon) for _ in range(n_envs)]
    observations, infos = envs.reset(seed=7)
    assert infos == {}
    for i, single in enumerate(singles):
        np.testing.assert_array_equal(observations[i], single.reset(seed=7 + i)[0])
    n_ended = 0
    for step in range(n_steps):
        observations, rewards, terminated, truncated, infos = envs.step(actions[step])
        for i, single in enumerate(singles):
            observation, reward, is_terminated, is_truncated, _ = single.step(actions[step, i])
            assert (rewards[i], terminated[i], truncated[i]) == (reward, is_terminated, is_truncated)
            if is_terminated or is_truncated:
                n_ended += 1
                assert infos["_final_obs"][i]
                np.testing.assert_array_equal(infos["final_obs"][i], observation)
                observation, _ = single.reset()
            elif infos:
                assert not infos["_final_obs"][i] and infos["final_obs"][i] is None
            np.testing.assert_array_equal(observations[i], observation)
    assert n_ended >= n_envs * (n_steps // horizon)


@pytest.mark.parametrize("task", ["POIS/Cartpole-v0", "POIS/MountainCar-v0", "POIS/Swimmer-v0"])
def test_follows_gymnasiums_own_vector_environment(task):
    """Same values, types and infos as ``SyncVectorEnv`` in same-step mode, from the same seed."""
    actions = random_actions(task, 30, 3)
    native = make_vec(task, 3, max_episode_steps=11)
    sync = gym.make_vec(
        task, 3, vectorization_mode="sync", vector_kwargs={"autoreset_mode": AutoresetMode.SAME_STEP}, max_episode_steps=11
    )
    assert native.metadata["autoreset_mode"] == sync.metadata["autoreset_mode"]
    assert native.observation_space == sync.observation_space and native.action_space == sync.action_space
    assert native.single_observation_space == sync.single_observation_space
    np.testing.assert_array_equal(native.reset(seed=3)[0], sync.reset(seed=3)[0])
    for step in range(30):
        ours, theirs = native.step(actions[step]), sync.step(actions[step])
        for our_array, their_array in zip(ours[:4], theirs[:4], strict=True):
            np.testing.assert_array_equal(our_array, their_array)
            assert our_array.dtype == their_array.dtype
        assert ours[4].keys() == theirs[4].keys()
        if ours[4]:
            np.testing.assert_array_equal(ours[4]["_final_obs"], theirs[4]["_final_obs"])
            for our_final, their_final in zip(ours[4]["final_obs"], theirs[4]["final_obs"], strict=True):
                np.testing.assert_array_equal(our_final, their_final)


@pytest.mark.parametrize("task", TASKS)
def test_the_batch_size_changes_nothing(task):
    actions = random_actions(task, 60, 33)
    small, large = make_vec(task, 2), make_vec(task, 33)
    np.testing.assert_array_equal(small.reset(seed=5)[0], large.reset(seed=5)[0][:2])
    for step in range(60):
        few, many = small.step(actions[step, :2]), large.step(actions[step])
        for few_array, many_array in zip(few[:4], many[:4], strict=True):
            np.testing.assert_array_equal(few_array, many_array[:2])


def test_noise_is_the_same_however_it_is_drawn():
    """Many resets of one environment, beyond several blocks of prefetched noise."""
    batch = Batch("POIS/Acrobot-v0", 3, None)
    env = make_env("POIS/Acrobot-v0")
    starts = [batch.reset(np.array([1]), [9])[0]] + [batch.reset(np.array([1]), [None])[0] for _ in range(50)]
    expected = [env.reset(seed=9)[0]] + [env.reset()[0] for _ in range(50)]
    np.testing.assert_array_equal(starts, expected)


@pytest.mark.parametrize("task", TASKS)
def test_returned_arrays_are_not_reused(task):
    envs = make_vec(task, 4, max_episode_steps=6)
    kept, copies = [], []
    kept.append(envs.reset(seed=0)[0])
    copies.append(kept[-1].copy())
    for action in random_actions(task, 12, 4):
        for array in envs.step(action)[:4]:
            kept.append(array)
            copies.append(array.copy())
    for array, original in zip(kept, copies, strict=True):
        np.testing.assert_array_equal(array, original)


def test_writing_into_returned_observations_changes_nothing():
    envs, twin = make_vec("POIS/Cartpole-v0", 3), make_vec("POIS/Cartpole-v0", 3)
    envs.reset(seed=0)[0][:] = 9
    twin.reset(seed=0)
    for action in random_actions("POIS/Cartpole-v0", 5, 3):
        observations = envs.step(action)[0]
        np.testing.assert_array_equal(observations, twin.step(action)[0])
        observations[:] = 9
    mask = np.array([True, False, False])
    np.testing.assert_array_equal(envs.reset(options={"reset_mask": mask})[0], twin.reset(options={"reset_mask": mask})[0])


def test_reset_mask_resets_only_some():
    envs = make_vec("POIS/Acrobot-v0", 4)
    first, _ = envs.reset(seed=0)
    before, *_ = envs.step(np.zeros((4, 1), dtype=np.float32))
    after, _ = envs.reset(seed=0, options={"reset_mask": np.array([True, False, True, False])})
    np.testing.assert_array_equal(after[[1, 3]], before[[1, 3]])
    np.testing.assert_array_equal(after[[0, 2]], first[[0, 2]])


@pytest.mark.parametrize("task", TASKS)
def test_a_seed_determines_everything_that_follows(task):
    actions = random_actions(task, 60, 2)
    envs = make_vec(task, 2)
    paths = []
    for _ in range(2):
        start = envs.reset(seed=3)[0]
        paths.append([start, *(envs.step(action)[0] for action in actions)])
    np.testing.assert_array_equal(paths[0], paths[1])


def test_seeds_may_be_a_list():
    envs = make_vec("POIS/Cartpole-v0", 3)
    observations, _ = envs.reset(seed=[5, 9, 5])
    np.testing.assert_array_equal(observations[0], observations[2])
    np.testing.assert_array_equal(observations[1], make_env("POIS/Cartpole-v0").reset(seed=9)[0])


@pytest.mark.parametrize("task", TASKS)
def test_bad_input_is_named(task):
    envs = make_vec(task, 3)
    dim = envs.single_action_space.shape[0]
    with pytest.raises(RuntimeError, match=rf"{task}: call reset\(\)"):
        envs.step(np.zeros((3, dim)))
    with pytest.raises(ValueError, match=rf"{task}: there are 2 seeds, but 3 environments"):
        envs.reset(seed=[1, 2])
    with pytest.raises(ValueError, match=rf"{task}: options has wind, but allowed is 'reset_mask'"):
        envs.reset(options={"wind": 1})
    with pytest.raises(ValueError, match=rf"{task}: reset_mask is bool of shape \(2,\), but must be boolean of shape \(3,\)"):
        envs.reset(options={"reset_mask": np.ones(2, dtype=bool)})
    envs.reset(seed=0)
    with pytest.raises(
        ValueError,
        match=rf"{task}: the actions are float64 of shape \(2, {dim}\), but must be real numbers in .* of shape \(3, {dim}\)",
    ):
        envs.step(np.zeros((2, dim)))
    with pytest.raises(ValueError, match=rf"{task}: the actions are <U"):
        envs.step(np.full((3, dim), "a"))
    actions = np.zeros((3, dim))
    actions[1, -1] = np.nan
    with pytest.raises(ValueError, match=rf"{task}: the action of environment 1 is \[.*nan\]"):
        envs.step(actions)
    with pytest.raises(ValueError, match=r"render_mode is 'cinema', but allowed are 'human', 'rgb_array'"):
        make_vec(task, 3, render_mode="cinema")
    bad: Any
    for bad in (0, -1, 2.5, True):
        with pytest.raises(ValueError, match=r"the number of environments is .*, but must be an integer >= 1"):
            make_simulation(task, bad)
    for bad in (0, 1.5, False):
        with pytest.raises(ValueError, match=r"max_episode_steps is .*, but must be an integer >= 1"):
            make_vec(task, 3, max_episode_steps=bad)


def test_an_environment_that_was_never_reset_is_named():
    envs = make_vec("POIS/Cartpole-v0", 3)
    envs.reset(options={"reset_mask": np.array([True, False, True])})
    with pytest.raises(RuntimeError, match="environment 1 of the batch has not been reset"):
        envs.step(np.zeros((3, 1)))


def test_unknown_task_is_named():
    with pytest.raises(ValueError, match=r"task is 'POIS/Walker-v0', but allowed are 'POIS/Cartpole-v0'"):
        make_simulation("POIS/Walker-v0", 1)
    none: Any = None
    with pytest.raises(ValueError, match=r"task is None, but allowed are"):
        make_simulation(none, 1)


def test_no_limit():
    envs = make_vec("POIS/Acrobot-v0", 1, max_episode_steps=None)
    envs.reset(seed=0)
    assert not any(envs.step(np.zeros((1, 1)))[3].any() for _ in range(600))


def test_default_limit_is_the_horizon():
    envs = make_vec("POIS/Acrobot-v0", 2)
    envs.reset(seed=0)
    truncations = np.array([envs.step(np.zeros((2, 1)))[3] for _ in range(1000)])
    np.testing.assert_array_equal(np.flatnonzero(truncations[:, 0]), [499, 999])
