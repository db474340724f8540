"""Gymnasium's vector environments as environments to learn from."""

from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv, VectorEnv
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.vec_env import DummyVecEnv, VecFrameStack, VecMonitor, VecNormalize

from sb3_pois.common.vec_env import GymnasiumVecEnv
from tests.helpers.batches import assert_stacked, assert_whole, assert_whole_dicts, episodes_of, make_counting
from tests.helpers.callbacks import Recorder
from tests.helpers.envs import AnySpacesEnv, ControlEnv, CountingDictEnv
from tests.registry import Case, collect, differ, for_each_algorithm, log_of, parameters_of

MODES = [AutoresetMode.NEXT_STEP, AutoresetMode.SAME_STEP]
for_each_mode = pytest.mark.parametrize("mode", MODES, ids=lambda mode: mode.name)


def counting_vector_env(mode: AutoresetMode, n_envs: int, cls: type[VectorEnv] = SyncVectorEnv, **kwargs: Any) -> Any:
    return cls([make_counting(mark, **kwargs) for mark in range(n_envs)], autoreset_mode=mode)  # type: ignore[call-arg]


# Collection


@for_each_algorithm
@for_each_mode
@pytest.mark.parametrize("cls", [SyncVectorEnv, AsyncVectorEnv])
def test_whole_episodes(case: Case, mode: AutoresetMode, cls: type[VectorEnv]) -> None:
    model = case.make(counting_vector_env(mode, 3, cls), n_episodes=9)
    assert isinstance(model.env, GymnasiumVecEnv)
    buffer = collect(model)
    assert_whole(buffer)
    model.env.close()


@for_each_algorithm
@for_each_mode
@pytest.mark.parametrize("budget", [dict(n_episodes=6), dict(batch_timesteps=17), dict(n_episodes=7, horizon=3)], ids=str)
@pytest.mark.parametrize("n_envs", [1, 3, 8])
def test_same_batch_as_with_sb3(case: Case, mode: AutoresetMode, budget: dict[str, Any], n_envs: int) -> None:
    """Environment by environment the episodes are those of a DummyVecEnv; a reset step is no step."""
    batches = []
    for vec_env in (DummyVecEnv([make_counting(mark) for mark in range(n_envs)]), counting_vector_env(mode, n_envs)):
        model = case.make(vec_env, **budget)
        buffer = collect(model)
        assert_whole(buffer)
        assert log_of(model)["rollout/dropped_steps"] == model.num_timesteps - buffer.n_steps
        first = [tuple(episode["observations"][0]) for episode in episodes_of(buffer)]
        batches.append((sorted(first), sorted(buffer.episode_lengths), buffer.n_episodes))
    if mode == AutoresetMode.SAME_STEP or n_envs == 1 or n_envs == 8:
        assert batches[0] == batches[1]
    else:  # the reset steps change which of several environments is free first
        assert len(batches[0][0]) > 0
    if "n_episodes" in budget:
        assert batches[1][2] == budget["n_episodes"]


@for_each_algorithm
def test_reset_steps_are_dropped_and_masked(case: Case) -> None:
    """One environment, episodes of 3 and 2 steps, NEXT_STEP: 3 + reset + 2 steps are made, 5 kept."""
    recorder = Recorder("dones", "rewards", "infos")
    model = case.make(counting_vector_env(AutoresetMode.NEXT_STEP, 1, lengths=(9, 3, 2)), n_episodes=2)
    buffer = collect(model, recorder)
    assert_whole(buffer, [3, 2])
    assert model.num_timesteps == 6 and log_of(model)["rollout/dropped_steps"] == 1
    assert [float(step["rewards"][0]) for step in recorder.steps] == [1, 2, 3, 0, 1, 2]
    assert [bool(step["dones"][0]) for step in recorder.steps] == [False, False, True, False, False, True]
    assert recorder.steps[3]["infos"] == [{}]
    assert all("autoreset_step" not in step["infos"][0] for step in recorder.steps)


@for_each_algorithm
@for_each_mode
def test_second_batch_starts_afresh(case: Case, mode: AutoresetMode) -> None:
    """The last step of a batch ends an episode; the reset that would follow is not waited for."""
    model = case.make(counting_vector_env(mode, 2), n_episodes=4)
    for _ in range(3):
        assert_whole(collect(model))


