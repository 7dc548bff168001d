"""The OpenAPI document of the decision API, from the structs and the table of operations."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from turnout.server import binary, schema

if TYPE_CHECKING:
    from collections.abc import Sequence

    from turnout.server.decisions import Operation

FAILURES = {
    "400": "An argument is refused.",
    "404": "A replica, workload, session or turn is unknown.",
    "409": "The turn id was used with other content, or the append does not fit the history.",
    "413": "The body is too long.",
    "415": "The content type is neither JSON nor msgpack.",
    "503": "The router has failed.",
}


def document(prefix: str, operations: Sequence[Operation], version: str) -> dict[str, Any]:
    """Make the document.

    Args:
        prefix: Path before the name of each operation.
        operations: The table.
        version: Version of the package.

    Returns:
        An OpenAPI 3.1 document.
    """
    kinds: list[type] = [schema.ErrorReply, *(operation.gives for operation in operations)]
    kinds += [operation.takes for operation in operations if operation.takes is not None]
    unique = list(dict.fromkeys(kinds))
    references, components = msgspec.json.schema_components(unique, ref_template="#/components/schemas/{name}")
    named = dict(zip(unique, references, strict=True))

    def content(kind: type) -> dict[str, Any]:
        return {media: {"schema": named[kind]} for media in binary.ACCEPTED}

    paths: dict[str, Any] = {}
    for operation in operations:
        failures = {
            status: {"description": words, "content": content(schema.ErrorReply)} for status, words in FAILURES.items()
        }
        entry: dict[str, Any] = {
            "operationId": operation.name,
            "summary": operation.says,
            "responses": {"200": {"description": "Done.", "content": content(operation.gives)}, **failures},
        }
        if operation.takes is not None:
            entry["requestBody"] = {"required": True, "content": content(operation.takes)}
        if operation.query:
            entry["parameters"] = [
                {"name": name, "in": "query", "required": True, "schema": {"type": "string"}}
                for name in operation.query
            ]
        paths[prefix + operation.name] = {"get" if operation.takes is None else "post": entry}
    return {
        "openapi": "3.1.0",
        "info": {"title": "Turnout decision API", "version": version},
        "paths": paths,
        "components": {"schemas": components},
    }
