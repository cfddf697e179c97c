"""Cloud: object stores, HTTP, mounts of object stores, retries, and a local cache of bytes.

A URL becomes a storage of layers: a service (`objects`), retries, requests in parallel, and with
`cache_dir=` a cache. docs/storage.md has the rules that a storage keeps.

Read first, in this order:

- `services`: from a URL to layers; `settings`: options and credentials of each service.
- `objects.storage`: the storage protocol on objects; `objects.azure`, `objects.s3`, `objects.gs`,
  `objects.http`, `objects.hub`: the services.
- `retrying`: attempts and delays; `failures`: which errors are worth another attempt.
- `requests`: ranges into requests; `uploads`: whole files.
- `cache`: a cache of bytes that processes share.
- `remote`: filesystems of fsspec; `mounts`: blobfuse and similar.

Extend it: a scheme is a class beside `objects.s3` and a row in `objects`; the contract in
`tests/store/storage_contract.py` tests it.

May import: `store`. Tests: `make test-part PART=cloud`.
"""
