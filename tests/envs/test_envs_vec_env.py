"""The Stable-Baselines3 vector environments: SB3's contract, against SB3's own DummyVecEnv."""

import copy
import pickle
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from envs_helpers import TASKS, has_engine, make_env, make_vec_env, random_actions
from stable_baselines3 import A2C
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.monitor import Monitor
from stable_baselines3.common.vec_env import DummyVecEnv, VecCheckNan, VecFrameStack, VecMonitor, VecNormalize

import sb3_pois.envs


def dummy(task, n_envs, horizon) -> Any:
    return DummyVecEnv([lambda: make_env(task, max_episode_steps=horizon) for _ in range(n_envs)])


@pytest.mark.parametrize("task", TASKS)
def test_equals_dummy_vec_env(task):
    n_envs, horizon = 4, 30
    ours, theirs = make_vec_env(task, n_envs, max_episode_steps=horizon), dummy(task, n_envs, horizon)
    assert ours.observation_space == theirs.observation_space and ours.action_space == theirs.action_space
    assert ours.seed(3) == theirs.seed(3) == [3, 4, 5, 6]
    np.testing.assert_array_equal(ours.reset(), theirs.reset())
    n_done = 0
    for actions in random_actions(task, 100, n_envs):
        our_obs, our_rewards, our_dones, our_infos = ours.step(actions)
        their_obs, their_rewards, their_dones, their_infos = theirs.step(actions)
        np.testing.assert_array_equal(our_obs, their_obs)
        assert our_obs.dtype == their_obs.dtype == ours.observation_space.dtype
        np.testing.assert_allclose(our_rewards, their_rewards, rtol=1e-6)
        np.testing.assert_array_equal(our_dones, their_dones)
        assert our_dones.dtype == their_dones.dtype
        for our_info, their_info in zip(our_infos, their_infos, strict=True):
            assert our_info.keys() == their_info.keys()
            assert our_info["TimeLimit.truncated"] is their_info["TimeLimit.truncated"]
            np.testing.assert_array_equal(our_info.get("terminal_observation"), their_info.get("terminal_observation"))
        n_done += our_dones.sum()
    assert n_done >= 3 * n_envs
    assert ours.reset_infos == theirs.reset_infos


def test_an_episode_that_ends_by_itself_at_the_limit_was_not_cut():
    vec_env = make_vec_env("POIS/Cartpole-v0", 1, seed=0)
    vec_env.reset()
    action = np.ones((1, 1))
    n_steps = 1
    while not vec_env.step(action)[2][0]:
        n_steps += 1
    for limit, was_cut in ((n_steps, False), (n_steps - 1, True)):
        limited = make_vec_env("POIS/Cartpole-v0", 1, seed=0, max_episode_steps=limit)
        limited.reset()
        for _ in range(limit):
            _, _, dones, infos = limited.step(action)
        assert dones[0]
        assert infos[0]["TimeLimit.truncated"] is was_cut


def test_seeds_are_used_once_at_the_next_reset():
    vec_env = make_vec_env("POIS/Cartpole-v0", 3, seed=8)
    first = vec_env.reset()
    np.testing.assert_array_equal(first[1], make_env("POIS/Cartpole-v0").reset(seed=9)[0])
    second = vec_env.reset()
    assert not np.array_equal(first, second)
    vec_env.seed(8)
    np.testing.assert_array_equal(vec_env.reset(), first)
    np.testing.assert_array_equal(vec_env.reset(), second)


def test_unseeded_environments_differ():
    observations = make_vec_env("POIS/Cartpole-v0", 5).reset()
    assert len(np.unique(observations, axis=0)) == 5
    assert not np.array_equal(observations, make_vec_env("POIS/Cartpole-v0", 5).reset())


def test_returned_objects_are_not_reused():
    vec_env = make_vec_env("POIS/Cartpole-v0", 20, seed=0)
    kept = [vec_env.reset()]
    infos_seen, copies = [], [kept[0].copy()]
    for actions in random_actions("POIS/Cartpole-v0", 30, 20):
        observations, rewards, dones, infos = vec_env.step(actions)
        kept += [observations, rewards, dones]
        copies += [observations.copy(), rewards.copy(), dones.copy()]
        infos_seen += infos
    for array, original in zip(kept, copies, strict=True):
        np.testing.assert_array_equal(array, original)
    assert len({id(info) for info in infos_seen}) == len(infos_seen)


