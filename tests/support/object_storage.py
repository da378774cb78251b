"""An object store on this machine that speaks S3, and the environment that programs find it by."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta

import boto3
from moto.server import ThreadedMotoServer


class ObjectStorage:
    """A running server. Each bucket that is asked for is new and empty."""

    def __init__(self, url: str) -> None:
        self.environment = {
            "AWS_ENDPOINT_URL": url,
            "AWS_ALLOW_HTTP": "true",
            "AWS_ACCESS_KEY_ID": "test",
            "AWS_SECRET_ACCESS_KEY": "test",
            "AWS_REGION": "us-east-1",
        }
        self.client = boto3.client(
            "s3", endpoint_url=url, aws_access_key_id="test", aws_secret_access_key="test", region_name="us-east-1"
        )
        self._count = 0

    def make_bucket(self, *, locks: bool = False) -> str:
        """The URL of a new bucket; with `locks` its objects have versions, and can be locked."""
        self._count += 1
        name = f"bucket-{self._count}"
        self.client.create_bucket(Bucket=name, ObjectLockEnabledForBucket=locks)
        return f"s3://{name}/sessions"

    def lock(self, url: str) -> None:
        """Keep all objects from being deleted for years."""
        until = {"Mode": "COMPLIANCE", "RetainUntilDate": datetime.now(UTC) + timedelta(days=1000)}
        for name in self.list_objects(url):
            self.client.put_object_retention(Bucket=url.split("/")[2], Key=name, Retention=until)

    def list_versions(self, url: str) -> list[str]:
        """The objects that are there, by their names, also those that are hidden by a deletion; not what says so."""
        found = self.client.list_object_versions(Bucket=url.split("/")[2])
        return [one["Key"] for one in found.get("Versions", []) if not one["Key"].endswith("README.txt")]

    def get(self, url: str, name: str) -> bytes:
        content: bytes = self.client.get_object(Bucket=url.split("/")[2], Key=name)["Body"].read()
        return content

    def list_objects(self, url: str) -> list[str]:
        bucket = url.split("/")[2]
        return sorted(one["Key"] for one in self.client.list_objects_v2(Bucket=bucket).get("Contents", []))

    def put(self, url: str, name: str, content: bytes) -> None:
        self.client.put_object(Bucket=url.split("/")[2], Key=name, Body=content)

    def remove(self, url: str, name: str) -> None:
        self.client.delete_object(Bucket=url.split("/")[2], Key=name)


@contextmanager
def open_object_storage() -> Iterator[ObjectStorage]:
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    try:
        host, port = server.get_host_and_port()
        yield ObjectStorage(f"http://{host}:{port}")
    finally:
        server.stop()
