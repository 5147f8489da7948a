"""The switch of the fast paths: second implementations of what the general path beside each of them does.

`HWM_FAST_PATHS=0` in the environment turns off all of them, for a whole process: then only general paths run. Nothing
but speed may differ. docs/internals/fast-paths.md lists them.
"""

from __future__ import annotations

import os
from typing import Final

SWITCH = "HWM_FAST_PATHS"

FAST_PATHS: Final[bool] = os.environ.get(SWITCH, "1") != "0"
"""Read once, when the process starts."""
