"""Per-decision estimates: hand-computed values, plain loops, sampling, and what their gradient is at the behavioral policy."""

import math
from typing import Any

import numpy as np
import pytest
import torch as th
from gymnasium import spaces

from sb3_pois import APOIS
from sb3_pois.apois.baselines import fit_values, linear_features, time_features
from sb3_pois.apois.surrogate import PerDecisionSurrogate
from sb3_pois.common.bounds import Objective, Terms
from sb3_pois.common.episodes import EpisodeLayout
from sb3_pois.common.estimators import per_decision_estimate
from sb3_pois.common.gains import StepGains, gains_of_rewards, gains_over_baseline
from tests.helpers.objectives import objectives
from tests.helpers.policies import Float64LinearPolicy
from tests.helpers.policy_cases import POLICY_CASES, DoubleBox
from tests.registry import assert_same_parameters, collect, log_of, parameters_of


def double(values):
    return th.tensor(values, dtype=th.float64)


def layout_of(*lengths):
    return EpisodeLayout(th.tensor(lengths))


def plain_and_normalized(gains: StepGains, log_weights):
    arguments = (log_weights, gains.of_steps, gains.after_end, gains.layout)
    return [per_decision_estimate(*arguments, normalized).item() + gains.constant for normalized in (False, True)]


# Two episodes: log ratios .2, -.1 and -.3, .4; rewards 1, 2 and 3, 4; gamma .5. Or the second one a single step long.
EVEN = (layout_of(2, 2), double([0.2, -0.1, -0.3, 0.4]), double([1.0, 2.0, 3.0, 4.0]), double([2.0, 1.0, 4.0, 3.0]))
UNEVEN = (layout_of(2, 1), double([0.2, -0.1, -0.3]), double([1.0, 2.0, 3.0]), double([2.0, 1.0, 4.0]))


@pytest.mark.parametrize(
    ("case", "as_they_are", "centered", "over_baseline"),
    [
        (EVEN, (3.3796851, 3.2550813), (-0.2402923, -0.2449187), (3.4324393, 3.3775407)),
        (UNEVEN, (2.2745142, 2.3537690), (-0.1492041, -0.1462310), (2.6005329, 2.6105735)),
    ],
)
def test_estimates_computed_by_hand(case, as_they_are, centered, over_baseline):
    layout, log_ratios, rewards, values = case
    log_weights = layout.decayed_sums(log_ratios, 1.0)
    gains = gains_of_rewards(rewards, layout, 0.5, discounted=True, centered=False)
    assert plain_and_normalized(gains, log_weights) == pytest.approx(as_they_are, abs=1e-7)
    gains = gains_of_rewards(rewards, layout, 0.5, discounted=True, centered=True)
    assert plain_and_normalized(gains, log_weights) == pytest.approx(centered, abs=1e-7)
    gains = gains_over_baseline(rewards, values, layout, 0.5, discounted=True, centered=False)
    assert plain_and_normalized(gains, log_weights) == pytest.approx(over_baseline, abs=1e-7)


def test_baseline_changes_nothing_where_all_weights_are_one():
    layout, log_ratios, rewards, values = EVEN
    gains = gains_over_baseline(rewards, values, layout, 0.5, discounted=True, centered=False)
    assert plain_and_normalized(gains, 0.0 * log_ratios) == pytest.approx((3.5, 3.5), abs=1e-12)


def test_weights_that_forget_computed_by_hand():
    layout, log_ratios, rewards, _ = EVEN
    log_weights = layout.decayed_sums(log_ratios, 0.5)
    th.testing.assert_close(log_weights, double([0.2, 0.0, -0.3, 0.25]))
    gains = gains_of_rewards(rewards, layout, 0.5, discounted=True, centered=False)
    assert plain_and_normalized(gains, log_weights)[0] == pytest.approx(3.5059541, abs=1e-7)