def test_attributes_and_methods():
    vec_env = make_vec_env("POIS/Acrobot-v0", 3, seed=0)
    assert vec_env.get_attr("render_mode") == [None] * 3
    assert vec_env.get_attr("max_episode_steps", [0, 2]) == [500, 500]
    assert vec_env.get_attr("spec", 0)[0].id == "POIS/Acrobot-v0"
    assert vec_env.get_attr("observation_space", 0) == [vec_env.observation_space]
    assert vec_env.get_attr("action_space", 0) == [vec_env.action_space]
    assert vec_env.get_attr("metadata", 0) == [vec_env.metadata]
    assert vec_env.has_attr("render_mode") and not vec_env.has_attr("wheels")
    vec_env.set_attr("note", "mine", indices=1)
    assert vec_env.get_attr("note", 1) == ["mine"]
    assert not vec_env.has_attr("note")
    assert vec_env.env_is_wrapped(Monitor) == [False] * 3
    assert vec_env.env_is_wrapped(gym.wrappers.TimeLimit, indices=[1]) == [False]
    vec_env.reset()
    states = vec_env.env_method("get_state")
    assert len(states) == 3 and states[0].shape == (12,)
    vec_env.env_method("set_state", states[2], indices=0)
    observations, *_ = vec_env.step(np.zeros((3, 1)))
    np.testing.assert_allclose(observations[0], observations[2], atol=1e-12)


def test_a_state_starts_an_episode():
    vec_env = make_vec_env("POIS/Acrobot-v0", 2, seed=0, max_episode_steps=3)
    vec_env.reset()
    vec_env.step(np.zeros((2, 1)))
    vec_env.env_method("set_state", np.zeros(12), indices=1)
    dones = [vec_env.step(np.zeros((2, 1)))[2].tolist() for _ in range(3)]
    assert dones == [[False, False], [True, False], [False, True]]


def test_one_environment_can_be_reset_alone():
    vec_env = make_vec_env("POIS/Acrobot-v0", 3, seed=0, max_episode_steps=10)
    vec_env.reset()
    for _ in range(6):
        observations = vec_env.step(np.zeros((3, 1)))[0]
    ((observation, info),) = vec_env.env_method("reset", seed=4, indices=1)
    np.testing.assert_array_equal(observation, make_env("POIS/Acrobot-v0").reset(seed=4)[0])
    assert info == {}
    dones = [vec_env.step(np.zeros((3, 1)))[2].tolist() for _ in range(10)]
    assert dones[3] == [True, False, True]
    assert dones[9] == [False, True, False]
    assert observations.shape == (3, 6)


@pytest.mark.parametrize("task", TASKS)
def test_bad_input_is_named(task):
    vec_env = make_vec_env(task, 2)
    with pytest.raises(RuntimeError, match=rf"{task}: call reset\(\) before get_state\(\) \(environment 1 of"):
        vec_env.env_method("get_state", indices=1)
    dim = vec_env.action_space.shape[0]
    with pytest.raises(RuntimeError, match=rf"{task}: call reset\(\)"):
        vec_env.step(np.zeros((2, dim)))
    vec_env.reset()
    with pytest.raises(ValueError, match=rf"{task}: the actions are"):
        vec_env.step(np.zeros(2 * dim + 1))
    with pytest.raises(ValueError, match=rf"{task}: the action of environment 0 is"):
        vec_env.step(np.full((2, dim), np.nan))
    with pytest.raises(RuntimeError, match=rf"{task}: step_wait\(\) needs a step_async\(\)"):
        make_vec_env(task, 2).step_wait()
    with pytest.raises(ValueError, match=r"render_mode is 'cinema', but allowed are"):
        make_vec_env(task, 2, render_mode="cinema")
    vec_env.set_options({"wind": 3})
    with pytest.raises(ValueError, match=rf"{task}: options is .*wind.*, but reset\(\) takes none"):
        vec_env.reset()
    vec_env.reset()
    vec_env.step_async(np.ones((2, dim)))
    vec_env.reset()
    with pytest.raises(RuntimeError, match=rf"{task}: step_wait\(\) needs a step_async\(\)"):
        vec_env.step_wait()
    assert vec_env.step(np.zeros((2, dim)))[0].shape == (2, vec_env.observation_space.shape[0])
    with pytest.raises(RuntimeError, match=rf"{task}: step_wait\(\) needs a step_async\(\)"):
        vec_env.step_wait()


