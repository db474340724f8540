"""Action-based POIS."""

from sb3_pois.apois.apois import APOIS
from sb3_pois.apois.policies import CnnPolicy, LinearPolicy, MlpPolicy, MultiInputPolicy

__all__ = ["APOIS", "CnnPolicy", "LinearPolicy", "MlpPolicy", "MultiInputPolicy"]
