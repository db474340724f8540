"""
Speed and memory of the environments, beside the raw engines and Gymnasium's own vector environment.

    python benchmarks/envs.py
    python benchmarks/envs.py --pictures docs/images/environments.png

One process and one thread; every rate is the best of several rounds, in environment steps per second of processor time
(so that what else runs on the machine matters little), with random actions and resets included. The raw loops are what a
program without any environment would do: set the control, step the engine, read the state; they build the cart-pole and
the acrobot in Box2D itself and never reset. The memory is what a new process grows by.
"""

import argparse
import os
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import gymnasium as gym
import numpy as np

from sb3_pois.envs import TASKS, make_vec_env
from sb3_pois.envs.simulation import EngineSimulation
from sb3_pois.envs.tasks import make_simulation

MANY = 1000
ROUNDS = 5


def best_rate(steps: dict[str, tuple[Callable[[], Any], int]], seconds: float) -> dict[str, float]:
    """
    Rates of several loops, measured in turns so that a busy moment of the machine hits all of them.

    :param steps: For each loop, one pass of it and how many environment steps that is.
    :param seconds: Length of a round of one loop.
    :return: Environment steps per second.
    """
    best = dict.fromkeys(steps, 0.0)
    for _ in range(ROUNDS):
        for name, (step, n_steps) in steps.items():
            passes, start = 0, time.process_time()
            while (elapsed := time.process_time() - start) < seconds:
                step()
                passes += 1
            best[name] = max(best[name], passes * n_steps / elapsed)
    return best


def random_actions(task: str, n_envs: int) -> Callable[[], np.ndarray]:
    """
    Actions that cost nothing while the clock runs.

    :param task: Id of the task.
    :param n_envs: Number of environments.
    :return: Hands out batches of uniform actions, drawn beforehand.
    """
    shape = 64, n_envs, make_simulation(task, 1).action_dim
    batches = np.random.default_rng(0).uniform(-1, 1, shape).astype(np.float32)
    position = 0

    def draw() -> np.ndarray:
        nonlocal position
        position = (position + 1) % len(batches)
        return batches[position]

    return draw


def native_steps(task: str, n_envs: int) -> tuple[Callable[[], Any], int]:
    """One pass of the Gymnasium vector environment."""
    envs = gym.make_vec(task, num_envs=n_envs, vectorization_mode="vector_entry_point")
    envs.reset(seed=0)
    draw = random_actions(task, n_envs)
    return lambda: envs.step(draw()), n_envs


def sb3_steps(task: str, n_envs: int) -> tuple[Callable[[], Any], int]:
    """One pass of the Stable-Baselines3 vector environment."""
    vec_env = make_vec_env(task, n_envs, seed=0)
    vec_env.reset()
    draw = random_actions(task, n_envs)
    return lambda: vec_env.step(draw()), n_envs


def sync_steps(task: str, n_envs: int) -> tuple[Callable[[], Any], int]:
    """One pass of Gymnasium's SyncVectorEnv."""
    envs = gym.make_vec(task, num_envs=n_envs, vectorization_mode="sync")
    envs.reset(seed=0)
    draw = random_actions(task, n_envs)
    return lambda: envs.step(draw()), n_envs


def raw_mujoco(task: str, n_envs: int, draw: Callable[[], np.ndarray]) -> Callable[[], None]:
    """Set the control, step, read positions and velocities."""
    import mujoco

    simulation: Any = make_simulation(task, 1)
    model, frame_skip = simulation._model, simulation.frame_skip
    worlds = [mujoco.MjData(model) for _ in range(n_envs)]

    def step() -> None:
        for data, action in zip(worlds, draw(), strict=True):
            data.ctrl[:] = action
            mujoco.mj_step(model, data, frame_skip)
            data.qpos, data.qvel  # noqa: B018

    return step


