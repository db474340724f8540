"""Collection of whole episodes: which episodes make up a batch, and what is stored of them."""

from typing import Any

import numpy as np
import pytest
import torch as th
from gymnasium import spaces
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.monitor import Monitor
from stable_baselines3.common.vec_env import DummyVecEnv, SubprocVecEnv, VecEnvWrapper, VecFrameStack, VecMonitor, VecNormalize

from sb3_pois.common import episode_schedule
from tests.helpers.batches import assert_stacked, assert_whole, assert_whole_dicts, episodes_of, make_counting
from tests.helpers.callbacks import Recorder, StopAfter
from tests.helpers.envs import AnySpacesEnv, ControlEnv, CountingDictEnv, CountingEnv
from tests.helpers.vec_envs import MinimalVecEnv, always, in_turn, one_or_hundred
from tests.registry import Case, assert_same_parameters, collect, differ, for_each_algorithm, log_of, parameters_of


def counting_vec_env(n_envs: int, lengths: tuple[int, ...] = (2, 5, 3), **kwargs: Any) -> DummyVecEnv:
    """Environments with the marks 0, 1, ..."""
    return DummyVecEnv([make_counting(mark, lengths, **kwargs) for mark in range(n_envs)])


# Which episodes


def batch_returns(case: Case, n_envs: int, n_batches: int, seed: int = 0, **kwargs: Any) -> np.ndarray:
    """Mean return of each of many batches; episodes of 1 step have the return 0, those of 100 steps the return 1."""
    vec_env = MinimalVecEnv(n_envs, one_or_hundred(seed), last_reward=lambda lengths: lengths == 100)
    model = case.make(vec_env, "LinearPolicy", **kwargs)
    return np.array([collect(model).episode_returns().mean() for _ in range(n_batches)])


def assert_mean(values: np.ndarray, expected: float) -> None:
    """Within three standard errors."""
    standard_error = values.std(ddof=1) / np.sqrt(len(values))
    assert abs(values.mean() - expected) <= 3.0 * standard_error, f"{values.mean()} +- {standard_error}"
    assert standard_error < 0.03


@for_each_algorithm
@pytest.mark.parametrize("n_envs", [1, 8, 16, 64])
def test_short_episodes_are_not_favored(case: Case, n_envs: int) -> None:
    assert_mean(batch_returns(case, n_envs, n_batches=40, n_episodes=16), 0.5)


@pytest.mark.slow
@for_each_algorithm
@pytest.mark.parametrize("n_envs", [1, 8, 16, 64])
def test_short_episodes_are_not_favored_in_300_batches(case: Case, n_envs: int) -> None:
    assert_mean(batch_returns(case, n_envs, n_batches=300, seed=1, n_episodes=16), 0.5)


@for_each_algorithm
@pytest.mark.parametrize("n_envs", [8, 64])
def test_short_episodes_are_not_favored_with_a_horizon(case: Case, n_envs: int) -> None:
    """With a horizon of 50 a long episode is cut before its reward, with one of 100 it is not."""
    assert batch_returns(case, n_envs, n_batches=3, n_episodes=16, horizon=50).tolist() == [0.0] * 3
    assert_mean(batch_returns(case, n_envs, n_batches=40, n_episodes=16, horizon=100), 0.5)


@for_each_algorithm
@pytest.mark.parametrize("n_envs", [1, 3, 8, 64])
def test_law_of_a_budget_of_steps(case: Case, n_envs: int) -> None:
    """The batch has the law of episodes drawn one after the other until their lengths reach the budget."""
    budget, n_batches = 250, 60
    vec_env = MinimalVecEnv(n_envs, one_or_hundred(n_envs), last_reward=lambda lengths: lengths == 100)
    model = case.make(vec_env, "LinearPolicy", batch_timesteps=budget)
    first_is_long, n_long = np.zeros(n_batches), np.zeros(n_batches)
    for i in range(n_batches):
        lengths = collect(model).episode_lengths
        assert lengths.sum() == budget
        first_is_long[i] = lengths[0] > 1
        n_long[i] = (lengths == 100).sum()

    rng = np.random.default_rng(0)
    draws = rng.choice([1, 100], size=(20_000, budget))
    whole = np.cumsum(draws, axis=1) <= budget
    expected_n_long = ((draws == 100) & whole).sum(1)
    for sample, expected in ((first_is_long, 0.5), (n_long, expected_n_long.mean())):
        assert abs(sample.mean() - expected) <= 3.0 * max(sample.std(ddof=1), 0.3) / np.sqrt(n_batches)


