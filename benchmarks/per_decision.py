"""
APOIS with per-decision weights on the paper's tasks, how much its estimates vary, and what they cost.

    python benchmarks/per_decision.py paper --jobs 2       # the paper's tasks, linear policies, by iterations
    python benchmarks/per_decision.py variance
    python benchmarks/per_decision.py cost

``paper``: mean return of the batch at some iterations, 100 episodes a batch.

``variance``: of the estimates of targets at three distances from a policy that has learned a little, over batches of 20
episodes, relative to that of trajectory weights. The distances are those where the effective sample size of trajectory
weights is .9, .6 and .3 of the episodes.

``cost``: seconds that the surrogate of a batch of 50 episodes of 1,000 steps, its gradient and the natural direction from
that gradient take.
"""

import argparse
import json
import multiprocessing
import time
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
import pandas as pd
import torch as th
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.logger import configure

import sb3_pois.envs as pois_envs
from sb3_pois import APOIS
from sb3_pois.apois.surrogate import ActionSurrogate
from sb3_pois.common.parameters import ParameterVector

matplotlib.use("Agg")

N_ENVS = 4
PAPER_TASKS = ("POIS/Cartpole-v0", "POIS/Acrobot-v0", "POIS/InvertedPendulum-v0")
OPTIONS: dict[str, dict[str, Any]] = {
    "trajectory": APOIS.PAPER,
    "per-decision": {
        **APOIS.PAPER,
        "iw_method": "per-decision",
        "iw_norm": "sn",
        "bound": "std-ess",
        "min_ess": 0.3,
        "n_offline_iters": 3,
        "line_search_units": "returns",
    },
}
MARKS = (10, 25, 50, 75, 100)


def run_paper(job: tuple[Path, str, str, int, int]) -> dict[str, Any]:
    """
    Train a linear policy for some iterations, or read what was found before.

    :param job: folder, task, name of the options, seed, iterations
    :return: one row of the table
    """
    folder, task, options, seed, n_iterations = job
    file = folder / f"{task.replace('/', '-')}-{options}-{seed}-{n_iterations}.json"
    if file.exists():
        return json.loads(file.read_text())
    th.set_num_threads(1)
    env = pois_envs.make_vec_env(task, 100, seed=seed)
    model = APOIS("LinearPolicy", env, seed=seed, **OPTIONS[options])
    returns: list[float] = []
    model.set_logger(configure(None, []))
    callback = model._setup_learn(10**9)[1]
    start = time.perf_counter()
    for _ in range(n_iterations):
        model.collect_rollouts(model.env, callback, model.rollout_buffer)  # type: ignore[arg-type]
        returns.append(float(model.rollout_buffer.episode_returns().mean()))
        model.train()
        model._n_updates += 1
    row = dict(task=task, options=options, seed=seed, seconds=round(time.perf_counter() - start, 1))
    row.update({f"it. {mark}": round(returns[mark - 1], 1) for mark in MARKS if mark <= n_iterations})
    row["least after 50"] = round(min(returns[49:], default=np.nan), 1)
    folder.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(row))
    print(row, flush=True)
    return row


def paper(arguments: argparse.Namespace) -> None:
    """Linear policies on the paper's tasks, by iterations."""
    jobs = [
        (arguments.folder, task, options, seed, arguments.iterations)
        for task in arguments.tasks or PAPER_TASKS
        for options in arguments.options
        for seed in arguments.seeds
    ]
    with multiprocessing.get_context("spawn").Pool(arguments.jobs, maxtasksperchild=1) as pool:
        table = pd.DataFrame(pool.imap_unordered(run_paper, jobs))
    table.to_csv(arguments.folder / "paper.csv", index=False)
    print(table.groupby(["task", "options"]).agg(["min", "median"]).drop(columns="seed").T.to_string())


ESTIMATES: dict[str, dict[str, Any]] = {
    "trajectory": {},
    "per-decision": dict(iw_method="per-decision"),
    "baseline of time": dict(iw_method="per-decision", baseline="time"),
    "linear baseline": dict(iw_method="per-decision", baseline="linear"),
    "linear, lambda .95": dict(iw_method="per-decision", baseline="linear", iw_lambda=0.95, bound="std-ess"),
}


def collected(model: APOIS) -> APOIS:
    """Collect a batch without training on it."""
    model.set_logger(configure(None, []))
    callback = model._setup_learn(10**9, reset_num_timesteps=False)[1]
    model.collect_rollouts(model.env, callback, model.rollout_buffer)  # type: ignore[arg-type]
    return model


def estimate_by(model: APOIS, name: str) -> ActionSurrogate:
    """The surrogate of the collected batch that is nothing but one kind of estimate."""
    options = {"iw_method": "trajectory", "baseline": "none", "iw_lambda": 1.0, **ESTIMATES[name]}
    for option, value in {**options, "bound": "J", "center_returns": False, "min_ess": 0.0, "iw_norm": "none"}.items():
        setattr(model, option, value)
    model.line_search_units = "absolute"
    surrogate = model._make_surrogate()
    assert surrogate is not None
    return surrogate


