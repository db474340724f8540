"""Bad input gets one clear line, and never reaches the policy."""

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from stable_baselines3.common.vec_env import DummyVecEnv, VecNormalize

from tests.helpers.envs import ControlEnv, CountingEnv, PoisonEnv
from tests.helpers.vec_envs import MinimalVecEnv, always
from tests.registry import (
    CASES,
    Case,
    assert_same_parameters,
    differ,
    for_each_algorithm,
    for_each_algorithm_with_modules,
    paper,
    parameters_of,
)

EVERY_BAD_VALUE = [
    pytest.param(case, name, value, allowed, id=f"{algorithm}-{name}={value}")
    for algorithm, case in CASES.items()
    for name, value, allowed in case.bad_values
]


@pytest.mark.parametrize("case, name, value, allowed", EVERY_BAD_VALUE)
def test_constructor(case: Case, name: str, value: Any, allowed: str) -> None:
    with pytest.raises(ValueError, match=rf"{name} is .*{allowed}") as raised:
        case.make(ControlEnv(), **{"n_episodes": None, name: value})
    message = str(raised.value)
    assert "\n" not in message and (repr(value) in message or str(value) in message)


@for_each_algorithm
def test_after_load(case: Case, tmp_path: Path) -> None:
    """A loaded model is checked as a new one is."""
    case.make(ControlEnv(), n_episodes=None).save(tmp_path / "model")
    for name, value, allowed in case.bad_values:
        with pytest.raises(ValueError, match=rf"{name} is .*{allowed}"):
            case.algorithm.load(tmp_path / "model", **{name: value})
        with pytest.raises(ValueError, match=rf"{name} is .*{allowed}"):
            case.algorithm.load(tmp_path / "model", env=ControlEnv(), **{name: value})


@for_each_algorithm
def test_good_values_pass(case: Case) -> None:
    """Numpy's numbers and the ends of the ranges."""
    case.make(
        ControlEnv(),
        n_episodes=np.int64(3),
        gamma=0,
        delta=1,
        line_search_tol=np.float32(0.0),
        center_returns=np.bool_(True),
        natural_gradient=np.bool_(False),
        horizon=np.int32(2),
    ).learn(12)
    case.make(ControlEnv(), gamma=1, delta=np.float64(1e-9)).learn(12)


@for_each_algorithm
def test_two_budgets(case: Case, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"n_episodes is 5 and batch_timesteps is 7: .*one budget"):
        case.algorithm("MlpPolicy", ControlEnv(), n_episodes=5, batch_timesteps=7)
    case.make(ControlEnv(), n_episodes=5).save(tmp_path / "model")
    with pytest.raises(ValueError, match="one budget"):
        case.algorithm.load(tmp_path / "model", batch_timesteps=7)


@for_each_algorithm
def test_a_last_episode_is_finished_of_a_budget_in_steps_only(case: Case, tmp_path: Path) -> None:
    budgets: list[dict[str, Any]] = [dict(n_episodes=5)]
    if case.algorithm.default_batch[1] is None:  # without a budget a batch has so many episodes
        budgets.append(dict(n_episodes=None))
    for budget in budgets:
        with pytest.raises(ValueError, match="finish_last_episode is True, but .* set batch_timesteps, or .* to False"):
            case.make(ControlEnv(), finish_last_episode=True, **budget)
    case.make(ControlEnv(), batch_timesteps=5, finish_last_episode=True).save(tmp_path / "model")
    assert case.algorithm.load(tmp_path / "model").finish_last_episode is True
    with pytest.raises(ValueError, match="finish_last_episode is True"):
        case.algorithm.load(tmp_path / "model", n_episodes=5, batch_timesteps=None)


@for_each_algorithm
def test_regression_says_why_it_is_refused(case: Case) -> None:
    with pytest.raises(ValueError, match=r"iw_norm is 'regression', which jumps .* evaluation only: allowed are 'none', 'sn'"):
        case.make(ControlEnv(), iw_norm="regression")


