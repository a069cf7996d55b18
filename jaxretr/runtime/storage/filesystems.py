"""The file systems gcsfs and s3fs, with one rule for retries, and errors that say in one line what to do.

Both libraries retry by themselves, each by rules of its own and silently; here they are told not to, so that nothing is
tried five times five times. (The arrays of checkpoints do not come this way, but through tensorstore: orbax_buckets.)
"""

import functools
import re
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from jaxretr.runtime.errors import UserError, import_extra
from jaxretr.runtime.storage import retries

T = TypeVar("T")


@functools.cache
def register(scheme: str) -> None:
    """Make fsspec, and with it epath and Orbax, use these file systems for gs:// and s3://."""
    import fsspec

    for name in ("gs", "gcs") if scheme == "gs" else ("s3", "s3a"):
        fsspec.register_implementation(name, _gcs() if scheme == "gs" else _s3(), clobber=True)


def _s3() -> type:
    from fsspec import asyn

    s3fs, exceptions = import_extra("s3fs.core", "s3"), import_extra("botocore.exceptions", "s3")

    def transient(error: BaseException) -> bool:
        # s3fs puts the server's answer behind an error of Python's own kinds.
        answer = getattr(error.__cause__ or error, "response", None)
        if answer is not None:
            status = answer.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
            code = answer.get("Error", {}).get("Code")
            return retries.is_transient_status(status) or code in ("SlowDown", "RequestTimeout", "InternalError")
        broken = (*s3fs.S3_RETRYABLE_ERRORS, exceptions.ConnectionError)
        return isinstance(error, broken) or retries.is_transient(error)

    def explained(error: Exception, where: str, bucket: str) -> Exception:
        answer = getattr(error.__cause__ or error, "response", None) or {}
        code = answer.get("Error", {}).get("Code")
        if code == "NoSuchBucket":
            return _no_bucket(f"s3://{bucket}")
        if isinstance(error, (exceptions.NoCredentialsError, exceptions.PartialCredentialsError)):
            remedy = "run `aws configure`, or set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"
            return UserError(f"{where}: no credentials for S3 were found; {remedy}")
        if isinstance(error, PermissionError):
            return _forbidden(where, error)
        return error

    class S3(s3fs.S3FileSystem):
        # The number of s3fs' own attempts.
        retries = 1

        def __init__(self, *args: Any, **options: Any):
            # Listings that are kept would not show what other processes write.
            options.setdefault("use_listings_cache", False)
            options.setdefault("config_kwargs", {"retries": {"total_max_attempts": 1, "mode": "standard"}})
            super().__init__(*args, **options)

        async def _call_s3(self, method: str, *args: Any, **kwargs: Any) -> Any:
            bucket = kwargs.get("Bucket", "")
            where = f"s3://{bucket}/{kwargs.get('Key', kwargs.get('Prefix', ''))}"
            call = functools.partial(super()._call_s3, method, *args, **kwargs)
            return await _asked(where, call, transient, lambda error: explained(error, where, bucket))

        call_s3 = asyn.sync_wrapper(_call_s3)

        # The answer of these two breaks off after the request was answered well.

        async def _cat_file(self, path: str, *args: Any, **kwargs: Any) -> Any:
            return await _asked(f"s3://{path}", functools.partial(super()._cat_file, path, *args, **kwargs), transient)

        async def _get_file(self, rpath: str, *args: Any, **kwargs: Any) -> Any:
            call = functools.partial(super()._get_file, rpath, *args, **kwargs)
            return await _asked(f"s3://{rpath}", call, transient)

        # There are no folders; s3fs would make a bucket that does not exist instead of saying so.

        async def _mkdir(self, path: str, *args: Any, **kwargs: Any) -> None:
            if not self.split_path(path)[1]:
                await super()._mkdir(path, *args, **kwargs)

        async def _makedirs(self, path: str, exist_ok: bool = False) -> None:
            await self._mkdir(path)

        mkdir, makedirs = asyn.sync_wrapper(_mkdir), asyn.sync_wrapper(_makedirs)

    return S3


def _gcs() -> type:
    from fsspec import asyn

    gcsfs, gcsfs_retry = import_extra("gcsfs.core", "gcs"), import_extra("gcsfs.retry", "gcs")
    # gcsfs' request without its own attempts.
    plain = gcsfs.GCSFileSystem._request.__wrapped__

    def explained(error: Exception, where: str, path: str) -> Exception:
        status = getattr(error, "code", None)
        # A list of objects and a new one can only miss their bucket.
        if isinstance(error, FileNotFoundError) and path.split("?")[0].endswith("/o"):
            return _no_bucket(where)
        if (isinstance(error, gcsfs_retry.HttpError) and status in (401, 403)) or str(error).startswith("Forbidden"):
            if status == 401:
                remedy = "run `gcloud auth application-default login`, or set GOOGLE_APPLICATION_CREDENTIALS"
                return UserError(f"{where}: no credentials for Google Cloud Storage were found; {remedy}")
            return _forbidden(where, error)
        return error

    # The class of this name in `gcsfs` itself asks for each bucket's kind first, with rights that few have.
    class Gcs(gcsfs.GCSFileSystem):
        def __init__(self, *args: Any, **options: Any):
            options.setdefault("use_listings_cache", False)
            super().__init__(*args, **options)

        async def _request(self, method: str, path: str, *args: Any, **kwargs: Any) -> Any:
            named = re.search(r"/b/([^/?]+)/o", path)
            where = f"gs://{'/'.join(map(str, args)) or (named[1] if named else '')}"
            call = functools.partial(plain, self, method, path, *args, **kwargs)
            return await _asked(where, call, gcsfs_retry.is_retriable, lambda error: explained(error, where, path))

        async def _mkdir(self, path: str, *args: Any, **kwargs: Any) -> None:
            if not self.split_path(path)[1]:
                await super()._mkdir(path, *args, **kwargs)

        mkdir = asyn.sync_wrapper(_mkdir)

    return Gcs


async def _asked(
    where: str,
    call: Callable[[], Awaitable[T]],
    transient: Callable[[BaseException], bool],
    explained: Callable[[Exception], Exception] = lambda error: error,
) -> T:
    try:
        return await retries.retried_async(where, call, transient)
    except Exception as error:
        if transient(error):
            reason = " ".join(str(error).split())[:200] or type(error).__name__
            raise UserError(
                f"{where}: still fails after {retries.storage_seconds():.0f} seconds of attempts ({reason}); run the same "
                "command again when the store can be reached, or set JAXRETR_STORAGE_SECONDS"
            ) from error
        better = explained(error)
        if better is error:
            raise
        raise better from error


def _no_bucket(bucket: str) -> UserError:
    return UserError(f"{bucket}: there is no such bucket; make it, or check its name")


def _forbidden(where: str, error: Exception) -> UserError:
    reason = " ".join(str(error).split())[:200]
    return UserError(f"{where}: access was refused ({reason}); use credentials that may read and write there")
