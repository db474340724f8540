"""
RL Zoo with APOIS and PPOIS.

Importing this module registers both algorithms with RL Zoo; running it is RL Zoo's command line:

    python -m sb3_pois.zoo train --algo apois --env POIS/Cartpole-v0
"""

import argparse
import copy
import importlib
import inspect
import os
import runpy
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.vec_env import DummyVecEnv, VecEnv, VecMonitor

from sb3_pois import APOIS, PPOIS, envs
from sb3_pois.common.net_arch import hidden_sizes
from sb3_pois.common.pois_algorithm import DEFAULT_N_EPISODES

INSTALL_HINT = "RL Zoo's commands need: pip install 'sb3_pois[zoo]'"

try:
    import optuna
    import rl_zoo3.train
    from rl_zoo3.exp_manager import ExperimentManager
    from rl_zoo3.hyperparams_opt import HYPERPARAMS_CONVERTER, HYPERPARAMS_SAMPLER
    from rl_zoo3.utils import ALGOS
except ImportError as error:
    if __name__ == "__main__":
        sys.exit(f"{error}. {INSTALL_HINT}")
    raise ImportError(f"{error}. {INSTALL_HINT}") from error

ALGORITHMS: dict[str, type[BaseAlgorithm]] = {"apois": APOIS, "ppois": PPOIS}

# Our commands and the modules of RL Zoo that hold them
COMMANDS = {
    "train": "rl_zoo3.train",
    "enjoy": "rl_zoo3.enjoy",
    "plot_train": "rl_zoo3.plots.plot_train",
    "plot_from_file": "rl_zoo3.plots.plot_from_file",
    "all_plots": "rl_zoo3.plots.all_plots",
    "record_video": "rl_zoo3.record_video",
    "push_to_hub": "rl_zoo3.push_to_hub",
}

# A wheel has the files inside the package, a checkout beside it
HYPERPARAMS_FOLDER = next(
    folder for folder in (Path(__file__).parent / "hyperparams", Path(__file__).parents[1] / "hyperparams") if folder.is_dir()
)

# What the native vector environments understand of --env-kwargs
NATIVE_ENV_KWARGS = {"max_episode_steps", "render_mode"}

# Sizes of hidden layers; None is the linear policy
NET_ARCHS: dict[str, list[int] | None] = {"linear": None, "tiny": [16], "small": [64, 64], "paper": [100, 50, 25]}
NORMALIZE = "dict(norm_obs=True, norm_reward=False)"


