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
        return 'selenium: pip install -e ".[test]"'
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
            yield driver
        finally:
            driver.quit()


def open_page(driver, path):
    """Open a file, and wait until the model has answered."""
    from selenium.webdriver.support.ui import WebDriverWait

    driver.get(Path(path).resolve().as_uri())
    shown = "return performance.getEntriesByName('first picture').length + document.getElementById('lede').textContent"
    WebDriverWait(driver, 60, 0.05).until(lambda d: not d.execute_script(shown).startswith("0Loading"))
