"""The page, as a visitor uses it, in a real browser."""

import base64
import http.client
import io
import re
import threading
import zipfile
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import numpy as np
import pytest
from nicegui import run
from PIL import Image

import genprior as gp
from genprior.app import images, race, registry
from genprior.app.view import page as view
from genprior.stopping import Seconds

from .conftest import UPLOAD_LIMIT


def choose_damage(page, title):
    page.get_by_label("Type of damage").click()
    page.get_by_role("option", name=title).click()
    page.wait_for_selector(".q-menu", state="detached")


def choose_solvers(page, *names):
    for chip in page.locator("[data-solver]").all():
        if (chip.get_attribute("data-solver") in names) != (chip.get_attribute("aria-pressed") == "true"):
            chip.click()
    for name in names:
        page.wait_for_selector(f'[data-solver="{name}"][aria-pressed="true"]')


def set_seconds(page, key, presses, value):
    slider = page.get_by_role("slider", name="Seconds for each solver")
    slider.locator("[tabindex]").focus()
    for _ in range(presses):
        page.keyboard.press(key)
    page.wait_for_selector(f'[role="slider"][aria-label^="Seconds"][aria-valuenow="{value}"]')


def start(page):
    page.get_by_role("button", name="Start the race").click()
    page.wait_for_selector("text=running")


def state(page, words):
    page.locator('[role="status"]', has_text=words).wait_for()


def source(page, tile):
    return page.locator(f'[data-tile="{tile}"] img').get_attribute("src")


def changes(page, tile, before):
    page.wait_for_function(
        """([tile, before]) => document.querySelector(`[data-tile="${tile}"] img:not(.hidden)`)?.src !== before""",
        arg=[tile, before],
    )


def place_of(page, label):
    pad = page.get_by_label(label)
    pad.wait_for(state="visible")
    pad.scroll_into_view_if_needed()
    for _ in range(50):  # it has no place while the page lays itself out again
        box = pad.bounding_box()
        if box is not None:
            return box
        page.wait_for_timeout(100)
    raise AssertionError(f"{label} has no place on the page")


def stroke(page, label, *points):
    box = place_of(page, label)
    places = [(box["x"] + u * box["width"], box["y"] + v * box["height"]) for u, v in points]
    page.mouse.move(*places[0])
    page.mouse.down()
    for place in places[1:]:
        page.mouse.move(*place, steps=5)
    page.mouse.up()


def curves(page):
    """How many points each curve of the chart has."""
    return page.evaluate(
        """() => Object.fromEntries(getElement(document.querySelector('.chart').id.slice(1)).chart.getOption()
            .series.map(s => [s.name, s.data.length]))"""
    )


def download(page, name):
    with page.expect_download() as waiting:
        page.locator(f'[data-file="{name}"]').click()
    assert waiting.value.suggested_filename == name
    with open(waiting.value.path(), "rb") as file:
        return file.read()


def pixels(data_url):
    with Image.open(io.BytesIO(base64.b64decode(data_url.partition(",")[2]))) as image:
        return np.asarray(image)


