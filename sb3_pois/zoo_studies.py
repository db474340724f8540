"""What RL Zoo's studies choose for APOIS and PPOIS, where they start, and how they score a trial."""

import inspect
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import rl_zoo3.callbacks
from optuna.distributions import BaseDistribution
from optuna.samplers import BaseSampler
from optuna.study import Study
from optuna.trial import BaseTrial, FixedTrial, FrozenTrial, TrialState

from sb3_pois.common.net_arch import hidden_sizes
from sb3_pois.common.pois_algorithm import PoisAlgorithm

# Sizes of hidden layers; None is the linear policy
NET_ARCHS: dict[str, list[int] | None] = {"linear": None, "tiny": [16], "small": [64, 64], "paper": [100, 50, 25]}
# What APOIS weights, and how far a target may go from the batch
ESTIMATES: dict[str, dict[str, Any]] = {
    "trajectory": dict(iw_method="trajectory", iw_lambda=1.0, baseline="none", min_ess=0.0, natural_gradient=False),
    "per-decision": dict(iw_method="per-decision", iw_lambda=1.0, baseline="none", min_ess=0.3, natural_gradient=False),
    "forgetting": dict(iw_method="per-decision", iw_lambda=0.95, baseline="linear", min_ess=0.75, natural_gradient=True),
}
# Takes away the size of a batch that a file or a model has, for the one that is given to go with
NO_BATCH_SIZE: dict[str, Any] = dict(n_episodes=None, batch_timesteps=None, finish_last_episode=False)
NORMALIZE = "dict(norm_obs=True, norm_reward=False)"


def sample_pois_params(trial: BaseTrial, n_actions: int, n_envs: int, additional_args: dict[str, Any]) -> dict[str, Any]:
    """
    Choose the hyperparameters of PPOIS.

    :param trial: the trial that chooses
    :param n_actions: not used, as are the others: part of RL Zoo's interface
    :param n_envs: number of environments
    :param additional_args: what RL Zoo tells its off-policy samplers
    :return: arguments of the algorithm
    """
    n_episodes = trial.suggest_int("n_episodes", 10, 200, log=True)
    return convert_pois_params({**_shared_choices(trial), "n_episodes": n_episodes})


def sample_apois_params(trial: BaseTrial, n_actions: int, n_envs: int, additional_args: dict[str, Any]) -> dict[str, Any]:
    """
    Choose the hyperparameters of APOIS.

    :param trial: the trial that chooses
    :param n_actions: not used, as are the others: part of RL Zoo's interface
    :param n_envs: number of environments
    :param additional_args: what RL Zoo tells its off-policy samplers
    :return: arguments of the algorithm
    """
    choices = {
        **_shared_choices(trial),
        "batch_timesteps": trial.suggest_int("batch_timesteps", 1000, 50_000, log=True),
        "estimate": trial.suggest_categorical("estimate", list(ESTIMATES)),
    }
    return convert_pois_params(choices)


def _shared_choices(trial: BaseTrial) -> dict[str, Any]:
    return {
        "delta": trial.suggest_float("delta", 0.05, 1.0),
        "bound": trial.suggest_categorical("bound", ["max-d2", "std-d2", "max-ess", "std-ess"]),
        "iw_norm": trial.suggest_categorical("iw_norm", ["none", "sn"]),
        "n_offline_iters": trial.suggest_int("n_offline_iters", 2, 50, log=True),
        "log_std_init": trial.suggest_float("log_std_init", -3.0, 1.0),
        "learn_std": trial.suggest_categorical("learn_std", [True, False]),
        "net_arch": trial.suggest_categorical("net_arch", list(NET_ARCHS)),
    }


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
    if "estimate" in hyperparams:
        hyperparams.update(ESTIMATES[hyperparams.pop("estimate")])
        if hyperparams["iw_lambda"] < 1.0:  # which has no bound from the divergence
            hyperparams["bound"] = hyperparams["bound"].replace("-d2", "-ess")
    if "normalize" in hyperparams:
        hyperparams["normalize"] = NORMALIZE if hyperparams["normalize"] else False
    policy = "LinearPolicy" if net_arch is None else "MlpPolicy"
    # A batch has the size that the trial chose, whatever the hyperparameter file has
    return {**NO_BATCH_SIZE, **hyperparams, "policy": policy, "policy_kwargs": policy_kwargs}


def choices_of(algorithm: type[PoisAlgorithm], hyperparams: dict[str, Any]) -> dict[str, Any] | None:
    """
    Turn hyperparameters into what a trial records that chooses them: the inverse of :func:`convert_pois_params`.

    :param algorithm: APOIS or PPOIS
    :param hyperparams: arguments of its constructor; numbers may be outside the ranges from which trials choose
    :return: values by the names under which trials record them; None if no trial can choose these hyperparameters
    """
    try:
        arguments = _complete(algorithm, hyperparams)
        policy_kwargs = arguments["policy_kwargs"]
        sizes = policy_kwargs.get("net_arch")
        choices = {
            "delta": float(arguments["delta"]),
            "bound": arguments["bound"],
            "iw_norm": arguments["iw_norm"],
            "n_offline_iters": int(arguments["n_offline_iters"]),
            "log_std_init": float(policy_kwargs["log_std_init"]),
            "learn_std": bool(policy_kwargs["learn_std"]),
            "net_arch": next(name for name, net_arch in NET_ARCHS.items() if net_arch == sizes),
        }
        if "iw_method" not in arguments:
            sample = sample_pois_params
            choices["n_episodes"] = int(arguments["n_episodes"])
        else:
            sample = sample_apois_params
            choices["batch_timesteps"] = int(arguments["batch_timesteps"])
            choices["estimate"] = next(
                name for name, options in ESTIMATES.items() if options == {option: arguments[option] for option in options}
            )
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of numbers outside the ranges
            chosen = sample(FixedTrial(choices), 0, 0, {})
        return choices if _complete(algorithm, {**hyperparams, **chosen}) == arguments else None
    except (KeyError, StopIteration, TypeError, ValueError):
        return None