@for_each_algorithm
@pytest.mark.parametrize("n_episodes", [1, 4, 7])
@pytest.mark.parametrize("n_envs", [1, 2, 3, 4, 5, 20])
def test_exact_number_of_episodes(case: Case, n_episodes: int, n_envs: int) -> None:
    buffer = collect(case.make(counting_vec_env(n_envs), n_episodes=n_episodes))
    assert buffer.n_episodes == n_episodes
    assert_whole(buffer)


@for_each_algorithm
def test_episodes_lie_in_launch_order(case: Case) -> None:
    """
    Environments 0, 1 and 2 start with episodes of 5, 3 and 2 steps, and go on with 3, 2 and 5.

    (Their first episodes, of 2, 5 and 3 steps, end with the reset that SB3 does before anybody learns.)
    Launched: 0, 1, 2 at once, 3 in environment 2 after step 2, 4 in environment 1 after step 3, and 5 after step 5, when
    environments 0 and 1 are both free, in the first of them.
    """
    buffer = collect(case.make(counting_vec_env(3), n_episodes=6))
    assert_whole(buffer, [5, 3, 2, 5, 2, 3])
    assert [int(episode["observations"][0, 0]) for episode in episodes_of(buffer)] == [0, 1, 2, 2, 1, 0]


@for_each_algorithm
def test_collection_stops_with_the_budget_of_steps(case: Case) -> None:
    model = case.make(MinimalVecEnv(4, always(10)), batch_timesteps=80)
    assert collect(model).n_steps == model.num_timesteps == 80


@for_each_algorithm
@pytest.mark.parametrize("n_envs", [1, 2, 5])
@pytest.mark.parametrize("batch_timesteps", [1, 9, 10, 33])
def test_budget_of_steps_keeps_whole_episodes_but_the_last(case: Case, n_envs: int, batch_timesteps: int) -> None:
    model = case.make(counting_vec_env(n_envs), batch_timesteps=batch_timesteps)
    buffer = collect(model)
    assert buffer.n_steps == batch_timesteps == len(buffer.rewards)
    assert_whole(buffer)
    for episode, length in zip(episodes_of(buffer)[:-1], buffer.episode_lengths[:-1], strict=True):
        mark, number, _ = episode["observations"][0].astype(int)
        assert length == (2, 5, 3)[(mark + number) % 3]


@for_each_algorithm
@pytest.mark.parametrize("n_envs", [1, 2, 5])
@pytest.mark.parametrize("batch_timesteps", [1, 9, 10, 33])
def test_budget_of_steps_whose_last_episode_is_finished(case: Case, n_envs: int, batch_timesteps: int) -> None:
    cut = collect(case.make(counting_vec_env(n_envs), batch_timesteps=batch_timesteps))
    buffer = collect(case.make(counting_vec_env(n_envs), batch_timesteps=batch_timesteps, finish_last_episode=True))
    assert_whole(buffer)
    assert buffer.n_episodes == cut.n_episodes and buffer.episode_lengths[:-1].tolist() == cut.episode_lengths[:-1].tolist()
    assert buffer.n_steps - buffer.episode_lengths[-1] < batch_timesteps <= buffer.n_steps
    for episode in episodes_of(buffer):
        mark, number, _ = episode["observations"][0].astype(int)
        assert len(episode["rewards"]) == (2, 5, 3)[(mark + number) % 3]


