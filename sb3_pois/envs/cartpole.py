"""The cart-pole, to be balanced from near upright or to be swung up: one model, two tasks."""

from abc import abstractmethod
from math import pi, sqrt
from typing import ClassVar

import numpy as np
from numpy.typing import ArrayLike

from sb3_pois.envs.rendering import Canvas
from sb3_pois.envs.rigid_body import GRAVITY, POSITION_TOLERANCE, correct_positions, limit_speeds
from sb3_pois.envs.simulation import BoolArray, FloatArray, IndexArray, Simulation

STEP_SECONDS = 0.05
MAX_POSITION_PASSES = 3
CART_WIDTH, CART_HEIGHT = 2 / sqrt(3), sqrt(3) / 2
CART_MASS = 1.0
CART_INERTIA = CART_MASS * (CART_WIDTH**2 + CART_HEIGHT**2) / 12
POLE_WIDTH, POLE_LENGTH = 0.1, 1.0
POLE_MASS = 0.1
POLE_INERTIA = POLE_MASS * (POLE_WIDTH**2 + POLE_LENGTH**2) / 12
# From the pivot to the pole's centre of mass
ARM = POLE_LENGTH / 2
TOTAL_MASS = CART_MASS + POLE_MASS
PIVOT_INERTIA = POLE_INERTIA + POLE_MASS * ARM**2

# How strongly the two bodies resist being pulled together at the pivot, in units of the pole's mass: the matrix
# diag(_ALONG, _UP) + _RATIO t t', t the unit vector across the pole. The cart resists with its mass and, along the track,
# with its inertia too, because the pivot sits above its centre.
_SHARE = POLE_MASS / CART_MASS
_ALONG = 1 + _SHARE + POLE_MASS * (CART_HEIGHT / 2) ** 2 / CART_INERTIA
_UP = 1 + _SHARE
_RATIO = POLE_MASS * ARM**2 / POLE_INERTIA


