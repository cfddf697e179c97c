"""Definitions of ROS's message types: their fields, without comments and layout of the text.

A definition is text in the language `ros1msg`, `ros2msg` or `ros2idl`: the message itself, and
after a separator each type that it needs, https://mcap.dev/spec/registry.
"""

from __future__ import annotations

import re

from seqrecord.formats.sources.mcap.bags import Definition, Topic

MESSAGE_LANGUAGES = ("ros1msg", "ros2msg")
_IDL = "ros2idl"

_SEPARATOR = re.compile(r"(?:^|(?<=[\w\]]))={20,}[ \t]*$", re.MULTILINE)
_TITLE = re.compile(r"\s*(?:MSG|IDL):[ \t]*(\S+)[^\n]*")
_FIELD = re.compile(r"\s*(\S+)\s+(\w+)\s*(=?)")
_BOUND = re.compile(r"<=\d+")  # does not change the bytes

_IDL_TEXT = r'"(?:\\.|[^"\\])*"'
_IDL_ARGUMENTS = rf'\s*\((?:[^()"]|{_IDL_TEXT})*\)'
# Texts, which are kept, come first: they may have slashes as in comments.
_IDL_NOTES = re.compile(
    rf"({_IDL_TEXT})|@[\w:]+(?:{_IDL_ARGUMENTS})?|/\*.*?(?:\*/|\Z)|//[^\n]*|^\s*#[^\n]*",
    re.DOTALL | re.MULTILINE,
)
_IDL_CONSTANT = re.compile(rf'\bconst\b(?:[^;"]|{_IDL_TEXT})*;')
_IDL_EMPTY_MODULE = re.compile(r"\bmodule\s+\w+\s*\{\s*\}\s*;?")
_IDL_TOKEN = re.compile(r"\w+|\S")


def message_fields(text: str) -> str:
    """Return the fields of a message in their order: `Header header; uint32 height`.

    Types after the first separator do not count. Constants, comments, default values, bounds, and
    packages of types are omitted.
    """
    declarations = []
    for line in _SEPARATOR.split(_unix_lines(text), maxsplit=1)[0].splitlines():
        match = _FIELD.match(line.partition("#")[0])
        if match and not match[3]:  # else a constant
            type_name = _BOUND.sub("", match[1]).split("/")[-1]
            declarations.append(f"{type_name} {match[2]}")
    return "; ".join(declarations)


def check_equal_definitions(topic: Topic) -> None:
    """Raise `ValueError` if two definitions of a topic differ in the fields of a type.

    Compares types that both have, in one language.
    """
    if len(topic.definitions) < 2:
        return
    fields_by_type: dict[tuple[str, str], str] = {}
    for definition in topic.definitions:
        for name, fields in _fields_by_type(definition, topic.type).items():
            first_fields = fields_by_type.setdefault((definition.language, name), fields)
            if fields != first_fields:
                raise ValueError(
                    f"two definitions of {name} have other fields: {first_fields[:150]}, and "
                    f"{fields[:150]}"
                )


def _fields_by_type(definition: Definition, message_type: str) -> dict[str, str]:
    """Return the fields of each type in a definition, as text; the first type is the message."""
    is_idl = definition.language == _IDL
    if not is_idl and definition.language not in MESSAGE_LANGUAGES:
        return {}
    fields_by_type = {}
    sections = _SEPARATOR.split(_unix_lines(definition.data.decode(errors="replace")))
    for number, section in enumerate(sections):
        title = _TITLE.match(section)
        if title is None and number:
            continue
        name = title[1] if title else message_type
        body = section[title.end() :] if title else section
        fields = _idl_tokens(body) if is_idl else message_fields(body)
        if fields:
            fields_by_type[name.replace("/msg/", "/")] = fields
    return fields_by_type


def _idl_tokens(text: str) -> str:
    """Return a type in IDL without comments, annotations, inclusions and constants."""
    text = _IDL_CONSTANT.sub(" ", _IDL_NOTES.sub(r" \1 ", text))
    return " ".join(_IDL_TOKEN.findall(_IDL_EMPTY_MODULE.sub(" ", text)))


def _unix_lines(text: str) -> str:
    return text.replace("\r\n", "\n")
