"""Vectorised classic control environments in NumPy.

The dynamics and constants are those of Gymnasium; a test compares both step by step. The state of N copies is one
(S, N) float64 array, so each state variable is a contiguous row and the equations read as for a single copy.
"""

from __future__ import annotations

import abc
import copy
import math
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, ClassVar, final

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Discrete

from rlzoo.core.env import Array, Bools, VectorEnv, restore_array


def _constant(value: float) -> Array:
    """A 0-d array. NumPy converts a Python float at every use, which costs as much as the arithmetic."""
    return np.asarray(value, dtype=np.float64)


_ONE = np.asarray(1)
_TWO = _constant(2.0)
_THREE = _constant(3.0)
_TWO_PI = _constant(2 * math.pi)


def _box(*high: float) -> Box:
    """A symmetric box."""
    bound = np.array(high, np.float32)
    return Box(-bound, bound)


class ClassicControl(VectorEnv):
    """Base class of the five environments: time limit, autoreset, random stream and state.

    Before the first reset every copy is forced, so a step starts its first episode. Actions are not checked against
    the action space.
    """

    STATE_SIZE: ClassVar[int]
    setting: float = 0.0
    """The keyword argument that changes the dynamics, if there is one."""
    observation_space: Box
    action_space: gymnasium.Space[Any]

    def __init__(self, num_envs: int, seed: int, *, max_episode_steps: int) -> None:
        if num_envs < 1 or max_episode_steps < 1:
            raise ValueError(f"num_envs={num_envs} and max_episode_steps={max_episode_steps} must be positive")
        self.num_envs = num_envs
        # Spaces have a random generator: each environment has its own.
        self.observation_space, self.action_space = copy.deepcopy((self.observation_space, self.action_space))
        self._rng = np.random.default_rng(seed)
        self._limit = np.asarray(max_episode_steps)
        self._state = np.zeros((self.STATE_SIZE, num_envs))
        self._elapsed = np.zeros(num_envs, np.int64)
        self._forced = np.ones(num_envs, np.bool_)
        self._obs = np.zeros((num_envs, *self.observation_space.shape), np.float32)
        self._reward = np.zeros(num_envs, np.float32)

    @abc.abstractmethod
    def _initial(self, count: int) -> Array:
        """First states of `count` episodes, (S, count)."""

    @abc.abstractmethod
    def _dynamics(self, action: Array) -> tuple[Array | float, Bools]:
        """Advances `self._state` by one step in every copy and returns `reward` and `terminated`."""

    def _observe(self, rows: Array) -> None:
        """Writes the observations of `self._state` into `rows` (D, N): by default the state itself."""
        rows[...] = self._state

    def reset(self) -> tuple[Array, Bools]:
        self._state[...] = self._initial(self.num_envs)
        self._elapsed[...] = 0
        self._forced = np.zeros(self.num_envs, np.bool_)
        self._observe(self._obs.T)
        return self._obs, self._forced

    def step(self, action: Array) -> tuple[Array, Array, Bools, Bools, Bools]:
        # Forced copies are stepped with the others and then overwritten, which is faster than skipping them.
        reward, terminated = self._dynamics(action)
        self._reward[...] = reward
        self._elapsed += _ONE
        truncated = self._elapsed >= self._limit
        if np.count_nonzero(self._forced):
            fresh = self._forced.nonzero()[0]
            self._state[:, fresh] = self._initial(fresh.size)
            self._elapsed[fresh] = 0
            self._reward[fresh] = 0.0
            terminated[fresh] = False
            truncated[fresh] = False
        self._forced = terminated | truncated
        self._observe(self._obs.T)
        return self._obs, self._reward, terminated, truncated, self._forced

    def reseed(self, seed: int) -> bool:
        self._rng = np.random.default_rng(seed)
        return True

    def state_dict(self) -> dict[str, Any]:
        return {
            "state": self._state.copy(),
            "elapsed": self._elapsed.copy(),
            "forced": self._forced.copy(),
            "rng": self._rng.bit_generator.state,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._state = restore_array(state["state"], self._state)
        self._elapsed = restore_array(state["elapsed"], self._elapsed)
        self._forced = restore_array(state["forced"], self._forced)
        self._rng.bit_generator.state = state["rng"]


def _wrap(angle: Array) -> Array:
    """The same angle in [-π, π]."""
    return angle - _TWO_PI * np.rint(angle / _TWO_PI)


def _clip(x: Array, low: Array, high: Array) -> Array:
    """`np.clip` at a third of its cost for small arrays."""
    return np.minimum(np.maximum(x, low), high)


@final
class CartPole(ClassicControl):
    r"""Balance a pole on a cart by pushing the cart left (0) or right (1).

    State and observation (x [m], ẋ [m/s], θ [rad], θ̇ [rad/s]), θ = 0 upright. With the force F = ±10 N, total
    mass M = m_c + m_p and half the pole's length l,

        u = (F + m_p l θ̇² sin θ) / M
        θ̈ = (g sin θ - u cos θ) / (l (4/3 - m_p cos² θ / M))
        ẍ = u - m_p l θ̈ cos θ / M

    by explicit Euler steps of 0.02 s. An episode terminates when |x| > 2.4 m or |θ| > 12°. Reward 1 for every
    step; with `sutton_barto_reward`, -1 for the terminating step and 0 before it.

    Barto, Sutton and Anderson, "Neuronlike adaptive elements that can solve difficult learning control
    problems", 1983; without track friction, as in Gymnasium's CartPole.
    """

    STATE_SIZE = 4
    observation_space = _box(2 * 2.4, math.inf, 2 * math.radians(12), math.inf)
    action_space = Discrete(2)
    GRAVITY = _constant(9.8)
    TOTAL_MASS = _constant(1.0 + 0.1)
    HALF_LENGTH = _constant(0.5)
    POLE_MOMENT = _constant(0.1 * 0.5)
    MASS_RATIO = _constant(0.1 / 1.1)
    MOMENT_RATIO = _constant(0.1 * 0.5 / 1.1)
    FOUR_THIRDS = _constant(4 / 3)
    FORCES = np.array([-10.0, 10.0])
    TIMESTEP = _constant(0.02)
    MAX_POSITION = _constant(2.4)
    MAX_ANGLE = _constant(math.radians(12))

    def __init__(self, num_envs: int, seed: int, *, max_episode_steps: int, sutton_barto_reward: bool = False) -> None:
        super().__init__(num_envs, seed, max_episode_steps=max_episode_steps)
        self.setting = self._sutton_barto_reward = sutton_barto_reward

    def _initial(self, count: int) -> Array:
        return self._rng.uniform(-0.05, 0.05, (4, count))

    def _dynamics(self, action: Array) -> tuple[Array | float, Bools]:
        x, x_dot, theta, theta_dot = self._state
        sin, cos = np.sin(theta), np.cos(theta)
        force = self.FORCES.take(action, mode="clip")
        push = (force + self.POLE_MOMENT * theta_dot * theta_dot * sin) / self.TOTAL_MASS
        theta_acc = (self.GRAVITY * sin - push * cos) / (
            self.HALF_LENGTH * (self.FOUR_THIRDS - self.MASS_RATIO * cos * cos)
        )
        x_acc = push - self.MOMENT_RATIO * theta_acc * cos

        x += self.TIMESTEP * x_dot
        theta += self.TIMESTEP * theta_dot
        x_dot += self.TIMESTEP * x_acc
        theta_dot += self.TIMESTEP * theta_acc

        terminated = (abs(x) > self.MAX_POSITION) | (abs(theta) > self.MAX_ANGLE)
        return -terminated.astype(np.float64) if self._sutton_barto_reward else 1.0, terminated


@final
class Acrobot(ClassicControl):
    r"""Swing the free end of a two-link pendulum above a line by a torque at the joint between the links.

    State (θ₁, θ₂ [rad], θ̇₁, θ̇₂ [rad/s]), θ₁ = 0 hanging down and θ₂ relative to the first link; observation
    (cos θ₁, sin θ₁, cos θ₂, sin θ₂, θ̇₁, θ̇₂). Action 0, 1, 2 is a torque τ of -1, 0, 1 N m. With masses and
    lengths of 1, centres of mass at ½ and moments of inertia of 1, and with φ = θ₁ + θ₂, the second link's angle
    from hanging down, the links have

        9/2 θ̈₁ + cos θ₂ φ̈ = f₁ =  φ̇²  sin θ₂ - 3 g sin θ₁ - 2 τ
        cos θ₂ θ̈₁ + 5/2 φ̈ = f₂ = -θ̇₁² sin θ₂ -   g sin φ  + 2 τ

    by one fourth-order Runge-Kutta step of 0.2 s; then angles are wrapped to [-π, π] and velocities bounded
    by 4π and 9π. An episode terminates when -cos θ₁ - cos(θ₁ + θ₂) > 1. Reward -1 for every step but the
    terminating one, which gives 0.

    Sutton, "Generalization in reinforcement learning: successful examples using sparse coarse coding", 1996;
    the equations are those of Sutton and Barto's book, Gymnasium's default.
    """

    STATE_SIZE = 4
    observation_space = _box(1.0, 1.0, 1.0, 1.0, 4 * math.pi, 9 * math.pi)
    action_space = Discrete(3)
    TORQUES = np.array([[2.0, 0.0, -2.0], [-2.0, 0.0, 2.0]])  # of each action, in f₁ and in f₂
    TIMESTEP = _constant(0.2)
    HALF_TIMESTEP = _constant(0.2 / 2)
    SIXTH_TIMESTEP = _constant(0.2 / 6)
    HEIGHT = _constant(1.0)
    DETERMINANT = _constant(9 / 2 * 5 / 2)

    def __init__(self, num_envs: int, seed: int, *, max_episode_steps: int) -> None:
        super().__init__(num_envs, seed, max_episode_steps=max_episode_steps)
        # 5/2 and 9/2 of the inverse of the equations' matrix, 3 g and g. NumPy is twice as fast without broadcasting.
        self._inertias = np.array([[5 / 2], [9 / 2]]).repeat(num_envs, 1)
        self._weights = np.array([[3 * 9.8], [9.8]]).repeat(num_envs, 1)
        self._max_velocity = np.array([[4 * math.pi], [9 * math.pi]]).repeat(num_envs, 1)

    def _initial(self, count: int) -> Array:
        # Gymnasium rounds the first state, and only that one, to float32.
        return self._rng.uniform(-0.1, 0.1, (4, count)).astype(np.float32)

    def _dynamics(self, action: Array) -> tuple[Array, Bools]:
        angle, velocity = self._state[:2], self._state[2:]
        torque = self.TORQUES.take(action, axis=1, mode="clip")
        angle[1] += angle[0]
        velocity[1] += velocity[0]
        v1, a1 = velocity, self._accelerations(angle, velocity, torque)
        v2 = velocity + self.HALF_TIMESTEP * a1
        a2 = self._accelerations(angle + self.HALF_TIMESTEP * v1, v2, torque)
        v3 = velocity + self.HALF_TIMESTEP * a2
        a3 = self._accelerations(angle + self.HALF_TIMESTEP * v2, v3, torque)
        v4 = velocity + self.TIMESTEP * a3
        a4 = self._accelerations(angle + self.TIMESTEP * v3, v4, torque)
        angle += self.SIXTH_TIMESTEP * (v1 + _TWO * (v2 + v3) + v4)
        velocity += self.SIXTH_TIMESTEP * (a1 + _TWO * (a2 + a3) + a4)

        depth = np.cos(angle)
        terminated = depth[0] + depth[1] < -self.HEIGHT
        angle[1] -= angle[0]
        velocity[1] -= velocity[0]
        angle[...] = _wrap(angle)
        velocity[...] = _clip(velocity, -self._max_velocity, self._max_velocity)
        return terminated - _ONE, terminated

    def _accelerations(self, angle: Array, velocity: Array, torque: Array) -> Array:
        """θ̈₁ and φ̈ (2, N), from both angles and velocities, and the terms ∓2τ of f₁ and f₂."""
        bend = angle[1] - angle[0]
        sin, cos = np.sin(bend), np.cos(bend)
        square = velocity * velocity
        force = torque - self._weights * np.sin(angle)
        force_1, force_2 = force[0], force[1]  # faster than to unpack the array
        force_1 += square[1] * sin
        force_2 -= square[0] * sin
        acceleration = self._inertias * force
        acceleration_1, acceleration_2 = acceleration[0], acceleration[1]
        acceleration_1 -= cos * force_2
        acceleration_2 -= cos * force_1
        acceleration /= self.DETERMINANT - cos * cos
        return acceleration

    def _observe(self, rows: Array) -> None:
        angles = self._state[:2]
        rows[0:4:2] = np.cos(angles)
        rows[1:4:2] = np.sin(angles)
        rows[4:] = self._state[2:]


class _Car(ClassicControl):
    """Base class of both mountain cars, in a valley of height sin 3x. State and observation (x, v)."""

    STATE_SIZE = 2
    observation_space = Box(np.array([-1.2, -0.07], np.float32), np.array([0.6, 0.07], np.float32))
    GOAL: ClassVar[Array]
    MIN_POSITION = _constant(-1.2)
    MAX_POSITION = _constant(0.6)
    MAX_SPEED = _constant(0.07)
    GRAVITY = _constant(0.0025)

    def __init__(self, num_envs: int, seed: int, *, max_episode_steps: int, goal_velocity: float = 0.0) -> None:
        super().__init__(num_envs, seed, max_episode_steps=max_episode_steps)
        self.setting, self._goal_velocity = goal_velocity, _constant(goal_velocity)

    def _initial(self, count: int) -> Array:
        """At rest near the bottom of the valley: x uniform in [-0.6, -0.4]."""
        return np.stack([self._rng.uniform(-0.6, -0.4, count), np.zeros(count)])

    def _drive(self, push: Array) -> Bools:
        """One step, which returns where an episode terminates: x >= `GOAL` and v >= `goal_velocity`.

        v += push - 0.0025 cos 3x and x += v, with |v| <= 0.07 and -1.2 <= x <= 0.6. At the left end the car stops.
        """
        x, v = self._state
        v += push - self.GRAVITY * np.cos(_THREE * x)
        v[...] = _clip(v, -self.MAX_SPEED, self.MAX_SPEED)
        x += v
        v[x <= self.MIN_POSITION] = 0.0
        x[...] = _clip(x, self.MIN_POSITION, self.MAX_POSITION)
        return (x >= self.GOAL) & (v >= self._goal_velocity)


@final
class MountainCar(_Car):
    """Drive an underpowered car out of a valley by pushing left (0), not at all (1) or right (2).

    The dynamics are those of `_Car`, with push ±0.001. An episode terminates when x >= 0.5 and v >= `goal_velocity`.
    Reward -1 for every step.

    Moore, "Efficient memory-based learning for robot control", 1990; Sutton and Barto's book, Example 10.1.
    """

    action_space = Discrete(3)
    PUSHES = np.array([-0.001, 0.0, 0.001])
    GOAL = _constant(0.5)

    def _dynamics(self, action: Array) -> tuple[float, Bools]:
        return -1.0, self._drive(self.PUSHES.take(action, mode="clip"))


@final
class MountainCarContinuous(_Car):
    """The mountain car with a continuous action: u in [-1, 1] pushes by 0.0015 u.

    The dynamics are those of `_Car`. An episode terminates when x >= 0.45 and v >= `goal_velocity`. Reward -0.1 u², and
    100 more for the terminating step. Gymnasium rounds this problem's state to float32 after each step; here it stays
    float64.

    Moore, 1990, as in Gymnasium's MountainCarContinuous.
    """

    action_space = _box(1.0)
    POWER = _constant(0.0015)
    GOAL = _constant(0.45)
    GOAL_REWARD = _constant(100.0)
    COST = _constant(0.1)
    MAX_ACTION = _constant(1.0)

    def _dynamics(self, action: Array) -> tuple[Array, Bools]:
        u = _clip(action[:, 0], -self.MAX_ACTION, self.MAX_ACTION)
        terminated = self._drive(self.POWER * u)
        return self.GOAL_REWARD * terminated - self.COST * u * u, terminated


@final
class Pendulum(ClassicControl):
    r"""Swing a pendulum up and hold it there by a torque u in [-2, 2] N m.

    State (θ [rad], θ̇ [rad/s]), θ = 0 upright; observation (cos θ, sin θ, θ̇). With mass m and length l of 1,

        θ̇ += (3g/(2l) sin θ + 3/(m l²) u) Δt,  |θ̇| <= 8
        θ += θ̇ Δt,  Δt = 0.05 s

    Reward -(θ² + 0.1 θ̇² + 0.001 u²), of the state before the step and with θ in [-π, π]. No episode
    terminates.

    Gymnasium's Pendulum; `g` [m/s²] as there.
    """

    STATE_SIZE = 2
    observation_space = _box(1.0, 1.0, 8.0)
    action_space = _box(2.0)
    TIMESTEP = _constant(0.05)
    TORQUE_GAIN = _constant(3.0)
    MAX_TORQUE = _constant(2.0)
    MAX_SPEED = _constant(8.0)
    SPEED_COST = _constant(0.1)
    TORQUE_COST = _constant(0.001)

    def __init__(self, num_envs: int, seed: int, *, max_episode_steps: int, g: float = 10.0) -> None:
        super().__init__(num_envs, seed, max_episode_steps=max_episode_steps)
        self.setting, self._gravity_gain = g, _constant(3 * g / 2)

    def _initial(self, count: int) -> Array:
        return self._rng.uniform(-1.0, 1.0, (2, count)) * [[math.pi], [1.0]]

    def _dynamics(self, action: Array) -> tuple[Array, Bools]:
        theta, theta_dot = self._state
        u = _clip(action[:, 0], -self.MAX_TORQUE, self.MAX_TORQUE)
        angle = _wrap(theta)
        cost = angle * angle + self.SPEED_COST * theta_dot * theta_dot + self.TORQUE_COST * u * u

        theta_dot += (self._gravity_gain * np.sin(theta) + self.TORQUE_GAIN * u) * self.TIMESTEP
        theta_dot[...] = _clip(theta_dot, -self.MAX_SPEED, self.MAX_SPEED)
        theta += theta_dot * self.TIMESTEP
        return -cost, np.zeros(self.num_envs, np.bool_)

    def _observe(self, rows: Array) -> None:
        theta, theta_dot = self._state
        rows[0], rows[1], rows[2] = np.cos(theta), np.sin(theta), theta_dot


BUILTIN: Mapping[str, Callable[..., ClassicControl]] = {
    "CartPole-v0": partial(CartPole, max_episode_steps=200),
    "CartPole-v1": partial(CartPole, max_episode_steps=500),
    "Acrobot-v1": partial(Acrobot, max_episode_steps=500),
    "MountainCar-v0": partial(MountainCar, max_episode_steps=200),
    "MountainCarContinuous-v0": partial(MountainCarContinuous, max_episode_steps=999),
    "Pendulum-v1": partial(Pendulum, max_episode_steps=200),
}
"""Constructors `(num_envs, seed, *, max_episode_steps=..., ...)` by Gymnasium id."""
