"""The table of the tasks."""

from importlib import import_module

from sb3_pois.common.arguments import check_choice
from sb3_pois.envs.simulation import Simulation

# Where each task's simulation lives. Its module is imported when the task is made, so a missing engine harms no other task.
TASKS = {
    "POIS/Cartpole-v0": "sb3_pois.envs.cartpole:Cartpole",
    "POIS/InvertedPendulum-v0": "sb3_pois.envs.cartpole:InvertedPendulum",
    "POIS/Acrobot-v0": "sb3_pois.envs.acrobot:Acrobot",
    "POIS/MountainCar-v0": "sb3_pois.envs.mountain_car:MountainCar",
    "POIS/InvertedDoublePendulum-v0": "sb3_pois.envs.mujoco_tasks:InvertedDoublePendulum",
    "POIS/Swimmer-v0": "sb3_pois.envs.mujoco_tasks:Swimmer",
}
HORIZON = 500


def make_simulation(task: str, n_worlds: int) -> Simulation:
    """
    Create a task's worlds.

    :param task: id of the task, a key of ``TASKS``, with or without the prefix ``sb3_pois.envs:``
    :param n_worlds: number of worlds
    :return: the simulation
    :raises ValueError: if there is no such task or ``n_worlds`` is not a positive integer
    :raises gymnasium.error.DependencyNotInstalled: if the task's engine cannot be imported
    """
    if isinstance(task, str):
        task = task.removeprefix("sb3_pois.envs:")
    check_choice("task", task, TASKS)
    module, name = TASKS[task].split(":")
    return getattr(import_module(module), name)(n_worlds)
