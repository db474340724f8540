"""Every algorithm learns with every option, policy and kind of environment."""

import itertools
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.vec_env import DummyVecEnv

from tests.helpers.envs import ControlEnv, CountingEnv
from tests.registry import (
    CASES,
    Case,
    assert_same_parameters,
    differ,
    for_each_algorithm,
    for_each_policy,
    paper,
    parameters_of,
)

EVERY_OPTION = [
    pytest.param(case, name, one, other, id=f"{algorithm}-{name}-{one}-{other}")
    for algorithm, case in CASES.items()
    for name, one, other in case.options
]
# What changes the output and not what is learned
NEUTRAL_OPTIONS = ("stats_window_size", "verbose")


@for_each_algorithm
@for_each_policy
@pytest.mark.parametrize("env_id", ["CartPole-v1", "Pendulum-v1"])
def test_standard_environments(case: Case, policy: str, env_id: str) -> None:
    model = case.make(env_id, policy, n_episodes=3, horizon=20)
    before = parameters_of(model)
    model.learn(100)
    assert model.num_timesteps >= 100
    assert differ(before, parameters_of(model))


@pytest.mark.parametrize("case, name, one, other", EVERY_OPTION)
def test_every_option_has_its_effect(case: Case, name: str, one: object, other: object) -> None:
    """An option that changes nothing in four batches is accepted and ignored."""
    context = case.contexts.get(name, {})
    models = [case.make(ControlEnv(), **{**context, name: value}) for value in (one, other)]
    for model, value in zip(models, (one, other), strict=True):
        assert getattr(model, "_stats_window_size" if name == "stats_window_size" else name) == value
        model.learn(96)
        assert all(np.isfinite(values).all() for values in parameters_of(model).values())
    if name in NEUTRAL_OPTIONS:
        assert_same_parameters(*map(parameters_of, models))
    else:
        assert differ(*map(parameters_of, models))


@for_each_algorithm
def test_options_that_change_nothing(case: Case) -> None:
    for option, one, other in case.neutral_options:
        models = [case.make(ControlEnv(), **paper(case.algorithm), **{option: value}).learn(24) for value in (one, other)]
        for name, value in parameters_of(models[0]).items():
            np.testing.assert_allclose(value, parameters_of(models[1])[name], rtol=1e-4, atol=1e-6, err_msg=option)


@for_each_algorithm
def test_two_environments(case: Case) -> None:
    model = case.make(make_vec_env(ControlEnv, n_envs=2))
    model.learn(48)
    assert model.rollout_buffer.n_episodes == 6
    assert model.num_timesteps == 48


@for_each_algorithm
@pytest.mark.parametrize("lengths", [(5,), (3, 7)])
def test_budget_smaller_than_an_episode(case: Case, lengths: tuple[int, ...]) -> None:
    """One batch is always finished, however small the number of steps that was asked for."""
    model = case.make(CountingEnv(lengths)).learn(1)
    assert model.num_timesteps == model.rollout_buffer.n_steps == 6 * np.mean(lengths)


@for_each_algorithm
def test_no_steps_no_batch(case: Case) -> None:
    model = case.make(ControlEnv())
    before = parameters_of(model)
    model.learn(0)
    assert model.num_timesteps == 0
    assert_same_parameters(before, parameters_of(model))


@for_each_algorithm
def test_learning_needs_an_environment(case: Case) -> None:
    with pytest.raises(ValueError, match="no environment"):
        case.make(None, _init_setup_model=False).learn(10)


@for_each_algorithm
def test_default_size_of_a_batch(case: Case) -> None:
    model = case.algorithm("MlpPolicy", CountingEnv((1, 2)))
    assert model.n_episodes is None and model.batch_timesteps is None
    model.learn(1)
    n_episodes, batch_timesteps = model.default_batch
    assert model.rollout_buffer.n_episodes == n_episodes or model.rollout_buffer.n_steps == batch_timesteps


@for_each_algorithm
def test_horizon_puts_a_time_limit_on_an_environment_made_from_an_id(case: Case) -> None:
    model = case.make("Pendulum-v1", horizon=7)
    assert model.env.env_is_wrapped(gym.wrappers.TimeLimit) == [True]
    model.learn(1)
    assert model.rollout_buffer.episode_lengths.tolist() == [7] * 6
    assert model.num_timesteps == 42  # nothing is dropped: the environment itself ends the episode


@for_each_algorithm
@pytest.mark.parametrize("window", [1, 42])
def test_stats_window_size(case: Case, window: int) -> None:
    model = case.make(ControlEnv(), stats_window_size=window).learn(60)
    assert model.ep_info_buffer.maxlen == model.ep_success_buffer.maxlen == window
    assert len(model.ep_info_buffer) == len(model.ep_success_buffer) == min(window, 18)


