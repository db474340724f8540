"""
The batched solvers against two independent oracles.

Box2D itself, given the same bodies and joints, in single precision; and a plain transcription of its algorithm for two
bodies and their joints in double precision: one dense linear system for the velocities, joint after joint for the
positions, one world at a time.
"""

from typing import Any

import numpy as np
import pytest
from Box2D import b2World
from envs_helpers import SOLVER_TASKS, random_actions, recorded_transitions

from sb3_pois.envs.tasks import make_simulation

ARM = 0.5
CART_HEIGHT = np.sqrt(3) / 2
CART_INERTIA = (4 / 3 + 3 / 4) / 12
CART_POLE: dict[str, Any] = {
    "h": 0.05,
    "world_steps": 1,
    "passes": 3,
    "masses": (1.0, 0.1),
    "inertias": (CART_INERTIA, 0.1 * 1.01 / 12),
}
ACROBOT: dict[str, Any] = {
    "h": 0.01,
    "world_steps": 2,
    "passes": 20,
    "masses": (0.5, 0.5),
    "inertias": (0.5 * 1.01 / 12, 0.5 * 1.01 / 12),
}


def turned(vector, angle):
    c, s = np.cos(angle), np.sin(angle)
    return np.array([c * vector[0] - s * vector[1], s * vector[0] + c * vector[1]])


class DenseSolver:
    """
    Bodies 1 and 2 with generalised positions [x1, y1, angle1, x2, y2, angle2] (centres of mass).

    A joint is a function from positions to (gap, Jacobian, whether it is too far apart); joints are corrected in the order
    given.
    """

    n_limited = 0

    def __init__(self, h, world_steps, passes, masses, inertias, joints, single_precision_angles):
        self.h, self.world_steps, self.passes, self.joints = h, world_steps, passes, joints
        self.mass = np.array([masses[0]] * 2 + [inertias[0]] + [masses[1]] * 2 + [inertias[1]])
        self.gravity = np.array([0, -10, 0, 0, -10, 0.0])
        self.round_angles = single_precision_angles

    def rounded(self, q):
        if self.round_angles:
            q[[2, 5]] = q[[2, 5]].astype(np.float32)
        return q

    def step(self, q, v, force):
        for _ in range(self.world_steps):
            v = v + self.h * (self.gravity + force / self.mass)
            jacobian = np.concatenate([joint(q)[1] for joint in self.joints])
            effective = (jacobian / self.mass) @ jacobian.T
            v = v - (jacobian.T @ np.linalg.solve(effective, jacobian @ v)) / self.mass
            before = v.copy()
            for body in (slice(0, 2), slice(3, 5)):
                v[body] *= min(1.0, 2 / max(self.h * np.linalg.norm(v[body]), 1e-9))
            v[[2, 5]] = np.clip(v[[2, 5]], -np.pi / 2 / self.h, np.pi / 2 / self.h)
            self.n_limited += int((before != v).any())
            q = self.rounded(q + self.h * v)
            for _ in range(self.passes):
                goes_on = False
                for joint in self.joints:
                    gap, jacobian, is_apart = joint(q)
                    goes_on |= bool(is_apart)
                    effective = (jacobian / self.mass) @ jacobian.T
                    q = self.rounded(q - (jacobian.T @ np.linalg.solve(effective, gap)) / self.mass)
                if not goes_on:
                    break
        return q, v


def hinge(arm1, arm2):
    """Joint of a point of body 1 and a point of body 2, both in body coordinates."""

    def joint(q):
        r1, r2 = turned(arm1, q[2]), turned(arm2, q[5])
        gap = q[3:5] + r2 - q[0:2] - r1
        jacobian = np.array([[-1, 0, r1[1], 1, 0, -r2[1]], [0, -1, -r1[0], 0, 1, r2[0]]])
        return gap, jacobian, np.linalg.norm(gap) > 0.005

    return joint


def fixed_point(arm1):
    """Joint of a point of body 1 and the origin of the world."""

    def joint(q):
        r1 = turned(arm1, q[2])
        gap = q[0:2] + r1
        return gap, np.array([[1, 0, -r1[1], 0, 0, 0], [0, 1, r1[0], 0, 0, 0.0]]), np.linalg.norm(gap) > 0.005

    return joint


