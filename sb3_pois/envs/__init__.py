"""
The paper's six benchmark tasks, registered with Gymnasium under the namespace ``POIS/``.

    >>> import gymnasium as gym
    >>> env = gym.make("sb3_pois.envs:POIS/Cartpole-v0")
    >>> envs = gym.make_vec("sb3_pois.envs:POIS/Cartpole-v0", num_envs=100, vectorization_mode="vector_entry_point")
    >>> vec_env = make_vec_env("POIS/Cartpole-v0", n_envs=100, seed=0)
"""

import gymnasium as gym

from sb3_pois.envs.sb3_vec_env import TaskVecEnv, make_vec_env
from sb3_pois.envs.tasks import HORIZON, TASKS

__all__ = ["HORIZON", "TASKS", "TaskVecEnv", "make_vec_env"]

for _task in TASKS:
    if _task not in gym.registry:
        gym.register(
            _task,
            entry_point="sb3_pois.envs.gym_env:TaskEnv",
            vector_entry_point="sb3_pois.envs.gym_vector_env:TaskVectorEnv",
            max_episode_steps=HORIZON,
            # the environments check this themselves, in a message that names them
            order_enforce=False,
            kwargs={"task": _task},
        )
