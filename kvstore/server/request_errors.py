"""Containment of errors: an unexpected exception while a request is judged ends only the connection of the request.

Before a command is proposed, nothing has changed. A request that fails before its proposal certainly had no effect, so
the member continues. After the proposal, and while completions are carried out, the state may have changed, so an
exception in these phases ends the member.
"""

from __future__ import annotations

import logging
import traceback

from kvstore.resources.out_of_memory import is_out_of_memory
from raft import StoreFailed

logger = logging.getLogger("kvstore.service")

PLACES_MAX = 64
"""The greatest number of lines of code with separate counts. All further lines share one count."""

TRACEBACK_CHARACTERS_MAX = 8_000
"""The greatest length of one traceback in the log. A longer traceback is cut at its beginning, because its end names
the error."""

_OTHER_PLACES = "other places"


def is_contained(error: BaseException) -> bool:
    """Return True if an error that was raised while a request was judged must end only the connection of the request.

    Return False for exceptions that end a process or a task (KeyboardInterrupt, SystemExit, trio.Cancelled), and for a
    disk error, after which the member must stop.
    """
    if isinstance(error, OSError | StoreFailed):
        return False
    return isinstance(error, Exception) or _is_decoder_panic(error)


def _is_decoder_panic(error: BaseException) -> bool:
    """True for a panic of the Rust code in `cbor2`: a BaseException whose class no module exports."""
    return type(error).__name__ == "PanicException"


class RequestErrors:
    """Counts the contained errors of one member. The first error of each place is logged with its traceback.

    A place is the type of an error together with the line of code that raised the error. After the first error, one
    line is logged whenever the number of errors of a place reaches 10, 100, 1,000, …
    """

    def __init__(self) -> None:
        self.total = 0
        self.places: dict[str, int] = {}  # "TypeError at service.py:363" → count.

    def record(self, error: BaseException) -> None:
        """Count `error`, and log the error if it is the first, tenth, hundredth, … error of its place."""
        self.total += 1
        place = place_of(error)
        if place not in self.places and len(self.places) >= PLACES_MAX:
            place = _OTHER_PLACES
        count = self.places[place] = self.places.get(place, 0) + 1
        if count == 1:
            if is_out_of_memory(error):
                logger.error(
                    "a request was not carried out, because this process got no more memory (%s); its connection ends, "
                    "this member goes on. Give it more memory, or remove keys",
                    place,
                )
                return
            details = "".join(traceback.format_exception(error))[-TRACEBACK_CHARACTERS_MAX:]
            logger.error(
                "a request met an unexpected error and was not carried out (%s); its connection ends, this member "
                "goes on. Please report it with this traceback:\n%s",
                place,
                details,
            )
        elif str(count).rstrip("0") == "1":
            logger.error("%d requests met the same unexpected error: %s", count, place)


def place_of(error: BaseException) -> str:
    """Return the place of `error`: its type, and the line of code that raised it."""
    frames = traceback.extract_tb(error.__traceback__)
    where = f"{frames[-1].filename.rpartition('/')[2]}:{frames[-1].lineno}" if frames else "an unknown line"
    return f"{type(error).__name__} at {where}"