def track(q):
    """Body 1 keeps its height and its angle."""
    gap = np.array([q[1] - CART_HEIGHT / 2, q[2]])
    return gap, np.array([[0, 1, 0, 0, 0, 0], [0, 0, 1, 0, 0, 0.0]]), abs(gap[0]) > 0.005 or abs(gap[1]) > np.deg2rad(2)


def dense_solver(task):
    if task == "POIS/Acrobot-v0":
        return DenseSolver(**ACROBOT, joints=[hinge((0, -ARM), (0, ARM)), fixed_point((0, ARM))], single_precision_angles=True)
    return DenseSolver(**CART_POLE, joints=[hinge((0, CART_HEIGHT / 2), (0, -ARM)), track], single_precision_angles=False)


def centers_to_state(task, q, v):
    """From centres of mass to the recordings' layout, in which the pole's and the links' positions are those of one end."""
    end1, end2 = ((0, ARM), (0, ARM)) if task == "POIS/Acrobot-v0" else ((0, 0), (0, -ARM))
    return np.concatenate([q[0:2] + turned(end1, q[2]), q[2:3], v[0:3], q[3:5] + turned(end2, q[5]), q[5:6], v[3:6]])


def state_to_centers(task, state):
    end1, end2 = ((0, ARM), (0, ARM)) if task == "POIS/Acrobot-v0" else ((0, 0), (0, -ARM))
    q = np.concatenate([state[0:2] - turned(end1, state[2]), state[2:3], state[6:8] - turned(end2, state[8]), state[8:9]])
    return q, np.concatenate([state[3:6], state[9:12]])


def force_of(task, action):
    a = np.clip(float(action[0]), -1, 1)
    if task == "POIS/Acrobot-v0":
        return np.array([0, 0, -50 * a, 0, 0, 50 * a])
    return np.array([10 * a, 0, 0, 0, 0, 0])


@pytest.mark.parametrize("task", SOLVER_TASKS)
def test_many_steps_equal_the_dense_solver(task):
    n_worlds, n_steps = 40, 5
    simulation, solver = make_simulation(task, n_worlds), dense_solver(task)
    recorded = recorded_transitions(task)
    # every fourth of the first recordings, and states so wild that the speed limits bind
    states = recorded["state"][: 4 * n_worlds : 4].copy()
    states[:, 1] = CART_HEIGHT / 2 if task != "POIS/Acrobot-v0" else states[:, 1]
    if task != "POIS/Acrobot-v0":
        states[:, [2, 4, 5]] = 0
    states[-6:, [3, 11]] = 300
    actions = random_actions(task, n_steps, n_worlds)
    for index, state in enumerate(states):
        simulation.set_state(index, state)
    paths = []
    for step in range(n_steps):
        simulation.step(simulation.controls(actions[step], actions[step].shape))
        paths.append([simulation.get_state(index) for index in range(n_worlds)])
    for index in range(n_worlds):
        q, v = state_to_centers(task, states[index])
        for step in range(n_steps):
            q, v = solver.step(q, v, force_of(task, actions[step, index]))
            # chaos amplifies rounding where the links are thrown about, so later steps get more room
            np.testing.assert_allclose(paths[step][index], centers_to_state(task, q, v), rtol=0, atol=1e-8 * 10**step)
    assert solver.n_limited > 0


