"""Parameter-based POIS."""

from sb3_pois.ppois.controllers import Controller
from sb3_pois.ppois.policies import HyperPolicy, LinearPolicy, MlpPolicy, MultiInputPolicy
from sb3_pois.ppois.ppois import PPOIS

__all__ = ["PPOIS", "Controller", "HyperPolicy", "LinearPolicy", "MlpPolicy", "MultiInputPolicy"]
