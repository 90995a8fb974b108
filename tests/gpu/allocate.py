"""A program that takes a known amount of GPU memory, with the driver's own library alone.

`python allocate.py BYTES` prints the device's UUID when it holds the memory, and keeps it until standard input ends.
"""

from __future__ import annotations

import ctypes
import sys
import uuid


def check(code: int, what: str) -> None:
    """CUDA's driver API answers 0 when all went well."""
    if code:
        sys.exit(f"{what}: CUDA error {code}")


def main(size_bytes: int) -> None:
    """Take the memory on the first device and hold it. cuMemAlloc is a plain allocation, not a managed one."""
    cuda = ctypes.CDLL("libcuda.so.1")
    device, context, pointer = ctypes.c_int(), ctypes.c_void_p(), ctypes.c_uint64()
    identity = (ctypes.c_ubyte * 16)()
    check(cuda.cuInit(0), "cuInit")
    check(cuda.cuDeviceGet(ctypes.byref(device), 0), "cuDeviceGet")
    check(cuda.cuDeviceGetUuid(ctypes.byref(identity), device), "cuDeviceGetUuid")
    check(cuda.cuCtxCreate_v2(ctypes.byref(context), 0, device), "cuCtxCreate")
    check(cuda.cuMemAlloc_v2(ctypes.byref(pointer), ctypes.c_size_t(size_bytes)), "cuMemAlloc")
    check(cuda.cuMemsetD8_v2(pointer, ctypes.c_ubyte(1), ctypes.c_size_t(size_bytes)), "cuMemsetD8")
    check(cuda.cuCtxSynchronize(), "cuCtxSynchronize")
    print(f"GPU-{uuid.UUID(bytes=bytes(identity))}", flush=True)  # noqa: T201
    sys.stdin.read()


if __name__ == "__main__":
    main(int(sys.argv[1]))
