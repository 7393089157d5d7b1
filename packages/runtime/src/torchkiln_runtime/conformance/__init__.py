"""The conformance table: every layer, dtype and edge value, by our semantics and by TensorRT in one process.

Without a GPU all tests share our reading of TensorRT's layers. This table is where the reading is checked, and no converter uses a
layer in a way whose row is not green.
"""

from __future__ import annotations

from torchkiln_runtime.conformance.check import Outcome, check_group
from torchkiln_runtime.conformance.groups import Group, all_groups, all_rows, sample_groups, write_group
from torchkiln_runtime.conformance.known import KNOWN
from torchkiln_runtime.conformance.row import Row
from torchkiln_runtime.conformance.table import summary, table_json, table_markdown

__all__ = [
    "KNOWN",
    "Group",
    "Outcome",
    "Row",
    "all_groups",
    "all_rows",
    "check_group",
    "sample_groups",
    "summary",
    "table_json",
    "table_markdown",
    "write_group",
]