def raw_mountain_car(task: str, n_envs: int, draw: Callable[[], np.ndarray]) -> Callable[[], None]:
    """Set the force, step, read the pose and the velocity."""
    simulation: Any = make_simulation(task, n_envs)
    simulation.reset(np.arange(n_envs), np.random.default_rng(0).random((n_envs, 1)))
    worlds = list(zip(simulation._worlds, simulation._cars, strict=True))

    def step() -> None:
        for (world, car), force in zip(worlds, draw()[:, 0].tolist(), strict=True):
            car.ApplyForce(car.GetWorldVector((force, 0.0)), car.worldCenter, True)
            world.Step(0.05, 8, 3)
            position = car.position
            position.x, position.y, car.linearVelocity.x  # noqa: B018

    return step


def raw_cart_pole(task: str, n_envs: int, draw: Callable[[], np.ndarray]) -> Callable[[], None]:
    """A cart and a pole in Box2D: set the force, step, read both bodies."""
    from Box2D import b2World

    worlds = []
    for _ in range(n_envs):
        world = b2World(gravity=(0, -10), doSleep=False)
        ground = world.CreateStaticBody(position=(0, 0))
        cart = world.CreateDynamicBody(position=(0, 0.433))
        cart.CreatePolygonFixture(box=(0.577, 0.433), density=1, groupIndex=-1)
        pole = world.CreateDynamicBody(position=(0, 0.866))
        pole.CreatePolygonFixture(box=(0.05, 0.5, (0, 0.5), 0), density=1, groupIndex=-1)
        world.CreatePrismaticJoint(bodyA=ground, bodyB=cart, anchor=cart.worldCenter, axis=(1, 0))
        world.CreateRevoluteJoint(bodyA=cart, bodyB=pole, anchor=(0, 0.866))
        worlds.append((world, cart, pole))

    def step() -> None:
        for (world, cart, pole), force in zip(worlds, draw()[:, 0].tolist(), strict=True):
            cart.ApplyForce((10 * force, 0), cart.worldCenter, True)
            world.Step(0.05, 20, 3)
            cart.position.x, cart.linearVelocity.x, pole.angle, pole.angularVelocity  # noqa: B018

    return step


def raw_acrobot(task: str, n_envs: int, draw: Callable[[], np.ndarray]) -> Callable[[], None]:
    """Two links in Box2D: set the torque, step twice, read both bodies."""
    from Box2D import b2World

    worlds = []
    for _ in range(n_envs):
        world = b2World(gravity=(0, -10), doSleep=False)
        ground = world.CreateStaticBody(position=(0, 0))
        links = [world.CreateDynamicBody(position=(0, y)) for y in (0, -1)]
        for link in links:
            link.CreatePolygonFixture(box=(0.05, 0.5, (0, -0.5), 0), density=5, groupIndex=-1)
        world.CreateRevoluteJoint(bodyA=ground, bodyB=links[0], anchor=(0, 0))
        world.CreateRevoluteJoint(bodyA=links[0], bodyB=links[1], anchor=(0, -1))
        worlds.append((world, *links))

    def step() -> None:
        for (world, upper, lower), torque in zip(worlds, draw()[:, 0].tolist(), strict=True):
            for _ in range(2):
                upper.ApplyTorque(-50 * torque, True)
                lower.ApplyTorque(50 * torque, True)
                world.Step(0.01, 20, 20)
            upper.angle, upper.angularVelocity, lower.position, lower.angle, lower.angularVelocity  # noqa: B018

    return step


RAW_LOOPS = {
    "POIS/Cartpole-v0": raw_cart_pole,
    "POIS/InvertedPendulum-v0": raw_cart_pole,
    "POIS/Acrobot-v0": raw_acrobot,
    "POIS/MountainCar-v0": raw_mountain_car,
    "POIS/InvertedDoublePendulum-v0": raw_mujoco,
    "POIS/Swimmer-v0": raw_mujoco,
}


def resident_mib() -> float:
    """
    Memory of this process.

    :return: MiB.
    """
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20


def memory_of(task: str, n_envs: int) -> float:
    """
    How much this process grows by when it makes, resets and steps a vector environment.

    :param task: Id of the task.
    :param n_envs: Number of environments.
    :return: MiB.
    """
    make_vec_env(task, 1, seed=0).reset()
    before = resident_mib()
    step, _ = sb3_steps(task, n_envs)
    for _ in range(20):
        step()
    return resident_mib() - before