class PoisExperimentManager(ExperimentManager):
    """
    RL Zoo's experiment manager with what POIS adds.

    Hyperparameter files of this package are found by their names, and are the default for its algorithms. The tasks of
    ``sb3_pois.envs`` run in their native vector environments. Studies also decide whether observations are normalised.

    :param args: as RL Zoo's
    :param kwargs: as RL Zoo's
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        shipped = HYPERPARAMS_FOLDER / (kwargs.get("config") or f"{self.algo}.yml")
        if shipped.is_file() and not Path(self.config).exists():
            self.config = str(shipped)
        if self.config.endswith((".yml", ".yaml", ".py")) and not Path(self.config).is_file():
            names = ", ".join(sorted(file.name for file in HYPERPARAMS_FOLDER.glob("*.yml")))
            raise FileNotFoundError(
                f"-conf is {self.config}, but there is no such file, nor is it one of this package's: {names}"
            )
        if self.trial_id is not None:
            self.trial_id = str(self.trial_id)  # type: ignore[assignment]  # RL Zoo takes the number 0 for no trial

    def load_trial(
        self, storage: str, study_name: str, trial_id: int | str | None = None, convert: bool = True
    ) -> dict[str, Any]:
        """
        Read the hyperparameters of a trial.

        :param storage: storage of the study
        :param study_name: name of the study
        :param trial_id: number of the trial; None for the best
        :param convert: whether to convert them to arguments of the algorithm
        :return: the hyperparameters
        :raises ValueError: if there is no such trial
        """
        try:
            return super().load_trial(storage, study_name, None if trial_id is None else int(trial_id), convert)
        except IndexError as error:
            raise ValueError(f"--trial-id is {trial_id}, but {study_name} has fewer trials; the first is 0") from error

    def create_log_folder(self) -> None:
        """Create the folder of the run, under the next free number if another run has just taken this one."""
        while True:
            try:
                return os.makedirs(self.params_path)
            except FileExistsError:
                folder, number = self.save_path.rsplit("_", 1)
                self.save_path = f"{folder}_{int(number) + 1}"
                self.params_path = f"{self.save_path}/{self.env_name}"

    def create_envs(self, n_envs: int, eval_env: bool = False, no_log: bool = False) -> VecEnv:
        """
        Create the environments, in a native vector environment where nothing asks for separate ones.

        :param n_envs: number of environments
        :param eval_env: whether they serve evaluation
        :param no_log: whether to write no monitor file
        :return: the environments in their wrappers
        """
        env_id = self.env_name.gym_id
        env_kwargs = self.eval_env_kwargs if eval_env else self.env_kwargs
        is_native = (
            env_id in envs.TASKS
            and self.vec_env_class is DummyVecEnv
            and self.env_wrapper is None
            and not self.monitor_kwargs
            and env_kwargs.keys() <= NATIVE_ENV_KWARGS
        )
        if not is_native:
            return super().create_envs(n_envs, eval_env, no_log)
        monitor_file = None if eval_env or no_log else os.path.join(self.save_path, "0")

        def make_native(env_fns: list[Callable], **_: Any) -> VecEnv:
            return VecMonitor(envs.make_vec_env(env_id, len(env_fns), **env_kwargs), monitor_file)

        manager = copy.copy(self)
        manager.vec_env_class = make_native  # type: ignore[assignment]
        return ExperimentManager.create_envs(manager, n_envs, eval_env, no_log)

    def objective(self, trial: optuna.Trial) -> float:
        """
        Train and evaluate with the hyperparameters of a trial.

        :param trial: the trial
        :return: mean reward of the last evaluation
        """
        if self.algo not in ALGORITHMS:
            return super().objective(trial)
        if trial.number == 0:  # only here is the study at hand: RL Zoo creates and runs it in one method
            self._enqueue_default(trial.study)
        manager = self._with_normalization(trial.suggest_categorical("normalize", [False, True]))
        return ExperimentManager.objective(manager, trial)

    def _with_normalization(self, normalize: bool) -> "PoisExperimentManager":
        """Copy of this manager with its own normalisation, for trials may run side by side."""
        manager = copy.copy(self)
        manager._preprocess_normalization({**self._hyperparams, "normalize": NORMALIZE if normalize else False})
        return manager

    def _enqueue_default(self, study: optuna.Study) -> None:
        """Let the study's next trial be the hyperparameters that it starts from, so that its best is no worse."""
        choices = choices_of(ALGORITHMS[self.algo], self._hyperparams)
        if choices is None or self._with_normalization(self.normalize).normalize_kwargs != self.normalize_kwargs:
            print("The hyperparameters that this study starts from are beyond its choices: no trial will try them")
        else:
            study.enqueue_trial({**choices, "normalize": self.normalize})


def sample_pois_params(
    trial: optuna.trial.BaseTrial, n_actions: int, n_envs: int, additional_args: dict[str, Any]
) -> dict[str, Any]:
    """
    Choose the hyperparameters that APOIS and PPOIS share.

    :param trial: the trial that chooses
    :param n_actions: not used, as are the others: part of RL Zoo's interface
    :param n_envs: number of environments
    :param additional_args: what RL Zoo tells its off-policy samplers
    :return: arguments of the algorithm
    """
    return convert_pois_params(
        {
            "delta": trial.suggest_float("delta", 0.05, 1.0),
            "bound": trial.suggest_categorical("bound", ["max-d2", "std-d2", "max-ess", "std-ess"]),
            "iw_norm": trial.suggest_categorical("iw_norm", ["none", "sn"]),
            "n_episodes": trial.suggest_int("n_episodes", 10, 200, log=True),
            "n_offline_iters": trial.suggest_int("n_offline_iters", 2, 50, log=True),
            "log_std_init": trial.suggest_float("log_std_init", -3.0, 1.0),
            "learn_std": trial.suggest_categorical("learn_std", [True, False]),
            "net_arch": trial.suggest_categorical("net_arch", list(NET_ARCHS)),
        }
    )


def convert_pois_params(sampled_params: dict[str, Any]) -> dict[str, Any]:
    """
    Turn what a trial recorded into hyperparameters.

    :param sampled_params: values by the names under which the trial recorded them
    :return: arguments of the algorithm, and ``normalize`` if the trial decided on it
    """
    hyperparams = dict(sampled_params)
    policy_kwargs = {name: hyperparams.pop(name) for name in ("log_std_init", "learn_std")}
    net_arch = NET_ARCHS[hyperparams.pop("net_arch")]
    if net_arch is not None:
        policy_kwargs["net_arch"] = net_arch
    if "normalize" in hyperparams:
        hyperparams["normalize"] = NORMALIZE if hyperparams["normalize"] else False
    # The budget is in episodes, whatever the hyperparameter file has
    policy = "LinearPolicy" if net_arch is None else "MlpPolicy"
    return {**hyperparams, "batch_timesteps": None, "policy": policy, "policy_kwargs": policy_kwargs}


