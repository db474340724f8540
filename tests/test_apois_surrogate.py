"""The surrogates of APOIS: against each other, finite differences, and the definition of the weights."""

import numpy as np
import pytest
import torch as th
from gymnasium import spaces
from stable_baselines3.common.logger import configure

import sb3_pois.apois.surrogate
from sb3_pois import APOIS
from sb3_pois.apois.surrogate import DirectSurrogate, LinearGaussianSurrogate, make_surrogate, score_natural_gradient
from sb3_pois.common.bounds import Objective
from sb3_pois.common.parameters import ParameterVector
from tests.helpers.objectives import objectives
from tests.helpers.policies import Float64LinearPolicy
from tests.helpers.policy_cases import POLICY_CASES, DoubleBox

DEFAULT = Objective("max-d2", "none", 0.4)


def collect(model):
    model.set_logger(configure(None, []))
    callback = model._setup_learn(1)[1]
    assert model.collect_rollouts(model.env, callback, model.rollout_buffer)
    return model


def trained(policy="LinearPolicy", env=None, n_episodes=12, **kwargs):
    return collect(APOIS(policy, env or DoubleBox(), **{**APOIS.PAPER, "n_episodes": n_episodes, "seed": 3, **kwargs}))


def returns_of(model):
    return th.as_tensor(model.rollout_buffer.episode_returns())


@pytest.mark.parametrize("with_bias", [False, True])
@pytest.mark.parametrize("objective", objectives(), ids=str)
def test_horizon_free_surrogate_is_the_direct_one(objective, with_bias):
    model = trained(Float64LinearPolicy, policy_kwargs={"with_bias": with_bias, "log_std_init": -0.3})
    arguments = (model.policy, model.rollout_buffer, returns_of(model), objective)
    linear, direct = LinearGaussianSurrogate(*arguments), DirectSurrogate(*arguments, max_chunk_steps=10)
    behavioral = linear.parameters.get()
    generator = th.Generator().manual_seed(0)
    for scale in (0.0, 1e-3, 0.05, 0.3):
        theta = behavioral + scale * th.randn(len(behavioral), generator=generator, dtype=th.float64)
        value, gradient = linear.value_and_gradient(theta)
        direct_value, direct_gradient = direct.value_and_gradient(theta)
        if not th.isfinite(direct_value):
            assert th.equal(value, direct_value)
            continue
        tolerance = 1e-10 * (1.0 + abs(direct_value.item()))
        assert value.item() == pytest.approx(direct_value.item(), abs=tolerance)
        th.testing.assert_close(gradient, direct_gradient, rtol=1e-9, atol=1e-10 * (1 + direct_gradient.abs().max().item()))


@pytest.mark.parametrize("frozen", ["log_std", "action_net.weight"])
def test_horizon_free_surrogate_with_frozen_parameters(frozen):
    model = trained()
    arguments = (model.policy, model.rollout_buffer, returns_of(model), DEFAULT)
    everything = LinearGaussianSurrogate(*arguments)
    model.policy.get_parameter(frozen).requires_grad_(False)
    some = make_surrogate(*arguments, max_chunk_steps=100)
    assert isinstance(some, LinearGaussianSurrogate)
    value, gradient = everything.value_and_gradient(everything.parameters.get())
    some_value, some_gradient = some.value_and_gradient(some.parameters.get())
    expected = everything.parameters.split(gradient)
    del expected[frozen]
    assert th.equal(some_value, value)
    th.testing.assert_close(some_gradient, th.cat([part.flatten().double() for part in expected.values()]))


@pytest.mark.parametrize("policy", ["LinearPolicy", "MlpPolicy"])
def test_chunks_change_nothing(policy):
    model = trained(policy)
    arguments = (model.policy, model.rollout_buffer, returns_of(model), DEFAULT)
    whole, chunked = DirectSurrogate(*arguments, max_chunk_steps=10**6), DirectSurrogate(*arguments, max_chunk_steps=7)
    assert len(whole.chunks) == 1 and len(chunked.chunks) > 3
    theta = whole.parameters.get()
    theta = theta + 0.02 * th.randn(len(theta), generator=th.Generator().manual_seed(0))
    (value, gradient), (chunked_value, chunked_gradient) = whole.value_and_gradient(theta), chunked.value_and_gradient(theta)
    th.testing.assert_close(chunked_value, value, rtol=1e-6, atol=1e-6)
    th.testing.assert_close(chunked_gradient, gradient, rtol=1e-4, atol=1e-4)
    th.testing.assert_close(chunked.value(theta), chunked_value)


