"""
APOIS with per-decision weights: what it learns beside PPO and TRPO, how much its estimates vary, and what they cost.

    python benchmarks/per_decision.py learning --jobs 2    # hours; finished runs are not repeated
    python benchmarks/per_decision.py paper --jobs 2       # the paper's tasks, linear policies, by iterations
    python benchmarks/per_decision.py variance
    python benchmarks/per_decision.py cost

``learning``: APOIS has the same options on every task but for the size of a batch, learns for the task's budget of steps,
and is scored by the mean undiscounted return of 20 episodes of the deterministic policy in environments of other seeds. PPO
and TRPO (defaults of SB3 and sb3-contrib, their 2,048 steps a batch in four environments) learn for as many seconds on one
thread as APOIS took with the same seed. Writes one json file a run, a table and the curves by wall-clock time.

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
from sb3_contrib import TRPO
from scipy import stats
from stable_baselines3 import PPO
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.logger import configure
from stable_baselines3.common.vec_env import VecNormalize

import sb3_pois.envs as pois_envs
from sb3_pois import APOIS
from sb3_pois.apois.surrogate import ActionSurrogate
from sb3_pois.common.parameters import ParameterVector

matplotlib.use("Agg")
from matplotlib import pyplot as plt

N_ENVS = 4
N_EVAL_EPISODES = 20
# The same on every task; chosen on seeds from 100 on
OPTIONS: dict[str, Any] = dict(
    iw_method="per-decision",
    iw_lambda=0.95,
    baseline="linear",
    bound="std-ess",
    delta=0.9,
    min_ess=0.7,
    gamma=0.995,
    natural_gradient=True,
    n_offline_iters=3,
    line_search_units="returns",
    policy_kwargs=dict(log_std_init=-0.5),
)
# Task: environment steps, steps of a batch
TASKS: dict[str, tuple[int, int]] = {
    "CartPole-v1": (200_000, 4000),
    "InvertedPendulum-v5": (200_000, 4000),
    "InvertedDoublePendulum-v5": (400_000, 4000),
    "Pendulum-v1": (300_000, 4000),
    "HalfCheetah-v5": (1_000_000, 4000),
    "Hopper-v5": (1_000_000, 4000),
    "Walker2d-v5": (1_000_000, 4000),
    "Swimmer-v5": (1_000_000, 4000),
    "LunarLanderContinuous-v3": (1_000_000, 4000),
    "MountainCarContinuous-v0": (500_000, 4000),
    "Acrobot-v1": (500_000, 4000),
    "Reacher-v5": (1_000_000, 4000),
}
PAPER_TASKS = ("POIS/Cartpole-v0", "POIS/Acrobot-v0", "POIS/InvertedPendulum-v0")
PAPER_OPTIONS: dict[str, Any] = dict(
    iw_method="per-decision", iw_norm="sn", bound="std-ess", min_ess=0.3, n_offline_iters=3, line_search_units="returns"
)
MARKS = (10, 25, 50, 75, 100)


class Curve(BaseCallback):
    """
    Keeps mean returns with the steps and the seconds that they took, and stops after some seconds.

    :param seconds: when to stop; None for never
    """

    def __init__(self, seconds: float | None = None) -> None:
        super().__init__()
        self.seconds = seconds
        self.rows: list[tuple[int, float, float]] = []
        self.returns: list[float] = []

    def _on_training_start(self) -> None:
        self.start = time.perf_counter()

    def _on_step(self) -> bool:
        self.returns += [info["episode"]["r"] for info in self.locals["infos"] if "episode" in info]
        return self.seconds is None or time.perf_counter() - self.start < self.seconds

    def _on_rollout_end(self) -> None:
        if self.returns:
            mean = float(np.mean(self.returns))
            self.rows.append((self.num_timesteps, time.perf_counter() - self.start, mean))
            self.returns = []


def run(job: tuple[Path, str, str, int]) -> dict[str, Any]:
    """
    Train and evaluate once, or read what was found before.

    :param job: folder, task, contender, seed
    :return: one row of the table, and the curve
    """
    folder, task, contender, seed = job
    file = folder / f"{task}-{contender}-{seed}.json"
    if file.exists():
        return json.loads(file.read_text())
    th.set_num_threads(1)
    n_timesteps, batch_timesteps = TASKS[task]
    env = make_vec_env(task, N_ENVS, seed=seed)
    evaluation_env = make_vec_env(task, 4, seed=seed + 10_000)
    model: BaseAlgorithm
    if contender == "apois":
        env = VecNormalize(env, norm_reward=False)
        evaluation_env = VecNormalize(evaluation_env, training=False, norm_reward=False)
        evaluation_env.obs_rms = env.obs_rms
        model, seconds = APOIS("MlpPolicy", env, batch_timesteps=batch_timesteps, seed=seed, **OPTIONS), None
    else:
        seconds = run((folder, task, "apois", seed))["seconds"]
        n_timesteps *= 100
        algorithm: Any = {"ppo": PPO, "trpo": TRPO}[contender]
        model = algorithm("MlpPolicy", env, n_steps=2048 // N_ENVS, seed=seed, device="cpu")
    curve = Curve(seconds)
    start = time.perf_counter()
    model.learn(n_timesteps, callback=curve, log_interval=None)  # type: ignore[arg-type]
    seconds = time.perf_counter() - start
    mean, std = evaluate_policy(model, evaluation_env, N_EVAL_EPISODES)
    row = dict(
        task=task,
        contender=contender,
        seed=seed,
        steps=model.num_timesteps,
        seconds=round(seconds, 1),
        mean=round(float(np.mean(mean)), 1),
        std=round(float(np.mean(std)), 1),
        curve=[(steps, round(at, 2), round(value, 2)) for steps, at, value in curve.rows],
    )
    folder.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(row))
    print({key: value for key, value in row.items() if key != "curve"}, flush=True)
    return row


def median_and_interval(values: pd.Series) -> str:
    """Median, and its 95 % interval by the bootstrap."""
    if len(values) < 2:
        return f"{values.median():.4g}"
    low, high = stats.bootstrap((values,), np.median, method="percentile", rng=0).confidence_interval
    return f"{values.median():.4g} [{low:.4g}, {high:.4g}]"


def learning(arguments: argparse.Namespace) -> None:
    """Train everything, print the table, draw the curves."""
    jobs = [
        (arguments.folder, task, contender, seed)
        for task in arguments.tasks or TASKS
        for seed in arguments.seeds
        for contender in arguments.contenders
    ]
    # whole (task, seed) groups go to one process: PPO and TRPO need APOIS's seconds
    with multiprocessing.get_context("spawn").Pool(arguments.jobs, maxtasksperchild=1) as pool:
        rows = pool.map(run, jobs, chunksize=len(arguments.contenders))
    table = pd.DataFrame(rows).drop(columns="curve")
    table.to_csv(arguments.folder / "learning.csv", index=False)
    grouped = table.groupby(["task", "contender"], sort=False)
    print(grouped["mean"].apply(median_and_interval).unstack().to_string())
    print(grouped[["steps", "seconds"]].median().unstack().to_string())
    draw(rows, arguments.folder / "learning.png")


def draw(rows: list[dict[str, Any]], file: Path) -> None:
    """Curves by wall-clock time: median over the seeds, and their range."""
    tasks = list(dict.fromkeys(row["task"] for row in rows))
    n_columns = min(4, len(tasks))
    figure, axes = plt.subplots(
        -(-len(tasks) // n_columns), n_columns, figsize=(3.6 * n_columns, 2.8 * -(-len(tasks) // n_columns)), squeeze=False
    )
    for axis, task in zip(axes.flat, tasks, strict=False):
        for contender in dict.fromkeys(row["contender"] for row in rows):
            curves = [np.array(row["curve"]) for row in rows if row["task"] == task and row["contender"] == contender]
            curves = [curve for curve in curves if len(curve) > 1]
            if not curves:
                continue
            seconds = np.linspace(max(curve[0, 1] for curve in curves), min(curve[-1, 1] for curve in curves), 100)
            returns = np.array([np.interp(seconds, curve[:, 1], curve[:, 2]) for curve in curves])
            axis.plot(seconds, np.median(returns, 0), label=contender.upper())
            axis.fill_between(seconds, returns.min(0), returns.max(0), alpha=0.2)
        axis.set(title=task, xlabel="seconds")
    for axis in axes.flat[len(tasks) :]:
        axis.axis("off")
    axes[0, 0].legend(title="median and range of seeds")
    for row_of_axes in axes:
        row_of_axes[0].set_ylabel("mean return of a batch")
    figure.tight_layout()
    figure.savefig(file, dpi=110)


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
    model = APOIS("LinearPolicy", env, n_episodes=100, seed=seed, **(PAPER_OPTIONS if options == "per-decision" else {}))
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
        model = APOIS("MlpPolicy", env, batch_timesteps=4000, seed=100, **OPTIONS).learn(40_000, log_interval=None)
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
    parser.add_argument("part", choices=["learning", "paper", "variance", "cost"])
    parser.add_argument("--tasks", nargs="+", help="default: all of the part")
    parser.add_argument("--contenders", nargs="+", default=["apois", "ppo", "trpo"])
    parser.add_argument("--options", nargs="+", default=["per-decision"], choices=["per-decision", "trajectory"])
    parser.add_argument("--seeds", nargs="+", type=int, default=list(range(10)))
    parser.add_argument("--iterations", type=int, default=100)
    parser.add_argument("--batches", type=int, default=100)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--jobs", type=int, default=1, help="runs at a time")
    parser.add_argument("--folder", type=Path, default=Path("per_decision"))
    arguments = parser.parse_args()
    arguments.folder.mkdir(parents=True, exist_ok=True)
    {"learning": learning, "paper": paper, "variance": variance, "cost": cost}[arguments.part](arguments)


if __name__ == "__main__":
    main()