@for_each_algorithm
@pytest.mark.parametrize("n_envs", [1, 3, 8, 64])
def test_law_of_a_budget_of_steps_whose_last_episode_is_finished(case: Case, n_envs: int) -> None:
    """As :func:`test_law_of_a_budget_of_steps`: the number of episodes, and how many of them are long."""
    budget, n_batches = 250, 60
    vec_env = MinimalVecEnv(n_envs, one_or_hundred(n_envs), last_reward=lambda lengths: lengths == 100)
    model = case.make(vec_env, "LinearPolicy", batch_timesteps=budget, finish_last_episode=True)
    sample = []
    for _ in range(n_batches):
        lengths = collect(model).episode_lengths
        assert set(lengths.tolist()) <= {1, 100} and lengths.sum() - lengths[-1] < budget <= lengths.sum()
        sample.append((len(lengths), (lengths == 100).sum(), lengths[-1] == 100))

    draws = np.random.default_rng(0).choice([1, 100], size=(20_000, budget))
    begins_within = np.cumsum(draws, axis=1) - draws < budget
    n = begins_within.sum(1)
    expected = np.stack([n, ((draws == 100) & begins_within).sum(1), draws[np.arange(len(n)), n - 1] == 100], axis=1)
    standard_errors = expected.std(0) / np.sqrt(n_batches)
    assert (np.abs(np.mean(sample, axis=0) - expected.mean(0)) <= 3.5 * standard_errors).all()