class Box2DOracle:
    """The same two bodies in Box2D, with enough velocity iterations that its sequential solver converges."""

    def __init__(self, task):
        self.is_acrobot = task == "POIS/Acrobot-v0"
        self.model = ACROBOT if self.is_acrobot else CART_POLE
        self.world = b2World(gravity=(0, -10), doSleep=False)
        ground = self.world.CreateStaticBody(position=(0, 0))
        if self.is_acrobot:
            self.bodies = [self._link((0, 0), (0, -ARM)), self._link((0, -1), (0, -ARM))]
            self.world.CreateRevoluteJoint(bodyA=ground, bodyB=self.bodies[0], anchor=(0, 0))
            self.world.CreateRevoluteJoint(bodyA=self.bodies[0], bodyB=self.bodies[1], anchor=(0, -1))
        else:
            cart = self.world.CreateDynamicBody(position=(0, CART_HEIGHT / 2))
            area = 2 / np.sqrt(3) * CART_HEIGHT
            cart.CreatePolygonFixture(box=(1 / np.sqrt(3), CART_HEIGHT / 2), density=1 / area, groupIndex=-1)
            pole = self._link((0, CART_HEIGHT), (0, ARM))
            self.bodies = [cart, pole]
            self.world.CreatePrismaticJoint(bodyA=ground, bodyB=cart, anchor=cart.worldCenter, axis=(1, 0))
            self.world.CreateRevoluteJoint(bodyA=cart, bodyB=pole, anchor=(0, CART_HEIGHT))

    def _link(self, position, center):
        body = self.world.CreateDynamicBody(position=position)
        mass = self.model["masses"][1]
        body.CreatePolygonFixture(box=(0.05, ARM, center, 0), density=mass / 0.1, groupIndex=-1)
        return body

    def set_state(self, state):
        for body, (x, y, angle, vx, vy, spin) in zip(self.bodies, state.reshape(2, 6).tolist(), strict=True):
            body.position = x, y
            body.angle = angle
            body.linearVelocity = vx, vy
            body.angularVelocity = spin

    def get_state(self):
        return np.array([[*b.position, b.angle, *b.linearVelocity, b.angularVelocity] for b in self.bodies]).ravel()

    def step(self, action):
        a = float(np.clip(action[0], -1, 1))
        for _ in range(self.model["world_steps"]):
            if self.is_acrobot:
                self.bodies[0].ApplyTorque(-50 * a, True)
                self.bodies[1].ApplyTorque(50 * a, True)
            else:
                self.bodies[0].ApplyForce((10 * a, 0), self.bodies[0].worldCenter, True)
            self.world.Step(self.model["h"], 300, self.model["passes"])


def random_states(task, n_states, seed=0):
    """States with the joints slightly apart, as after a reset, and moderate velocities."""
    rng = np.random.default_rng(seed)
    states = np.zeros((n_states, 12))
    for state in states:
        if task == "POIS/Acrobot-v0":
            angle1, angle2 = rng.uniform(-3, 3, 2)
            state[[0, 1]] = rng.uniform(-0.03, 0.03, 2)
            state[[2, 8]] = angle1, angle2
            state[6:8] = state[0:2] + turned((0, -1), angle1) + rng.uniform(-0.03, 0.03, 2)
            state[[3, 4, 5, 9, 10, 11]] = rng.uniform(-3, 3, 6)
        else:
            x = rng.uniform(-2, 2)
            state[0:2] = x, CART_HEIGHT / 2
            state[8] = rng.uniform(-4, 4)
            state[6:8] = np.array([x, CART_HEIGHT]) + rng.uniform(-0.1, 0.1, 2)
            state[[3, 9, 10, 11]] = rng.uniform(-3, 3, 4)
    return states


@pytest.mark.parametrize("task", SOLVER_TASKS)
def test_one_step_equals_box2d(task):
    states, actions = random_states(task, 200), random_actions(task, 200)
    simulation = make_simulation(task, len(states))
    for index, state in enumerate(states):
        simulation.set_state(index, state)
    simulation.step(simulation.controls(actions, actions.shape))
    for index, state in enumerate(states):
        oracle = Box2DOracle(task)
        oracle.set_state(state)
        oracle.step(actions[index])
        np.testing.assert_allclose(simulation.get_state(index), oracle.get_state(), rtol=0, atol=3e-5)


@pytest.mark.parametrize("task", SOLVER_TASKS)
def test_a_trajectory_equals_box2d(task):
    n_worlds, n_steps = 20, 25
    states, actions = random_states(task, n_worlds, seed=1), random_actions(task, n_steps, n_worlds, seed=2)
    simulation = make_simulation(task, n_worlds)
    oracles = [Box2DOracle(task) for _ in range(n_worlds)]
    for index, state in enumerate(states):
        simulation.set_state(index, state)
        oracles[index].set_state(state)
    for step in range(n_steps):
        simulation.step(simulation.controls(actions[step], actions[step].shape))
        for oracle, action in zip(oracles, actions[step], strict=True):
            oracle.step(action)
    errors = [np.abs(simulation.get_state(i) - oracles[i].get_state()).max() for i in range(n_worlds)]
    # single precision and a chaotic system: most paths stay together closely, none comes apart
    assert np.median(errors) < 1e-3, np.sort(errors)
    assert max(errors) < 5e-2, np.sort(errors)