def test_penalty_of_the_largest_reward_computed_by_hand():
    layout, _, rewards, _ = EVEN
    gains = gains_of_rewards(rewards, layout, 0.5, discounted=True, centered=False)
    second_moment = gains.second_moment(double([0.1, 0.2, 0.3, 0.05]))
    assert second_moment.item() == pytest.approx(16.0 * (2.0 * 1.2275149 + 0.25 * 1.3844632), rel=1e-7)
    terms = Terms(log_weights=th.zeros(4, dtype=th.float64), log_d2=double(0.3), second_moment=second_moment)
    penalty = Objective("max-d2", "none", 0.4).penalty(gains.of_episodes, terms)
    assert penalty.item() == pytest.approx(5.7977363, abs=1e-6)


# Plain loops

LENGTHS = (7, 1, 12, 4)


def random_steps(seed=0):
    generator = th.Generator().manual_seed(seed)
    layout = layout_of(*LENGTHS)
    return layout, *(0.3 * th.randn(layout.n_steps, generator=generator, dtype=th.float64) for _ in range(3))


@pytest.mark.parametrize("decay", [0.0, 0.5, 0.97, 1.0])
def test_recursions_against_loops(decay):
    layout, values, _, _ = random_steps()
    forward, backward = [], []
    for episode in values.split(LENGTHS):
        sums = [0.0]
        for value in episode.tolist():
            sums.append(value + decay * sums[-1])
        forward += sums[1:]
        sums = [0.0]
        for value in reversed(episode.tolist()):
            sums.append(value + decay * sums[-1])
        backward += sums[:0:-1]
    np.testing.assert_allclose(layout.decayed_sums(values, decay), forward, rtol=0, atol=1e-14)
    np.testing.assert_allclose(layout.returns_to_go(values, decay), backward, rtol=0, atol=1e-14)


def test_forgetting_ends_at_ratios_of_one_step():
    layout, log_ratios, _, _ = random_steps()
    assert th.equal(layout.decayed_sums(log_ratios, 0.0), log_ratios)


@pytest.mark.parametrize("centered", [False, True])
@pytest.mark.parametrize("gamma", [0.8, 1.0])
def test_estimates_against_loops(gamma, centered):
    layout, log_ratios, rewards, _ = random_steps()
    gains = gains_of_rewards(rewards, layout, gamma, discounted=True, centered=centered)
    n_episodes, horizon = len(LENGTHS), max(LENGTHS)
    padded_rewards, padded_weights = np.zeros((n_episodes, horizon)), np.zeros((n_episodes, horizon))
    for i, (own_rewards, own_ratios) in enumerate(zip(rewards.split(LENGTHS), log_ratios.split(LENGTHS), strict=True)):
        padded_rewards[i, : LENGTHS[i]] = own_rewards
        padded_weights[i] = np.exp(own_ratios.sum())
        padded_weights[i, : LENGTHS[i]] = np.exp(np.cumsum(own_ratios))
    if centered:
        padded_rewards = padded_rewards - padded_rewards.mean(0)
    discounts = gamma ** np.arange(horizon)
    plain = (padded_weights * padded_rewards * discounts).sum() / n_episodes
    normalized = (padded_weights / padded_weights.sum(0) * padded_rewards * discounts).sum()
    log_weights = layout.decayed_sums(log_ratios, 1.0)
    assert plain_and_normalized(gains, log_weights) == pytest.approx((plain, normalized), abs=1e-12)
    np.testing.assert_allclose(gains.of_episodes, (padded_rewards * discounts).sum(1), atol=1e-12)


# Sampling: two tasks of several steps whose episodes differ in length


def walk(rng, n_episodes, target_shift, horizon, ends):
    """
    A walk s' = s + a, a ~ N(-s / 2, 1), rewarded with -s'^2; the target's actions are shifted.

    :return: per episode the log ratios, rewards, and states before each step
    """
    for _ in range(n_episodes):
        state, log_ratios, rewards, states = 0.0, [], [], []
        for _ in range(horizon):
            mean = -0.5 * state
            action = rng.normal(mean, 1.0)
            log_ratios.append(0.5 * ((action - mean) ** 2 - (action - mean - target_shift) ** 2))
            states.append(state)
            state += action
            rewards.append(-(state**2))
            if ends(state):
                break
        yield log_ratios, rewards, states


TASKS = {
    "a walk that leaves an interval": (6, lambda state: abs(state) > 1.5),
    "a walk that ends on one side": (10, lambda state: state > 1.0),
}


