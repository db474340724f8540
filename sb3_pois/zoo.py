"""
RL Zoo with APOIS and PPOIS.

Importing this module registers both algorithms with RL Zoo; running it is RL Zoo's command line:

    python -m sb3_pois.zoo train --algo apois --env POIS/Cartpole-v0
"""

import argparse
import copy
import importlib
import os
import runpy
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from gymnasium import spaces
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.preprocessing import is_image_space
from stable_baselines3.common.vec_env import DummyVecEnv, VecEnv, VecMonitor

from sb3_pois import APOIS, PPOIS, envs
from sb3_pois.common.pois_algorithm import PoisAlgorithm

INSTALL_HINT = "RL Zoo's commands need: pip install 'sb3_pois[zoo]'"

try:
    import optuna
    import rl_zoo3.exp_manager
    import rl_zoo3.train
    from rl_zoo3.exp_manager import ExperimentManager
    from rl_zoo3.hyperparams_opt import HYPERPARAMS_CONVERTER, HYPERPARAMS_SAMPLER
    from rl_zoo3.utils import ALGOS, get_latest_run_id

    from sb3_pois.zoo_studies import (
        NO_BATCH_SIZE,
        NORMALIZE,
        FirstTrialSampler,
        TrialEvalCallback,
        choices_of,
        convert_pois_params,
        sample_apois_params,
        sample_pois_params,
    )
except ImportError as error:
    if __name__ == "__main__":
        sys.exit(f"{error}. {INSTALL_HINT}")
    raise ImportError(f"{error}. {INSTALL_HINT}") from error

ALGORITHMS: dict[str, type[PoisAlgorithm]] = {"apois": APOIS, "ppois": PPOIS}

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


class PoisExperimentManager(ExperimentManager):
    """
    RL Zoo's experiment manager with what POIS adds.

    Hyperparameter files of this package are found by their names, and are the default for its algorithms. The tasks of
    ``sb3_pois.envs`` run in their native vector environments. Studies also decide whether observations are normalised.

    :param args: as RL Zoo's
    :param kwargs: as RL Zoo's
    """

    can_normalize = True  # whether trials may normalise observations

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
        except (IndexError, KeyError) as error:
            raise ValueError(
                f"--trial-id is {trial_id}, but {study_name} in {storage} has no such trial of {self.algo}; the first is 0"
            ) from error

    def create_log_folder(self) -> None:
        """Create the folder of the run, under the next free number if another run has just taken this one."""
        number = 0
        while True:
            try:
                return os.makedirs(self.params_path)
            except FileExistsError:
                number = max(number, get_latest_run_id(self.log_path, self.env_name)) + 1
                self.save_path = os.path.join(self.log_path, f"{self.env_name}_{number}")
                self.params_path = f"{self.save_path}/{self.env_name}"

    def _load_pretrained_agent(self, hyperparams: dict[str, Any], env: VecEnv) -> BaseAlgorithm:
        if hyperparams.keys() & {"n_episodes", "batch_timesteps"}:  # the budget is one of them: the model's gives way
            hyperparams = {**NO_BATCH_SIZE, **hyperparams}
        return super()._load_pretrained_agent(hyperparams, env)

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
        normalize = trial.suggest_categorical("normalize", [False, True] if self.can_normalize else [False])
        return ExperimentManager.objective(self._with_normalization(normalize), trial)

    def hyperparameters_optimization(self) -> None:
        """
        Run a study.

        :raises ValueError: if the observations are neither vectors nor discrete
        """
        if self.algo in ALGORITHMS:
            env = self.create_envs(1, no_log=True)
            space = env.observation_space
            env.close()
            if isinstance(space, spaces.Dict) or is_image_space(space):
                raise ValueError(
                    f"observations are {space}, but studies choose policies for vectors and discrete numbers only"
                )
            self.can_normalize = isinstance(space, spaces.Box)
        super().hyperparameters_optimization()

    def _create_sampler(self, sampler_method: str) -> optuna.samplers.BaseSampler:
        sampler = super()._create_sampler(sampler_method)
        if self.algo not in ALGORITHMS:
            return sampler
        choices = choices_of(ALGORITHMS[self.algo], self._hyperparams)
        normalize = bool(self.normalize)
        if choices is None or (normalize and self._with_normalization(True).normalize_kwargs != self.normalize_kwargs):
            print("The hyperparameters that this study starts from are beyond its choices: no trial tries them")
            return sampler
        return FirstTrialSampler({**choices, "normalize": normalize}, sampler)

    def _with_normalization(self, normalize: bool) -> "PoisExperimentManager":
        """Copy of this manager that normalises as a trial chose, for trials may run side by side."""
        manager = copy.copy(self)
        manager._preprocess_normalization({**self._hyperparams, "normalize": NORMALIZE if normalize else False})
        return manager


def register() -> None:
    """Make APOIS and PPOIS known to RL Zoo. All its modules hold the same dictionaries, so they are changed in place."""
    ALGOS.update(ALGORITHMS)
    HYPERPARAMS_SAMPLER.update(apois=sample_apois_params, ppois=sample_pois_params)
    HYPERPARAMS_CONVERTER.update(dict.fromkeys(ALGORITHMS, convert_pois_params))
    rl_zoo3.exp_manager.TrialEvalCallback = TrialEvalCallback  # type: ignore[misc]
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
