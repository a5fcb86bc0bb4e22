"""Tables, weights and the record of their inputs -> folders of Parquet and safetensors files."""