def distance_with_share(surrogate: ActionSurrogate, behavioral: th.Tensor, direction: th.Tensor, share: float) -> float:
    """How far to go so that the effective sample size of the trajectories' weights is a share of the episodes."""

    def share_at(distance: float) -> float:
        with th.no_grad():
            return surrogate.terms(behavioral + distance * direction, with_divergence=False).effective_share().item()

    near, far = 0.0, 1e-3
    while share_at(far) > share:
        near, far = far, 2.0 * far
    for _ in range(20):
        middle = 0.5 * (near + far)
        near, far = (middle, far) if share_at(middle) > share else (near, middle)
    return near


def variance(arguments: argparse.Namespace) -> None:
    """Variance of the estimates at three distances from a behavioral policy that has learned a little."""
    th.set_num_threads(1)
    rows = []
    for task in arguments.tasks or ("CartPole-v1", "Pendulum-v1", "InvertedDoublePendulum-v5"):
        env = make_vec_env(task, N_ENVS, seed=100)
        model = APOIS("MlpPolicy", env, seed=100).learn(40_000, log_interval=None)
        model.batch_timesteps, model.n_episodes = None, 400
        behavioral = ParameterVector(model.policy).get()
        direction = th.randn(len(behavioral), generator=th.Generator().manual_seed(0)) / len(behavioral) ** 0.5
        whole = estimate_by(collected(model), "trajectory")
        distances = {share: distance_with_share(whole, behavioral, direction, share) for share in (0.9, 0.6, 0.3)}
        model.n_episodes = 20
        estimates: dict[tuple[float, str], list[float]] = {(share, name): [] for share in distances for name in ESTIMATES}
        for _ in range(arguments.batches):
            collected(model)
            for name in ESTIMATES:
                surrogate = estimate_by(model, name)
                for share, distance in distances.items():
                    estimates[share, name].append(surrogate.value(behavioral + distance * direction).item())
        for share in distances:
            values = {name: np.array(estimates[share, name]) for name in ESTIMATES}
            row: dict[str, Any] = dict(task=task, ess=share)
            row.update(mean=values["trajectory"].mean(), std=values["trajectory"].std())
            row.update({name: own.var() / values["trajectory"].var() for name, own in values.items()})
            rows.append(row)
    print(pd.DataFrame(rows).to_string(index=False, float_format="{:.3g}".format))


def cost(arguments: argparse.Namespace) -> None:
    """Seconds that a batch of 50 episodes of 1,000 steps takes, estimate by estimate."""
    th.set_num_threads(1)
    env = make_vec_env("HalfCheetah-v5", 10, seed=0)
    model = collected(APOIS("MlpPolicy", env, n_episodes=50, seed=0))
    names = ("trajectory", "per-decision", "linear baseline", "linear, lambda .95")
    behavioral = ParameterVector(model.policy).get()
    rows = []
    for _ in range(arguments.rounds):
        for name in names:
            start = time.perf_counter()
            surrogate = estimate_by(model, name)
            prepared = time.perf_counter()
            surrogate.value(behavioral)
            valued = time.perf_counter()
            _, gradient = surrogate.value_and_gradient(behavioral)
            graded = time.perf_counter()
            surrogate.natural_direction(model.fisher_damping)(behavioral, gradient)
            directed = time.perf_counter()
            rows.append((name, prepared - start, valued - prepared, graded - valued, directed - graded))
    columns = ["estimate", "preparation", "value", "gradient", "natural"]
    table = pd.DataFrame(rows, columns=columns).groupby("estimate", sort=False).median()
    table["natural / gradient"] = table["natural"] / table["gradient"]
    # what an optimisation of three line searches with five trials each takes
    table["three searches"] = table["preparation"] + 15 * table["value"] + 3 * table["gradient"]
    print(table.to_string(float_format="{:.3f}".format))
    print((table / table.loc["trajectory"]).to_string(float_format="{:.2f}".format))


def main() -> None:
    """Run the benchmark from the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", choices=["paper", "variance", "cost"])
    parser.add_argument("--tasks", nargs="+", help="default: all of the part")
    parser.add_argument("--options", nargs="+", default=["per-decision"], choices=list(OPTIONS))
    parser.add_argument("--seeds", nargs="+", type=int, default=list(range(10)))
    parser.add_argument("--iterations", type=int, default=100)
    parser.add_argument("--batches", type=int, default=100)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--jobs", type=int, default=1, help="runs at a time")
    parser.add_argument("--folder", type=Path, default=Path("per_decision"))
    arguments = parser.parse_args()
    arguments.folder.mkdir(parents=True, exist_ok=True)
    {"paper": paper, "variance": variance, "cost": cost}[arguments.part](arguments)


if __name__ == "__main__":
    main()