@pytest.mark.parametrize("task", TASKS)
def test_mean_does_not_depend_on_the_baseline_and_is_that_of_the_target(task):
    horizon, ends = TASKS[task]
    gamma, shift, n_batches, n_episodes = 0.9, 0.15, 3000, 4
    rng = np.random.default_rng(1)
    estimates = np.zeros((n_batches, 3))
    for batch in range(n_batches):
        log_ratios, rewards, states = zip(*walk(rng, n_episodes, shift, horizon, ends), strict=True)
        layout = layout_of(*map(len, rewards))
        log_weights = layout.decayed_sums(double(np.concatenate(log_ratios)), 1.0)
        all_rewards, all_states = double(np.concatenate(rewards)), double(np.concatenate(states))
        choices = [gains_of_rewards(all_rewards, layout, gamma, discounted=True, centered=False)]
        for values in (-1.0 - 2.0 * all_states**2, 5.0 + all_states - layout.step_index):
            choices.append(gains_over_baseline(all_rewards, values, layout, gamma, discounted=True, centered=False))
        estimates[batch] = [plain_and_normalized(gains, log_weights)[0] for gains in choices]
    on_target = []
    for _ in range(30_000):
        state, discounted = 0.0, 0.0
        for step in range(horizon):
            state += rng.normal(-0.5 * state + shift, 1.0)
            discounted -= gamma**step * state**2
            if ends(state):
                break
        on_target.append(discounted)
    for column in range(3):
        error = math.hypot(estimates[:, column].std() / math.sqrt(n_batches), np.std(on_target) / math.sqrt(len(on_target)))
        assert abs(estimates[:, column].mean() - np.mean(on_target)) <= 3.0 * error
    for column in (1, 2):
        difference = estimates[:, column] - estimates[:, 0]
        assert abs(difference.mean()) <= 3.0 * difference.std() / math.sqrt(n_batches)


# Baselines


def a_batch(policy="MlpPolicy", env=None, n_episodes=12, **kwargs):
    model = APOIS(policy, env or DoubleBox(), seed=3, **{**PER_DECISION, "n_episodes": n_episodes, **kwargs})
    collect(model)
    return model, EpisodeLayout(th.as_tensor(model.rollout_buffer.episode_lengths))


def test_linear_baseline_fits_what_is_linear_in_its_features():
    model, layout = a_batch(n_episodes=40)
    obs = double(model.rollout_buffer.observations)
    step = layout.step_index.double()
    linear = 3.0 + obs[:, 0] - 2.0 * obs[:, 1] ** 2 + 0.4 * step - 0.05 * step**2
    of_time = 3.0 + 0.4 * step
    is_odd = layout.episode_index % 2 == 1
    for features, target in ((linear_features(model.rollout_buffer, layout), linear), (time_features(layout), of_time)):
        values = fit_values(features, target, layout, max_chunk_steps=17)
        for half in (is_odd, ~is_odd):
            within = target[half].clamp(target[~half].min(), target[~half].max())
            th.testing.assert_close(values[half], within, rtol=0, atol=2e-3)


def test_baseline_of_an_episode_does_not_depend_on_it():
    model, layout = a_batch()
    features = linear_features(model.rollout_buffer, layout)
    rewards = double(model.rollout_buffer.rewards)
    changed = th.where(layout.episode_index == 4, rewards + 100.0, rewards)
    before, after = (
        fit_values(features, layout.returns_to_go(given, 0.9), layout, max_chunk_steps=10**6) for given in (rewards, changed)
    )
    is_even = layout.episode_index % 2 == 0
    assert th.equal(before[is_even], after[is_even])
    assert not th.equal(before[~is_even], after[~is_even])


def test_baseline_does_not_extrapolate_beyond_what_was_earned():
    layout = layout_of(20, 300, 20, 20)
    rewards = th.ones(layout.n_steps, dtype=th.float64)
    values = fit_values(time_features(layout), layout.returns_to_go(rewards, 1.0), layout, 10**6)
    is_odd = layout.episode_index % 2 == 1
    assert 1.0 <= values[is_odd].min() and values[is_odd].max() <= 20.0, "the even episodes last 20 steps"


