"""What the serving checks share: faults that are values of other rules than `mla_lab.recipe.Recipe`."""
from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TypeVar

from ..faults import Fault
from ..verdict import Check, Setting

Rules = TypeVar("Rules")


def under(fault: Fault, setting: Setting, rules: Rules) -> tuple[Setting, Rules]:
    """``setting`` and ``rules``, with ``fault`` in the one that has the fields it changes."""
    if set(fault.changes) <= set(type(rules).__dataclass_fields__):
        return setting, fault.spoil(rules)
    return replace(setting, recipe=fault.spoil(setting.recipe)), rules


def caught(check: Check, faults: Sequence[Fault], setting: Setting, rules: Rules) -> dict[str, bool]:
    """Whether ``check`` fails under each of the ``faults`` that it is there to catch."""
    return {f.id: not check.run(*under(f, setting, rules)).ok for f in faults if check.id in f.caught_by}
