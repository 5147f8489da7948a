"""The switch of the fast paths. Each fast path is a second, faster implementation of a general path.

`HWM_FAST_PATHS=0` in the environment of a process turns off all fast paths, so that only general paths run. The results
must be the same. docs/internals/fast-paths.md lists the fast paths. The core does not read this switch: its callers
choose the path.
"""

from __future__ import annotations

import os
from typing import Final

from raft.config import fast_paths_wanted

FAST_PATHS: Final[bool] = fast_paths_wanted(os.environ)
"""The variable is read once, when the process starts."""
