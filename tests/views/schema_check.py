"""A check of the few JSON Schema words that the shipped schema uses; also refuses keys the schema does not declare."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

_TYPES: dict[str, tuple[type, ...]] = {
    "object": (dict,),
    "array": (list,),
    "string": (str,),
    "integer": (int,),
    "number": (int, float),
    "null": (type(None),),
    "boolean": (bool,),
}
_KNOWN = {
    *("$schema", "$id", "$defs", "$ref", "title", "description", "type", "properties", "required", "items", "enum"),
    *("const", "pattern", "minimum", "maximum", "minItems", "maxItems", "additionalProperties"),
}


def list_errors(value: Any, schema: dict[str, Any], root: dict[str, Any], where: str = "$") -> Iterator[str]:
    """Name every place where a value breaks its schema."""
    assert set(schema) <= _KNOWN, f"the check does not know {set(schema) - _KNOWN}"
    if "$ref" in schema:
        yield from list_errors(value, root["$defs"][schema["$ref"].rsplit("/", 1)[1]], root, where)
        return
    yield from _check_scalar(value, schema, where)
    if isinstance(value, dict):
        yield from _check_object(value, schema, root, where)
    if isinstance(value, list):
        if not schema.get("minItems", 0) <= len(value) <= schema.get("maxItems", len(value)):
            yield f"{where}: {len(value)} items"
        for position, item in enumerate(value):
            yield from list_errors(item, schema["items"], root, f"{where}[{position}]")


def _check_scalar(value: Any, schema: dict[str, Any], where: str) -> Iterator[str]:
    if "type" in schema:
        names = [schema["type"]] if isinstance(schema["type"], str) else schema["type"]
        is_told = "boolean" in names if isinstance(value, bool) else any(isinstance(value, _TYPES[it]) for it in names)
        if not is_told:
            yield f"{where}: {value!r} is not {names}"
    if "enum" in schema and value not in schema["enum"]:
        yield f"{where}: {value!r} is not one of {schema['enum']}"
    if "const" in schema and value != schema["const"]:
        yield f"{where}: {value!r} is not {schema['const']!r}"
    if "pattern" in schema and not re.search(schema["pattern"], value):
        yield f"{where}: {value!r} does not match {schema['pattern']}"
    if isinstance(value, (int, float)) and not schema.get("minimum", value) <= value <= schema.get("maximum", value):
        yield f"{where}: {value!r} is out of range"


def _check_object(value: dict[str, Any], schema: dict[str, Any], root: dict[str, Any], where: str) -> Iterator[str]:
    properties = schema.get("properties", {})
    for key in schema.get("required", ()):
        if key not in value:
            yield f"{where}: lacks {key}"
    for key, item in value.items():
        rule = properties.get(key, schema.get("additionalProperties"))
        if rule is None:
            yield f"{where}: {key} is not declared"
        else:
            yield from list_errors(item, rule, root, f"{where}.{key}")
