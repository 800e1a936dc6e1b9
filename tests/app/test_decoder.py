"""Uploads are read one at a time, and other requests do not wait for them."""

import asyncio
import threading
import time

import pytest

from genprior.app.decoder import Decoder
from genprior.app.queue import Queue
from genprior.app.state import ServerState


def test_one_at_a_time_in_the_order_of_arrival():
    decoder, inside, log = Decoder(), [], []

    def job(number):
        inside.append(number)
        time.sleep(0.005)
        log.append((number, len(inside)))
        inside.remove(number)
        return number

    async def all_at_once():
        return await asyncio.gather(*(decoder.read(lambda number=number: job(number)) for number in range(6)))

    assert asyncio.run(all_at_once()) == list(range(6))
    assert log == [(number, 1) for number in range(6)]


def test_what_breaks_is_told_and_the_next_is_read():
    decoder = Decoder()
    with pytest.raises(ZeroDivisionError):
        asyncio.run(decoder.read(lambda: 1 / 0))
    assert asyncio.run(decoder.read(lambda: 5)) == 5


def test_a_house_that_closes_drops_what_waits():
    shared, log = ServerState(Queue(), time_limit=1, upload_limit=1), []
    begun, gate = threading.Event(), threading.Event()

    def slow():
        begun.set()
        return gate.wait(10)

    async def close_in_the_middle():
        first = asyncio.ensure_future(shared.decoder.read(slow))
        second = asyncio.ensure_future(shared.decoder.read(lambda: log.append("read")))
        while not begun.is_set():
            await asyncio.sleep(0.001)
        shared.close()
        gate.set()
        assert await first is True
        with pytest.raises(asyncio.CancelledError):
            await second
        return await shared.decoder.read(lambda: "more")

    assert asyncio.run(close_in_the_middle()) is None
    assert log == []
