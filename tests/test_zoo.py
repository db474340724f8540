"""RL Zoo's commands with APOIS and PPOIS: training, evaluation, environments, hyperparameter files."""

import argparse
import re
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import rl_zoo3.exp_manager
import rl_zoo3.train
import yaml
from stable_baselines3.common.monitor import load_results
from stable_baselines3.common.vec_env import DummyVecEnv, VecEnv, VecEnvWrapper, VecFrameStack, VecMonitor, VecNormalize

from sb3_pois import APOIS, PPOIS, zoo, zoo_studies
from sb3_pois.envs import TASKS, TaskVecEnv
from tests.helpers.zoo import run

ALGORITHMS: dict[str, type[APOIS] | type[PPOIS]] = {"apois": APOIS, "ppois": PPOIS}
HYPERPARAMS_FILES = sorted(zoo.HYPERPARAMS_FOLDER.glob("*.yml"))
CARTPOLE = "POIS/Cartpole-v0"
PAPER_NAMES = ("Cartpole", "InvertedPendulum", "Acrobot", "MountainCar", "InvertedDoublePendulum", "Swimmer")
PAPER_TASKS = [f"POIS/{name}-v0" for name in PAPER_NAMES]
TINY = {"n_timesteps": 60, "n_envs": 2, "n_episodes": 4, "policy": "LinearPolicy"}


def make_manager(folder: Path, algo: str = "apois", env: str = CARTPOLE, **kwargs) -> zoo.PoisExperimentManager:
    """An experiment with a tiny budget."""
    hyperparams = {**TINY, **kwargs.pop("hyperparams", {})}
    args = argparse.Namespace()
    return zoo.PoisExperimentManager(args, algo, env, str(folder), hyperparams=hyperparams, verbose=0, **kwargs)


def set_up(manager: zoo.PoisExperimentManager) -> APOIS | PPOIS:
    """The model of an experiment."""
    result = manager.setup_experiment()
    assert result is not None
    assert isinstance(result[0], (APOIS, PPOIS))
    return result[0]


def layers(env: VecEnv | None) -> list[type]:
    """Types of the wrappers and the environment inside, from the outside in."""
    types: list[type] = []
    while env is not None:
        types.append(type(env))
        env = env.venv if isinstance(env, VecEnvWrapper) else None
    return types


def test_import_registers_in_every_module_of_rl_zoo() -> None:
    for name, algorithm in ALGORITHMS.items():
        assert rl_zoo3.ALGOS[name] is algorithm
        assert rl_zoo3.exp_manager.ALGOS[name] is algorithm
        assert rl_zoo3.train.ALGOS[name] is algorithm
        assert name in rl_zoo3.exp_manager.HYPERPARAMS_SAMPLER
        assert name in rl_zoo3.exp_manager.HYPERPARAMS_CONVERTER
    assert rl_zoo3.train.train.__globals__["ExperimentManager"] is zoo.PoisExperimentManager
    assert rl_zoo3.exp_manager.ExperimentManager.objective.__globals__["TrialEvalCallback"] is zoo_studies.TrialEvalCallback


