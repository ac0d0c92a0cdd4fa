"""A store on Amazon S3 or a compatible service, Google Cloud Storage or Azure. The library `obstore` sends the
requests.

Every write is a conditional request of the object store (`If-None-Match`, `If-Match`). The write succeeds only if no
object has this name, or only if the object has the expected tag. After an answer 5xx or no answer, the library repeats
the request, with growing pauses.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from datetime import timedelta
from functools import partial
from typing import Any, TypeVar

from spark_export.exporter.errors import ExtraMissing
from spark_export.store.data import CONNECT_S, one_line
from spark_export.store.errors import ObjectChanged, ObjectExists, ObjectMissing, StoreError
from spark_export.store.options import SECRETS, azure_names, is_set
from spark_export.store.place import StoreLocation
from spark_export.store.store import PutUnclear, Store, StoredObject, TaggedObject

try:
    import obstore
    from obstore import exceptions
    from obstore.store import AzureStore, GCSStore, S3Store
except ModuleNotFoundError as error:
    raise ExtraMissing(
        f"a table on an object store needs the extra `store` ({error.name}): pip install 'stream-node[store]'"
    ) from error

T = TypeVar("T")
RETRY_S = 120
"""The longest time for which one request is repeated, in seconds. The option `tries` also limits the repetitions."""
LIST_PAGE = 1000
NO_BUCKET = ("NoSuchBucket", "ContainerNotFound", "The specified bucket does not exist")
"""Texts in the answer of a store. Each means that the bucket or container does not exist."""
OVERLOADED = re.compile(r"status code: (429|5\d\d)|SlowDown|Server returned error response: 5")


class ObjectStore(Store):
    """A store under a prefix of a bucket or container. A tag is JSON with the ETag and, if any, the version."""

    def __init__(self, place: StoreLocation, options: dict[str, str]) -> None:
        super().__init__(place, options)
        self._store = _open(place, options)

    def read_tagged(self, name: str) -> TaggedObject:
        def read() -> TaggedObject:
            found = obstore.get(self._store, name)
            return TaggedObject(bytes(found.bytes()), _tag(found.meta))

        return self._map_errors(name, "cannot be read", read)

    def list_objects(self, prefix: str = "", *, after: str = "") -> Iterator[StoredObject]:
        pages = obstore.list(self._store, prefix or None, offset=after or None, chunk_size=LIST_PAGE)
        while page := self._map_errors(prefix, "cannot be listed", lambda: next(iter(pages), None)):
            for each in page:
                # Azure also lists the object `after` itself.
                if each["path"] <= after:
                    continue
                yield StoredObject(each["path"], each["size"], int(each["last_modified"].timestamp() * 1e6))

    def delete(self, names: Iterable[str]) -> None:
        wanted = list(names)

        def delete() -> None:
            for start in range(0, len(wanted), LIST_PAGE):
                obstore.delete(self._store, wanted[start : start + LIST_PAGE])

        if wanted:
            try:
                self._map_errors(wanted[0], "cannot be removed", delete)
            except ObjectMissing:
                # Google and Azure report an object that is already removed. The other objects may still exist.
                self._delete_each(wanted)

    def _delete_each(self, names: Iterable[str]) -> None:
        for name in names:
            with suppress(ObjectMissing):
                self._map_errors(name, "cannot be removed", partial(obstore.delete, self._store, name))

    def _put_new(self, name: str, data: bytes) -> str:
        return self._put(name, data, "create")

    def _put_over(self, name: str, data: bytes, tag: str) -> str:
        return self._put(name, data, json.loads(tag))

    def _put(self, name: str, data: bytes, mode: Any) -> str:
        # One request, not a multipart upload, so that the condition applies to the whole object.
        return self._map_errors(
            name,
            "cannot be written",
            lambda: _tag(obstore.put(self._store, name, data, mode=mode, use_multipart=False)),
            is_put=True,
        )

    def _map_errors(self, name: str, what: str, work: Callable[[], T], *, is_put: bool = False) -> T:
        """Calls `work`, and turns the library's errors into StoreErrors. With `is_put`, a lost answer raises
        PutUnclear."""
        subject = str(self.place / name) if name else str(self.place)
        try:
            return work()
        except exceptions.AlreadyExistsError as error:
            raise ObjectExists(f"{subject} is there already") from error
        except exceptions.PreconditionError as error:
            raise ObjectChanged(f"{subject} was replaced") from error
        except FileNotFoundError as error:
            if is_put:
                raise self._no_bucket(subject, what) from error
            self._check_bucket(error, subject, what)
            raise ObjectMissing(f"{subject} is not there") from error
        except (exceptions.PermissionDeniedError, exceptions.UnauthenticatedError, PermissionError) as error:
            raise StoreError(
                f"{subject} {what}: the store denies it ({_reason(error)}); check {SECRETS[self.place.scheme]}, and "
                "what they allow"
            ) from error
        except (exceptions.GenericError, OSError, ValueError) as error:
            self._check_bucket(error, subject, what)
            unclear = PutUnclear if is_put else StoreError
            raise unclear(f"{subject} {what}: {_hint(error)}") from error

    def _check_bucket(self, error: BaseException, subject: str, what: str) -> None:
        if any(code in str(error) for code in NO_BUCKET):
            raise self._no_bucket(subject, what) from error

    def _no_bucket(self, subject: str, what: str) -> StoreError:
        return StoreError(f"{subject} {what}: the bucket {self.place.authority} does not exist")


def _open(place: StoreLocation, options: dict[str, str]) -> Any:
    endpoint = options.get("endpoint")
    shared: dict[str, Any] = {
        "prefix": place.path or None,
        "client_options": {
            "timeout": timedelta(seconds=int(options["timeout_s"])),
            "connect_timeout": timedelta(seconds=CONNECT_S),
            "allow_http": bool(endpoint and endpoint.startswith("http://")),
        },
        "retry_config": {
            "max_retries": int(options["tries"]) - 1,
            "retry_timeout": timedelta(seconds=RETRY_S),
            "backoff": {
                "init_backoff": timedelta(milliseconds=100),
                "max_backoff": timedelta(seconds=10),
                "base": 2,
            },
        },
    }
    config: Any
    if place.scheme == "s3":
        names = {"endpoint": "endpoint", "region": "region"}
        config = {key: options[name] for name, key in names.items() if name in options}
        config |= {"skip_signature": is_set(options, "anonymous")}
        config |= {"virtual_hosted_style_request": is_set(options, "virtual_hosted")}
        return S3Store(place.authority, config=config, **shared)
    if place.scheme == "gs":
        config = {"skip_signature": is_set(options, "anonymous")} | ({"base_url": endpoint} if endpoint else {})
        return GCSStore(place.authority, config=config, **shared)
    account, container = azure_names(place, options)
    config = {"account_name": account} | ({"endpoint": f"{endpoint}/{account}"} if endpoint else {})
    return AzureStore(container, config=config, **shared)


def _tag(found: Any) -> str:
    return json.dumps({name: found[name] for name in ("e_tag", "version") if found[name] is not None})


def _reason(error: BaseException) -> str:
    """Returns the answer of the store without the address of the request, which can contain a signature."""
    text = one_line(error)
    _, code, rest = text.partition("<Code>")
    return rest.partition("<")[0] if code else text.partition(": ")[0]


def _hint(error: BaseException) -> str:
    text = " ".join(str(error).split())
    # The address of a cloud machine that gives credentials to its programs.
    if "169.254.169.254" in text or "metadata.google.internal" in text:
        return "there are no credentials in the environment, and this machine has no role"
    if OVERLOADED.search(text):
        return "the store is overloaded (it answered 5xx to every try); try again later, or raise --store-option tries"
    if "timed out" in text or "error sending request" in text or "operation timed" in text:
        return "the store does not answer; check the endpoint, and try again"
    return one_line(ValueError(text.partition("Debug source")[0]))
