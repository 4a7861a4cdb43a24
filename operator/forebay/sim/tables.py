"""A data path as compiled rules take it: one pointer, to a table of its columns' addresses and lengths.

A DataPath has 60 arrays. Passed as numba passes a tuple of arrays, they are 420 arguments of every call of every rule:
the compiler took 22 s, and calls more time than the rules. With the pointer, `path.bank.output[row]` is two loads, the
compiler takes 11 s, and a step takes three quarters of the time.
"""

# mypy: disable-error-code="misc, no-untyped-call, untyped-decorator, override, explicit-override"
# numba has types for its users, not for those who teach it a type.

from __future__ import annotations

import operator
from typing import Any

import numpy as np
from numba.core import cgutils, types
from numba.core.typing.templates import AbstractTemplate, AttributeTemplate, infer_getattr, infer_global, signature
from numba.extending import (
    NativeValue,
    lower_builtin,
    lower_getattr_generic,
    models,
    register_model,
    typeof_impl,
    unbox,
)

from forebay.engine_model.bank import Bank
from forebay.sim.datapath.layout import DataPath

_PLACES = {"bank": Bank}  # which fields of a table are tables themselves


def _columns(table: type[Any]) -> list[str]:
    """Name a table's columns in the order in which their addresses are listed."""
    names: list[str] = []
    for field in table._fields:
        names += _columns(_PLACES[field]) if field in _PLACES else [field]
    return names


class Arrays:
    """One service's arrays as compiled rules take them; they must not be replaced while it lives.

    Raises
    ------
    TypeError
        When a column is no contiguous int64 array: compiled rules look at nothing but its address.
    """

    def __init__(self, path: DataPath) -> None:
        flat: list[Any] = [*path.bank, *path[1:]]
        for name, column in zip(_columns(DataPath), flat, strict=True):
            if not isinstance(column, np.ndarray) or column.dtype != np.int64 or not column.flags.c_contiguous:
                raise TypeError(f"{name} must be a contiguous int64 array")
        self.path = path
        self._table = np.array([[column.ctypes.data, column.size] for column in flat], np.int64)
        self.address = int(self._table.ctypes.data)


class _Table(types.Type):
    """A table of columns, from the `first` address of the list on."""

    dtype = types.int64  # what it points to

    def __init__(self, fields: type[Any], first: int = 0) -> None:
        self.fields, self.first = fields, first
        super().__init__(f"{fields.__name__}[{first}]")

    def place(self, name: str) -> int:
        place = self.first
        for field in self.fields._fields:
            if field == name:
                return place
            place += len(_columns(_PLACES[field])) if field in _PLACES else 1
        raise AttributeError(name)


class _Column(types.Type):
    """An array of int64, indexed from 0 on."""

    def __init__(self) -> None:
        super().__init__("column")


_COLUMN = _Column()


register_model(_Table)(models.PointerModel)


@register_model(_Column)
class _ColumnModel(models.StructModel):
    def __init__(self, manager: Any, kind: _Column) -> None:
        super().__init__(manager, kind, [("data", types.CPointer(types.int64)), ("length", types.int64)])


@typeof_impl.register(Arrays)
def _typeof(_value: Arrays, _context: Any) -> _Table:
    return _Table(DataPath)


@unbox(_Table)
def _unbox(kind: _Table, value: Any, c: Any) -> NativeValue:
    number = c.pyapi.object_getattr_string(value, "address")
    address = c.pyapi.long_as_longlong(number)
    c.pyapi.decref(number)
    return NativeValue(c.builder.inttoptr(address, c.context.get_value_type(kind)), is_error=c.pyapi.c_api_error())


@infer_getattr
class _TableAttributes(AttributeTemplate):
    key = _Table

    def generic_resolve(self, table: _Table, name: str) -> Any:
        return _Table(_PLACES[name], table.place(name)) if name in _PLACES else _COLUMN


@lower_getattr_generic(_Table)
def _lower_getattr(context: Any, builder: Any, table: _Table, pointer: Any, name: str) -> Any:
    if name in _PLACES:
        return pointer
    column = cgutils.create_struct_proxy(_COLUMN)(context, builder)
    at = 2 * table.place(name)
    column.data = builder.inttoptr(builder.load(cgutils.gep_inbounds(builder, pointer, at)), pointer.type)
    column.length = builder.load(cgutils.gep_inbounds(builder, pointer, at + 1))
    return column._getvalue()  # noqa: SLF001 - numba's own way to read a proxy


@infer_global(operator.getitem)
class _GetItem(AbstractTemplate):
    def generic(self, args: Any, _keywords: Any) -> Any:
        return signature(types.int64, args[0], types.int64) if isinstance(args[0], _Column) else None


@infer_global(operator.setitem)
class _SetItem(AbstractTemplate):
    def generic(self, args: Any, _keywords: Any) -> Any:
        return signature(types.none, args[0], types.int64, types.int64) if isinstance(args[0], _Column) else None


@infer_global(len)
class _Len(AbstractTemplate):
    def generic(self, args: Any, _keywords: Any) -> Any:
        return signature(types.int64, args[0]) if isinstance(args[0], _Column) else None


def _entry(context: Any, builder: Any, column: Any, index: Any) -> Any:
    data = cgutils.create_struct_proxy(_COLUMN)(context, builder, value=column).data
    return cgutils.gep_inbounds(builder, data, index)


@lower_builtin(operator.getitem, _Column, types.int64)
def _lower_getitem(context: Any, builder: Any, _signature: Any, args: Any) -> Any:
    return builder.load(_entry(context, builder, *args))


@lower_builtin(operator.setitem, _Column, types.int64, types.int64)
def _lower_setitem(context: Any, builder: Any, _signature: Any, args: Any) -> Any:
    builder.store(args[2], _entry(context, builder, args[0], args[1]))
    return context.get_dummy_value()


@lower_builtin(len, _Column)
def _lower_len(context: Any, builder: Any, _signature: Any, args: Any) -> Any:
    return cgutils.create_struct_proxy(_COLUMN)(context, builder, value=args[0]).length