@for_each_algorithm
@for_each_mode
def test_dict_observations(case: Case, mode: AutoresetMode) -> None:
    envs = [lambda mark=mark: CountingDictEnv((2, 5, 3), mark) for mark in range(3)]
    model = case.make(SyncVectorEnv(envs, autoreset_mode=mode), "MultiInputPolicy", n_episodes=7)
    assert_whole_dicts(collect(model))
    model.learn(10)


@for_each_algorithm
def test_native_vector_environment(case: Case) -> None:
    venv = gym.make_vec("CartPole-v1", num_envs=3, vectorization_mode="vector_entry_point")
    model = case.make(venv, n_episodes=8)
    before = parameters_of(model)
    model.learn(400)
    assert model.rollout_buffer.n_episodes == 8
    assert differ(before, parameters_of(model))
    starts = model.rollout_buffer.observations[model.rollout_buffer.episode_starts]
    assert np.abs(starts).max() <= 0.05  # every episode starts where CartPole starts, also after a reset step
    np.testing.assert_array_equal(model.rollout_buffer.episode_returns(), model.rollout_buffer.episode_lengths)


@for_each_algorithm
@for_each_mode
def test_continuous_actions(case: Case, mode: AutoresetMode) -> None:
    model = case.make(SyncVectorEnv([ControlEnv, ControlEnv], autoreset_mode=mode))
    before = parameters_of(model)
    model.learn(72)
    assert differ(before, parameters_of(model))
    sent = np.concatenate([env.unwrapped.actions for env in model.env.venv.envs])
    assert np.abs(sent).max() <= 0.1


@for_each_algorithm
def test_evaluate_policy_on_the_adapter(case: Case) -> None:
    venv = GymnasiumVecEnv(counting_vector_env(AutoresetMode.SAME_STEP, 2))
    model = case.make(venv)
    returns, lengths = evaluate_policy(model, venv, n_eval_episodes=6, return_episode_rewards=True, warn=False)
    assert sorted(lengths) == [2, 2, 3, 3, 5, 5]  # type: ignore[arg-type]
    assert [length * (length + 1) / 2 for length in lengths] == returns  # type: ignore[union-attr]


# Life cycle


@for_each_algorithm
@for_each_mode
def test_load_and_set_env(case: Case, mode: AutoresetMode, tmp_path: Path) -> None:
    model = case.make(counting_vector_env(mode, 2)).learn(20)
    model.save(tmp_path / "model")
    loaded = case.algorithm.load(tmp_path / "model", env=counting_vector_env(mode, 3))
    assert isinstance(loaded.env, GymnasiumVecEnv) and loaded.n_envs == 3
    loaded.learn(20, reset_num_timesteps=False)
    loaded.set_env(counting_vector_env(mode, 3))
    assert_whole(collect(loaded))


@for_each_algorithm
@for_each_mode
def test_repeatable_to_the_bit(case: Case, mode: AutoresetMode) -> None:
    def run() -> dict[str, np.ndarray]:
        return parameters_of(case.make(SyncVectorEnv([ControlEnv] * 2, autoreset_mode=mode), seed=4).learn(72))

    one, other = run(), run()
    assert not differ(one, other)


# Wrappers around the adapter


@for_each_algorithm
@for_each_mode
def test_vec_normalize(case: Case, mode: AutoresetMode) -> None:
    venv = VecNormalize(GymnasiumVecEnv(counting_vector_env(mode, 2)))
    model = case.make(venv, n_episodes=5)
    buffer = collect(model)
    for start, length in zip(buffer.episode_starts, buffer.episode_lengths, strict=True):
        assert buffer.original_rewards[start : start + length].tolist() == list(range(1, length + 1))
    assert np.abs(buffer.observations).max() <= 10.0
    model.learn(50)


@for_each_algorithm
def test_vec_frame_stack(case: Case) -> None:
    venv = VecFrameStack(GymnasiumVecEnv(counting_vector_env(AutoresetMode.SAME_STEP, 2)), 2)
    assert_stacked(collect(case.make(venv, n_episodes=6)))