def choices_of(algorithm: type[BaseAlgorithm], hyperparams: dict[str, Any]) -> dict[str, Any] | None:
    """
    Turn hyperparameters into what a trial records that chooses them: the inverse of :func:`convert_pois_params`.

    :param algorithm: APOIS or PPOIS
    :param hyperparams: arguments of its constructor
    :return: values by the names under which trials record them; None if no trial can choose these hyperparameters
    """
    arguments = _complete(algorithm, hyperparams)
    policy_kwargs = arguments["policy_kwargs"]
    sizes = policy_kwargs.get("net_arch")
    choices = {
        **{name: arguments[name] for name in ("delta", "bound", "iw_norm", "n_episodes", "n_offline_iters")},
        **{name: policy_kwargs.get(name) for name in ("log_std_init", "learn_std")},
        "net_arch": next((name for name, net_arch in NET_ARCHS.items() if net_arch == sizes), None),
    }
    try:
        chosen = sample_pois_params(optuna.trial.FixedTrial(choices), 0, 0, {})
    except ValueError:
        return None
    return choices if _complete(algorithm, {**hyperparams, **chosen}) == arguments else None


def _complete(algorithm: type[BaseAlgorithm], hyperparams: dict[str, Any]) -> dict[str, Any]:
    """Arguments of an algorithm and of its policy with their defaults."""
    arguments = {**_defaults(algorithm), **hyperparams}
    policy = arguments["policy"]
    policy_kwargs = {**_defaults(algorithm.policy_aliases.get(policy, policy)), **(arguments["policy_kwargs"] or {})}
    if arguments["n_episodes"] is None and arguments["batch_timesteps"] is None:
        arguments["n_episodes"] = DEFAULT_N_EPISODES
    if "net_arch" in policy_kwargs:
        policy_kwargs["net_arch"] = hidden_sizes(policy_kwargs["net_arch"])
    return {**arguments, "policy_kwargs": policy_kwargs}


def _defaults(function: Callable) -> dict[str, Any]:
    """Default arguments of a function or class."""
    return {name: parameter.default for name, parameter in inspect.signature(function).parameters.items()}


def register() -> None:
    """Make APOIS and PPOIS known to RL Zoo. All its modules hold the same dictionaries, so they are changed in place."""
    ALGOS.update(ALGORITHMS)
    HYPERPARAMS_SAMPLER.update(dict.fromkeys(ALGORITHMS, sample_pois_params))
    HYPERPARAMS_CONVERTER.update(dict.fromkeys(ALGORITHMS, convert_pois_params))
    rl_zoo3.train.ExperimentManager = PoisExperimentManager  # type: ignore[misc]


def mend_hub() -> None:
    """Give RL Zoo 2.9 the function that huggingface_sb3 3.2 renamed, with the dictionary that it used to return."""
    hub: Any = importlib.import_module("huggingface_sb3.push_to_hub")
    if not hasattr(hub, "generate_metadata"):
        hub.generate_metadata = lambda *args: hub._generate_metadata(*args).to_dict()


def main() -> None:
    """Run a command of RL Zoo."""
    parser = argparse.ArgumentParser("sb3-pois", description="RL Zoo's commands, with the algorithms apois and ppois.")
    parser.add_argument("command", choices=COMMANDS, help="what to do; COMMAND --help lists its arguments")
    parser.add_argument("arguments", nargs=argparse.REMAINDER, help="arguments of the command, as RL Zoo has them")
    arguments = parser.parse_args()
    sys.argv = [f"sb3-pois {arguments.command}", *arguments.arguments]
    mend_hub()
    try:
        module = importlib.import_module(COMMANDS[arguments.command])
    except ImportError as error:
        sys.exit(f"{error}. {INSTALL_HINT}")
    function = getattr(module, arguments.command, None)
    if function is not None:
        function()
    else:  # a module that is nothing but a program
        assert module.__file__ is not None
        runpy.run_path(module.__file__, run_name="__main__")


register()

if __name__ == "__main__":
    main()
