"""The acrobot: a double pendulum with a motor at the elbow, to be held upright."""

import numpy as np
from numpy.typing import ArrayLike

from sb3_pois.envs.rendering import Canvas
from sb3_pois.envs.rigid_body import GRAVITY, POSITION_TOLERANCE, correct_positions, limit_speeds
from sb3_pois.envs.simulation import BoolArray, FloatArray, IndexArray, Simulation

WORLD_STEP_SECONDS = 0.01
WORLD_STEPS = 2
MAX_POSITION_PASSES = 20
LINK_WIDTH, LINK_LENGTH = 0.1, 1.0
LINK_MASS = 0.5
LINK_INERTIA = LINK_MASS * (LINK_WIDTH**2 + LINK_LENGTH**2) / 12
# From a link's centre of mass to either end
ARM = LINK_LENGTH / 2
TARGET = (0.0, 2 * LINK_LENGTH)

# How strongly a joint resists being pulled together, in units of a link's mass: 2 (elbow, two links) or 1 (shoulder, one)
# times the identity, plus _RATIO t t' for each of its links, t the unit vector across the link.
_RATIO = LINK_MASS * ARM**2 / LINK_INERTIA
# Inertias in units of mass times arm: of a link about its centre, of both spins with the joints together.
_GYRATION = LINK_INERTIA / (LINK_MASS * ARM)
_INERTIA1 = _GYRATION + 5 * ARM
_INERTIA2 = _GYRATION + ARM


