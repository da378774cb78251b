"""Writes the events of a response's stream, with their numbers.

Numbers follow from what is recorded. A text takes 4,096 numbers for each of its characters, however many pieces it came
in. So a reader that names the last number it has seen gets exactly what comes after it, live or later, from any server.
The number of a piece also holds a digest of the text up to there. By it another server sees whether what its own model
says continues the text that a server which has died has shown to the reader.
"""

from __future__ import annotations

import zlib
from typing import Any

from swarmkeep.events.codec import Json
from swarmkeep.openai.items import ItemPlace, show_output_text
from swarmkeep.openai.output_items import is_cut_item, make_message_item

# The numbers of a stream's events, and which of them a reader has.

# A reader that was shown a message of which nothing came is given numbers that are greater by this from then on.
ABANDONED = 2**46

# As `after`: for a caller who wants the response alone.
NO_EVENTS = 2**53


class SequenceNumbers:
    """Numbers events, and leaves out those that the reader has: up to `after`, and what was written since."""

    def __init__(self, after: int) -> None:
        self._position = 0
        self._last_known = after
        self._abandoned = 0 if after >= NO_EVENTS else max(after, 0) // ABANDONED

    @property
    def _number(self) -> int:
        """The number of the next event."""
        return self._abandoned * ABANDONED + self._position

    @property
    def _last_known_position(self) -> int:
        return self._last_known - self._abandoned * ABANDONED

    @property
    def is_next_new(self) -> bool:
        """True if the reader does not have the next event yet."""
        return self._number > self._last_known

    def write(self, kind: str, **fields: Any) -> list[Json]:
        """Write the next event, unless the reader has it."""
        number, self._position = self._number, self._position + 1
        if number <= self._last_known:
            return []
        self._last_known = number
        return [{"type": kind, "sequence_number": number, **fields}]

    def _write_piece(self, kind: str, text: str, **fields: Any) -> list[Json]:
        """Write what the reader lacks of a recorded text, as one piece. Its number is that of its last character."""
        first = self._number
        self._position += len(text)
        number = self._number - 1
        if number <= self._last_known:
            return []
        rest = text[max(0, self._last_known - first + 1) :]
        self._last_known = number
        return [{"type": kind, "sequence_number": number, **fields, "delta": rest}]


# A message that is being streamed: its text so far, and a digest by which a reader's place in it is found again.

# What a character counts, in numbers of events; and so how many digests of a text there are.
STEP = 2**12


class StreamedMessage:
    """`start` is the number that the message begins with, `base` the first one of its text.

    `shown`: the text of an earlier attempt that was streamed here. `is_known`: whether what the reader was shown is a
    beginning of this text. `end`: the number of the last piece, counted from `base`. `last_number`: that number itself,
    once the reader has all of the text; `event`: the last piece's event, which the next one's differs little from.
    """

    def __init__(self, item_id: str, place: ItemPlace | None = None) -> None:
        self.item_id = item_id
        self.place = place
        self.start = 0
        self.base: int | None = None
        self.shown = ""
        self.begin_anew()

    def begin_anew(self) -> None:
        self._pieces: list[str] = []
        self.length = 0
        self.end = -STEP
        self.last_number: int | None = None
        self.event: Json = {}
        self.is_known = False
        self._digest = 0

    @property
    def text(self) -> str:
        """All of it so far. It may be long, so code that only adds to it should not ask."""
        return "".join(self._pieces)

    def add(self, piece: str) -> None:
        self._pieces.append(piece)
        self.length += len(piece)
        self._digest = zlib.crc32(piece.encode("utf-8", "surrogatepass"), self._digest)
        self.end = (self.length - 1) * STEP + self._digest % STEP


# After a server has died, the next one's model may say less than the first one's did, or nothing. What comes behind has
# greater numbers than anything that can have been shown: no message is as long as this.
_LONGEST_ATTEMPT = 2**26 * STEP


