"""Fixtures that several test files share."""

from __future__ import annotations

import os
import signal
import traceback
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from rich.console import Console

from medusa_cli.models import demo

try:
    import _native_testing as testing
except ModuleNotFoundError:
    pytest.exit("the tests need a module of their own: install with CMAKE_ARGS=-DMEDUSA_TESTING=ON", returncode=4)

# With a GPU that is none (native/testing/pretended_device.h), before the first model is loaded.
if os.environ.get("MEDUSA_PRETEND_DEVICE") == "1":
    testing.pretend_device()

# Hundreds of small models that tests have written themselves need no trial (medusa_cli/decoding/trial.py).
os.environ.setdefault("MEDUSA_TRIAL", "off")

# A job in the background of a shell starts with Ctrl-C ignored, and so would all programs that tests interrupt.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
# The same of nohup and the end of its terminal.
if hasattr(signal, "SIGHUP") and signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
    signal.signal(signal.SIGHUP, signal.SIG_DFL)

# Judged by what they assert, not by how busy the machine is; each example writes to files of its own making.
COMMON = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture])
# The same examples on every machine. `pytest -m hypothesis --hypothesis-profile random` draws new ones, and prints how
# to repeat one that fails; --hypothesis-seed N draws the same new ones again.
settings.register_profile("medusa", COMMON, derandomize=True)
settings.register_profile("random", COMMON, print_blob=True)
settings.load_profile("medusa")


NO_TORCH = "No module named 'torch'"


@pytest.hookimpl(hookwrapper=True)
def pytest_make_collect_report(collector: pytest.Collector) -> Generator[None, Any, None]:
    """Files that import torch are skipped where it is not installed."""
    report = (yield).get_result()
    if report.failed and NO_TORCH in str(report.longrepr):
        report.outcome, report.longrepr, report.result = "skipped", (str(collector.path), 0, NO_TORCH), []


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Generator[None, Any, None]:
    """So are tests that import it; medusa itself has to say what is missing."""
    report = (yield).get_result()
    error = call.excinfo and call.excinfo.value
    if isinstance(error, ModuleNotFoundError) and error.name == "torch":
        *_, (innermost, _) = traceback.walk_tb(error.__traceback__)
        own = Path(__file__).parent, Path(__file__).parents[1] / "benchmarks"
        if any(Path(innermost.f_code.co_filename).is_relative_to(folder) for folder in own):
            report.outcome, report.longrepr = "skipped", (str(item.path), 0, NO_TORCH)


@pytest.fixture(scope="session")
def demo_model_path() -> Path:
    """The demo base model, fetched into the user's cache the first time (or named by MEDUSA_DEMO_MODEL)."""
    return demo.demo_base(Console(stderr=True))


@pytest.fixture(scope="session", autouse=True)
def _elsewhere(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Away from the checkout: child processes look in the current folder first, where the package is not compiled."""
    before = Path.cwd()
    os.chdir(tmp_path_factory.mktemp("current"))
    yield
    os.chdir(before)


@pytest.fixture(autouse=True)
def _no_profiles(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the person who runs the tests has tuned must not change them."""
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path_factory.mktemp("data")))
