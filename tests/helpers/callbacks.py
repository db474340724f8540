"""Callbacks that record or stop."""

from typing import Any

import numpy as np
from stable_baselines3.common.callbacks import BaseCallback


class Recorder(BaseCallback):
    """Keeps a copy of some locals of every step, and of the buffer's returns after every rollout."""

    def __init__(self, *names: str) -> None:
        super().__init__()
        self.names = names
        self.steps: list[dict[str, Any]] = []
        self.returns: list[np.ndarray] = []
        self.lengths: list[np.ndarray] = []

    def _on_step(self) -> bool:
        self.steps.append({name: _copy(self.locals[name]) for name in self.names})
        return True

    def _on_rollout_end(self) -> None:
        buffer = self.model.rollout_buffer  # type: ignore[attr-defined]
        self.returns.append(buffer.episode_returns())
        self.lengths.append(buffer.episode_lengths.copy())


class StopAfter(BaseCallback):
    """Asks to stop at a certain step, in whichever way it is told to say so."""

    def __init__(self, n_steps: int, answer: Any = False) -> None:
        super().__init__()
        self.n_steps = n_steps
        self.answer = answer
        self.n_rollout_ends = 0

    def _on_step(self) -> bool:
        return self.answer if self.n_calls >= self.n_steps else True

    def _on_rollout_end(self) -> None:
        self.n_rollout_ends += 1


def _copy(value: Any) -> Any:
    return value.copy() if isinstance(value, np.ndarray) else [dict(info) for info in value]