class EventWriter(SequenceNumbers):
    """Makes events of items, and keeps finished items in `output`. Leaves out events with numbers up to `after`."""

    def __init__(self, after: int) -> None:
        super().__init__(after)
        self.output: list[Json] = []
        self._taken_back: set[int] = set()
        self.cut_items: set[str] = set()
        """The ids of calls that the end of a reply cut."""
        self._cut_places: set[int] = set()
        self._open: StreamedMessage | None = None
        self._unfinished: Json | None = None
        self._behind_attempts = 0

    @property
    def valid_output(self) -> list[Json]:
        """The output without what was taken back. In the stream those items keep their index: others count from it."""
        done = [item for place, item in enumerate(self.output) if place not in self._taken_back]
        is_open = self._unfinished is not None and len(self.output) not in self._taken_back
        return [*done, self._unfinished] if is_open and self._unfinished is not None else done

    def take_back_answer(self) -> None:
        """Mark the last message as a wrong answer: it ends, and is no output."""
        if self._unfinished is not None:
            self._unfinished = {**self._unfinished, "status": "incomplete"}
            self._taken_back.add(len(self.output))

    def take_back_call(self) -> None:
        """Mark the last call as a wrong answer: it is no output."""
        places = (place for place in range(len(self.output) - 1, -1, -1) if self.output[place]["type"] == "mcp_call")
        self._taken_back |= {place for place in [next(places, None)] if place is not None}

    def settle(self) -> list[Json]:
        """End the last message, which can be taken back until then."""
        item, self._unfinished = self._unfinished, None
        return [] if item is None else self._finish_item(item)

    @property
    def next_index(self) -> int:
        """The next item's index in the stream; abandoned messages have one, too."""
        return len(self.output) + self._abandoned

    def note_recovery(self) -> None:
        """Another server has taken over. What the first one showed of a reply that it did not record is in no log."""
        begun = self._open is not None and self._open.base is not None
        start = self._open.start if self._open is not None and begun else self._position
        self._behind_attempts = start + _LONGEST_ATTEMPT

    def _pass_attempts(self) -> None:
        self._position = max(self._position, self._behind_attempts)
        self._behind_attempts = 0

    def begin_message(self, place: ItemPlace) -> list[Json]:
        """A model begins to speak."""
        events = self.settle()
        if self._open is None or self._open.place != place:
            self._open = StreamedMessage(place.make_id("msg"), place)
        else:
            # It is asked once more, and begins again.
            self._position = self._open.base or self._position
            self._open.shown = max(self._open.shown, self._open.text, key=len)
            self._open.begin_anew()
        return events

    def add_pieces(self, deltas: list[Json]) -> list[Json]:
        """Pieces of what a model says, each text as an event."""
        message = self._open
        if message is None:
            return []
        events: list[Json] = []
        for delta in deltas:
            piece: str | None = delta.get("content")
            if not piece:
                continue
            if message.base is None or message.last_number != self._last_known:
                events += self._add_message(message)
                message.add(piece)
                events += self._write_text(message)
                continue
            # Right behind the last event that the reader has, as nearly all are.
            message.add(piece)
            number = self._abandoned * ABANDONED + message.base + message.end
            events.append({**message.event, "sequence_number": number, "delta": piece})
            self._position = message.base + message.length * STEP
            self._last_known = message.last_number = number
        return events

    def _add_message(self, message: StreamedMessage) -> list[Json]:
        """Write that a message begins, unless that was done."""
        if message.base is not None:
            return []
        message.start = self._position
        events = self._write_item_event("added", make_message_item(message.item_id, "in_progress", []))
        events += self.write("response.content_part.added", **self._at(message), part=show_output_text(""))
        message.base = self._position
        return events

    def _at(self, message: StreamedMessage) -> Json:
        return {"item_id": message.item_id, "output_index": self.next_index, "content_index": 0}

    def _write_text(self, message: StreamedMessage) -> list[Json]:
        """Write what the reader lacks of a message's text. What it was shown before may be another text."""
        assert message.base is not None
        self._position = message.base + message.length * STEP
        end = self._last_known_position - message.base
        known = max(0, end // STEP + 1)
        if self._last_known >= NO_EVENTS or known > message.length:
            return []
        text = message.text
        if known and not message.is_known:
            digest = zlib.crc32(text[:known].encode("utf-8", "surrogatepass"))
            if digest % STEP != end % STEP:
                return self._write_anew(message)
        message.is_known = True
        if known == message.length:
            return []
        self._last_known = message.last_number = self._abandoned * ABANDONED + message.base + message.end
        message.event = {
            "type": "response.output_text.delta",
            "sequence_number": self._last_known,
            **self._at(message),
            "logprobs": [],
            "delta": text[known:],
        }
        return [message.event]

    def _write_anew(self, message: StreamedMessage) -> list[Json]:
        """End what the reader was shown of a message, and write it from its beginning as another item."""
        events = self._abandon(message, message.start)
        message.base, message.shown = None, ""
        return events + self._add_message(message) + self._write_text(message)

    def _abandon(self, message: StreamedMessage, start: int) -> list[Json]:
        """End what the reader was shown of a message of which nothing came; what follows is numbered from `start`."""
        self._position = start
        if self._last_known >= NO_EVENTS:
            return []
        index = self.next_index
        self._abandoned += 1
        self._last_known = self._number - 1
        item = make_message_item(
            message.item_id, "incomplete", [show_output_text(message.shown)] if message.shown else []
        )
        kind = "response.output_item.done"
        return [{"type": kind, "sequence_number": self._last_known, "output_index": index, "item": item}]

    def _was_shown_an_attempt(self, start: int) -> bool:
        """Tell if the reader was shown something that a server that has died did not record."""
        return bool(self._behind_attempts) and start <= self._last_known_position < self._behind_attempts

    def write_reply(self, items: list[Json], place: ItemPlace) -> list[Json]:
        """Write what the reader lacks of a recorded reply, which is the one at `place`: its message, then its calls.

        Calls of earlier replies that were cut are taken back: the model was told, and has said more.
        """
        events = self.settle()
        self._taken_back |= self._cut_places
        self._cut_places = set()
        self.cut_items |= {item["id"] for item in items if is_cut_item(item)}
        if items and items[0]["type"] == "message":
            events += self._write_message(items[0])
            items = items[1:]
        else:
            events += self.close_open_message()
            events += self._leave_attempts(place)
        self._open = None
        for item in items:
            events += self.settle() + self._write_function_call(item)
        return events

    def _leave_attempts(self, place: ItemPlace) -> list[Json]:
        """Go on behind what servers that have died may have shown of a message that was not recorded."""
        events: list[Json] = []
        if self._was_shown_an_attempt(self._position):
            events = self._abandon(StreamedMessage(place.make_id("msg")), self._position)
        self._pass_attempts()
        return events

    def _write_message(self, item: Json) -> list[Json]:
        """Write what the reader lacks of a recorded message, but for its end."""
        message = self._open or StreamedMessage(item["id"])
        begun = message.base is not None
        events: list[Json] = []
        if not begun:
            message.start = self._position
            events += self._write_item_event("added", {**item, "status": "in_progress", "content": []})
        for index, part in enumerate(item["content"]):
            events += self._write_part(item, index, part, message)
        self._unfinished = item
        return events

    def _write_part(self, item: Json, index: int, part: Json, message: StreamedMessage) -> list[Json]:
        is_text = part["type"] == "output_text"
        name, key = ("output_text", "text") if is_text else ("refusal", "refusal")
        extra: Json = {"logprobs": []} if is_text else {}
        at = {"item_id": item["id"], "output_index": self.next_index, "content_index": index}
        events: list[Json] = []
        if index or message.base is None:
            events += self.write("response.content_part.added", **at, part={**part, key: ""})
        if index == 0 and is_text:
            message.base = self._position if message.base is None else message.base
            events += self._write_recorded_text(message, part[key])
            at["output_index"] = self.next_index
        else:
            events += self._write_piece(f"response.{name}.delta", part[key], **at, **extra)
        self._pass_attempts()
        events += self.write(f"response.{name}.done", **at, **{key: part[key]}, **extra)
        return events + self.write("response.content_part.done", **at, part=part)

    def _write_recorded_text(self, message: StreamedMessage, text: str) -> list[Json]:
        """Write the rest of a text; all of it where the reader was shown another one, or more."""
        assert message.base is not None
        if not text.startswith(message.text):
            message.shown = max(message.shown, message.text, key=len)
            message.begin_anew()
        message.add(text[len(message.text) :])
        events = self._write_text(message)
        known = self._last_known_position >= message.base + len(text) * STEP and not message.is_known
        if known and (message.shown or self._was_shown_an_attempt(message.base)):
            events += self._write_anew(message)
        return events

    def close_open_message(self) -> list[Json]:
        """End a message that was shown and of which nothing is recorded."""
        events = self.settle()
        message, self._open = self._open, None
        if message is None or message.base is None:
            return events
        message.shown = max(message.shown, message.text, key=len)
        # Readers that were shown nothing of it never hear of it.
        if self._last_known_position >= message.start:
            return events + self._abandon(message, message.start)
        self._position = message.start
        return events

    def _write_function_call(self, item: Json) -> list[Json]:
        events = self._write_item_event("added", {**item, "status": "in_progress", "arguments": ""})
        at = {"item_id": item["id"], "output_index": self.next_index}
        events += self._write_piece("response.function_call_arguments.delta", item["arguments"], **at)
        done = {**at, "name": item["name"], "arguments": item["arguments"]}
        return events + self.write("response.function_call_arguments.done", **done) + self._finish_item(item)

    def write_result(self, item: Json) -> list[Json]:
        """Write the outcome of a call: of an agent's own function, or the agent's answer."""
        match item["type"]:
            case "mcp_call":
                return self.settle() + self._write_mcp_call(item)
            case "message":
                return self.settle() + self._write_message(item)
            case _:
                return []

    def _write_mcp_call(self, item: Json) -> list[Json]:
        begun = {**item, "status": "in_progress", "arguments": "", "output": None, "error": None}
        events = self._write_item_event("added", begun)
        at = {"item_id": item["id"], "output_index": self.next_index}
        events += self.write("response.mcp_call.in_progress", **at)
        events += self._write_piece("response.mcp_call_arguments.delta", item["arguments"], **at)
        events += self.write("response.mcp_call_arguments.done", **at, arguments=item["arguments"])
        events += self.write(f"response.mcp_call.{item['status']}", **at)
        return events + self._finish_item(item)

    def write_item(self, item: Json) -> list[Json]:
        """Write an item that does not come in pieces."""
        return self.settle() + self._write_item_event("added", item) + self._finish_item(item)

    def _finish_item(self, item: Json) -> list[Json]:
        events = self._write_item_event("done", item)
        if is_cut_item(item):
            self._cut_places.add(len(self.output))
        self.output.append(item)
        return events

    def _write_item_event(self, what: str, item: Json) -> list[Json]:
        return self.write(f"response.output_item.{what}", output_index=self.next_index, item=item)

    def write_end(self, kind: str, response: Json, place: ItemPlace) -> list[Json]:
        """Write the last event. Its number is new to the reader even where less was recorded than that was shown."""
        events = self._leave_attempts(place)
        if self._number < self._last_known < NO_EVENTS:
            self._position = self._last_known_position + 1
        return events + self.write(kind, response=response)
