"""
The algorithms under test, in one table. A new algorithm is tested by being entered here.

What differs between algorithms stands in their rows; no test asks which algorithm it has.
"""

from dataclasses import dataclass
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.utils import configure_logger

from sb3_pois import APOIS, PPOIS
from tests.helpers.policies import BiasedController, ScalingExtractor


@dataclass(frozen=True)
class Case:
    """
    What the tests need to know of an algorithm.

    :param algorithm: the class, a ``PoisAlgorithm``
    :param kwargs: arguments that make a batch small
    :param has_modules: whether its networks are torch modules of the policy, with a features extractor, also for images
    :param has_std_for_discrete_actions: whether there is a standard deviation to log whatever the action space
    :param log_keys: what its log has and that of the others has not
    :param std_groups: names under which the log has the standard deviations of an ``MlpPolicy`` with one action
    :param more_policies: policies, with arguments that only this algorithm's have
    :param options: its options, each with two values that have to make a difference
    :param neutral_options: options with two values that must make no difference beyond rounding
    :param contexts: arguments under which the two values of an option make a difference, by option
    :param bad_values: values that the constructor refuses, with what the message says besides name and value
    :param estimates: arguments that choose what is weighted, and what goes with it
    :param identity_kwargs: arguments with which it solves an identity task
    :param identity_timesteps: number of steps that this takes
    """

    algorithm: Any  # type[PoisAlgorithm], with a constructor of its own
    kwargs: dict[str, Any]
    has_modules: bool
    has_std_for_discrete_actions: bool
    log_keys: tuple[str, ...]
    std_groups: tuple[str, ...]
    more_policies: list[tuple[Any, dict[str, Any]]]
    options: list[tuple[str, Any, Any]]
    neutral_options: list[tuple[str, Any, Any]]
    contexts: dict[str, dict[str, Any]]
    bad_values: list[tuple[str, Any, str]]
    estimates: list[dict[str, Any]]
    identity_kwargs: dict[str, Any]
    identity_timesteps: int

    def make(self, env: Any, policy: Any = "MlpPolicy", **kwargs: Any) -> Any:
        """A model with small batches."""
        if kwargs.get("batch_timesteps") is not None:
            kwargs.setdefault("n_episodes", None)
        model = self.algorithm(policy, env, **{**self.kwargs, **kwargs})
        return model if model.env is None else keep_transitions(model)


