"""The switch of the store's fast paths; docs/internals/fast-paths.md lists the fast paths.

The switch is defined here as well as in `raft.runtime`, because a program with only a client does not load
`raft.runtime`.
"""

from __future__ import annotations

import os
from typing import Final

from raft import fast_paths_wanted

FAST_PATHS: Final[bool] = fast_paths_wanted(os.environ)
"""Read from the environment only once, when this module is loaded."""
