"""The standard deviation can neither die nor explode: its limits, its log and its warning."""

import math
import warnings
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch as th
from gymnasium import spaces
from stable_baselines3.common.callbacks import BaseCallback

from sb3_pois import APOIS, PPOIS
from sb3_pois.common import std_limits
from sb3_pois.common.ascent import optimize_offline
from sb3_pois.common.bounds import Objective
from sb3_pois.common.std_limits import LARGEST_LOG_STD, MAX_LOG_STD_CHANGE, std_box
from sb3_pois.ppois import Controller
from sb3_pois.ppois.surrogate import HyperpolicySurrogate, gaussian_natural_gradient
from tests.helpers.envs import AnySpacesEnv, ControlEnv
from tests.registry import (
    CASES,
    Case,
    assert_same_parameters,
    for_each_algorithm,
    for_each_policy,
    log_of,
    paper,
    parameters_of,
)


class Stds(BaseCallback):
    """Keeps the log standard deviations of every batch."""

    def __init__(self) -> None:
        super().__init__()
        self.values: list[np.ndarray] = []

    def _on_step(self) -> bool:
        return True

    def _on_rollout_start(self) -> None:
        policy: Any = self.model.policy
        self.values.append(policy.log_std.detach().numpy().copy())

    def _on_training_end(self) -> None:
        self._on_rollout_start()

    @property
    def changes(self) -> np.ndarray:
        return np.diff(self.values, axis=0)


def test_limits_of_a_target() -> None:
    theta = th.tensor([3.0, -2.0, LARGEST_LOG_STD - 0.01, -LARGEST_LOG_STD, 99.0], dtype=th.float64)
    box = std_box(theta, th.tensor([False, True, True, True, True]))
    change, largest = MAX_LOG_STD_CHANGE, LARGEST_LOG_STD
    assert box.lower.tolist() == [-math.inf, -2.0 - change, largest - 0.01 - change, -largest, 99.0 - change]
    assert box.upper.tolist() == [math.inf, -2.0 + change, largest, change - largest, 99.0]


def test_products_of_two_draws_at_the_largest_std_fit_float32() -> None:
    draws = np.exp(np.float32(LARGEST_LOG_STD)) * np.random.default_rng(0).uniform(-1, 1, (2, 1000)).astype(np.float32)
    assert draws.dtype == np.float32 and np.isfinite(draws[0] * draws[1]).all()


@for_each_algorithm
@for_each_policy
@pytest.mark.parametrize("natural_gradient", [True, False])
def test_a_batch_changes_the_std_by_no_more_than_the_limit(case: Case, policy: str, natural_gradient: bool) -> None:
    stds = Stds()
    model = case.make(
        ControlEnv(), policy, **{**paper(case.algorithm), "bound": "J", "iw_norm": "sn", "natural_gradient": natural_gradient}
    )
    model.learn(6 * 24, stds)
    assert stds.changes.shape[0] == 6
    assert np.abs(stds.changes).max() == pytest.approx(MAX_LOG_STD_CHANGE, rel=1e-5), "no farther, and as far as that"


