"""Writes a GGUF file with its 4-bit matrices in another kind, for benchmarks of that kind.

    python benchmarks/requantise.py smollm2 smollm2-q4_0.gguf [--kind Q4_0]

Only matrices of Q4_1 or Q4_0 are changed: an embedding in 8 bits and all vectors stay as they are.
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from gguf import GGMLQuantizationType, GGUFReader, GGUFValueType, GGUFWriter, Keys
from gguf.quants import dequantize, quantize

from sapwood.backends.torch.resolve_model import BUILT_IN, built_in_file

FROM = (GGMLQuantizationType.Q4_0, GGMLQuantizationType.Q4_1)


def copy_fields(reader: Any, writer: Any) -> None:
    """All metadata but that which the writer makes itself."""
    for field in reader.fields.values():
        if field.name == Keys.General.ARCHITECTURE or field.name.startswith("GGUF."):
            continue
        kind = field.types[0]
        inner = field.types[-1] if kind == GGUFValueType.ARRAY else None
        writer.add_key_value(field.name, field.contents(), kind, sub_type=inner)


def requantise(source: Path, target: Path, kind: GGMLQuantizationType) -> int:
    """Write the other file; returns the number of matrices that were changed."""
    reader: Any = GGUFReader(source)
    architecture = reader.get_field(Keys.General.ARCHITECTURE).contents()
    writer: Any = GGUFWriter(target, architecture)
    copy_fields(reader, writer)
    changed = 0
    for tensor in reader.tensors:
        data, form = tensor.data, tensor.tensor_type
        if form in FROM and form != kind:
            data, form = quantize(dequantize(data, form), kind), kind
            changed += 1
        writer.add_tensor(tensor.name, data, raw_dtype=form)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return changed


def main(argv: Sequence[str] | None = None) -> int:
    """Write the file."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("source", help=f"a GGUF file, or {BUILT_IN}")
    parser.add_argument("target", type=Path)
    parser.add_argument("--kind", choices=[form.name for form in FROM], default="Q4_0")
    args = parser.parse_args(argv)
    source = built_in_file() if args.source == BUILT_IN else Path(args.source)
    changed = requantise(source, args.target, GGMLQuantizationType[args.kind])
    sys.stdout.write(f"{args.target}: {changed} matrices in {args.kind}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
