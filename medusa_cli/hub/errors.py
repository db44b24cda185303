"""Errors of huggingface_hub as one line each: what, which repository, what to do."""

from __future__ import annotations

import contextlib
import errno
import re
from collections.abc import Iterator, Sequence
from typing import Any

from medusa_cli.hub.transfer import failed_write
from medusa_cli.support.errors import MedusaError

CACHE, VARIABLE = "the download cache", "HF_HOME"
"""What messages call the folder for downloads, and the variable that moves it."""
NETWORK_MODULES = {"httpx", "httpx2", "httpcore", "httpcore2", "requests", "urllib3"}
TOO_MANY_REQUESTS = 429


class Unreachable(MedusaError):
    """The Hub cannot be asked; the message says why, without the repository's name."""


class LinkLost(Unreachable):
    """The connection broke, or the Hub is busy: another attempt may work."""


class UnknownRepository(MedusaError):
    """No repository of that name, or none that this person may see. near: names that were perhaps meant."""

    def __init__(self, what: str, otherwise: str = "", near: Sequence[str] = ()) -> None:
        hint = f" (did you mean {' or '.join(near)}?)" if near else ""
        super().__init__(f"{what}: check the name{hint}{otherwise}")
        self.what, self.otherwise = what, otherwise


@contextlib.contextmanager
def explained(repo: str, revision: str | None = None) -> Iterator[None]:
    """Turns huggingface_hub's errors into a MedusaError, or Unreachable if a copy may do. Bugs stay as they are."""
    try:
        yield
    except MedusaError:
        raise
    except Exception as error:
        raise _explain(error, repo, revision) from error


def _explain(error: Exception, repo: str, revision: str | None) -> Exception:
    from huggingface_hub import errors

    label = f"{repo}@{revision}" if revision else repo
    chain = list(_chain(error))
    status = next((found for found in map(_status, chain) if found is not None), None)
    if isinstance(error, errors.GatedRepoError) or status == 403:
        return MedusaError(f"{label}: access must be granted first: request it on its page, then set HF_TOKEN")
    if isinstance(error, errors.RevisionNotFoundError):
        return MedusaError(f"{repo}: has no revision {revision!r}")
    if isinstance(error, errors.EntryNotFoundError) and not isinstance(error, errors.LocalEntryNotFoundError):
        return MedusaError(f"{label}: a file has disappeared from the repository in the meantime: run again")
    if status == 401:
        return UnknownRepository(f"{label}: not on the Hub, or private", ", or set HF_TOKEN")
    if isinstance(error, errors.RepositoryNotFoundError) or status == 404:
        return UnknownRepository(f"{label}: neither a local path nor a repository on the Hub")
    if isinstance(error, errors.HFValidationError):
        return MedusaError(f"{label}: not a valid repository name: check it, or give a local path")
    if isinstance(error, errors.OfflineModeIsEnabled):
        return Unreachable("HF_HUB_OFFLINE is set")
    full = next((found for found in chain if isinstance(found, OSError) and found.errno == errno.ENOSPC), None)
    if full is not None:
        return failed_write(full, label, CACHE, VARIABLE)
    if status is not None:
        return _of_status(status, chain)
    if any(type(found).__module__.partition(".")[0] in NETWORK_MODULES for found in chain):
        return LinkLost("the Hub cannot be reached")
    if isinstance(error, OSError):
        reason = error.strerror or next(iter(str(error).splitlines()), type(error).__name__)
        return MedusaError(f"{label}: download failed ({reason}): run again, what is complete is kept")
    return error


def _of_status(status: int, chain: list[BaseException]) -> Unreachable:
    if status >= 500:
        return LinkLost(f"the Hub answers with error {status}")
    if status != TOO_MANY_REQUESTS:
        return Unreachable(f"the Hub answers with error {status}")
    headers = next(error for error in chain if _status(error)).response.headers  # type: ignore[attr-defined]
    wait = str(headers.get("Retry-After", ""))
    when = f"in {wait} seconds" if re.fullmatch(r"\d{1,6}", wait) else "later"
    return LinkLost(f"the Hub reports too many requests: try again {when}, or set HF_TOKEN")


def _chain(error: BaseException) -> Iterator[BaseException]:
    """The error and what it came from."""
    current: BaseException | None = error
    while current is not None:
        yield current
        current = current.__cause__ or current.__context__


def _status(error: BaseException) -> int | None:
    status: Any = getattr(getattr(error, "response", None), "status_code", None)
    return status if isinstance(status, int) else None