def test_unknown_task():
    with pytest.raises(ValueError, match="task is 'CartPole-v1', but allowed are 'POIS/Cartpole-v0'"):
        make_vec_env("CartPole-v1", 2)
    assert make_vec_env("sb3_pois.envs:POIS/Swimmer-v0", 1).spec.id == "POIS/Swimmer-v0"


def test_sb3s_wrappers():
    vec_env: Any = VecFrameStack(VecCheckNan(VecNormalize(VecMonitor(make_vec_env("POIS/Cartpole-v0", 8, seed=0)))), 2)
    vec_env.reset()
    episodes = []
    for actions in random_actions("POIS/Cartpole-v0", 60, 8):
        observations, _, dones, infos = vec_env.step(actions)
        assert observations.shape == (8, 8) and np.isfinite(observations).all()
        episodes += [info["episode"] for info in infos if "episode" in info]
        assert [("terminal_observation" in info) for info in infos] == dones.tolist()
    assert episodes and all(episode["l"] >= 1 for episode in episodes)
    unwrapped = vec_env.unwrapped
    assert isinstance(unwrapped, sb3_pois.envs.TaskVecEnv)


def test_monitor_sees_the_episodes_returns():
    vec_env: Any = VecMonitor(make_vec_env("POIS/Swimmer-v0", 2, seed=0, max_episode_steps=5))
    vec_env.reset()
    total = np.zeros(2)
    for actions in random_actions("POIS/Swimmer-v0", 5, 2):
        _, rewards, _, infos = vec_env.step(actions)
        total += rewards
    # the monitor adds up in single precision
    np.testing.assert_allclose([info["episode"]["r"] for info in infos], total, rtol=1e-4, atol=1e-5)
    assert all(info["TimeLimit.truncated"] for info in infos)


def test_sb3_trains_and_evaluates():
    vec_env = VecMonitor(make_vec_env("POIS/Cartpole-v0", 4, seed=0))
    model = A2C("MlpPolicy", vec_env, seed=0).learn(200)
    mean, _ = evaluate_policy(model, VecMonitor(make_vec_env("POIS/Cartpole-v0", 2, seed=1)), n_eval_episodes=4)
    assert np.isfinite(mean)


@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize("duplicate", [copy.deepcopy, lambda env: pickle.loads(pickle.dumps(env))])
def test_copies_go_on_alike(task, duplicate):
    vec_env = make_vec_env(task, 3, seed=0)
    vec_env.reset()
    if has_engine(task):  # a copy starts fresh worlds in the same states, so the original has to as well
        for index, state in enumerate(vec_env.env_method("get_state")):
            vec_env.env_method("set_state", state, indices=index)
    twin = duplicate(vec_env)
    for actions in random_actions(task, 20, 3):
        observations, rewards, dones, _ = vec_env.step(actions)
        twin_observations, twin_rewards, twin_dones, _ = twin.step(actions)
        np.testing.assert_allclose(twin_observations, observations, rtol=0, atol=1e-9)
        np.testing.assert_allclose(twin_rewards, rewards, rtol=0, atol=1e-9)
        np.testing.assert_array_equal(twin_dones, dones)
    assert twin.get_attr("render_mode") == [None] * 3
    twin.env_method("reset", seed=1, indices=0)
    assert not np.array_equal(twin.env_method("get_state", indices=0), vec_env.env_method("get_state", indices=0))
