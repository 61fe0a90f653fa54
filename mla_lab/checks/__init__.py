"""The checks of every case, in order."""
from .case1_footprint import CHECKS as CASE1

CHECKS = (*CASE1,)
