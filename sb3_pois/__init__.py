"""Policy Optimization via Importance Sampling (POIS) for Stable-Baselines3."""

from pathlib import Path

from sb3_pois.apois import APOIS
from sb3_pois.ppois import PPOIS

__version__ = Path(__file__).with_name("version.txt").read_text(encoding="utf-8").strip()

__all__ = ["APOIS", "PPOIS", "__version__"]