def test_a_race_from_start_to_download(visit, tmp_path, monkeypatch):
    page = visit()
    assert page.title() == "genprior"
    assert np.array_equal(pixels(source(page, "Truth")), registry.sample_images("mnist")[0, 0].mul(255).round().numpy())
    before = source(page, "Truth")
    page.get_by_label("sample 3").click()
    changes(page, "Truth", before)
    choose_solvers(page, "Auto", "Adam")
    set_seconds(page, "ArrowLeft", 3, 2)
    page.get_by_label("Starts").get_by_role("button", name="4").click()
    start(page)
    page.wait_for_selector('[data-tile="Adam"] img:not(.hidden)')
    seen = curves(page)
    state(page, "done")
    assert all(curves(page)[name] >= points for name, points in seen.items()), "curves grow"
    assert set(curves(page)) == {"Auto", "Adam"} and min(curves(page).values()) > 1
    rows = page.locator("table.outcome tbody").inner_text()
    assert "out of time" in rows and "What now: It was still running" in rows and "Method: Chooses the method" in rows
    assert re.fullmatch(r"error \d.*", page.locator('[data-tile="Auto"] .detail').inner_text())
    assert page.locator(".tile.best").count() == 1 and page.get_by_text("★ Lowest objective").is_visible()
    page.get_by_role("button", name="Objective").click()
    page.wait_for_function(
        "() => getElement(document.querySelector('.chart').id.slice(1)).chart.getOption().yAxis[0].name === 'objective'"
    )

    with zipfile.ZipFile(io.BytesIO(download(page, "result.zip"))) as file:
        file.extractall(tmp_path)
    assert download(page, "result.npz")[:2] == b"PK"
    with Image.open(io.BytesIO(download(page, "result.png"))) as sheet:
        assert sheet.width == 5 * (4 * 28 + 3)
    script = page.locator('[data-code="python"]').inner_text()
    assert script.strip() == (tmp_path / "recover.py").read_text().strip()
    command = page.locator('[data-code="command"]').inner_text()
    assert command.strip() == (tmp_path / "command.txt").read_text().strip()
    assert "gaussian:m=392,seed=0 --simulate" in command
    for width, hidden in ((800, 0), (390, 3)):  # the star goes by the objective: it is there on a phone too
        page.set_viewport_size({"width": width, "height": 900})
        shown = [cell.is_visible() for cell in page.locator("table.outcome th").all()]
        assert shown == [True] * (7 - hidden) + [False] * hidden
        assert page.evaluate(
            "document.querySelector('.wide').scrollWidth <= document.querySelector('.wide').clientWidth"
        )
        assert page.evaluate("document.documentElement.scrollWidth") <= width
    monkeypatch.chdir(tmp_path)
    names = {}
    assert "gp.Seconds(2.0)" in script and "restarts=4" in script and "--restarts 4" in command
    exec(script.replace("gp.Seconds(2.0)", "gp.MaxSteps(3)"), names)
    assert np.array_equal(names["truth"][0, 0].mul(255).round().numpy(), np.asarray(Image.open("input.png")))


def test_the_damage_follows_the_slider(visit):
    page = visit()
    assert not page.get_by_text("★ Lowest objective").is_visible()
    before = source(page, "Damaged")
    slider = page.get_by_role("slider", name="Measurements")
    slider.locator("[tabindex]").focus()
    for _ in range(5):
        page.keyboard.press("ArrowRight")
    page.locator('[data-tile="Damaged"]', has_text="532 Gaussian measurements").wait_for()
    assert slider.get_attribute("aria-valuenow") == "532"
    changes(page, "Damaged", before)


def test_draw_a_digit_and_paint_over_it(visit):
    page = visit()
    before = source(page, "Truth")
    page.get_by_role("button", name="Draw", exact=True).click()
    stroke(page, "sketchpad for a digit", (0.3, 0.2), (0.7, 0.2), (0.4, 0.8))
    changes(page, "Truth", before)
    digit = pixels(source(page, "Truth"))
    assert digit.shape == (28, 28) and len(np.flatnonzero(digit.max(axis=1))) == 20
    choose_damage(page, "Painted over")
    page.get_by_label("sketchpad for the mask").scroll_into_view_if_needed()
    page.locator('[data-tile="Damaged"]', has_text="paint over a part").wait_for()
    page.get_by_role("button", name="Start the race").click()  # nothing painted: said, not run
    page.locator(".q-notification", has_text="paint over a part of the image").wait_for()
    stroke(page, "sketchpad for the mask", (0.1, 0.3), (0.9, 0.3))
    page.locator('[data-tile="Damaged"]', has_text="painted over").wait_for()
    page.wait_for_selector('[data-tile="Damaged"] img:not(.hidden)')
    damaged = pixels(source(page, "Damaged"))
    assert bool((damaged[8, 5:23] == 128).all()) and np.array_equal(damaged[14:], digit[14:])
    page.get_by_role("button", name="Clear").last.click()
    page.locator('[data-tile="Damaged"]', has_text="paint over a part").wait_for()
    page.get_by_role("button", name="Fine").click()
    stroke(page, "sketchpad for the mask", (0.1, 0.3), (0.9, 0.3))
    page.wait_for_selector('[data-tile="Damaged"] img:not(.hidden)')
    fine = pixels(source(page, "Damaged"))
    assert 0 < (fine[:, 14] == 128).sum() < (damaged[:, 14] == 128).sum()


