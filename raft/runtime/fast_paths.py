"""The switch of the fast paths. Each fast path is a second implementation of the general path beside it.

`HWM_FAST_PATHS=0` in the environment turns off all of them, for a whole process: then only general paths run. Nothing
but speed may differ. docs/internals/fast-paths.md lists them. The core has no switch: its callers choose.
"""

from __future__ import annotations

import os
from typing import Final

from raft.config import fast_paths_wanted
from raft.protocol.codec import decode_message, decode_message_general

FAST_PATHS: Final[bool] = fast_paths_wanted(os.environ)
"""Read once, when the process starts."""

decode_peer_body = decode_message if FAST_PATHS else decode_message_general
"""(group_id, message) of a frame's body. Raises ProtocolError."""
