"""The cart-pole, to be balanced from near upright or to be swung up: one model, two tasks."""

from __future__ import annotations

from abc import abstractmethod
from math import pi, sqrt
from typing import TYPE_CHECKING, ClassVar

import numpy as np
from numpy.typing import ArrayLike

from sb3_pois.envs.rigid_body import GRAVITY, POSITION_TOLERANCE, correct_positions, limit_speeds
from sb3_pois.envs.simulation import BoolArray, FloatArray, IndexArray, Simulation

if TYPE_CHECKING:
    from sb3_pois.envs.rendering import Canvas

STEP_SECONDS = 0.05
MAX_POSITION_PASSES = 3
CART_WIDTH, CART_HEIGHT = 2 / sqrt(3), sqrt(3) / 2
CART_MASS = 1.0
CART_INERTIA = CART_MASS * (CART_WIDTH**2 + CART_HEIGHT**2) / 12
POLE_WIDTH, POLE_LENGTH = 0.1, 1.0
POLE_MASS = 0.1
POLE_INERTIA = POLE_MASS * (POLE_WIDTH**2 + POLE_LENGTH**2) / 12
#: From the pivot to the pole's centre of mass.
ARM = POLE_LENGTH / 2

# The pivot's inverse effective mass in the position correction is diag(_A, _B) + _Q t t', t the unit vector across the
# pole. The cart pushes back with its mass and, along the track, with its inertia too: the pivot sits above its centre.
_A = 1 / CART_MASS + 1 / POLE_MASS + (CART_HEIGHT / 2) ** 2 / CART_INERTIA
_B = 1 / CART_MASS + 1 / POLE_MASS
_Q = ARM**2 / POLE_INERTIA


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
    #: Centre and half-width of the uniform law of cart position, cart velocity, pole angle and pole spin at a reset.
    reset_center: ClassVar[FloatArray]
    reset_half_width: ClassVar[FloatArray]
    #: The episode ends when the cart's centre is further than this from the middle, metres.
    track_half_length: ClassVar[float]

    def __init__(self, n_worlds: int):
        super().__init__(n_worlds)
        # rows: cart x, then x, y and angle of the pole (its centre of mass); and their velocities
        self._positions = np.zeros((4, n_worlds))
        self._velocities = np.zeros((4, n_worlds))

    def reset(self, indices: IndexArray, noise: FloatArray) -> None:
        """See :meth:`Simulation.reset`."""
        x, velocity, angle, spin = (self.reset_center + self.reset_half_width * (2 * noise - 1)).T
        # only the pole's angle is written: its pivot end stays over the middle of the track, wherever the cart is
        self._positions[:, indices] = x, -ARM * np.sin(angle), CART_HEIGHT + ARM * np.cos(angle), angle
        still = np.zeros_like(x)
        self._velocities[:, indices] = velocity, still, still, spin

    def step(self, controls: FloatArray) -> tuple[FloatArray, FloatArray, BoolArray]:
        """See :meth:`Simulation.step`."""
        force = controls[:, 0]
        self._solve_velocities(force)
        limit_speeds(self._velocities, STEP_SECONDS, (slice(0, 1), slice(1, 3)), slice(3, 4))
        self._positions += STEP_SECONDS * self._velocities
        correct_positions(self._positions, _correct_pivot, MAX_POSITION_PASSES)
        observations = np.empty((self.n_worlds, 4))
        observations[:, 0::2] = self._positions[::3].T
        observations[:, 1::2] = self._velocities[::3].T
        rewards, terminated = self._judge(self._positions[0], self._positions[3], force)
        return observations, rewards, terminated

    @abstractmethod
    def _judge(self, x: FloatArray, angle: FloatArray, force: FloatArray) -> tuple[FloatArray, BoolArray]:
        """
        :param x: Cart positions after the step, shape ``(n_worlds,)``.
        :param angle: Pole angles after the step, shape ``(n_worlds,)``.
        :param force: Forces during the step, shape ``(n_worlds,)``.
        :return: Rewards and terminations, shape ``(n_worlds,)``.
        """

    def _solve_velocities(self, force: FloatArray) -> None:
        """
        Add force and gravity, then give the bodies the nearest velocities that keep the pivot together.

        Nearest in kinetic energy, which is what joint impulses amount to. The velocities that keep the pivot together
        are those of a cart velocity V and a spin w, with the pole's centre moving at (V - l w cos, -l w sin), so what
        remains are two equations in V and w.
        """
        cart, pole_x, pole_y, spin = self._velocities
        angle = self._positions[3]
        sin, cos = np.sin(angle), np.cos(angle)
        coupling = POLE_MASS * ARM * cos
        momentum = CART_MASS * cart + STEP_SECONDS * force + POLE_MASS * pole_x
        angular_momentum = (
            POLE_INERTIA * spin - coupling * pole_x - (POLE_MASS * ARM * sin) * (pole_y - STEP_SECONDS * GRAVITY)
        )
        total_mass = CART_MASS + POLE_MASS
        pivot_inertia = POLE_INERTIA + POLE_MASS * ARM**2
        determinant = total_mass * pivot_inertia - coupling * coupling
        new_cart = (pivot_inertia * momentum + coupling * angular_momentum) / determinant
        new_spin = (total_mass * angular_momentum + coupling * momentum) / determinant
        tip = ARM * new_spin
        self._velocities[0] = new_cart
        self._velocities[1] = new_cart - tip * cos
        self._velocities[2] = -tip * sin
        self._velocities[3] = new_spin

    def observe(self, indices: IndexArray) -> FloatArray:
        """See :meth:`Simulation.observe`."""
        observations = np.empty((len(indices), 4))
        observations[:, 0::2] = self._positions[::3, indices].T
        observations[:, 1::2] = self._velocities[::3, indices].T
        return observations

    def get_state(self, index: int) -> FloatArray:
        """See :meth:`Simulation.get_state`."""
        x, pole_x, pole_y, angle = self._positions[:, index]
        velocity, pole_vx, pole_vy, spin = self._velocities[:, index]
        origin = pole_x + ARM * np.sin(angle), pole_y - ARM * np.cos(angle)
        return np.array([x, CART_HEIGHT / 2, 0, velocity, 0, 0, *origin, angle, pole_vx, pole_vy, spin])

    def set_state(self, index: int, state: ArrayLike) -> None:
        """See :meth:`Simulation.set_state`."""
        vector = self.state_vector(state)
        x, cart_y, cart_angle, velocity, cart_vy, cart_spin, origin_x, origin_y, angle, pole_vx, pole_vy, spin = vector
        off_track = np.abs([cart_y - CART_HEIGHT / 2, cart_angle, cart_vy, cart_spin])
        if off_track.max() > 1e-5:
            raise ValueError(
                f"{self.task}: the track holds the cart at height {CART_HEIGHT / 2:.7f} and angle 0, without vertical "
                f"velocity or spin; the state has {[cart_y, cart_angle, cart_vy, cart_spin]}"
            )
        self._positions[:, index] = x, origin_x - ARM * np.sin(angle), origin_y + ARM * np.cos(angle), angle
        self._velocities[:, index] = velocity, pole_vx, pole_vy, spin

    def paint(self, canvas: Canvas, index: int) -> None:
        """See :meth:`Simulation.paint`."""
        x, pole_x, pole_y, angle = self._positions[:, index]
        end = self.track_half_length
        canvas.line((-end, 0), (end, 0), "track", 0.05)
        for side in (-end, end):
            canvas.box((side, 0.12), 0.06, 0.24, 0.0, "limit")
        canvas.box((x, CART_HEIGHT / 2), CART_WIDTH, CART_HEIGHT, 0.0, "cart")
        canvas.box((pole_x, pole_y), POLE_WIDTH, POLE_LENGTH, angle, "pole")
        canvas.disc((x, CART_HEIGHT), 0.06, "joint")


