"""A real browser for the page: Chromium without a window, driven through Selenium."""

import contextlib
import shutil
import tempfile
from pathlib import Path

FLAGS = ("--headless --no-sandbox --disable-gpu --no-first-run --disable-background-networking "
         "--disable-component-update --disable-sync").split()  # fmt: skip


def missing():
    """-> what is not there that a browser needs, or None"""
    try:
        import selenium  # noqa: F401
    except ModuleNotFoundError:
        return 'selenium: pip install -e ".[page]"'
    for name in ("chromium", "chromedriver"):
        if not shutil.which(name):
            return f"{name}: apt-get install chromium chromium-driver"


@contextlib.contextmanager
def chromium(width=1280, height=900, dark=False):
    """-> a Selenium driver. It records the console, and every request, for `complaints`."""
    from selenium import webdriver

    options = webdriver.ChromeOptions()
    options.binary_location = shutil.which("chromium")
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        for flag in (*FLAGS, f"--user-data-dir={folder}", f"--window-size={width},{height}"):
            options.add_argument(flag)
        service = webdriver.ChromeService(executable_path=shutil.which("chromedriver"))
        driver = webdriver.Chrome(options, service)
        try:
            scheme = [dict(name="prefers-color-scheme", value="dark" if dark else "light")]
            driver.execute_cdp_cmd("Emulation.setEmulatedMedia", dict(features=scheme))
            driver.get("about:blank")  # away from the browser's own first page, which loads pictures
            yield driver
        finally:
            driver.quit()


def open_page(driver, path):
    """Open a file, and wait until the model has answered."""
    driver.get(Path(path).resolve().as_uri())
    wait(driver, "return performance.getEntriesByName('first picture').length")


def wait(driver, condition):
    """Until this JavaScript returns something true."""
    from selenium.webdriver.support.ui import WebDriverWait

    WebDriverWait(driver, 60, 0.02).until(lambda driver: driver.execute_script(condition))


def type_prompt(driver, text):
    box = driver.find_element("id", "prompt")
    box.clear()
    box.send_keys(text)


def choose(driver, name, nth=0):
    """Click the first token of a word, or of a name; nth of those that are in the text."""
    chips = driver.find_elements("css selector", "#chips li")
    buttons = [chip.find_elements("tag name", "button") for chip in chips]
    found = [b for b in buttons if "".join(token.text for token in b).replace("␣", " ").strip() == name]
    found[nth][0].click()


def exchange(driver, old, new):
    """As a person does it: click a token, type a name, press the button."""
    choose(driver, old)
    box = driver.find_element("id", "new")
    box.clear()
    box.send_keys(new)
    driver.find_element("css selector", "#exchange .main").click()
