"""Keys for hosts and targets, in the formats of the specifications, with Python's own cryptography.

Independent of the project's code and of libnvme: a third implementation of the same specifications.
"""

import base64
import hashlib
import hmac
import secrets
import struct
import zlib


def _text(prefix, hash_id, key):
    body = base64.b64encode(key + struct.pack("<I", zlib.crc32(key))).decode()
    return f"{prefix}:{hash_id:02}:{body}:"


def tls_key(hash_id):
    """Returns a new key for TLS (NVMe/TCP 1.0 section 3.6.1.5). hash_id: 0 for a retained key, 1 SHA-256, 2 SHA-384."""
    return _text("NVMeTLSkey-1", hash_id, secrets.token_bytes({0: 32, 1: 32, 2: 48}[hash_id]))


def dhchap_secret(hash_id, length):
    """Returns a new secret for DH-HMAC-CHAP (NVMe Base 2.0 section 8.13.5.8). hash_id: 0 for no transformation."""
    return _text("DHHC-1", hash_id, secrets.token_bytes(length))


def _expand_label(name, key, label, context):
    """HKDF-Extract without salt, then HKDF-Expand-Label (RFC 5869, RFC 8446 section 7.1)."""
    length = hashlib.new(name).digest_size
    extracted = hmac.digest(bytes(length), key, name)
    label = b"tls13 " + label
    info = struct.pack(">HB", length, len(label)) + label + bytes([len(context)]) + context
    return hmac.digest(extracted, info + b"\x01", name)


def tls_identity(text, host, subsystem):
    """Returns the identity and the key of a TLS handshake, derived from a key (NVMe/TCP 1.0c, TP8018)."""
    hash_id = text.split(":")[1]
    name = {"01": "sha256", "02": "sha384"}[hash_id]
    key = base64.b64decode(text.split(":")[2])[:-4]
    retained = _expand_label(name, key, b"HostNQN", host.encode())
    digest = hmac.digest(retained, f"{host} {subsystem} NVMe-over-Fabrics".encode(), name)
    digest = base64.b64encode(digest).decode()
    psk = _expand_label(name, retained, b"nvme-tls-psk", f"{hash_id} {digest}".encode())
    return f"NVMe1R{hash_id} {host} {subsystem} {digest}", psk
