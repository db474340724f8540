"""The same seed gives the same actions and rewards."""

from collections.abc import Callable

import numpy as np
import pytest
from gymnasium import Env
from stable_baselines3.common.envs import IdentityEnv, IdentityEnvBox

from tests.registry import Case, assert_same_parameters, differ, for_each_algorithm, parameters_of

MakeEnv = Callable[[], Env]
ENVS: list[MakeEnv] = [lambda: IdentityEnv(3, ep_length=10), lambda: IdentityEnvBox(ep_length=10)]


@for_each_algorithm
@pytest.mark.parametrize("make_env", ENVS)
@pytest.mark.parametrize("deterministic", [False, True])
def test_same_seed_same_actions_and_rewards(case: Case, make_env: MakeEnv, deterministic: bool) -> None:
    def run(seed: int) -> tuple[np.ndarray, np.ndarray, dict[str, np.ndarray]]:
        model = case.make(make_env(), seed=seed).learn(200)
        env = model.get_env()
        observation, state = env.reset(), None
        actions, rewards = [], []
        for _ in range(60):
            action, state = model.predict(observation, state, deterministic=deterministic)
            observation, reward, _, _ = env.step(action)
            actions.append(action[0])
            rewards.append(reward[0])
        return np.array(actions), np.array(rewards), parameters_of(model)

    actions, rewards, parameters = run(1)
    same_actions, same_rewards, same_parameters = run(1)
    assert_same_parameters(parameters, same_parameters)
    np.testing.assert_array_equal(actions, same_actions)
    np.testing.assert_array_equal(rewards, same_rewards)
    _, _, other_parameters = run(2)
    assert differ(parameters, other_parameters)
