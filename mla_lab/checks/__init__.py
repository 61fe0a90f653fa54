"""The checks of every case, in order."""
from .case1_footprint import CHECKS as CASE1
from .case2_rank import CHECKS as CASE2
from .case3_rope import CHECKS as CASE3
from .case4_absorption import CHECKS as CASE4
from .case5_decode import CHECKS as CASE5
from .case5_edges import CHECKS as EDGES
from .case5_paper import CHECKS as PAPER

CHECKS = (*CASE1, *CASE2, *CASE3, *CASE4, *CASE5, *EDGES, *PAPER)