# Options that the algorithms share, each with two values that have to make a difference
OPTIONS: list[tuple[str, Any, Any]] = [
    ("n_episodes", 6, 12),
    ("batch_timesteps", None, 30),
    ("finish_last_episode", False, True),
    ("horizon", None, 3),
    ("gamma", 1.0, 0.9),
    ("delta", 0.4, 0.05),
    ("delta", 0.4, 1.0),
    *(("bound", "max-d2", bound) for bound in ("J", "std-d2", "max-ess", "std-ess")),
    ("iw_norm", "none", "sn"),
    ("min_ess", 0.0, 0.95),
    ("center_returns", True, False),
    ("natural_gradient", True, False),
    ("n_offline_iters", 10, 1),
    ("line_search", "parabolic", "binary"),
    ("line_search_max_iter", 30, 1),
    ("line_search_tol", 1e-4, 0.1),
    ("line_search_initial_step", 1.0, 0.1),
    ("gradient_tol", 1e-4, 1e3),
    ("line_search_units", "absolute", "returns"),
    ("stats_window_size", 100, 7),
    ("verbose", 0, 1),
    ("seed", 0, 3),
]
# Values that the algorithms refuse, with what the message says is allowed
BAD_VALUES: list[tuple[str, Any, str]] = [
    *(("n_episodes", value, "integer >= 1") for value in (0, -3, 2.5, True, "many")),
    *(("batch_timesteps", value, "integer >= 1") for value in (0, -1, 1.5)),
    *(("finish_last_episode", value, "True or False") for value in (None, 1, "yes")),
    *(("horizon", value, "integer >= 1") for value in (0, -1, 10.0)),
    *(("gamma", value, r"\[0, 1\]") for value in (-0.1, 1.1)),
    *(("gamma", value, "finite number") for value in (np.nan, np.inf, "1", None)),
    *(("delta", value, r"\(0, 1\]") for value in (0.0, -0.2, 1.5)),
    *(("delta", value, "finite number") for value in (np.nan, None, True)),
    *(("bound", value, "'max-d2'") for value in ("max-d3", "", None, "j", ["J"])),
    *(("iw_norm", value, "'none', 'sn'") for value in ("regression", "SN", None, True)),
    *(("min_ess", value, r"\[0, 1\)") for value in (-0.1, 1.0)),
    *(("min_ess", value, "finite number") for value in (np.nan, None)),
    *(("center_returns", value, "True or False") for value in (None, 1, "yes")),
    *(("natural_gradient", value, "True or False") for value in (None, 0, "no")),
    *(("n_offline_iters", value, "integer >= 1") for value in (0, -1, 1.5, None)),
    *(("line_search", value, "'parabolic', 'binary'") for value in ("armijo", None)),
    *(("line_search_max_iter", value, "integer >= 1") for value in (0, 2.0)),
    *(("line_search_tol", value, ">= 0") for value in (-1e-9,)),
    *(("line_search_tol", value, "finite number") for value in (np.nan, np.inf, None)),
    *(("line_search_initial_step", value, "> 0") for value in (0.0, -1.0)),
    *(("line_search_initial_step", value, "finite number") for value in (np.inf, None)),
    *(("gradient_tol", value, ">= 0") for value in (-1.0,)),
    *(("gradient_tol", value, "finite number") for value in (np.nan, None)),
    *(("line_search_units", value, "'absolute', 'returns'") for value in (None, "std")),
    *(("stats_window_size", value, "integer >= 1") for value in (0, -1, 1.5)),
    *(("seed", value, "integer >= 0") for value in (-1, 1.5)),
    ("seed", 2**32, r"below 2\*\*32"),
]


def paper(algorithm: type[APOIS] | type[PPOIS]) -> dict[str, Any]:
    """The paper's arguments, but for the size of a batch."""
    return {name: value for name, value in algorithm.PAPER.items() if name != "n_episodes"}


