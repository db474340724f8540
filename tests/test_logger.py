"""What is logged, and where."""

import csv
import json
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces
from stable_baselines3.common.logger import configure
from stable_baselines3.common.vec_env import DummyVecEnv

from tests.helpers.envs import AnySpacesEnv, ControlEnv, CountingEnv
from tests.helpers.vec_envs import MinimalVecEnv, in_turn
from tests.registry import Case, for_each_algorithm, log_of, paper

ROLLOUT_KEYS = {"rollout/ep_rew_mean", "rollout/ep_len_mean", "rollout/n_episodes", "rollout/dropped_steps"}
TIME_KEYS = {"time/fps", "time/iterations", "time/time_elapsed", "time/total_timesteps"}
TRAIN_KEYS = {
    f"train/{name}"
    for name in (
        "surrogate_before",
        "surrogate",
        "surrogate_improvement",
        "penalty",
        "ess",
        "d2",
        "max_importance_weight",
        "mean_importance_weight",
        "std_importance_weight",
        "grad_norm",
        "step_size",
        "n_offline_iters",
        "n_line_search_evals",
        "is_line_search_success",
        "std",
    )
}


def train_keys(case: Case) -> set[str]:
    return TRAIN_KEYS | set(case.log_keys) | {f"train/std/{name}" for name in case.std_groups}


class PlainEnv(ControlEnv):
    """A :class:`ControlEnv` that knows no success."""

    def step(self, action: Any) -> Any:
        return *super().step(action)[:4], {}


