"""SB3's callbacks."""

from pathlib import Path

import numpy as np
import pytest
from stable_baselines3.common.callbacks import (
    BaseCallback,
    CallbackList,
    CheckpointCallback,
    EvalCallback,
    EveryNTimesteps,
    LogEveryNTimesteps,
    StopTrainingOnMaxEpisodes,
    StopTrainingOnNoModelImprovement,
    StopTrainingOnRewardThreshold,
)
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.monitor import Monitor
from stable_baselines3.common.vec_env import DummyVecEnv, VecNormalize

from tests.helpers.callbacks import Recorder, StopAfter
from tests.helpers.envs import ControlEnv, CountingEnv
from tests.registry import Case, assert_same_parameters, for_each_algorithm, parameters_of


class OrderRecorder(BaseCallback):
    """Names the events in the order in which they come."""

    def __init__(self) -> None:
        super().__init__()
        self.events: list[str] = []

    def _on_training_start(self) -> None:
        self.events.append("training_start")

    def _on_rollout_start(self) -> None:
        self.events.append("rollout_start")

    def _on_step(self) -> bool:
        self.events.append("step")
        return True

    def _on_rollout_end(self) -> None:
        self.events.append("rollout_end")

    def _on_training_end(self) -> None:
        self.events.append("training_end")


@for_each_algorithm
def test_order_of_events(case: Case) -> None:
    recorder = OrderRecorder()
    case.make(CountingEnv((2,)), n_episodes=2).learn(8, recorder)
    rollout = ["rollout_start", *["step"] * 4, "rollout_end"]
    assert recorder.events == ["training_start", *rollout, *rollout, "training_end"]


@for_each_algorithm
def test_locals_are_those_of_the_step(case: Case) -> None:
    recorder = Recorder("dones", "rewards", "infos")
    model = case.make(DummyVecEnv([lambda: CountingEnv((3,))] * 2), n_episodes=2)
    model.learn(1, recorder)
    assert [step["rewards"].tolist() for step in recorder.steps] == [[1.0, 1.0], [2.0, 2.0], [3.0, 3.0]]
    assert [step["dones"].tolist() for step in recorder.steps] == [[False] * 2, [False] * 2, [True] * 2]
    assert [[info["t"] for info in step["infos"]] for step in recorder.steps] == [[1, 1], [2, 2], [3, 3]]
    assert recorder.locals["self"] is model
    assert recorder.n_calls == 3 and recorder.num_timesteps == 6
    assert recorder.returns[0].tolist() == [6.0, 6.0] and recorder.lengths[0].tolist() == [3, 3]


@for_each_algorithm
def test_locals_at_the_start_of_training(case: Case) -> None:
    seen = {}

    class AtStart(BaseCallback):
        def _on_training_start(self) -> None:
            seen.update(self.locals)

        def _on_step(self) -> bool:
            return True

    case.make(ControlEnv()).learn(24, AtStart())
    assert seen["total_timesteps"] == 24


@for_each_algorithm
def test_callbacks_together(case: Case, tmp_path: Path) -> None:
    checkpoint = CheckpointCallback(save_freq=10, save_path=str(tmp_path / "checkpoints"), name_prefix="x")
    evaluation = EvalCallback(
        Monitor(ControlEnv()),
        best_model_save_path=str(tmp_path / "best"),
        log_path=str(tmp_path / "evaluations"),
        callback_on_new_best=StopTrainingOnRewardThreshold(reward_threshold=1e6, verbose=0),
        callback_after_eval=StopTrainingOnNoModelImprovement(max_no_improvement_evals=100),
        eval_freq=20,
        n_eval_episodes=2,
        verbose=0,
    )
    every = StopAfter(10**9)
    callbacks = CallbackList(
        [checkpoint, evaluation, EveryNTimesteps(n_steps=7, callback=every), LogEveryNTimesteps(n_steps=9)]
    )
    model = case.make(ControlEnv()).learn(60, callbacks)
    assert model.num_timesteps == 72
    names = sorted(path.name for path in (tmp_path / "checkpoints").iterdir())
    assert names == sorted(f"x_{n}_steps.zip" for n in range(10, 73, 10))
    assert every.n_calls == 10  # at 7, 14, ..., 70
    with np.load(tmp_path / "evaluations" / "evaluations.npz") as evaluations:
        assert evaluations["timesteps"].tolist() == [20, 40, 60]
    best = case.algorithm.load(tmp_path / "best" / "best_model", env=ControlEnv())
    best.learn(24, reset_num_timesteps=False)
    checkpointed = case.algorithm.load(tmp_path / "checkpoints" / "x_30_steps")
    assert checkpointed.num_timesteps == 30


