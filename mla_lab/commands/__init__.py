"""The commands of ``python -m mla_lab``: one module each, with ``add(commands)`` and what it runs.

A module here may be imported to build the parser of any command, so it loads NumPy, torch and the like only when its
command runs.
"""
from __future__ import annotations

from . import bench, capacity, claims, diagnose, grade, matrix, pages, tables, verify

COMMANDS = (verify, matrix, bench, diagnose, tables, capacity, claims, grade, pages)