class Acrobot(Simulation):
    """
    Two links hanging from a fixed shoulder, with a motor at the elbow, as a batch of two-body solvers.

    Angles are absolute, 0 hanging and positive counter-clockwise. The observation is
    ``[sin th1, cos th1, w1, sin th2, cos th2, w2]``; the reward is minus the distance of
    ``(px - sin th2, py - cos th2)`` from ``(0, 2)``, with ``(px, py)`` the elbow. (The sign of the sine is the
    original task's.) No state ends an episode. A reset leaves the elbow apart and the next step repairs it.

    Angles are stored in single precision, as in the original engine: links that spin reach 150 rad, where its rounding
    of 1e-5 rad shows in the recorded transitions.

    State vector: ``[link 1 x, y, angle, vx, vy, spin, link 2 ...]``, positions of the links' upper ends and velocities
    of their centres of mass.
    """

    task = "POIS/Acrobot-v0"
    observation_dim = 6
    state_dim = 12
    control_limit = 50.0
    step_seconds = WORLD_STEPS * WORLD_STEP_SECONDS
    noise_dim = 4
    noise_law = "normal"
    view = (-3.45, -2.2, 6.9)
    # Standard deviation of the two angles and of the two spins at a reset
    reset_std = np.array([[0.1, 0.1, 0.01, 0.01]])

    def __init__(self, n_worlds: int):
        super().__init__(n_worlds)
        # rows: x, y of link 1's centre of mass, x, y of link 2's, then the two angles; and their velocities
        self._positions = np.zeros((6, n_worlds))
        self._velocities = np.zeros((6, n_worlds))

    def reset(self, indices: IndexArray, noise: FloatArray) -> None:
        angle1, angle2, spin1, spin2 = (self.reset_std * noise).T
        angle1, angle2 = _rounded(angle1), _rounded(angle2)
        # link 2's upper end stays where link 1's lower end hangs at rest
        center1 = ARM * np.sin(angle1), -ARM * np.cos(angle1)
        center2 = ARM * np.sin(angle2), -LINK_LENGTH - ARM * np.cos(angle2)
        self._positions[:, indices] = *center1, *center2, angle1, angle2
        still = np.zeros_like(spin1)
        self._velocities[:, indices] = still, still, still, still, spin1, spin2

    def step(self, controls: FloatArray) -> tuple[FloatArray, FloatArray, BoolArray]:
        spin_gain = controls[:, 0] * (WORLD_STEP_SECONDS / LINK_INERTIA)
        for _ in range(WORLD_STEPS):
            self._solve_velocities(spin_gain)
            limit_speeds(self._velocities, WORLD_STEP_SECONDS, (slice(0, 2), slice(2, 4)), slice(4, 6))
            self._positions += WORLD_STEP_SECONDS * self._velocities
            self._positions[4:] = _rounded(self._positions[4:])
            correct_positions(self._positions, _correct_joints, MAX_POSITION_PASSES)
        observations = _observations(self._positions, self._velocities)
        sin2, cos2 = observations[:, 3], observations[:, 4]
        elbow_x = self._positions[2] - ARM * sin2
        elbow_y = self._positions[3] + ARM * cos2
        miss_x = elbow_x - sin2 - TARGET[0]
        miss_y = elbow_y - cos2 - TARGET[1]
        rewards = -np.sqrt(miss_x * miss_x + miss_y * miss_y)
        return observations, rewards, np.zeros(self.n_worlds, dtype=bool)

    def _solve_velocities(self, spin_gain: FloatArray) -> None:
        """
        Add torque and gravity, then give the links the nearest velocities that keep both joints together.

        Nearest in kinetic energy, which is what joint impulses amount to. Velocities that keep the joints together
        follow from the two spins alone, so what remains are two equations.

        :param spin_gain: what the motor adds to link 2's spin and takes from link 1's, shape ``(n_worlds,)``, rad/s
        """
        velocities = self._velocities
        x1, y1, x2, y2, spin1, spin2 = velocities
        angles = self._positions[4:]
        sin, cos = np.sin(angles), np.cos(angles)
        fall = WORLD_STEP_SECONDS * GRAVITY
        y1, y2 = y1 - fall, y2 - fall
        # momenta in units of mass times arm
        momentum1 = _GYRATION * (spin1 - spin_gain) + cos[0] * (x1 + 2 * x2) + sin[0] * (y1 + 2 * y2)
        momentum2 = _GYRATION * (spin2 + spin_gain) + cos[1] * x2 + sin[1] * y2
        coupling = (2 * ARM) * (cos[0] * cos[1] + sin[0] * sin[1])
        determinant = _INERTIA1 * _INERTIA2 - coupling * coupling
        velocities[4] = (_INERTIA2 * momentum1 - coupling * momentum2) / determinant
        velocities[5] = (_INERTIA1 * momentum2 - coupling * momentum1) / determinant
        swing = ARM * velocities[4:]
        swing_x, swing_y = swing * cos, swing * sin
        velocities[0] = swing_x[0]
        velocities[1] = swing_y[0]
        velocities[2] = 2 * swing_x[0] + swing_x[1]
        velocities[3] = 2 * swing_y[0] + swing_y[1]

    def observe(self, indices: IndexArray) -> FloatArray:
        return _observations(self._positions[:, indices], self._velocities[:, indices])

    def get_state(self, index: int) -> FloatArray:
        x1, y1, x2, y2, angle1, angle2 = self._positions[:, index]
        vx1, vy1, vx2, vy2, spin1, spin2 = self._velocities[:, index]
        top1 = x1 - ARM * np.sin(angle1), y1 + ARM * np.cos(angle1)
        top2 = x2 - ARM * np.sin(angle2), y2 + ARM * np.cos(angle2)
        return np.array([*top1, angle1, vx1, vy1, spin1, *top2, angle2, vx2, vy2, spin2])

    def set_state(self, index: int, state: ArrayLike) -> None:
        top_x1, top_y1, angle1, vx1, vy1, spin1, top_x2, top_y2, angle2, vx2, vy2, spin2 = self.state_vector(state)
        angle1, angle2 = np.float64(np.float32(angle1)), np.float64(np.float32(angle2))
        center1 = top_x1 + ARM * np.sin(angle1), top_y1 - ARM * np.cos(angle1)
        center2 = top_x2 + ARM * np.sin(angle2), top_y2 - ARM * np.cos(angle2)
        self._positions[:, index] = *center1, *center2, angle1, angle2
        self._velocities[:, index] = vx1, vy1, vx2, vy2, spin1, spin2

    def paint(self, canvas: Canvas, index: int) -> None:
        x1, y1, x2, y2, angle1, angle2 = self._positions[:, index]
        canvas.ring(TARGET, 0.12, "goal")
        canvas.line((-0.4, 0), (0.4, 0), "track", 0.05)
        canvas.box((x1, y1), LINK_WIDTH, LINK_LENGTH, angle1, "cart")
        canvas.box((x2, y2), LINK_WIDTH, LINK_LENGTH, angle2, "pole")
        canvas.disc((x1 - ARM * np.sin(angle1), y1 + ARM * np.cos(angle1)), 0.08, "joint")
        canvas.disc((x2 - ARM * np.sin(angle2), y2 + ARM * np.cos(angle2)), 0.08, "motor")


