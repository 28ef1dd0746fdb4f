"""Zip archives of documents, read and written in memory.

An archive whose members would be too large is refused before it is unpacked.
"""

from __future__ import annotations

import io
import lzma
import zipfile
import zlib

from server.text.documents.units import DocumentError

_DAMAGES = (zlib.error, lzma.LZMAError)
"""Errors of the libraries that unpack members."""
MAX_MEMBERS = 10_000
MAX_UNPACKED_BYTES = 512 << 20
"""Limit on the unpacked size of all members together."""
MAX_TEXT_BYTES = 64 << 20
"""Limit on the unpacked size of all members that are read.

They are held in memory as trees, which take several times as much.
"""


class Archive:
    """A zip archive that a document consists of. names: names of its members.

    Raises DocumentError for an archive that is damaged, encrypted or too large, or has two members of one name.
    """

    def __init__(self, data: bytes) -> None:
        try:
            self._source = zipfile.ZipFile(io.BytesIO(data))
            infos = self._source.infolist()
        except (zipfile.BadZipFile, zlib.error, ValueError, NotImplementedError, EOFError):
            raise DocumentError("the file is no zip archive, or damaged") from None
        if len(infos) > MAX_MEMBERS:
            raise DocumentError(f"the archive has {len(infos):,} members; the limit is {MAX_MEMBERS:,}")
        # A reader of a member stops at its stated size, so the stated sizes are bounds of the true ones.
        size = sum(info.file_size for info in infos)
        if size > MAX_UNPACKED_BYTES:
            raise DocumentError(
                f"the archive has {size / 2**20:,.0f} MiB unpacked; the limit is {MAX_UNPACKED_BYTES >> 20:,} MiB"
            )
        if any(info.flag_bits & 1 for info in infos):
            raise DocumentError("the document is encrypted")
        if len({info.filename for info in infos}) < len(infos):
            raise DocumentError("the archive has two members of one name")
        self._infos = {info.filename: info for info in infos}
        self._read_bytes = 0
        self.names = list(self._infos)

    def read(self, name: str) -> bytes:
        """Unpack a member.

        Raises DocumentError if there is no such member, if it is damaged, or if all members that were read have more
        than `MAX_TEXT_BYTES` together.
        """
        info = self._infos.get(name)
        if info is None:
            raise DocumentError("the archive lacks a part that this format needs")
        self._read_bytes += info.file_size
        if self._read_bytes > MAX_TEXT_BYTES:
            raise DocumentError(f"the parts with texts have more than {MAX_TEXT_BYTES >> 20} MiB")
        return self._content(info)

    def _content(self, info: zipfile.ZipInfo) -> bytes:
        try:
            return self._source.read(info)
        except (*_DAMAGES, zipfile.BadZipFile, NotImplementedError, EOFError, RuntimeError, OSError, ValueError):
            raise DocumentError("a part of the archive is damaged or packed in an unknown way") from None

    def written(self, changed: dict[str, bytes]) -> bytes:
        """Return the archive as bytes, with some members changed and the others copied.

        changed: new content by the member's name. The order and the dates of members stay. Members that were stored
        are stored; the others are compressed with Deflate. Raises DocumentError for a damaged member.
        """
        output = io.BytesIO()
        with zipfile.ZipFile(output, "w") as target:
            for name, info in self._infos.items():
                content = changed[name] if name in changed else self._content(info)
                kept = zipfile.ZipInfo(info.filename, info.date_time)
                kept.external_attr, kept.create_system = info.external_attr, info.create_system
                kept.compress_type = info.compress_type if info.compress_type == zipfile.ZIP_STORED else 8
                target.writestr(kept, content)
        return output.getvalue()
