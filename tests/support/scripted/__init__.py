"""A scripted Chat Completions server: real sockets, replies in the order they were written, loud about anything else.

with ScriptedModel() as model:
    model.call("get_weather", {"city": "Rome"}, id="call_1")
    model.say("It is sunny.")
    ...                                     # point an openai client at model.url
# leaving raises if a reply was not used, a call was not expected, or a request was not valid
"""

from tests.support.scripted.exchange import MODEL
from tests.support.scripted.model import ScriptedModel
from tests.support.scripted.replies import USAGE, Call, Chunks, Completion, HalfStream, Raw, Reply

__all__ = ["MODEL", "USAGE", "Call", "Chunks", "Completion", "HalfStream", "Raw", "Reply", "ScriptedModel"]
