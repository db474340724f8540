"""RL Zoo's studies with APOIS and PPOIS: what a trial chooses, what its reload builds, and how it fails."""

import argparse
import inspect
from pathlib import Path
from typing import Any

import gymnasium as gym
import optuna
import pytest
import yaml
from rl_zoo3.utils import ALGOS
from stable_baselines3.common.vec_env import VecNormalize, unwrap_vec_normalize

from sb3_pois import APOIS, PPOIS, zoo

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
            super().__init__(env=env, **{**kwargs, "n_episodes": 2, "horizon": 10})

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

    with pytest.raises(ValueError, match="--trial-id is 4, but study has fewer trials"):
        make_manager(tmp_path, algo, trial_id=4, **study).setup_experiment()


@pytest.mark.parametrize("algorithm", [APOIS, PPOIS])
def test_every_choice_is_accepted(algorithm: type[APOIS] | type[PPOIS]) -> None:
    study = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=0))
    for _ in range(30):
        hyperparams = zoo.sample_pois_params(study.ask(), 1, 1, {})
        model = algorithm(env="Pendulum-v1", **hyperparams)
        assert model.policy.log_std.detach().numpy() == pytest.approx(hyperparams["policy_kwargs"]["log_std_init"])
        assert model.policy.log_std.requires_grad is hyperparams["policy_kwargs"]["learn_std"]


@pytest.mark.parametrize("file", sorted(zoo.HYPERPARAMS_FOLDER.glob("*pois.yml")), ids=lambda file: file.stem)
def test_the_second_trial_is_what_the_study_starts_from(file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = record_calls(monkeypatch, file.stem)
    for hyperparams in {yaml.dump(entry): entry for entry in yaml.safe_load(file.read_text()).values()}.values():
        hyperparams = {**hyperparams, "n_timesteps": 40, "n_envs": 2}
        calls.clear()
        make_manager(tmp_path, file.stem, hyperparams=hyperparams, eval_freq=-1).setup_experiment()
        manager = make_manager(tmp_path, file.stem, hyperparams=hyperparams, optimize_hyperparameters=True, n_trials=2)
        manager.setup_experiment()
        manager.hyperparameters_optimization()
        (shipped, shipped_normalize), _, (second, normalize) = calls
        assert explicit(file.stem, second) == explicit(file.stem, shipped)
        assert (normalize is None) == (shipped_normalize is None)


def explicit(algo: str, hyperparams: dict[str, Any]) -> dict[str, Any]:
    """Hyperparameters that the model of these arguments has."""
    model = zoo.ALGORITHMS[algo](env="Pendulum-v1", **hyperparams)
    policy = {name: str(value) for name, value in model.policy._get_constructor_parameters().items()}
    names = inspect.signature(zoo.ALGORITHMS[algo]).parameters.keys() - {"policy", "env", "policy_kwargs"}
    return {"policy": model.policy_class, **policy, **{name: getattr(model, name) for name in names if hasattr(model, name)}}


@pytest.mark.parametrize(
    "hyperparams",
    [
        {"bound": "J"},
        {"batch_timesteps": 100},
        {"policy": "MlpPolicy", "policy_kwargs": {"net_arch": [7]}},
        {"policy": "MlpPolicy", "policy_kwargs": {"with_bias": False}},
        {"normalize": True},
    ],
)
def test_a_study_says_that_its_choices_do_not_have_what_it_starts_from(hyperparams: dict, tmp_path: Path, capsys) -> None:
    manager = make_manager(tmp_path, "ppois", hyperparams=hyperparams, optimize_hyperparameters=True)
    manager.setup_experiment()
    study = optuna.create_study()
    manager._enqueue_default(study)
    assert "no trial will try them" in capsys.readouterr().out
    assert study.trials == []


def test_the_budget_of_the_file_gives_way(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = record_calls(monkeypatch, "apois")
    manager = make_manager(tmp_path, "apois", hyperparams={"batch_timesteps": 100}, optimize_hyperparameters=True)
    manager.setup_experiment()
    manager.objective(optuna.create_study().ask())
    assert calls[0][0]["batch_timesteps"] is None and calls[0][0]["n_episodes"] is not None


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
