"""The mountain car: a box sliding in a valley, on Box2D itself."""

from math import pi, sin
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from sb3_pois.envs.engines import load_engine
from sb3_pois.envs.rendering import Canvas
from sb3_pois.envs.simulation import BoolArray, EngineSimulation, FloatArray, IndexArray

STEP_SECONDS = 0.05
VELOCITY_ITERATIONS, POSITION_ITERATIONS = 8, 3
CAR_WIDTH, CAR_HEIGHT = 0.4, 0.2
CAR_DENSITY, CAR_FRICTION = 5.0, 0.0005
TRACK_FRICTION = 0.2
# The valley's floor relative to the track's origin at (0, TRACK_HEIGHT). Box2D works in single precision, so where the
# origin lies decides how the vertices are rounded.
TRACK_HEIGHT = 1.0
TRACK = [(2 * k / 100, sin((k / 100 - 0.5) * pi)) for k in range(-100, 101)]
START = (0.0, 0.05)
GOAL_X = 0.6
MAX_X = 2.0


class MountainCar(EngineSimulation):
    """
    A box of 0.4 kg in a valley of the shape 1 + sin((x - 1) pi / 2), to be driven up the right side.

    The force acts along the car's own x axis. The observation is ``[x, x']``, the reward -1 plus the height of the
    centre of mass. The episode ends at x >= 0.6, the goal, or abs(x) >= 2. The box rides on two corners and is no point
    mass. A reset without a seed writes the car's pose and velocity into the running world, whose contact list survives;
    a seeded reset starts a new world.

    State vector: ``[x, y, angle, vx, vy, spin]``, in single precision.
    """

    task = "POIS/MountainCar-v0"
    observation_dim = 2
    state_dim = 6
    control_limit = 1.0
    step_seconds = STEP_SECONDS
    noise_dim = 1
    noise_law = "uniform"
    view = (-2.1, -0.25, 4.2)

    def _build(self) -> None:
        self._box2d = load_engine("Box2D", self.task)
        self._worlds: list[Any] = [None] * self.n_worlds
        self._cars: list[Any] = [None] * self.n_worlds
        self._calls: list[Any] = [None] * self.n_worlds
        for index in range(self.n_worlds):
            self._build_world(index)

    def _build_world(self, index: int) -> None:
        world = self._box2d.b2World(gravity=(0, -10), doSleep=True)
        track = world.CreateStaticBody(position=(0, TRACK_HEIGHT))
        track.CreateChainFixture(vertices_chain=TRACK, friction=TRACK_FRICTION)
        car = world.CreateDynamicBody(position=START)
        car.CreatePolygonFixture(box=(CAR_WIDTH / 2, CAR_HEIGHT / 2), density=CAR_DENSITY, friction=CAR_FRICTION)
        self._worlds[index] = world
        self._cars[index] = car
        # looking these up once takes a tenth off a step
        self._calls[index] = car, car.GetWorldVector, car.ApplyForce, world.Step

    def renew(self, indices: IndexArray) -> None:
        for index in indices.tolist():
            self._build_world(index)

    def reset(self, indices: IndexArray, noise: FloatArray) -> None:
        for index, speed in zip(indices.tolist(), (2 * noise[:, 0] - 1).tolist(), strict=True):
            self._write(index, START, 0.0, (speed, 0.0), 0.0)

    def _write(
        self, index: int, position: tuple[float, float], angle: float, velocity: tuple[float, float], spin: float
    ) -> None:
        # Position first, then angle: each makes Box2D look for new contacts, and their order matters to its solver.
        car = self._cars[index]
        car.position = position
        car.angle = angle
        car.linearVelocity = velocity
        car.angularVelocity = spin

    def step(self, controls: FloatArray) -> tuple[FloatArray, FloatArray, BoolArray]:
        readings = []
        for (car, world_vector, apply_force, step), force in zip(self._calls, controls[:, 0].tolist(), strict=True):
            apply_force(world_vector((force, 0.0)), car.worldCenter, True)
            step(STEP_SECONDS, VELOCITY_ITERATIONS, POSITION_ITERATIONS)
            position = car.position
            readings.append((position.x, position.y, car.linearVelocity.x))
        x, y, velocity = np.array(readings).T
        observations = np.stack((x, velocity), axis=1)
        return observations, y - 1.0, (x >= GOAL_X) | (np.abs(x) >= MAX_X)

    def observe(self, indices: IndexArray) -> FloatArray:
        return np.array([(self._cars[index].position.x, self._cars[index].linearVelocity.x) for index in indices.tolist()])

    def get_state(self, index: int) -> FloatArray:
        car = self._cars[index]
        return np.array([*car.position, car.angle, *car.linearVelocity, car.angularVelocity])

    def set_state(self, index: int, state: ArrayLike) -> None:
        x, y, angle, vx, vy, spin = self.state_vector(state).tolist()
        self._build_world(index)
        self._write(index, (x, y), angle, (vx, vy), spin)

    def paint(self, canvas: Canvas, index: int) -> None:
        floor = [(x, y + TRACK_HEIGHT) for x, y in TRACK]
        canvas.polygon([(TRACK[0][0], -9), *floor, (TRACK[-1][0], -9)], "ground")
        goal_y = 1 + sin((GOAL_X - 1) * pi / 2)
        canvas.flag((GOAL_X, goal_y), 0.45, "goal")
        car = self._cars[index]
        canvas.box(tuple(car.position), CAR_WIDTH, CAR_HEIGHT, car.angle, "cart")
        nose = car.GetWorldPoint((CAR_WIDTH / 2 - 0.06, 0.0))
        canvas.disc(tuple(nose), 0.04, "pole")
