"""What of a history is sent to a model, and its JSON: kept from one request to the next."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence

import msgspec

from swarmkeep.domain.chain import Chain
from swarmkeep.domain.files.places import FilePlace, Media, find_places
from swarmkeep.domain.history.stand_ins import make_summary_message
from swarmkeep.domain.history.window import STANDING_ROLES, find_first_shown, select_earlier, select_from
from swarmkeep.domain.messages import Entry, ends_calls, pair_results
from swarmkeep.domain.state import State, Summary


class History(msgspec.Struct, frozen=True):
    """What a model is sent of the first `upto` messages of a session, and its JSON, with commas in between.

    The JSON is in a few pieces, each at least twice as long as the next: so to add some costs about the same however
    long it is. `summary` stands in the place of the messages that it covers: of sessions that grew from one, each may
    have its own by the event of the same seq. `places`: where in the JSON references stand in the place of files, in
    order. `media`: these, and what else is no text.
    """

    upto: int
    entries: Chain[Entry]
    pieces: tuple[bytes, ...]
    summary: Summary | None = None
    places: tuple[FilePlace, ...] = ()
    media: Media = Media()

    @property
    def json(self) -> bytes:
        return b",".join(self.pieces)

    @property
    def size(self) -> int:
        """The bytes of the JSON."""
        return sum(map(len, self.pieces)) + max(len(self.pieces) - 1, 0)

    def branch(self) -> History:
        """The same, to be made longer by what is not kept."""
        return msgspec.structs.replace(self, entries=self.entries.branch())

    def extend(self, later: Sequence[Entry]) -> History:
        """With the messages that follow. Right where a call is not parted from its results."""
        added = list(pair_results(later))
        entries, pieces, places, media = self.entries, self.pieces, self.places, self.media
        if any(isinstance(entry.chat_message["content"], list) for entry in added):
            places += find_places(added, self.size + 1 if pieces else 0)
            media = media.add(added)
        if added:
            pieces = _add_piece(pieces, b",".join([entry.chat_json for entry in added]))
        for entry in added:
            entries = entries.append(entry)
        return History(self.upto + len(later), entries, pieces, self.summary, places, media)


def _add_piece(pieces: tuple[bytes, ...], last: bytes) -> tuple[bytes, ...]:
    joined = len(pieces)
    size = len(last)
    while joined and len(pieces[joined - 1]) < 2 * size:
        joined -= 1
        size += len(pieces[joined]) + 1
    return (*pieces[:joined], b",".join((*pieces[joined:], last)))


def _begin_history() -> History:
    return History(0, Chain(), ())


def _begin_behind_removed(messages: Sequence[Entry]) -> History:
    """Whatever old messages were taken out, nothing is sent of them, nor does anything after them belong to them."""
    return msgspec.structs.replace(_begin_history(), upto=find_first_shown(messages))


def measure_new_history(state: State) -> tuple[int, int]:
    """How many messages the next request has to encode, because none before it did, and about how many bytes."""
    known = _recall_history(state.messages, state.summary) or _begin_behind_removed(state.messages)
    return len(state.messages) - known.upto, state.size - known.size


def _recall_history(messages: Chain[Entry], summary: Summary | None) -> History | None:
    """What is kept, if calls are over where it ends. Another session that grew from the same messages may have kept it,
    or the reply that ended them may have lost its words since; then what comes now may be results of theirs."""
    known = messages.recall(History)
    if known is None or known.summary != summary:
        return None
    return known if known.upto == len(messages) or ends_calls(messages[known.upto]) else None


def cut_history(messages: Sequence[Entry], seq: int, summary: Summary | None) -> History:
    """What is sent of these messages if they begin with that event: with what holds for all, and what was summed up."""
    sent = select_from(messages, seq)
    standing = sum(entry.seq < seq and entry.role in STANDING_ROLES for entry in sent)
    summed_up = [] if summary is None else [_make_summary_entry(summary)]
    return _begin_history().extend([*sent[:standing], *summed_up, *sent[standing:]])


def _make_summary_entry(summary: Summary) -> Entry:
    return Entry(seq=summary.seq, at=summary.at, run_id=None, message=make_summary_message(summary.text))


def _begin_with_summary(messages: Sequence[Entry], summary: Summary) -> History:
    """What is sent in the place of the messages that were summed up."""
    upto = bisect_right(messages, summary.last_seq, key=lambda entry: entry.seq)
    standing, question = select_earlier(messages, summary.last_seq + 1)
    # Whether it is sent must not hang on more than the next message, which is kept with what this is the beginning of.
    is_answered = upto < len(messages) and (messages[upto].role != "user" or messages[upto].removed)
    begun = _begin_history().extend([*standing, _make_summary_entry(summary), *(question if is_answered else ())])
    return msgspec.structs.replace(begun, upto=upto, summary=summary)


def collect_history(messages: Sequence[Entry], summary: Summary | None = None) -> History:
    """What is sent of these messages. Of a session's own, all that came before the last answer, or whatever else ended
    the calls before it, is kept with them: however long it is, the next request costs what has been said since."""
    if not isinstance(messages, Chain):
        begun = _begin_history() if summary is None else _begin_with_summary(messages, summary)
        return begun.extend(messages[begun.upto :])
    known = _recall_history(messages, summary)
    if known is None:
        known = _begin_behind_removed(messages) if summary is None else _begin_with_summary(messages, summary)
    end = next((at for at in range(len(messages) - 1, known.upto, -1) if ends_calls(messages[at])), None)
    if end is not None:
        before, known = len(known.entries), known.extend(messages[known.upto : end])
        messages.remember(known, known.upto)
        for entry in known.entries[before:]:
            # It is in there now, and not kept twice.
            vars(entry).pop("chat_json", None)
    return known.branch().extend(messages[known.upto :])
