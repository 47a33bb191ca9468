#!/usr/bin/env python3
"""unpack-kernel.py bzImage kernel: QEMU's emulation starts an unpacked kernel many times faster. The setup header
(Documentation/arch/x86/boot.rst) says where the payload lies."""
import gzip
import lzma
import struct
import subprocess
import sys

with open(sys.argv[1], "rb") as file:
    image = file.read()
offset, length = struct.unpack("<II", image[0x248:0x250])
start = ((image[0x1F1] or 4) + 1) * 512 + offset
payload = image[start : start + length]
if payload[:6] == b"\xfd7zXZ\0":
    kernel = lzma.LZMADecompressor().decompress(payload)
elif payload[:4] == b"\x28\xb5\x2f\xfd":
    kernel = subprocess.run(["zstd", "-dcq"], input=payload[:-4], stdout=subprocess.PIPE, check=False).stdout
elif payload[:2] == b"\x1f\x8b":
    kernel = gzip.decompress(payload[:-4])
else:
    sys.exit(f"unknown compression {payload[:8].hex()}")
if kernel[:4] != b"\x7fELF":
    sys.exit("no kernel inside")
with open(sys.argv[2], "wb") as file:
    file.write(kernel)