@for_each_algorithm
def test_vec_frame_stack_on_next_step_is_refused(case: Case) -> None:
    """It empties its stack at the end of an episode, one step before this mode resets."""

    def make() -> VecNormalize:
        venv = VecFrameStack(GymnasiumVecEnv(counting_vector_env(AutoresetMode.NEXT_STEP, 2)), 2)
        return VecNormalize(venv)

    with pytest.raises(ValueError, match=r"VecFrameStack .*make it with AutoresetMode.SAME_STEP"):
        case.make(make())
    model = case.make(VecFrameStack(DummyVecEnv([make_counting(mark) for mark in range(2)]), 2))
    with pytest.raises(ValueError, match="VecFrameStack"):
        model.set_env(make())


@for_each_algorithm
@for_each_mode
def test_vec_monitor(case: Case, mode: AutoresetMode) -> None:
    """With NEXT_STEP the monitor takes the reset step for the first of the episode; the statistics here are right."""
    model = case.make(VecMonitor(GymnasiumVecEnv(counting_vector_env(mode, 1, lengths=(9, 3, 2, 4)))), n_episodes=3)
    assert collect(model).episode_lengths.tolist() == [3, 2, 4]
    assert [info["r"] for info in model.ep_info_buffer] == [6.0, 3.0, 10.0]
    assert [info["l"] for info in model.ep_info_buffer] == [3, 2, 4]


@for_each_algorithm
@for_each_mode
def test_gymnasium_wrappers_inside(case: Case, mode: AutoresetMode) -> None:
    venv = gym.wrappers.vector.RecordEpisodeStatistics(counting_vector_env(mode, 2))
    model = case.make(venv, n_episodes=4)
    collect(model)
    assert len(model.ep_info_buffer) >= 4
    assert all(info["r"] == info["l"] * (info["l"] + 1) / 2 for info in model.ep_info_buffer)
    assert {type(info["r"]) for info in model.ep_info_buffer} <= {float, np.float32, np.float64}


# The adapter itself


def test_autoreset_mode_is_needed() -> None:
    venv = SyncVectorEnv([ControlEnv], autoreset_mode=AutoresetMode.DISABLED)
    with pytest.raises(ValueError, match=r"AutoresetMode.DISABLED, but allowed are .*NEXT_STEP and .*SAME_STEP"):
        GymnasiumVecEnv(venv)
    venv.metadata.pop("autoreset_mode")
    with pytest.raises(ValueError, match="is None"):
        GymnasiumVecEnv(venv)


@for_each_mode
def test_steps(mode: AutoresetMode) -> None:
    venv: Any = GymnasiumVecEnv(counting_vector_env(mode, 2, lengths=(2, 4), truncates=True))
    assert venv.reset().tolist() == [[0, 0, 0], [1, 0, 0]]
    assert venv.reset_infos == [{}, {}]
    actions = np.zeros(2, dtype=np.int64)
    observations, rewards, dones, infos = venv.step(actions)
    assert observations.tolist() == [[0, 0, 1], [1, 0, 1]]
    assert rewards.tolist() == [1.0, 1.0] and rewards.dtype == np.float32
    assert dones.tolist() == [False, False] and dones.dtype == bool
    assert [info["t"] for info in infos] == [1, 1]

    observations, rewards, dones, infos = venv.step(actions)
    assert rewards.tolist() == [2.0, 2.0] and dones.tolist() == [True, False]
    assert infos[0]["terminal_observation"].tolist() == [0, 0, 2]
    assert infos[0]["TimeLimit.truncated"] is True
    assert infos[0]["t"] == infos[1]["t"] == 2
    assert "terminal_observation" not in infos[1] and "TimeLimit.truncated" not in infos[1]

    first_of_next = observations
    observations, rewards, dones, infos = venv.step(actions)
    if mode == AutoresetMode.SAME_STEP:
        assert first_of_next[0].tolist() == [0, 1, 0]
        assert observations.tolist() == [[0, 1, 1], [1, 0, 3]]
        assert "autoreset_step" not in infos[0]
    else:
        assert observations.tolist() == [[0, 1, 0], [1, 0, 3]]
        assert rewards.tolist() == [0.0, 3.0] and infos[0]["autoreset_step"] is True
    assert "autoreset_step" not in infos[1]
    venv.close()


@for_each_mode
def test_terminated_is_not_truncated(mode: AutoresetMode) -> None:
    venv = GymnasiumVecEnv(counting_vector_env(mode, 1, lengths=(1,)))
    venv.reset()
    _, _, dones, infos = venv.step(np.zeros(1, dtype=np.int64))
    assert dones.tolist() == [True] and infos[0]["TimeLimit.truncated"] is False