def read_csv(folder: Path) -> list[dict[str, str]]:
    with open(folder / "progress.csv", newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def run(case: Case, folder: Path, env: Any, n_steps: int = 24, formats: tuple[str, ...] = ("csv",), **kwargs: Any) -> Any:
    model = case.make(env, **kwargs)
    model.set_logger(configure(str(folder), list(formats)))
    return model.learn(n_steps)


@for_each_algorithm
def test_csv_keys(case: Case, tmp_path: Path) -> None:
    run(case, tmp_path, PlainEnv())
    assert set(read_csv(tmp_path)[0]) == ROLLOUT_KEYS | TIME_KEYS | train_keys(case)


@for_each_algorithm
def test_tensorboard_keys(case: Case, tmp_path: Path) -> None:
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    model = case.make(PlainEnv(), tensorboard_log=str(tmp_path)).learn(72)
    folder = tmp_path / f"{case.algorithm.__name__}_1"
    events = accumulator.EventAccumulator(str(folder))
    events.Reload()
    assert set(events.Tags()["scalars"]) == ROLLOUT_KEYS | train_keys(case) | {"time/fps"}
    assert [event.step for event in events.Scalars("train/ess")] == [24, 48, 72]
    assert model.num_timesteps == 72


@for_each_algorithm
def test_keys_without_a_std(case: Case, tmp_path: Path) -> None:
    """Only where the algorithm searches in a distribution that has none."""
    run(case, tmp_path, AnySpacesEnv(spaces.Box(-1, 1, (2,)), spaces.Discrete(2)))
    keys = set(read_csv(tmp_path)[0])
    expected = ROLLOUT_KEYS | TIME_KEYS | train_keys(case) | {"rollout/success_rate"}
    assert keys - {"train/std"} == expected - {"train/std"}
    assert ("train/std" in keys) == case.has_std_for_discrete_actions


@for_each_algorithm
def test_values_are_consistent(case: Case, tmp_path: Path) -> None:
    run(case, tmp_path, PlainEnv(), n_steps=120, **paper(case.algorithm))
    rows = [{key: float(value) for key, value in row.items()} for row in read_csv(tmp_path)]
    assert len(rows) == 5
    for i, row in enumerate(rows):
        assert row["time/iterations"] == i + 1
        assert row["time/total_timesteps"] == 24 * (i + 1)
        assert row["rollout/n_episodes"] == 6 and row["rollout/ep_len_mean"] == 4 and row["rollout/dropped_steps"] == 0
        improvement = row["train/surrogate"] - row["train/surrogate_before"]
        assert row["train/surrogate_improvement"] == pytest.approx(improvement, abs=1e-9) and improvement >= 0.0
        assert 1.0 <= row["train/ess"] <= 6.0 + 1e-9
        assert row["train/d2"] >= 1.0 - 1e-9
        assert row["train/penalty"] > 0.0
        assert row["train/max_importance_weight"] >= row["train/mean_importance_weight"] > 0.0
        assert row["train/is_line_search_success"] == (improvement > 0.0)
        assert 0 <= row["train/n_offline_iters"] <= 10
        assert row["train/n_line_search_evals"] >= row["train/n_offline_iters"]
        assert (row["train/step_size"] > 0.0) == (improvement > 0.0)
        assert row["train/std"] > 0.0
    assert any(row["train/is_line_search_success"] == 1.0 for row in rows)


@for_each_algorithm
def test_returns_and_lengths_are_those_of_the_batch(case: Case, tmp_path: Path) -> None:
    """Not of a window of past episodes, and without any monitor."""
    lengths = [2, 4, 9, 3, 3, 3]
    draw = in_turn([1, *lengths])  # SB3 resets once beforehand
    vec_env = MinimalVecEnv(1, draw, last_reward=lambda lengths: 2.0 * lengths)
    run(case, tmp_path, vec_env, n_steps=1)
    (row,) = read_csv(tmp_path)
    assert float(row["rollout/ep_len_mean"]) == np.mean(lengths)
    assert float(row["rollout/ep_rew_mean"]) == 2.0 * np.mean(lengths)
    assert float(row["rollout/n_episodes"]) == 6


@for_each_algorithm
def test_dropped_steps(case: Case, tmp_path: Path) -> None:
    vec_env = DummyVecEnv([lambda: CountingEnv((9,)), lambda: CountingEnv((2,))])
    run(case, tmp_path, vec_env, n_steps=1, n_episodes=2)
    (row,) = read_csv(tmp_path)
    assert float(row["rollout/dropped_steps"]) == 7
    assert float(row["time/total_timesteps"]) == 18


@for_each_algorithm
def test_success_rate(case: Case, tmp_path: Path) -> None:
    class EverySecondSucceeds(CountingEnv):
        def step(self, action: Any) -> Any:
            *rest, info = super().step(action)
            return *rest, {**info, "is_success": self.episode % 2 == 0}

    run(case, tmp_path, EverySecondSucceeds((2, 3)), n_steps=1)
    (row,) = read_csv(tmp_path)
    assert float(row["rollout/success_rate"]) == 0.5


@for_each_algorithm
@pytest.mark.parametrize("log_interval, n_logs", [(1, 4), (2, 2), (3, 1), (5, 0), (None, 0)])
def test_log_interval(case: Case, tmp_path: Path, log_interval: int | None, n_logs: int) -> None:
    model = case.make(ControlEnv())
    model.set_logger(configure(str(tmp_path), ["csv"]))
    model.learn(96, log_interval=log_interval)
    content = (tmp_path / "progress.csv").read_text()
    assert max(0, len(content.splitlines()) - 1) == n_logs


@for_each_algorithm
def test_run_folders(case: Case, tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    model = case.make(ControlEnv(), tensorboard_log=str(tmp_path))
    name = case.algorithm.__name__
    model.learn(24)
    model.learn(24, reset_num_timesteps=False)  # goes on in the same folder
    assert [folder.name for folder in tmp_path.iterdir()] == [f"{name}_1"]
    model.learn(24)
    model.learn(24, tb_log_name="mine")
    assert {folder.name for folder in tmp_path.iterdir()} == {f"{name}_1", f"{name}_2", "mine_1"}


@for_each_algorithm
def test_fps_counts_the_steps_of_this_call(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0]
    monkeypatch.setattr(time, "time_ns", lambda: now[0])
    model = case.make(ControlEnv())

    def tick(local_variables: dict, global_variables: dict) -> bool:
        now[0] += 500_000_000  # half a second per step
        return True

    for n in (24, 48):
        model.learn(n, tick, log_interval=None, reset_num_timesteps=False)
        assert log_of(model)["time/fps"] == 2


@for_each_algorithm
@pytest.mark.parametrize("reason, env, n_episodes", [("one episode", ControlEnv, 1), ("equal", lambda: CountingEnv((3,)), 4)])
def test_skipped_updates_say_so(case: Case, tmp_path: Path, reason: str, env: Any, n_episodes: int) -> None:
    run(case, tmp_path, env(), formats=("csv", "json", "stdout"), n_steps=1, n_episodes=n_episodes)
    (row,) = read_csv(tmp_path)
    assert reason in row["train/skipped_update"]
    assert float(row["train/is_line_search_success"]) == 0.0
    assert reason in json.loads((tmp_path / "progress.json").read_text().splitlines()[0])["train/skipped_update"]
    assert "train/surrogate" not in row


@for_each_algorithm
def test_quiet_unless_asked(case: Case, capsys: pytest.CaptureFixture) -> None:
    case.make(ControlEnv()).learn(24)
    assert capsys.readouterr().out == ""
    case.make(ControlEnv(), verbose=1).learn(24)
    output = capsys.readouterr().out
    assert "ep_rew_mean" in output and "surrogate_improvement" in output and "Using cpu device" in output