def test_the_baseline_of_images_is_of_time_alone():
    policy, make_env, policy_kwargs = POLICY_CASES["cnn"]
    model, layout = a_batch(policy, make_env(), n_episodes=3, horizon=10, policy_kwargs=policy_kwargs)
    rows = slice(None)
    assert th.equal(linear_features(model.rollout_buffer, layout)(rows), time_features(layout)(rows))


def test_observations_are_clipped():
    model, layout = a_batch()
    model.rollout_buffer.observations *= 100.0
    vector = np.clip(model.rollout_buffer.observations.astype(np.float64), -10.0, 10.0)
    features = linear_features(model.rollout_buffer, layout)(slice(None))
    assert (np.abs(model.rollout_buffer.observations) > 10.0).any()
    np.testing.assert_allclose(features[:, : 2 * vector.shape[1]], np.hstack([vector, vector**2]))


def test_a_dict_is_the_vector_of_its_parts():
    policy, make_env, policy_kwargs = POLICY_CASES["dict"]
    model, layout = a_batch(policy, make_env(), n_episodes=3, horizon=10, policy_kwargs=policy_kwargs)
    buffer = model.rollout_buffer
    vector = np.hstack([buffer.observations[key].reshape(buffer.n_steps, -1) for key in sorted(buffer.observations)])
    vector = double(vector).clamp(-10.0, 10.0)
    expected = th.cat([vector, vector**2, time_features(layout)(slice(None))], dim=1)
    th.testing.assert_close(linear_features(buffer, layout)(slice(None)), expected)


def test_discrete_observations_are_one_hot():
    class DiscreteBox(DoubleBox):
        def _draw(self, space):
            return int(self.np_random.integers(3))

    model, layout = a_batch(env=DiscreteBox(spaces.Discrete(3)))
    features = linear_features(model.rollout_buffer, layout)(slice(None))
    assert features.shape[1] == 3 + 3 + 4
    assert (features[:, :3].sum(1) == 1.0).all()


# The surrogate

PER_DECISION: dict[str, Any] = {**APOIS.PAPER, "iw_method": "per-decision"}


def surrogate_of(model, layout, objective, iw_lambda=1.0, baseline=True, max_chunk_steps=10**6, gamma=0.9):
    rewards = double(model.rollout_buffer.rewards)
    arguments = (layout, gamma, iw_lambda == 1.0, True)
    if baseline:
        values = fit_values(linear_features(model.rollout_buffer, layout), rewards, layout, 10**6)
        gains = gains_over_baseline(rewards, values, *arguments)
    else:
        gains = gains_of_rewards(rewards, *arguments)
    return PerDecisionSurrogate(model.policy, model.rollout_buffer, gains, objective, iw_lambda, max_chunk_steps)


@pytest.mark.parametrize("iw_lambda", [1.0, 0.7])
@pytest.mark.parametrize("objective", objectives(), ids=str)
def test_gradient_against_finite_differences(objective, iw_lambda):
    model, layout = a_batch(Float64LinearPolicy)
    surrogate = surrogate_of(model, layout, objective, iw_lambda, max_chunk_steps=19)
    theta = surrogate.parameters.get() + 0.02
    value, gradient = surrogate.value_and_gradient(theta)
    assert value.item() == pytest.approx(surrogate.value(theta).item(), abs=1e-12)
    for i in range(len(theta)):
        step = th.zeros_like(theta)
        step[i] = 1e-6
        difference = (surrogate.value(theta + step) - surrogate.value(theta - step)).item() / 2e-6
        assert gradient[i].item() == pytest.approx(difference, rel=1e-5, abs=1e-6)


@pytest.mark.parametrize("objective", objectives(), ids=str)
def test_chunks_change_nothing(objective):
    model, layout = a_batch()
    whole, chunked = (surrogate_of(model, layout, objective, max_chunk_steps=n) for n in (10**6, 7))
    theta = whole.parameters.get()
    theta = theta + 0.02 * th.randn(len(theta), generator=th.Generator().manual_seed(0))
    for expected, actual in zip(whole.value_and_gradient(theta), chunked.value_and_gradient(theta), strict=True):
        th.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", list(POLICY_CASES))
