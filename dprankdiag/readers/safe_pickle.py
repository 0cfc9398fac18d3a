"""Read pickles of plain values and tensors without running anything that they name.

A pickle is a program. Only the operations that build plain values are carried out, here and by ourselves; of the
functions and classes that one may name, those that torch.save writes for tensors are known and stand for values of our
own. Whatever else is named is refused.

Source: Python `pickletools` (the operations); torch 2 `_utils.py` and `serialization.py` (how a tensor is written).
"""

from __future__ import annotations

import pickletools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from dprankdiag.errors import InputError

MOST_BYTES = 64 << 20
MOST_OPERATIONS = 20_000_000
MOST_DEEP = 10_000_000

_MARK = object()
_MEND = "dump the counts again with the engine, or give them as JSON or CSV"


@dataclass(frozen=True, slots=True)
class Named:
    """A function or class that a pickle names; it is never called."""

    module: str
    name: str


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """Where the numbers of a tensor lie.

    Attributes:
        kind: of numbers, as torch names their storage (`IntStorage`).
        key: of the storage in the archive.
        offset, size, stride: in numbers.
    """

    kind: str
    key: str
    offset: int
    size: tuple[int, ...]
    stride: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class _Storage:
    kind: str
    key: str


STORAGES = (
    *("ByteStorage", "CharStorage", "ShortStorage", "IntStorage", "LongStorage"),
    *("HalfStorage", "FloatStorage", "DoubleStorage", "BoolStorage", "BFloat16Storage"),
)
_KEYS = (str, int, float, bool, type(None))
"""What may be a key: a tuple of tuples that are one object takes forever to hash."""

_REBUILD = Named("torch._utils", "_rebuild_tensor_v2")
_ORDERED = Named("collections", "OrderedDict")
_KNOWN = frozenset({_REBUILD, _ORDERED, *(Named("torch", name) for name in STORAGES)})


def read_pickle(content: bytes, where: str) -> Any:
    """Read plain values: numbers, texts, lists, tuples, dicts, and tensors as `StoredTensor`.

    Args:
        where: the file, for messages.

    Raises:
        InputError: it names something else than tensors, is too large, or is no whole pickle.
    """
    if len(content) > MOST_BYTES:
        raise InputError(f"a pickle of {len(content)} bytes, at most {MOST_BYTES} are read", where=where, mend=_MEND)
    machine = _Machine(where)
    try:
        for count, (operation, argument, _) in enumerate(pickletools.genops(content)):
            if count > MOST_OPERATIONS:
                raise machine.refuse("it has too many operations")
            if operation.name == "STOP":
                return machine.finish()
            machine.run(operation.name, argument)
    except (IndexError, KeyError, TypeError, ValueError, RecursionError, OverflowError) as error:
        raise machine.refuse(f"it is no whole pickle ({type(error).__name__})") from error
    raise machine.refuse("it ends before its end")


class _Machine:
    """Carries out the operations that only build values."""

    def __init__(self, where: str) -> None:
        self.where = where
        self.stack: list[Any] = []
        self.memo: dict[int, Any] = {}

    def refuse(self, why: str) -> InputError:
        return InputError(f"not read, because {why}; nothing in it was run", where=self.where, mend=_MEND)

    def finish(self) -> Any:
        if len(self.stack) != 1:
            raise ValueError("operations left over")
        return self.stack[0]

    def run(self, name: str, argument: Any) -> None:
        if name in _VALUES:
            self.push(argument)
        elif name in _FIXED:
            self.push(_FIXED[name]())
        elif name in _ACTIONS:
            _ACTIONS[name](self, argument)
        elif name not in _IGNORED:
            raise self.refuse(f"it holds the operation {name}, which tensors do not need")

    def push(self, value: Any) -> None:
        if len(self.stack) >= MOST_DEEP:
            raise self.refuse("it is too deep")
        self.stack.append(value)

    def pop_to_mark(self) -> list[Any]:
        at = len(self.stack) - 1
        while self.stack[at] is not _MARK:
            at -= 1
            if at < 0:
                raise ValueError("no mark")
        values = self.stack[at + 1 :]
        del self.stack[at:]
        return values

    def pop(self) -> Any:
        value = self.stack.pop()
        if value is _MARK:
            raise ValueError("a mark in place of a value")
        return value

    def name(self, module: str, name: str) -> None:
        named = Named(str(module), str(name))
        if named not in _KNOWN:
            raise self.refuse(f"it names {named.module}.{named.name}")
        self.push(named)


def _remember(machine: _Machine, argument: Any) -> None:
    machine.memo[len(machine.memo) if argument is None else int(argument)] = machine.stack[-1]