def paint_everything(page):
    page.get_by_role("button", name="Broad").click()
    page.wait_for_selector('[data-pick="80"][aria-pressed="true"]')
    ends = [(0.02, 0.98), (0.98, 0.02)] * 2
    rows = zip((0.1, 0.35, 0.6, 0.85), ends, strict=True)
    stroke(page, "sketchpad for the mask", *((u, v) for v, pair in rows for u in pair))


def is_clean(page, label):
    """Whether nothing is on a sketchpad."""
    return page.evaluate(
        """label => { const pad = document.querySelector(`canvas[aria-label="${label}"]`);
            return !pad.getContext("2d").getImageData(0, 0, pad.width, pad.height).data.some(value => value > 0); }""",
        label,
    )


def test_the_mask_in_use_is_the_one_on_the_screen(visit, until):
    page = visit()
    choose_damage(page, "Painted over")
    damaged = page.locator('[data-tile="Damaged"]')
    stroke(page, "sketchpad for the mask", (0.1, 0.3), (0.9, 0.3))
    damaged.get_by_text("% painted over").wait_for()
    paint_everything(page)
    notified(page, "everything is painted over")
    damaged.get_by_text("paint over a part of the image").wait_for()  # the first stroke alone is not in force any more
    page.get_by_role("button", name="Start the race").click()
    notified(page, "there is no mask")
    page.get_by_role("button", name="Clear").last.click()
    until(lambda: is_clean(page, "sketchpad for the mask"))
    stroke(page, "sketchpad for the mask", (0.1, 0.3), (0.9, 0.3))
    damaged.get_by_text("% painted over").wait_for()
    page.get_by_label("sample 3").click()  # another image: the mask stays, as do its strokes
    page.wait_for_selector('[aria-label="sample 3"][aria-pressed="true"]')
    assert not is_clean(page, "sketchpad for the mask")
    page.get_by_role("button", name="Faces").click()
    damaged.get_by_text("there is no mask").wait_for()
    until(lambda: is_clean(page, "sketchpad for the mask"))


def test_faces_and_their_damages(visit):
    page = visit()
    before = source(page, "Truth")
    page.get_by_role("button", name="Faces").click()
    changes(page, "Truth", before)
    assert pixels(source(page, "Truth")).shape == (64, 64, 3)
    assert not page.get_by_role("button", name="Draw", exact=True).is_visible()
    page.get_by_label("Type of damage").click()
    page.get_by_role("option").first.wait_for()
    assert not page.get_by_role("option", name="Attack").is_visible()
    page.get_by_role("option", name="Fewer pixels").click()
    page.locator('[data-tile="Damaged"]', has_text="reduced 4 times").wait_for()
    page.get_by_role("button", name="8", exact=True).first.click()
    page.locator('[data-tile="Damaged"]', has_text="reduced 8 times").wait_for()
    blocks = pixels(source(page, "Damaged")).reshape(8, 8, 8, 8, 3)
    assert bool((blocks == blocks[:, :1, :, :1]).all())


def upload(page, name, content, mime="image/png"):
    page.locator('input[type="file"]').set_input_files({"name": name, "mimeType": mime, "buffer": content})


def notified(page, words):
    page.locator(".q-notification", has_text=words).wait_for()