@pytest.mark.parametrize("iw_lambda", [1.0, 0.9])
def test_every_weight_is_one_at_the_behavioral_policy(name, iw_lambda):
    policy, make_env, policy_kwargs = POLICY_CASES[name]
    model, layout = a_batch(policy, make_env(), n_episodes=3, horizon=20, policy_kwargs=policy_kwargs)
    surrogate = surrogate_of(model, layout, Objective("J", "sn", 0.4), iw_lambda, max_chunk_steps=16)
    terms = surrogate.terms(surrogate.parameters.get(), with_divergence=True)
    assert terms.log_weights.abs().max().item() <= 1e-6
    assert terms.log_d2 is not None and terms.log_d2.abs().item() <= 1e-6


@pytest.mark.parametrize("iw_lambda", [0.0, 0.8, 0.95])
def test_gradient_at_the_behavioral_policy_is_that_of_generalised_advantages(iw_lambda):
    """The residuals of V give GAE(lambda / gamma); with gamma^t before the terms, GAE(lambda) times gamma^t."""
    gamma = 0.9
    model, layout = a_batch(Float64LinearPolicy, n_episodes=5)
    buffer = model.rollout_buffer
    rewards, values = double(buffer.rewards), double(buffer.observations).sum(1)
    scores = th.stack([score_of_step(model.policy, buffer, row) for row in range(buffer.n_steps)])
    for discounted, decay in ((False, iw_lambda), (True, gamma * iw_lambda)):
        gains = gains_over_baseline(rewards, values, layout, gamma, discounted=discounted, centered=True)
        surrogate = PerDecisionSurrogate(model.policy, buffer, gains, Objective("J", "none", 1.0), iw_lambda, 10**6)
        _, gradient = surrogate.value_and_gradient(surrogate.parameters.get())
        advantages = np.zeros(buffer.n_steps)
        for start, length in zip(buffer.episode_starts, buffer.episode_lengths, strict=True):
            advantage = 0.0
            for row in reversed(range(start, start + length)):
                next_value = values[row + 1] if row + 1 < start + length else 0.0
                delta = rewards[row] + gamma * next_value - values[row]
                advantage = float(delta + decay * advantage)
                advantages[row] = advantage * (gamma ** (row - start) if discounted else 1.0)
        expected = (double(advantages)[:, None] * scores).sum(0) / layout.n_episodes
        th.testing.assert_close(gradient, expected, rtol=1e-9, atol=1e-10)


def score_of_step(policy, buffer, row):
    """Gradient of the log density of a step's action, in the order of the policy's parameters."""
    mean, log_std = policy(th.as_tensor(buffer.observations[row : row + 1]))
    action = th.as_tensor(buffer.actions[row : row + 1]).double()
    log_prob = th.distributions.Normal(mean, log_std.exp()).log_prob(action).sum()
    return th.cat([part.flatten() for part in th.autograd.grad(log_prob, list(policy.parameters()))])


def test_forgetting_nothing_is_per_decision_importance_sampling():
    """Against padded arrays, at a target some way off."""
    model, layout = a_batch(Float64LinearPolicy)
    surrogate = surrogate_of(model, layout, Objective("J", "sn", 1.0), baseline=False, gamma=1.0)
    theta = surrogate.parameters.get() + 0.05
    log_ratios = surrogate.step_terms(theta, surrogate.chunks[0], False).log_ratios.detach()
    lengths = layout.lengths.tolist()
    weights = np.zeros((len(lengths), layout.horizon))
    rewards = np.zeros_like(weights)
    for i, (own, own_rewards) in enumerate(
        zip(log_ratios.split(lengths), double(model.rollout_buffer.rewards).split(lengths), strict=True)
    ):
        weights[i] = np.exp(own.sum())
        weights[i, : lengths[i]] = np.exp(np.cumsum(own))
        rewards[i, : lengths[i]] = own_rewards
    expected = (weights / weights.sum(0) * (rewards - rewards.mean(0))).sum()
    assert surrogate.value(theta).item() == pytest.approx(expected, abs=1e-10)


