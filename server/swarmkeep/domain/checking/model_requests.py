"""Checking what a run asks of its model: parameters of the request, and the form of the answer."""

from __future__ import annotations

from swarmkeep.agent.model_profile import ModelProfileError, check_model_profile
from swarmkeep.agent.model_settings import ModelSettingsError, check_model_settings, check_response_format
from swarmkeep.agent.output import OutputTypeError, check_schema
from swarmkeep.domain.codec import Json
from swarmkeep.domain.errors import InvalidRequest


def check_settings(settings: Json, pointer: str = "/model_settings") -> Json:
    """Raises InvalidRequest."""
    try:
        return check_model_settings(settings)
    except ModelSettingsError as error:
        raise InvalidRequest(str(error), f"{pointer}/{error.name}".rstrip("/")) from error


def check_profile(profile: Json, pointer: str = "/model_profile") -> Json:
    """Raises InvalidRequest."""
    try:
        return check_model_profile(profile)
    except ModelProfileError as error:
        raise InvalidRequest(str(error), f"{pointer}/{error.name}".rstrip("/")) from error


def check_format(response_format: Json, pointer: str = "/response_format") -> Json:
    """Raises InvalidRequest; also for a schema that is none, or is too large once its references are followed."""
    try:
        checked = check_response_format(response_format)
    except ModelSettingsError as error:
        raise InvalidRequest(str(error), f"{pointer}/{error.name}".rstrip("/")) from error
    schema = checked.get("json_schema", {}).get("schema")
    try:
        if schema is not None:
            check_schema(schema, "the schema")
    except OutputTypeError as error:
        raise InvalidRequest(str(error), f"{pointer}/json_schema/schema") from error
    return checked
