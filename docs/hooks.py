"""MkDocs hook that adds the figures of the committed reports, which are outside `docs`, to the site."""

from pathlib import Path

from mkdocs.structure.files import File, InclusionLevel


def on_files(files, config):
    root = Path(config.config_file_path).parent
    for path in sorted(root.glob("benchmarks/results/*/figures/overview.svg")):
        name = path.relative_to(root).as_posix()
        file = File.generated(config, f"../{name}", abs_src_path=str(path), inclusion=InclusionLevel.INCLUDED)
        file.dest_uri = name
        files.append(file)
    return files