def test_natural_gradient_is_that_of_the_steps_fisher_information():
    model, layout = a_batch(Float64LinearPolicy, n_episodes=30, policy_kwargs=dict(log_std_init=-0.3))
    surrogate = surrogate_of(model, layout, Objective("std-ess", "sn", 0.4))
    theta = surrogate.parameters.get()
    _, gradient = surrogate.value_and_gradient(theta)
    # For N(M s, diag(std^2)): E[s s^T] / std_k^2 in row k of M, and 2 in every log std
    obs = double(model.rollout_buffer.observations)
    second_moment, precision = obs.T @ obs / len(obs), math.exp(0.6)
    fisher = th.block_diag(2.0 * th.eye(2, dtype=th.float64), precision * second_moment, precision * second_moment)
    direction = surrogate.natural_direction(damping=0.5)(theta, gradient)
    # (F + d I) x = g with d half the mean of the diagonal, which is estimated from a few products
    rest = gradient - fisher @ direction
    damping = (rest @ direction / (direction @ direction)).item()
    th.testing.assert_close(rest, damping * direction, rtol=1e-4, atol=1e-5)
    assert damping == pytest.approx(0.5 * fisher.diagonal().mean().item(), rel=0.5)


# Learning


@pytest.mark.parametrize("name", list(POLICY_CASES))
@pytest.mark.parametrize("kwargs", [{}, dict(iw_lambda=0.9, bound="std-ess", natural_gradient=True)], ids=["plain", "lambda"])
def test_every_policy_and_action_space_learns_with_a_baseline(name, kwargs):
    policy, make_env, policy_kwargs = POLICY_CASES[name]
    model, _ = a_batch(policy, make_env(), n_episodes=6, horizon=12, baseline="linear", policy_kwargs=policy_kwargs, **kwargs)
    model.train()
    log = log_of(model)
    assert log["train/surrogate_improvement"] > 0.0 and np.isfinite(log["train/explained_variance"])


def test_no_accepted_target_is_below_the_least_effective_sample_size():
    for min_ess in (0.5, 0.9):
        model, layout = a_batch(delta=1.0, bound="J", min_ess=min_ess, iw_lambda=0.9)
        model.train()
        assert min_ess * layout.n_steps <= log_of(model)["train/ess"] < layout.n_steps


@pytest.mark.parametrize(("iw_lambda", "gamma"), [(1.0, 0.5), (0.9, 1.0)])
def test_discount_weights_the_steps_unless_the_weights_forget(iw_lambda, gamma):
    model, _ = a_batch(gamma=0.5, iw_lambda=iw_lambda, bound="J", center_returns=False)
    model.train()
    expected = model.rollout_buffer.episode_returns(gamma).mean()
    assert log_of(model)["train/surrogate_before"] == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize("baseline", ["none", "time", "linear"])
def test_episodes_that_all_earn_the_same_teach_nothing(baseline):
    class Constant(DoubleBox):
        def step(self, action):
            observation, _, _, truncated, info = super().step(action)
            return observation, 1.0, self.steps_left <= -20, truncated, info

    model = APOIS("MlpPolicy", Constant(), horizon=9, seed=0, **{**PER_DECISION, "n_episodes": 6, "baseline": baseline})
    collect(model)
    before = parameters_of(model)
    model.train()
    assert_same_parameters(before, parameters_of(model))
    assert log_of(model)["train/skipped_update"] == "all returns are equal"


@pytest.mark.parametrize(
    ("kwargs", "message"),
    [
        (dict(baseline="time"), "baseline is 'time', but iw_method 'trajectory' goes with 'none' only"),
        (dict(iw_lambda=0.9), "iw_lambda is 0.9, but iw_method 'trajectory' goes with 1.0 only"),
        (dict(iw_method="per-decision", iw_lambda=0.9), "weights that forget have no such bound"),
        (dict(iw_method="per-decision", iw_lambda=0.9, bound="std-d2"), "set iw_lambda to 1, or bound to 'J'"),
    ],
)
def test_combinations_that_make_no_sense(kwargs, message):
    with pytest.raises(ValueError, match=message):
        APOIS("MlpPolicy", DoubleBox(), **{**APOIS.PAPER, **kwargs})
