"""Layers that differ between training and evaluation stay in evaluation mode, or the importance weights were not 1."""

import warnings
from typing import Any

import numpy as np
import pytest
import torch as th
from gymnasium import spaces
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.torch_layers import FlattenExtractor

from tests.helpers.envs import AnySpacesEnv, ControlEnv
from tests.helpers.policies import NoisyExtractor, ScalingExtractor
from tests.registry import (
    CASES,
    Case,
    assert_same_parameters,
    collect,
    differ,
    for_each_algorithm,
    for_each_algorithm_with_modules,
    log_of,
    parameters_of,
)

NOISY = dict(features_extractor_class=NoisyExtractor)


def noisy_model(case: Case, **kwargs: Any) -> Any:
    with pytest.warns(UserWarning, match="evaluation mode"):
        return case.make(ControlEnv(), policy_kwargs=NOISY, **kwargs)


def statistics_of(model: Any) -> dict[str, np.ndarray]:
    return {name: value for name, value in parameters_of(model).items() if "running" in name or "batches" in name}


@for_each_algorithm_with_modules
def test_one_warning_names_the_layers(case: Case) -> None:
    with pytest.warns(UserWarning) as warned:
        case.make(ControlEnv(), policy_kwargs=NOISY)
    messages = [str(warning.message) for warning in warned if "evaluation mode" in str(warning.message)]
    assert len(messages) == 1
    assert "features_extractor.norm (BatchNorm1d)" in messages[0]
    assert "features_extractor.dropout (Dropout)" in messages[0]


@for_each_algorithm_with_modules
def test_no_warning_without_such_layers(case: Case) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        case.make(ControlEnv(), policy_kwargs=dict(features_extractor_class=ScalingExtractor))
        case.make(ControlEnv(), policy_kwargs=dict(features_extractor_class=FlattenExtractor))


@for_each_algorithm_with_modules
def test_statistics_stand_still_while_parameters_learn(case: Case) -> None:
    model = noisy_model(case)
    before = parameters_of(model)
    statistics = statistics_of(model)
    assert len(statistics) == 3
    model.learn(72)
    assert_same_parameters(statistics, statistics_of(model))
    assert differ(before, parameters_of(model))
    assert not model.policy.training


@for_each_algorithm_with_modules
def test_predict_is_repeatable_and_changes_nothing(case: Case) -> None:
    model = noisy_model(case)
    before = parameters_of(model)
    for training_mode in (False, True):
        model.policy.set_training_mode(training_mode)
        observations = np.ones((5, 3), dtype=np.float32)
        actions = [model.predict(observations, deterministic=True)[0] for _ in range(3)]
        np.testing.assert_array_equal(actions[0], actions[1])
        np.testing.assert_array_equal(actions[0], actions[2])
    assert_same_parameters(before, parameters_of(model))


def assert_importance_weights_are_one(model: Any) -> None:
    """The surrogate before the optimisation is the plain mean of the returns: as they are random, every weight is 1."""
    assert (model.delta, model.center_returns, model.iw_norm) == (1.0, False, "none")
    model.train()
    expected = model.rollout_buffer.episode_returns().mean()
    assert log_of(model)["train/surrogate_before"] == pytest.approx(expected, abs=1e-5)


PLAIN_MEAN: dict[str, Any] = dict(gamma=1.0, delta=1.0, center_returns=False, iw_norm="none")


@for_each_algorithm_with_modules
def test_importance_weights_are_one_at_the_start_dropout_or_not(case: Case) -> None:
    model = noisy_model(case, **PLAIN_MEAN)
    model.policy.set_training_mode(True)
    collect(model)
    assert_importance_weights_are_one(model)


class SwitchToTraining(BaseCallback):
    """What a callback does that trains the policy on something else."""

    def _on_step(self) -> bool:
        return True

    def _on_rollout_end(self) -> None:
        self.model.policy.set_training_mode(True)


@for_each_algorithm_with_modules
def test_a_callback_cannot_switch_training_mode_on_for_good(case: Case) -> None:
    model = noisy_model(case)
    statistics = statistics_of(model)
    model.learn(48, SwitchToTraining())
    assert_same_parameters(statistics, statistics_of(model))


IMAGE = spaces.Box(0, 255, (3, 36, 36), np.uint8)
EVERY_POLICY_CLASS = [
    pytest.param(case, policy, observation_space, id=f"{algorithm}-{policy}-{type(observation_space).__name__}")
    for algorithm, case in CASES.items()
    for policy, observation_space in (
        ("LinearPolicy", spaces.Box(-1, 1, (3,), np.float32)),
        ("LinearPolicy", spaces.Discrete(4)),
        ("MlpPolicy", spaces.Box(-1, 1, (3,), np.float32)),
        ("MlpPolicy", spaces.Discrete(4)),
        ("CnnPolicy" if case.has_modules else "MlpPolicy", IMAGE),
        ("MultiInputPolicy", spaces.Dict(a=spaces.Box(-1, 1, (2,), np.float32), b=spaces.MultiBinary(3))),
    )
]
ACTION_SPACES = [spaces.Box(-1, 1, (2,)), spaces.Discrete(3), spaces.MultiDiscrete([2, 3]), spaces.MultiBinary(2)]


@pytest.mark.parametrize("case, policy, observation_space", EVERY_POLICY_CLASS)
@pytest.mark.parametrize("action_space", ACTION_SPACES, ids=lambda space: type(space).__name__)
def test_importance_weights_are_one_at_the_behavioral_policy(
    case: Case, policy: str, observation_space: spaces.Space, action_space: spaces.Space
) -> None:
    model = case.make(AnySpacesEnv(observation_space, action_space), policy, n_episodes=3, **PLAIN_MEAN)
    for _ in range(2):  # at the start and after an update
        collect(model)
        assert_importance_weights_are_one(model)


@for_each_algorithm
def test_policy_is_in_evaluation_mode(case: Case) -> None:
    model = case.make(ControlEnv())
    assert not model.policy.training
    modes: list[bool] = []

    def note(local_variables: dict, global_variables: dict) -> bool:
        modes.append(local_variables["self"].policy.training)
        return True

    model.learn(24, note)
    assert len(modes) == 24 and not any(modes) and not model.policy.training
    assert not th.is_inference_mode_enabled()
