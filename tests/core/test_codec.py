"""Documents are read back as they were written, or there is one named error."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import orjson
import pytest

from forebay.core import codec
from forebay.core.codec import CodecError
from forebay.core.memory import initial_memory
from forebay.core.step import step
from forebay.core.units import UNKNOWN
from tests.core import build

if TYPE_CHECKING:
    from collections.abc import Callable

SPEC = build.fleet({}, {"batch_class": True})
LOOK = build.snapshot(
    5000,
    [{"requests_running": 4}, {"service": 1} | build.UNREAD, {"failed": True}],
    [{"uid": "g0"}, {"uid": "g0", "service": 1, "requests_held": 3}],
)
MEMORY, DECISIONS = step(SPEC, initial_memory(SPEC, 4000), LOOK)

DOCUMENTS: list[Any] = [
    pytest.param(codec.encode_memory, codec.decode_memory, MEMORY, id="memory"),
    pytest.param(codec.encode_fleet, codec.decode_fleet, SPEC, id="fleet"),
    pytest.param(codec.encode_snapshot, codec.decode_snapshot, LOOK, id="snapshot"),
    pytest.param(codec.encode_decisions, codec.decode_decisions, DECISIONS, id="decisions"),
]


@pytest.mark.parametrize(("encode", "decode", "value"), DOCUMENTS)
def test_what_was_written_is_read_back(
    encode: Callable[[Any], bytes], decode: Callable[[bytes], Any], value: Any
) -> None:
    data = encode(value)
    assert encode(decode(data)) == data
    assert repr(decode(data)) == repr(value)


@pytest.mark.parametrize(("encode", "decode", "value"), DOCUMENTS)
@pytest.mark.parametrize(
    "damage",
    [
        pytest.param(lambda data: data[:-1], id="cut off"),
        pytest.param(lambda _: b"", id="empty"),
        pytest.param(lambda data: b"JUNK" + data[4:], id="something else"),
        pytest.param(lambda data: data[:50] + bytes([data[50] ^ 1]) + data[51:], id="one bit"),
        pytest.param(lambda data: seal(data[:20]), id="sealed rubbish"),
        pytest.param(lambda data: reheaded(data, version=2), id="another version"),
        pytest.param(lambda data: reheaded(data, columns=[]), id="no columns"),
        pytest.param(lambda data: reheaded(data, columns=[["mode", "<i8", [10**9]]]), id="columns beyond the end"),
        pytest.param(lambda data: reheaded(data, plain={"stages": 3}), id="no names"),
    ],
)
def test_damage_is_one_named_error(
    encode: Callable[[Any], bytes], decode: Callable[[bytes], Any], value: Any, damage: Callable[[bytes], bytes]
) -> None:
    with pytest.raises(CodecError):
        decode(damage(encode(value)))


def test_a_document_of_another_kind_is_refused() -> None:
    with pytest.raises(CodecError, match="not a Memory of version 1"):
        codec.decode_memory(codec.encode_fleet(SPEC))


def seal(data: bytes) -> bytes:
    """Give damaged bytes a checksum that fits."""
    return data + codec.zlib.crc32(data).to_bytes(4, "little")


def reheaded(data: bytes, **changes: Any) -> bytes:
    size = int.from_bytes(data[4:8], "little")
    header = orjson.dumps(orjson.loads(data[8 : 8 + size]) | changes)
    return seal(b"FBAY" + len(header).to_bytes(4, "little") + header + data[8 + size : -4])


def test_safety_and_learned_memory_survive_a_restart() -> None:
    texts = [(codec.encode_safety(MEMORY, row), codec.encode_learned(MEMORY, row)) for row in range(2)]
    safety = {service: codec.decode_safety(text) for service, (text, _) in zip(SPEC.services, texts, strict=True)}
    learned = {service: codec.decode_learned(text) for service, (_, text) in zip(SPEC.services, texts, strict=True)}
    back = codec.restore(initial_memory(SPEC, 9000), safety | {"gone/away": {}}, learned)
    assert repr(back.safety) == repr(MEMORY.safety)
    assert repr(back.learned) == repr(MEMORY.learned)
    assert back.recent.now_ms == 9000


def test_nothing_to_restore_changes_nothing() -> None:
    memory = initial_memory(SPEC, 0)
    assert repr(codec.restore(memory, {}, {})) == repr(memory)


def test_a_decision_that_was_never_made_is_not_a_zero() -> None:
    text = codec.encode_safety(initial_memory(SPEC, 0), 0)
    assert text == '{"version":1}'
    back = codec.restore(MEMORY, {SPEC.services[0]: codec.decode_safety(text)}, {})
    assert back.safety.replicas_serving[0] == UNKNOWN


def test_the_texts_are_short_enough_for_their_objects() -> None:
    full = replace(
        MEMORY.learned,
        **{
            name: np.full_like(getattr(MEMORY.learned, name), 2**20 if name in codec._BINS else 2**40)
            for name in MEMORY.learned.__slots__
        },
    )
    text = codec.encode_learned(replace(MEMORY, learned=full), 0)
    assert codec.decode_learned(text)
    assert len(text) <= codec.LEARNED_BYTES_MAX
    huge = replace(MEMORY.safety, replicas_serving=np.array([10**6] * 2), replicas_warm=np.array([10**6] * 2))
    assert len(codec.encode_safety(replace(MEMORY, safety=huge), 0)) < 100 < codec.SAFETY_BYTES_MAX


LEARNED = orjson.loads(codec.encode_learned(MEMORY, 0))


@pytest.mark.parametrize(
    ("decode", "text"),
    [
        pytest.param(codec.decode_safety, "", id="empty"),
        pytest.param(codec.decode_safety, "{", id="not JSON"),
        pytest.param(codec.decode_safety, "[1]", id="not an object"),
        pytest.param(codec.decode_safety, '{"version":2}', id="another version"),
        pytest.param(codec.decode_safety, '{"version":1,"replicas_serving":-1}', id="negative"),
        pytest.param(codec.decode_safety, '{"version":1,"replicas_serving":true}', id="not a number"),
        pytest.param(codec.decode_safety, '{"version":1,"replicas_serving":1.5}', id="a fraction"),
        pytest.param(codec.decode_safety, '{"version":1,"replicas_warm":9999999}', id="too many"),
        pytest.param(codec.decode_safety, '{"version":1,"colour":1}', id="unheard of"),
        pytest.param(codec.decode_safety, '{"version":1' + " " * 4096 + "}", id="too long"),
        pytest.param(codec.decode_learned, '{"version":1}', id="entries missing"),
        pytest.param(codec.decode_learned, orjson.dumps(LEARNED | {"colour": 1}).decode(), id="one too many"),
        pytest.param(codec.decode_learned, orjson.dumps(LEARNED | {"rise": [1, 2]}).decode(), id="too few bins"),
        pytest.param(codec.decode_learned, orjson.dumps(LEARNED | {"rise": 7}).decode(), id="no bins"),
        pytest.param(codec.decode_learned, orjson.dumps(LEARNED | {"rise": [-1] * 33}).decode(), id="negative counts"),
        pytest.param(codec.decode_learned, orjson.dumps(LEARNED | {"prompts": 2**41}).decode(), id="too large a sum"),
    ],
)
def test_a_damaged_text_is_one_named_error(decode: Callable[[str], Any], text: str) -> None:
    with pytest.raises(CodecError):
        decode(text)
