"""Readers meet rubbish: spoilt files of every kind. ``tools/fuzz_readers.py`` does the same with many more, and with bombs."""

import random

import pytest

from tests.files.mutants import kinds, mutant

KINDS = kinds()
MUTANTS = 40


@pytest.mark.parametrize("kind", KINDS)
def test_spoilt_files_are_read_or_refused(tmp_path, kind):
    name, whole, read = KINDS[kind]
    path = tmp_path / name
    path.write_bytes(whole)
    read(path)
    for number in range(MUTANTS):
        path.write_bytes(mutant(whole, random.Random(f"{kind} {number}")) if number else b"")
        try:
            read(path)
        except (ValueError, OSError) as problem:
            assert str(problem), "an error says what is wrong"
