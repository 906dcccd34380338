"""The page of a trained run in numbers, and its picture:

    python tests/page_in_numbers.py runs/atlas lessons/figures/page.png

How large it is and how fast, what rounding costs, and whether exchanges on it say what `sample.py --edit`
would say with the same rounded numbers. Needs Chromium and Selenium, as tests/test_page.py does.
"""

import argparse
import random
import tempfile
from pathlib import Path

import browser
import numpy as np

from ministem import atlas
from ministem.knowledge import measure, naming, page
from ministem.run.checkpoint import load_checkpoint
from ministem.run.cli import as_command, fail, user_errors

# type ten times at the end of the text, or ten times in front of it, where nothing can be taken from before
KEY_STROKES = """
const [text, fresh] = arguments, box = document.getElementById("prompt"), times = [];
for (let i = 0; i < 10; i++) {
  box.value = fresh ? (i % 2 ? "A" : "The") + text.slice(3) : text + ".,"[i % 2];
  if (fresh) sides = [];
  const start = performance.now();
  update();
  times.push(performance.now() - start);
  document.body.offsetHeight;  // what has to be laid out for it is
}
return [ids.length, times.sort((a, b) => a - b)[5]];
"""
INSIDE = "const start = performance.now(); show_inside(); return performance.now() - start;"
ANSWER = """
return sides.map((side) => {
  const written = [];
  while (written.length < 24 && !tokenizer.bytes(written).includes(".")) {
    written.push(next_token({ ...side, written }, 0));
  }
  return tokenizer.decode(written);
});
"""


def probabilities(run, sentences):
    """-> (N,V): the odds of what comes after each prompt"""
    found = [None] * len(sentences)
    for group, logits in measure.batches(run, [ids for ids, _ in sentences]):
        for row, j in zip(logits, group, strict=True):
            e = np.exp(row[sentences[j][1] - 1].astype("float64"))
            found[j] = e / e.sum()
    return np.array(found)


def rounding(run, rounded, questions):
    sentences = [measure.sentence(run.tokenizer, q.prompt, q.answer) for q in questions]
    change = abs(probabilities(run, sentences) - probabilities(rounded, sentences)).max()
    full, page = (np.mean(measure.recall(r, questions)[1]) for r in (run, rounded))
    print(f"recall on {len(questions)} questions {full:.2%}, on the page {page:.2%}")
    print(f"no odds after a question differ by more than {change:.2%}")


def speed(driver, names):
    """Wall time depends on what else the machine does; CPU time of the page's thread hardly."""
    driver.execute_cdp_cmd("Performance.enable", dict(timeDomain="threadTicks"))

    def cpu_ms():
        metrics = driver.execute_cdp_cmd("Performance.getMetrics", {})["metrics"]
        return next(metric["value"] for metric in metrics if metric["name"] == "TaskDuration") * 1000

    text = "The capital of Spain is Madrid.\n" + "".join(f"The capital of {name} is\n" for name in names)
    for n in (16, 64):
        length = driver.execute_script("""
            const [text, n] = arguments;
            let end = text.length;
            while (tokenizer.encode(text.slice(0, end)).length > n - 1) end--;
            exchanges = [{ old: "Spain", nth: 0, now: "Germany", layers: stem_layers, how: "auto" }];
            return end;""", text, n)  # fmt: skip
        for fresh, what in ((False, "at the end of"), (True, "in front of")):
            driver.execute_script(KEY_STROKES, text[:length], fresh)  # until the browser has compiled all
            before = cpu_ms()
            tokens, wall = driver.execute_script(KEY_STROKES, text[:length], fresh)
            used = (cpu_ms() - before) / 10
            print(f"a key {what} {tokens} tokens: {used:.0f} ms of CPU; odds after {wall:.0f} ms")
        print(f"   looking inside, after it: {driver.execute_script(INSIDE):.0f} ms wall")


def pairs(driver, rounded, questions, n=100):
    """Click on a country, type another one: is the answer that of an override, to the full stop?"""
    rng, right = random.Random(0), 0
    names = [country.name for country in atlas.load()]
    for _ in range(n):
        q = rng.choice(questions)
        new = rng.choice([name for name in names if name != q.country])
        changes = naming.plan(rounded.tokenizer, q.prompt, [(q.country, new)])
        prompts = [rounded.tokenizer.encode(q.prompt)] * 2
        expected = measure.go_on(rounded, prompts, [[], changes], max_new_tokens=24)
        browser.type_prompt(driver, q.prompt)
        browser.exchange(driver, q.country, new)
        found = driver.execute_script(ANSWER)
        right += found == expected
        if found != expected:
            print(f"   {q.prompt} | {new}: {found}, expected {expected}")
    print(f"{right} of {n} random exchanges say on the page what they say here")


def picture(path, html):
    with browser.chromium() as driver:
        size = dict(width=1280, height=1130, deviceScaleFactor=1, mobile=False)
        driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
        driver.execute_cdp_cmd("Emulation.setScrollbarsHidden", dict(hidden=True))
        browser.open_page(driver, html)
        driver.find_element("css selector", "#examples button").click()
        driver.execute_script("document.activeElement.blur()")
        browser.wait(driver, "return document.querySelector('#rows canvas') && sides[1].written.length > 1")
        driver.save_screenshot(str(path))
    print(f"{path}: {Path(path).stat().st_size:,} bytes")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("run", help="a run on the atlas")
    parser.add_argument("picture", help="the PNG file to write")
    args = parser.parse_args()
    if browser.missing():
        fail(f"needs {browser.missing()}")
    with user_errors(), tempfile.TemporaryDirectory() as folder:
        run = load_checkpoint(args.run)
        html = Path(folder, "page.html")
        html.write_text(page.make(run, lessons="lessons"), "utf-8")
        print(f"the file: {html.stat().st_size / 1e6:.2f} MB")
        rounded, questions = page.as_on_page(run), atlas.corpus(run.settings["seed"])[1]
        rounding(run, rounded, questions)
        with browser.chromium() as driver:
            first = "return performance.getEntriesByName('first picture')[0].startTime"
            shown = []
            for _ in range(5):
                browser.open_page(driver, html)
                shown.append(driver.execute_script(first))
            print(f"first picture after {min(shown):.0f} to {max(shown):.0f} ms")
            speed(driver, [country.name for country in atlas.load()[:20]])
            pairs(driver, rounded, questions)
        picture(args.picture, html)


if __name__ == "__main__":
    as_command(main)
