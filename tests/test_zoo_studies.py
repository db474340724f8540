"""RL Zoo's studies with APOIS and PPOIS: what a trial chooses, what its reload builds, and how it fails."""

import argparse
import inspect
import math
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import optuna
import pytest
import yaml
from gymnasium import spaces
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend
from rl_zoo3.utils import ALGOS
from stable_baselines3.common.vec_env import VecNormalize, unwrap_vec_normalize

from sb3_pois import APOIS, PPOIS, zoo, zoo_studies
from tests.helpers.envs import AnySpacesEnv, ControlEnv

HYPERPARAMS = {"n_timesteps": 40, "n_envs": 2, "policy": "LinearPolicy", "gamma": 0.9}


def make_manager(folder: Path, algo: str, env: str = "Pendulum-v1", **kwargs: Any) -> zoo.PoisExperimentManager:
    """An experiment with a tiny budget."""
    file = folder / "hyperparams.yml"
    file.write_text(yaml.dump({env: {**HYPERPARAMS, **kwargs.pop("hyperparams", {})}}))
    return zoo.PoisExperimentManager(
        argparse.Namespace(),
        algo,
        env,
        str(folder),
        config=str(file),
        n_eval_episodes=1,
        verbose=0,
        no_optim_plots=True,
        **kwargs,
    )


def record_calls(monkeypatch: pytest.MonkeyPatch, algo: str) -> list[tuple[dict[str, Any], VecNormalize | None]]:
    """Note how the algorithm is constructed and whether its environment is normalised, and let it learn as little."""
    algorithm = ALGOS[algo]
    calls = []

    class Recorder(algorithm):  # type: ignore[valid-type,misc]
        def __init__(self, env: Any, **kwargs: Any) -> None:
            hyperparams = {k: v for k, v in kwargs.items() if k not in ("seed", "verbose", "tensorboard_log", "device")}
            calls.append((hyperparams, unwrap_vec_normalize(env)))
            super().__init__(env=env, **{**kwargs, "n_episodes": 2, "batch_timesteps": None, "horizon": 10})

    monkeypatch.setitem(ALGOS, algo, Recorder)
    return calls


@pytest.mark.parametrize("algo", ["apois", "ppois"])
def test_reload_of_a_trial_constructs_the_same(algo: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = record_calls(monkeypatch, algo)
    study = dict(storage=str(tmp_path / "study.log"), study_name="study")
    manager = make_manager(
        tmp_path, algo, optimize_hyperparameters=True, n_trials=4, sampler="random", pruner="none", seed=1, **study
    )
    assert manager.setup_experiment() is None
    manager.hyperparameters_optimization()
    trials = list(calls)
    assert len(trials) == 4
    assert len({normalize is None for _, normalize in trials}) == 2, "both sides of the choice are tried"
    assert len({hyperparams["delta"] for hyperparams, _ in trials}) == 4

    for number, (hyperparams, normalize) in enumerate(trials):
        calls.clear()
        make_manager(tmp_path, algo, trial_id=number, eval_freq=-1, **study).setup_experiment()
        ((reloaded, reloaded_normalize),) = calls
        assert reloaded == hyperparams
        assert (reloaded_normalize is None) == (normalize is None)
        if normalize is not None and reloaded_normalize is not None:
            assert reloaded_normalize.gamma == normalize.gamma == 0.9
            assert reloaded_normalize.norm_obs and not reloaded_normalize.norm_reward and not normalize.norm_reward

    with pytest.raises(ValueError, match="--trial-id is 4, but study in .* has no such trial of"):
        make_manager(tmp_path, algo, trial_id=4, **study).setup_experiment()


@pytest.mark.parametrize(
    ("algorithm", "sample"), [(APOIS, zoo_studies.sample_apois_params), (PPOIS, zoo_studies.sample_pois_params)]
)
def test_every_choice_is_accepted(algorithm: type[APOIS] | type[PPOIS], sample: Callable) -> None:
    study = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=0))
    for _ in range(30):
        hyperparams = sample(study.ask(), 1, 1, {})
        model = algorithm(env="Pendulum-v1", **hyperparams)
        assert model.policy.log_std.detach().numpy() == pytest.approx(hyperparams["policy_kwargs"]["log_std_init"])
        assert model.policy.log_std.requires_grad is hyperparams["policy_kwargs"]["learn_std"]