class CartPole(Simulation):
    """
    A pole hinged on a cart that a force pushes along a track, as a batch of two-body solvers.

    A world's state is the full state of both bodies: a reset leaves the hinge apart and the next step repairs it, so
    the observation ``[x, x', angle, spin]`` does not determine the future. The angle is 0 upright and positive
    counter-clockwise; it is not wrapped.

    State vector: ``[cart x, y, angle, vx, vy, spin, pole x, y, angle, vx, vy, spin]``, positions of the cart's centre
    and of the pole's pivot end, velocities of the centres of mass.
    """

    observation_dim = 4
    state_dim = 12
    control_limit = 10.0
    step_seconds = STEP_SECONDS
    noise_dim = 4
    noise_law = "uniform"
    # Lower end and width of the uniform law of cart position, cart velocity, pole angle and pole spin at a reset
    reset_low: ClassVar[FloatArray]
    reset_width: ClassVar[FloatArray]
    # The episode ends when the cart's centre is further than this from the middle, metres
    track_half_length: ClassVar[float]

    def __init__(self, n_worlds: int):
        super().__init__(n_worlds)
        # rows: cart x, then x, y and angle of the pole (its centre of mass); and their velocities
        self._worlds = np.zeros((8, n_worlds))

    @property
    def _positions(self) -> FloatArray:
        return self._worlds[:4]

    @property
    def _velocities(self) -> FloatArray:
        return self._worlds[4:]

    def reset(self, indices: IndexArray, noise: FloatArray) -> None:
        x, velocity, angle, spin = (self.reset_low + self.reset_width * noise).T
        # only the pole's angle is written: its pivot end stays over the middle of the track, wherever the cart is
        fresh = np.zeros((8, len(indices)))
        fresh[0] = x
        fresh[1] = -ARM * np.sin(angle)
        fresh[2] = CART_HEIGHT + ARM * np.cos(angle)
        fresh[3] = angle
        fresh[4] = velocity
        fresh[7] = spin
        self._worlds[:, indices] = fresh

    def step(self, controls: FloatArray) -> tuple[FloatArray, FloatArray, BoolArray]:
        force = controls[:, 0]
        positions, velocities = self._positions, self._velocities
        self._solve_velocities(force)
        limit_speeds(velocities, STEP_SECONDS, (slice(0, 1), slice(1, 3)), slice(3, 4))
        positions += STEP_SECONDS * velocities
        correct_positions(positions, _correct_pivot, MAX_POSITION_PASSES)
        rewards, terminated = self._judge(positions[0], positions[3], force)
        return _observations(self._worlds), rewards, terminated

    @abstractmethod
    def _judge(self, x: FloatArray, angle: FloatArray, force: FloatArray) -> tuple[FloatArray, BoolArray]:
        """
        :param x: cart positions after the step, shape ``(n_worlds,)``
        :param angle: pole angles after the step, shape ``(n_worlds,)``
        :param force: forces during the step, shape ``(n_worlds,)``
        :return: rewards and terminations, shape ``(n_worlds,)``
        """

    def _solve_velocities(self, force: FloatArray) -> None:
        """
        Add force and gravity, then give the bodies the nearest velocities that keep the pivot together.

        Nearest in kinetic energy, which is what joint impulses amount to. The velocities that keep the pivot together
        are those of a cart velocity V and a spin w, with the pole's centre moving at (V - l w cos, -l w sin), so what
        remains are two equations in V and w.
        """
        velocities = self._velocities
        cart, pole_x, pole_y, spin = velocities
        angle = self._worlds[3]
        sin, cos = np.sin(angle), np.cos(angle)
        coupling = (POLE_MASS * ARM) * cos
        momentum = CART_MASS * cart + STEP_SECONDS * force + POLE_MASS * pole_x
        fallen = (POLE_MASS * ARM) * (pole_y - STEP_SECONDS * GRAVITY)
        angular_momentum = POLE_INERTIA * spin - coupling * pole_x - sin * fallen
        determinant = TOTAL_MASS * PIVOT_INERTIA - coupling * coupling
        new_cart = (PIVOT_INERTIA * momentum + coupling * angular_momentum) / determinant
        new_spin = (TOTAL_MASS * angular_momentum + coupling * momentum) / determinant
        swing = ARM * new_spin
        velocities[0] = new_cart
        velocities[1] = new_cart - swing * cos
        velocities[2] = -swing * sin
        velocities[3] = new_spin

    def observe(self, indices: IndexArray) -> FloatArray:
        return _observations(self._worlds.take(indices, axis=1))

    def get_state(self, index: int) -> FloatArray:
        x, pole_x, pole_y, angle = self._positions[:, index]
        velocity, pole_vx, pole_vy, spin = self._velocities[:, index]
        origin = pole_x + ARM * np.sin(angle), pole_y - ARM * np.cos(angle)
        return np.array([x, CART_HEIGHT / 2, 0, velocity, 0, 0, *origin, angle, pole_vx, pole_vy, spin])

    def set_state(self, index: int, state: ArrayLike) -> None:
        vector = self.state_vector(state)
        x, cart_y, cart_angle, velocity, cart_vy, cart_spin, origin_x, origin_y, angle, pole_vx, pole_vy, spin = vector
        off_track = np.abs([cart_y - CART_HEIGHT / 2, cart_angle, cart_vy, cart_spin])
        if off_track.max() > 1e-5:
            raise ValueError(
                f"{self.task}: the track holds the cart at height {CART_HEIGHT / 2:.7f} and angle 0, without vertical "
                f"velocity or spin; the state has {[cart_y, cart_angle, cart_vy, cart_spin]}"
            )
        center = origin_x - ARM * np.sin(angle), origin_y + ARM * np.cos(angle)
        self._worlds[:, index] = x, *center, angle, velocity, pole_vx, pole_vy, spin

    def paint(self, canvas: Canvas, index: int) -> None:
        x, pole_x, pole_y, angle = self._positions[:, index]
        end = self.track_half_length
        canvas.line((-end, 0), (end, 0), "track", 0.05)
        for side in (-end, end):
            canvas.box((side, 0.12), 0.06, 0.24, 0.0, "limit")
        canvas.box((x, CART_HEIGHT / 2), CART_WIDTH, CART_HEIGHT, 0.0, "cart")
        canvas.box((pole_x, pole_y), POLE_WIDTH, POLE_LENGTH, angle, "pole")
        canvas.disc((x, CART_HEIGHT), 0.06, "joint")


