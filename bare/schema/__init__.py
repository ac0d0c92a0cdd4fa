"""The schema language of BARE: this package reads, checks and formats schemas, and makes codecs from them."""

from bare.schema.ast import Document
from bare.schema.dialect import Dialect, parse
from bare.schema.formatter import format_document as format
from bare.schema.loader import Schema, blocks, load, load_blocks
from bare.schema.loader import SchemaBlock as Block

__all__ = ["Block", "Dialect", "Document", "Schema", "blocks", "format", "load", "load_blocks", "parse"]