def test_uploads_good_and_bad(visit):
    page = visit()
    page.get_by_role("button", name="Upload", exact=True).click()
    before = source(page, "Truth")
    upload(page, "cat.png", b"this is not an image")
    notified(page, "cat.png cannot be read as an image")
    upload(page, "big.png", bytes(round(UPLOAD_LIMIT * 2**20) + 1))
    notified(page, "larger than 0.5 MB, or it is not an image")
    assert source(page, "Truth") == before
    ink = np.zeros((60, 60, 4), dtype=np.uint8)
    ink[10:50, 25:35, 3] = 255  # black ink, the rest transparent
    store = io.BytesIO()
    Image.fromarray(ink).save(store, format="png")
    upload(page, "one.png", store.getvalue())
    changes(page, "Truth", before)
    shown = pixels(source(page, "Truth"))
    assert shown[14, 14] > 200 and shown[14, 3] == 0
    before = source(page, "Truth")
    store = io.BytesIO()
    Image.fromarray(np.full((28, 28), 13107, dtype=np.uint16)).save(store, format="png")
    upload(page, "deep.png", store.getvalue())
    changes(page, "Truth", before)
    assert np.unique(pixels(source(page, "Truth"))).tolist() == [51]


def image_file():
    store = io.BytesIO()
    Image.fromarray(np.eye(28, dtype=np.uint8) * 200).save(store, format="png")
    return store.getvalue()


@pytest.fixture
def slow(monkeypatch):
    """Make a function wait for a gate; events that tell when it was called, the gate, and when it was done."""
    begun, gate, done = threading.Event(), threading.Event(), threading.Event()

    def slow_down(module, name):
        function = getattr(module, name)

        def waiting(*given):
            begun.set()
            gate.wait(60)
            try:
                return function(*given)
            finally:
                done.set()

        monkeypatch.setattr(module, name, waiting)
        return begun, gate, done

    yield slow_down
    gate.set()


def test_who_uploads_does_not_stop_the_others(visit, slow, monkeypatch):
    first, second = visit(), visit()
    begun, gate, _ = slow(images, "read_upload")
    with ThreadPoolExecutor(1) as pool:  # all that the pages share: an upload that waits must not hold it
        monkeypatch.setattr(run, "thread_pool", pool)
        first.get_by_role("button", name="Upload", exact=True).click()
        before = source(first, "Truth")
        upload(first, "slow.png", image_file())
        assert begun.wait(30)
        second.get_by_label("sample 3").click()
        changes(second, "Truth", before)
        upload(first, "more.png", image_file())
        notified(first, "your last image is still being read")
        assert source(first, "Truth") == before
        gate.set()
        changes(first, "Truth", before)
        upload(first, "next.png", b"this is not an image")
        notified(first, "next.png cannot be read")  # taken, for the other is done
        monkeypatch.undo()


@pytest.mark.parametrize("source_of_it", ["upload", "draw"])
def test_an_image_that_comes_late_is_not_taken_for_another_generator(visit, slow, source_of_it):
    page = visit()
    before = source(page, "Truth")
    if source_of_it == "upload":
        begun, gate, done = slow(images, "read_upload")
        page.get_by_role("button", name="Upload", exact=True).click()
        upload(page, "slow.png", image_file())
    else:
        begun, gate, done = slow(images, "read_drawing")
        page.get_by_role("button", name="Draw", exact=True).click()
        stroke(page, "sketchpad for a digit", (0.3, 0.2), (0.7, 0.2), (0.4, 0.8))
    assert begun.wait(30)
    page.get_by_role("button", name="Faces").click()
    changes(page, "Truth", before)
    face = source(page, "Truth")
    assert pixels(face).shape == (64, 64, 3)
    gate.set()
    assert done.wait(30)
    page.wait_for_timeout(500)  # it would be seen by now
    assert source(page, "Truth") == face


def test_a_late_preview_does_not_wipe_a_race(visit, slow):
    page = visit()
    choose_solvers(page, "Adam")
    set_seconds(page, "ArrowLeft", 4, 1)
    _, gate, done = slow(view, "_preview")
    page.get_by_label("sample 3").click()
    page.wait_for_selector('[aria-label="sample 3"][aria-pressed="true"]')
    page.get_by_role("button", name="Start the race").click()
    state(page, "done")
    gate.set()
    assert done.wait(30)
    page.wait_for_timeout(700)  # it would be seen by now, and the page would have looked at the race again
    assert page.locator('[role="status"]').inner_text() == "done"
    assert page.locator('[data-tile="Adam"] img').is_visible() and page.locator("table.outcome").is_visible()
    page.get_by_label("sample 5").click()
    page.wait_for_selector('[data-tile="Adam"]', state="detached")  # the next change is shown as ever


