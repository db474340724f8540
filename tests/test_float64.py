"""float64 where float32 would falsify the importance weights, and only there."""

import warnings
from typing import Any

import numpy as np
import pytest
import torch as th
from gymnasium import spaces
from stable_baselines3.common.torch_layers import BaseFeaturesExtractor

from sb3_pois import APOIS
from sb3_pois.apois import surrogate as surrogate_module
from sb3_pois.apois.policies import CnnPolicy, MlpPolicy, MultiInputPolicy
from sb3_pois.apois.surrogate import DirectSurrogate, PerDecisionSurrogate
from sb3_pois.common.bounds import Objective
from sb3_pois.common.buffers import EpisodeRolloutBuffer
from sb3_pois.common.episodes import EpisodeLayout
from sb3_pois.common.gains import gains_of_rewards
from sb3_pois.common.parameters import ParameterVector
from tests.helpers.envs import AnySpacesEnv, ControlEnv
from tests.registry import assert_same_parameters, parameters_of

OBSERVATION_SPACE = spaces.Box(-5, 5, (3,))
ACTION_SPACE = spaces.Box(-1, 1, (1,))
OBJECTIVE = Objective("max-d2", "none", 0.4)


def make_batch(policy: MlpPolicy, lengths: list[int], seed: int = 0) -> EpisodeRolloutBuffer:
    """A batch with random states, and actions as the policy draws them."""
    rng = np.random.default_rng(seed)
    buffer = EpisodeRolloutBuffer(policy.observation_space, policy.action_space)
    buffer.episode_lengths = np.array(lengths)
    policy.observation_space.seed(seed)
    if policy.observation_space == OBSERVATION_SPACE:
        buffer.observations = rng.standard_normal((sum(lengths), 3)).astype(np.float32)
    else:
        samples = [policy.observation_space.sample() for _ in range(sum(lengths))]
        is_dict = isinstance(samples[0], dict)
        buffer.observations = {k: np.stack([s[k] for s in samples]) for k in samples[0]} if is_dict else np.stack(samples)
    params = policy.array_forward()(buffer.observations)
    buffer.actions = policy.distribution.sample(params, policy.distribution.draw_noise(rng, (sum(lengths),)))
    buffer.rewards = buffer.original_rewards = rng.standard_normal(sum(lengths)).astype(np.float32)
    return buffer


def make_policy(log_std: float, gain: float = 1.0) -> MlpPolicy:
    """A policy with means of about .01 times the gain."""
    th.manual_seed(0)
    policy = MlpPolicy(OBSERVATION_SPACE, ACTION_SPACE, log_std_init=log_std)
    with th.no_grad():
        policy.action_net.weight *= gain
    return policy


def make_surrogate(policy: MlpPolicy, lengths: list[int], max_chunk_steps: int = 20_000) -> DirectSurrogate:
    buffer = make_batch(policy, lengths)
    return DirectSurrogate(policy, buffer, th.as_tensor(buffer.episode_returns()), OBJECTIVE, max_chunk_steps)


def a_target(policy: MlpPolicy, n_steps: int) -> th.Tensor:
    """A target whose log weights are of order 1: the output layer moves by a standard deviation over the root of the steps."""
    parameters = ParameterVector(policy)
    theta, std = parameters.get(), float(policy.log_std.detach().exp())
    shift = th.zeros_like(theta)
    named = parameters.split(shift)
    named["action_net.weight"].copy_(th.randn(1, 64, generator=th.Generator().manual_seed(1)) / 8.0)
    return theta + std / n_steps**0.5 * shift


def log_weights_by_hand(policy: MlpPolicy, buffer: EpisodeRolloutBuffer, theta: th.Tensor) -> np.ndarray:
    """In numpy and float64 from beginning to end."""

    def log_prob(vector: th.Tensor) -> np.ndarray:
        named = {name: value.numpy().astype(np.float64) for name, value in ParameterVector(policy).split(vector).items()}
        hidden = np.asarray(buffer.observations, dtype=np.float64)
        for layer in ("mlp.0", "mlp.2"):
            hidden = np.tanh(hidden @ named[f"{layer}.weight"].T + named[f"{layer}.bias"])
        mean = hidden @ named["action_net.weight"].T + named["action_net.bias"]
        standardized = (buffer.actions - mean) / np.exp(named["log_std"])
        return -0.5 * (standardized**2).sum(1) - named["log_std"].sum()

    return np.add.reduceat(log_prob(theta) - log_prob(ParameterVector(policy).get()), buffer.episode_starts)