def _correct_pivot(positions: FloatArray) -> BoolArray:
    """
    One pass of position correction: an impulse at the pivot moves both bodies, and the track takes the cart back.

    :param positions: Shape ``(4, k)``; changed in place.
    :return: Whether the pivot was too far apart, shape ``(k,)``.
    """
    x, pole_x, pole_y, angle = positions
    sin, cos = np.sin(angle), np.cos(angle)
    gap_x = pole_x + ARM * sin - x
    gap_y = pole_y - ARM * cos - CART_HEIGHT
    # the inverse of diag(A, B) + Q t t', t = (cos, sin), by the Sherman-Morrison formula
    cos_a, sin_b = cos / _A, sin / _B
    turn = (cos_a * gap_x + sin_b * gap_y) / (1 / _Q + cos * cos_a + sin * sin_b)
    impulse_x = cos_a * turn - gap_x / _A
    impulse_y = sin_b * turn - gap_y / _B
    x -= impulse_x / CART_MASS
    pole_x += impulse_x / POLE_MASS
    pole_y += impulse_y / POLE_MASS
    angle -= turn / ARM
    return gap_x * gap_x + gap_y * gap_y > POSITION_TOLERANCE**2


class Cartpole(CartPole):
    """
    Balance the pole.

    Reward ``10 - (1 - cos angle) - 1e-5 u^2``, and 0 on the step that ends the episode: the cart further than 2.4 m from
    the middle or the pole further than 0.2 rad from upright.
    """

    task = "POIS/Cartpole-v0"
    reset_center = np.zeros(4)
    reset_half_width = np.array([0.12, 0.2, 0.01, 0.2])
    track_half_length = 2.4
    max_angle = 0.2
    view = (-3.2, -1.0, 6.4)

    def _judge(self, x: FloatArray, angle: FloatArray, force: FloatArray) -> tuple[FloatArray, BoolArray]:
        terminated = (np.abs(x) > self.track_half_length) | (np.abs(angle) > self.max_angle)
        rewards = 9.0 + np.cos(angle) - 1e-5 * force * force
        rewards[terminated] = 0.0
        return rewards, terminated

    def paint(self, canvas: Canvas, index: int) -> None:
        """See :meth:`Simulation.paint`. Two thin lines show how far the pole may tilt."""
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
    reset_center = np.array([0.0, 0.0, pi, 0.0])
    reset_half_width = np.array([1.0, 2.0, 1.0, 3.0])
    track_half_length = 3.0
    view = (-3.75, -1.4, 7.5)

    def _judge(self, x: FloatArray, angle: FloatArray, force: FloatArray) -> tuple[FloatArray, BoolArray]:
        terminated = np.abs(x) > self.track_half_length
        rewards = np.cos(angle)
        rewards[terminated] = -100.0
        return rewards, terminated

    def paint(self, canvas: Canvas, index: int) -> None:
        """See :meth:`Simulation.paint`. The ring is where the pole's tip should go."""
        canvas.ring((self._positions[0, index], CART_HEIGHT + POLE_LENGTH), 0.14, "goal")
        super().paint(canvas, index)
