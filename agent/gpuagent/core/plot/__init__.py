"""Pictures of memory over time, as SVG without any dependency, and as PNG where Pillow is installed."""
