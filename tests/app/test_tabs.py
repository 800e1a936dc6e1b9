"""Tabs that come and go, and some that misbehave; without a browser."""

import asyncio
import gc
import json
import logging
from collections import Counter

import pytest

pytest.importorskip("nicegui")

from nicegui import Client

from genprior.app.race import Race
from genprior.app.view.page import Page
from genprior.app.view.race_panel import RacePanel

from .tab import Tab


def alive(kind):
    return sum(type(thing) is kind for thing in gc.get_objects())  # some of torch's complain about isinstance


async def race(address):
    """Open the page, start a race, close the tab while it runs or waits."""
    tab = await Tab(address).open()
    await tab.ready()
    for name in ("Auto", "ExactADMM", "LBFGS"):
        await tab.click(data_solver=name)
    await tab.click(text="Start the race")
    await tab.wait(lambda: tab.find(text="Stop"))
    await asyncio.sleep(0.5)
    await tab.close()


def test_closed_tabs_leave_nothing(address, shared, until):
    until(lambda: not Client.instances)
    gc.collect()
    before = Counter({kind: alive(kind) for kind in (Page, Race, Client)})

    async def come_and_go():
        await asyncio.gather(*(race(address) for _ in range(3)))

    asyncio.run(come_and_go())
    until(lambda: not Client.instances and not shared.queue.running)

    def clean():
        gc.collect()
        return Counter({kind: alive(kind) for kind in before}) <= before

    until(clean, 10)  # the last frames of a task may still hold one for a moment


def test_an_error_of_the_page_itself_is_told(address, monkeypatch, caplog):
    monkeypatch.setattr(RacePanel, "_toggle", lambda self, name: 1 / 0)

    async def click():
        tab = await Tab(address).open()
        await tab.click(data_solver="Adam")
        await tab.wait(lambda: caplog.records)
        await tab.close()

    asyncio.run(click())
    assert isinstance(caplog.records[0].exc_info[1], ZeroDivisionError)


def test_a_race_goes_with_its_tab_without_the_garbage_collector(address, shared, until):
    until(lambda: not Client.instances)
    gc.collect()
    before = alive(Race)
    gc.disable()
    try:
        asyncio.run(race(address))
        until(lambda: not Client.instances and not shared.queue.running)
        until(lambda: alive(Race) <= before, 10)
    finally:
        gc.enable()


FORGED = (None, -1, 1e308, True, "", "x", "a\nERROR: forged\x1b[31m", [], [1], {}, {"value": 7}, {"value": None}, [[]])


async def forge(address):
    """Send what no browser would; the tab that does the same in earnest still works afterwards."""
    tab = await Tab(address).open()
    await tab.ready()
    for name in ("event", "log", "ack", "javascript_response", "handshake", "connect", "nonsense", "__class__"):
        for value in FORGED:
            keys = ("id", "args", "level", "message", "next_message_id", "request_id", "tab_id", "listener_id")
            await tab.socket.emit(name, value)
            await tab.socket.emit(name, {"client_id": value})
            await tab.socket.emit(name, {"client_id": tab.client_id, **dict.fromkeys(keys, value)})
        await tab.socket.emit(name)
    await tab.socket.emit("log", {"client_id": tab.client_id, "level": "error", "message": "a\nERROR: forged"})
    assert tab.socket.connected
    sent = 0
    for key, element in list(tab.elements.items()):
        for event in element.get("events", []):
            head = {"id": int(key), "client_id": tab.client_id, "listener_id": event["listener_id"]}
            for value in FORGED:
                await tab.socket.emit("event", {**head, "args": [json.dumps(value)]})
                sent += 1
            await tab.socket.emit("event", {**head, "args": "{"})
            await tab.socket.emit("event", {**head, "args": ["{"]})
    assert sent > 100
    await asyncio.sleep(0.5)
    await tab.close()
    fresh = await Tab(address).open()
    await fresh.ready()
    await fresh.close()


async def babble(address):
    """Packets that are not in socket.io's language."""
    import aiohttp

    async with aiohttp.ClientSession() as session:
        place = address + "/_nicegui_ws/socket.io/?EIO=4&transport=websocket"
        for packet in (
            "42",
            "42[",
            "9",
            "451-[]",
            "42{}",
            "42[[]]",
            "4x",
            "",
            "\x00",
            '42["event"]',
            "44",
            "x" * 1_500_000,
        ):
            for opening in (["40"], []):
                async with session.ws_connect(place) as socket:
                    for text in [*opening, packet]:
                        await socket.send_str(text)
                    await asyncio.sleep(0.02)
        for query in ("&implicit_handshake=true", "&implicit_handshake=true&client_id=x"):
            async with session.ws_connect(place + query) as socket:
                await socket.send_str("40")
                await asyncio.sleep(0.02)


@pytest.mark.parametrize("misbehave", [forge, babble])
def test_what_no_browser_sends_leaves_no_trace(misbehave, address, until, caplog, capfd):
    with caplog.at_level(logging.WARNING):
        asyncio.run(misbehave(address))
        until(lambda: not Client.instances)
        gc.collect()  # a task that failed is told about when it goes
    shown = capfd.readouterr().err
    assert "Traceback" not in shown and "forged" not in shown
    assert not [record for record in caplog.records if record.exc_info or "forged" in record.getMessage()]