def _complete(algorithm: type[PoisAlgorithm], hyperparams: dict[str, Any]) -> dict[str, Any]:
    """Arguments of an algorithm and of its policy with their defaults."""
    arguments = {**_defaults(algorithm), **hyperparams}
    policy = arguments["policy"]
    policy_kwargs = {**_defaults(algorithm.policy_aliases.get(policy, policy)), **(arguments["policy_kwargs"] or {})}
    if arguments["n_episodes"] is None and arguments["batch_timesteps"] is None:
        arguments["n_episodes"], arguments["batch_timesteps"] = algorithm.default_batch
    if "net_arch" in policy_kwargs:
        policy_kwargs["net_arch"] = hidden_sizes(policy_kwargs["net_arch"])
    return {**arguments, "policy_kwargs": policy_kwargs}


def _defaults(function: Callable) -> dict[str, Any]:
    """Default arguments of a function or class."""
    return {name: parameter.default for name, parameter in inspect.signature(function).parameters.items()}


class FirstTrialSampler(BaseSampler):
    """
    Sampler whose first trial is given, so that the best of a study is no worse than what it starts from.

    A study that goes on after an interruption gets that trial again, unless it has come to an end before.

    :param first: values of the first trial
    :param sampler: sampler of all other trials
    """

    def __init__(self, first: dict[str, Any], sampler: BaseSampler) -> None:
        self.first = first
        self.sampler = sampler
        self.first_number: int | None = None

    def infer_relative_search_space(self, study: Study, trial: FrozenTrial) -> dict[str, BaseDistribution]:
        """
        :param study: the study
        :param trial: the trial
        :return: what the trial chooses jointly: nothing in the first
        """
        return {} if trial.number == self.first_number else self.sampler.infer_relative_search_space(study, trial)

    def sample_relative(self, study: Study, trial: FrozenTrial, search_space: dict[str, BaseDistribution]) -> dict[str, Any]:
        """
        :param study: the study
        :param trial: the trial
        :param search_space: what to choose jointly
        :return: the values
        """
        return self.sampler.sample_relative(study, trial, search_space)

    def sample_independent(
        self, study: Study, trial: FrozenTrial, param_name: str, param_distribution: BaseDistribution
    ) -> Any:
        """
        :param study: the study
        :param trial: the trial
        :param param_name: what to choose
        :param param_distribution: from where to choose it
        :return: the value
        """
        if trial.number == self.first_number and param_name in self.first:
            return self.first[param_name]
        return self.sampler.sample_independent(study, trial, param_name, param_distribution)

    def before_trial(self, study: Study, trial: FrozenTrial) -> None:
        """
        :param study: the study
        :param trial: the trial that starts
        """
        if self.first_number is None:
            ended = study.get_trials(deepcopy=False, states=(TrialState.COMPLETE, TrialState.PRUNED))
            self.first_number = -1 if any(other.params == self.first for other in ended) else trial.number
        self.sampler.before_trial(study, trial)

    def after_trial(self, study: Study, trial: FrozenTrial, state: TrialState, values: Sequence[float] | None) -> None:
        """
        :param study: the study
        :param trial: the trial that ends
        :param state: how it ended
        :param values: its score
        """
        self.sampler.after_trial(study, trial, state, values)

    def reseed_rng(self) -> None:
        """Reseed the pseudo-random generators, where trials run side by side."""
        self.sampler.reseed_rng()


class TrialEvalCallback(rl_zoo3.callbacks.TrialEvalCallback):
    """
    RL Zoo's evaluation of trials, fit for batches that are long.

    RL Zoo evaluates between steps, so never after the last update, and an untrained policy in a batch as long as the trial.
    Here the policy of every update is evaluated at most once, and the last one always. Other algorithms are left alone.
    """

    evaluated_update = 0

    def _on_step(self) -> bool:
        if not isinstance(self.model, PoisAlgorithm):
            return super()._on_step()
        is_due = self.eval_freq > 0 and self.n_calls % self.eval_freq == 0
        return not is_due or self._evaluate(self.n_calls // self.eval_freq)

    def _on_training_end(self) -> None:
        if isinstance(self.model, PoisAlgorithm) and not self.is_pruned:
            step = self.n_calls // self.eval_freq + 1
            self.eval_freq = 1  # now, whatever the number of calls
            self._evaluate(step)

    def _evaluate(self, step: int) -> bool:
        """Evaluate the policy if it is new, as the step of the study that it would be had none been left out."""
        if self.model._n_updates == self.evaluated_update:
            return True
        self.evaluated_update = self.model._n_updates
        self.eval_idx = step - 1  # RL Zoo adds the one
        return super()._on_step()