@for_each_algorithm_with_modules
def test_bad_policy_kwargs(case: Case) -> None:
    with pytest.raises(ValueError, match="weight_init is 'zeros', but allowed are 'orthogonal'"):
        case.make(ControlEnv(), policy_kwargs=dict(weight_init="zeros"))
    for log_std_init in (np.nan, np.inf):
        with pytest.raises(ValueError, match="log_std_init"):
            case.make(ControlEnv(), policy_kwargs=dict(log_std_init=log_std_init))


@for_each_algorithm
def test_no_environment(case: Case) -> None:
    with pytest.raises(ValueError, match="env is None, but a new model needs the environment"):
        case.make(None)


@for_each_algorithm
def test_policy_kwargs_that_are_no_dict(case: Case) -> None:
    with pytest.raises(ValueError, match=r"policy_kwargs is \[1\], but must be a dict"):
        case.make(ControlEnv(), policy_kwargs=[1])


@for_each_algorithm
def test_file_of_another_algorithm(case: Case, tmp_path: Path) -> None:
    case.make(ControlEnv(), **paper(case.algorithm)).save(tmp_path / "model")
    for other in CASES.values():
        if not issubclass(other.algorithm, case.algorithm) and not issubclass(case.algorithm, other.algorithm):
            with pytest.raises(ValueError, match="what another algorithm saved, its own class has to load"):
                other.algorithm.load(tmp_path / "model")


@for_each_algorithm
def test_attributes_set_later_are_not_trusted_after_a_load(case: Case, tmp_path: Path) -> None:
    model = case.make(ControlEnv())
    model.delta = 2.0
    model.save(tmp_path / "model")
    with pytest.raises(ValueError, match=r"delta is 2\.0"):
        case.algorithm.load(tmp_path / "model")


# What is not finite


@for_each_algorithm
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize(
    "where, named",
    [("reward", "reward"), ("observation", "observation"), ("reset", "observation"), ("dict", "observation 'bad'")],
)
def test_value_that_is_not_finite(case: Case, where: str, named: str, value: float) -> None:
    """The first batch is fine, the second has something bad: the first one's update stays, the second's is not made."""
    policy = "MultiInputPolicy" if where == "dict" else "MlpPolicy"
    model = case.make(PoisonEnv(where, value), policy, n_episodes=4)
    with pytest.raises(ValueError, match=rf"the {named} of environment 0 .*{value}.* must be finite"):
        # the reset that SB3 does beforehand and the first three episodes are good
        model.learn(1)
    before = parameters_of(case.make(PoisonEnv(where, value), policy, n_episodes=4))
    assert_same_parameters(before, parameters_of(model))


@for_each_algorithm
def test_first_observation_of_a_batch(case: Case) -> None:
    """The one that comes from the reset of all environments, not from a step."""

    class BadStart(PoisonEnv):
        poisoned_episode = 2  # the first ends with the reset that SB3 does beforehand

    with pytest.raises(ValueError, match=r"the observation of environment 0 at step 0 .*nan.* must be finite"):
        case.make(BadStart("reset", np.nan), n_episodes=4).learn(1)


@for_each_algorithm
def test_action_that_is_not_finite(case: Case) -> None:
    model = case.make(ControlEnv())
    for parameter in model.policy.parameters():
        parameter.data.fill_(np.nan)
    with pytest.raises(ValueError, match=r"the action of environment 0 at step 0 .*nan.* must be finite"):
        model.learn(1)


@for_each_algorithm
def test_earlier_updates_survive(case: Case) -> None:
    class LaterPoison(PoisonEnv):
        poisoned_episode = 12

    model = case.make(LaterPoison("reward", np.nan), n_episodes=4)
    start = parameters_of(model)
    model.learn(12)
    learned = parameters_of(model)
    assert differ(start, learned)
    with pytest.raises(ValueError, match="reward"):
        model.learn(100, reset_num_timesteps=False)
    trained_until_then = parameters_of(model)
    assert all(np.isfinite(value).all() for value in trained_until_then.values())
    model.set_env(PoisonEnv("nowhere", 0.0))
    model.learn(12, reset_num_timesteps=False)  # and it can go on