@for_each_algorithm
def test_an_endless_last_episode_is_an_error_that_names_the_horizon(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(episode_schedule, "MAX_EPISODE_STEPS", 200)
    vec_env = MinimalVecEnv(2, always(10**9))
    model = case.make(vec_env, "LinearPolicy", batch_timesteps=10, finish_last_episode=True)
    with pytest.raises(ValueError, match=r"200 steps: set `horizon`"):
        model.learn(1)
    assert vec_env.n_steps == 200
    model = case.make(vec_env, "LinearPolicy", batch_timesteps=10, finish_last_episode=True, horizon=4)
    assert collect(model).episode_lengths.tolist() == [4, 4, 4]


# Horizon


@for_each_algorithm
def test_horizon_cuts_in_waves(case: Case) -> None:
    """
    Episodes of 2 and 5 steps in turn, horizon 3, two environments, one wave after the other.

    Environment 0 starts with a long episode: cut after 3 steps and idle for 2. Environment 1 starts with a short one of
    2 steps, is relaunched at once and cut after 3 more. Then both are reset, and the second wave takes 3 steps.
    """
    model = case.make(counting_vec_env(2, (2, 5)), n_episodes=5, horizon=3)
    recorder = Recorder("rewards")
    assert_whole(collect(model, recorder), [3, 2, 3, 3, 2])
    assert [step["rewards"].tolist() for step in recorder.steps] == [
        *([1, 1], [2, 2], [3, 1], [0, 2], [0, 3]),
        *([1, 1], [2, 2], [3, 0]),
    ]
    assert model.num_timesteps == 16
    assert log_of(model)["rollout/dropped_steps"] == 3


@for_each_algorithm
@pytest.mark.parametrize("n_envs", [1, 2, 3, 7])
@pytest.mark.parametrize("horizon", [1, 3, 4, 100])
def test_horizon_bounds_every_episode(case: Case, n_envs: int, horizon: int) -> None:
    buffer = collect(case.make(counting_vec_env(n_envs), n_episodes=10, horizon=horizon))
    assert_whole(buffer)
    for episode in episodes_of(buffer):
        mark, number, _ = episode["observations"][0].astype(int)
        assert len(episode["rewards"]) == min(horizon, (2, 5, 3)[(mark + number) % 3])


@for_each_algorithm
def test_endless_environment_with_a_horizon(case: Case) -> None:
    buffer = collect(case.make(MinimalVecEnv(2, always(10**9)), n_episodes=5, horizon=4))
    assert buffer.episode_lengths.tolist() == [4] * 5


@for_each_algorithm
def test_horizon_and_budget_of_steps_together(case: Case) -> None:
    buffer = collect(case.make(MinimalVecEnv(2, always(10**9)), batch_timesteps=10, horizon=4))
    assert buffer.episode_lengths.tolist() == [4, 4, 2]


@for_each_algorithm
@pytest.mark.parametrize("n_envs", [1, 2])
def test_endless_episode_is_an_error_that_names_the_horizon(case: Case, n_envs: int, monkeypatch: pytest.MonkeyPatch) -> None:
    assert episode_schedule.MAX_EPISODE_STEPS == 100_000
    monkeypatch.setattr(episode_schedule, "MAX_EPISODE_STEPS", 2_000)
    vec_env = MinimalVecEnv(n_envs, always(10**9))
    model = case.make(vec_env, "LinearPolicy", n_episodes=2)
    before = parameters_of(model)
    with pytest.raises(ValueError, match=r"2,000 steps: set `horizon`"):
        model.learn(1)
    assert vec_env.n_steps == 2_000
    assert_same_parameters(before, parameters_of(model))


@for_each_algorithm
def test_long_episodes_that_end_are_no_error(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(episode_schedule, "MAX_EPISODE_STEPS", 20)
    assert collect(case.make(MinimalVecEnv(2, always(19)))).episode_lengths.tolist() == [19] * 6
    with pytest.raises(ValueError, match="horizon"):
        collect(case.make(MinimalVecEnv(2, always(21))))
    assert collect(case.make(MinimalVecEnv(2, always(21)), horizon=21)).episode_lengths.tolist() == [21] * 6
    assert collect(case.make(MinimalVecEnv(2, always(10**9)), batch_timesteps=15)).n_steps == 15


# What is stored


@for_each_algorithm
@pytest.mark.parametrize("n_envs", [1, 3])
def test_nothing_leaks_and_the_last_reward_counts(case: Case, n_envs: int) -> None:
    buffer = collect(case.make(counting_vec_env(n_envs), n_episodes=9))
    assert_whole(buffer)
    lengths = buffer.episode_lengths
    np.testing.assert_array_equal(buffer.episode_returns(), lengths * (lengths + 1) / 2)


@for_each_algorithm
def test_a_second_batch_starts_with_fresh_episodes(case: Case) -> None:
    model = case.make(counting_vec_env(3), n_episodes=4)
    first = {tuple(episode["observations"][0]) for episode in episodes_of(collect(model))}
    buffer = collect(model)
    assert_whole(buffer)
    assert first.isdisjoint({tuple(episode["observations"][0]) for episode in episodes_of(buffer)})


@for_each_algorithm
def test_steps_are_counted_as_sb3_does(case: Case) -> None:
    """Three environments, lengths 5, 3 and 2: the batch is over after 5 steps of all, 10 of those 15 steps count."""
    model = case.make(counting_vec_env(3), n_episodes=3)
    buffer = collect(model)
    assert model.num_timesteps == 15
    assert buffer.n_steps == 10
    assert log_of(model)["rollout/dropped_steps"] == 5


@for_each_algorithm
def test_idle_environments_are_masked(case: Case) -> None:
    """Three episodes, of 5, 3 and 2 steps: two environments end theirs early and idle, ending episodes unseen."""
    vec_env = DummyVecEnv([lambda mark=mark: Monitor(make_counting(mark)()) for mark in range(3)])  # type: ignore[misc]
    recorder = Recorder("dones", "rewards", "infos")
    model = case.make(vec_env, n_episodes=3)
    collect(model, recorder)
    assert [step["dones"].nonzero()[0].tolist() for step in recorder.steps] == [[], [2], [1], [], [0]]
    rewards = np.array([step["rewards"] for step in recorder.steps])
    assert rewards.tolist() == [[1, 1, 1], [2, 2, 2], [3, 3, 0], [4, 0, 0], [5, 0, 0]]
    for step in recorder.steps:
        assert [bool(info) for info in step["infos"]] == (step["rewards"] > 0).tolist()
    assert [info["l"] for info in model.ep_info_buffer] == [5, 3, 2]  # in launch order, the idle ones' not counted


@for_each_algorithm
def test_idle_environments_get_valid_actions(case: Case) -> None:
    """Actions of idle environments are looked at by nobody, but the environments may check them."""
    action_spaces = [
        spaces.Discrete(3, start=2),
        spaces.MultiDiscrete([2, 3], start=[4, 5]),
        spaces.MultiBinary(2),
        spaces.Box(np.float32(0.5), np.float32(1.0), (2,)),
    ]

    class UnevenEnv(AnySpacesEnv):
        is_short = False

        def step(self, action: Any) -> Any:
            assert self.action_space.contains(action), f"{action!r} is not in {self.action_space}"
            observation, reward, terminated, truncated, info = super().step(action)
            return observation, reward, terminated, truncated or self.is_short, info

    for action_space in action_spaces:
        vec_env = DummyVecEnv([lambda: UnevenEnv(spaces.Box(-1, 1, (2,)), action_space) for _ in range(2)])  # noqa: B023
        vec_env.envs[0].is_short = True  # type: ignore[attr-defined]
        buffer = collect(case.make(vec_env, n_episodes=2))
        assert buffer.episode_lengths.tolist() == [1, 4]


@for_each_algorithm
@pytest.mark.parametrize("answer", [False, np.bool_(False), th.tensor(False)], ids=["bool", "numpy", "torch"])
@pytest.mark.parametrize("n_steps", [1, 5, 20])
def test_callback_stops_at_once(case: Case, n_steps: int, answer: Any) -> None:
    """The partial batch is dropped and not trained on; whole batches before it were."""
    reference = case.make(counting_vec_env(2), n_episodes=4)
    before = parameters_of(reference)
    reference.learn(1)
    n_steps_of_first_batch = reference.num_timesteps // 2

    callback = StopAfter(n_steps, answer)
    model = case.make(counting_vec_env(2), n_episodes=4).learn(1000, callback)
    assert callback.n_calls == n_steps
    assert model.num_timesteps == 2 * n_steps
    assert model.rollout_buffer.n_episodes == 0
    if n_steps <= n_steps_of_first_batch:
        assert callback.n_rollout_ends == 0
        assert_same_parameters(before, parameters_of(model))
    else:
        assert callback.n_rollout_ends >= 1
        assert differ(before, parameters_of(model))


@for_each_algorithm
def test_learning_goes_on_after_a_stop(case: Case) -> None:
    model = case.make(counting_vec_env(2), n_episodes=4)
    model.learn(1000, StopAfter(3))
    model.learn(1, reset_num_timesteps=False)
    assert_whole(model.rollout_buffer)
    assert model.rollout_buffer.n_episodes == 4


@for_each_algorithm
def test_types_are_kept(case: Case) -> None:
    buffer = collect(case.make(counting_vec_env(2, dtype=np.uint8)))
    assert buffer.observations.dtype == np.uint8
    assert buffer.rewards.dtype == np.float32
    assert buffer.actions.dtype == np.int64
    assert buffer.observations.shape == (buffer.n_steps, 3)
    assert buffer.actions.shape == (buffer.n_steps,)
    assert buffer.episode_lengths.shape == buffer.episode_returns(0.9).shape == (6,)
    assert_whole(buffer)


@for_each_algorithm
def test_dict_observations_are_kept_with_their_types(case: Case) -> None:
    vec_env = DummyVecEnv([lambda mark=mark: CountingDictEnv((2, 5, 3), mark) for mark in range(2)])  # type: ignore[misc]
    assert_whole_dicts(collect(case.make(vec_env, "MultiInputPolicy")))


@for_each_algorithm
def test_unclipped_actions_are_stored_and_clipped_ones_sent(case: Case) -> None:
    env = ControlEnv()
    buffer = collect(case.make(env))
    sent = np.array(env.actions)
    assert sent.min() >= env.action_space.low and sent.max() <= env.action_space.high  # type: ignore[attr-defined]
    assert np.abs(buffer.actions).max() > 0.5
    np.testing.assert_array_equal(sent, np.clip(buffer.actions, -0.1, 0.1))
    assert sent.dtype == buffer.actions.dtype == np.float32


@for_each_algorithm
def test_memory_is_proportional_to_the_steps(case: Case) -> None:
    """Of 16 episodes of 1 or 100 steps no more is stored than their steps."""
    buffer = collect(case.make(MinimalVecEnv(16, one_or_hundred(0)), n_episodes=16))
    assert len(buffer.rewards) == len(buffer.actions) == len(buffer.observations) == buffer.episode_lengths.sum() < 1600
    assert buffer.observations.base is None


# Environments and wrappers


@for_each_algorithm
def test_vec_env_with_the_abstract_methods_only(case: Case) -> None:
    model = case.make(MinimalVecEnv(3, in_turn([4, 2, 7]))).learn(60)
    buffer = model.rollout_buffer
    assert buffer.n_episodes == 6
    for episode in episodes_of(buffer):
        n_steps = len(episode["rewards"])
        assert (episode["observations"][:, 1] == n_steps).all()
        assert episode["observations"][:, 2].tolist() == list(range(n_steps))
        assert episode["rewards"].tolist() == [0.0] * (n_steps - 1) + [1.0]
    assert len(model.ep_info_buffer) > 0  # our own, for want of a monitor
    assert {info["l"] for info in model.ep_info_buffer} <= {4, 2, 7}
    assert {info["r"] for info in model.ep_info_buffer} == {1.0}


@for_each_algorithm
def test_subproc_vec_env_is_the_same_as_dummy(case: Case) -> None:
    buffers = []
    for vec_env_class, vec_env_kwargs in ((DummyVecEnv, {}), (SubprocVecEnv, dict(start_method="fork"))):
        vec_env = make_vec_env(ControlEnv, n_envs=2, seed=1, vec_env_cls=vec_env_class, vec_env_kwargs=vec_env_kwargs)
        buffers.append(collect(case.make(vec_env)))
        vec_env.close()
    for name in ("observations", "actions", "episode_lengths"):
        np.testing.assert_array_equal(getattr(buffers[0], name), getattr(buffers[1], name), err_msg=name)
    np.testing.assert_allclose(buffers[0].rewards, buffers[1].rewards, rtol=1e-6)  # float32 here, float64 there


@for_each_algorithm
def test_vec_normalize_is_stored_as_seen_and_logged_as_it_was(case: Case) -> None:
    seen: list[Any] = []

    class Spy(VecNormalize):
        def reset(self) -> Any:
            observations: Any = super().reset()
            seen.append(observations.copy())
            return observations

        def step_wait(self) -> Any:
            observations: Any
            observations, rewards, dones, infos = super().step_wait()
            seen.append(observations.copy())
            return observations, rewards, dones, infos

    venv = Spy(counting_vec_env(1, (4,)))
    model = case.make(venv, n_episodes=3)
    seen.clear()
    model.learn(1, log_interval=None)
    buffer = model.rollout_buffer
    # Twelve steps, and the last observation that nobody acts on; the first reset is SB3's own
    np.testing.assert_array_equal(buffer.observations, np.concatenate(seen[-13:-1]))
    assert not np.array_equal(buffer.rewards, buffer.original_rewards)
    assert buffer.original_rewards.tolist() == [1.0, 2.0, 3.0, 4.0] * 3
    assert buffer.episode_returns(original=True).tolist() == [10.0] * 3

    logged = log_of(model)
    assert logged["rollout/ep_rew_mean"] == 10.0 and logged["rollout/ep_len_mean"] == 4.0
    assert [info["r"] for info in model.ep_info_buffer] == [10.0] * 3


def normalized(venv: Any, **kwargs: Any) -> VecNormalize:
    return VecNormalize(venv, norm_obs=False, **kwargs)


@for_each_algorithm
@pytest.mark.parametrize("n_envs", [1, 3])
def test_a_batch_of_normalised_rewards_has_one_scale(case: Case, n_envs: int) -> None:
    """That of the batch's end, for episodes that all earn the same."""
    venv = normalized(counting_vec_env(n_envs, (4,)))
    recorder = Recorder("rewards")
    model = case.make(VecMonitor(VecFrameStack(venv, 2)), n_episodes=60)  # it is found below other wrappers
    buffer = collect(model, recorder)
    first, last = (recorder.steps[i]["rewards"][0] for i in (0, -4))  # both are worth 1
    assert first > 1.2 * last, "the scale moves"
    scale = np.sqrt(venv.ret_rms.var + venv.epsilon)
    np.testing.assert_allclose(buffer.rewards, buffer.original_rewards / scale, rtol=1e-6)
    np.testing.assert_allclose(buffer.episode_returns(), 10.0 / scale, rtol=1e-6)
    assert buffer.original_rewards.tolist() == [1.0, 2.0, 3.0, 4.0] * 60 and buffer.rewards.dtype == np.float32


@for_each_algorithm
def test_normalised_rewards_are_clipped_by_the_scale_of_the_batch(case: Case) -> None:
    venv = normalized(counting_vec_env(1, (4,)), clip_reward=0.7)
    buffer = collect(case.make(venv, n_episodes=20))
    scale = np.sqrt(venv.ret_rms.var + venv.epsilon)
    np.testing.assert_allclose(buffer.rewards, np.minimum(buffer.original_rewards / scale, 0.7), rtol=1e-6)
    assert 0 < (buffer.rewards < 0.7).sum() < len(buffer.rewards)


@for_each_algorithm
def test_only_one_wrapper_may_normalise_rewards(case: Case) -> None:
    inner = normalized(counting_vec_env(2))
    assert collect(case.make(VecNormalize(inner, norm_reward=False), n_episodes=4)).original_rewards.max() > 1.0
    with pytest.raises(ValueError, match="2 VecNormalize normalise the rewards"):
        collect(case.make(normalized(inner), n_episodes=4))


@for_each_algorithm
def test_normalised_rewards_must_not_be_changed_afterwards(case: Case) -> None:
    class Doubled(VecEnvWrapper):
        def reset(self) -> Any:
            return self.venv.reset()

        def step_wait(self) -> Any:
            observations, rewards, dones, infos = self.venv.step_wait()
            return observations, 2.0 * rewards, dones, infos

    assert collect(case.make(normalized(Doubled(counting_vec_env(2))))).original_rewards.max() == 10.0
    with pytest.raises(ValueError, match="a wrapper around VecNormalize changes the rewards"):
        collect(case.make(Doubled(normalized(counting_vec_env(2)))))


@for_each_algorithm
def test_vec_normalize_of_rewards_off(case: Case) -> None:
    buffer = collect(case.make(VecNormalize(counting_vec_env(2), norm_obs=False, norm_reward=False), n_episodes=4))
    assert buffer.original_rewards is buffer.rewards
    assert_whole(buffer)


@for_each_algorithm
def test_vec_frame_stack(case: Case) -> None:
    assert_stacked(collect(case.make(VecFrameStack(counting_vec_env(2), 2), n_episodes=6)))


@for_each_algorithm
def test_vec_monitor(case: Case) -> None:
    model = case.make(VecMonitor(counting_vec_env(3)), n_episodes=3)
    collect(model)
    assert sorted(info["l"] for info in model.ep_info_buffer) == [2, 3, 5]
    assert sorted(info["r"] for info in model.ep_info_buffer) == [3.0, 6.0, 15.0]


@for_each_algorithm
def test_horizon_cuts_are_ends_for_callbacks(case: Case) -> None:
    """A cut by the horizon is an end like any other for callbacks and for the episode statistics."""
    recorder = Recorder("dones")
    model = case.make(DummyVecEnv([lambda mark=mark: CountingEnv((9, 2), mark) for mark in range(2)]), n_episodes=4, horizon=3)  # type: ignore[misc]
    collect(model, recorder)
    assert sum(int(step["dones"].sum()) for step in recorder.steps) == 4
    assert len(model.ep_info_buffer) == 4 and max(info["l"] for info in model.ep_info_buffer) == 3


class OneArrayVecEnv(DummyVecEnv):
    """Writes every observation where the last one was."""

    def _obs_from_buf(self) -> Any:
        return self.buf_obs[None]  # type: ignore[index]


@for_each_algorithm
def test_observations_that_are_overwritten_in_place(case: Case) -> None:
    make: Any = [lambda: CountingEnv((4, 3), 0)]
    expected = collect(case.make(DummyVecEnv(make), n_episodes=4))
    buffer = collect(case.make(OneArrayVecEnv(make), n_episodes=4))
    np.testing.assert_array_equal(buffer.rewards, expected.rewards)
    np.testing.assert_array_equal(buffer.observations, expected.observations)
