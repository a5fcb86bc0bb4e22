"""Immutable folders of Parquet and safetensors with their lineage."""