@pytest.mark.parametrize("log_std, error_of_float32", [(-6.0, 2e-5), (np.log(1e-6), 0.05)])
def test_log_weights_of_small_standard_deviations(
    log_std: float, error_of_float32: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    policy = make_policy(log_std)
    lengths = [50_000, 50_000]
    theta = a_target(policy, 50_000)
    surrogate = make_surrogate(policy, lengths)
    expected = log_weights_by_hand(policy, surrogate.buffer, theta)
    assert surrogate.in_float64 and 0.01 < np.abs(expected).max() < 10.0
    np.testing.assert_allclose(surrogate.terms(theta, False).log_weights[:, 0], expected, rtol=0, atol=1e-7)

    monkeypatch.setattr(surrogate_module, "MAX_ROUNDING_ERROR", np.inf)
    surrogate = make_surrogate(policy, lengths)
    error = np.abs(surrogate.terms(theta, False).log_weights[:, 0].numpy() - expected)
    assert not surrogate.in_float64 and error.max() > error_of_float32


@pytest.mark.parametrize("log_std", [0.0, -3.0, -9.0])
def test_the_error_of_float32_is_the_expected_one(log_std: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its root mean square over fifty episodes, at targets whose own rounding has nothing to do with the behavioral one's."""
    monkeypatch.setattr(surrogate_module, "MAX_ROUNDING_ERROR", np.inf)
    policy = make_policy(log_std, gain=100.0)
    surrogate = make_surrogate(policy, [400] * 50)
    theta = a_target(policy, 400)
    errors = surrogate.terms(theta, False).log_weights[:, 0].numpy() - log_weights_by_hand(policy, surrogate.buffer, theta)
    assert 1.0 / 3.0 < np.sqrt(np.mean(errors**2)) / surrogate.rounding_error() < 3.0


def test_ordinary_batches_stay_in_float32() -> None:
    for log_std, gain, needs_float64 in ((0.0, 100.0, False), (-1.0, 100.0, False), (-6.0, 1.0, False), (-12.0, 1.0, True)):
        assert make_surrogate(make_policy(log_std, gain), [500] * 20).in_float64 is needs_float64


def test_weights_that_forget_sum_fewer_steps() -> None:
    policy = make_policy(0.0)
    buffer = make_batch(policy, [300, 200])
    layout = EpisodeLayout(th.as_tensor(buffer.episode_lengths))
    gains = gains_of_rewards(th.as_tensor(buffer.rewards).double(), layout, 1.0, True, True)
    for iw_lambda, expected in ((1.0, 300.0), (0.9, sum(0.81**t for t in range(300))), (0.0, 1.0)):
        surrogate = PerDecisionSurrogate(policy, buffer, gains, Objective("J", "sn", 1.0), iw_lambda, 1000)
        assert surrogate.n_summed_steps == pytest.approx(expected)


@pytest.mark.parametrize("max_chunk_steps", [7, 1000])
def test_every_weight_is_exactly_one_at_the_behavioral_policy(max_chunk_steps: int) -> None:
    surrogate = make_surrogate(make_policy(-12.0), [30, 50], max_chunk_steps)
    assert surrogate.in_float64
    terms = surrogate.terms(surrogate.parameters.get(), with_divergence=True)
    assert (terms.log_weights == 0.0).all() and terms.log_d2 == 0.0


@pytest.mark.parametrize("max_chunk_steps", [7, 1000])
def test_gradient_in_float64(max_chunk_steps: int) -> None:
    """Against the same policy with float64 parameters, by central differences along a direction."""
    surrogate = make_surrogate(make_policy(-12.0), [30, 50], max_chunk_steps)
    policy, theta = surrogate.policy, a_target(surrogate.policy, 80)
    _, gradient = surrogate.value_and_gradient(theta)
    direction = (a_target(policy, 80) - surrogate.parameters.get()).double()
    in_double = make_policy(-12.0).double()
    exact = DirectSurrogate(in_double, surrogate.buffer, surrogate.returns, OBJECTIVE, 1000)
    ends = [exact.value(theta.double() + sign * 1e-4 * direction) for sign in (-1.0, 1.0)]
    assert (gradient @ direction).item() == pytest.approx(((ends[1] - ends[0]) / 2e-4).item(), rel=1e-4)


IMAGES = spaces.Box(0, 255, (3, 36, 36), np.uint8)
DICTS = spaces.Dict(vector=OBSERVATION_SPACE, label=spaces.Discrete(4), picture=IMAGES)


@pytest.mark.parametrize(
    "policy_class, observation_space",
    [
        (MlpPolicy, spaces.Discrete(5)),
        (MlpPolicy, spaces.MultiBinary(4)),
        (MlpPolicy, spaces.Box(-1, 1, (2, 2), np.float64)),
        (CnnPolicy, IMAGES),
        (MultiInputPolicy, DICTS),
    ],
)
@pytest.mark.parametrize(
    "action_space", [ACTION_SPACE, spaces.Discrete(3), spaces.MultiDiscrete([2, 3]), spaces.MultiBinary(2)]
)
def test_every_policy_can_be_evaluated_in_float64(
    policy_class: Any, observation_space: spaces.Space, action_space: spaces.Space, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(surrogate_module, "MAX_ROUNDING_ERROR", -1.0)
    th.manual_seed(0)
    policy = policy_class(observation_space, action_space)
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        surrogate = make_surrogate(policy, [4, 3], 5)
    assert surrogate.in_float64
    theta = surrogate.parameters.get()
    assert (surrogate.terms(theta, True).log_weights == 0.0).all()
    target = theta + 1e-3
    in_float64 = surrogate.terms(target, True)
    monkeypatch.setattr(surrogate_module, "MAX_ROUNDING_ERROR", np.inf)
    in_float32 = make_surrogate(policy, [4, 3], 5).terms(target, True)
    th.testing.assert_close(in_float64.log_weights, in_float32.log_weights, rtol=1e-3, atol=1e-4)


class NormalizingExtractor(BaseFeaturesExtractor):
    """Has buffers, in its batch normalisation."""

    def __init__(self, observation_space: spaces.Space) -> None:
        super().__init__(observation_space, 3)
        self.layers = th.nn.Sequential(th.nn.Linear(3, 3), th.nn.BatchNorm1d(3))

    def forward(self, observations: th.Tensor) -> th.Tensor:
        return self.layers(observations)


def test_what_is_not_learned_is_in_float64_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(surrogate_module, "MAX_ROUNDING_ERROR", -1.0)
    policy = MlpPolicy(OBSERVATION_SPACE, ACTION_SPACE, learn_std=False, features_extractor_class=NormalizingExtractor)
    policy.mlp[0].requires_grad_(False)
    policy.set_training_mode(False)
    surrogate = make_surrogate(policy, [4, 3])
    params = surrogate._evaluate_policy(th.as_tensor(surrogate.buffer.observations), surrogate.parameters.get(), True)
    assert surrogate.in_float64 and [param.dtype for param in params] == [th.float64] * 2


class Float32Extractor(BaseFeaturesExtractor):
    """Insists on float32."""

    def __init__(self, observation_space: spaces.Space) -> None:
        super().__init__(observation_space, 3)
        self.linear = th.nn.Linear(3, 3)

    def forward(self, observations: th.Tensor) -> th.Tensor:
        return self.linear(observations.float())


class Float32Policy(MlpPolicy):
    """Answers in float32 whatever it is given."""

    def forward(self, observation: Any) -> Any:
        return tuple(param.float() for param in super().forward(observation))


@pytest.mark.parametrize(
    "policy, policy_kwargs, reason",
    [
        ("MlpPolicy", dict(features_extractor_class=Float32Extractor), "dtype"),
        (Float32Policy, {}, "its outputs are torch.float32"),
    ],
)
def test_policies_that_know_float32_only_go_on_working_and_it_is_said(policy: Any, policy_kwargs: Any, reason: str) -> None:
    def learn(log_std: float) -> None:
        kwargs = dict(policy_kwargs, log_std_init=log_std)
        model = APOIS(policy, ControlEnv(), n_episodes=6, seed=0, line_search_units="returns", policy_kwargs=kwargs)
        before = parameters_of(model)
        model.learn(24)
        assert any(not np.array_equal(value, before[name]) for name, value in parameters_of(model).items())

    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        learn(0.0)  # where float32 does
    with pytest.warns(UserWarning, match=f"log weights by about .* cannot be evaluated in float64 .*{reason}"):
        learn(-13.0)


@pytest.mark.parametrize("log_std", [0.0, -3.0, -9.0])
def test_the_coarse_measure_of_rounding_is_of_the_right_size(log_std: float) -> None:
    surrogate = make_surrogate(make_policy(log_std, gain=100.0), [400] * 5)
    assert 1.0 < surrogate.rounding_error(by_float64=False) / surrogate.rounding_error() < 10.0


def test_float64_leaves_ordinary_learning_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    """To the bit, where it is not needed; and beyond rounding nowhere."""
    one = APOIS("MlpPolicy", ControlEnv(), n_episodes=6, seed=0).learn(48)
    monkeypatch.setattr(DirectSurrogate, "_needs_float64", lambda self: False)
    assert_same_parameters(parameters_of(one), parameters_of(APOIS("MlpPolicy", ControlEnv(), n_episodes=6, seed=0).learn(48)))


@pytest.mark.parametrize(
    "kwargs", [dict(), dict(natural_gradient=True), dict(iw_method="per-decision", natural_gradient=True)]
)
def test_learning_with_a_tiny_standard_deviation(kwargs: dict[str, Any]) -> None:
    env = AnySpacesEnv(OBSERVATION_SPACE, ACTION_SPACE)
    policy_kwargs = dict(log_std_init=-12.0)
    model = APOIS("MlpPolicy", env, n_episodes=6, seed=0, line_search_units="returns", policy_kwargs=policy_kwargs, **kwargs)
    before = parameters_of(model)
    model.learn(24, log_interval=None)
    assert model.logger.name_to_value["train/is_line_search_success"] == 1.0
    assert all(np.isfinite(value).all() and value.dtype == np.float32 for value in parameters_of(model).values())
    assert any(not np.array_equal(value, before[name]) for name, value in parameters_of(model).items())
