"""Tests of the Python helper, `clients/python`, with real deployments.

    main.py LOCKGATE [NAME ...]

LOCKGATE is the proxy's binary. Runs all tests side by side, or those whose names contain one of the words, and ends
with "N tests ok", or with status 1.
"""

import concurrent.futures
import sys
import time
import traceback

import faults
import tasks
import threads
from deployment import Deployment
from lockgate import NotAcquired


def run(test, deployment):
    begun = time.monotonic()
    for left in (2, 1, 0):
        trouble = ""
        try:
            test(deployment)
        except BaseException as error:
            trouble = traceback.format_exc()
            # On a busy machine lock nodes may answer too late, which says nothing of the helper.
            if left and getattr(error, "reason", None) == NotAcquired.NO_QUORUM:
                print(f"again          {test.__module__}.{test.__name__}: {error}", flush=True)
                continue
        break
    print(f"{'FAILED' if trouble else 'ok':6} {time.monotonic() - begun:5.1f} s  {test.__module__}.{test.__name__}")
    print(trouble, end="", flush=True)
    return not trouble


def main():
    binary, *words = sys.argv[1:]
    found = [
        function
        for module in (faults, threads, tasks)
        for name, function in vars(module).items()
        if name.startswith("test_") and (not words or any(word in name for word in words))
    ]
    deployment = Deployment(binary)
    try:
        for name in ("data", "a", "b", "c"):
            deployment.redis(name)
        deployment.calm = deployment.proxy("calm", max_wait="1s")
        with concurrent.futures.ThreadPoolExecutor(len(found)) as pool:
            results = list(pool.map(lambda test: run(test, deployment), found))
    finally:
        deployment.stop()
    if not all(results):
        sys.exit(f"{results.count(False)} of {len(results)} tests failed")
    print(f"{len(results)} tests ok")


if __name__ == "__main__":
    main()
