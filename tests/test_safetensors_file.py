"""A file that breaks the format is refused in one sentence, whatever is wrong with it."""
import json
import os
import struct

import numpy as np
import pytest
from checkpoints import CONFIG, named, one, refuses, values
from hypothesis import given, settings
from hypothesis import strategies as st

from mla_lab.checkpoint import read_layer
from mla_lab.errors import InputError
from mla_lab.safetensors_file import read_header


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    return (one(tmp_path_factory.mktemp("whole"), named(values(), 0)) / "model.safetensors").read_bytes()


def header_of(data):
    size = struct.unpack("<Q", data[:8])[0]
    return json.loads(data[8 : 8 + size]), data[8 + size :]


def packed(header, body):
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + body


@pytest.mark.parametrize("cut", [0, 5, 8, 40, 2000, -1, -100_000])
def test_a_truncated_file(tmp_path, whole, cut):
    (tmp_path / "model.safetensors").write_bytes(whole[:cut])
    refuses(tmp_path, "model.safetensors is no complete safetensors file", "download it again")


def test_files_that_are_something_else(tmp_path, whole):
    path = tmp_path / "model.safetensors"
    for data, word in [(b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n", "git lfs pull"),
                       (struct.pack("<Q", 2**63) + whole[8:], "header needs"), (whole + b"\0", "follow the header"),
                       (packed(b"[1]", b""), "no JSON object"), (packed(b"{", b""), "cannot be read"),
                       (packed(b"\xff\xfe{}", b""), "cannot be read"), (packed(b"[" * 99999, b""), "cannot be read"),
                       (packed(b'{"a": 1, "a": 1}', b""), "a key stands twice")]:
        path.write_bytes(data)
        refuses(tmp_path, path, word)
    path.unlink()
    path.mkdir()
    refuses(tmp_path, "is not a file")
    path.rmdir()
    os.mkfifo(path)
    refuses(tmp_path, "is not a file")


NAME = "model.layers.0.self_attn.o_proj.weight"


@pytest.mark.parametrize("spoil, word", [
    (lambda e: e.update(data_offsets=[e["data_offsets"][0] + 4, e["data_offsets"][1] + 4]), "begin at"),
    (lambda e: e.update(data_offsets=[0, e["data_offsets"][1] - e["data_offsets"][0]]), "begin at"),
    (lambda e: e.update(data_offsets=[e["data_offsets"][0], 10**15]), "takes"),
    (lambda e: e.update(data_offsets=[10**15, 0]), "takes"), (lambda e: e.update(data_offsets=[-4, 0]), "data_offsets"),
    (lambda e: e.update(data_offsets=[1]), "data_offsets"), (lambda e: e.update(data_offsets="ab"), "data_offsets"),
    (lambda e: e.update(data_offsets=None), "data_offsets"), (lambda e: e.update(shape=[300, 139]), "takes"),
    (lambda e: e.update(shape=[True, 138]), "shape"), (lambda e: e.update(shape="ab"), "shape"),
    (lambda e: e.update(shape=[-300, -138]), "shape"), (lambda e: e.update(shape=7), "shape"),
    (lambda e: e.update(dtype="F64"), "takes"), (lambda e: e.update(dtype=["F32"]), "dtype"),
    (lambda e: e.pop("dtype"), "dtype"), (lambda e: e.clear(), "dtype"), ("two\nlines", "printed"),
    ("\ud800", "printed")])
def test_a_header_that_does_not_add_up(tmp_path, whole, spoil, word):
    header, body = header_of(whole)
    if callable(spoil):
        spoil(header[NAME])
    else:
        header[spoil] = header.pop(NAME)
    (tmp_path / "model.safetensors").write_bytes(packed(header, body))
    refuses(tmp_path, "model.safetensors", word, "download it again")


def test_a_file_that_shrinks_between_header_and_numbers(tmp_path, whole, monkeypatch):
    from mla_lab import shards
    path = tmp_path / "model.safetensors"
    path.write_bytes(whole)
    header = read_header(path)
    monkeypatch.setattr(shards, "read_header", lambda _: header)
    path.write_bytes(whole[:-200_000])
    refuses(tmp_path, "it ends inside")


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_a_flipped_byte_is_read_or_refused_and_nothing_else(whole, tmp_path_factory, data):
    """Anything may stand in a header; the answer is a layer or one sentence, never another exception."""
    spoiled, end = bytearray(whole), 8 + struct.unpack("<Q", whole[:8])[0]
    for _ in range(data.draw(st.integers(1, 3))):
        spoiled[data.draw(st.integers(0, end - 1))] = data.draw(st.integers(0, 255))
    path = tmp_path_factory.getbasetemp() / "flipped.safetensors"
    path.write_bytes(spoiled)
    try:
        state = read_layer(path, 0, CONFIG)
        assert all(np.isfinite(w).all() for w in state.values())
    except InputError as error:
        assert "\n" not in str(error)
