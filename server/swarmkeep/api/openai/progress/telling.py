"""The events of a response's stream, with their numbers.

Numbers follow from what is recorded. A text counts 4,096 for each of its characters, however many pieces it came in;
so a reader that knows one number is given exactly what comes after it, by any server, live or later. The number of a
piece also holds a digest of the text up to there: by that another server knows whether what it is told by its model
goes on from what the reader was shown by a server that has died.
"""

from __future__ import annotations

from swarmkeep.api.openai.items.content import show_output_text
from swarmkeep.api.openai.items.ids import ItemPlace
from swarmkeep.api.openai.items.shown import make_message_item
from swarmkeep.api.openai.progress.numbers import ABANDONED, Numbers
from swarmkeep.api.openai.progress.numbers import NOTHING_TOLD as NOTHING_TOLD
from swarmkeep.api.openai.progress.spoken import STEP, SpokenMessage, make_digest
from swarmkeep.domain.codec import Json

# After a server has died, the next one's model may say less than the first one's did, or nothing. What comes behind has
# greater numbers than anything that can have been shown: no message is as long as this.
_LONGEST_ATTEMPT = 2**26 * STEP


class Teller(Numbers):
    """Makes events of items, and keeps those that are done in `output`. Those at or before `after` are not told."""

    def __init__(self, after: int) -> None:
        super().__init__(after)
        self.output: list[Json] = []
        self._taken_back: set[int] = set()
        self._open: SpokenMessage | None = None
        self._unfinished: Json | None = None
        self._behind_attempts = 0

    @property
    def valid_output(self) -> list[Json]:
        """What is done, without what was taken back. In the stream that keeps its place: others are counted from it."""
        done = [item for place, item in enumerate(self.output) if place not in self._taken_back]
        is_open = self._unfinished is not None and len(self.output) not in self._taken_back
        return [*done, self._unfinished] if is_open and self._unfinished is not None else done

    def take_back_answer(self) -> None:
        """The message that was told last was a wrong answer: it ends, and does not count."""
        if self._unfinished is not None:
            self._unfinished = {**self._unfinished, "status": "incomplete"}
            self._taken_back.add(len(self.output))

    def take_back_call(self) -> None:
        """A wrong answer came as a call: that does not count."""
        places = (place for place in range(len(self.output) - 1, -1, -1) if self.output[place]["type"] == "mcp_call")
        self._taken_back |= {place for place in [next(places, None)] if place is not None}

    def settle(self) -> list[Json]:
        """End the message that was told last: no more is said of it. Until then it may be taken back."""
        item, self._unfinished = self._unfinished, None
        return [] if item is None else self._finish_item(item)

    @property
    def _index(self) -> int:
        """The next item's place in the stream; messages that were abandoned have places, too."""
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
        told = self.settle()
        if self._open is None or self._open.place != place:
            self._open = SpokenMessage(place.make_id("msg"), place)
        else:
            # It is asked once more, and begins again.
            self._position = self._open.base or self._position
            self._open.shown = max(self._open.shown, self._open.text, key=len)
            self._open.begin_anew()
        return told

    def add_pieces(self, pieces: list[str]) -> list[Json]:
        """Pieces of what a model says, each as an event."""
        message = self._open
        if message is None or not pieces:
            return []
        if message.told == self._last_told:
            return self._go_on(message, pieces)
        told = self._add_message(message)
        for piece in pieces:
            message.add(piece)
            told += self._tell_text(message)
        return told

    def _go_on(self, message: SpokenMessage, pieces: list[str]) -> list[Json]:
        """Tell what comes right behind what the reader was told last, as nearly all pieces do."""
        assert message.base is not None
        start = self._abandoned * ABANDONED + message.base
        event = self._make_text_event(message)
        told = []
        for piece in pieces:
            message.add(piece)
            told.append({**event, "sequence_number": start + message.end, "delta": piece})
        self._position = message.base + message.length * STEP
        self._last_told = message.told = start + message.end
        return told

    def _make_text_event(self, message: SpokenMessage) -> Json:
        return {"type": "response.output_text.delta", "sequence_number": 0, **self._at(message), "logprobs": []}

    def _add_message(self, message: SpokenMessage) -> list[Json]:
        """Show that a message begins, if that was not done."""
        if message.base is not None:
            return []
        message.start = self._position
        told = self._tell_item("added", make_message_item(message.item_id, "in_progress", []))
        told += self.tell("response.content_part.added", **self._at(message), part=show_output_text(""))
        message.base = self._position
        return told

    def _at(self, message: SpokenMessage) -> Json:
        return {"item_id": message.item_id, "output_index": self._index, "content_index": 0}

    def _tell_text(self, message: SpokenMessage) -> list[Json]:
        """What the reader does not know of a message's text. What it was shown before may be another text."""
        assert message.base is not None
        self._position = message.base + message.length * STEP
        told = self._last_position - message.base
        known = max(0, told // STEP + 1)
        if self._last_told >= NOTHING_TOLD or known > message.length:
            return []
        text = message.text
        if known and not message.is_known and make_digest(text[:known]) % STEP != told % STEP:
            return self._tell_anew(message)
        message.is_known = True
        if known == message.length:
            return []
        self._last_told = message.told = self._abandoned * ABANDONED + message.base + message.end
        return [{**self._make_text_event(message), "sequence_number": self._last_told, "delta": text[known:]}]

    def _tell_anew(self, message: SpokenMessage) -> list[Json]:
        """End what the reader was shown of a message, and tell it from its beginning as another item."""
        told = self._abandon(message, message.start)
        message.base, message.shown = None, ""
        return told + self._add_message(message) + self._tell_text(message)

    def _abandon(self, message: SpokenMessage, start: int) -> list[Json]:
        """End what the reader was shown of a message of which nothing came; what follows is numbered from `start`."""
        self._position = start
        if self._last_told >= NOTHING_TOLD:
            return []
        index = self._index
        self._abandoned += 1
        self._last_told = self._number - 1
        item = make_message_item(
            message.item_id, "incomplete", [show_output_text(message.shown)] if message.shown else []
        )
        kind = "response.output_item.done"
        return [{"type": kind, "sequence_number": self._last_told, "output_index": index, "item": item}]

    def _was_shown_an_attempt(self, start: int) -> bool:
        """Whether the reader was shown something that a server that has died did not record."""
        return bool(self._behind_attempts) and start <= self._last_position < self._behind_attempts

    def tell_reply(self, items: list[Json], place: ItemPlace) -> list[Json]:
        """All that is still to be told of a recorded reply to the model call at `place`: its message, then calls."""
        told = self.settle()
        if items and items[0]["type"] == "message":
            told += self._tell_message(items[0])
            items = items[1:]
        else:
            told += self.close_open_message()
            told += self._leave_attempts(place)
        self._open = None
        for item in items:
            told += self.settle() + self._tell_function_call(item)
        return told

    def _leave_attempts(self, place: ItemPlace) -> list[Json]:
        """Go on behind what servers that have died may have shown of a message that was not recorded."""
        told: list[Json] = []
        if self._was_shown_an_attempt(self._position):
            told = self._abandon(SpokenMessage(place.make_id("msg")), self._position)
        self._pass_attempts()
        return told

    def _tell_message(self, item: Json) -> list[Json]:
        """All that is still to be told of a message that is recorded, but for its end."""
        message = self._open or SpokenMessage(item["id"])
        begun = message.base is not None
        told: list[Json] = []
        if not begun:
            message.start = self._position
            told += self._tell_item("added", {**item, "status": "in_progress", "content": []})
        for index, part in enumerate(item["content"]):
            told += self._tell_part(item, index, part, message)
        self._unfinished = item
        return told

    def _tell_part(self, item: Json, index: int, part: Json, message: SpokenMessage) -> list[Json]:
        is_text = part["type"] == "output_text"
        name, key = ("output_text", "text") if is_text else ("refusal", "refusal")
        extra: Json = {"logprobs": []} if is_text else {}
        at = {"item_id": item["id"], "output_index": self._index, "content_index": index}
        told: list[Json] = []
        if index or message.base is None:
            told += self.tell("response.content_part.added", **at, part={**part, key: ""})
        if index == 0 and is_text:
            message.base = self._position if message.base is None else message.base
            told += self._tell_recorded_text(message, part[key])
            at["output_index"] = self._index
        else:
            told += self._tell_piece({"kind": f"response.{name}.delta", **at, **extra}, part[key])
        self._pass_attempts()
        told += self.tell(f"response.{name}.done", **at, **{key: part[key]}, **extra)
        return told + self.tell("response.content_part.done", **at, part=part)

    def _tell_recorded_text(self, message: SpokenMessage, text: str) -> list[Json]:
        """The rest of a text, or all of it, where the reader was shown another one, or more."""
        assert message.base is not None
        if not text.startswith(message.text):
            message.shown = max(message.shown, message.text, key=len)
            message.begin_anew()
        message.add(text[len(message.text) :])
        told = self._tell_text(message)
        known = self._last_position >= message.base + len(text) * STEP and not message.is_known
        if known and (message.shown or self._was_shown_an_attempt(message.base)):
            told += self._tell_anew(message)
        return told

    def close_open_message(self) -> list[Json]:
        """End a message that was shown and of which nothing is recorded."""
        told = self.settle()
        message, self._open = self._open, None
        if message is None or message.base is None:
            return told
        message.shown = max(message.shown, message.text, key=len)
        # No other reader is told of it.
        if self._last_position >= message.start:
            return told + self._abandon(message, message.start)
        self._position = message.start
        return told

    def _tell_function_call(self, item: Json) -> list[Json]:
        told = self._tell_item("added", {**item, "status": "in_progress", "arguments": ""})
        at = {"item_id": item["id"], "output_index": self._index}
        told += self._tell_piece({"kind": "response.function_call_arguments.delta", **at}, item["arguments"])
        done = {**at, "name": item["name"], "arguments": item["arguments"]}
        return told + self.tell("response.function_call_arguments.done", **done) + self._finish_item(item)

    def tell_result(self, item: Json) -> list[Json]:
        """What came of a call: one of an agent's own function, or the agent's answer."""
        match item["type"]:
            case "mcp_call":
                return self.settle() + self._tell_mcp_call(item)
            case "message":
                return self.settle() + self._tell_message(item)
            case _:
                return []

    def _tell_mcp_call(self, item: Json) -> list[Json]:
        begun = {**item, "status": "in_progress", "arguments": "", "output": None, "error": None}
        told = self._tell_item("added", begun)
        at = {"item_id": item["id"], "output_index": self._index}
        told += self.tell("response.mcp_call.in_progress", **at)
        told += self._tell_piece({"kind": "response.mcp_call_arguments.delta", **at}, item["arguments"])
        told += self.tell("response.mcp_call_arguments.done", **at, arguments=item["arguments"])
        told += self.tell(f"response.mcp_call.{item['status']}", **at)
        return told + self._finish_item(item)

    def tell_whole(self, item: Json) -> list[Json]:
        """An item that does not come in pieces."""
        return self.settle() + self._tell_item("added", item) + self._finish_item(item)

    def _finish_item(self, item: Json) -> list[Json]:
        told = self._tell_item("done", item)
        self.output.append(item)
        return told

    def _tell_item(self, what: str, item: Json) -> list[Json]:
        return self.tell(f"response.output_item.{what}", output_index=self._index, item=item)

    def tell_end(self, kind: str, response: Json, place: ItemPlace) -> list[Json]:
        """The last event: told, too, where less was recorded than the reader was shown before."""
        told = self._leave_attempts(place)
        if self._number < self._last_told < NOTHING_TOLD:
            self._position = self._last_position + 1
        return told + self.tell(kind, response=response)