def _observations(worlds: FloatArray) -> FloatArray:
    """
    Pick what can be seen of the worlds.

    :param worlds: shape ``(8, k)``
    :return: shape ``(k, 4)``
    """
    observations = np.empty((worlds.shape[1], 4))
    # position and velocity of the cart, then of the pole's angle
    observations[:, :2] = worlds[0::4].T
    observations[:, 2:] = worlds[3::4].T
    return observations


def _correct_pivot(positions: FloatArray) -> BoolArray:
    """
    One pass of position correction: an impulse at the pivot moves both bodies, and the track takes the cart back.

    :param positions: shape ``(4, k)``; changed in place
    :return: whether the pivot was too far apart, shape ``(k,)``
    """
    x, pole_x, pole_y, angle = positions
    sin, cos = np.sin(angle), np.cos(angle)
    gap_x = pole_x + ARM * sin - x
    gap_y = pole_y - ARM * cos - CART_HEIGHT
    # the inverse of that matrix by the Sherman-Morrison formula
    cos_along, sin_up = cos * (1 / _ALONG), sin * (1 / _UP)
    turn = (cos_along * gap_x + sin_up * gap_y) / (cos * cos_along + sin * sin_up + 1 / _RATIO)
    shift_x = cos_along * turn - gap_x * (1 / _ALONG)
    pole_x += shift_x
    pole_y += sin_up * turn - gap_y * (1 / _UP)
    x -= _SHARE * shift_x
    angle -= turn * (1 / ARM)
    return gap_x * gap_x + gap_y * gap_y > POSITION_TOLERANCE**2


class Cartpole(CartPole):
    """
    Balance the pole.

    Reward ``10 - (1 - cos angle) - 1e-5 u^2``, and 0 on the step that ends the episode: the cart further than 2.4 m from
    the middle or the pole further than 0.2 rad from upright.
    """

    task = "POIS/Cartpole-v0"
    reset_low = np.array([-0.12, -0.2, -0.01, -0.2])
    reset_width = np.array([0.24, 0.4, 0.02, 0.4])
    track_half_length = 2.4
    max_angle = 0.2
    view = (-3.2, -1.0, 6.4)

    def _judge(self, x: FloatArray, angle: FloatArray, force: FloatArray) -> tuple[FloatArray, BoolArray]:
        terminated = (np.abs(x) > self.track_half_length) | (np.abs(angle) > self.max_angle)
        rewards = 9.0 + np.cos(angle) - 1e-5 * force * force
        rewards[terminated] = 0.0
        return rewards, terminated

    def paint(self, canvas: Canvas, index: int) -> None:
        # two thin lines show how far the pole may tilt
        pivot = self._positions[0, index], CART_HEIGHT
        for tilt in (-self.max_angle, self.max_angle):
            end = pivot[0] - 1.25 * POLE_LENGTH * np.sin(tilt), pivot[1] + 1.25 * POLE_LENGTH * np.cos(tilt)
            canvas.line(pivot, end, "limit", 0.01)
        super().paint(canvas, index)


class InvertedPendulum(CartPole):
    """
    Swing the pole up from hanging.

    Reward ``cos angle``, and -100 on the step that ends the episode: the cart further than 3 m from the middle.
    """

    task = "POIS/InvertedPendulum-v0"
    reset_low = np.array([-1.0, -2.0, pi - 1.0, -3.0])
    reset_width = np.array([2.0, 4.0, 2.0, 6.0])
    track_half_length = 3.0
    view = (-3.75, -1.4, 7.5)

    def _judge(self, x: FloatArray, angle: FloatArray, force: FloatArray) -> tuple[FloatArray, BoolArray]:
        terminated = np.abs(x) > self.track_half_length
        rewards = np.cos(angle)
        rewards[terminated] = -100.0
        return rewards, terminated

    def paint(self, canvas: Canvas, index: int) -> None:
        # the ring is where the pole's tip should go
        canvas.ring((self._positions[0, index], CART_HEIGHT + POLE_LENGTH), 0.14, "goal")
        super().paint(canvas, index)
