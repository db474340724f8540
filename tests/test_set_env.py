"""Environments can be exchanged as SB3 lets them be."""

import gymnasium as gym
import pytest
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.monitor import Monitor
from stable_baselines3.common.vec_env import DummyVecEnv, VecEnv, VecNormalize, VecTransposeImage

from sb3_pois.common.vec_env import GymnasiumVecEnv
from tests.helpers.envs import ControlEnv, CountingEnv
from tests.registry import Case, differ, for_each_algorithm, parameters_of


@for_each_algorithm
def test_set_env_wraps(case: Case) -> None:
    model = case.make(ControlEnv())
    env = ControlEnv()
    model.set_env(env)
    assert isinstance(model.env, DummyVecEnv) and model.env.envs[0].unwrapped is env
    assert model.env.env_is_wrapped(Monitor) == [True]
    before = parameters_of(model)
    model.learn(24)
    assert len(env.actions) == 24
    assert differ(before, parameters_of(model))


@for_each_algorithm
def test_get_env(case: Case) -> None:
    vec_env = make_vec_env(ControlEnv, n_envs=2)
    model = case.make(vec_env)
    assert model.get_env() is model.env is vec_env
    assert case.make(ControlEnv()).get_env().num_envs == 1
    assert model.get_vec_normalize_env() is None


@for_each_algorithm
def test_set_env_between_two_learns(case: Case) -> None:
    model = case.make(ControlEnv()).learn(24)
    other = ControlEnv()
    model.set_env(other, force_reset=False)
    model.learn(24, reset_num_timesteps=False)
    assert len(other.actions) == 24
    assert model.num_timesteps == 48


@for_each_algorithm
def test_set_env_keeps_the_number_of_environments_and_the_spaces(case: Case) -> None:
    model = case.make(make_vec_env(ControlEnv, n_envs=2))
    with pytest.raises(AssertionError, match="number of environments"):
        model.set_env(make_vec_env(ControlEnv, n_envs=3))
    with pytest.raises(ValueError, match="Observation spaces do not match"):
        model.set_env(make_vec_env(CountingEnv, n_envs=2))


@for_each_algorithm
def test_set_env_notices_vec_normalize(case: Case) -> None:
    model = case.make(ControlEnv())
    venv = VecNormalize(DummyVecEnv([ControlEnv]))
    model.set_env(venv)
    assert model.get_vec_normalize_env() is venv
    model.learn(24)
    assert venv.obs_rms.count > 20


@for_each_algorithm
def test_set_env_takes_a_gymnasium_vector_env(case: Case) -> None:
    model = case.make(make_vec_env(ControlEnv, n_envs=2))
    model.set_env(gym.vector.SyncVectorEnv([ControlEnv, ControlEnv]))
    assert isinstance(model.env, GymnasiumVecEnv)
    model.learn(24)
    assert model.rollout_buffer.episode_lengths.tolist() == [4] * 6


@for_each_algorithm
def test_wrap_env_is_the_one_place(case: Case) -> None:
    """Where vector environments of either kind come in."""
    for env in (ControlEnv(), make_vec_env(ControlEnv), gym.vector.SyncVectorEnv([ControlEnv])):
        assert isinstance(case.algorithm._wrap_env(env), VecEnv)
    assert not isinstance(case.algorithm._wrap_env(ControlEnv()), VecTransposeImage)


@for_each_algorithm
def test_monitor_is_not_put_on_twice(case: Case) -> None:
    env = Monitor(ControlEnv())
    model = case.make(env)
    assert model.env.envs[0] is env
