"""Dict observations."""

from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.envs import SimpleMultiObsEnv
from stable_baselines3.common.vec_env import VecFrameStack, VecNormalize

from tests.helpers.envs import AnySpacesEnv, ControlEnv
from tests.registry import Case, collect, differ, for_each_algorithm, for_each_algorithm_with_modules, paper, parameters_of

MIXED = spaces.Dict(
    image=spaces.Box(0, 255, (36, 36, 1), np.uint8),
    vector=spaces.Box(-1, 1, (3,), np.float32),
    more=spaces.Box(-1, 1, (2, 2), np.float64),
    label=spaces.Discrete(4),
    labels=spaces.MultiDiscrete([2, 3]),
    bits=spaces.MultiBinary(3),
)
VECTORS = spaces.Dict(position=spaces.Box(-1, 1, (2,), np.float32), speed=spaces.Box(-1, 1, (3,), np.float32))


class DictVectorEnv(gym.ObservationWrapper):
    """A :class:`ControlEnv` whose vector comes in two parts."""

    def __init__(self) -> None:
        super().__init__(ControlEnv())
        self.observation_space = spaces.Dict(a=spaces.Box(-2, 2, (2,), np.float32), b=spaces.Box(-2, 2, (1,), np.float32))

    def observation(self, observation: Any) -> dict[str, np.ndarray]:
        return dict(a=observation[:2], b=observation[2:])


@for_each_algorithm
@pytest.mark.parametrize("action_space", [spaces.Discrete(3), spaces.Box(-1, 1, (2,), np.float32)], ids=str)
def test_mixed_observations(case: Case, action_space: spaces.Space) -> None:
    """Pictures among the observations are for algorithms with a policy for images; the others flatten them."""
    model = case.make(AnySpacesEnv(MIXED, action_space), "MultiInputPolicy", n_episodes=3)
    before = parameters_of(model)
    model.learn(24)
    assert differ(before, parameters_of(model))
    observation = model.env.reset()
    action, _ = model.predict(observation)
    assert action.shape == (1, *(action_space.shape or ()))


@for_each_algorithm
def test_sb3_grid_world(case: Case) -> None:
    model = case.make(gym.wrappers.TimeLimit(SimpleMultiObsEnv(), 10), "MultiInputPolicy", n_episodes=2)
    model.learn(20)
    assert model.rollout_buffer.n_episodes == 2


@for_each_algorithm
def test_dict_of_vectors_is_the_same_as_the_vector(case: Case) -> None:
    """Same seeds, same numbers: the whole training is the same up to rounding."""
    arguments = paper(case.algorithm)  # without a conjugate gradient, which makes more of the rounding
    on_vector = case.make(ControlEnv(), "MlpPolicy", **arguments)
    on_dict = case.make(DictVectorEnv(), "MultiInputPolicy", **arguments)
    for model in (on_vector, on_dict):
        model.learn(72)
    vectors = np.array([on_vector.observation_space.sample() for _ in range(10)])
    actions, _ = on_vector.predict(vectors, deterministic=True)
    same_actions, _ = on_dict.predict(dict(a=vectors[:, :2], b=vectors[:, 2:]), deterministic=True)
    np.testing.assert_allclose(actions, same_actions, atol=1e-5)
    np.testing.assert_allclose(on_vector.rollout_buffer.actions, on_dict.rollout_buffer.actions, rtol=1e-3, atol=1e-4)


@for_each_algorithm
def test_dict_needs_its_policy(case: Case) -> None:
    with pytest.raises(ValueError, match="MultiInputPolicy"):
        case.make(DictVectorEnv(), "MlpPolicy")


@for_each_algorithm
def test_vec_frame_stack_of_a_dict(case: Case) -> None:
    venv = VecFrameStack(make_vec_env(DictVectorEnv, n_envs=2), 3)
    model = case.make(venv, "MultiInputPolicy").learn(48)
    observations = model.rollout_buffer.observations
    assert {key: values.shape[1:] for key, values in observations.items()} == dict(a=(6,), b=(3,))
    for start in model.rollout_buffer.episode_starts:
        assert (observations["a"][start, :4] == 0.0).all()
        np.testing.assert_array_equal(observations["a"][start + 1, 2:4], observations["a"][start, 4:])


@for_each_algorithm
def test_vec_normalize_of_some_keys(case: Case) -> None:
    venv = VecNormalize(make_vec_env(DictVectorEnv, n_envs=2), norm_obs_keys=["a"])
    model = case.make(venv, "MultiInputPolicy")
    buffer = collect(model)
    assert np.abs(buffer.observations["b"]).max() <= 2.0
    statistics = venv.obs_rms["a"]
    assert statistics.count > 1.0
    model.learn(48)


@for_each_algorithm_with_modules
def test_image_policy_refuses_a_dict(case: Case) -> None:
    with pytest.raises((ValueError, AssertionError)):
        case.make(AnySpacesEnv(VECTORS, spaces.Discrete(2)), "CnnPolicy")