@for_each_mode
def test_terminal_observation_of_a_dict(mode: AutoresetMode) -> None:
    venv = GymnasiumVecEnv(SyncVectorEnv([lambda: CountingDictEnv((1,)), lambda: CountingDictEnv((3,))], autoreset_mode=mode))
    venv.reset()
    _, _, dones, infos = venv.step(np.zeros(2, dtype=np.int64))
    assert dones.tolist() == [True, False]
    terminal = infos[0]["terminal_observation"]
    assert set(terminal) == {"count", "picture", "label"}
    assert terminal["count"].tolist() == [0, 0, 1] and int(terminal["label"]) == 1


def test_seeds() -> None:
    def make() -> SyncVectorEnv:
        return SyncVectorEnv([lambda: AnySpacesEnv(spaces.Box(-1, 1, (2,)), spaces.Discrete(2))] * 3)

    adapter: Any = GymnasiumVecEnv(make())
    assert adapter.seed(7) == [7, 8, 9]
    seeded = adapter.reset()
    expected, _ = make().reset(seed=[7, 8, 9])
    np.testing.assert_array_equal(seeded, expected)
    assert not np.array_equal(adapter.reset(), expected)  # a seed is for the next reset only
    adapter.seed(7)
    np.testing.assert_array_equal(adapter.reset(), expected)


def test_options() -> None:
    received = []

    class OptionEnv(ControlEnv):
        def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
            received.append(options)
            return super().reset(seed=seed)

    venv = GymnasiumVecEnv(SyncVectorEnv([OptionEnv, OptionEnv]))
    venv.set_options(dict(level=3))
    venv.reset()
    venv.reset()
    assert received == [dict(level=3)] * 2 + [None] * 2


def test_observations_are_copies() -> None:
    venv: Any = GymnasiumVecEnv(SyncVectorEnv([make_counting(0)], copy=False))
    first = venv.reset()
    venv.step(np.zeros(1, dtype=np.int64))
    assert first[0].tolist() == [0, 0, 0]


def test_attributes_and_methods() -> None:
    venv = GymnasiumVecEnv(SyncVectorEnv([make_counting(mark) for mark in range(3)]))
    assert venv.get_attr("mark") == [0, 1, 2]
    assert venv.get_attr("mark", indices=[2, 0]) == [2, 0]
    assert venv.get_attr("mark", indices=1) == [1]
    venv.set_attr("mark", 9, indices=1)
    assert venv.get_attr("mark") == [0, 9, 2]
    venv.set_attr("mark", 5)
    assert venv.get_attr("mark") == [5, 5, 5]
    venv.reset()
    assert [observation[0] for observation in venv.env_method("observation")] == [5, 5, 5]
    assert len(venv.env_method("observation", indices=[0])) == 1
    assert venv.env_is_wrapped(gym.wrappers.TimeLimit) == [False] * 3
    wrapped = GymnasiumVecEnv(SyncVectorEnv([lambda: gym.wrappers.TimeLimit(ControlEnv(), 3)]))
    assert wrapped.env_is_wrapped(gym.wrappers.TimeLimit) == [True]
    assert venv.get_attr("render_mode") == [None] * 3


def test_attributes_of_a_native_vector_environment() -> None:
    venv = GymnasiumVecEnv(gym.make_vec("CartPole-v1", num_envs=2, vectorization_mode="vector_entry_point"))
    assert venv.get_attr("gravity") == [9.8, 9.8]
    venv.set_attr("gravity", 1.0)
    assert venv.get_attr("gravity") == [1.0, 1.0]
    with pytest.raises(ValueError, match="has no separate environments"):
        venv.set_attr("gravity", 2.0, indices=[0])
    with pytest.raises(AttributeError, match="no separate environments"):
        venv.env_method("reset")
    assert venv.env_is_wrapped(gym.Wrapper) == [False, False]


def test_rendering() -> None:
    venv: Any = GymnasiumVecEnv(SyncVectorEnv([_PictureEnv] * 2))
    venv.reset()
    images = venv.get_images()
    assert len(images) == 2 and all(image.shape == (4, 4, 3) for image in images)
    assert venv.render(mode="rgb_array").shape[-1] == 3


class _PictureEnv(ControlEnv):
    render_mode = "rgb_array"

    def render(self) -> Any:
        return np.zeros((4, 4, 3), dtype=np.uint8)
