"""Observation and action spaces."""

from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces

from tests.helpers.envs import AnySpacesEnv
from tests.registry import Case, differ, for_each_algorithm, for_each_policy, parameters_of

VECTOR = spaces.Box(-1, 1, (3,), np.float32)
OBSERVATION_SPACES: list[spaces.Space] = [
    VECTOR,
    spaces.Box(-1, 1, (2, 3), np.float64),
    spaces.Box(-5, 5, (4,), np.int32),
    spaces.Box(0, 255, (4,), np.uint8),
    spaces.Box(-np.inf, np.inf, (2,), np.float32),
    spaces.Box(0, 255, (1, 36, 36), np.uint8),
    spaces.Discrete(5),
    spaces.MultiDiscrete([2, 4]),
    spaces.MultiBinary(4),
    spaces.MultiBinary([2, 2]),
]
ACTION_SPACES: list[spaces.Space] = [
    spaces.Box(-1, 1, (2,), np.float32),
    spaces.Box(-1, 1, (2, 2), np.float32),
    spaces.Box(-1, 1, (2,), np.float64),
    spaces.Box(np.array([-2.0, 0.5], dtype=np.float32), np.array([-1.0, 3.0], dtype=np.float32)),
    spaces.Discrete(4),
    spaces.Discrete(3, start=-1),
    spaces.MultiDiscrete([3, 2]),
    spaces.MultiDiscrete([3, 2], start=[1, 5]),
    spaces.MultiDiscrete(np.array([[3, 2], [2, 4]])),
    spaces.MultiBinary(3),
    spaces.MultiBinary([2, 2]),
]
UNSUPPORTED: list[spaces.Space] = [
    spaces.Dict(a=spaces.Discrete(2)),
    spaces.Tuple((spaces.Discrete(2), spaces.Discrete(2))),
    spaces.Text(3),
    spaces.Graph(VECTOR, None),
]


@for_each_algorithm
@pytest.mark.parametrize("observation_space", OBSERVATION_SPACES, ids=str)
@for_each_policy
def test_observation_spaces(case: Case, observation_space: spaces.Space, policy: str) -> None:
    model = case.make(AnySpacesEnv(observation_space, spaces.Box(-1, 1, (2,))), policy)
    before = parameters_of(model)
    model.learn(48)
    assert differ(before, parameters_of(model))
    assert model.rollout_buffer.observations.dtype == observation_space.dtype
    assert model.rollout_buffer.observations.shape == (24, *(observation_space.shape or ()))


@for_each_algorithm
@pytest.mark.parametrize("action_space", ACTION_SPACES, ids=str)
def test_action_spaces(case: Case, action_space: spaces.Space) -> None:
    env = AnySpacesEnv(VECTOR, action_space)
    model = case.make(env)
    before = parameters_of(model)
    model.learn(72)
    assert differ(before, parameters_of(model))
    for action in env.actions:
        assert action_space.contains(np.asarray(action)) or action_space.contains(action)
    buffer = model.rollout_buffer
    assert buffer.actions.shape == (24, *(action_space.shape or ()))
    assert buffer.actions.dtype == action_space.dtype


@for_each_algorithm
@pytest.mark.parametrize("action_space", ACTION_SPACES, ids=str)
@pytest.mark.parametrize("deterministic", [True, False])
def test_predicted_actions_lie_in_the_space(case: Case, action_space: spaces.Space, deterministic: bool) -> None:
    model = case.make(AnySpacesEnv(VECTOR, action_space))
    for _ in range(20):
        action, _ = model.predict(VECTOR.sample(), deterministic=deterministic)
        action = action if (action_space.shape or ()) else action.item()
        assert action_space.contains(action), action
        if isinstance(action, np.ndarray):
            assert action.dtype == action_space.dtype


@for_each_algorithm
@pytest.mark.parametrize("action_space", UNSUPPORTED, ids=lambda space: type(space).__name__)
def test_unsupported_action_spaces(case: Case, action_space: spaces.Space) -> None:
    class Env(gym.Env):
        observation_space = VECTOR

        def reset(self, **kwargs: Any) -> Any:
            return VECTOR.sample(), {}

    env = Env()
    env.action_space = action_space
    with pytest.raises(AssertionError, match=r"only supports .* as action spaces but"):
        case.make(env)


@pytest.mark.filterwarnings("ignore:Using the latest versioned environment")
@for_each_algorithm
@pytest.mark.parametrize("env_id", ["Taxi", "CartPole-v1"])
def test_environments_with_discrete_spaces(case: Case, env_id: str) -> None:
    case.make(gym.make(env_id), n_episodes=2, horizon=30).learn(60)


@for_each_algorithm
def test_float64_observations_and_actions(case: Case) -> None:
    """Neither is narrowed on the way."""
    env = AnySpacesEnv(spaces.Box(-1, 1, (3,), np.float64), spaces.Box(-1, 1, (2,), np.float64))
    model = case.make(env).learn(24)
    assert {action.dtype for action in env.actions} == {np.dtype(np.float64)}
    assert model.rollout_buffer.observations.dtype == model.rollout_buffer.actions.dtype == np.float64
    assert model.predict(env.observation_space.sample())[0].dtype == np.float64


@for_each_algorithm
def test_spaces_that_are_subclassed(case: Case) -> None:
    class DiscreteSubclass(spaces.Discrete):
        pass

    class BoxSubclass(spaces.Box):
        pass

    for action_space in (DiscreteSubclass(3), BoxSubclass(-1, 1, (2,))):
        env = AnySpacesEnv(BoxSubclass(-1, 1, (3,)), action_space)
        model = case.make(env).learn(24)
        model.predict(env.observation_space.sample())


@for_each_algorithm
def test_discrete_observations_are_one_hot(case: Case) -> None:
    model = case.make(AnySpacesEnv(spaces.Discrete(5), spaces.Box(-1, 1, (1,))), "LinearPolicy")
    n_weights = sum(value.size for name, value in parameters_of(model).items() if name != "log_std")
    assert n_weights % 5 == 0 and n_weights > 0