def _set_items(machine: _Machine, pairs: list[Any]) -> None:
    target = machine.stack[-1]
    if type(target) is not dict or len(pairs) % 2:
        raise ValueError("items of something else than a dict")
    if any(not isinstance(key, _KEYS) for key in pairs[::2]):
        raise machine.refuse("a dict in it has a key that is neither text nor a number")
    target.update(zip(pairs[::2], pairs[1::2], strict=True))


def _append(machine: _Machine, values: list[Any]) -> None:
    target = machine.stack[-1]
    if type(target) is not list:
        raise ValueError("items of something else than a list")
    target.extend(values)


def _tuple(machine: _Machine, count: int) -> None:
    values = [machine.pop() for _ in range(count)][::-1]
    machine.push(tuple(values))


def _name_apart(machine: _Machine, argument: Any) -> None:
    name, module = machine.pop(), machine.pop()
    machine.name(module, name)


def _load_storage(machine: _Machine, argument: Any) -> None:
    """Stand for the numbers that a persistent id points to: ("storage", class, key, place, count)."""
    told = machine.pop()
    if not isinstance(told, tuple) or len(told) != 5 or told[0] != "storage" or not isinstance(told[1], Named):
        raise machine.refuse("it points to something else than numbers of a tensor")
    if told[1].name not in STORAGES:
        raise machine.refuse(f"it stores {told[1].name}")
    machine.push(_Storage(told[1].name, str(told[2])))


def _reduce(machine: _Machine, argument: Any) -> None:
    """Build what torch.save writes as a call: a tensor, or an empty ordered dict of its hooks."""
    arguments, named = machine.pop(), machine.pop()
    if named == _ORDERED and arguments == ():
        machine.push({})
    elif named == _REBUILD and isinstance(arguments, tuple) and len(arguments) >= 4:
        storage, offset, size, stride = arguments[:4]
        if not isinstance(storage, _Storage):
            raise machine.refuse("a tensor in it has no numbers")
        machine.push(StoredTensor(storage.kind, storage.key, int(offset), _ints(size), _ints(stride)))
    else:
        raise machine.refuse("it calls something else than what makes a tensor")


def _ints(values: Any) -> tuple[int, ...]:
    return tuple(int(value) for value in values)


_VALUES = frozenset({
    *("BININT", "BININT1", "BININT2", "LONG1", "BINFLOAT", "INT", "LONG", "FLOAT"),
    *("BINUNICODE", "SHORT_BINUNICODE", "BINUNICODE8", "UNICODE", "BINBYTES", "SHORT_BINBYTES"),
})  # fmt: skip
_FIXED: dict[str, Callable[[], Any]] = {
    "NONE": lambda: None,
    "NEWTRUE": lambda: True,
    "NEWFALSE": lambda: False,
    "EMPTY_DICT": dict,
    "EMPTY_LIST": list,
    "EMPTY_TUPLE": tuple,
    "MARK": lambda: _MARK,
}
_IGNORED = frozenset({"PROTO", "FRAME"})
_ACTIONS: dict[str, Callable[[_Machine, Any], None]] = {
    **dict.fromkeys(("BINPUT", "LONG_BINPUT", "PUT", "MEMOIZE"), _remember),
    **dict.fromkeys(("BINGET", "LONG_BINGET", "GET"), lambda machine, at: machine.push(machine.memo[int(at)])),
    "GLOBAL": lambda machine, text: machine.name(*text.split(" ", 1)),
    "STACK_GLOBAL": _name_apart,
    "BINPERSID": _load_storage,
    "REDUCE": _reduce,
    "TUPLE": lambda machine, _: machine.push(tuple(machine.pop_to_mark())),
    "TUPLE1": lambda machine, _: _tuple(machine, 1),
    "TUPLE2": lambda machine, _: _tuple(machine, 2),
    "TUPLE3": lambda machine, _: _tuple(machine, 3),
    "LIST": lambda machine, _: machine.push(machine.pop_to_mark()),
    "DICT": lambda machine, _: _make_dict(machine),
    "SETITEMS": lambda machine, _: _set_items(machine, machine.pop_to_mark()),
    "SETITEM": lambda machine, _: _set_items(machine, [machine.pop(), machine.pop()][::-1]),
    "APPENDS": lambda machine, _: _append(machine, machine.pop_to_mark()),
    "APPEND": lambda machine, _: _append(machine, [machine.pop()]),
}


def _make_dict(machine: _Machine) -> None:
    pairs = machine.pop_to_mark()
    machine.push({})
    _set_items(machine, pairs)
