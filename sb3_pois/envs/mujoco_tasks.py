"""The two tasks on MuJoCo: the double pendulum on a cart and the swimmer."""

from abc import abstractmethod
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from sb3_pois.envs.engines import load_engine
from sb3_pois.envs.rendering import PICTURE_HEIGHT, PICTURE_WIDTH
from sb3_pois.envs.simulation import BoolArray, EngineSimulation, FloatArray, IndexArray

ASSETS = Path(__file__).with_name("assets")


class MujocoSimulation(EngineSimulation):
    """
    A batch of worlds that share one MuJoCo model.

    State vector: ``[qpos, qvel]``.
    """

    model_file: ClassVar[str]
    frame_skip: ClassVar[int]
    n_coordinates: ClassVar[int]

    def _build(self) -> None:
        self._mujoco = load_engine("mujoco", self.task)
        self._model = self._mujoco.MjModel.from_xml_path(str(ASSETS / self.model_file))
        self._data: list[Any] = [self._mujoco.MjData(self._model) for _ in range(self.n_worlds)]
        # views into each world's own memory: making them at every step would cost more than the arithmetic
        self._views = [(data, data.ctrl, data.qpos, data.qvel) for data in self._data]
        self._renderer: Any = None

    def _advance(self, actions: FloatArray) -> tuple[FloatArray, FloatArray]:
        """
        Step every world ``frame_skip`` times.

        :param actions: clipped actions, shape ``(n_worlds, action_dim)``; the models' gears turn them into controls
        :return: positions and velocities, shape ``(n_worlds, n_coordinates)``
        """
        positions = np.empty((self.n_worlds, self.n_coordinates))
        velocities = np.empty((self.n_worlds, self.n_coordinates))
        mj_step, model, frame_skip = self._mujoco.mj_step, self._model, self.frame_skip
        for index, (data, ctrl, qpos, qvel) in enumerate(self._views):
            ctrl[:] = actions[index]
            mj_step(model, data, frame_skip)
            positions[index] = qpos
            velocities[index] = qvel
        return positions, velocities

    def _coordinates(self, indices: IndexArray) -> tuple[FloatArray, FloatArray]:
        """
        :param indices: the worlds, shape ``(k,)``
        :return: their positions and velocities, shape ``(k, n_coordinates)``
        """
        chosen = [self._views[index] for index in indices.tolist()]
        return np.array([qpos for _, _, qpos, _ in chosen]), np.array([qvel for _, _, _, qvel in chosen])

    @abstractmethod
    def _observations(self, indices: IndexArray, positions: FloatArray, velocities: FloatArray) -> FloatArray:
        """
        :param indices: the worlds, shape ``(k,)``
        :param positions: their positions, shape ``(k, n_coordinates)``
        :param velocities: their velocities, shape ``(k, n_coordinates)``
        :return: their observations, shape ``(k, observation_dim)``
        """

    def observe(self, indices: IndexArray) -> FloatArray:
        return self._observations(indices, *self._coordinates(indices))

    def _write(self, index: int, positions: FloatArray, velocities: FloatArray) -> None:
        data, _, qpos, qvel = self._views[index]
        self._mujoco.mj_resetData(self._model, data)
        qpos[:] = positions
        qvel[:] = velocities

    def get_state(self, index: int) -> FloatArray:
        _, _, qpos, qvel = self._views[index]
        return np.concatenate((qpos, qvel))

    def set_state(self, index: int, state: ArrayLike) -> None:
        positions, velocities = np.split(self.state_vector(state), 2)
        self._write(index, positions, velocities)

    def render(self, index: int) -> NDArray[np.uint8]:
        if self._renderer is None:
            self._renderer = self._mujoco.Renderer(self._model, PICTURE_HEIGHT, PICTURE_WIDTH)
        # a copy is posed, so that looking at a world changes nothing in it
        posed = self._mujoco.MjData(self._model)
        posed.qpos[:] = self._data[index].qpos
        self._mujoco.mj_forward(self._model, posed)
        self._renderer.update_scene(posed, camera="side")
        return self._renderer.render()

    def close(self) -> None:
        if self._renderer is not None:
            self._renderer.close()
            self._renderer = None