def _rounded(angles: FloatArray) -> FloatArray:
    """
    :param angles: angles in radians
    :return: the nearest single-precision angles, as double-precision numbers
    """
    return angles.astype(np.float32).astype(np.float64)


def _observations(positions: FloatArray, velocities: FloatArray) -> FloatArray:
    """
    :param positions: shape ``(6, k)``
    :param velocities: shape ``(6, k)``
    :return: shape ``(k, 6)``
    """
    observations = np.empty((positions.shape[1], 6))
    observations[:, 0::3] = np.sin(positions[4:]).T
    observations[:, 1::3] = np.cos(positions[4:]).T
    observations[:, 2::3] = velocities[4:].T
    return observations


def _correct_joints(positions: FloatArray) -> BoolArray:
    """
    One pass of position correction: the elbow, then the shoulder.

    :param positions: shape ``(6, k)``; changed in place
    :return: whether either joint was too far apart, shape ``(k,)``
    """
    x1, y1, x2, y2, angle1, _ = positions
    angles = positions[4:]
    sin, cos = np.sin(angles), np.cos(angles)
    arm_x, arm_y = ARM * sin, ARM * cos
    gap_x = x2 - x1 - (arm_x[0] + arm_x[1])
    gap_y = y2 - y1 + (arm_y[0] + arm_y[1])
    elbow_gap = gap_x * gap_x + gap_y * gap_y
    # For unit vectors t1 and t2 the matrix 2 + r (t1 t1' + t2 t2') has the determinant (2 + r)^2 - r^2 (t1't2)^2, and its
    # adjugate is 2 + 2 r - r (t1 t1' + t2 t2').
    bend = _RATIO * (sin[0] * sin[1] + cos[0] * cos[1])
    determinant = (2 + _RATIO) ** 2 - bend * bend
    across = _RATIO * (cos * gap_x + sin * gap_y)
    across_x, across_y = cos * across, sin * across
    shift_x = (across_x[0] + across_x[1] - (2 + 2 * _RATIO) * gap_x) / determinant
    shift_y = (across_y[0] + across_y[1] - (2 + 2 * _RATIO) * gap_y) / determinant
    x1 -= shift_x
    y1 -= shift_y
    x2 += shift_x
    y2 += shift_y
    angles -= (_RATIO / ARM) * (sin * shift_y + cos * shift_x)
    angles[:] = _rounded(angles)

    # the shoulder has one link only: the Sherman-Morrison formula
    sin1, cos1 = np.sin(angle1), np.cos(angle1)
    gap_x = x1 - ARM * sin1
    gap_y = y1 + ARM * cos1
    turn = (_RATIO / (1 + _RATIO)) * (cos1 * gap_x + sin1 * gap_y)
    x1 += turn * cos1 - gap_x
    y1 += turn * sin1 - gap_y
    angle1 += turn * (1 / ARM)
    angle1[:] = _rounded(angle1)
    return np.maximum(elbow_gap, gap_x * gap_x + gap_y * gap_y) > POSITION_TOLERANCE**2
