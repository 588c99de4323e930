"""The Hugging Face hub, where a policy is a repository with the files of a run."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

from rlzoo.core.system.errors import RunError, first_line

PREFIX = "hf:"
"""Start of the name of a policy on the hub, `hf:user/name`."""
_WRITTEN = ["checkpoints/*", "curve.png", "*.json", "*.jsonl", "*.jinja", "*.safetensors"]
"""Files that an upload may have, and that an earlier one may have left."""
_PATIENCE = 3.0
"""Seconds to wait for the hub's first answer."""


def is_name(run: object) -> bool:
    """Whether this names a policy on the hub, rather than a run directory."""
    return isinstance(run, str) and run.startswith(PREFIX)


def download(repo: str) -> Path:
    """A local copy of the repository `user/name`, from the cache if the hub cannot be reached.

    Raises:
        RunError: there is no such repository, or the hub cannot be reached and the cache has no copy.
    """
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import LocalEntryNotFoundError

    with _hub_errors():
        try:
            exists = _exists(repo)
        except Exception:
            with contextlib.suppress(LocalEntryNotFoundError):
                return Path(snapshot_download(repo, local_files_only=True))
            raise
        if exists:
            return Path(snapshot_download(repo, allow_patterns=["*.json", "*.jsonl", "checkpoints/*.safetensors"]))
    raise RunError(f"the Hugging Face hub has no policy {repo}; for a private one, log in with: hf auth login")


def upload(folder: Path, repo: str, private: bool) -> str:
    """Uploads a folder as a repository, in place of an earlier upload, and returns its address.

    Args:
        repo: `user/name`, which is made if it does not exist.
        private: make a new repository private.

    Raises:
        RunError: the hub cannot be reached, or refuses.
    """
    from huggingface_hub import HfApi

    with _hub_errors():
        _exists(repo)
        api = HfApi()
        address = api.create_repo(repo, private=private, exist_ok=True)
        api.upload_folder(repo_id=repo, folder_path=folder, delete_patterns=_WRITTEN, commit_message="Policy of rlzoo")
        return str(address)


def _exists(repo: str) -> bool:
    """Whether there is such a repository that the user may read. This call does not retry, and waits only briefly."""
    from huggingface_hub import HfApi
    from huggingface_hub.errors import RepositoryNotFoundError

    try:
        HfApi().model_info(repo, timeout=_PATIENCE)
        return True
    except RepositoryNotFoundError:
        return False


@contextlib.contextmanager
def _hub_errors() -> Iterator[None]:
    """Turns the library's errors, which have no common class, into a `RunError` of one line."""
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError

    try:
        yield
    except HFValidationError as error:
        raise RunError(f"not a name on the Hugging Face hub, such as user/name: {first_line(error)}") from error
    except HfHubHTTPError as error:
        denied = error.response is not None and error.response.status_code in (401, 403)
        remedy = "; log in with: hf auth login" if denied else ""
        raise RunError(f"the Hugging Face hub refuses: {first_line(error)}{remedy}") from error
    except Exception as error:
        raise RunError(f"the Hugging Face hub cannot be reached: {first_line(error)}") from error