@for_each_algorithm
@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_through_vec_normalize(case: Case, value: float) -> None:
    for where in ("reward", "observation"):
        model = case.make(VecNormalize(DummyVecEnv([lambda: PoisonEnv(where, value)])), n_episodes=4)  # noqa: B023
        before = parameters_of(model)
        with warnings.catch_warnings(), pytest.raises(ValueError, match="must be finite"):
            warnings.simplefilter("ignore", RuntimeWarning)
            model.learn(1)
        assert_same_parameters(before, parameters_of(model))


@for_each_algorithm
def test_environments_that_idle_may_do_what_they_like(case: Case) -> None:
    """Their steps are dropped, so a NaN there is nobody's business."""

    class WildWhenIdle(MinimalVecEnv):
        def step_wait(self) -> Any:
            observations: Any
            observations, rewards, dones, infos = super().step_wait()
            idle = (self.episodes >= 2) & (self.t > 0)
            rewards[idle] = np.nan
            observations[idle] = np.nan
            return observations, rewards, dones, infos

    lengths = iter([2, 5] * 50)
    vec_env = WildWhenIdle(2, lambda n: np.array([next(lengths) for _ in range(n)]))
    vec_env.n_started = -2  # so that the episodes after SB3's reset have the numbers 0 and 1
    model = case.make(vec_env, n_episodes=2)
    model.learn(1)
    assert model.rollout_buffer.episode_lengths.tolist() == [2, 5]
    assert np.isfinite(model.rollout_buffer.observations).all() and np.isfinite(model.rollout_buffer.rewards).all()


# Nothing to learn from


@for_each_algorithm
@pytest.mark.parametrize("bound", ["J", "max-d2", "std-d2", "max-ess", "std-ess"])
@pytest.mark.parametrize("center_returns", [True, False])
def test_one_episode_is_no_update(case: Case, bound: str, center_returns: bool) -> None:
    arguments = {**paper(case.algorithm), "n_episodes": 1, "bound": bound, "center_returns": center_returns}
    model = case.make(ControlEnv(), **arguments)
    before = parameters_of(model)
    model.learn(12)
    assert_same_parameters(before, parameters_of(model))


@for_each_algorithm
@pytest.mark.parametrize("reward", [0.0, 1.0, 0.1, -1e30, 1e-30])
@pytest.mark.parametrize("center_returns", [True, False])
def test_equal_returns_are_no_update(case: Case, reward: float, center_returns: bool) -> None:
    vec_env = MinimalVecEnv(2, always(3), last_reward=lambda lengths: np.full(len(lengths), reward))
    model = case.make(vec_env, center_returns=center_returns)
    before = parameters_of(model)
    model.learn(36)
    assert_same_parameters(before, parameters_of(model))


@for_each_algorithm
@pytest.mark.parametrize("scale", [1e-12, 1e12, 1e30])
def test_returns_of_any_size_leave_finite_parameters(case: Case, scale: float) -> None:
    class ScaledEnv(ControlEnv):
        def step(self, action: Any) -> Any:
            observation, reward, *rest = super().step(action)
            return observation, scale * reward, *rest

    model = case.make(ScaledEnv()).learn(72)
    assert all(np.isfinite(value).all() for value in parameters_of(model).values())


@for_each_algorithm
def test_counting_env_learns_nothing_wrong(case: Case) -> None:
    """Returns that the actions have no influence on leave finite parameters too."""
    model = case.make(CountingEnv((2, 5, 3))).learn(100)
    assert all(np.isfinite(value).all() for value in parameters_of(model).values())
