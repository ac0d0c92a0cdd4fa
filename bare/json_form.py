"""Converts values of BARE types to JSON that people can read and write, and back. It does not encode messages.

| BARE                  | JSON                                                                |
|-----------------------|---------------------------------------------------------------------|
| numbers, bool, str    | the same; NaN and infinities as "NaN", "Infinity", "-Infinity"      |
| data, data[n]         | a string of hexadecimal digits                                      |
| void                  | null                                                                |
| enum                  | the member's name                                                   |
| optional<T>           | null or the value; {"some": value} if T can itself be null          |
| list                  | an array                                                            |
| map                   | an object if keys are str, else an array of [key, value]            |
| union                 | {"tag": number, "value": value}                                     |
| struct                | an object                                                           |"""

from __future__ import annotations

import math
from typing import Any

from bare import model
from bare.errors import EncodeError
from bare.model import BareType, python_types, resolved
from bare.types import Some, Tagged

_FLOAT_WORDS = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}


def to_json(node: BareType, value: Any) -> Any:
    """Returns the JSON form of a value that a decoder of the type `node` has returned, for `json.dumps`."""
    match resolved(node):
        case model.FloatType() if not math.isfinite(value):
            return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
        case model.DataType():
            return value.hex()
        case model.EnumType():
            return value.name
        case model.OptionalType(item=item, wrapped=wrapped):
            if value is None:
                return None
            return {"some": to_json(item, value.value)} if wrapped else to_json(item, value)
        case model.ListType(item=item):
            return [to_json(item, part) for part in value]
        case model.MapType(key=key, value=item):
            pairs = [(to_json(key, name), to_json(item, part)) for name, part in value.items()]
            return dict(pairs) if isinstance(key, model.StrType) else [list(pair) for pair in pairs]
        case model.UnionType() as union:
            tag, member, inner = _chosen(union, value)
            return {"tag": tag, "value": to_json(member, inner)}
        case model.StructType(fields=fields):
            return {name: to_json(part, getattr(value, name)) for name, part in fields}
        case _:
            return value


def from_json(node: BareType, form: Any, path: str = "$") -> Any:
    """Returns the value of a JSON form. Raises EncodeError if the form has the wrong shape for the type `node`.

    The encoder checks numbers, texts and lengths. path: the path of the value in the message, for errors."""
    match resolved(node):
        case model.FloatType() if isinstance(form, str):
            if form not in _FLOAT_WORDS:
                raise EncodeError(f"wants a number, NaN, Infinity or -Infinity, not {form!r}", path)
            return _FLOAT_WORDS[form]
        case model.DataType():
            try:
                return bytes.fromhex(form)
            except (TypeError, ValueError) as error:
                raise EncodeError("wants a string of hexadecimal digits", path) from error
        case model.EnumType(cls=cls):
            if not isinstance(form, str) or form not in cls.__members__:
                raise EncodeError(f"wants one of {', '.join(cls.__members__)}, not {form!r}", path)
            return cls[form]
        case model.OptionalType(item=item, wrapped=wrapped):
            if form is None:
                return None
            if not wrapped:
                return from_json(item, form, path)
            return Some(from_json(item, _object(form, ("some",), path)["some"], path))
        case model.ListType(item=item):
            parts = _array(form, path)
            return [from_json(item, part, f"{path}[{index}]") for index, part in enumerate(parts)]
        case model.MapType() as map_:
            return _map_from_json(map_, form, path)
        case model.UnionType(members=members, tagged=tagged):
            chosen = _object(form, ("tag", "value"), path)
            for tag, member in members:
                if type(chosen["tag"]) is int and chosen["tag"] == tag:
                    value = from_json(member, chosen["value"], path)
                    return Tagged(tag, value) if tagged else value
            raise EncodeError(f"{chosen['tag']!r} is not a tag of the union", path)
        case model.StructType(cls=struct, fields=fields):
            names = tuple(name for name, _ in fields)
            values = _object(form, names, path)
            return struct(**{name: from_json(part, values[name], f"{path}.{name}") for name, part in fields})
        case _:
            return form


def _chosen(union: model.UnionType, value: Any) -> tuple[int, BareType, Any]:
    for tag, member in union.members:
        if union.tagged and value.tag == tag:
            return tag, member, value.value
        if not union.tagged and type(value) in python_types(member):
            return tag, member, value
    raise AssertionError(f"{value!r} is not a value of the union")


def _array(form: Any, path: str) -> list[Any]:
    if not isinstance(form, list):
        raise EncodeError(f"wants an array, not {type(form).__name__}", path)
    return form


def _object(form: Any, names: tuple[str, ...], path: str) -> dict[str, Any]:
    """Returns `form`. Raises EncodeError if `form` is not an object with exactly these names."""
    if not isinstance(form, dict):
        raise EncodeError(f"wants an object with {', '.join(names)}, not {type(form).__name__}", path)
    missing = [name for name in names if name not in form]
    unknown = [name for name in form if name not in names]
    if missing or unknown:
        wrong = [f"{name} is missing" for name in missing] + [f"{name} is unknown" for name in unknown]
        raise EncodeError(", ".join(wrong), path)
    return form


def _map_from_json(node: model.MapType, form: Any, path: str) -> dict[Any, Any]:
    if isinstance(node.key, model.StrType):
        if not isinstance(form, dict):
            raise EncodeError(f"wants an object, not {type(form).__name__}", path)
        pairs = list(form.items())
    else:
        pairs = [(pair[0], pair[1]) for pair in _array(form, path) if isinstance(pair, list) and len(pair) == 2]
        if len(pairs) != len(form):
            raise EncodeError("wants an array of [key, value]", path)
    # A repeated key is an error, because decoders refuse messages with a repeated key.
    found: dict[Any, Any] = {}
    for index, (name, part) in enumerate(pairs):
        key = from_json(node.key, name, f"{path}.keys[{index}]")
        if isinstance(key, list | dict):
            raise EncodeError("a key cannot be an array or an object", f"{path}.keys[{index}]")
        if key in found:
            raise EncodeError("map key is repeated", f"{path}.keys[{index}]")
        found[key] = from_json(node.value, part, f"{path}.values[{index}]")
    return found
