"""The same seed gives the same actions and rewards."""

from collections.abc import Callable

import numpy as np
import pytest
from gymnasium import Env, spaces
from stable_baselines3.common.envs import IdentityEnv, IdentityEnvBox

from tests.registry import CASES, Case

MakeEnv = Callable[[], Env]
ENVS: list[MakeEnv] = [lambda: IdentityEnv(3, ep_length=10), lambda: IdentityEnvBox(ep_length=10)]
SUPPORTED = [
    pytest.param(case, make_env, id=f"{algorithm}-{type(make_env().action_space).__name__}")
    for algorithm, case in CASES.items()
    for make_env in ENVS
    if case.supports(make_env().action_space)
]


@pytest.mark.parametrize("case, make_env", SUPPORTED)
@pytest.mark.parametrize("deterministic", [False, True])
def test_same_seed_same_actions_and_rewards(case: Case, make_env: MakeEnv, deterministic: bool) -> None:
    def run(seed: int) -> tuple[np.ndarray, np.ndarray]:
        model = case.make(make_env(), seed=seed).learn(200)
        env = model.get_env()
        observation, state = env.reset(), None
        actions, rewards = [], []
        for _ in range(60):
            action, state = model.predict(observation, state, deterministic=deterministic)
            observation, reward, _, _ = env.step(action)
            actions.append(action[0])
            rewards.append(reward[0])
        return np.array(actions), np.array(rewards)

    actions, rewards = run(1)
    same_actions, same_rewards = run(1)
    np.testing.assert_array_equal(actions, same_actions)
    np.testing.assert_array_equal(rewards, same_rewards)
    other_actions, _ = run(3)
    assert not np.array_equal(actions, other_actions)


def test_the_environments_differ() -> None:
    assert {type(make_env().action_space) for make_env in ENVS} == {spaces.Discrete, spaces.Box}
