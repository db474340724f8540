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
from tests.registry import CASES, Case, assert_same_parameters, collect, differ, for_each_algorithm, parameters_of

# Algorithms whose policies may have features extractors
CASES_WITH_EXTRACTORS = pytest.mark.parametrize(
    "case", [pytest.param(case, id=name) for name, case in CASES.items() if case.has_features_extractors]
)
NOISY = dict(features_extractor_class=NoisyExtractor)


def noisy_model(case: Case, **kwargs: Any) -> Any:
    with pytest.warns(UserWarning, match="evaluation mode"):
        return case.make(ControlEnv(), policy_kwargs=NOISY, **kwargs)


def statistics_of(model: Any) -> dict[str, np.ndarray]:
    return {name: value for name, value in parameters_of(model).items() if "running" in name or "batches" in name}


@CASES_WITH_EXTRACTORS
def test_one_warning_names_the_layers(case: Case) -> None:
    with pytest.warns(UserWarning) as warned:
        case.make(ControlEnv(), policy_kwargs=NOISY)
    messages = [str(warning.message) for warning in warned if "evaluation mode" in str(warning.message)]
    assert len(messages) == 1
    assert "features_extractor.norm (BatchNorm1d)" in messages[0]
    assert "features_extractor.dropout (Dropout)" in messages[0]


@CASES_WITH_EXTRACTORS
def test_no_warning_without_such_layers(case: Case) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        case.make(ControlEnv(), policy_kwargs=dict(features_extractor_class=ScalingExtractor))
        case.make(ControlEnv(), policy_kwargs=dict(features_extractor_class=FlattenExtractor))


@CASES_WITH_EXTRACTORS
def test_statistics_stand_still_while_parameters_learn(case: Case) -> None:
    model = noisy_model(case)
    before = parameters_of(model)
    statistics = statistics_of(model)
    assert len(statistics) == 3
    model.learn(72)
    assert_same_parameters(statistics, statistics_of(model))
    assert differ(before, parameters_of(model))
    assert not model.policy.training


@CASES_WITH_EXTRACTORS
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


@CASES_WITH_EXTRACTORS
def test_importance_weights_are_one_at_the_start(case: Case) -> None:
    """The surrogate before the optimisation is the plain mean of the returns, dropout or not."""
    model = noisy_model(case, delta=1.0, center_returns=False, iw_norm="none")
    model.policy.set_training_mode(True)
    collect(model)
    recorded: dict[str, Any] = {}
    model.logger.record = lambda key, value, *args, **kwargs: recorded.update({key: value})
    model.train()
    expected = model.rollout_buffer.episode_returns().mean()
    assert recorded["train/surrogate_before"] == pytest.approx(expected, abs=1e-6)


class SwitchToTraining(BaseCallback):
    """What a callback does that trains the policy on something else."""

    def _on_step(self) -> bool:
        return True

    def _on_rollout_end(self) -> None:
        self.model.policy.set_training_mode(True)


@CASES_WITH_EXTRACTORS
def test_a_callback_cannot_switch_training_mode_on_for_good(case: Case) -> None:
    model = noisy_model(case)
    statistics = statistics_of(model)
    model.learn(48, SwitchToTraining())
    assert_same_parameters(statistics, statistics_of(model))


EVERY_POLICY_CLASS = [
    pytest.param(case, policy, observation_space, id=f"{algorithm}-{policy}-{type(observation_space).__name__}")
    for algorithm, case in CASES.items()
    for policy, observation_space in (
        *((policy, spaces.Box(-1, 1, (3,), np.float32)) for policy in case.policies),
        *((policy, spaces.Discrete(4)) for policy in case.policies),
        (case.image_policy, spaces.Box(0, 255, (3, 36, 36), np.uint8)),
        ("MultiInputPolicy", spaces.Dict(a=spaces.Box(-1, 1, (2,), np.float32), b=spaces.MultiBinary(3))),
    )
    if policy is not None
]


@pytest.mark.parametrize("case, policy, observation_space", EVERY_POLICY_CLASS)
def test_log_weights_are_zero_at_the_behavioral_parameters(case: Case, policy: str, observation_space: spaces.Space) -> None:
    action_spaces = [spaces.Box(-1, 1, (2,)), spaces.Discrete(3), spaces.MultiDiscrete([2, 3]), spaces.MultiBinary(2)]
    for action_space in filter(case.supports, action_spaces):
        model = case.make(AnySpacesEnv(observation_space, action_space), policy, n_episodes=3)
        for _ in range(2):  # at the start and after an update
            collect(model)
            log_weights = case.log_weights(model)
            assert log_weights.shape[0] == 3
            assert np.abs(log_weights).max() <= 1e-6
            model.train()
        assert np.abs(case.log_weights(model)).max() <= 1e-6


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
