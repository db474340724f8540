"""Policies of the user's making."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch as th
from gymnasium import spaces
from stable_baselines3 import PPO
from stable_baselines3.common.policies import ActorCriticPolicy, BasePolicy
from torch import nn

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
    for_each_policy,
    parameters_of,
)


def hidden_sizes(model: Any) -> list[int]:
    linear = [module for module in model.policy.modules() if isinstance(module, nn.Linear)]
    return [layer.out_features for layer in linear[:-1]]


@for_each_algorithm_with_modules
@pytest.mark.parametrize(
    "net_arch, sizes", [(None, [64, 64]), ([], []), ([5], [5]), ([12, 3, 4], [12, 3, 4]), (dict(pi=[6, 2]), [6, 2])]
)
def test_net_arch(case: Case, net_arch: Any, sizes: list[int]) -> None:
    model = case.make(ControlEnv(), policy_kwargs=dict(net_arch=net_arch))
    assert hidden_sizes(model) == sizes
    before = parameters_of(model)
    model.learn(24)
    assert differ(before, parameters_of(model))


@for_each_algorithm
@pytest.mark.parametrize("net_arch", [dict(pi=[4], vf=[4]), dict(vf=[4]), [0], [4, -1], [2.5], ["8"]], ids=str)
def test_bad_net_arch(case: Case, net_arch: Any) -> None:
    with pytest.raises(ValueError, match="net_arch"):
        case.make(ControlEnv(), policy_kwargs=dict(net_arch=net_arch))


@for_each_algorithm_with_modules
@pytest.mark.parametrize("activation_fn", [nn.Tanh, nn.ReLU, nn.ELU, nn.SiLU])
def test_activation_fn(case: Case, activation_fn: type[nn.Module]) -> None:
    model = case.make(ControlEnv(), policy_kwargs=dict(net_arch=[8], activation_fn=activation_fn))
    assert any(type(module) is activation_fn for module in model.policy.modules())
    model.learn(24)


@for_each_algorithm_with_modules
@pytest.mark.parametrize("features_dim", [4, 9])
def test_features_extractor_is_trained(case: Case, features_dim: int) -> None:
    kwargs = dict(features_extractor_class=ScalingExtractor, features_extractor_kwargs=dict(features_dim=features_dim))
    model = case.make(ControlEnv(), policy_kwargs=kwargs)
    assert isinstance(model.policy.features_extractor, ScalingExtractor)
    assert model.policy.features_extractor.features_dim == features_dim
    before = parameters_of(model)
    model.learn(72)
    after = parameters_of(model)
    name = "features_extractor.layer.weight"
    assert not np.array_equal(before[name], after[name])


@for_each_algorithm_with_modules
def test_frozen_parameters_stay(case: Case) -> None:
    model = case.make(ControlEnv(), policy_kwargs=dict(net_arch=[4]))
    frozen = next(name for name, parameter in model.policy.named_parameters() if name.endswith("weight"))
    dict(model.policy.named_parameters())[frozen].requires_grad_(False)
    before = parameters_of(model)
    model.learn(72)
    after = parameters_of(model)
    np.testing.assert_array_equal(before[frozen], after[frozen])
    assert differ(before, after)


@for_each_algorithm
@for_each_policy
def test_std_that_is_not_learned_stays(case: Case, policy: str, tmp_path: Path) -> None:
    model = case.make(ControlEnv(), policy, policy_kwargs=dict(learn_std=False, log_std_init=-0.5))
    before = parameters_of(model)
    model.learn(72)
    model.save(tmp_path / "model")
    loaded = case.algorithm.load(tmp_path / "model", env=ControlEnv()).learn(72)
    for after in parameters_of(model), parameters_of(loaded):
        np.testing.assert_array_equal(after["log_std"], before["log_std"])
        assert differ(before, after)
    model.policy.save(str(tmp_path / "policy"))
    assert not model.policy_class.load(str(tmp_path / "policy"), device="cpu").log_std.requires_grad


@for_each_algorithm
@for_each_policy
def test_everything_but_the_std_can_be_frozen(case: Case, policy: str) -> None:
    model = case.make(ControlEnv(), policy)
    for name, parameter in model.policy.named_parameters():
        parameter.requires_grad_(name == "log_std")
    before = parameters_of(model)
    model.learn(72)
    after = parameters_of(model)
    assert not np.array_equal(before.pop("log_std"), after.pop("log_std"))
    assert not differ(before, after)


@for_each_algorithm
def test_nothing_to_learn(case: Case) -> None:
    model = case.make(ControlEnv())
    model.policy.requires_grad_(False)
    with pytest.raises(ValueError, match="nothing of the policy requires a gradient"):
        model.learn(72)


@for_each_algorithm
def test_learn_std_is_true_or_false(case: Case) -> None:
    for learn_std in (np.bool_(True), np.bool_(False)):
        model = case.make(ControlEnv(), policy_kwargs=dict(learn_std=learn_std))
        assert model.policy.log_std.requires_grad is bool(learn_std)
    with pytest.raises(ValueError, match="learn_std is 'no', but must be True or False"):
        case.make(ControlEnv(), policy_kwargs=dict(learn_std="no"))


@for_each_algorithm
def test_own_subclass_of_a_policy(case: Case, tmp_path: Any) -> None:
    class Mine(case.algorithm.policy_aliases["MlpPolicy"]):  # type: ignore[name-defined]
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **{**kwargs, "net_arch": [3]})

    model = case.make(ControlEnv(), Mine).learn(24)
    other = case.make(ControlEnv(), policy_kwargs=dict(net_arch=[3]))
    assert type(model.policy) is Mine and model.policy.state_dict().keys() == other.policy.state_dict().keys()
    assert [p.shape for p in model.policy.parameters()] == [p.shape for p in other.policy.parameters()]
    model.save(tmp_path / "model")
    loaded = case.algorithm.load(tmp_path / "model")
    assert_same_parameters(parameters_of(model), parameters_of(loaded))


@for_each_algorithm
def test_other_policies_are_refused(case: Case) -> None:
    with pytest.raises(ValueError, match="policy is 'NoSuchPolicy', but allowed are .*'MlpPolicy'"):
        case.make(ControlEnv(), "NoSuchPolicy")
    for policy in (ActorCriticPolicy, BasePolicy, PPO, int):
        with pytest.raises(ValueError, match=rf"policy is .*{policy.__name__}, but must be a subclass of sb3_pois\."):
            case.make(ControlEnv(), policy)


@for_each_algorithm
@pytest.mark.parametrize("keyword", ["learning_rate", "use_sde", "sde_sample_freq", "ent_coef", "n_steps"])
def test_keywords_that_do_not_exist(case: Case, keyword: str) -> None:
    with pytest.raises(TypeError, match=f"unexpected keyword argument '{keyword}'"):
        case.algorithm("MlpPolicy", ControlEnv(), **{keyword: 1})


@for_each_algorithm
def test_options_of_other_algorithms_do_not_exist(case: Case) -> None:
    own = {name for name, *_ in case.options + case.neutral_options}
    others = {name for other in CASES.values() for name, *_ in other.options + other.neutral_options} - own
    assert others
    for name in others:
        with pytest.raises(TypeError, match=f"unexpected keyword argument '{name}'"):
            case.algorithm("MlpPolicy", ControlEnv(), **{name: 1})


@for_each_algorithm
@pytest.mark.parametrize("keyword", ["use_sde", "squash_output", "share_features_extractor", "optimizer_class", "ortho_init"])
def test_policy_keywords_that_do_not_exist(case: Case, keyword: str) -> None:
    with pytest.raises(TypeError, match=keyword):
        case.make(ControlEnv(), policy_kwargs={keyword: True})


@for_each_algorithm
def test_policy_kwargs_are_not_changed(case: Case) -> None:
    policy_kwargs: dict[str, Any] = dict(net_arch=dict(pi=[4]))
    case.make(ControlEnv(), policy_kwargs=policy_kwargs).learn(24)
    assert policy_kwargs == dict(net_arch=dict(pi=[4]))


@for_each_algorithm
def test_linear_policy_is_linear(case: Case) -> None:
    model = case.make(AnySpacesEnv(spaces.Box(-9, 9, (3,)), spaces.Box(-99, 99, (2,), np.float32)), "LinearPolicy").learn(48)
    observation = np.array([0.3, -0.1, 0.7], dtype=np.float32)
    one, two = (model.predict(observation * scale, deterministic=True)[0] for scale in (1.0, 2.0))
    np.testing.assert_allclose(2.0 * one, two, rtol=1e-5)
    assert abs(one).max() > 0.0

    with_bias = case.make(ControlEnv(), "LinearPolicy", policy_kwargs=dict(with_bias=True))
    assert sum(p.numel() for p in with_bias.policy.parameters()) > sum(
        p.numel() for p in case.make(ControlEnv(), "LinearPolicy").policy.parameters()
    )


@for_each_algorithm
def test_there_is_no_critic(case: Case) -> None:
    for name in parameters_of(case.make(ControlEnv())):
        assert "value" not in name and "critic" not in name


@for_each_algorithm
def test_buffer_holds_arrays_and_no_graph(case: Case) -> None:
    buffer = collect(case.make(ControlEnv()))
    for name in ("observations", "actions", "rewards", "episode_lengths"):
        assert isinstance(getattr(buffer, name), np.ndarray)
    assert not any(isinstance(value, th.Tensor) for value in vars(buffer).values())


@for_each_algorithm_with_modules
def test_noisy_extractor_learns(case: Case) -> None:
    with pytest.warns(UserWarning, match="evaluation mode"):
        model = case.make(ControlEnv(), policy_kwargs=dict(features_extractor_class=NoisyExtractor))
    before = parameters_of(model)
    model.learn(48)
    assert differ(before, parameters_of(model))