@pytest.mark.parametrize("objective", objectives(), ids=str)
def test_gradient_against_finite_differences(objective):
    model = trained(Float64LinearPolicy)
    surrogate = LinearGaussianSurrogate(model.policy, model.rollout_buffer, returns_of(model), objective)
    theta = surrogate.parameters.get() + 0.02
    _, gradient = surrogate.value_and_gradient(theta)
    for i in range(len(theta)):
        step = th.zeros_like(theta)
        step[i] = 1e-6
        difference = (surrogate.value(theta + step) - surrogate.value(theta - step)).item() / 2e-6
        assert gradient[i].item() == pytest.approx(difference, rel=1e-5, abs=1e-6)


def test_log_weights_by_their_definition():
    model = trained("MlpPolicy")
    surrogate = DirectSurrogate(model.policy, model.rollout_buffer, returns_of(model), Objective("J", "none", 0.4), 20)
    behavioral = surrogate.parameters.get()
    theta = behavioral + 0.05 * th.randn(len(behavioral), generator=th.Generator().manual_seed(0))
    log_weights = surrogate.terms(theta, False).log_weights[:, 0].detach()

    def episode_log_prob(parameters):
        ParameterVector(model.policy).set(parameters)
        buffer = model.rollout_buffer
        with th.no_grad():
            mean, log_std = model.policy(th.as_tensor(buffer.observations))
            log_prob = th.distributions.Normal(mean, log_std.exp()).log_prob(th.as_tensor(buffer.actions)).sum(-1)
        return th.stack([part.double().sum() for part in th.split(log_prob, buffer.episode_lengths.tolist())])

    expected = episode_log_prob(theta) - episode_log_prob(behavioral)
    th.testing.assert_close(log_weights, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", list(POLICY_CASES))
def test_every_weight_is_one_at_the_behavioral_policy(name):
    policy, make_env, policy_kwargs = POLICY_CASES[name]
    model = trained(policy, make_env(), n_episodes=3, horizon=20, policy_kwargs=policy_kwargs)
    surrogate = make_surrogate(model.policy, model.rollout_buffer, returns_of(model), DEFAULT, 16)
    terms = surrogate.terms(surrogate.parameters.get(), with_divergence=True)
    assert terms.log_weights.abs().max().item() <= 1e-6 and terms.log_d2 is not None
    assert terms.log_d2.abs().item() <= 1e-6


@pytest.mark.parametrize("name", ["linear", "mlp", "relu", "discrete"])
def test_array_snapshot_acts_as_the_network(name):
    policy, make_env, policy_kwargs = POLICY_CASES[name]
    model = APOIS(policy, make_env(), policy_kwargs=policy_kwargs, seed=0)
    observations = np.random.default_rng(0).normal(size=(50, 2)).astype(np.float32)
    noise = model.policy.distribution.draw_noise(np.random.default_rng(1), (50,))
    fast = model.policy.array_forward()(observations)
    with th.no_grad():
        general = tuple(params.numpy() for params in model.policy(th.as_tensor(observations)))
    for mine, theirs in zip(fast, general, strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=1e-5, atol=1e-6)
    sample = model.policy.distribution.sample
    np.testing.assert_allclose(sample(fast, noise), sample(general, noise), rtol=1e-5, atol=1e-5)


def test_snapshot_does_not_follow_the_policy():
    model = APOIS("MlpPolicy", DoubleBox(), seed=0)
    forward, observations = model.policy.array_forward(), np.ones((1, 2), dtype=np.float32)
    before = forward(observations)[0].copy()
    ParameterVector(model.policy).set(ParameterVector(model.policy).get() + 1.0)
    np.testing.assert_array_equal(forward(observations)[0], before)


def test_evaluating_a_target_leaves_the_policy_alone():
    model = trained("MlpPolicy")
    parameters = ParameterVector(model.policy)
    before = parameters.get()
    surrogate = make_surrogate(model.policy, model.rollout_buffer, returns_of(model), DEFAULT, 16)
    surrogate.value_and_gradient(before + 0.1)
    assert th.equal(parameters.get(), before)


def test_choice_of_surrogate():
    assert isinstance(_surrogate_of(trained("LinearPolicy")), LinearGaussianSurrogate)
    assert isinstance(_surrogate_of(trained("MlpPolicy", policy_kwargs={"net_arch": []})), LinearGaussianSurrogate)
    assert isinstance(_surrogate_of(trained("MlpPolicy")), DirectSurrogate)
    assert isinstance(_surrogate_of(trained("LinearPolicy", DoubleBox(action_space=spaces.Discrete(2)))), DirectSurrogate)


def _surrogate_of(model):
    return make_surrogate(model.policy, model.rollout_buffer, returns_of(model), DEFAULT, 100)


def a_target(surrogate, scale=0.02):
    theta = surrogate.parameters.get()
    return theta + scale * th.randn(len(theta), generator=th.Generator().manual_seed(0), dtype=theta.dtype)


def scores_of(surrogate, theta):
    return th.stack(list(surrogate.scores(theta)))


@pytest.mark.parametrize("frozen", [None, "log_std", "action_net.bias"])
@pytest.mark.parametrize("surrogate_class", [LinearGaussianSurrogate, DirectSurrogate])
def test_scores_are_the_gradients_of_the_log_weights(surrogate_class, frozen):
    model = trained(Float64LinearPolicy, policy_kwargs={"with_bias": True, "log_std_init": -0.3})
    if frozen is not None:
        model.policy.get_parameter(frozen).requires_grad_(False)
    # episodes of two to eight steps: chunks of three cut them
    kwargs = {"max_chunk_steps": 3} if surrogate_class is DirectSurrogate else {}
    surrogate = surrogate_class(model.policy, model.rollout_buffer, returns_of(model), DEFAULT, **kwargs)
    theta = a_target(surrogate, 0.3)
    expected = th.autograd.functional.jacobian(lambda t: surrogate.terms(t, False).log_weights[:, 0], theta)
    th.testing.assert_close(scores_of(surrogate, theta), expected, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("name", list(POLICY_CASES))
def test_scores_of_every_policy(name):
    policy, make_env, policy_kwargs = POLICY_CASES[name]
    model = trained(policy, make_env(), n_episodes=3, horizon=20, policy_kwargs=policy_kwargs)
    surrogate = make_surrogate(model.policy, model.rollout_buffer, returns_of(model), DEFAULT, 16)
    theta = surrogate.parameters.get()
    # at the behavioral policy the plain estimate's gradient is the mean of return times score
    returns = returns_of(model) - returns_of(model).mean()
    surrogate = make_surrogate(model.policy, model.rollout_buffer, returns, Objective("J", "none", 0.4), 16)
    _, gradient = surrogate.value_and_gradient(theta)
    expected = returns @ scores_of(surrogate, theta) / 3
    th.testing.assert_close(gradient, expected, rtol=1e-3, atol=1e-5 * (1.0 + expected.abs().max().item()))


@pytest.mark.parametrize("is_kept", [True, False], ids=["exact", "by products"])
@pytest.mark.parametrize("n_episodes", [8, 40])
def test_natural_gradient_solves_the_fisher_system(n_episodes, is_kept, monkeypatch):
    model = trained("MlpPolicy", n_episodes=n_episodes, policy_kwargs={"net_arch": [4]})
    surrogate = DirectSurrogate(model.policy, model.rollout_buffer, returns_of(model), DEFAULT, 15)
    theta = a_target(surrogate, 0.1)
    assert 8 < len(theta) < 40
    if not is_kept:
        monkeypatch.setattr(sb3_pois.apois.surrogate, "MAX_SCORES", n_episodes * len(theta) - 1)
    scores = scores_of(surrogate, theta)
    weights = th.softmax(surrogate.terms(theta, False).log_weights[:, 0].detach(), 0)
    fisher = scores.T @ (weights[:, None] * scores)
    damped = fisher + 0.5 * fisher.diagonal().mean() * th.eye(len(theta), dtype=th.float64)
    _, gradient = surrogate.value_and_gradient(theta)
    direction = score_natural_gradient(surrogate, damping=0.5)(theta, gradient)
    tolerance = 1e-9 if is_kept else 1e-3
    assert (damped @ direction - gradient).norm().item() <= tolerance * gradient.norm().item()
    assert (direction @ gradient).item() > 0.0


@pytest.mark.skipif(not th.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("policy", ["LinearPolicy", "MlpPolicy"])
def test_gpu_gives_the_same_surrogate(policy):
    model = trained(policy)
    on_cpu = _surrogate_of(model)
    theta = on_cpu.parameters.get() + 0.01
    value, gradient = on_cpu.value_and_gradient(theta)
    model.policy.to("cuda")
    on_gpu = make_surrogate(model.policy, model.rollout_buffer, returns_of(model).cuda(), DEFAULT, 100)
    gpu_value, gpu_gradient = on_gpu.value_and_gradient(theta.cuda())
    th.testing.assert_close(gpu_value.cpu(), value, rtol=1e-4, atol=1e-4)
    th.testing.assert_close(gpu_gradient.cpu(), gradient, rtol=1e-3, atol=1e-4)