# A state worth looking at, and how many steps with which actions to take from there.
POSES: dict[str, tuple[list[float], int, Callable[[int], list[float]]]] = {
    "POIS/Cartpole-v0": ([0.5, 3**0.5 / 4, 0, 0, 0, 0, 0.5, 3**0.5 / 2, 0.12, 0, 0, 0], 0, lambda step: [0.0]),
    "POIS/InvertedPendulum-v0": ([-0.8, 3**0.5 / 4, 0, 0, 0, 0, -0.8, 3**0.5 / 2, 1.1, 0, 0, 0], 0, lambda step: [0.0]),
    "POIS/Acrobot-v0": ([0, 0, 0.9, 0, 0, 0, np.sin(0.9), -np.cos(0.9), 2.1, 0, 0, 0], 0, lambda step: [0.0]),
    "POIS/MountainCar-v0": ([0, 0.2, 0, -2.6, 0, 0], 7, lambda step: [-1.0]),
    "POIS/InvertedDoublePendulum-v0": ([0.3, 0.25, -0.45, 0, 0, 0], 0, lambda step: [0.0]),
    "POIS/Swimmer-v0": ([0.0] * 10, 40, lambda step: [np.sin(step / 3), np.cos(step / 3)]),
}


def draw_contact_sheet(path: str) -> None:
    """
    Draw one picture of every task, with its name.

    :param path: Where to save them.
    """
    import matplotlib

    matplotlib.use("agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(2, 3, figsize=(12, 5.7), layout="constrained")
    for axis, (task, (state, n_steps, action)) in zip(axes.flat, POSES.items(), strict=True):
        env: Any = gym.make(task, render_mode="rgb_array").unwrapped
        env.set_state(state)
        for step in range(n_steps):
            env.step(np.array(action(step)))
        axis.imshow(env.render())
        axis.set_title(task)
        axis.set_xticks([])
        axis.set_yticks([])
        env.close()
    figure.savefig(path, dpi=100)


def main() -> None:
    """Print the tables, or draw the pictures."""
    parser = argparse.ArgumentParser(description="Speed and memory of the environments.")
    parser.add_argument("--tasks", nargs="*", default=list(TASKS), choices=list(TASKS), metavar="ID", help="tasks to measure")
    parser.add_argument("--seconds", type=float, default=0.5, help="length of one round of one loop (default: %(default)s)")
    parser.add_argument("--memory-of", metavar="ID", choices=list(TASKS), help=argparse.SUPPRESS)
    parser.add_argument("--pictures", metavar="PATH", help="draw a contact sheet of the tasks instead")
    options = parser.parse_args()
    if options.pictures:
        draw_contact_sheet(options.pictures)
        return
    if options.memory_of:
        print(memory_of(options.memory_of, 10_000))
        return

    names = ["Gymnasium 100", f"Gymnasium {MANY}", "SB3 100", f"SB3 {MANY}", "raw engine", "SyncVectorEnv"]
    print(f"{'environment steps/s':32}" + "".join(f"{name:>16}" for name in names) + f"{'SB3 100 / raw':>16}")
    for task in options.tasks:
        loops = {
            "Gymnasium 100": native_steps(task, 100),
            f"Gymnasium {MANY}": native_steps(task, MANY),
            "SB3 100": sb3_steps(task, 100),
            f"SB3 {MANY}": sb3_steps(task, MANY),
            "SyncVectorEnv": sync_steps(task, 100),
        }
        if task in RAW_LOOPS:
            loops["raw engine"] = RAW_LOOPS[task](task, 100, random_actions(task, 100)), 100
        rates = {"raw engine": float("nan"), **best_rate(loops, options.seconds)}
        ratio = rates["SB3 100"] / rates["raw engine"]
        print(f"{task:32}" + "".join(f"{rates[name]:16,.0f}" for name in names) + f"{ratio:16.2f}", flush=True)

    print(f"\n{'MiB for 10,000 environments':32}")
    for task in options.tasks:
        if not isinstance(make_simulation(task, 1), EngineSimulation):
            command = [sys.executable, os.path.abspath(__file__), "--memory-of", task]
            print(f"{task:32}{float(subprocess.run(command, capture_output=True, text=True, check=True).stdout):16.0f}")


if __name__ == "__main__":
    main()