def test_nobody_waits_while_weights_are_loaded(visit):
    page = visit()
    choose_damage(page, "Painted over")
    page.get_by_role("button", name="Upload", exact=True).click()
    page.set_default_timeout(15_000)
    with registry._loading:
        upload(page, "cat.png", b"this is not an image")
        notified(page, "cat.png cannot be read as an image")
        paint_everything(page)
        notified(page, "everything is painted over")


def test_the_server_refuses_what_the_browser_would_not_send(visit, address):
    page = visit()
    place = "/" + page.evaluate(
        "Object.values(mounted_app.elements).find(e => e.props.url?.includes('upload')).props.url"
    )
    connection = http.client.HTTPConnection(address.removeprefix("http://"), timeout=30)
    connection.putrequest("POST", place)
    connection.putheader("Content-Type", "multipart/form-data; boundary=x")
    connection.putheader("Content-Length", str(2**20))
    connection.endheaders()
    assert connection.getresponse().status == 413  # without waiting for the body
    connection.close()


def test_two_tabs_race_at_once_and_end_with_their_tabs(visit, shared, until, monkeypatch):
    monkeypatch.setattr(race, "Seconds", lambda seconds: Seconds(600))  # they run until they are stopped
    monkeypatch.setattr(race, "solve", partial(gp.solve, tolerance=0.0))
    monkeypatch.setattr(type(shared), "patience", property(lambda shared: 600.0))
    first, second = visit(), visit()
    for page in (first, second):
        choose_solvers(page, "Adam")
        set_seconds(page, "PageUp", 2, 20)
    start(first)
    choose_damage(second, "Blur")
    start(second)
    until(lambda: shared.queue.running == 2)
    for page in (first, second):
        page.wait_for_selector('[data-tile="Adam"] img:not(.hidden)')
    assert source(first, "Damaged") != source(second, "Damaged")
    third = visit()
    choose_solvers(third, "Adam")
    third.get_by_role("button", name="Start the race").click()
    state(third, "waiting: place 1 in the queue")
    first.reload()  # in the middle of its race: the page starts anew, the race ends
    state(third, "running")
    first.get_by_role("button", name="Start the race").wait_for()
    second.get_by_role("button", name="Stop", exact=True).click()
    state(second, "stopped")
    assert "interrupted" in second.locator("table.outcome").inner_text()
    third.close()
    until(lambda: shared.queue.running == 0)


@pytest.mark.parametrize("size, scheme", [((1366, 768), "light"), ((390, 844), "dark"), ((320, 640), "light")])
def test_nothing_overflows(visit, size, scheme):
    page = visit(size, scheme)
    choose_solvers(page, *registry.SOLVERS)
    page.locator("text=the solvers share 20 s").wait_for()
    assert page.evaluate("document.documentElement.scrollWidth") <= size[0]
    assert page.get_by_role("button", name="Start the race").is_visible()
    ground = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert (max(map(int, re.findall(r"\d+", ground)[:3])) < 60) == (scheme == "dark")
    page.get_by_role("button", name="Light or dark").click()
    page.wait_for_function("before => getComputedStyle(document.body).backgroundColor !== before", arg=ground)


def test_a_finger_draws_too(visit):
    page = visit((390, 844))
    before = source(page, "Truth")
    page.get_by_role("button", name="Draw", exact=True).tap()
    box = place_of(page, "sketchpad for a digit")
    page.touchscreen.tap(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
    changes(page, "Truth", before)
    dot = pixels(source(page, "Truth"))
    assert dot[14, 14] == 255 and dot[0].max() == 0
    assert images.data_url(registry.sample_images("mnist")[:1]) == before