@for_each_algorithm
def test_a_std_that_changes_less_is_left_alone(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    def learned() -> tuple[Any, Stds]:
        stds = Stds()
        small_steps = dict(line_search_initial_step=1e-3, line_search_max_iter=3, n_offline_iters=2)
        model = case.make(ControlEnv(), "LinearPolicy", **small_steps).learn(3 * 24, stds)
        return parameters_of(model), stds

    limited, stds = learned()
    assert 0.0 < np.abs(stds.changes).max() < 0.99 * MAX_LOG_STD_CHANGE
    monkeypatch.setattr(std_limits, "MAX_LOG_STD_CHANGE", 1e9)
    assert_same_parameters(limited, learned()[0])


@for_each_algorithm
def test_a_constant_std_stays(case: Case) -> None:
    stds = Stds()
    case.make(ControlEnv(), bound="J", iw_norm="sn", policy_kwargs=dict(learn_std=False)).learn(48, stds)
    assert (stds.changes == 0.0).all()


@for_each_algorithm
@pytest.mark.parametrize("log_std_init", [LARGEST_LOG_STD - 0.05, -20.0])
def test_learning_goes_on_at_the_ends_of_float32(case: Case, log_std_init: float) -> None:
    """What is drawn stays finite, whatever the surrogate would like."""
    stds = Stds()
    policy_kwargs = dict(log_std_init=log_std_init)
    case.make(ControlEnv(), bound="J", iw_norm="sn", policy_kwargs=policy_kwargs).learn(10 * 24, stds)
    assert len(stds.values) == 11
    assert np.abs(stds.values).max() <= LARGEST_LOG_STD * (1.0 + 1e-6)


class RandomLength(gym.Env):
    """A reward of 16 at the end of episodes of 1 to 12 steps, whatever is done."""

    observation_space = spaces.Box(-1.0, 1.0, (2,), np.float32)
    action_space = spaces.Box(-1.0, 1.0, (1,), np.float32)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.steps_left = int(self.np_random.integers(1, 13))
        return self.observation(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.steps_left -= 1
        return self.observation(), 16.0 * (self.steps_left == 0), self.steps_left == 0, False, {}

    def observation(self) -> np.ndarray:
        return self.np_random.uniform(-1.0, 1.0, 2).astype(np.float32)


@pytest.mark.parametrize("bound", ["std-ess", "J"])
@pytest.mark.parametrize("seed", [1, 33, 35])
def test_no_model_dies_of_an_infinite_action(seed: int, bound: str) -> None:
    """Nothing limits the std here but its limits; without them these seeds died within a few batches."""
    kwargs: dict[str, Any] = dict(delta=1.0, bound=bound, iw_norm="sn", natural_gradient=True)
    kwargs["policy_kwargs"] = dict(log_std_init=-1.0)
    model = APOIS("LinearPolicy", RandomLength(), seed=seed, **{**APOIS.PAPER, "n_episodes": 5, "gamma": 0.9, **kwargs})
    model.learn(500)
    assert np.isfinite(model.policy.log_std.item())


def drift_on_noise(bound: str, min_ess: float, n_episodes: int = 100, n_params: int = 4) -> float:
    """Mean change of the log std in batches whose returns have nothing to do with the parameters, without its limits."""
    changes = []
    for seed in range(12):
        rng = np.random.default_rng(seed)
        noise = rng.standard_normal((n_episodes, n_params), dtype=np.float32)
        returns = th.as_tensor(rng.standard_normal(n_episodes))
        objective = Objective(bound, "sn", 0.4, min_ess)
        surrogate = HyperpolicySurrogate(np.zeros(n_params), np.zeros(n_params), noise, returns, objective)
        result = optimize_offline(surrogate, th.zeros(2 * n_params).double(), gaussian_natural_gradient)
        changes.append(result.theta[n_params:].mean().item())
    return float(np.mean(changes))


@pytest.mark.parametrize("bound", ["max-d2", "std-d2", "std-ess"])
def test_a_floor_for_the_effective_sample_size_keeps_noise_from_closing_the_std(bound: str) -> None:
    assert drift_on_noise(bound, min_ess=0.0) < -0.1
    assert abs(drift_on_noise(bound, min_ess=0.7)) < 0.05


# Warning and log


@for_each_algorithm
def test_one_warning_of_a_std_that_has_collapsed(case: Case) -> None:
    model = case.make(ControlEnv(), "LinearPolicy", policy_kwargs=dict(log_std_init=-1.0))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model.learn(24)
    with th.no_grad():
        model.policy.log_std.fill_(-1.0 - math.log(101.0))
    with pytest.warns(UserWarning, match=r"has shrunk to 0\.0099 of its initial value and the returns still vary") as record:
        model.learn(48)
    assert len(record) == 1, "once per model"


@for_each_algorithm
def test_no_warning_where_the_returns_are_equal(case: Case) -> None:
    class Equal(ControlEnv):
        def step(self, action: Any) -> Any:
            observation, _, *rest = super().step(action)
            return observation, 1.0, *rest

    model = case.make(Equal(), "LinearPolicy")
    with th.no_grad():
        model.policy.log_std.fill_(-9.0)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model.learn(24)


class Gains(Controller):
    """A controller whose parameters have names, of which two are the same."""

    n_params = 3
    param_names = ("P", "D", "P")

    def act(self, params: np.ndarray, observations: np.ndarray) -> np.ndarray:
        return (params * observations).sum(1, keepdims=True)


def test_log_has_the_stds_by_the_controllers_names() -> None:
    model = CASES["PPOIS"].make(ControlEnv(), Gains, policy_kwargs=dict(log_std_init=np.log([1.0, 5.0, 3.0])))
    model.learn(24, log_interval=None)
    log, std = log_of(model), model.policy.log_std.detach().exp().numpy()
    assert log["train/std/P"] == pytest.approx(0.5 * (std[0] + std[2])) and log["train/std/D"] == pytest.approx(std[1])
    assert log["train/std"] == pytest.approx(std.mean())
    assert {key for key in log if key.startswith("train/std/")} == {"train/std/P", "train/std/D"}


def test_log_has_the_stds_of_several_actions() -> None:
    env = AnySpacesEnv(spaces.Box(-1, 1, (2,)), spaces.Box(-1, 1, (2,)))
    model = CASES["APOIS"].make(env).learn(24, log_interval=None)
    std = model.policy.log_std.detach().exp().tolist()
    assert [log_of(model)[f"train/std/action_{i}"] for i in range(2)] == pytest.approx(std)


@pytest.mark.parametrize("names", ["PDI", ("P", "D"), ("P", "", "D"), ("P", "D", 1), 3, ("P", "D", 25 * "x")])
def test_names_that_are_refused(names: Any) -> None:
    class Named(Gains):
        param_names = names

    with pytest.raises(ValueError, match=r"Named.param_names is .* but must be None or 3 texts of 1 to 24 characters"):
        PPOIS(Named, ControlEnv())