@pytest.mark.parametrize("algo", ALGORITHMS)
def test_train_continue_and_enjoy(algo: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    tiny = "-params n_episodes:5 n_envs:2 --eval-freq 100 --eval-episodes 1 --seed 3"
    run(monkeypatch, tmp_path, f"train --algo {algo} --env CartPole-v1 -n 400 {tiny}")
    folder = tmp_path / "logs" / algo / "CartPole-v1_1"
    trained = ALGORITHMS[algo].load(folder / "CartPole-v1.zip")
    assert trained.num_timesteps >= 400 and trained.n_episodes == 5
    assert (folder / "best_model.zip").is_file()
    # every 100 environment steps, which are 50 of the vector environment
    timesteps = np.load(folder / "evaluations.npz")["timesteps"]
    assert timesteps[:4].tolist() == [100, 200, 300, 400]
    assert len(load_results(str(folder))) > 0

    # One step of continued training starts from the trained policy
    collecting: list[np.ndarray] = []
    monkeypatch.setattr(ALGORITHMS[algo], "train", lambda self: collecting.append(flat_parameters(self)))
    run(monkeypatch, tmp_path, f"train --algo {algo} --env CartPole-v1 -n 1 {tiny} -i {folder / 'CartPole-v1.zip'}")
    np.testing.assert_array_equal(collecting[0], flat_parameters(trained))

    capsys.readouterr()
    run(monkeypatch, tmp_path, f"enjoy --algo {algo} --env CartPole-v1 -f logs --no-render --deterministic -n 600 --exp-id 1")
    assert "Mean reward" in capsys.readouterr().out


def test_continued_training_takes_the_budget_of_the_file(tmp_path: Path) -> None:
    hyperparams = {"n_episodes": None, "batch_timesteps": 30, "finish_last_episode": True}
    manager = make_manager(tmp_path, hyperparams=hyperparams)
    manager.save_trained_model(set_up(manager))
    trained_agent = f"{manager.save_path}/POIS-Cartpole-v0.zip"
    model = set_up(make_manager(tmp_path, trained_agent=trained_agent))
    assert (model.n_episodes, model.batch_timesteps, model.finish_last_episode) == (4, None, False)
    model = set_up(make_manager(tmp_path, trained_agent=trained_agent, hyperparams=hyperparams))
    assert (model.n_episodes, model.batch_timesteps, model.finish_last_episode) == (None, 30, True)


def flat_parameters(model: APOIS | PPOIS) -> np.ndarray:
    """All parameters of a model's policy in one array."""
    return np.concatenate([parameter.detach().numpy().ravel() for parameter in model.policy.parameters()])


def test_own_algorithms_of_sb3_still_train(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tiny = "-params n_steps:16 n_envs:1 batch_size:16 -n 16 --eval-freq -1"
    run(monkeypatch, tmp_path, f"train --algo ppo --env CartPole-v1 {tiny}")
    assert (tmp_path / "logs/ppo/CartPole-v1_1/CartPole-v1.zip").is_file()


def test_trained_tasks_of_ours_are_enjoyed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    run(monkeypatch, tmp_path, f"train --algo ppois --env {CARTPOLE} -n 200 -params n_envs:4 n_episodes:4 --eval-freq 40")
    # Idle environments play on, so the file may hold more episodes than the batches
    assert len(load_results(str(tmp_path / "logs/ppois/POIS-Cartpole-v0_1"))) >= 4
    run(monkeypatch, tmp_path, f"enjoy --algo ppois --env {CARTPOLE} -f logs --no-render -n 600")
    assert "Mean reward" in capsys.readouterr().out


@pytest.mark.parametrize("name", ["logs", "lo [1] gs"])
def test_runs_that_start_at_once_have_folders_of_their_own(name: str, tmp_path: Path) -> None:
    tmp_path /= name
    managers = [make_manager(tmp_path) for _ in range(3)]
    for manager in managers:
        set_up(manager)
    folders = [tmp_path / "apois" / f"POIS-Cartpole-v0_{number}" for number in (1, 2, 3)]
    assert [Path(manager.save_path) for manager in managers] == folders
    for folder in folders:
        assert (folder / "0.monitor.csv").is_file() and (folder / "POIS-Cartpole-v0/config.yml").is_file()


# Environments


@pytest.mark.parametrize("task", TASKS)
def test_native_environments_train_and_evaluate(task: str, tmp_path: Path) -> None:
    manager = make_manager(tmp_path, env=task, n_eval_envs=3)
    model = set_up(manager)
    assert layers(model.env) == [VecMonitor, TaskVecEnv] and model.n_envs == 2
    evaluation = manager.callbacks[-1].eval_env  # type: ignore[attr-defined]
    assert layers(evaluation) == [VecMonitor, TaskVecEnv] and evaluation.num_envs == 3
    (monitor,) = Path(manager.save_path).glob("*.monitor.csv")
    assert monitor.name == "0.monitor.csv" and f'"env_id": "{task}"' in monitor.read_text()


def test_wrappers_on_native_environments(tmp_path: Path) -> None:
    hyperparams = {"normalize": "dict(norm_obs=True, norm_reward=False)", "frame_stack": 3, "gamma": 0.9}
    model = set_up(make_manager(tmp_path, hyperparams=hyperparams))
    assert layers(model.env) == [VecFrameStack, VecNormalize, VecMonitor, TaskVecEnv]
    normalize = model.get_vec_normalize_env()
    assert normalize is not None and normalize.gamma == 0.9 and not normalize.norm_reward
    assert model.observation_space.shape == (12,)


@pytest.mark.parametrize(
    "kwargs",
    [
        {"hyperparams": {"env_wrapper": "gymnasium.wrappers.NormalizeObservation"}},
        {"hyperparams": {"monitor_kwargs": "dict(info_keywords=())"}},
        {"env_kwargs": {"disable_env_checker": True}},
    ],
)
def test_separate_environments_where_something_needs_them(kwargs: dict, tmp_path: Path) -> None:
    model = set_up(make_manager(tmp_path, **kwargs))
    assert layers(model.env) == [DummyVecEnv]
    if "env_wrapper" in kwargs.get("hyperparams", {}):
        assert model.env is not None and all(model.env.env_is_wrapped(gym.wrappers.NormalizeObservation))


def test_env_kwargs_reach_native_environments(tmp_path: Path) -> None:
    kwargs: dict[str, Any] = {"env_kwargs": {"max_episode_steps": 7}, "eval_env_kwargs": {"max_episode_steps": 9}}
    manager = make_manager(tmp_path, env="POIS/Acrobot-v0", **kwargs)
    training, evaluation = set_up(manager).env, manager.callbacks[-1].eval_env  # type: ignore[attr-defined]
    assert training is not None
    for env, limit in ((training, 7), (evaluation, 9)):
        env.reset()
        action = np.zeros((env.num_envs, 1), dtype=np.float32)
        dones = [env.step(action)[2].all() for _ in range(limit)]
        assert dones == [False] * (limit - 1) + [True]


def test_native_environments_are_seeded_as_separate_ones(tmp_path: Path) -> None:
    native = make_manager(tmp_path, seed=5).create_envs(3, no_log=True)
    separate = make_manager(tmp_path, seed=5, env_kwargs={"disable_env_checker": True}).create_envs(3, no_log=True)
    assert layers(native)[-1] is TaskVecEnv and layers(separate) == [DummyVecEnv]
    np.testing.assert_allclose(np.asarray(native.reset()), np.asarray(separate.reset()), atol=1e-6)
    rng = np.random.default_rng(0)
    for _ in range(20):
        actions = rng.uniform(-1, 1, (3, 1)).astype(np.float32)
        for ours, theirs in zip(native.step(actions)[:3], separate.step(actions)[:3], strict=True):
            np.testing.assert_allclose(np.asarray(ours), np.asarray(theirs), atol=1e-4)


def test_callback_of_the_hyperparameters_is_called(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    callback = {"stable_baselines3.common.callbacks.StopTrainingOnMaxEpisodes": {"max_episodes": 1}}
    manager = make_manager(tmp_path, hyperparams={"callback": [callback], "n_timesteps": 100_000}, eval_freq=-1)
    model = set_up(manager)
    manager.learn(model)
    assert model.num_timesteps < 2_000


def test_subprocesses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tiny = "-n 60 -params n_envs:2 n_episodes:4 --eval-freq 40 --eval-episodes 1"
    run(monkeypatch, tmp_path, f"train --algo apois --env {CARTPOLE} {tiny} --vec-env subproc")
    folder = tmp_path / "logs/apois/POIS-Cartpole-v0_1"
    assert len(list(folder.glob("*.monitor.csv"))) == 2


# Hyperparameter files


@pytest.mark.parametrize("file", HYPERPARAMS_FILES, ids=lambda file: file.stem)
def test_every_entry_builds_a_model(file: Path, tmp_path: Path) -> None:
    algo = file.stem.split("_")[0]
    for env in yaml.safe_load(file.read_text()):
        if env == "default":
            continue
        if "LunarLander" in env:
            pytest.importorskip("Box2D")
        manager = zoo.PoisExperimentManager(
            argparse.Namespace(), algo, env, str(tmp_path), config=file.name, verbose=0, eval_freq=-1
        )
        model = set_up(manager)
        assert isinstance(model, ALGORITHMS[algo])
        assert model.env is not None
        model.env.close()


@pytest.mark.parametrize("file", HYPERPARAMS_FILES, ids=lambda file: file.stem)
def test_every_entry_says_where_it_comes_from(file: Path) -> None:
    text = file.read_text()
    for env in yaml.safe_load(text):
        assert re.search(rf"^# (Paper|Tuned|Untuned)\b.*\n(#.*\n)*{re.escape(env)}:", text, re.MULTILINE), env


@pytest.mark.parametrize("algo", ALGORITHMS)
def test_the_papers_tasks_are_covered(algo: str) -> None:
    entries = yaml.safe_load((zoo.HYPERPARAMS_FOLDER / f"{algo}.yml").read_text())
    assert {"default", *PAPER_TASKS} <= entries.keys()
    assert all(entries[task]["n_envs"] == 100 for task in PAPER_TASKS)
    deep = yaml.safe_load((zoo.HYPERPARAMS_FOLDER / f"{algo}_deep.yml").read_text())
    assert set(PAPER_TASKS) <= deep.keys()


def test_files_of_the_user_come_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    shipped = make_manager(tmp_path, config="apois_deep.yml")
    assert Path(shipped.config) == zoo.HYPERPARAMS_FOLDER / "apois_deep.yml"
    Path("apois_deep.yml").touch()
    Path("apois.yml").touch()
    assert make_manager(tmp_path, config="apois_deep.yml").config == "apois_deep.yml"
    assert Path(make_manager(tmp_path).config) == zoo.HYPERPARAMS_FOLDER / "apois.yml"
    with pytest.raises(FileNotFoundError, match=r"other\.yml.*apois\.yml, apois_deep\.yml"):
        make_manager(tmp_path, config="other.yml")
    assert make_manager(tmp_path, config="a.package").config == "a.package"