class InvertedDoublePendulum(MujocoSimulation):
    """
    Two links on a cart, to be held upright.

    Positions are ``[x, th1, th2]`` with th2 relative to link 1 and 0 upright. The observation is ``[x, sin th1,
    sin th2, cos th1, cos th2]``, then the velocities and the constraint forces, both clipped to +-10. The reward is
    ``10 - (0.01 x_tip^2 + (z_tip - 2)^2) - (1e-3 th1'^2 + 5e-3 th2'^2)``; the episode ends, that step still paid, when
    the tip is at height 1 or lower.
    """

    task = "POIS/InvertedDoublePendulum-v0"
    model_file = "inverted_double_pendulum.xml"
    frame_skip = 2
    n_coordinates = 3
    observation_dim = 11
    state_dim = 6
    # the model's gear is the 500 N; the control handed to MuJoCo is the action
    control_limit = 1.0
    step_seconds = 0.02
    noise_dim = 1
    noise_law = "uniform"
    link_length = 0.6
    max_reset_angle = np.deg2rad(20)
    # Beyond this the cart is within the margin of its stops, and a constraint force acts
    free_range = 10 - 0.01

    def reset(self, indices: IndexArray, noise: FloatArray) -> None:
        for index, angle in zip(indices.tolist(), self.max_reset_angle * (2 * noise[:, 0] - 1), strict=True):
            self._write(index, np.array([0, angle, 0]), np.zeros(3))

    def step(self, controls: FloatArray) -> tuple[FloatArray, FloatArray, BoolArray]:
        positions, velocities = self._advance(controls)
        x, angle1, angle2 = positions.T
        _, spin1, spin2 = velocities.T
        tip_x = x + self.link_length * (np.sin(angle1) + np.sin(angle1 + angle2))
        tip_z = self.link_length * (np.cos(angle1) + np.cos(angle1 + angle2))
        rewards = 10 - (0.01 * tip_x**2 + (tip_z - 2) ** 2) - (1e-3 * spin1**2 + 5e-3 * spin2**2)
        return self._observations(np.arange(self.n_worlds), positions, velocities), rewards, tip_z <= 1

    def _observations(self, indices: IndexArray, positions: FloatArray, velocities: FloatArray) -> FloatArray:
        observations = np.zeros((len(indices), 11))
        observations[:, 0] = positions[:, 0]
        np.sin(positions[:, 1:], out=observations[:, 1:3])
        np.cos(positions[:, 1:], out=observations[:, 3:5])
        np.clip(velocities, -10, 10, out=observations[:, 5:8])
        # Only the cart's stops constrain anything, so MuJoCo is asked for the forces at this position near them only.
        for row in np.flatnonzero(np.abs(positions[:, 0]) > self.free_range).tolist():
            data = self._data[indices[row]]
            self._mujoco.mj_forward(self._model, data)
            np.clip(data.qfrc_constraint, -10, 10, out=observations[row, 8:])
        return observations


class Swimmer(MujocoSimulation):
    """
    Three links in a viscous fluid, to swim along x.

    Positions are ``[x, y, angle, joint 1, joint 2]``. The observation is positions, velocities and the centre of mass of
    the whole body; the reward is the x velocity of that centre after the step minus 0.005 times the squared, clipped
    action. No state ends an episode.
    """

    task = "POIS/Swimmer-v0"
    model_file = "swimmer.xml"
    frame_skip = 50
    n_coordinates = 5
    action_dim = 2
    observation_dim = 13
    state_dim = 10
    # the model's gears are the 50 N m; the controls handed to MuJoCo are the actions
    control_limit = 1.0
    step_seconds = 0.05
    noise_dim = 10
    noise_law = "normal"
    reset_std = np.repeat([0.01, 0.1], 5)
    # Where the body's centre of mass is: [x, y] plus these multiples of the unit vectors along the three links, which
    # are equally heavy and 1 m long; [x, y] lies half a metre behind link 1
    center_weights = np.array([2 / 3, -1 / 2, -1 / 6])

    def reset(self, indices: IndexArray, noise: FloatArray) -> None:
        for index, state in zip(indices.tolist(), self.reset_std * noise, strict=True):
            self._write(index, state[:5], state[5:])

    def step(self, controls: FloatArray) -> tuple[FloatArray, FloatArray, BoolArray]:
        positions, velocities = self._advance(controls)
        angles = np.cumsum(positions[:, 2:], axis=1)
        spins = np.cumsum(velocities[:, 2:], axis=1)
        speed = velocities[:, 0] - (self.center_weights * np.sin(angles) * spins).sum(axis=1)
        rewards = speed - 0.005 * (controls * controls).sum(axis=1)
        observations = self._observations(np.arange(self.n_worlds), positions, velocities)
        return observations, rewards, np.zeros(self.n_worlds, dtype=bool)

    def _observations(self, indices: IndexArray, positions: FloatArray, velocities: FloatArray) -> FloatArray:
        angles = np.cumsum(positions[:, 2:], axis=1)
        observations = np.zeros((len(indices), 13))
        observations[:, :5] = positions
        observations[:, 5:10] = velocities
        observations[:, 10] = positions[:, 0] + (self.center_weights * np.cos(angles)).sum(axis=1)
        observations[:, 11] = positions[:, 1] + (self.center_weights * np.sin(angles)).sum(axis=1)
        return observations