CASES = {
    "APOIS": Case(
        algorithm=APOIS,
        kwargs=dict(n_episodes=6, seed=0),
        has_modules=True,
        has_std_for_discrete_actions=False,
        log_keys=("train/explained_variance",),
        std_groups=(),
        more_policies=[
            ("MlpPolicy", dict(features_extractor_class=ScalingExtractor, features_extractor_kwargs=dict(features_dim=6)))
        ],
        options=[
            *OPTIONS,
            ("fisher_damping", 10.0, 0.1),
            ("iw_method", "trajectory", "per-decision"),
            ("iw_lambda", 1.0, 0.5),
            ("baseline", "none", "time"),
            ("baseline", "none", "linear"),
        ],
        neutral_options=[("max_chunk_steps", 16_384, 5)],
        contexts={
            **dict.fromkeys([*(name for name, *_ in OPTIONS), "iw_method"], paper(APOIS)),
            "finish_last_episode": dict(batch_timesteps=30),
        },
        bad_values=[
            *BAD_VALUES,
            *(("fisher_damping", value, "> 0") for value in (0.0, -1.0)),
            ("fisher_damping", np.nan, "finite number"),
            *(("iw_method", value, "'trajectory', 'per-decision'") for value in (None, "pdis")),
            *(("iw_lambda", value, r"\[0, 1\]") for value in (-0.1, 1.1)),
            *(("iw_lambda", value, "finite number") for value in (np.nan, None, "1")),
            *(("baseline", value, "'none', 'time', 'linear'") for value in (None, "gae")),
            *(("max_chunk_steps", value, "integer >= 1") for value in (0, None, 1e4)),
        ],
        estimates=[
            dict(iw_method="trajectory", iw_lambda=1.0, baseline="none", min_ess=0.0),
            *(dict(iw_lambda=1.0, baseline=baseline, min_ess=0.2) for baseline in ("none", "time", "linear")),
        ],
        identity_kwargs=dict(n_episodes=200, delta=0.2, seed=0),
        identity_timesteps=20_000,
    ),
    "PPOIS": Case(
        algorithm=PPOIS,
        kwargs=dict(n_episodes=6, seed=0),
        has_modules=False,
        has_std_for_discrete_actions=True,
        log_keys=(),
        std_groups=tuple(f"layer_{layer}.{kind}" for layer in range(3) for kind in ("weight", "bias")),
        more_policies=[
            ("LinearPolicy", dict(mean_init=np.arange(3), log_std_init=-1.0)),
            ("MlpPolicy", dict(mean_init="controller")),
            (BiasedController, dict(controller_kwargs=dict(bias=0.01), mean_init=[0.1, 0.2, 0.3])),
        ],
        options=[
            *OPTIONS,
            *(("grouping", "none", grouping) for grouping in ("neuron", [[0, 2, 4, 6, 8, 10], [1, 3, 5, 7, 9]])),
        ],
        neutral_options=[],
        contexts={
            **dict.fromkeys([name for name, *_ in OPTIONS], paper(PPOIS)),
            "finish_last_episode": dict(batch_timesteps=30),
            "grouping": dict(policy_kwargs=dict(net_arch=[2])),
        },
        bad_values=[
            *BAD_VALUES,
            *(("grouping", value, "'none', 'neuron' and a list of lists") for value in ("layer", None, 3, [1, 2])),
            ("grouping", [[0]], "must be a partition"),
        ],
        estimates=[dict(grouping=grouping) for grouping in ("none", "neuron", [[0, 2, 4], [1, 3, 5]])],
        identity_kwargs=dict(n_episodes=50, policy_kwargs=dict(net_arch=[]), seed=0),
        identity_timesteps=20_000,
    ),
}

for_each_algorithm = pytest.mark.parametrize("case", CASES.values(), ids=CASES)
for_each_policy = pytest.mark.parametrize("policy", ["LinearPolicy", "MlpPolicy"])
for_each_algorithm_with_modules = pytest.mark.parametrize(
    "case", [pytest.param(case, id=name) for name, case in CASES.items() if case.has_modules]
)


def keep_transitions(model: Any) -> Any:
    """Let the buffer keep observations and actions for the tests to look at, also where the algorithm does without them."""
    model.rollout_buffer.store_transitions = True
    return model


def collect(model: Any, callback: BaseCallback | None = None) -> Any:
    """Collect one batch without training on it; the buffer."""
    keep_transitions(model).set_logger(configure_logger(0))
    _, run_callback = model._setup_learn(1, callback, model.num_timesteps == 0)
    run_callback.on_training_start(locals(), globals())
    model.collect_rollouts(model.env, run_callback, model.rollout_buffer)
    return model.rollout_buffer


def log_of(model: Any) -> dict[str, Any]:
    """What the model has logged since the last dump, and what it logs of its last batch."""
    values: dict[str, Any] = {}
    with patch.object(model.logger, "dump", lambda step: values.update(model.logger.name_to_value)):
        model.dump_logs()
    return values


def parameters_of(model: Any) -> dict[str, np.ndarray]:
    """A copy of all that the policy has learned."""
    return {name: value.detach().numpy().copy() for name, value in model.policy.state_dict().items()}


def assert_same_parameters(one: dict[str, np.ndarray], other: dict[str, np.ndarray]) -> None:
    assert one.keys() == other.keys()
    for name, value in one.items():
        np.testing.assert_array_equal(value, other[name], err_msg=name)


def differ(one: dict[str, np.ndarray], other: dict[str, np.ndarray]) -> bool:
    return any(not np.array_equal(value, other[name]) for name, value in one.items())