@for_each_algorithm
def test_callbacks_by_list_and_by_function(case: Case) -> None:
    counts = [0, 0]

    def count(local_variables: dict, global_variables: dict) -> bool:
        counts[0] += 1
        return True

    stop = StopAfter(10**9)
    case.make(ControlEnv()).learn(24, [stop])
    case.make(ControlEnv()).learn(24, count)
    assert counts[0] == stop.n_calls == 24


@for_each_algorithm
def test_evaluation_does_not_disturb_training(case: Case) -> None:
    def run(*callbacks: BaseCallback) -> dict[str, np.ndarray]:
        return parameters_of(case.make(ControlEnv()).learn(72, list(callbacks)))

    evaluation = EvalCallback(Monitor(ControlEnv()), eval_freq=10, n_eval_episodes=2, verbose=0, deterministic=True)
    assert_same_parameters(run(), run(evaluation))


@for_each_algorithm
def test_evaluation_on_vec_normalize(case: Case) -> None:
    """The statistics of the training environments are copied to those of the evaluation."""
    training, evaluation = (VecNormalize(make_vec_env(ControlEnv, n_envs=2)) for _ in range(2))
    evaluation.training = False
    callback = EvalCallback(evaluation, eval_freq=10, n_eval_episodes=2, verbose=0)
    case.make(training).learn(96, callback)
    assert evaluation.obs_rms.count > 20  # type: ignore[attr-defined]


@for_each_algorithm
@pytest.mark.parametrize("n_envs", [1, 2])
def test_stop_training_on_max_episodes(case: Case, n_envs: int) -> None:
    """Episodes that nobody asked for, in environments that idle, are not counted."""
    callback = StopTrainingOnMaxEpisodes(max_episodes=3, verbose=0)
    model = case.make(DummyVecEnv([lambda: CountingEnv((2,))] * n_envs), n_episodes=100)
    model.learn(1000, callback)
    assert callback.n_episodes == 3 * n_envs
    assert model.num_timesteps == 6 * n_envs


@for_each_algorithm
def test_stop_at_a_reward_threshold(case: Case) -> None:
    evaluation = EvalCallback(
        Monitor(ControlEnv()),
        callback_on_new_best=StopTrainingOnRewardThreshold(reward_threshold=-1e6, verbose=0),
        eval_freq=10,
        n_eval_episodes=1,
        verbose=0,
    )
    assert case.make(ControlEnv()).learn(1000, evaluation).num_timesteps == 10


@for_each_algorithm
def test_progress_bar(case: Case, capfd: pytest.CaptureFixture) -> None:
    pytest.importorskip("tqdm")
    pytest.importorskip("rich")
    case.make(ControlEnv()).learn(48, progress_bar=True)
    output = capfd.readouterr()
    assert "48/48" in output.out + output.err


@for_each_algorithm
def test_error_in_a_callback_comes_through(case: Case) -> None:
    def fail(local_variables: dict, global_variables: dict) -> bool:
        raise RuntimeError("by the callback")

    with pytest.raises(RuntimeError, match="by the callback"):
        case.make(ControlEnv()).learn(24, fail)