@pytest.mark.parametrize("file", sorted(zoo.HYPERPARAMS_FOLDER.glob("*pois.yml")), ids=lambda file: file.stem)
def test_the_first_trial_is_what_the_study_starts_from(file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = record_calls(monkeypatch, file.stem)
    for hyperparams in {yaml.dump(entry): entry for entry in yaml.safe_load(file.read_text()).values()}.values():
        if file.stem == "apois" and "n_episodes" in hyperparams:  # whose studies choose the steps of a batch
            arguments = {
                name: value for name, value in hyperparams.items() if name not in ("n_timesteps", "n_envs", "normalize")
            }
            assert zoo_studies.choices_of(APOIS, arguments) is None
            continue
        hyperparams = {**hyperparams, "n_timesteps": 40, "n_envs": 2}
        calls.clear()
        make_manager(tmp_path, file.stem, hyperparams=hyperparams, eval_freq=-1).setup_experiment()
        run_study(make_manager(tmp_path, file.stem, hyperparams=hyperparams, optimize_hyperparameters=True, n_trials=1))
        (shipped, shipped_normalize), (first, normalize) = calls
        assert explicit(file.stem, first) == explicit(file.stem, shipped)
        assert (normalize is None) == (shipped_normalize is None)


def run_study(manager: zoo.PoisExperimentManager) -> None:
    """Set an experiment up and run its study."""
    manager.setup_experiment()
    manager.hyperparameters_optimization()


def explicit(algo: str, hyperparams: dict[str, Any]) -> dict[str, Any]:
    """Hyperparameters that the model of these arguments has."""
    model = zoo.ALGORITHMS[algo](env="Pendulum-v1", **hyperparams)
    policy = {name: str(value) for name, value in model.policy._get_constructor_parameters().items()}
    names = inspect.signature(zoo.ALGORITHMS[algo]).parameters.keys() - {"policy", "env", "policy_kwargs"}
    arguments = {name: getattr(model, name) for name in names if hasattr(model, name)}
    arguments["n_episodes"], arguments["batch_timesteps"] = model._batch_size()
    return {"policy": model.policy_class, **policy, **arguments}


@pytest.mark.parametrize("sampler", ["tpe", "random"])
def test_only_the_first_trial_is_given(sampler: str, tmp_path: Path) -> None:
    study: dict[str, Any] = dict(storage=str(tmp_path / "study.log"), study_name="study", sampler=sampler, pruner="none")
    hyperparams = {"n_episodes": np.int64(12), "delta": 0.01, "normalize": None}  # one a number outside the range
    for _ in range(2):  # the second time resumed
        manager = make_manager(tmp_path, "ppois", optimize_hyperparameters=True, n_trials=2, n_startup_trials=1, **study)
        manager.custom_hyperparams = hyperparams
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Optuna's, of the range
            run_study(manager)
    trials = optuna.load_study(study_name="study", storage=zoo_storage(study["storage"])).trials
    assert [trial.state for trial in trials] == 4 * [optuna.trial.TrialState.COMPLETE]
    assert (trials[0].params["n_episodes"], trials[0].params["delta"], trials[0].params["normalize"]) == (12, 0.01, False)
    assert all(trial.params["delta"] >= 0.05 for trial in trials[1:])


def zoo_storage(path: str) -> optuna.storages.BaseStorage:
    """RL Zoo's storage in a file."""
    return JournalStorage(JournalFileBackend(path))


def test_an_interrupted_first_trial_is_made_up_for() -> None:
    first, seed = {"x": 0.25}, optuna.samplers.RandomSampler(seed=0)
    study = optuna.create_study(sampler=zoo_studies.FirstTrialSampler(first, seed))

    def choose() -> tuple[optuna.Trial, float]:
        trial = study.ask()
        return trial, trial.suggest_float("x", 0.0, 1.0)

    assert choose()[1] == 0.25 and choose()[1] != 0.25  # neither comes to an end
    study.sampler = zoo_studies.FirstTrialSampler(first, seed)
    trial, value = choose()
    assert value == 0.25
    study.tell(trial, 1.0)
    study.sampler = zoo_studies.FirstTrialSampler(first, seed)
    assert choose()[1] != 0.25


@pytest.mark.parametrize(
    "hyperparams",
    [
        {"bound": "J"},
        {"n_episodes": None, "batch_timesteps": 100},
        {"policy": "MlpPolicy", "policy_kwargs": {"net_arch": [7]}},
        {"policy": "MlpPolicy", "policy_kwargs": {"net_arch": 7}},
        {"policy": "MlpPolicy", "policy_kwargs": {"with_bias": False}},
        {"policy_kwargs": {"mean_init": np.zeros(3)}},
        {"policy": "CnnPolicy"},
        {"normalize": True},
    ],
    ids=str,
)
def test_a_study_says_that_its_choices_do_not_have_what_it_starts_from(hyperparams: dict, tmp_path: Path, capsys) -> None:
    manager = make_manager(tmp_path, "ppois", optimize_hyperparameters=True, n_trials=1, seed=0)
    manager.custom_hyperparams = {"n_episodes": 20, **hyperparams}
    run_study(manager)
    assert "no trial tries them" in capsys.readouterr().out


@pytest.fixture
def make_id() -> Iterator[Callable[[spaces.Space], str]]:
    """Registers an environment with these observations and tells its id."""

    def register(observation_space: spaces.Space) -> str:
        gym.register("Odd-v0", lambda **_: AnySpacesEnv(observation_space, spaces.Box(-1, 1, (1,))))
        return "Odd-v0"

    yield register
    del gym.registry["Odd-v0"]


@pytest.mark.parametrize("space", [spaces.Discrete(3), spaces.MultiBinary(3), spaces.MultiDiscrete([2, 3])], ids=str)
def test_discrete_observations_are_never_normalised(
    space: spaces.Space, make_id: Callable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = record_calls(monkeypatch, "apois")
    run_study(make_manager(tmp_path, "apois", make_id(space), optimize_hyperparameters=True, n_trials=5, sampler="random"))
    assert len(calls) == 5 and all(normalize is None for _, normalize in calls)


@pytest.mark.parametrize(
    "space", [spaces.Box(0, 255, (36, 36, 1), np.uint8), spaces.Dict({"a": spaces.Box(-1, 1, (2,))})], ids=["image", "Dict"]
)
def test_studies_refuse_other_observations(space: spaces.Space, make_id: Callable, tmp_path: Path) -> None:
    policy = "MultiInputPolicy" if isinstance(space, spaces.Dict) else "CnnPolicy"
    hyperparams = {"policy": policy}
    manager = make_manager(tmp_path, "apois", make_id(space), hyperparams=hyperparams, optimize_hyperparameters=True)
    with pytest.raises(ValueError, match="studies choose policies for vectors"):
        run_study(manager)


@pytest.mark.parametrize(("batch", "steps"), [(10, [1, 2, 3]), (25, [2, 3]), (60, [4])])
def test_a_trial_is_scored_by_what_its_last_batch_led_to(
    batch: int, steps: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever the length of a batch, in steps, beside that of the trial and the interval between evaluations, 20."""
    evaluated: list[int] = []

    def evaluate(model: APOIS, *args: Any, **kwargs: Any) -> tuple[list[float], list[int]]:
        evaluated.append(model._n_updates)
        return [float(model._n_updates)], [1]

    monkeypatch.setattr("stable_baselines3.common.callbacks.evaluate_policy", evaluate)
    model = APOIS("LinearPolicy", ControlEnv(), batch_timesteps=batch, horizon=5)
    trial = optuna.create_study(direction="maximize", pruner=optuna.pruners.NopPruner()).ask()
    callback = zoo_studies.TrialEvalCallback(model.env, trial, eval_freq=20)  # type: ignore[arg-type]
    model.learn(50, callback)
    assert evaluated == sorted(set(evaluated)) and 0 not in evaluated
    assert callback.last_mean_reward == evaluated[-1] == model._n_updates == math.ceil(50 / batch)
    # What a pruner compares with other trials is the number of intervals, not of evaluations
    assert list(trial.study.trials[0].intermediate_values) == steps


def test_the_budget_of_the_file_gives_way(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = record_calls(monkeypatch, "ppois")
    budget = {"batch_timesteps": 100, "finish_last_episode": True}
    manager = make_manager(tmp_path, "ppois", hyperparams=budget, optimize_hyperparameters=True)
    manager.setup_experiment()
    manager.objective(optuna.create_study().ask())
    assert calls[0][0]["batch_timesteps"] is None and calls[0][0]["n_episodes"] >= 10


class NanReward(gym.RewardWrapper):
    """Pays NaN."""

    def reward(self, reward: Any) -> float:
        """
        :param reward: the true one
        :return: NaN
        """
        return float("nan")


@pytest.mark.parametrize("algo", ["apois", "ppois"])
def test_a_numerical_failure_prunes_the_trial(algo: str, tmp_path: Path) -> None:
    hyperparams = {"env_wrapper": f"{__name__}.NanReward"}
    manager = make_manager(tmp_path, algo, hyperparams=hyperparams, optimize_hyperparameters=True)
    manager.setup_experiment()
    with pytest.raises(optuna.TrialPruned) as pruned:
        manager.objective(optuna.create_study().ask())
    assert isinstance(pruned.value.__cause__, ValueError)
    assert "reward" in str(pruned.value.__cause__)


def test_studies_of_other_algorithms_are_left_alone(tmp_path: Path) -> None:
    manager = make_manager(tmp_path, "ppo", optimize_hyperparameters=True, hyperparams={"policy": "MlpPolicy"})
    manager.setup_experiment()
    study = optuna.create_study()
    study.enqueue_trial({"n_steps_pow": 5, "batch_size_pow": 5, "n_epochs": 1})
    trial = study.ask()
    manager.objective(trial)
    assert "normalize" not in trial.params and "one_minus_gae_lambda" in trial.params