@for_each_algorithm
@pytest.mark.parametrize("truncates", [False, True])
def test_truncated_and_terminated_episodes_are_the_same_to_it(case: Case, truncates: bool) -> None:
    """No value is bootstrapped at a time limit, so only the rewards count."""
    model = case.make(CountingEnv((3, 4), truncates=truncates), gamma=0.5)
    model.learn(1)
    buffer = model.rollout_buffer
    assert buffer.episode_lengths.tolist() == [4, 3] * 3 or buffer.episode_lengths.tolist() == [3, 4] * 3
    expected = {3: 1 + 2 / 2 + 3 / 4, 4: 1 + 2 / 2 + 3 / 4 + 4 / 8}
    assert buffer.episode_returns(0.5).tolist() == [expected[length] for length in buffer.episode_lengths]


@for_each_algorithm
def test_surrogate_never_falls(case: Case) -> None:
    improvements = []

    def note(local_variables: dict, global_variables: dict) -> bool:
        value = local_variables["self"].logger.name_to_value.get("train/surrogate_improvement")
        if value is not None:
            improvements.append(value)
        return True

    case.make(ControlEnv()).learn(400, note, log_interval=None)
    assert len(improvements) > 0
    assert min(improvements) >= 0.0
    assert max(improvements) > 0.0


@for_each_algorithm
@pytest.mark.parametrize("n_envs", [1, 3])
def test_learning_is_repeatable_to_the_bit(case: Case, n_envs: int) -> None:
    def run(seed: int) -> dict[str, np.ndarray]:
        vec_env = DummyVecEnv([ControlEnv for _ in range(n_envs)])
        return parameters_of(case.make(vec_env, seed=seed).learn(100))

    assert_same_parameters(run(1), run(1))
    assert differ(run(1), run(2))


@for_each_algorithm
def test_without_a_seed_no_two_runs_are_the_same(case: Case) -> None:
    one, other = (parameters_of(case.make(ControlEnv(), seed=None).learn(30)) for _ in range(2))
    assert differ(one, other)


# The scale of the rewards


def learn_with_rewards_times(case: Case, factor: float, n_steps: int = 48, **kwargs: Any) -> Any:
    env = gym.wrappers.TransformReward(ControlEnv(), lambda reward: factor * float(reward))
    kwargs = dict(line_search_units="returns", gamma=0.9, policy_kwargs=dict(net_arch=[1]), **kwargs)
    return case.make(env, **kwargs).learn(n_steps, log_interval=None)


@for_each_algorithm
@pytest.mark.parametrize(
    "bound, iw_norm",
    [("J", "sn"), ("max-d2", "none"), ("max-d2", "sn"), ("std-d2", "none"), ("max-ess", "none"), ("std-ess", "sn")],
)
def test_rewards_times_a_power_of_two_change_nothing(case: Case, bound: str, iw_norm: str) -> None:
    for estimate, factor in zip(case.estimates, itertools.cycle([2.0**-40, 2.0**60]), strict=False):
        one, other = (learn_with_rewards_times(case, f, bound=bound, iw_norm=iw_norm, **estimate) for f in (1.0, factor))
        assert one.logger.name_to_value["train/is_line_search_success"] > 0.0, estimate
        assert_same_parameters(parameters_of(one), parameters_of(other))


@for_each_algorithm
@pytest.mark.parametrize("options", [dict(line_search="binary"), dict(center_returns=False), dict(center_returns=True)])
def test_rewards_times_a_power_of_two_change_nothing_whatever_the_options(case: Case, options: dict[str, Any]) -> None:
    models = [learn_with_rewards_times(case, factor, 144, **options) for factor in (1.0, 2.0**-60, 2.0**3)]
    for model in models[1:]:
        assert_same_parameters(parameters_of(models[0]), parameters_of(model))


@for_each_algorithm
@pytest.mark.parametrize("factor", [1e-30, 1e-12, 1e12, 1e30])
def test_rewards_times_any_factor_teach_the_same(case: Case, factor: float) -> None:
    """Up to the rounding of the rewards, which is to float32, and what the optimisation makes of it."""
    for estimate in case.estimates:
        one, other = (learn_with_rewards_times(case, f, 24, **estimate) for f in (1.0, factor))
        assert other.logger.name_to_value["train/is_line_search_success"] > 0.0, estimate
        for name, value in parameters_of(one).items():
            np.testing.assert_allclose(parameters_of(other)[name], value, rtol=1e-2, atol=1e-2, err_msg=f"{estimate} {name}")
